import type { Timers } from '../timers.ts';

/** A turn of the event loop in which nothing happens takes about a microsecond, an answer from the same machine some twenty. */
const TURNS_MAX = 64;
/** After so many failures in a row it is only tried now and then. */
const WORTH_MAX = 8;
const SKIPPED_MAX = 64;
/** Returned by `sent` when the loop is not kept awake. */
const UNATTENDED = -1;

/**
 * Keeps the event loop awake for a moment while a reply is about to come. A process that sleeps until its reply arrives pays
 * for falling asleep and for waking up, and so does Redis, whose core is idle meanwhile: together that takes longer than the
 * reply itself. So the event loop spins briefly before it sleeps; everything else goes on as usual. Where replies take longer
 * (Redis is remote, busy, or shares our only core) spinning does not pay, and the vigil notices and stops it.
 */
export class Vigil {
  readonly #timers: Timers;
  /** Whether no reply is awaited. */
  readonly #over: () => boolean;
  /** Turns of the loop so far; a sleep counts as very many. */
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
    if (this.#worth === 0 && ++this.#skipped < SKIPPED_MAX) return UNATTENDED;
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
