import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { type Round, turn } from '../../base/sweep.ts';
import type { Gate } from '../../gate/port.ts';
import type { LifeLedger, Release, WaitingRelease } from '../../ledger/port.ts';

export interface Freed {
  readonly orderId: string;
  readonly saleId: string;
  readonly buyer: string;
}

export interface ReleaserOptions {
  readonly ledger: Pick<LifeLedger, 'releases' | 'released'>;
  readonly gate: Pick<Gate, 'release'>;
  /** Their counts have changed. */
  touched(saleId: string): void;
  /** A point between two steps, for tests that end the process there. */
  reached(point: 'release:committed' | 'release:in-gate'): void;
}

const SWEEP_MAX = 500;
const PAGES_MAX = 20;
/** Whoever moved an order tells the gate itself within this time. */
const OLD_MS = 1000;
/** Units that are free in the ledger and could not be sold again for so long: somebody must look. */
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
  /** Behind those that could not be given back at the last look: they do not hold up the others. */
  #after: Release | undefined;

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
  }

  async idle(): Promise<void> {
    while (this.#busy !== null) await this.#busy;
  }

  async #work(): Promise<void> {
    // Never at once: `add` has yet to note that it is under way.
    await null;
    this.#on.reached('release:committed');
    while (this.#fresh.length > 0) {
      const some = this.#fresh.splice(0, SWEEP_MAX);
      await this.#release(some.map(({ freed }) => freed)).catch(() => undefined);
      for (const { done } of some) done();
    }
    // In the same turn as the last look: who comes next starts anew.
    this.#busy = null;
  }

  /** What others left, or could not tell the gate. Throws when some of it cannot be done now, after it has tried those behind. */
  async sweep(): Promise<Round> {
    const { timers } = this.#runtime;
    let failure: unknown = null;
    let changed = 0;
    for (let pages = 1; ; pages++) {
      const left = await this.#on.ledger.releases(SWEEP_MAX, OLD_MS, this.#after);
      if (this.#after === undefined) this.#watch(left);
      const done = await this.#release(left).catch((error: unknown) => {
        failure ??= error;
        return 0;
      });
      changed += done;
      const full = left.length === SWEEP_MAX;
      // What was given back is not met again.
      this.#after = full && failure !== null ? left.at(-1) : undefined;
      if (full && pages < PAGES_MAX) {
        await turn(timers);
        continue;
      }
      if (failure !== null) throw failure;
      return { changed, more: full };
    }
  }

  #watch(left: readonly WaitingRelease[]): void {
    const { log } = this.#runtime;
    const oldestMs = Math.max(left[0]?.waitedMs ?? 0, 0);
    this.#counters = { waiting: left.length, oldestMs };
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

  /** Returns how many the gate has now, and the ledger knows that it has. */
  async #release(some: readonly Freed[]): Promise<number> {
    if (some.length === 0) return 0;
    const { gate, ledger, touched, reached } = this.#on;
    const done: string[] = [];
    let failure: unknown = null;
    await Promise.all(
      some.map(async ({ saleId, orderId, buyer }) => {
        try {
          await gate.release(saleId, { orderId, buyer });
          done.push(orderId);
        } catch (error) {
          failure ??= error;
        }
      }),
    );
    reached('release:in-gate');
    if (done.length > 0) await ledger.released(done);
    for (const saleId of new Set(some.map((one) => one.saleId))) touched(saleId);
    if (failure === null) {
      this.#told = false;
      return done.length;
    }
    if (!this.#told) {
      this.#told = true;
      this.#runtime.log.warn({ reason: messageOf(failure) }, 'units cannot be given back to the gate now; they wait');
    }
    throw failure;
  }
}
