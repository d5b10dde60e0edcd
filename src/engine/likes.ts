import { unavailable } from '../base/errors.ts';
import type { RedisTarget } from '../base/redis/address.ts';
import type { Runtime } from '../base/runtime.ts';
import { within } from '../base/timers.ts';
import type { Ledger } from '../ledger/port.ts';
import type { Locks } from '../locks/locks.ts';
import { type LikeEvent, likeChannel, type Subject } from '../model/like.ts';
import { BrokerPipe } from '../pipe/brokers/pipe.ts';
import { LIKES } from '../pipe/likes.ts';
import type { DeadLetters, SharedPipe } from '../pipe/port.ts';
import { CountedLikes } from '../social/likes/counted.ts';
import {
  asStored,
  type LikeOutcome,
  type Likes,
  type PageMark,
  type SettledLike,
  type ShownLike,
} from '../social/likes/likes.ts';
import { lead } from './lead.ts';

export interface SharedLikesParts {
  readonly runtime: Runtime;
  readonly ledger: Ledger;
  readonly redis: RedisTarget;
  readonly prefix: string;
  readonly commandMs: number;
  readonly locks: Locks;
  readonly pipe: SharedPipe<LikeEvent>;
  /** How long likes in the pipe are waited for before a shard is opened anew: in all, and while none of them is stored. */
  readonly drainMsMax: number;
  readonly drainIdleMsMax: number;
  /** Why the prefix in Redis cannot be used now, or null. */
  readonly closedBecause: () => string | null;
}

/** Renewed while a shard is opened or a filter is filled: a process that is stopped in the middle loses the lock. */
const LOCK_LEASE_MS = 10_000;
const BROKER_MS_MAX = 5000;
const STOP_MS_MAX = 5000;

/**
 * Likes of a shop that many processes share, counted in Redis (LIKES=counted), wired:
 *
 *     set ──▶ Redis decides ═══▶ pipe ──▶ (a worker, here or elsewhere) settle ──▶ ledger
 *                  ▲                                  │ commit, then Redis, then acknowledge
 *                  └──────────────────────────────────┘
 */
export class SharedLikes implements Likes {
  readonly #parts: SharedLikesParts;
  readonly #counted: CountedLikes;
  #leader: { stop(): Promise<void> } | null = null;

  constructor(parts: SharedLikesParts) {
    const { runtime, ledger, redis, prefix, commandMs, locks, pipe, drainMsMax, drainIdleMsMax } = parts;
    this.#parts = parts;
    this.#counted = new CountedLikes(
      { target: redis, prefix, commandMs, rules: { unsettledMax: LIKES.bound } },
      {
        runtime,
        ledger: ledger.likes,
        probe: () => ledger.probe(),
        lock: (name) => locks.mutex(name).tryAcquire({ lease: LOCK_LEASE_MS, renew: true }),
        drained: (shard) => pipe.caughtUp(likeChannel(shard), drainMsMax, drainIdleMsMax),
      },
    );
  }

  /** Why likes cannot be decided or carried now, or null. */
  get reason(): string | null {
    return this.#counted.reason ?? this.#parts.pipe.reason;
  }

  /** Since the start: posts and comments that were shown as they are stored, because Redis did not answer for them. */
  get asStored(): number {
    return this.#counted.asStored;
  }

  get letters(): DeadLetters<LikeEvent> {
    return this.#parts.pipe.letters;
  }

  get pipe(): SharedPipe<LikeEvent> {
    return this.#parts.pipe;
  }

  /** Says in the ledger that Redis decides likes. Redis need not be there yet: shards are opened when they are needed. */
  async open(): Promise<void> {
    const { runtime, ledger, pipe } = this.#parts;
    const isNew = await ledger.likes.setLikeMode('counted');
    if (isNew) runtime.log.info('likes are counted in Redis from now on');
    if (pipe instanceof BrokerPipe) await within(runtime.timers, pipe.open(), BROKER_MS_MAX);
  }

  /** From now on this process carries likes to the ledger, and sees to what no request brings about whenever it leads. */
  work(): void {
    const { ledger, locks, pipe } = this.#parts;
    pipe.consume(
      (batch) => this.#counted.settle(batch),
      () => ledger.probe(),
    );
    this.#leader = lead(locks, 'likes', (signal, alone) => this.#counted.upkeep.lead(signal, alone));
  }

  async set(subject: Subject, user: string, liked: boolean): Promise<LikeOutcome> {
    const reason = this.#parts.closedBecause();
    if (reason !== null) throw unavailable(reason);
    return await this.#counted.set(subject, user, liked);
  }

  mark(): PageMark {
    return this.#counted.mark();
  }

  async look(reader: string | null, page: readonly SettledLike[], mark: PageMark): Promise<ShownLike[]> {
    if (this.#parts.closedBecause() === null) return await this.#counted.look(reader, page, mark);
    return asStored(page);
  }

  async forget(subject: Subject): Promise<void> {
    if (this.#parts.closedBecause() === null) await this.#counted.forget(subject);
  }

  /** See `CountedLikes`. */
  giveUp(event: LikeEvent): Promise<void> {
    return this.#counted.giveUp(event);
  }

  olderArrived(event: LikeEvent): Promise<void> {
    return this.#counted.olderArrived(event);
  }

  reopen(shard: number, epoch: number): Promise<void> {
    return this.#counted.reopen(shard, epoch);
  }

  /** Carries and leads no more. A batch whose database hangs is left in the pipe: another worker takes it over. */
  async stop(): Promise<void> {
    const { runtime, pipe } = this.#parts;
    const stopped = Promise.all([pipe.stop(), this.#leader?.stop()]);
    await within(runtime.timers, stopped, STOP_MS_MAX);
  }

  close(): void {
    this.#counted.close();
    void this.#parts.pipe.close();
  }
}
