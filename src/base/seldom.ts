import type { Clock } from './clock.ts';

const EVERY_MS = 60_000;
/** Reasons with a changing part in them must not fill the memory. */
const KINDS_MAX = 100;

/** For the log: what lasts is told at once, and then once a minute, however often and by however many it is met. */
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
