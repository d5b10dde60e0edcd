import type { ServerResponse } from 'node:http';
import type { Runtime } from '../base/runtime.ts';

const SAMPLE_EVERY_MS = 50;

/**
 * Says when to refuse early. Two signs: too many requests in flight, and an event loop that is late. The ledger commits
 * on the event loop and makes it late by design, so that time is taken out: it is work, not overload.
 */
export class Overload {
  readonly #leave = (): void => {
    this.#inFlight--;
  };
  #inFlight = 0;
  readonly #inFlightMax: number;
  readonly #delayMsMax: number;
  readonly #stop: () => void;
  #delayMs = 0;

  constructor(runtime: Runtime, limits: { inFlightMax: number; delayMsMax: number }, blockedMs: () => number) {
    this.#inFlightMax = limits.inFlightMax;
    this.#delayMsMax = limits.delayMsMax;
    let lastMs = runtime.clock.monotonic();
    let lastBlockedMs = blockedMs();
    let lastLateMs = 0;
    this.#stop = runtime.timers.every(SAMPLE_EVERY_MS, () => {
      const nowMs = runtime.clock.monotonic();
      const nowBlockedMs = blockedMs();
      const lateMs = Math.max(nowMs - lastMs - SAMPLE_EVERY_MS - (nowBlockedMs - lastBlockedMs), 0);
      // Twice in a row: one late tick is a garbage collection or the start, two are a pattern.
      this.#delayMs = Math.min(lateMs, lastLateMs);
      lastMs = nowMs;
      lastBlockedMs = nowBlockedMs;
      lastLateMs = lateMs;
    });
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  /** Counts a request until its response is closed: also when the client goes away, which no hook of Fastify sees. */
  enter(response: ServerResponse): void {
    this.#inFlight++;
    response.on('close', this.#leave);
  }

  /** An event stream stays open for hours and is bounded by itself: it is not in flight. */
  release(response: ServerResponse): void {
    response.off('close', this.#leave);
    this.#inFlight--;
  }

  get delayMs(): number {
    return this.#delayMs;
  }

  /** Why a request is refused now, or null. */
  get reason(): string | null {
    if (this.#inFlight > this.#inFlightMax) return `more than ${this.#inFlightMax} requests are in flight`;
    if (this.#delayMs > this.#delayMsMax) return `the event loop is ${Math.round(this.#delayMs)} ms late`;
    return null;
  }

  close(): void {
    this.#stop();
  }
}
