import type { IncomingMessage } from 'node:http';
import type { Runtime } from '../base/runtime.ts';

const SAMPLE_EVERY_MS = 50;

// A symbol on Node's own object: a set would be one look-up more for every request.
const IN_FLIGHT = Symbol('doorbuster.in-flight');

type Counted = IncomingMessage & { [IN_FLIGHT]?: boolean };

/**
 * Says when to refuse early. Two signs: too many requests in flight, and an event loop that is late. The ledger commits
 * on the event loop and makes it late by design, so that time is taken out: it is work, not overload.
 */
export class Overload {
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

  /**
   * Counts a request from here until it is answered. Called when all of it has come: a client that sends its body slowly, or
   * reads its answer slowly, costs no work, and must not take the room of those who do.
   */
  enter(request: IncomingMessage): void {
    if ((request as Counted)[IN_FLIGHT] !== undefined) return;
    this.#inFlight++;
    (request as Counted)[IN_FLIGHT] = true;
  }

  /** May be called again: an answer, a client that left and the begin of an event stream all end it, whichever is first. */
  answered(request: IncomingMessage): void {
    if ((request as Counted)[IN_FLIGHT] !== true) return;
    (request as Counted)[IN_FLIGHT] = false;
    this.#inFlight--;
  }

  get delayMs(): number {
    return this.#delayMs;
  }

  /** Why a request is refused now, or null. */
  get reason(): string | null {
    return this.#reason(this.#inFlight);
  }

  /** Why this request is refused now, whether it is counted already or not. */
  reasonFor(request: IncomingMessage): string | null {
    return this.#reason((request as Counted)[IN_FLIGHT] === undefined ? this.#inFlight + 1 : this.#inFlight);
  }

  #reason(inFlight: number): string | null {
    if (inFlight > this.#inFlightMax) return `more than ${this.#inFlightMax} requests are in flight`;
    if (this.#delayMs > this.#delayMsMax) return `the event loop is ${Math.round(this.#delayMs)} ms late`;
    return null;
  }

  close(): void {
    this.#stop();
  }
}
