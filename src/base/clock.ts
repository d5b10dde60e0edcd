/**
 * Time, passed in. `now` is the wall clock (what opens sales and stands in rows); `monotonic` only measures spans
 * and never steps back. Nothing outside base/ reads a clock directly, so that a simulator can own time.
 */
export interface Clock {
  /** Milliseconds since 1970, UTC. */
  now(): number;
  /** Milliseconds since an arbitrary start, with fractions; never goes back. */
  monotonic(): number;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
};

/** A clock that moves only when told: for tests and simulation. */
export class ManualClock implements Clock {
  #nowMs: number;
  #monotonicMs = 0;

  constructor(nowMs: number) {
    this.#nowMs = nowMs;
  }

  now(): number {
    return this.#nowMs;
  }

  monotonic(): number {
    return this.#monotonicMs;
  }

  advance(ms: number): void {
    this.#nowMs += ms;
    this.#monotonicMs += ms;
  }

  /** Steps the wall clock (an operator or NTP), which a monotonic clock does not see. */
  step(ms: number): void {
    this.#nowMs += ms;
  }
}
