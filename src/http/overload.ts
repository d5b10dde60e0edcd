import type { IncomingMessage } from 'node:http';
import type { Runtime } from '../base/runtime.ts';

const SAMPLE_EVERY_MS = 50;

// A symbol on Node's own object: a set would cost one more look-up per request.
const IN_FLIGHT = Symbol('doorbuster.in-flight');

type Counted = IncomingMessage & { [IN_FLIGHT]?: boolean };

/**
 * Commits excuse at most so much of one delay. A group commit takes milliseconds, on a slow disk tenths of a second. Whoever has to
 * wait longer than this for commits waits in any case, whatever the loop is busy with.
 */
const EXCUSED_MS_MAX = 1000;

/**
 * Decides when to refuse early, by two signs: too many requests in flight, and a late event loop. The embedded ledger commits
 * on the event loop, which delays it by design, so that time is subtracted up to a bound: it is work, not overload.
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
      const excusedMs = Math.min(nowBlockedMs - lastBlockedMs, EXCUSED_MS_MAX);
      const lateMs = Math.max(nowMs - lastMs - SAMPLE_EVERY_MS - excusedMs, 0);
      // The smaller of two delays in a row: a single late tick may be a garbage collection or the start-up.
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
   * Counts a request as in flight until it is answered. Called once the whole request has arrived: a client that sends or
   * reads slowly causes no work, and must not use up the limit for the others.
   */
  enter(request: IncomingMessage): void {
    if ((request as Counted)[IN_FLIGHT] !== undefined) return;
    this.#inFlight++;
    (request as Counted)[IN_FLIGHT] = true;
  }

  /** Idempotent: an answer, a client that leaves and the start of an event stream all call it; the first one counts. */
  answered(request: IncomingMessage): void {
    if ((request as Counted)[IN_FLIGHT] !== true) return;
    (request as Counted)[IN_FLIGHT] = false;
    this.#inFlight--;
  }

  get delayMs(): number {
    return this.#delayMs;
  }

  /** Why requests are refused now, or null. */
  get reason(): string | null {
    return this.#reason(this.#inFlight);
  }

  /** The same for this request, which may be counted already. */
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
