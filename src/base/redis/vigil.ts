import type { Timers } from '../timers.ts';

/** A turn of the event loop in which nothing happens takes about a microsecond, an answer from the same machine some twenty. */
const TURNS_MAX = 64;
/** So often in a row in vain, and it is only tried now and then. */
const WORTH_MAX = 8;
const SKIPPED_MAX = 64;
/** Nobody stayed awake for it. */
const UNATTENDED = -1;

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
  /** Turns so far; what was asleep in between counts as very many. */
  #turns = 0;
  #until = 0;
  #turning = false;
  #worth = WORTH_MAX;
  #skipped = 0;

  constructor(timers: Timers, over: () => boolean) {
    this.#timers = timers;
    this.#over = over;
  }

  /** Something was sent. What is returned is to be given to `answered`. */
  sent(): number {
    if (this.#worth === 0 && ++this.#skipped < SKIPPED_MAX) return UNATTENDED;
    this.#skipped = 0;
    this.#until = this.#turns + TURNS_MAX;
    if (!this.#turning) {
      this.#turning = true;
      this.#timers.nextTurn(this.#turn);
    }
    return this.#turns;
  }

  /** It was answered: soon enough, or in vain. */
  answered(sentAt: number): void {
    if (sentAt === UNATTENDED) return;
    const soon = this.#turns - sentAt <= TURNS_MAX;
    this.#worth = soon ? Math.min(this.#worth + 1, WORTH_MAX) : Math.max(this.#worth - 1, 0);
  }

  readonly #turn = (): void => {
    this.#turns++;
    if (this.#over()) {
      this.#turning = false;
    } else if (this.#turns < this.#until) {
      this.#timers.nextTurn(this.#turn);
    } else {
      this.#turning = false;
      this.#turns += TURNS_MAX;
    }
  };
}
