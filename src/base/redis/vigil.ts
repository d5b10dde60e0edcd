import type { Timers } from '../timers.ts';

/** A turn of the event loop in which nothing happens takes about a microsecond, an answer from the same machine some twenty. */
const TURNS_MAX = 64;
/** So often in a row in vain, and it is only tried now and then. */
const WORTH_MAX = 8;
const SKIPPED_MAX = 64;

/**
 * Stays awake for a moment while an answer is about to come. A process that sleeps until its answer is there pays for
 * falling asleep and for being woken, and Redis, whose core has nothing to do meanwhile, does as well: together that takes
 * longer than the answer. So the event loop turns on for a little before it sleeps, with everything else going on as usual.
 * Where answers take longer (Redis is on another machine, has much to do, or shares our only core) it is in vain, and
 * this notices.
 */
export class Vigil {
  readonly #timers: Timers;
  /** Whether there is nothing to wait for. */
  readonly #over: () => boolean;
  #turning = false;
  #left = 0;
  #worth = WORTH_MAX;
  #skipped = 0;

  constructor(timers: Timers, over: () => boolean) {
    this.#timers = timers;
    this.#over = over;
  }

  /** Something was sent. */
  sent(): void {
    if (this.#worth === 0 && ++this.#skipped < SKIPPED_MAX) return;
    this.#skipped = 0;
    this.#left = TURNS_MAX;
    if (this.#turning) return;
    this.#turning = true;
    this.#timers.nextTurn(this.#turn);
  }

  /** Something was answered. */
  answered(): void {
    if (this.#turning && this.#worth < WORTH_MAX) this.#worth++;
  }

  readonly #turn = (): void => {
    if (this.#over()) {
      this.#turning = false;
    } else if (--this.#left > 0) {
      this.#timers.nextTurn(this.#turn);
    } else {
      this.#turning = false;
      if (this.#worth > 0) this.#worth--;
    }
  };
}
