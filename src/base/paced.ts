import type { Clock } from './clock.ts';
import { RetryableError } from './errors.ts';
import type { Timers } from './timers.ts';

/** Runs a piece of work that holds the event loop, and notes for how long. */
export type During = <T>(piece: () => T) => T;

export interface Pace {
  /** How much longer than the work itself the pause after it is: 4 leaves it a fifth of the event loop. */
  readonly pauseFactor: number;
  readonly atOnce: number;
  readonly waitingMax: number;
  /** Of what there are too many, for those who are refused. */
  readonly what: string;
}

/** Pauses shorter than this are added up: a timer is a millisecond late, and small work would wait for nothing else. */
const SLACK_MS = 5;
/** A machine that stood still has not worked all that time. */
const PAUSE_MS_MAX = 250;

/**
 * One kind of work that may take its share of the event loop and no more, whoever asks for it and how often: after it there is a
 * pause, some may wait for its end, and whoever comes beyond that is refused. Alone, nobody waits.
 */
export class Paced {
  readonly #clock: Clock;
  readonly #timers: Timers;
  readonly #pace: Pace;
  readonly #waiting: (() => void)[] = [];
  #running = 0;
  #pauseUntilMs = Number.NEGATIVE_INFINITY;
  #isTimed = false;

  constructor({ clock, timers }: { clock: Clock; timers: Timers }, pace: Pace) {
    this.#clock = clock;
    this.#timers = timers;
    this.#pace = pace;
  }

  async run<T>(work: (during: During) => Promise<T>): Promise<T> {
    if (this.#waiting.length === 0 && this.#mayStart()) this.#running++;
    else if (this.#waiting.length >= this.#pace.waitingMax) {
      throw new RetryableError('overloaded', `too many ${this.#pace.what}`);
    } else {
      const started = new Promise<void>((resolve) => void this.#waiting.push(resolve));
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
      // From its start: what began within the slack of an earlier pause does not use up the rest of it.
      const tookMs = (1 + this.#pace.pauseFactor) * (nowMs - startedMs);
      this.#pauseUntilMs = Math.min(Math.max(this.#pauseUntilMs, startedMs) + tookMs, nowMs + PAUSE_MS_MAX);
    }
  };

  #mayStart(): boolean {
    return this.#running < this.#pace.atOnce && this.#pauseUntilMs - this.#clock.monotonic() <= SLACK_MS;
  }

  #startNext(): void {
    while (this.#waiting.length > 0 && this.#mayStart()) {
      this.#running++;
      this.#waiting.shift()!();
    }
    // Whoever runs comes by here at its end.
    if (this.#waiting.length === 0 || this.#running >= this.#pace.atOnce || this.#isTimed) return;
    this.#isTimed = true;
    this.#timers.after(Math.ceil(this.#pauseUntilMs - SLACK_MS - this.#clock.monotonic()), () => {
      this.#isTimed = false;
      this.#startNext();
    });
  }
}
