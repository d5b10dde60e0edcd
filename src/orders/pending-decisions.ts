import { times } from '../model/money.ts';
import type { OrderMessage, OrderRecord } from '../model/order.ts';
import type { RejectReason } from '../model/outcome.ts';

/** What the ledger decided, without what the order's message contains: it is sent between processes. */
export interface Decision {
  status: 'reserved' | 'rejected';
  reason: RejectReason | null;
  createdAtMs: number;
  expiresAtMs: number | null;
}

/** Empty once the decision has been handed on. */
interface Waiter {
  open: PromiseWithResolvers<OrderRecord | Decision> | null;
}

/**
 * Hands the ledger's decision on an order to the requests that wait for it.
 *
 * The map fills and empties with every commit, and V8 replaces its table each time. An old table points to the next one, so a
 * single dead table that has reached the old generation keeps all later ones, and what they hold, alive until the next full
 * collection. A waiter that was told is therefore emptied, not only removed.
 */
export class PendingDecisions {
  readonly #waiting = new Map<string, Waiter>();

  /** Called before the admission, so that no decision comes before its waiter. */
  expect(orderId: string): Promise<OrderRecord | Decision> {
    const open = Promise.withResolvers<OrderRecord | Decision>();
    this.#waiting.set(orderId, { open });
    return open.promise;
  }

  /** The decision of an order that is on its way, or null if nobody waits for it here. */
  of(orderId: string): Promise<OrderRecord | Decision> | null {
    return this.#waiting.get(orderId)?.open?.promise ?? null;
  }

  forget(orderId: string): void {
    this.#take(orderId);
  }

  decided(order: OrderRecord): void {
    this.heard(order.id, order);
  }

  /** The same, from a process that knows the order by its id only. */
  heard(orderId: string, decision: OrderRecord | Decision): void {
    this.#take(orderId)?.resolve(decision);
  }

  failed(orderId: string, error: Error): void {
    const waiter = this.#take(orderId);
    if (waiter === null) return;
    waiter.promise.catch(() => {});
    waiter.reject(error);
  }

  #take(orderId: string): Waiter['open'] {
    const waiter = this.#waiting.get(orderId);
    if (waiter === undefined) return null;
    this.#waiting.delete(orderId);
    const { open } = waiter;
    waiter.open = null;
    return open;
  }
}

/** The order as the ledger has it, from what was admitted and what was decided. */
export function decidedOrder(message: OrderMessage, decision: OrderRecord | Decision): OrderRecord {
  if ('id' in decision) return decision;
  const { status, reason, createdAtMs, expiresAtMs } = decision;
  return { ...orderOf(message), status, reason, createdAtMs, updatedAtMs: createdAtMs, expiresAtMs };
}

/** An order that the ledger has not decided, as it is shown. The ledger's versions begin at 1: its commit is a change. */
export function queuedOrder(message: Known, createdAtMs: number): OrderRecord {
  const undecided = { status: 'queued' as const, reason: null, expiresAtMs: null, version: 0 };
  return { ...orderOf(message), ...undecided, createdAtMs, updatedAtMs: createdAtMs };
}

type Known = Pick<
  OrderMessage,
  'orderId' | 'saleId' | 'itemId' | 'itemCode' | 'buyer' | 'quantity' | 'price' | 'seats'
>;

function orderOf({ orderId, saleId, itemId, itemCode, buyer, quantity, price, seats }: Known) {
  return {
    id: orderId,
    saleId,
    itemId,
    itemCode,
    buyer,
    quantity,
    ...(seats !== undefined && { seats }),
    amount: times(price, quantity),
    version: 1,
    revives: null,
  };
}
