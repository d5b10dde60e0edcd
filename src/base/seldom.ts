import type { Clock } from './clock.ts';

const EVERY_MS = 60_000;
/** Texts with a variable part must not fill the memory. */
const KINDS_MAX = 100;

/** Limits log lines about a lasting problem: one at once, then one a minute, however often it is met. */
export class Seldom {
  readonly #clock: Clock;
  readonly #toldMs = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Whether a line about this may be written now. */
  may(what: string): boolean {
    const nowMs = this.#clock.monotonic();
    if (nowMs - (this.#toldMs.get(what) ?? Number.NEGATIVE_INFINITY) < EVERY_MS) return false;
    if (this.#toldMs.size >= KINDS_MAX) this.#toldMs.clear();
    this.#toldMs.set(what, nowMs);
    return true;
  }
}
