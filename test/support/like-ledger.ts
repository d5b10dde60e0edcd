import { unavailable } from '../../src/base/errors.ts';
import type {
  LikeBase,
  LikeLedger,
  LikeMode,
  LikeRow,
  LikeSet,
  LikeShard,
  SettledLikes,
} from '../../src/ledger/port.ts';
import { LIKE_SHARDS, type LikeEvent, numberOf, type Pair, type Subject, shardOf } from '../../src/model/like.ts';

interface Row {
  liked: boolean;
  number: bigint;
  changedMs: number;
}

/** The likes of a ledger as the port describes them, in memory: for tests of the likes in Redis, which the ledger is not the subject of. */
export class MemoryLikeLedger implements LikeLedger {
  readonly rows = new Map<Subject, Map<string, Row>>();
  readonly epochs = Array.from({ length: LIKE_SHARDS }, () => 0);
  readonly calls = { likeRows: 0, likeCounts: 0, likeUsers: 0, rows: 0 };
  readonly #bases = new Map<Subject, LikeBase>();
  mode: LikeMode = 'direct';
  /** Awaited before each read and write: to hold one back. */
  before: (call: keyof LikeLedger) => Promise<void> | void = () => undefined;
  /** Awaited after a read, and after an epoch was raised, before the answer is given. */
  after: (call: keyof LikeLedger) => Promise<void> | void = () => undefined;
  /** Thrown by settleLikes, if it returns an error. */
  fault: (events: readonly LikeEvent[]) => Error | null = () => null;
  #atMs = 1_000_000;

  add(...subjects: Subject[]): void {
    for (const subject of subjects) {
      this.rows.set(subject, new Map());
      this.#bases.set(subject, { count: 0, rev: 0, atMs: ++this.#atMs });
    }
  }

  /** Users who like it, stored as if long ago. */
  stored(subject: Subject, users: Iterable<string>): void {
    for (const user of users) this.rows.get(subject)!.set(user, { liked: true, number: 0n, changedMs: 0 });
    this.#bases.set(subject, { count: this.liked(subject), rev: 1, atMs: ++this.#atMs });
  }

  delete(subject: Subject): void {
    this.#bases.delete(subject);
  }

  /** By its rows. */
  liked(subject: Subject): number {
    return [...this.rows.get(subject)!.values()].filter(({ liked }) => liked).length;
  }

  async setLike({ subject, user, liked }: Pair & { liked: boolean }): Promise<LikeSet> {
    if (this.mode === 'counted') throw unavailable('likes are counted in Redis');
    const base = this.#bases.get(subject);
    if (!base) return { outcome: 'not_found' };
    const changed = (this.rows.get(subject)!.get(user)?.liked ?? false) !== liked;
    if (changed) this.#store({ subject, user, liked, atMs: Date.now() }, 0n);
    const { count, atMs } = this.#bases.get(subject)!;
    return { outcome: 'ok', liked, changed, count, atMs };
  }

  #store({ subject, user, liked, atMs }: Omit<LikeEvent, 'epoch' | 'n'>, number: bigint): void {
    const rows = this.rows.get(subject)!;
    const was = rows.get(user)?.liked ?? false;
    rows.set(user, { liked, number, changedMs: atMs });
    const { count, rev } = this.#bases.get(subject)!;
    const moved = Number(liked) - Number(was);
    if (moved !== 0) this.#bases.set(subject, { count: count + moved, rev: rev + 1, atMs: ++this.#atMs });
  }

  async likeRows(pairs: readonly Pair[]): Promise<(LikeRow | null)[]> {
    this.calls.likeRows++;
    this.calls.rows += pairs.length;
    await this.before('likeRows');
    const found = pairs.map(({ subject, user }) => this.rows.get(subject)?.get(user) ?? null);
    await this.after('likeRows');
    return found;
  }

  async settleLikes(shard: number, events: readonly LikeEvent[]): Promise<SettledLikes> {
    await this.before('settleLikes');
    const fault = this.fault(events);
    if (fault) throw fault;
    const bases = new Map<Subject, LikeBase>();
    let dropped = 0;
    const last = new Map<string, LikeEvent>();
    for (const event of events) {
      if (shardOf(event.subject) !== shard) throw new Error(`${event.subject} is not of shard ${shard}`);
      if (event.epoch < this.epochs[shard]! || this.mode !== 'counted' || !this.#bases.has(event.subject)) {
        dropped++;
        continue;
      }
      const name = `${event.subject}\n${event.user}`;
      const other = last.get(name);
      if (!other || numberOf(event) > numberOf(other)) last.set(name, event);
    }
    for (const event of last.values()) {
      const row = this.rows.get(event.subject)!.get(event.user);
      const number = numberOf(event);
      if (!row || number > row.number) this.#store(event, number);
    }
    for (const { subject } of events) {
      const base = this.#bases.get(subject);
      if (base) bases.set(subject, base);
    }
    return { bases, epoch: this.epochs[shard]!, mode: this.mode, dropped };
  }

  async likeCounts(subjects: readonly Subject[]): Promise<Map<Subject, LikeBase>> {
    this.calls.likeCounts++;
    await this.before('likeCounts');
    const found = new Map<Subject, LikeBase>();
    for (const subject of subjects) {
      const base = this.#bases.get(subject);
      if (base) found.set(subject, base);
    }
    await this.after('likeCounts');
    return found;
  }

  async likeUsers(subject: Subject, after: string | null, limit: number): Promise<string[]> {
    this.calls.likeUsers++;
    await this.before('likeUsers');
    const users = [...this.rows.get(subject)!.keys()].map((user) => [user, Buffer.from(user)] as const);
    users.sort(([, a], [, b]) => Buffer.compare(a, b));
    const from = after === null ? 0 : users.findIndex(([, bytes]) => Buffer.compare(bytes, Buffer.from(after)) > 0);
    return from < 0 ? [] : users.slice(from, from + limit).map(([user]) => user);
  }

  async likeShard(shard: number): Promise<LikeShard> {
    await this.before('likeShard');
    return { epoch: this.epochs[shard]!, mode: this.mode };
  }

  async raiseLikeEpoch(shard: number, seen: number, above: number): Promise<number | null> {
    await this.before('raiseLikeEpoch');
    if (this.epochs[shard] !== seen || this.mode !== 'counted') return null;
    const epoch = Math.max(seen, above) + 1;
    this.epochs[shard] = epoch;
    await this.after('raiseLikeEpoch');
    return epoch;
  }

  async setLikeMode(mode: LikeMode): Promise<boolean> {
    if (this.mode === mode) return false;
    this.mode = mode;
    for (let shard = 0; shard < LIKE_SHARDS; shard++) this.epochs[shard]!++;
    return true;
  }
}
