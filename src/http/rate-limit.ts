import type { Clock } from '../base/clock.ts';

const WINDOW_MS = 1000;

/** When a caller was let in, oldest first from `next` on. */
interface Visits {
  atMs: number[];
  next: number;
}

/**
 * At most `perSecond` in *any* one second for each caller: a bucket that refills would let a burst and its refill
 * through, nearly twice the limit, in the first second. A caller costs a number for each visit of the last second,
 * and nothing once silent for two: callers live in two generations, and the older one is dropped.
 */
export class RateLimit {
  readonly #clock: Clock;
  readonly #perSecond: number;
  #current = new Map<string, Visits | number>();
  #previous = new Map<string, Visits | number>();
  #turnedMs = 0;

  constructor(clock: Clock, perSecond: number) {
    this.#clock = clock;
    this.#perSecond = perSecond;
  }

  /**
   * 0 if the caller may go on, else whole seconds to wait. What costs as much as several visits counts as so many, and at
   * most as all that there are in a second: else it could never be done.
   */
  take(caller: string, asked = 1): number {
    const cost = Math.min(asked, this.#perSecond);
    const nowMs = this.#clock.monotonic();
    if (nowMs - this.#turnedMs > WINDOW_MS) {
      // A generation that ended more than a window ago holds nothing that still counts.
      this.#previous = nowMs - this.#turnedMs > 2 * WINDOW_MS ? new Map() : this.#current;
      this.#current = new Map();
      this.#turnedMs = nowMs;
    }
    const known = this.#current.get(caller) ?? this.#previous.get(caller);
    // Most of a crowd comes once: a bare number is all it costs.
    if (known === undefined && cost === 1) {
      this.#current.set(caller, nowMs);
      return 0;
    }
    const visits = typeof known === 'object' ? known : { atMs: known === undefined ? [] : [known], next: 0 };
    while (visits.next < visits.atMs.length && visits.atMs[visits.next]! <= nowMs - WINDOW_MS) visits.next++;
    if (visits.next > this.#perSecond) {
      visits.atMs = visits.atMs.slice(visits.next);
      visits.next = 0;
    }
    this.#current.set(caller, visits);
    const tooMany = visits.atMs.length - visits.next + cost - this.#perSecond;
    if (tooMany > 0) {
      const freedMs = visits.atMs[visits.next + tooMany - 1]! + WINDOW_MS;
      return Math.max(1, Math.ceil((freedMs - nowMs) / 1000));
    }
    for (let n = 0; n < cost; n++) visits.atMs.push(nowMs);
    return 0;
  }
}
