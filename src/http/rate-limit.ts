import type { Clock } from '../base/clock.ts';

const WINDOW_MS = 1000;

/** When a caller's requests were allowed, oldest first. Entries before `next` no longer count. */
interface Visits {
  atMs: number[];
  next: number;
}

/**
 * Allows each caller at most `perSecond` in *any* one second. A token bucket would let a burst and its refill through in the
 * first second: nearly twice the limit. A caller costs one number per request of the last second, and nothing after two
 * silent seconds: callers are kept in two generations, of which the older is dropped.
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
   * Returns 0 if the caller may go on, otherwise whole seconds to wait. A request that costs more than the whole limit counts
   * as the whole limit: otherwise it could never be allowed.
   */
  take(caller: string, asked = 1): number {
    const cost = Math.min(asked, this.#perSecond);
    const nowMs = this.#clock.monotonic();
    if (nowMs - this.#turnedMs > WINDOW_MS) {
      // Nothing in a generation that ended more than a window ago still counts.
      this.#previous = nowMs - this.#turnedMs > 2 * WINDOW_MS ? new Map() : this.#current;
      this.#current = new Map();
      this.#turnedMs = nowMs;
    }
    const known = this.#current.get(caller) ?? this.#previous.get(caller);
    // Most callers in a crowd send one request: store a bare number for them.
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
