import type { Timers } from './timers.ts';

/** Resumes all callers of one turn of the event loop together at its end. */
export class Turn {
  readonly #timers: Timers;
  #end: Promise<void> | null = null;

  constructor(timers: Timers) {
    this.#timers = timers;
  }

  end(): Promise<void> {
    this.#end ??= new Promise((resolve) => {
      this.#timers.nextTurn(() => {
        this.#end = null;
        resolve();
      });
    });
    return this.#end;
  }
}
