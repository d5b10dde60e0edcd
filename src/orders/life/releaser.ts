import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { type Round, turn } from '../../base/sweep.ts';
import type { Gate } from '../../gate/port.ts';
import type { Release, ReleaseLedger, WaitingRelease } from '../../ledger/port.ts';

export interface Freed {
  readonly orderId: string;
  readonly saleId: string;
  readonly buyer: string;
}

export interface ReleaserOptions {
  readonly ledger: Pick<ReleaseLedger, 'releases' | 'released'>;
  readonly gate: Pick<Gate, 'release'>;
  /** The counts of this sale have changed. */
  touched(saleId: string): void;
  /** A point between two steps, for tests that end the process there. */
  reached(point: 'release:committed' | 'release:in-gate'): void;
}

const SWEEP_MAX = 500;
const PAGES_MAX = 20;
/** Younger ones are left to the process that moved the order, which tells the gate itself. */
const OLD_MS = 1000;
/** Between two tries for a sale whose gate takes nothing: twice as long each time. */
const AGAIN_MS_MIN = 500;
const AGAIN_MS_MAX = 8000;
/** Units that are free in the ledger and cannot be sold for so long are an alert. */
export const RELEASE_ALERT_MS = 5 * 60_000;

export interface ReleaserCounters {
  /** Releases that the gate has not heard of, at the last look; more than a page count as a page. */
  readonly waiting: number;
  /** How long the oldest of them has waited. */
  readonly oldestMs: number;
}

/**
 * Units on their way from the ledger, which has committed that they are free, back to the gate (P4). The row of the outbox
 * stands until the gate has them; releasing twice does nothing, since the hold is gone.
 */
export class Releaser {
  readonly #on: ReleaserOptions;
  readonly #runtime: Runtime;
  #fresh: { freed: Freed; done: () => void }[] = [];
  #busy: Promise<void> | null = null;
  #told = false;
  #alerted = false;
  #counters: ReleaserCounters = { waiting: 0, oldestMs: 0 };
  /** Where the next look begins: behind releases that could not be given back, so that they do not hold up the others. */
  #after: Release | undefined;
  /** Sales whose gate took nothing at the last try, and until when they are passed by. */
  readonly #resting = new Map<string, { forMs: number; untilMs: number }>();
  #failure: unknown = null;

  constructor(options: ReleaserOptions, runtime: Runtime) {
    this.#on = options;
    this.#runtime = runtime;
  }

  /** The ledger has just committed it. Resolves when the gate has the units, or they are left to `sweep`. */
  add(freed: Freed): Promise<void> {
    return new Promise((done) => {
      this.#fresh.push({ freed, done });
      this.#busy ??= this.#work();
    });
  }

  get counters(): ReleaserCounters {
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
    this.#on.reached('release:committed');
    while (this.#fresh.length > 0) {
      const some = this.#fresh.splice(0, SWEEP_MAX);
      await this.#release(some.map(({ freed }) => freed)).catch(() => undefined);
      for (const { done } of some) done();
    }
    // Runs in the same turn as the last check, so a later caller starts a new round.
    this.#busy = null;
  }

  /**
   * Gives back what other processes left, or could not tell the gate. A sale whose gate takes nothing is skipped for a while:
   * in a cluster its server may be out while others are well. Throws when something has to wait and nothing was given back.
   */
  async sweep(): Promise<Round> {
    const { timers } = this.#runtime;
    let failure: unknown = null;
    let changed = 0;
    for (let pages = 1; ; pages++) {
      const left = await this.#on.ledger.releases(SWEEP_MAX, OLD_MS, this.#after);
      if (this.#after === undefined) this.#watch(left);
      const some = left.filter(({ saleId }) => !this.#rests(saleId));
      try {
        const { done, failed } = await this.#release(some);
        this.#rest(some, done);
        changed += done.size;
        if (failed || some.length < left.length) failure ??= this.#failure;
      } catch (error) {
        failure ??= error;
      }
      const full = left.length === SWEEP_MAX;
      // What was given back is not read again.
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

  #rest(tried: readonly Freed[], done: ReadonlySet<Freed>): void {
    const nowMs = this.#runtime.clock.monotonic();
    const well = new Set([...done].map(({ saleId }) => saleId));
    for (const saleId of new Set(tried.map((one) => one.saleId))) {
      const forMs = Math.min((this.#resting.get(saleId)?.forMs ?? AGAIN_MS_MIN / 2) * 2, AGAIN_MS_MAX);
      if (well.has(saleId)) this.#resting.delete(saleId);
      else this.#resting.set(saleId, { forMs, untilMs: nowMs + forMs });
    }
  }

  #watch(left: readonly WaitingRelease[]): void {
    const { log } = this.#runtime;
    const oldestMs = Math.max(left[0]?.waitedMs ?? 0, 0);
    this.#counters = { waiting: left.length, oldestMs };
    // Another process may have given back what was left.
    if (left.length === 0) this.#resting.clear();
    if (oldestMs < RELEASE_ALERT_MS) {
      this.#alerted = false;
      return;
    }
    if (this.#alerted) return;
    this.#alerted = true;
    const { orderId, saleId } = left[0]!;
    log.error(
      { waiting: left.length, oldestMs, orderId, saleId },
      'units that are free do not come back to the gate: nobody can buy them',
    );
  }

  /** Returns those that the gate has now, which the ledger has noted. */
  async #release(some: readonly Freed[]): Promise<{ done: ReadonlySet<Freed>; failed: boolean }> {
    const done = new Set<Freed>();
    if (some.length === 0) return { done, failed: false };
    const { gate, ledger, touched, reached } = this.#on;
    await Promise.all(
      some.map(async (one) => {
        const { saleId, orderId, buyer } = one;
        try {
          await gate.release(saleId, { orderId, buyer });
          done.add(one);
        } catch (error) {
          this.#failure = error;
        }
      }),
    );
    reached('release:in-gate');
    if (done.size > 0) await ledger.released([...done].map(({ orderId }) => orderId));
    for (const saleId of new Set(some.map((one) => one.saleId))) touched(saleId);
    const failed = done.size < some.length;
    if (failed && !this.#told) {
      this.#runtime.log.warn(
        { reason: messageOf(this.#failure) },
        'units cannot be given back to the gate now; they wait',
      );
    }
    // An outage is logged once, also while other sales are well.
    this.#told = failed || this.#resting.size > 0;
    return { done, failed };
  }
}
