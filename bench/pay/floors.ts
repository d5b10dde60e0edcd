import { composeId, ID_EPOCH_MS } from '../../src/base/ids.ts';

export const ITEM_ID = '2';
export const PRICE = { amount: 8000, currency: 'CNY' };

/** A baseline that pays reserved orders of one item, on the ledger's own tables. */
export interface PayFloors {
  /**
   * One transaction for one order, as the ticket document (docs/concepts/sources.md, 002) has it: SELECT … FOR UPDATE, conditional UPDATE
   * of the order, INSERT of the payment, conditional UPDATE of the item. The hot row comes last, which is fastest.
   */
  payOne(orderId: string): Promise<void>;
  /**
   * The same in two transactions, as a payment through a provider needs it and `pay` does it: the attempt is committed before
   * the provider would be called. (SELECT … FOR UPDATE, INSERT; then SELECT … FOR UPDATE and the three UPDATEs.)
   */
  payInTwo(orderId: string): Promise<void>;
  /** `payOne` without reading the order first, in the fewest possible round trips: two. */
  payOneBlindly(orderId: string): Promise<void>;
  /** The rows that `confirm` writes for these orders, in one transaction, without any check. */
  confirmAll(orderIds: readonly string[]): Promise<void>;
  /** The rows that `pay` writes for these orders, in two transactions: the attempts, and then the moves with their captures. */
  payAll(orderIds: readonly string[]): Promise<void>;
  end(): Promise<void>;
}

let drawn = 2 ** 31;

/** An id like the ledger's own, so that rows are appended like ours, from a range that the ledger does not use. */
export function freshId(): string {
  return composeId(Math.floor((Date.now() - ID_EPOCH_MS) / 1000), drawn++);
}

export function detailOf(paymentId: string): string {
  return JSON.stringify({ from: 'reserved', to: 'paid', attempt: paymentId, provider: 'bare' });
}

/** Guards against a baseline that does nothing, which would be the fastest. */
export function must(right: boolean): void {
  if (!right) throw new Error('a baseline found a row that is not as it should be');
}
