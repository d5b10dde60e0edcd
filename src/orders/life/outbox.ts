import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { type Round, turn } from '../../base/sweep.ts';

/** Something of a sale that the gate has to hear of. */
export interface News {
  readonly saleId: string;
  readonly orderId: string;
}

export interface OutboxOptions<T extends News, R extends T & { readonly waitedMs: number }> {
  /** Rows that the gate has not heard of; oldest first, only those that are older than `olderMs`; `after`: the next page. */
  read(limit: number, olderMs: number, after?: R): Promise<R[]>;
  /** Tells the gate. Whoever tells it twice changes nothing. */
  tell(news: T): Promise<void>;
  /** The gate has heard of these. */
  told(news: readonly T[]): Promise<void>;
  /** The counts of this sale have changed. */
  touched(saleId: string): void;
  /** A point between two steps, for tests that end the process there. */
  reached(point: 'committed' | 'in-gate'): void;
  /** For the log. */
  readonly words: { readonly waiting: string; readonly stuck: string };
}

const SWEEP_MAX = 500;
const PAGES_MAX = 20;
/** Younger ones are left to the process that wrote them, which tells the gate itself. */
const OLD_MS = 1000;
/** Between two tries for a sale whose gate takes nothing: twice as long each time. */
const AGAIN_MS_MIN = 500;
const AGAIN_MS_MAX = 8000;
/** News that the gate has not heard of for so long are an alert. */
export const OUTBOX_ALERT_MS = 5 * 60_000;

export interface OutboxCounters {
  /** News that the gate has not heard of, at the last look; more than a page count as a page. */
  readonly waiting: number;
  /** How long the oldest of them has waited. */
  readonly oldestMs: number;
}

/**
 * News on their way from the ledger, which has committed them, to the gate. Their row stands until the gate has heard of them.
 * `add` brings those of this process; `sweep`, in one process at a time, those that were left.
 */
export class Outbox<T extends News, R extends T & { readonly waitedMs: number }> {
  readonly #on: OutboxOptions<T, R>;
  readonly #runtime: Runtime;
  #fresh: { news: T; done: () => void }[] = [];
  #busy: Promise<void> | null = null;
  #told = false;
  #alerted = false;
  #counters: OutboxCounters = { waiting: 0, oldestMs: 0 };
  /** Where the next look begins: behind news that could not be told, so that they do not hold up the others. */
  #after: R | undefined;
  /** Sales whose gate took nothing at the last try, and until when they are passed by. */
  readonly #resting = new Map<string, { forMs: number; untilMs: number }>();
  #failure: unknown = null;

  constructor(options: OutboxOptions<T, R>, runtime: Runtime) {
    this.#on = options;
    this.#runtime = runtime;
  }

  /** The ledger has just committed it. Resolves when the gate has heard of it, or it is left to `sweep`. */
  add(news: T): Promise<void> {
    return new Promise((done) => {
      this.#fresh.push({ news, done });
      this.#busy ??= this.#work();
    });
  }

  get counters(): OutboxCounters {
    return this.#counters;
  }

  /** Another process looks after them now. */
  forget(): void {
    this.#counters = { waiting: 0, oldestMs: 0 };
    this.#after = undefined;
    this.#alerted = false;
    this.#resting.clear();
  }

  async idle(): Promise<void> {
    while (this.#busy !== null) await this.#busy;
  }

  async #work(): Promise<void> {
    // Not in the same turn: `add` has yet to note that it is under way.
    await null;
    this.#on.reached('committed');
    while (this.#fresh.length > 0) {
      const some = this.#fresh.splice(0, SWEEP_MAX);
      await this.#tell(some.map(({ news }) => news)).catch(() => undefined);
      for (const { done } of some) done();
    }
    // Runs in the same turn as the last check, so a later caller starts a new round.
    this.#busy = null;
  }

  /**
   * Tells the gate what other processes left, or could not tell it. A sale whose gate takes nothing is skipped for a while:
   * in a cluster its server may be out while others are well. Throws when something has to wait and nothing was told.
   */
  async sweep(): Promise<Round> {
    const { timers } = this.#runtime;
    let failure: unknown = null;
    let changed = 0;
    for (let pages = 1; ; pages++) {
      const left = await this.#on.read(SWEEP_MAX, OLD_MS, this.#after);
      if (this.#after === undefined) this.#watch(left);
      const some = left.filter(({ saleId }) => !this.#rests(saleId));
      try {
        const { done, failed } = await this.#tell(some);
        this.#rest(some, done);
        changed += done.size;
        if (failed || some.length < left.length) failure ??= this.#failure;
      } catch (error) {
        failure ??= error;
      }
      const full = left.length === SWEEP_MAX;
      // What was told is not read again.
      this.#after = full && (failure !== null || this.#after !== undefined) ? left.at(-1) : undefined;
      if (full && pages < PAGES_MAX) {
        await turn(timers);
        continue;
      }
      if (failure !== null && changed === 0) throw failure;
      return { changed, more: full };
    }
  }

  #rests(saleId: string): boolean {
    const rest = this.#resting.get(saleId);
    return rest !== undefined && this.#runtime.clock.monotonic() < rest.untilMs;
  }

  #rest(tried: readonly T[], done: ReadonlySet<T>): void {
    const nowMs = this.#runtime.clock.monotonic();
    const well = new Set([...done].map(({ saleId }) => saleId));
    for (const saleId of new Set(tried.map((one) => one.saleId))) {
      const forMs = Math.min((this.#resting.get(saleId)?.forMs ?? AGAIN_MS_MIN / 2) * 2, AGAIN_MS_MAX);
      if (well.has(saleId)) this.#resting.delete(saleId);
      else this.#resting.set(saleId, { forMs, untilMs: nowMs + forMs });
    }
  }

  #watch(left: readonly R[]): void {
    const { log } = this.#runtime;
    const oldestMs = Math.max(left[0]?.waitedMs ?? 0, 0);
    this.#counters = { waiting: left.length, oldestMs };
    // Another process may have told the gate what was left.
    if (left.length === 0) this.#resting.clear();
    if (oldestMs < OUTBOX_ALERT_MS) {
      this.#alerted = false;
      return;
    }
    if (this.#alerted) return;
    this.#alerted = true;
    const { orderId, saleId } = left[0]!;
    log.error({ waiting: left.length, oldestMs, orderId, saleId }, this.#on.words.stuck);
  }

  /** Returns those that the gate has heard of now, which the ledger has noted. */
  async #tell(some: readonly T[]): Promise<{ done: ReadonlySet<T>; failed: boolean }> {
    const done = new Set<T>();
    if (some.length === 0) return { done, failed: false };
    const { tell, told, touched, reached, words } = this.#on;
    await Promise.all(
      some.map(async (one) => {
        try {
          await tell(one);
          done.add(one);
        } catch (error) {
          this.#failure = error;
        }
      }),
    );
    reached('in-gate');
    if (done.size > 0) await told([...done]);
    for (const saleId of new Set(some.map((one) => one.saleId))) touched(saleId);
    const failed = done.size < some.length;
    if (failed && !this.#told) this.#runtime.log.warn({ reason: messageOf(this.#failure) }, words.waiting);
    // An outage is logged once, also while other sales are well.
    this.#told = failed || this.#resting.size > 0;
    return { done, failed };
  }
}
