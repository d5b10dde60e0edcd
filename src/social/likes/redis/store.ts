import { KeepAlive } from '../../../base/keep-alive.ts';
import type { RedisTarget } from '../../../base/redis/address.ts';
import { RedisLink } from '../../../base/redis/link.ts';
import type { Runtime } from '../../../base/runtime.ts';
import { LIKE_SHARDS, type LikeEvent, type Subject, shardOf } from '../../../model/like.ts';
import { type LikeAnswer, LikeDecisions, type LikeRequest } from './decisions.ts';
import { LikeLayout, pairField } from './layout.ts';
import { LikeLooks, type LookAnswer, type LookRequest } from './looks.ts';
import { LIKE_RULES, type LikeRules } from './rules.ts';
import { scriptNamed } from './scripts.ts';
import { type CommittedCount, spansOf, toldOf } from './told.ts';
import { userMark } from './user-mark.ts';

export interface LikeStoreOptions {
  readonly target: RedisTarget;
  readonly prefix?: string;
  /** How long one command may take. */
  readonly commandMs?: number;
  /** For how long a call whose reply was lost is sent again. Default 1 s, and no less than a command may take. */
  readonly retryMs?: number;
  readonly rules?: Partial<LikeRules>;
}

/** Users of one call, and subjects that it tells of: about a millisecond of Redis' time. */
const CALL_MAX = 128;
const SUBJECTS_MAX = 512;
const SCAN_COUNT = 200;
const RETRY_MS = 1000;

/**
 * What the likes keep in Redis, shared by many processes. Every step is one script on one server, by that server's clock; a decision is
 * in the shard's stream in the same step. A Redis that lost data, was restarted or was promoted is *stale*: it decides nothing until the
 * shard is opened with a higher epoch.
 */
export class LikeStore {
  readonly rules: LikeRules;
  readonly #link: RedisLink;
  readonly #layout: LikeLayout;
  readonly #keepAlive: KeepAlive;
  readonly #decisions: LikeDecisions;
  readonly #looks: LikeLooks;
  #epochs: readonly number[] = Array.from({ length: LIKE_SHARDS }, () => 0);

