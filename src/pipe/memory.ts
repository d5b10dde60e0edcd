import { backOffMs } from '../base/back-off.ts';
import { messageOf } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import type { OrderMessage } from '../model/order.ts';
import type { DeadLetter, DeadLetters, Handle, Pipe, Undeliverable } from './port.ts';

/** Bounds one transaction, so that a burst does not become one commit that everybody waits for. */
const BATCH_MAX = 512;
const AGAIN_MS_MIN = 25;
const AGAIN_MS_MAX = 2000;

export interface MemoryPipeOptions {
  /** A message that was undeliverable so often becomes a dead letter. */
  readonly triesMax?: number;
  /** Until the second try of such a message; twice as long until the third, and so on. */
  readonly retryMs?: number;
}

/**
 * The in-process pipe. `push` is called by the gate inside the admission itself: there is no instant in which stock is
 * taken and no message exists. A batch is cut at the next turn of the event loop, so all requests that arrived in one
 * turn share one commit, and a lone request waits for nobody. It does not survive the process: nobody was told 201.
 *
 * All sales share one queue, so that a sale has caught up when all have.
 */
export class MemoryPipe implements Pipe, DeadLetters {
  readonly #runtime: Runtime;
  readonly #triesMax: number;
  readonly #retryMs: number;
  #waiting: OrderMessage[] = [];
  #inHand: OrderMessage[] = [];
  #handling: Promise<void> | null = null;
  #scheduled = false;
  #stopped = false;
  #handle: Handle | null = null;
  /** Messages that have entered the queue, and that have left it: waiters are told when `left` reaches their mark. */
  #entered = 0;
  #left = 0;
  #waiters: { mark: number; resolve: () => void; moved: () => void }[] = [];
  /** Messages that were undeliverable, until they are decided, and how often. Those that wait for their next try. */
  readonly #tried = new Map<OrderMessage, number>();
  readonly #aside = new Map<OrderMessage, () => void>();
  readonly #dead = new Map<string, DeadLetter>();
  #endRest: (() => void) | null = null;

  constructor(runtime: Runtime, { triesMax = 5, retryMs = 1000 }: MemoryPipeOptions = {}) {
    this.#runtime = runtime;
    this.#triesMax = triesMax;
    this.#retryMs = retryMs;
  }

  get depth(): number {
    return this.#waiting.length + this.#inHand.length + this.#aside.size;
  }

  push(message: OrderMessage): void {
    this.#waiting.push(message);
    this.#entered++;
    this.#schedule();
  }

