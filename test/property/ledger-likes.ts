import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { LikeMode } from '../../src/ledger/port.ts';
import { type LikeEvent, numberOf, type Subject, shardOf } from '../../src/model/like.ts';
import type { LifeUnderTest } from '../contract/ledger-life-kit.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

const USERS = ['ann', 'Ann', 'bob', 'zoe'];
const SHARD = 3;

/** Two posts and a comment of one shard, and a post that is not there. */
const SUBJECTS: Subject[] = [];
for (const [kind, from] of [
  ['post', 2n ** 61n],
  ['post', 5n],
  ['comment', 1000n],
  ['post', 2n ** 40n],
] as const) {
  let id = from;
  while (shardOf(`${kind}:${id}`) !== SHARD) id++;
  SUBJECTS.push(`${kind}:${id}`);
}
const MISSING = SUBJECTS[3]!;

/** Events are meant by their place among those that were decided so far: any cut, any order, any number of times. */
type Op =
  | { do: 'decide'; subject: number; user: number; liked: boolean }
  | { do: 'deliver'; picks: number[] }
  | { do: 'race'; one: number[]; other: number[] }
  | { do: 'set'; subject: number; user: number; liked: boolean }
  | { do: 'raise'; above: number };

/** Mostly the latest. */
const pick = fc.oneof({ weight: 3, arbitrary: fc.nat(5) }, { weight: 1, arbitrary: fc.nat(60) });
const picks = fc.array(pick, { minLength: 0, maxLength: 12 });
const pair = { subject: fc.nat(3), user: fc.nat(USERS.length - 1), liked: fc.boolean() };

const op: fc.Arbitrary<Op> = fc.oneof(
  { weight: 12, arbitrary: fc.record({ do: fc.constant('decide' as const), ...pair }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('deliver' as const), picks }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('race' as const), one: picks, other: picks }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('set' as const), ...pair }) },
  {
    weight: 1,
    arbitrary: fc.record({ do: fc.constant('raise' as const), above: fc.constantFrom(0, 3, 9_000, 2 ** 22) }),
  },
);

/** What the tables should say, in the plainest words. */
class Model {
  epoch = 1;
  readonly likes = new Map<string, { liked: boolean; number: bigint; atMs: number }>();
  readonly revs = new Map<Subject, number>(SUBJECTS.filter((subject) => subject !== MISSING).map((each) => [each, 0]));

  copy(): Model {
    const copy = new Model();
    copy.epoch = this.epoch;
    for (const [key, like] of this.likes) copy.likes.set(key, like);
    for (const [key, rev] of this.revs) copy.revs.set(key, rev);
    return copy;
  }

  /** One event after another. */
  settle(events: readonly LikeEvent[]): number {
    let dropped = 0;
    const before = new Map([...this.likes].map(([key, { liked }]) => [key, liked]));
    for (const event of events) {
      if (event.epoch < this.epoch || !this.revs.has(event.subject)) {
        dropped++;
        continue;
      }
      const number = numberOf(event);
      const key = `${event.subject} ${event.user}`;
      if (number > (this.likes.get(key)?.number ?? -1n)) this.likes.set(key, { ...event, number });
    }
    this.#raise(before);
    return dropped;
  }

  set(subject: Subject, user: string, liked: boolean, atMs: number): boolean {
    const key = `${subject} ${user}`;
    const stored = this.likes.get(key);
    if ((stored?.liked ?? false) === liked) return false;
    const before = new Map([...this.likes].map(([each, like]) => [each, like.liked]));
    this.likes.set(key, { liked, number: (stored?.number ?? 0n) + 1n, atMs });
    this.#raise(before);
    return true;
  }

  /** A rev is raised if somebody who liked it does not any more, or the other way round. */
  #raise(before: ReadonlyMap<string, boolean>): void {
    const changed = [...this.likes].filter(([key, { liked }]) => (before.get(key) ?? false) !== liked);
    for (const subject of new Set(changed.map(([key]) => key.split(' ')[0] as Subject))) {
      this.revs.set(subject, this.revs.get(subject)! + 1);
    }
  }

  count(subject: Subject): number {
    return [...this.likes].filter(([key, { liked }]) => liked && key.startsWith(`${subject} `)).length;
  }

  get state(): unknown {
    const likes = [...this.likes].map(([key, { liked, number, atMs }]) => `${key} ${liked} ${number} ${atMs}`);
    return {
      likes: likes.sort(),
      counts: [...this.revs].map(([each, rev]) => `${each} ${this.count(each)} ${rev}`).sort(),
    };
  }
}

class Run {
  readonly #world: LifeUnderTest;
  readonly #text: string;
  readonly #events: LikeEvent[] = [];
  #model = new Model();
  #mode: LikeMode = 'direct';

  constructor(name: string, world: LifeUnderTest) {
    this.#world = world;
    this.#text = name === 'mysql' ? 'CHAR' : 'TEXT';
  }

