import type { Clock } from '../base/clock.ts';

/**
 * At most `perSecond` in any one second for each caller (GCRA: one number per caller, no queue of timestamps, and no
 * burst of twice the limit at a window's edge). Callers that were silent for a second cost nothing: entries live in
 * two generations, and the older one is dropped every second.
 */
export class RateLimit {
  readonly #clock: Clock;
  readonly #spacingMs: number;
  readonly #burstMs: number;
  #current = new Map<string, number>();
  #previous = new Map<string, number>();
  #turnedMs = 0;

  constructor(clock: Clock, perSecond: number) {
    this.#clock = clock;
    this.#spacingMs = 1000 / perSecond;
    this.#burstMs = 1000 - this.#spacingMs;
  }

  /** 0 if the caller may go on, else whole seconds to wait. */
  take(caller: string): number {
    const nowMs = this.#clock.monotonic();
    if (nowMs - this.#turnedMs > 1000) {
      // A generation older than two seconds holds nothing that still counts.
      this.#previous = nowMs - this.#turnedMs > 2000 ? new Map() : this.#current;
      this.#current = new Map();
      this.#turnedMs = nowMs;
    }
    // The instant at which the caller's allowance would be whole again.
    const wholeMs = Math.max(this.#current.get(caller) ?? this.#previous.get(caller) ?? 0, nowMs);
    if (wholeMs - nowMs > this.#burstMs) return Math.max(1, Math.ceil((wholeMs - nowMs - this.#burstMs) / 1000));
    this.#current.set(caller, wholeMs + this.#spacingMs);
    return 0;
  }
}
