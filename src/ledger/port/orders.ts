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
   * Stores orders as rejected that will never be decided otherwise: lost with the gate, or undeliverable. An order that
   * is stored already stays as it is. Says what is stored now for each, in the same order. `note`: whose decision it was.
   */
  rejectOrders(
    batch: readonly OrderMessage[],
    reason: 'admission_lost' | 'undeliverable',
    note?: AuditNote,
  ): Promise<StoredOrder[]>;
  /** Which of these order ids are stored now. */
  storedAmong(orderIds: readonly string[]): Promise<Map<string, OrderRecord>>;
  /**
   * Which of these are stored, asked after a commit whose outcome is unknown: no commit of them can be under way any more,
   * and one that arrives late has no effect. Fails while that cannot be said.
   */
  storedAtRest(batch: readonly OrderMessage[]): Promise<Map<string, OrderRecord>>;
  getOrder(orderId: string): Promise<OrderRecord | null>;
  listOrders(filter: OrderFilter, page: Page): Promise<OrderRecord[]>;
}

/** What stands stored for a message now; `inserted` is false for a repeat of a message stored before. */
export interface StoredOrder {
  order: OrderRecord;
  inserted: boolean;
}

export interface OrderFilter {
  saleId?: string;
  status?: OrderStatus;
  buyer?: string;
}