  async start(): Promise<void> {
    for (const subject of SUBJECTS.filter((each) => each !== MISSING)) {
      const [kind, id] = subject.split(':');
      await this.#world.change(
        kind === 'post'
          ? `INSERT INTO posts (id, author, title, content, created_at, updated_at) VALUES (${id}, 'a', 'T', 'C', 1, 1)`
          : `INSERT INTO comments (id, post_id, author, content, created_at, updated_at) VALUES (${id}, 1, 'a', 'C', 1, 1)`,
      );
    }
  }

  async step(op: Op): Promise<void> {
    const { likes } = this.#world.ledger;
    await this.#decidedBy(op.do === 'set' ? 'direct' : 'counted');
    switch (op.do) {
      case 'decide': {
        const { epoch } = this.#model;
        const n = this.#events.length + 1;
        const [subject, user] = [SUBJECTS[op.subject]!, USERS[op.user]!];
        this.#events.push({ subject, user, liked: op.liked, epoch, n, atMs: n });
        return;
      }
      case 'deliver': {
        const batch = this.#picked(op.picks);
        const settled = await likes.settleLikes(SHARD, batch);
        expect(settled.dropped).toBe(this.#model.settle(batch));
        const known = new Set(batch.map(({ subject }) => subject).filter((subject) => subject !== MISSING));
        const bases = [...known].map((each) => [each, this.#model.count(each), this.#model.revs.get(each)]);
        expect([...settled.bases].map(([each, { count, rev }]) => [each, count, rev]).sort()).toEqual(bases.sort());
        break;
      }
      case 'race': {
        const [one, other] = [this.#picked(op.one), this.#picked(op.other)];
        await Promise.all([one, other].map((batch) => likes.settleLikes(SHARD, batch)));
        const [before, after] = [this.#model, this.#model.copy()];
        for (const batch of [one, other]) before.settle(batch);
        for (const batch of [other, one]) after.settle(batch);
        const state = await this.#state();
        expect([before.state, after.state], 'as one after the other').toContainEqual(state);
        this.#model = JSON.stringify(state) === JSON.stringify(before.state) ? before : after;
        return;
      }
      case 'set': {
        const [subject, user] = [SUBJECTS[op.subject]!, USERS[op.user]!];
        const answer = await likes.setLike({ subject, user, liked: op.liked });
        if (subject === MISSING) expect(answer).toEqual({ outcome: 'not_found' });
        else {
          const changed = this.#model.set(subject, user, op.liked, this.#world.clock.now());
          expect(answer).toMatchObject({ outcome: 'ok', liked: op.liked, changed, count: this.#model.count(subject) });
        }
        break;
      }
      case 'raise':
        expect(await likes.raiseLikeEpoch(SHARD, this.#model.epoch - 1, op.above)).toBeNull();
        expect(await likes.raiseLikeEpoch(SHARD, this.#model.epoch, op.above)).toBe(
          Math.max(this.#model.epoch, op.above) + 1,
        );
        this.#model.epoch = Math.max(this.#model.epoch, op.above) + 1;
        return;
    }
    expect(await this.#state()).toEqual(this.#model.state);
  }

  /** Without a change of the epoch: events from before are not dropped. */
  async #decidedBy(mode: LikeMode): Promise<void> {
    if (mode !== this.#mode) await this.#world.change(`UPDATE like_shards SET mode = '${mode}'`);
    this.#mode = mode;
  }

  #picked(picks: readonly number[]): LikeEvent[] {
    return picks.flatMap((at) => this.#events.at(-1 - at) ?? []);
  }

  async #state(): Promise<unknown> {
    const likes: string[] = [];
    const counts: string[] = [];
    for (const kind of ['post', 'comment']) {
      const text = (column: string): string => `CAST(${column} AS ${this.#text}) AS ${column}`;
      const rows = await this.#world.rows(
        `SELECT ${text(`${kind}_id`)}, liker, liked, ${text('number')}, changed_at FROM ${kind}_likes`,
      );
      for (const row of rows) {
        const subject = `${kind}:${row[`${kind}_id`]}`;
        likes.push(`${subject} ${row.liker} ${Number(row.liked) === 1} ${row.number} ${row.changed_at}`);
      }
      const stored = await this.#world.rows(`SELECT ${text('id')}, likes_count, likes_rev FROM ${kind}s`);
      for (const row of stored) counts.push(`${kind}:${row.id} ${row.likes_count} ${row.likes_rev}`);
    }
    return { likes: likes.sort(), counts: counts.sort() };
  }
}

export function likesSettled(
  name: string,
  make: () => Promise<LifeUnderTest>,
  runs: { short: number; long: number },
): void {
  it(
    'P8: events that are cut, repeated, reordered and raced in any way leave the rows, counts and revs of the model',
    async () => {
      const parameters = seeded<[Op[]]>(`likes on ${name}`, runs);
      await fc.assert(
        fc.asyncProperty(fc.array(op, { minLength: 1, maxLength: 50, size: 'max' }), async (ops) => {
          const world = await make();
          try {
            const run = new Run(name, world);
            await run.start();
            for (const each of ops) await run.step(each);
          } finally {
            await world.close();
          }
        }),
        parameters,
      );
    },
    LONG_TIMEOUT_MS,
  );
}
