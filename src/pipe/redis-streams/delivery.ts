import { backOffMs } from '../../base/back-off.ts';
import { detailOf, RedisUnavailableError } from '../../base/redis/link.ts';
import type { Runtime } from '../../base/runtime.ts';
import { Seldom } from '../../base/seldom.ts';
import type { Channels } from '../channels.ts';
import type { Handle, Handled, Undeliverable } from '../port.ts';
import type { CatchUp } from './catch-up.ts';
import { type Entry, sizeOf } from './entry.ts';
import type { Limiter } from './limiter.ts';
import { movesOf, type RetryPolicy } from './moves.ts';
import type { StreamName, StreamStore } from './store.ts';

export interface BatchDeliveryOptions<M> {
  readonly channels: Channels<M>;
  readonly store: StreamStore<M>;
  readonly catchUp: CatchUp<M>;
  readonly policy: RetryPolicy;
  /** A batch occupies a slot while it is handled, and lends it to others while it only waits. */
  readonly limiter: Limiter;
  /** A consumer whose handler rejects for so long leaves its batches to others, until its `ready` resolves. */
  readonly rejectedMsMax: number;
  /** A slot has become free for others. */
  lent(): void;
  /** The handler rejected for too long: batches in hand are left to others, and nothing more is taken until `back`. */
  away(): void;
  back(): void;
}

const DECIDED = { decided: Promise.resolve(true) };
const LEFT = { decided: Promise.resolve(false) };
const READY_MS = 1000;
const AGAIN_MS_MIN = 25;
const AGAIN_MS_MAX = 2000;
const againMs = (failures: number): number => backOffMs(failures, AGAIN_MS_MIN, AGAIN_MS_MAX);
/** An outage is logged when a try fails so long after the first failure: a success in between ends it unlogged. */
const OUT_TOLD_MS = 100;
/** How many batches may wait for a ledger to come back without a slot: bounds the memory. */
const RESTING_MAX = 64;

/**
 * Hands batches over until they are decided, whether they came from a stream or from a broker.
 *
 *   stored → decided     when its consequences are done; the next batch may be handed over meanwhile
 *   handled → decided    one script takes the entries out of the stream and puts what is undeliverable elsewhere
 *   rejected → again     after 25 ms … 2 s, for as long as it takes; no try is counted
 *   left                 the process stops, or the handler rejected for too long: others may take it
 */
export class BatchDelivery<M> {
  readonly #on: BatchDeliveryOptions<M>;
  readonly #runtime: Runtime;
  readonly #seldom: Seldom;
  #handle: Handle<M> | null = null;
  #ready: (() => Promise<unknown>) | null = null;
  #away = false;
  #stopping = false;
  #resting = 0;
  /** Wakes each sleeper; called by stop(). */
  readonly #sleepers = new Set<() => void>();
  #reason: string | null = null;
  #outSinceMs: number | null = null;
  #outTold = false;
  #retries = 0;
  #died = 0;

  constructor(options: BatchDeliveryOptions<M>, runtime: Runtime) {
    this.#on = options;
    this.#runtime = runtime;
    this.#seldom = new Seldom(runtime.clock);
  }

