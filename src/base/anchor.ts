import { MessageChannel } from 'node:worker_threads';

/**
 * Keeps the process alive while somebody needs it to. Our timers and idle connections do not: a held lock or an open
 * connection must not stop a script from ending, but an answer that is being waited for must come.
 */
export class Anchor {
  readonly #port = new MessageChannel().port1;
  #needs = 0;

  constructor() {
    // A port keeps the process alive only with a listener; both are there from the start, so that ref and unref are cheap.
    this.#port.on('message', () => undefined);
    this.#port.unref();
  }

  hold(): void {
    if (this.#needs++ === 0) this.#port.ref();
  }

  drop(): void {
    if (--this.#needs === 0) this.#port.unref();
  }

  close(): void {
    this.#port.close();
  }
}
