import { EventEmitter } from 'node:events';
import type { Logger } from '../base/logger.ts';
import { hasEnded, type OrderRecord } from '../model/order.ts';
import type { PaymentAttempt } from '../model/payment.ts';
import type { Order } from './present.ts';
import type { OrderView } from './seat-names.ts';

export interface ShopEvents {
  'order.reserved': [order: Order];
  'order.rejected': [order: Order];
  'order.paid': [order: Order];
  /** It has other seats; its version rises. */
  'order.moved': [order: Order];
  'order.cancelled': [order: Order];
  'order.expired': [order: Order];
  /** A part of its money is back; it stays paid. */
  'order.partly_refunded': [order: Order];
  'order.refunded': [order: Order];
  'sale.changed': [saleId: string];
}

export type OrderEvent = Exclude<keyof ShopEvents, 'sale.changed'>;

/** Listeners of the whole shop, and those who watch one order. A listener's fault is logged, and the order stands. */
export class Events {
  readonly #log: Logger;
  readonly #listeners = new EventEmitter<ShopEvents>();
  readonly #watchers = new Map<string, Set<(order: Order) => void>>();
  readonly #view: Pick<OrderView, 'show'>;
  /** Orders whose seats are being named: what is told of one of them next has to wait. */
  readonly #naming = new Map<string, Promise<void>>();

  constructor(log: Logger, view: Pick<OrderView, 'show'>) {
    this.#log = log;
    this.#view = view;
  }

  on<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void {
    this.#listeners.on(event, listener as never);
  }

  off<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void {
    this.#listeners.off(event, listener as never);
  }

  /** Whether anybody would be told: presenting an order that nobody hears of is spared. */
  isHeard(event: keyof ShopEvents): boolean {
    return this.#listeners.listenerCount(event) > 0 || this.#watchers.size > 0;
  }

  /** Tells watchers and listeners, if there are any. */
  announce(event: OrderEvent, record: OrderRecord, attempt: PaymentAttempt | null = null): void {
    if (!this.isHeard(event)) return;
    this.#shown(record, attempt, (order) => {
      this.#tell(order);
      this.#emit(event, order);
    });
  }

  /** Tells those who watch this order, if there are any. */
  tellWatchers(record: OrderRecord): void {
    if (this.#watchers.has(record.id)) this.#shown(record, null, (order) => this.#tell(order));
  }

  /** What is told of an order comes in the order in which it happened, also if its seats have yet to be named. */
  #shown(record: OrderRecord, attempt: PaymentAttempt | null, tell: (order: Order) => void): void {
    const order = this.#view.show(record, attempt);
    if (!(order instanceof Promise)) {
      tell(order);
      return;
    }
    const { id } = record;
    const before = this.#naming.get(id);
    const telling = Promise.all([order, before]).then(
      ([shown]) => tell(shown),
      // Whoever watches is told of the next change; the order itself can be read.
      (error: unknown) => this.#log.warn({ err: error, orderId: id }, 'the seats of an order cannot be named now'),
    );
    this.#naming.set(id, telling);
    void telling.then(() => {
      if (this.#naming.get(id) === telling) this.#naming.delete(id);
    });
  }

  saleChanged(saleId: string): void {
    this.#emit('sale.changed', saleId);
  }

  #emit<E extends keyof ShopEvents>(event: E, ...args: ShopEvents[E]): void {
    for (const listener of this.#listeners.listeners(event)) {
      this.guarded(event, () => (listener as (...args: unknown[]) => unknown)(...args));
    }
  }

  /** Ids of orders that somebody watches here. */
  get watched(): string[] {
    return [...this.#watchers.keys()];
  }

  #tell(order: Order): void {
    for (const hear of this.#watchers.get(order.id) ?? []) this.guarded('an order', () => hear(order));
  }

  /** Calls `hear` with the order as `read` finds it, and then at every change. The returned function ends it. */
  async watch(
    orderId: string,
    hear: (order: Order) => void,
    read: () => Promise<Order | null>,
  ): Promise<(() => void) | null> {
    const watchers = this.#watchers.get(orderId) ?? new Set();
    this.#watchers.set(orderId, watchers.add(hear));
    const stop = (): void => {
      watchers.delete(hear);
      if (watchers.size === 0) this.#watchers.delete(orderId);
    };
    const order = await read().catch((error: unknown) => {
      stop();
      throw error;
    });
    if (order === null) {
      stop();
      return null;
    }
    hear(order);
    if (hasEnded(order.status)) stop();
    return stop;
  }

  /** Runs a function of the library's user, synchronous or not. */
  guarded(what: string, run: () => unknown): void {
    const failed = (error: unknown): void => this.#log.error({ err: error }, `a listener of ${what} failed`);
    try {
      const result = run();
      if (result instanceof Promise) result.catch(failed);
    } catch (error) {
      failed(error);
    }
  }

  close(): void {
    this.#listeners.removeAllListeners();
  }
}