  /** Since the start: messages put aside for another try, and messages that became dead letters. */
  get counters(): { retries: number; died: number } {
    return { retries: this.#retries, died: this.#died };
  }

  /** Why Redis cannot be reached, or null while it can. */
  get reason(): string | null {
    return this.#reason;
  }

  get started(): boolean {
    return this.#handle !== null;
  }

  get isAway(): boolean {
    return this.#away;
  }

  start(handle: Handle<M>, ready: (() => Promise<unknown>) | null): void {
    this.#handle = handle;
    this.#ready = ready;
  }

  /** Hands over nothing more and wakes all sleepers. */
  stop(): void {
    this.#stopping = true;
    for (const wake of [...this.#sleepers]) wake();
  }

  /** Resolves with true when the batch is decided, with false when it was left. */
  async settle(stream: StreamName, all: readonly Entry<M>[]): Promise<boolean> {
    return await (await this.begin(stream, all)).decided;
  }

  /**
   * Resolves when the next batch may be handed over: this one is decided, or left, or stored and about to be decided (`decided`
   * resolves with whether it was). From then on the slot belongs to the caller again.
   */
  async begin(stream: StreamName, all: readonly Entry<M>[]): Promise<{ decided: Promise<boolean> }> {
    const sinceMs = this.#runtime.clock.monotonic();
    for (let failures = 0; ; failures++) {
      const entries = all.filter(({ lost }) => !lost);
      if (entries.length === 0) return DECIDED;
      try {
        const handled = await this.#handOver(entries);
        if ('told' in handled) return { decided: this.#finish(stream, all, entries, handled) };
        await this.#decide(stream, entries, handled, (ms) => this.#rest(ms));
        return DECIDED;
      } catch (error) {
        if (failures === 0) this.#again(stream, entries, error);
      }
      await this.#rest(againMs(failures));
      if (this.#leave(sinceMs)) return LEFT;
    }
  }

  async #handOver(entries: readonly Entry<M>[]): Promise<readonly Undeliverable<M>[] | Handled<M>> {
    const batch = entries.flatMap(({ messages }) => messages);
    return batch.length === 0 ? [] : ((await this.#handle!(batch)) ?? []);
  }

  /** Finishes a stored batch while the next one is handled; needs no slot. */
  async #finish(
    stream: StreamName,
    all: readonly Entry<M>[],
    stored: readonly Entry<M>[],
    { undeliverable, told }: Handled<M>,
  ): Promise<boolean> {
    const sleep = (ms: number): Promise<void> => this.sleep(ms);
    try {
      await told;
      await this.#decide(stream, stored, undeliverable, sleep);
      return true;
    } catch (error) {
      this.#again(stream, stored, error);
    }
    const sinceMs = this.#runtime.clock.monotonic();
    for (let failures = 0; ; failures++) {
      await this.sleep(againMs(failures));
      if (this.#leave(sinceMs)) return false;
      try {
        const entries = all.filter(({ lost }) => !lost);
        if (entries.length === 0) return true;
        const handled = await this.#handOver(entries);
        if ('told' in handled) await handled.told;
        const found = 'told' in handled ? handled.undeliverable : handled;
        await this.#decide(stream, entries, found, sleep);
        return true;
      } catch {
        // Logged already.
      }
    }
  }

  #again({ channel }: StreamName, entries: readonly Entry<M>[], error: unknown): void {
    const count = entries.reduce((sum, { messages }) => sum + messages.length, 0);
    this.#runtime.log.warn({ err: error, channel, [this.#on.channels.kind]: count }, 'a batch is handed over again');
  }

  #leave(sinceMs: number): boolean {
    const tooLong = this.#runtime.clock.monotonic() - sinceMs >= this.#on.rejectedMsMax;
    if (this.#ready !== null && tooLong) this.#goAway();
    return this.#stopping || this.#away;
  }

  /** Leaves the batches to others that may reach the ledger, and comes back when `ready` resolves. */
  #goAway(): void {
    if (this.#away || this.#stopping) return;
    this.#away = true;
    this.#runtime.log.warn('nothing can be written from here; others may try');
    this.#on.away();
    const look = async (): Promise<void> => {
      while (this.#away && !this.#stopping) {
        await this.sleep(READY_MS);
        try {
          await this.#ready!();
          this.#away = false;
        } catch {
          // Not yet.
        }
      }
      if (!this.#stopping) this.#on.back();
    };
    void look();
  }

  /** Retries until Redis answers: a batch must not be handled again only because an acknowledgement failed. */
  async #decide(
    stream: StreamName,
    entries: readonly Entry<M>[],
    undeliverable: readonly Undeliverable<M>[],
    rest: (ms: number) => Promise<void>,
  ): Promise<void> {
    const { channels, store, policy, catchUp } = this.#on;
    const moves = movesOf(channels.codec, stream, entries, undeliverable, policy, this.#runtime.log);
    const ids = entries.map(({ id }) => id);
    const messages = entries.reduce((sum, entry) => sum + sizeOf(entry), 0);
    for (let failures = 0; ; failures++) {
      try {
        await store.decide(stream, ids, messages, moves);
        break;
      } catch (error) {
        this.noteOutage(error);
      }
      // The entries are still in the stream: another worker handles them again.
      if (this.#stopping) return;
      await rest(againMs(failures));
    }
    for (const move of moves) {
      if (move.to === 'retry') this.#retries++;
      else this.#died++;
    }
    catchUp.decided(stream.channel);
  }

  /** Sleeps. A batch that waits for a ledger or node lends its slot to others meanwhile, if not too many do so already. */
  async #rest(ms: number): Promise<void> {
    const { limiter } = this.#on;
    const aside = this.#resting < RESTING_MAX;
    if (aside) {
      this.#resting++;
      limiter.give();
      this.#on.lent();
    }
    await this.sleep(ms);
    if (aside) {
      this.#resting--;
      await limiter.take();
    }
  }

  /** Resolves after `ms`, or when the delivery stops. */
  sleep(ms: number): Promise<void> {
    if (this.#stopping) return Promise.resolve();
    return new Promise((resolve) => {
      const done = (): void => {
        cancel();
        this.#sleepers.delete(done);
        resolve();
      };
      const cancel = this.#runtime.timers.after(ms, done);
      this.#sleepers.add(done);
    });
  }

  /** They stay where they are, for as long as it takes: a worker of their version will read them. */
  noteNewer(where: Partial<StreamName>, count: number): void {
    if (!this.#seldom.may('newer')) return;
    this.#runtime.log.error(
      { ...where, count },
      `${this.#on.channels.kind} of a newer version wait in the pipe; this worker cannot read them: upgrade the workers`,
    );
  }

  noteOutage(error: unknown): void {
    const { log } = this.#runtime;
    if (!(error instanceof RedisUnavailableError)) {
      log.error({ kind: this.#on.channels.kind, err: error }, 'the pipe met an error');
      return;
    }
    this.#reason = error.message;
    const nowMs = this.#runtime.clock.monotonic();
    this.#outSinceMs ??= nowMs;
    // Failures in one turn count as one try: when this process itself was late, all its commands time out at once.
    if (this.#outTold || this.#stopping || nowMs - this.#outSinceMs < OUT_TOLD_MS) return;
    this.#outTold = true;
    const { kind } = this.#on.channels;
    log.error({ kind, reason: error.message, cause: detailOf(error) }, 'the pipe is out');
  }

  noteBack(): void {
    this.#reason = null;
    this.#outSinceMs = null;
    if (this.#outTold) this.#runtime.log.info({ kind: this.#on.channels.kind }, 'the pipe is back');
    this.#outTold = false;
  }
}
