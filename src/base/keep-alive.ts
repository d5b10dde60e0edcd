import { MessageChannel } from 'node:worker_threads';
import { systemTimers, type Timers } from './timers.ts';

const LINGER_MS = 20;

/**
 * Keeps the process alive while a caller waits for an answer. Our timers and connections do not: a held lock or an open
 * connection must not keep a script from ending.
 *
 * It lets go only some milliseconds after the last caller, because the next one usually follows at once and each change
 * costs a call into the event loop.
 */
export class KeepAlive {
  readonly #timers: Timers;
  readonly #port = new MessageChannel().port1;
  #needs = 0;
  #held = false;

  constructor(timers: Timers = systemTimers) {
    this.#timers = timers;
    // A port keeps the process alive only while it has a listener. Adding it once makes ref and unref cheap.
    this.#port.on('message', () => undefined);
    this.#port.unref();
  }

  hold(): void {
    this.#needs++;
    if (this.#held) return;
    this.#held = true;
    this.#port.ref();
    this.#letGoLater();
  }

  drop(): void {
    this.#needs--;
  }

  #letGoLater(): void {
    this.#timers.after(LINGER_MS, () => {
      if (this.#needs > 0) {
        this.#letGoLater();
        return;
      }
      this.#held = false;
      this.#port.unref();
    });
  }

  close(): void {
    this.#port.close();
  }
}
