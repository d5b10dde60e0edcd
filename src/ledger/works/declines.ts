import type { PaymentAttempt } from '../../model/payment.ts';
import { DECLINED_MAX } from '../port/payments.ts';
import type { Audited } from './audit.ts';
import { auditStep } from './audit.ts';
import { CLOCK, type LifeDialect, nowOf, query, type Step, type Work, Writes } from './work.ts';

/**
 * Declined payments, counted for an order and its buyer. A row is written when a payment is declined and read when the next
 * one is opened, so a buyer whose card works costs nothing. Rows that no longer count are deleted with the same buyer's next
 * decline, so that a read never covers more than that buyer's last 24 hours.
 */
export function declineSteps({ id, orderId }: PaymentAttempt, nowMs: number): Step[] {
  return [
    query(
      'DELETE FROM declines WHERE buyer = (SELECT buyer FROM orders WHERE id = ?) AND "at" <= ?',
      BigInt(orderId),
      nowMs - DECLINED_MAX.withinMs,
    ),
    query(
      `INSERT INTO declines (attempt_id, order_id, buyer, "at") SELECT p.id, o.id, o.buyer, p.updated_at
       FROM payments p JOIN orders o ON o.id = p.order_id WHERE p.id = ?`,
      BigInt(id),
    ),
  ];
}

export function* unblockPayments(orderId: string, { by, auditId }: Audited, { forUpdate }: LifeDialect): Work<boolean> {
  const [found, clock] = yield [
    query(
      `SELECT attempt_id, order_id, lifted FROM declines WHERE buyer = (SELECT buyer FROM orders WHERE id = ?) ${forUpdate}`,
      BigInt(orderId),
    ),
    CLOCK,
  ];
  const ofOrder = found!.rows.filter((row) => row.order_id === orderId);
  const ofBuyer = found!.rows.filter((row) => Number(row.lifted) === 0);
  if (ofOrder.length === 0 && ofBuyer.length === 0) return false;
  const writes = new Writes();
  const idsOf = (rows: typeof ofOrder) => rows.map((row) => BigInt(row.attempt_id!));
  // Those of the buyer's other orders still count there.
  if (ofBuyer.length > 0) {
    writes.add(query('UPDATE declines SET lifted = 1 WHERE attempt_id IN (?)', idsOf(ofBuyer)), null);
  }
  if (ofOrder.length > 0) {
    writes.add(query('DELETE FROM declines WHERE attempt_id IN (?)', idsOf(ofOrder)), null);
  }
  const detail = { declined: { order: ofOrder.length, buyer: ofBuyer.length } };
  const entry = { auditId, by, action: 'payment.unblock', subject: `order:${orderId}`, detail };
  writes.addRows(auditStep([entry], nowOf(clock)));
  yield* writes.last();
  return true;
}
