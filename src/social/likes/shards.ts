import { backOffMs } from '../../base/back-off.ts';
import { messageOf, unavailable } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { sleep, within } from '../../base/timers.ts';
import type { LikeLedger, LikeShard } from '../../ledger/port.ts';
import type { LikeStore } from './redis/store.ts';

const RETRY_MS_MIN = 50;
const RETRY_MS_MAX = 2000;

export interface ShardsDependencies {
  readonly runtime: Runtime;
  readonly store: LikeStore;
  readonly ledger: Pick<LikeLedger, 'likeShard' | 'raiseLikeEpoch'>;
  /** Null: another process has it. The lock only saves work: the ledger's epoch is the fence. */
  readonly lock: (name: string) => Promise<{ release(): Promise<unknown> } | null>;
  /** Waits, within a bound, until the pipe has carried what was decided in this shard. What it leaves behind is lost. */
  readonly drained: (shard: number) => Promise<boolean>;
  /** How long a like waits for its shard to be opened. */
  readonly waitMs: number;
}

/**
 * Opens shards that are stale, without an operator:
 *
 *   1. one process takes the shard's lock, and shuts the shard: nothing is decided from now on;
 *   2. it waits, within a bound, until the pipe has carried to the ledger what was decided;
 *   3. the ledger raises the shard's epoch. From that commit on it drops older events, whoever carries them;
 *   4. the shard is opened for that epoch, empty, unless a higher one is in force by then. Everything that is decided in it rests on
 *      rows that were read after 3.
 *
 * A process that is stopped anywhere in this and resumed later either goes on as if nothing had happened, or finds that another has
 * raised the epoch since 1, and leaves the shard to it. The lock alone does not keep two apart: Redis may have lost it.
 *
 * No shard is opened once the ledger decides likes: this process is *barred*, until it is started again.
 */
export class LikeShards {
  readonly #on: ShardsDependencies;
  readonly #running = new Map<number, { above: number; done: Promise<void> }>();
  #closed = false;
  #barred: string | null = null;

  constructor(dependencies: ShardsDependencies) {
    this.#on = dependencies;
  }

  /** Why no like may be decided in Redis any more, or null. */
  get barred(): string | null {
    return this.#barred;
  }

  /** The ledger decides likes now: another process was told to. */
  bar(shard: number, { epoch, mode }: LikeShard): void {
    if (this.#barred !== null) return;
    this.#barred = 'another process decides likes in the ledger: give all of them the same LIKES setting';
    this.#on.runtime.log.error({ shard, epoch, mode }, this.#barred);
  }

  /** Resolves when a shard is open with an epoch above `above`; retries while Redis or the ledger is out. Fails if barred. */
  open(shard: number, above = 0): Promise<void> {
    const running = this.#running.get(shard);
    if (running) {
      running.above = Math.max(running.above, above);
      return running.done;
    }
    const task = { above, done: Promise.resolve() };
    this.#running.set(shard, task);
    task.done = this.#until(shard, task).finally(() => this.#running.delete(shard));
    return task.done;
  }

  /** The same, for a caller that waits. */
  async opened(shard: number, above = 0): Promise<void> {
    const { runtime, waitMs } = this.#on;
    const opened = this.open(shard, above).then(() => true);
    if ((await within(runtime.timers, opened, waitMs)) === null) throw unavailable('likes are being recovered');
  }

  /**
   * Opens a shard that is stale, or below the ledger's epoch. Returns whether it was: what takes longer than a like waits goes on without
   * the caller.
   */
  async verify(shard: number): Promise<boolean> {
    const { runtime, store, ledger, waitMs } = this.#on;
    if (this.#barred !== null) return false;
    const [inForce, { epoch }] = await Promise.all([store.epochOf(shard), ledger.likeShard(shard)]);
    if (inForce > 0 && inForce >= epoch) return false;
    const opened = this.open(shard, epoch - 1).then(() => true);
    return (await within(runtime.timers, opened, waitMs)) ?? false;
  }

  async #until(shard: number, task: { above: number }): Promise<void> {
    const { runtime, lock, store } = this.#on;
    let failures = 0;
    while (!this.#closed && this.#barred === null) {
      try {
        if ((await store.epochOf(shard)) > task.above) return;
        const grant = await lock(`likes:open:${shard}`);
        if (grant !== null) {
          try {
            // Another process may have opened it while we waited for the lock.
            if ((await store.epochOf(shard)) > task.above) return;
            await this.#once(shard);
            if (this.#barred !== null) break;
            failures = 0;
            // Not if another process has raised the epoch: it is about to open the shard, or has died before it could.
            if ((await store.epochOf(shard)) > task.above) return;
          } finally {
            await grant.release().catch(() => undefined);
          }
        }
      } catch (error) {
        // Once for an outage.
        if (failures === 0) runtime.log.warn({ shard, reason: messageOf(error) }, 'likes cannot be decided yet');
        failures++;
      }
      await sleep(runtime.timers, backOffMs(failures, RETRY_MS_MIN, RETRY_MS_MAX));
    }
    throw unavailable(this.#barred ?? 'likes are closed');
  }

  async #once(shard: number): Promise<void> {
    const { runtime, store, ledger, drained } = this.#on;
    const startedMs = runtime.clock.monotonic();
    // First: without a ledger no shard can be opened.
    const stored = await ledger.likeShard(shard);
    if (stored.mode !== 'counted') return this.bar(shard, stored);
    const shutEpoch = await store.shut(shard);
    const isDrained = await drained(shard);
    if (this.#closed) return;
    const above = Math.max(shutEpoch, store.knownEpoch(shard));
    const epoch = await ledger.raiseLikeEpoch(shard, stored.epoch, above);
    // What another process has opened meanwhile was neither shut nor drained here: likes that were decided in it would be dropped. A
    // change of the mode raises the epoch, too: the next look at it finds out.
    if (epoch === null) return;
    const inForce = await store.open(shard, epoch);
    const pauseMs = Math.round(runtime.clock.monotonic() - startedMs);
    if (!isDrained) runtime.log.error({ shard, epoch }, 'likes that were not stored yet are lost');
    runtime.log.info({ shard, epoch: inForce, pauseMs }, 'a shard of likes was opened');
  }

  close(): void {
    this.#closed = true;
  }
}
