import type { OrderRecord } from '../model/order.ts';

/** Hands the ledger's decision on an order to the requests that wait for it. */
export class Acks {
  readonly #waiting = new Map<string, PromiseWithResolvers<OrderRecord>>();

  /** Called before the admission: a decision cannot come before its waiter. */
  expect(orderId: string): Promise<OrderRecord> {
    const waiter = Promise.withResolvers<OrderRecord>();
    this.#waiting.set(orderId, waiter);
    return waiter.promise;
  }

  /** The decision of an order that is on its way, or null if nobody waits for it here. */
  of(orderId: string): Promise<OrderRecord> | null {
    return this.#waiting.get(orderId)?.promise ?? null;
  }

  forget(orderId: string): void {
    this.#waiting.delete(orderId);
  }

  decided(order: OrderRecord): void {
    const waiter = this.#waiting.get(order.id);
    if (waiter === undefined) return;
    this.#waiting.delete(order.id);
    waiter.resolve(order);
  }

  failed(orderId: string, error: Error): void {
    const waiter = this.#waiting.get(orderId);
    if (waiter === undefined) return;
    this.#waiting.delete(orderId);
    waiter.promise.catch(() => {});
    waiter.reject(error);
  }
}
