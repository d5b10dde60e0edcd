import { Few } from '../base/few.ts';
import type { Runtime } from '../base/runtime.ts';
import { turn } from '../base/sweep.ts';
import { sleep } from '../base/timers.ts';

/** Watched sales that are read at the same time, however many have changed. */
const LOOKS_AT_ONCE = 4;
/** Of the event loop's time, telling watchers takes at most a quarter, however many there are. */
export const PAUSE_FACTOR = 3;
/** A write to a watcher takes some 10 µs. */
const TOLD_AT_ONCE = 500;

/** How the boards share the ledger, the gate and the event loop among all sales that are watched. */
export class Pace {
  readonly #runtime: Runtime;
  readonly #reads = new Few(LOOKS_AT_ONCE, Number.POSITIVE_INFINITY, 'sales are read');
  #tellFromMs = 0;

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  read<T>(read: () => Promise<T>): Promise<T> {
    return this.#reads.run(read);
  }

  /**
   * Calls `tell` with each listener, once `begin` has said what is told. Of a crowd some at a time, so that others get their turn in
   * between. After each telling, of whatever sale, there is a pause by what it has cost.
   */
  async tell<L>(listeners: ReadonlyMap<L, unknown>, begin: () => (listener: L) => void): Promise<void> {
    const { clock, timers } = this.#runtime;
    for (;;) {
      const waitMs = this.#tellFromMs - clock.monotonic();
      if (waitMs < 1) break;
      await sleep(timers, Math.ceil(waitMs));
    }
    const tell = begin();
    // Whoever comes meanwhile gets what there is by then.
    const all = [...listeners.keys()];
    for (let from = 0; from < all.length; from += TOLD_AT_ONCE) {
      if (from > 0) await turn(timers);
      const startedMs = clock.monotonic();
      for (const listener of all.slice(from, from + TOLD_AT_ONCE)) if (listeners.has(listener)) tell(listener);
      const endedMs = clock.monotonic();
      this.#tellFromMs = Math.max(this.#tellFromMs, endedMs) + PAUSE_FACTOR * (endedMs - startedMs);
    }
  }
}