  constructor(options: LikeStoreOptions, runtime: Runtime) {
    const { target, prefix = 'doorbuster', commandMs = 1000 } = options;
    // A command that is slow and in time must not be too late to be decided.
    const { retryMs = Math.max(RETRY_MS, commandMs) } = options;
    this.rules = { ...LIKE_RULES, ...options.rules };
    this.#layout = new LikeLayout(prefix);
    this.#keepAlive = new KeepAlive(runtime.timers);
    this.#link = new RedisLink(target, { commandMs }, runtime, this.#keepAlive, {
      message: () => undefined,
      interrupted: () => undefined,
    });
    const epochs = {
      of: (shard: number) => this.#epochs[shard]!,
      saw: (shard: number, epoch: number) => this.#saw(shard, epoch),
    };
    const on = { link: this.#link, layout: this.#layout, runtime, epochs };
    const caller = runtime.random.secret(6);
    this.#decisions = new LikeDecisions({ ...on, rules: this.rules, caller, retryMs });
    this.#looks = new LikeLooks(on);
  }

  #saw(shard: number, epoch: number): void {
    if (epoch > this.#epochs[shard]!) this.#epochs = this.#epochs.with(shard, epoch);
  }

  /** The highest epoch of each shard that this process has seen, as of now. */
  get epochs(): readonly number[] {
    return this.#epochs;
  }

  /** The highest epoch of a shard that this process has seen; 0: none. */
  knownEpoch(shard: number): number {
    return this.#epochs[shard]!;
  }

  decide(request: LikeRequest): Promise<LikeAnswer> {
    return this.#decisions.decide(request);
  }

  look(request: LookRequest): Promise<LookAnswer> {
    return this.#looks.look(request);
  }

  /**
   * Tells what the ledger has committed or dropped, and the counts that it has now. `ledgerEpoch`: the shard's, at the commit. Returns
   * the epoch in force: nothing was done if it is not that of the events.
   */
  async settle(
    shard: number,
    epoch: number,
    ledgerEpoch: number,
    events: readonly LikeEvent[],
    counts: ReadonlyMap<Subject, CommittedCount>,
  ): Promise<number> {
    const keys = this.#layout.shard(shard);
    const { subjects, ahead, pairs } = keys.of(epoch);
    const all = toldOf(events, counts);
    let reply: unknown = epoch;
    // All events of a subject come with its count, so that it never looks settled with an old one.
    for (let from = 0; from === 0 || from < all.length; from += SUBJECTS_MAX) {
      const some = all.slice(from, from + SUBJECTS_MAX);
      reply = await this.#link.script(
        scriptNamed('settle'),
        [keys.head, subjects, ahead, ...pairs],
        [
          ...[epoch, ledgerEpoch, this.rules.keepMs],
          ...[JSON.stringify(spansOf(some)), JSON.stringify(some.map(({ numbers }) => numbers))],
          ...some.map(({ subject }) => subject),
        ],
      );
    }
    return typeof reply === 'number' ? reply : epoch;
  }

  /**
   * An event that the ledger cannot take is given up: the pair is from now on what the ledger has, `liked` and the count that this row is
   * part of. Does nothing in another epoch; leaves a pair alone that was decided again. May be repeated. Returns whether the pair changed.
   */
  async giveUp(event: LikeEvent, liked: boolean, base: CommittedCount): Promise<boolean> {
    const { subject, user, epoch, n } = event;
    const shard = shardOf(subject);
    const keys = this.#layout.shard(shard);
    const args = [epoch, pairField(subject, user), n, liked ? 1 : 0];
    const reply = await this.#link.script(scriptNamed('give-up'), [keys.head, ...keys.of(epoch).pairs], args);
    if (typeof reply === 'number') return false;
    await this.settle(shard, epoch, 0, [event], new Map([[subject, base]]));
    return reply === '1';
  }

  /** Whether some event that was decided in the shard before this one is neither stored nor dropped. */
  async isAhead({ subject, epoch, n }: LikeEvent): Promise<boolean> {
    const { head } = this.#layout.shard(shardOf(subject));
    const [inForce, told] = (await this.#link.call('HMGET', [head, 'epoch', 'told'])) as (string | null)[];
    return Number(inForce) === epoch && Number(told) < n - 1;
  }

  /** From now on a like of this subject is decided only after the ledger was asked whether it exists. */
  async forget(subject: Subject): Promise<void> {
    const shard = shardOf(subject);
    for (let epoch = this.#epochs[shard]!; ; ) {
      const inForce = await this.settle(shard, epoch, 0, [], new Map([[subject, null]]));
      // In a lower epoch, or in none, nothing is decided.
      if (inForce <= epoch) return;
      epoch = inForce;
      this.#saw(shard, epoch);
    }
  }

  /** The epoch in force; 0: the shard is stale. */
  async epochOf(shard: number): Promise<number> {
    const keys = this.#layout.shard(shard);
    const known = this.#epochs[shard]!;
    const inForce = (await this.#link.script(
      scriptNamed('epoch-of'),
      [keys.head, keys.of(known).stream],
      [known],
    )) as number;
    if (inForce < known) return 0;
    this.#saw(shard, inForce);
    // Of another epoch than the one asked for, the stream was not looked at.
    return inForce === known ? inForce : await this.epochOf(shard);
  }

  /** Stops deciding; returns the epoch that was in force, 0: none. */
  async shut(shard: number): Promise<number> {
    return (await this.#link.script(scriptNamed('shut'), [this.#layout.shard(shard).head], [])) as number;
  }

  /** Opens a shard for an epoch that the ledger has raised; returns the epoch in force, which may be a higher one. */
  open(shard: number, epoch: number): Promise<number> {
    return this.#open(shard, epoch, 0);
  }

  /** The ledger decides likes from this epoch on: Redis decides nothing, and keeps nothing of the epochs before. */
  async leave(shard: number, epoch: number): Promise<void> {
    await this.#open(shard, epoch, 1);
  }

  async #open(shard: number, epoch: number, isLeft: 0 | 1): Promise<number> {
    const keys = this.#layout.shard(shard);
    const { stream, pairs } = keys.of(epoch);
    const names = [keys.head, keys.epochs, keys.old, stream, pairs[0]];
    const reply = await this.#link.script(scriptNamed('open'), names, [epoch, isLeft]);
    const inForce = typeof reply === 'number' ? reply : epoch;
    this.#saw(shard, inForce);
    return inForce;
  }

  /** Begins to fill the filter of a subject. `none`: it is not in Redis, or has no room for one. */
  async beginFilter(subject: Subject, token: string, expected: number): Promise<'filling' | 'complete' | 'none'> {
    const reply = await this.#onFilter('fill-begin', subject, [subject, token, expected]);
    return typeof reply === 'string' ? (reply as 'filling' | 'complete' | 'none') : 'none';
  }

  /** Adds users; false: somebody else fills it now, or it is gone. */
  async fillFilter(subject: Subject, token: string, users: readonly string[], isLast: boolean): Promise<boolean> {
    for (let from = 0; from === 0 || from < users.length; from += CALL_MAX) {
      const some = users.slice(from, from + CALL_MAX);
      const ends = isLast && from + CALL_MAX >= users.length;
      const marks = some.map(userMark).join('');
      const reply = await this.#onFilter('fill', subject, [subject, token, ends ? 1 : 0, marks]);
      if (reply !== 'filling' && reply !== 'complete') return false;
    }
    return true;
  }

  #onFilter(script: string, subject: Subject, args: (string | number)[]): Promise<unknown> {
    const keys = this.#layout.shard(shardOf(subject));
    const epoch = this.#epochs[shardOf(subject)]!;
    const { subjects, filters } = keys.of(epoch);
    const all = [epoch, filters, this.rules.filterUsersMax, ...args];
    return this.#link.script(scriptNamed(script), [keys.head, subjects], all);
  }

  /**
   * Deletes the old generation of records if everything in it is settled for long enough, and begins a new one (`done`). `more`: it has
   * looked at some records, to keep those that are not settled.
   */
  async turnOver(shard: number, max: number): Promise<'done' | 'more' | 'kept'> {
    const keys = this.#layout.shard(shard);
    const epoch = this.#epochs[shard]!;
    const { pairs, ahead } = keys.of(epoch);
    const names = [keys.head, ...pairs, ahead];
    const reply = await this.#link.script(scriptNamed('turn-over'), names, [epoch, this.rules.keepMs, max]);
    return typeof reply === 'string' ? (reply as 'done' | 'more' | 'kept') : 'kept';
  }

  /** Takes some cold subjects out of Redis; `cursor` '0' begins anew, and is returned at the end. */
  async evict(
    shard: number,
    cursor: string,
    idleMs: number,
  ): Promise<{ cursor: string; evicted: number; left: number }> {
    const keys = this.#layout.shard(shard);
    const epoch = this.#epochs[shard]!;
    const { subjects, pairs, filters } = keys.of(epoch);
    // A count that was read before a subject came in and left again must be too old by then.
    const ms = Math.max(idleMs, this.rules.keepMs);
    const reply = await this.#link.script(
      scriptNamed('evict'),
      [keys.head, subjects, ...pairs],
      [epoch, filters, cursor, SCAN_COUNT, ms],
    );
    if (!Array.isArray(reply)) return { cursor: '0', evicted: 0, left: 0 };
    return { cursor: String(reply[0]), evicted: Number(reply[1]), left: Number(reply[2]) };
  }

  /** Deletes some of what epochs that are over have left; returns how much. */
  async clear(shard: number): Promise<number> {
    const keys = this.#layout.shard(shard);
    let cleared = 0;
    for (const epoch of (await this.#link.call('SMEMBERS', [keys.old])) as string[]) {
      const { subjects, pairs, ahead, filters } = keys.of(Number(epoch));
      const names = [keys.head, keys.old, subjects, ...pairs, ahead];
      cleared += (await this.#link.script(scriptNamed('clear'), names, [epoch, filters, SCAN_COUNT])) as number;
    }
    return cleared;
  }

  close(): void {
    this.#decisions.close();
    this.#link.close();
    this.#keepAlive.close();
  }
}
