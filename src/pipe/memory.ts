import type { Runtime } from '../base/runtime.ts';
import type { OrderMessage } from '../model/order.ts';
import type { Pipe } from './port.ts';

/** Bounds one transaction, so that a burst does not become one commit that everybody waits for. */
const BATCH_MAX = 512;

/**
 * The in-process pipe. `push` is called by the gate inside the admission itself: there is no instant in which stock is
 * taken and no message exists. A batch is cut at the next turn of the event loop, so all requests that arrived in one
 * turn share one commit, and a lone request waits for nobody. It does not survive the process: nobody was told 201.
 */
export class MemoryPipe implements Pipe {
  readonly #runtime: Runtime;
  #waiting: OrderMessage[] = [];
  #handling = 0;
  #scheduled = false;
  #handle: ((batch: OrderMessage[]) => Promise<void>) | null = null;
  /** Messages that have entered, and that have left: waiters are told when `left` reaches their mark. */
  #entered = 0;
  #left = 0;
  #waiters: { mark: number; resolve: () => void }[] = [];

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  get depth(): number {
    return this.#waiting.length + this.#handling;
  }

  push(message: OrderMessage): void {
    this.#waiting.push(message);
    this.#entered++;
    this.#schedule();
  }

  consume(handle: (batch: OrderMessage[]) => Promise<void>): void {
    this.#handle = handle;
    if (this.#waiting.length > 0) this.#schedule();
  }

  async drained(): Promise<void> {
    while (this.depth > 0) await this.caughtUp();
  }

  caughtUp(): Promise<void> {
    if (this.depth === 0) return Promise.resolve();
    const mark = this.#entered;
    return new Promise((resolve) => this.#waiters.push({ mark, resolve }));
  }

  #schedule(): void {
    if (this.#scheduled || this.#handling > 0 || this.#handle === null) return;
    this.#scheduled = true;
    this.#runtime.timers.nextTurn(() => {
      this.#scheduled = false;
      void this.#turn();
    });
  }

  async #turn(): Promise<void> {
    const batch = this.#waiting.length <= BATCH_MAX ? this.#waiting : this.#waiting.slice(0, BATCH_MAX);
    this.#waiting = this.#waiting.length <= BATCH_MAX ? [] : this.#waiting.slice(BATCH_MAX);
    this.#handling = batch.length;
    try {
      await this.#handle!(batch);
    } catch (error) {
      // The writer decides every message of a batch itself; what comes here is a bug, and must not stop the shop.
      this.#runtime.log.error({ err: error, orders: batch.length }, 'the writer failed on a batch');
    } finally {
      this.#handling = 0;
      this.#left += batch.length;
      while (this.#waiters.length > 0 && this.#waiters[0]!.mark <= this.#left) this.#waiters.shift()!.resolve();
      if (this.#waiting.length > 0) this.#schedule();
    }
  }
}
