import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { LIKE_SHARDS, type Subject, shardOf } from '../../src/model/like.ts';
import { LikeFiller } from '../../src/social/likes/filler.ts';
import type { ShownLike } from '../../src/social/likes/likes.ts';
import { LikeStore } from '../../src/social/likes/redis/store.ts';
import { forgetSettled, type LikeEntry, LikeWorld } from '../support/like-world.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

/**
 * Random programs on likes in Redis, from two processes by turns, beside a model that is a set of users for each subject. Entries are
 * settled in any order, in parts and again; records, subjects and the whole of Redis are lost in between.
 */
const SUBJECTS: readonly Subject[] = ['post:1', 'post:2', 'post:30', 'comment:1'];
const USERS = ['anna', 'Anna', 'ü ;\u00a0', 'b', 'c', 'd', 'e', '+f', '-g'];
/** These liked the second post long ago. */
const EARLY = ['anna', 'b', 'zoe'];

type Op =
  | { do: 'set'; wishes: { subject: number; user: number; liked: boolean }[] }
  | { do: 'look' | 'read' | 'look late'; user: number }
  | { do: 'settle'; picks: { pick: number; part: 'all' | 'first half' | 'last half'; again: boolean }[] }
  | { do: 'settleAll' | 'prune' | 'evict' | 'flush' }
  | { do: 'reopen'; shard: number; drained: boolean }
  | { do: 'fill'; subject: number }
  | { do: 'give up'; subject: number; user: number; dead: ('first' | 'second')[] }
  | { do: 'delete' };

const subject = fc.nat(SUBJECTS.length - 1);
const user = fc.nat(USERS.length - 1);
const wish = fc.record({ subject, user, liked: fc.boolean() });
const wishes = (maxLength: number) =>
  fc.uniqueArray(wish, { minLength: 1, maxLength, selector: (one) => one.subject * 100 + one.user });
const some = <T>(weight: number, arbitrary: fc.Arbitrary<T>) => ({ weight, arbitrary });

const op: fc.Arbitrary<Op> = fc.oneof(
  some(10, fc.record({ do: fc.constant('set' as const), wishes: wishes(1) })),
  some(6, fc.record({ do: fc.constant('set' as const), wishes: wishes(12) })),
  some(4, fc.record({ do: fc.constant('look' as const), user })),
  some(6, fc.record({ do: fc.constantFrom('read' as const, 'look late' as const), user })),
  some(
    8,
    fc.record({
      do: fc.constant('settle' as const),
      picks: fc.array(
        fc.record({
          pick: fc.nat(99),
          part: fc.constantFrom('all' as const, 'all' as const, 'first half' as const, 'last half' as const),
          again: fc.boolean(),
        }),
        { minLength: 1, maxLength: 4 },
      ),
    }),
  ),
  some(2, fc.record({ do: fc.constantFrom('settleAll' as const, 'prune' as const, 'evict' as const) })),
  some(4, fc.record({ do: fc.constantFrom('prune' as const, 'evict' as const) })),
  some(1, fc.record({ do: fc.constant('flush' as const) })),
  some(1, fc.record({ do: fc.constant('reopen' as const), shard: fc.nat(LIKE_SHARDS - 1), drained: fc.boolean() })),
  some(2, fc.record({ do: fc.constant('fill' as const), subject })),
  some(
    2,
    fc.record({
      do: fc.constant('give up' as const),
      subject,
      user,
      dead: fc.uniqueArray(fc.constantFrom('first' as const, 'second' as const), { minLength: 1 }),
    }),
  ),
  some(1, fc.record({ do: fc.constant('delete' as const) })),
);

const program = fc.array(fc.tuple(fc.constantFrom(0, 1), op), { minLength: 1, maxLength: 40, size: 'max' });

class Run {
  readonly #world: LikeWorld;
  /** Deletes what may be deleted at once, without the wait that protects questions under way: here none is. */
  readonly #janitor: LikeStore;
  readonly #liked = new Map<Subject, Set<string>>(SUBJECTS.map((subject) => [subject, new Set()]));
  readonly #deleted = new Set<Subject>();
  /** Subjects whose events were settled out of order: their counts may be off until all is settled. */
  readonly #disordered = new Set<Subject>();
  /** Subjects of shards that Redis has lost and nobody has opened yet. */
  readonly #lost = new Set<Subject>();
  /** Every entry that ever was: it may come again. */
  readonly #carried: LikeEntry[] = [];
  /** Pages that were read from the ledger and are still to be shown. */
  #pages: { user: string; here: Subject[]; page: Awaited<ReturnType<LikeWorld['read']>> }[] = [];

  constructor(target: string) {
    this.#world = new LikeWorld(target);
    this.#world.ledger.add(...SUBJECTS);
    this.#world.ledger.stored('post:2', EARLY);
    this.#liked.set('post:2', new Set(EARLY));
    this.#world.process();
    this.#world.process();
    const rules = { keepMs: 0, idleMs: 0 };
    this.#janitor = new LikeStore({ target, prefix: this.#world.prefix, rules }, systemRuntime());
  }

