/**
 * Time as a dependency. `now` is the wall clock, which opens sales and is stored in rows; `monotonic` measures spans and never
 * steps back. Nothing outside base/ reads a clock directly, so that a simulator can control time.
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

/** A clock that moves only when told to, for tests and simulation. */
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

  /** Steps the wall clock, as an operator or NTP would. The monotonic clock does not change. */
  step(ms: number): void {
    this.#nowMs += ms;
  }
}
