import { ManualClock } from '../../src/base/clock.ts';
import { silentLog } from '../../src/base/logger.ts';
import { seededRandom } from '../../src/base/random.ts';
import type { Runtime } from '../../src/base/runtime.ts';
import type { Timers } from '../../src/base/timers.ts';

/** An arbitrary instant that is easy to recognise in a failure. */
export const T0 = Date.UTC(2026, 10, 11);

interface Timer {
  atMs: number;
  everyMs: number | null;
  run: () => void;
}

/** Timers that run when the test advances time, in order. */
export class ManualTimers implements Timers {
  readonly #clock: ManualClock;
  readonly #timers = new Set<Timer>();
  #turns: (() => void)[] = [];

  constructor(clock: ManualClock) {
    this.#clock = clock;
  }

  after(ms: number, run: () => void): () => void {
    return this.#add({ atMs: this.#clock.monotonic() + ms, everyMs: null, run });
  }

  every(ms: number, run: () => void): () => void {
    return this.#add({ atMs: this.#clock.monotonic() + ms, everyMs: ms, run });
  }

  nextTurn(run: () => void): void {
    this.#turns.push(run);
  }

  get pending(): number {
    return this.#timers.size;
  }

  /** One turn of the event loop: everything scheduled for it, and the promises that follow from it. */
  async turn(): Promise<void> {
    for (const run of this.#turns.splice(0)) run();
    await settled();
  }

  async advance(ms: number): Promise<void> {
    const untilMs = this.#clock.monotonic() + ms;
    for (;;) {
      const due = [...this.#timers].filter(({ atMs }) => atMs <= untilMs).sort((a, b) => a.atMs - b.atMs)[0];
      if (due === undefined) break;
      this.#clock.advance(Math.max(due.atMs - this.#clock.monotonic(), 0));
      if (due.everyMs === null) this.#timers.delete(due);
      // Like setInterval: counted from when it ran, so that a missed tick is skipped.
      else due.atMs = this.#clock.monotonic() + due.everyMs;
      due.run();
      await settled();
    }
    this.#clock.advance(Math.max(untilMs - this.#clock.monotonic(), 0));
    await settled();
  }

  #add(timer: Timer): () => void {
    this.#timers.add(timer);
    return () => void this.#timers.delete(timer);
  }
}

/** Resolves when all pending promises have run. */
export function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

export interface ManualRuntime extends Runtime {
  clock: ManualClock;
  timers: ManualTimers;
}

export function manualRuntime(nowMs = T0): ManualRuntime {
  const clock = new ManualClock(nowMs);
  return { clock, timers: new ManualTimers(clock), random: seededRandom(1), log: silentLog() };
}
