import type { Timers } from './timers.ts';

/** Lets everybody who waits in one turn of the event loop go on together at its end; alone, nobody waits longer. */
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
