import type { OrderMessage, OrderRecord, OrderStatus } from '../../model/order.ts';
import type { AuditNote } from './audit.ts';
import type { Page } from './page.ts';

export interface OrderLedger {
  /**
   * Stores a batch of admitted orders in one transaction and says what is stored now for each, in the same order. An order
   * that somebody placed for its buyer has its audit row in the same transaction.
   */
  commitOrders(batch: readonly OrderMessage[]): Promise<StoredOrder[]>;
  /**
   * Stores orders as rejected that no writer will decide: their admission was lost with the gate, or they are undeliverable.
   * An order that is stored already stays as it is. Returns what is stored now for each, in the same order. `note`: the audit
   * row of whoever decided it.
   */
  rejectOrders(
    batch: readonly OrderMessage[],
    reason: 'admission_lost' | 'undeliverable',
    note?: AuditNote,
  ): Promise<StoredOrder[]>;
  /** Which of these order ids are stored now. */
  storedAmong(orderIds: readonly string[]): Promise<Map<string, OrderRecord>>;
  /**
   * Which of these are stored, for use after a commit whose outcome is unknown. When it resolves, no commit of them is under
   * way, and one that arrives late has no effect. Fails while that cannot be known.
   */
  storedAtRest(batch: readonly OrderMessage[]): Promise<Map<string, OrderRecord>>;
  getOrder(orderId: string): Promise<OrderRecord | null>;
  listOrders(filter: OrderFilter, page: Page): Promise<OrderRecord[]>;
}

/** What is stored for a message now; `inserted` is false if it was stored before. */
export interface StoredOrder {
  order: OrderRecord;
  inserted: boolean;
}

export interface OrderFilter {
  saleId?: string;
  status?: OrderStatus;
  buyer?: string;
}
