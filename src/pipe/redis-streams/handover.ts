import { backOffMs } from '../../base/back-off.ts';
import { detailOf, RedisUnavailableError } from '../../base/redis/link.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { Handle, Handled, Undeliverable } from '../port.ts';
import type { CatchUp } from './catch-up.ts';
import { type Entry, sizeOf } from './entry.ts';
import { movesOf, type RetryPolicy } from './moves.ts';
import type { Slots } from './slots.ts';
import type { StreamName, StreamStore } from './store.ts';

export interface HandoverOptions {
  readonly store: StreamStore;
  readonly catchUp: CatchUp;
  readonly policy: RetryPolicy;
  /** A batch has one while it is handled; it is lent to others while the batch only waits. */
  readonly slots: Slots;
  /** A consumer whose handler rejects for so long lets others have its batches, if it can say when it is ready again. */
  readonly rejectedMsMax: number;
  /** A slot is free for others. */
  lent(): void;
  /** The handler rejected for long: what is in hand is left, and nothing is to be taken until `back`. */
  away(): void;
  back(): void;
}

const DECIDED = { decided: Promise.resolve(true) };
const LEFT = { decided: Promise.resolve(false) };
const READY_MS = 1000;
const AGAIN_MS_MIN = 25;
const AGAIN_MS_MAX = 2000;
const againMs = (failures: number): number => backOffMs(failures, AGAIN_MS_MIN, AGAIN_MS_MAX);
/** An outage is told of by a try that fails so long after the first one: one that succeeds in between ends it unheard. */
const OUT_TOLD_MS = 100;
/** Batches that wait for a ledger to come back beside those that are being handled: bounds what is held in memory. */
const RESTING_MAX = 64;

/**
 * Hands batches over until they are decided: what is the same wherever they came from, a stream or a broker.
 *
 *   stored → decided     when all that follows is done; the next batch may be handed over meanwhile
 *   handled → decided    one script takes the entries out of the stream and puts what is undeliverable elsewhere
 *   rejected → again     after 25 ms … 2 s, for as long as it takes; no try is counted
 *   left                 it stops, or the handler rejected for long: others may have it
 */
export class Handover {
  readonly #on: HandoverOptions;
  readonly #runtime: Runtime;
  #handle: Handle | null = null;
  #ready: (() => Promise<unknown>) | null = null;
  #away = false;
  #stopping = false;
  #resting = 0;
  /** Who sleeps and is to be woken by stop(). */
  readonly #sleepers = new Set<() => void>();
  #reason: string | null = null;
  #outSinceMs: number | null = null;
  #outTold = false;
  #retries = 0;
  #died = 0;

  constructor(options: HandoverOptions, runtime: Runtime) {
    this.#on = options;
    this.#runtime = runtime;
  }

  /** Messages put aside to be tried again, and those that became dead letters, since the start. */
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

  start(handle: Handle, ready: (() => Promise<unknown>) | null): void {
    this.#handle = handle;
    this.#ready = ready;
  }

  /** Nothing is handed over again; who sleeps wakes up. */
  stop(): void {
    this.#stopping = true;
    for (const wake of [...this.#sleepers]) wake();
  }

  /** Returns whether it is decided; else it was left. */
  async settle(stream: StreamName, all: readonly Entry[]): Promise<boolean> {
    return await (await this.begin(stream, all)).decided;
  }

  /**
   * Resolves when the next batch may be handed over: this one is decided, or left, or stored and about to be decided
   * (`decided`, which tells whether it was). The slot is the caller's again from then on.
   */
  async begin(stream: StreamName, all: readonly Entry[]): Promise<{ decided: Promise<boolean> }> {
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

  async #handOver(entries: readonly Entry[]): Promise<readonly Undeliverable[] | Handled> {
    const batch = entries.flatMap(({ messages }) => messages);
    return batch.length === 0 ? [] : ((await this.#handle!(batch)) ?? []);
  }

  /** The rest of a batch that is stored, beside the next one and without a slot. */
  async #finish(
    stream: StreamName,
    all: readonly Entry[],
    stored: readonly Entry[],
    { undeliverable, told }: Handled,
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
        // Told already.
      }
    }
  }

  #again({ saleId }: StreamName, entries: readonly Entry[], error: unknown): void {
    const orders = entries.reduce((sum, { messages }) => sum + messages.length, 0);
    this.#runtime.log.warn({ err: error, saleId, orders }, 'a batch is handed over again');
  }

  #leave(sinceMs: number): boolean {
    const tooLong = this.#runtime.clock.monotonic() - sinceMs >= this.#on.rejectedMsMax;
    if (this.#ready !== null && tooLong) this.#goAway();
    return this.#stopping || this.#away;
  }

  /** Others may be able to do what this consumer cannot. It comes back when it can, too. */
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

  /** Tried until Redis answers: what has been handled is not to be handled again for want of an acknowledgement. */
  async #decide(
    stream: StreamName,
    entries: readonly Entry[],
    undeliverable: readonly Undeliverable[],
    rest: (ms: number) => Promise<void>,
  ): Promise<void> {
    const { store, policy, catchUp } = this.#on;
    const moves = movesOf(stream, entries, undeliverable, policy, this.#runtime.log);
    const ids = entries.map(({ id }) => id);
    const messages = entries.reduce((sum, entry) => sum + sizeOf(entry), 0);
    for (let failures = 0; ; failures++) {
      try {
        await store.decide(stream, ids, messages, moves);
        break;
      } catch (error) {
        this.noteOutage(error);
      }
      // It is in the stream still: whoever comes across it handles it again.
      if (this.#stopping) return;
      await rest(againMs(failures));
    }
    for (const move of moves) {
      if (move.to === 'retry') this.#retries++;
      else this.#died++;
    }
    catchUp.decided(stream.saleId);
  }

  /** While a batch waits for a ledger or a node that is out, others whose way is free have its turn: some, not all. */
  async #rest(ms: number): Promise<void> {
    const { slots } = this.#on;
    const aside = this.#resting < RESTING_MAX;
    if (aside) {
      this.#resting++;
      slots.give();
      this.#on.lent();
    }
    await this.sleep(ms);
    if (aside) {
      this.#resting--;
      await slots.take();
    }
  }

  /** Until `ms` are over, or it stops. */
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

  noteOutage(error: unknown): void {
    const { log } = this.#runtime;
    if (!(error instanceof RedisUnavailableError)) {
      log.error({ err: error }, 'the pipe met an error');
      return;
    }
    this.#reason = error.message;
    const nowMs = this.#runtime.clock.monotonic();
    this.#outSinceMs ??= nowMs;
    // What fails in one turn is one try: a process that was late itself has all its answers wait in vain at once.
    if (this.#outTold || this.#stopping || nowMs - this.#outSinceMs < OUT_TOLD_MS) return;
    this.#outTold = true;
    log.error({ reason: error.message, cause: detailOf(error) }, 'the pipe is out');
  }

  noteBack(): void {
    this.#reason = null;
    this.#outSinceMs = null;
    if (this.#outTold) this.#runtime.log.info('the pipe is back');
    this.#outTold = false;
  }
}
