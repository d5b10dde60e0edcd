import type { Clock } from './clock.ts';
import { RetryableError } from './errors.ts';
import type { Timers } from './timers.ts';

/** Runs a piece of synchronous work and measures how long it blocks the event loop. */
export type During = <T>(piece: () => T) => T;

export interface Pace {
  /** The pause after a piece of work, as a multiple of its time: 4 leaves it a fifth of the event loop. */
  readonly pauseFactor: number;
  readonly atOnce: number;
  readonly waitingMax: number;
  /** So many of these places one caller may take. */
  readonly waitingOfOneMax?: number;
  /** Completes the message of a refusal: "too many …". */
  readonly what: string;
}

/** Shorter pauses are added up instead of waited for: timers are a millisecond late, which would dominate small work. */
const SLACK_MS = 5;
/** Bounds a pause if the machine was suspended during the work. */
const PAUSE_MS_MAX = 250;

/**
 * Limits one kind of work to a share of the event loop, however often it is requested: each piece is followed by a pause.
 * `waitingMax` calls may wait for the pause to end, and further ones are refused. A single call does not wait. Callers take turns,
 * however many calls each of them has waiting.
 */
export class Paced {
  readonly #clock: Clock;
  readonly #timers: Timers;
  readonly #pace: Pace;
  /** By caller, whoever has the next turn first. */
  readonly #waiting = new Map<string | null, (() => void)[]>();
  #waitingCount = 0;
  #running = 0;
  #pauseUntilMs = Number.NEGATIVE_INFINITY;
  #isTimed = false;

  constructor({ clock, timers }: { clock: Clock; timers: Timers }, pace: Pace) {
    this.#clock = clock;
    this.#timers = timers;
    this.#pace = pace;
  }

  /** A call would wait now, or be refused. */
  get isBusy(): boolean {
    return this.#waitingCount > 0 || !this.#mayStart();
  }

  /** `caller`: who takes turns with the others; null: it may stand for many, so that only all places together limit it. */
  async run<T>(work: (during: During) => Promise<T>, caller: string | null = null): Promise<T> {
    if (!this.isBusy) this.#running++;
    else if (this.#isFullFor(caller)) throw new RetryableError('overloaded', `too many ${this.#pace.what}`);
    else {
      const started = new Promise<void>((resolve) => this.#wait(caller, resolve));
      this.#startNext();
      await started;
    }
    try {
      return await work(this.#during);
    } finally {
      this.#running--;
      this.#startNext();
    }
  }

  readonly #during: During = (piece) => {
    const startedMs = this.#clock.monotonic();
    try {
      return piece();
    } finally {
      const nowMs = this.#clock.monotonic();
      // Added to the end of the earlier pause: work that began within its slack must not shorten it.
      const tookMs = (1 + this.#pace.pauseFactor) * (nowMs - startedMs);
      this.#pauseUntilMs = Math.min(Math.max(this.#pauseUntilMs, startedMs) + tookMs, nowMs + PAUSE_MS_MAX);
    }
  };

  #isFullFor(caller: string | null): boolean {
    const { waitingMax, waitingOfOneMax = waitingMax } = this.#pace;
    if (this.#waitingCount >= waitingMax) return true;
    return caller !== null && (this.#waiting.get(caller)?.length ?? 0) >= waitingOfOneMax;
  }

  #wait(caller: string | null, start: () => void): void {
    const calls = this.#waiting.get(caller);
    if (calls === undefined) this.#waiting.set(caller, [start]);
    else calls.push(start);
    this.#waitingCount++;
  }

  /** Of the caller whose turn it is, who has the last turn then. */
  #next(): () => void {
    const [caller, calls] = this.#waiting.entries().next().value!;
    const start = calls.shift()!;
    this.#waitingCount--;
    this.#waiting.delete(caller);
    if (calls.length > 0) this.#waiting.set(caller, calls);
    return start;
  }

  #mayStart(): boolean {
    return this.#running < this.#pace.atOnce && this.#pauseUntilMs - this.#clock.monotonic() <= SLACK_MS;
  }

  #startNext(): void {
    while (this.#waitingCount > 0 && this.#mayStart()) {
      this.#running++;
      this.#next()();
    }
    // If the limit is reached, the next call that ends comes back here.
    if (this.#waitingCount === 0 || this.#running >= this.#pace.atOnce || this.#isTimed) return;
    this.#isTimed = true;
    this.#timers.after(Math.ceil(this.#pauseUntilMs - SLACK_MS - this.#clock.monotonic()), () => {
      this.#isTimed = false;
      this.#startNext();
    });
  }
}