  consume(handle: Handle): void {
    this.#handle = handle;
    if (this.#waiting.length > 0) this.#schedule();
  }

  async drained(): Promise<void> {
    while (this.depth > 0) await this.caughtUp();
  }

  caughtUp(_saleId?: string, withinMs = Infinity, idleMs = Infinity): Promise<boolean> {
    if (this.depth === 0) return Promise.resolve(true);
    if (withinMs <= 0) return Promise.resolve(false);
    return new Promise((resolve) => {
      const giveUpIn = (ms: number): (() => void) | null =>
        ms === Infinity ? null : this.#runtime.timers.after(ms, () => settle(false));
      const settle = (caughtUp: boolean): void => {
        late?.();
        idle?.();
        if (!caughtUp) this.#waiters = this.#waiters.filter((one) => one !== waiter);
        resolve(caughtUp);
      };
      const moved = (): void => {
        idle?.();
        idle = giveUpIn(idleMs);
      };
      const late = giveUpIn(withinMs);
      let idle = giveUpIn(idleMs);
      const waiter = { mark: this.#entered, resolve: () => settle(true), moved };
      this.#waiters.push(waiter);
    });
  }

  async depthOf(saleId: string): Promise<number> {
    const all = [...this.#waiting, ...this.#inHand, ...this.#aside.keys()];
    return all.reduce((count, message) => (message.saleId === saleId ? count + 1 : count), 0);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    for (const cancel of this.#aside.values()) cancel();
    this.#endRest?.();
    await this.#handling;
  }

  #schedule(): void {
    if (this.#scheduled || this.#handling !== null || this.#handle === null || this.#stopped) return;
    this.#scheduled = true;
    this.#runtime.timers.nextTurn(() => {
      this.#scheduled = false;
      if (!this.#stopped) this.#handling = this.#turn();
    });
  }

  async #turn(): Promise<void> {
    const batch = this.#waiting.length <= BATCH_MAX ? this.#waiting : this.#waiting.slice(0, BATCH_MAX);
    this.#waiting = this.#waiting.length <= BATCH_MAX ? [] : this.#waiting.slice(BATCH_MAX);
    this.#inHand = batch;
    const undeliverable = await this.#handOver(batch);
    this.#inHand = [];
    this.#handling = null;
    if (undeliverable === null) {
      // Stopped: nothing of it is decided.
      this.#waiting = [...batch, ...this.#waiting];
      return;
    }
    this.#left += batch.length;
    if (undeliverable.length > 0 || this.#tried.size > 0) this.#putAside(batch, undeliverable);
    if (undeliverable.length < batch.length) for (const { moved } of this.#waiters) moved();
    this.#tellWaiters();
    if (this.#waiting.length > 0) this.#schedule();
  }

  /** Until it is decided. Null: the pipe was stopped first. */
  async #handOver(batch: OrderMessage[]): Promise<readonly Undeliverable[] | null> {
    for (let failures = 0; ; failures++) {
      try {
        const handled = (await this.#handle!(batch)) ?? [];
        if (!('told' in handled)) return handled;
        await handled.told;
        return handled.undeliverable;
      } catch (error) {
        this.#runtime.log.error({ err: error, orders: batch.length }, 'a batch is handed over again');
      }
      if (this.#stopped) return null;
      await new Promise<void>((resolve) => {
        const cancel = this.#runtime.timers.after(backOffMs(failures, AGAIN_MS_MIN, AGAIN_MS_MAX), resolve);
        this.#endRest = () => {
          cancel();
          resolve();
        };
      });
      this.#endRest = null;
      if (this.#stopped) return null;
    }
  }

  #putAside(batch: readonly OrderMessage[], undeliverable: readonly Undeliverable[]): void {
    const errors = new Map(undeliverable.map(({ message, error }) => [message, error]));
    for (const message of batch) {
      const error = errors.get(message);
      if (error === undefined) {
        this.#tried.delete(message);
        continue;
      }
      const tries = (this.#tried.get(message) ?? 0) + 1;
      if (tries >= this.#triesMax) {
        this.#tried.delete(message);
        const diedAtMs = this.#runtime.clock.now();
        this.#dead.set(message.orderId, { message, error: messageOf(error), attempts: tries, diedAtMs });
        continue;
      }
      this.#tried.set(message, tries);
      const again = (): void => {
        this.#aside.delete(message);
        this.push(message);
      };
      this.#aside.set(message, this.#runtime.timers.after(this.#retryMs * 2 ** (tries - 1), again));
    }
  }

  /** One that is tried again has not left, wherever it stands in the queue. */
  #tellWaiters(): void {
    if (this.#tried.size > 0) return;
    while (this.#waiters.length > 0 && this.#waiters[0]!.mark <= this.#left) this.#waiters.shift()!.resolve();
  }

  async list(limit: number, before: string | null): Promise<DeadLetter[]> {
    const below = before === null ? null : BigInt(before);
    return [...this.#dead.values()]
      .filter(({ message }) => below === null || BigInt(message.orderId) < below)
      .sort((one, other) => (BigInt(one.message.orderId) > BigInt(other.message.orderId) ? -1 : 1))
      .slice(0, limit);
  }

  async get(orderId: string): Promise<DeadLetter | null> {
    return this.#dead.get(orderId) ?? null;
  }

  async retry(orderId: string): Promise<boolean> {
    const letter = this.#dead.get(orderId);
    if (letter === undefined) return false;
    this.#dead.delete(orderId);
    this.push(letter.message);
    return true;
  }

  async drop(orderId: string): Promise<boolean> {
    return this.#dead.delete(orderId);
  }
}