  async start(): Promise<void> {
    await this.#world.processes[0]!.start();
  }

  async step(process: number, op: Op): Promise<void> {
    const world = this.#world;
    const likes = world.processes[process]!;
    switch (op.do) {
      case 'set': {
        const outcomes = await Promise.all(
          op.wishes.map(({ subject, user, liked }) => likes.set(SUBJECTS[subject]!, USERS[user]!, liked)),
        );
        for (const { subject } of op.wishes) {
          for (const other of SUBJECTS) if (shardOf(other) === shardOf(SUBJECTS[subject]!)) this.#lost.delete(other);
        }
        for (const [at, { subject, user, liked }] of op.wishes.entries()) {
          const of = SUBJECTS[subject]!;
          const outcome = outcomes[at]!;
          if (this.#deleted.has(of)) {
            expect(outcome.outcome).toBe('not_found');
            continue;
          }
          const users = this.#liked.get(of)!;
          const expected = { outcome: 'ok', liked, changed: users.has(USERS[user]!) !== liked };
          expect(outcome, `${USERS[user]} and ${of}`).toMatchObject(expected);
          if (liked) users.add(USERS[user]!);
          else users.delete(USERS[user]!);
        }
        // Of several, one may be decided at once while another is asked about: the counts are of different moments.
        if (op.wishes.length > 1) return this.#look(USERS[op.wishes[0]!.user]!, process);
        if (outcomes[0]!.outcome === 'ok') this.#isRight(SUBJECTS[op.wishes[0]!.subject]!, outcomes[0]!.likes);
        return;
      }
      case 'look':
        return this.#look(USERS[op.user]!, process);
      case 'read': {
        const here = this.#here;
        const page = await world.read(USERS[op.user]!, here, likes);
        this.#pages.push({ user: USERS[op.user]!, here, page });
        return;
      }
      case 'look late':
        for (const { user, here, page } of this.#pages.splice(0)) this.#isShown(user, here, await page.look(), true);
        return;
      case 'settle': {
        await this.#remember();
        for (const { pick, part, again } of op.picks) await this.#settle(pick, part, again, process);
        // What a worker had in its hands when Redis was lost is stored, until the shard is opened with a new epoch.
        for (const subject of this.#lost) this.#forgetUnsettled(subject);
        return;
      }
      case 'settleAll':
        return this.#settleAll();
      case 'prune':
        // Records go at once here, and not after a time in which pages are shown.
        this.#pages = [];
        for (let shard = 0; shard < LIKE_SHARDS; shard++) {
          await this.#janitor.epochOf(shard);
          await forgetSettled(this.#janitor, shard, 3);
        }
        return;
      case 'evict':
        for (let shard = 0; shard < LIKE_SHARDS; shard++) {
          await this.#janitor.epochOf(shard);
          await this.#janitor.evict(shard, '0', 0);
        }
        return;
      case 'flush':
        await this.#remember();
        await world.flush();
        for (const subject of SUBJECTS) {
          this.#forgetUnsettled(subject);
          this.#lost.add(subject);
        }
        return;
      case 'reopen': {
        await this.#remember();
        await this.#janitor.shut(op.shard);
        if (!op.drained) world.drained = async () => false;
        else world.drained = () => world.settleAll(op.shard).then(() => true);
        await likes.upkeep.round();
        this.#lost.clear();
        for (const subject of SUBJECTS) if (shardOf(subject) === op.shard) this.#forgetUnsettled(subject);
        return;
      }
      case 'fill': {
        const lock = async () => ({ release: async () => undefined });
        const filler = new LikeFiller({ runtime: systemRuntime(), store: this.#janitor, ledger: world.ledger, lock });
        await this.#janitor.epochOf(shardOf(SUBJECTS[op.subject]!));
        await filler.fill(SUBJECTS[op.subject]!, world.ledger.liked(SUBJECTS[op.subject]!));
        return;
      }
      case 'give up':
        return this.#giveUp(process, SUBJECTS[op.subject]!, USERS[op.user]!, op.dead);
      case 'delete':
        world.ledger.delete('comment:1');
        this.#deleted.add('comment:1');
        return likes.forget('comment:1');
    }
  }

  /** Two decisions on a pair, of which the ledger cannot take one or both: what it takes is settled, the rest given up, in this order. */
  async #giveUp(process: number, subject: Subject, user: string, dead: readonly ('first' | 'second')[]): Promise<void> {
    if (this.#deleted.has(subject)) return;
    const world = this.#world;
    await this.#settleAll();
    const likes = world.processes[process]!;
    const users = this.#liked.get(subject)!;
    const before = users.has(user);
    await likes.set(subject, user, !before);
    await likes.set(subject, user, before);
    for (const other of SUBJECTS) if (shardOf(other) === shardOf(subject)) this.#lost.delete(other);
    const entries = await world.entries();
    const [first, second] = entries.flatMap(({ events }) => events);
    for (const { stream, id } of entries) await world.eye.xdel(stream, id);
    const letters = dead.map((which) => (which === 'first' ? first! : second!));
    for (const event of [first!, second!]) if (!letters.includes(event)) await (await likes.settle([event])).told;
    for (const event of letters) await world.processes[1 - process]!.giveUp(event);
    // What is left is the newest that the ledger has taken.
    if (!dead.includes('second') || dead.includes('first')) return this.#look(user, process);
    if (before) users.delete(user);
    else users.add(user);
    return this.#look(user, process);
  }

  /** What was decided and not stored is lost. */
  #forgetUnsettled(subject: Subject): void {
    const rows = [...this.#world.ledger.rows.get(subject)!].filter(([, { liked }]) => liked);
    this.#liked.set(subject, new Set(rows.map(([user]) => user)));
    this.#disordered.delete(subject);
  }

  async #remember(): Promise<void> {
    for (const entry of await this.#world.entries()) {
      if (!this.#carried.some(({ stream, id }) => stream === entry.stream && id === entry.id))
        this.#carried.push(entry);
    }
  }

  async #settle(
    pick: number,
    part: 'all' | 'first half' | 'last half',
    again: boolean,
    process: number,
  ): Promise<void> {
    const entry = this.#carried[pick % this.#carried.length];
    if (entry === undefined) return;
    const half = Math.ceil(entry.events.length / 2);
    const events =
      part === 'all' ? entry.events : part === 'first half' ? entry.events.slice(0, half) : entry.events.slice(half);
    for (const { subject } of entry.events) this.#disordered.add(subject);
    await this.#world.settle({ ...entry, events }, this.#world.processes[process], again || part !== 'all');
  }

  async #settleAll(): Promise<void> {
    await this.#remember();
    await this.#world.settleAll();
    this.#disordered.clear();
  }

  #isRight(subject: Subject, { count, exact }: { count: number; exact: boolean }): void {
    const expected = this.#liked.get(subject)!.size;
    if (exact) expect(count, `the rows of ${subject}`).toBe(this.#world.ledger.liked(subject));
    if (exact || !this.#disordered.has(subject)) expect(count, `the count of ${subject}`).toBe(expected);
  }

  get #here(): Subject[] {
    return SUBJECTS.filter((subject) => !this.#deleted.has(subject));
  }

  async #look(user: string, process: number): Promise<void> {
    const here = this.#here;
    this.#isShown(user, here, await this.#world.look(user, here, this.#world.processes[process]), false);
  }

  #isShown(user: string, here: readonly Subject[], shown: readonly ShownLike[], isLate: boolean): void {
    for (const [at, subject] of here.entries()) {
      // A page that was read before Redis lost its data shows what was stored then, and one of what was deleted since is as it was read.
      if (isLate && (this.#lost.has(subject) || this.#deleted.has(subject))) continue;
      expect(shown[at]!.liked, `${user} sees ${subject}`).toBe(this.#liked.get(subject)!.has(user));
      this.#isRight(subject, shown[at]!);
    }
  }

  /** All is settled: rows, counts and the model are the same, nothing is left over in Redis, no filter has forgotten anybody. */
  async end(): Promise<void> {
    const world = this.#world;
    for (let times = 0; times < 2; times++) await this.#settleAll();
    await world.processes[1]!.upkeep.round();
    const here = this.#here;
    for (const subject of here) expect(world.ledger.liked(subject)).toBe(this.#liked.get(subject)!.size);
    for (const [at, { count, exact }] of (await world.look(null, here)).entries()) {
      expect({ count, exact }).toEqual({ count: this.#liked.get(here[at]!)!.size, exact: true });
    }
    for (let shard = 0; shard < LIKE_SHARDS; shard++) {
      const begin = `${world.prefix}:{likes:${shard}}`;
      const { epoch, n, told, unsettled } = await world.eye.hgetall(`${begin}:head`);
      expect({ told, unsettled, ahead: await world.eye.exists(`${begin}:${epoch}:ahead`) }).toEqual({
        told: n,
        unsettled: '0',
        ahead: 0,
      });
    }
    await this.step(0, { do: 'prune' });
    for (const subject of here) {
      for (const user of USERS) {
        const liked = this.#liked.get(subject)!.has(user);
        expect(await world.processes[0]!.set(subject, user, liked)).toMatchObject({
          changed: false,
          likes: { exact: true },
        });
      }
    }
  }

  async close(): Promise<void> {
    this.#janitor.close();
    await this.#world.end();
  }
}

describeWithAnyRedis('likes in Redis under random programs', () => {
  let target: string;

  beforeAll(async () => {
    target = await redisUrl();
  });
  afterAll(cleanUpServers);

  it(
    'P8: a like is exact at once, and counts equal the rows when all is settled',
    async () => {
      const parameters = seeded<[[number, Op][]]>('likes in redis', { short: 25, long: 1_500 });
      await fc.assert(
        fc.asyncProperty(program, async (steps) => {
          const run = new Run(target);
          try {
            await run.start();
            for (const [process, op] of steps) await run.step(process, op);
            await run.end();
          } finally {
            await run.close();
          }
        }),
        parameters,
      );
    },
    LONG_TIMEOUT_MS,
  );
});
