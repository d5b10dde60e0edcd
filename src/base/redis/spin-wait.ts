import type { Timers } from '../timers.ts';

/** An idle turn of the event loop takes about a microsecond, an answer from the same machine some twenty. */
const TURNS_MAX = 64;
/** After so many answers in a row that came too late, it spins only for one command of `SKIPPED_MAX`. */
const WORTH_MAX = 8;
const SKIPPED_MAX = 64;
/** Of a command for which it did not spin. */
const SKIPPED = -1;

/**
 * Keeps the event loop turning for a moment while Redis is about to answer, instead of sleeping until the answer is there.
 * To fall asleep and to be woken takes longer than an answer from the same machine. Everything else goes on as usual
 * meanwhile. Where answers take longer (Redis is on another machine, is busy, or shares our only core) spinning is in vain;
 * this notices, and hardly ever spins.
 */
export class SpinWait {
  readonly #timers: Timers;
  /** Whether nothing is under way. */
  readonly #over: () => boolean;
  /** Turns so far; a sleep in between counts as `TURNS_MAX` of them. */
  #turns = 0;
  #until = 0;
  #turning = false;
  #worth = WORTH_MAX;
  #skipped = 0;

  constructor(timers: Timers, over: () => boolean) {
    this.#timers = timers;
    this.#over = over;
  }

  /** A command was sent. Pass the returned value to `answered`. */
  sent(): number {
    if (this.#worth === 0 && ++this.#skipped < SKIPPED_MAX) return SKIPPED;
    this.#skipped = 0;
    this.#until = this.#turns + TURNS_MAX;
    if (!this.#turning) {
      this.#turning = true;
      this.#timers.nextTurn(this.#turn);
    }
    return this.#turns;
  }

  /** Its reply came: soon enough, or too late for spinning to pay. */
  answered(sentAt: number): void {
    if (sentAt === SKIPPED) return;
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
