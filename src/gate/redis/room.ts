import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';

const LOOK_EVERY_MS = 1000;

/**
 * Whether Redis has room for orders. A full Redis (maxmemory) still answers, so no breaker opens: without this, only the buyers
 * would notice. The first order that is refused reports it; from then on a timer asks until there is room again, since no further
 * order may come.
 */
export class Room {
  readonly #runtime: Runtime;
  /** Fails while there is no room. */
  readonly #look: (saleId: string) => Promise<unknown>;
  #reason: string | null = null;
  #stop: () => void = () => undefined;
  #closed = false;

  constructor(runtime: Runtime, look: (saleId: string) => Promise<unknown>) {
    this.#runtime = runtime;
    this.#look = look;
  }

  get reason(): string | null {
    return this.#reason;
  }

  /** An order of this sale was refused because Redis is full. */
  missing(saleId: string, error: unknown): void {
    if (this.#reason !== null || this.#closed) return;
    this.#reason = 'Redis is full: orders are refused';
    this.#runtime.log.error({ saleId, cause: messageOf(error) }, 'Redis is full; orders are refused');
    this.#lookLater(saleId);
  }

  #lookLater(saleId: string): void {
    this.#stop = this.#runtime.timers.after(LOOK_EVERY_MS, () => {
      this.#look(saleId).then(
        () => {
          if (this.#closed) return;
          this.#reason = null;
          this.#runtime.log.info('Redis has room again');
        },
        () => {
          if (!this.#closed) this.#lookLater(saleId);
        },
      );
    });
  }

  close(): void {
    this.#closed = true;
    this.#stop();
  }
}
