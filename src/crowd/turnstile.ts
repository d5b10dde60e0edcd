import type { Runtime } from '../base/runtime.ts';
import { pause } from '../base/timers.ts';

/**
 * Lets at most `width` requests through at once, and at most `perSecond` per second. With `width` equal to the number of
 * connections, requests queue here and not in the client, so that a measured latency is the server's.
 */
export class Turnstile {
  readonly #runtime: Runtime;
  readonly #spacingMs: number;
  readonly #stop: AbortSignal;
  #free: number;
  #waiting: (() => void)[] = [];
  #nextMs = 0;

  constructor(runtime: Runtime, width: number, perSecond: number | null, stop: AbortSignal) {
    this.#runtime = runtime;
    this.#stop = stop;
    this.#free = width;
    this.#spacingMs = perSecond === null ? 0 : 1000 / perSecond;
  }

  async pass<T>(run: () => Promise<T>): Promise<T> {
    if (this.#spacingMs > 0) await this.#turn();
    if (this.#free > 0) this.#free--;
    else await new Promise<void>((resolve) => void this.#waiting.push(resolve));
    try {
      return await run();
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#free++;
      else next();
    }
  }

  /** Missed turns are skipped: a burst after a stall would exceed the rate. */
  async #turn(): Promise<void> {
    const nowMs = this.#runtime.clock.monotonic();
    const turnMs = Math.max(this.#nextMs, nowMs);
    this.#nextMs = turnMs + this.#spacingMs;
    if (turnMs > nowMs) await pause(this.#runtime.timers, turnMs - nowMs, this.#stop);
  }
}
