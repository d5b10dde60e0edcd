import type { DueOrder } from '../port/payments.ts';
import type { Release, WaitingRelease } from '../port/releases.ts';
import { releaseOfRow } from './rows.ts';
import { ABOUT_NOW, CLOCK, type LifeDialect, nowOf, query, type Work } from './work.ts';

const SELECT = 'SELECT order_id, sale_id, item_id, buyer, units, rev, created_at FROM release_outbox';

/** So many are forgotten in one transaction. */
const CHUNK = 500;

export function* releases(limit: number, olderMs: number, after?: Release): Work<WaitingRelease[]> {
  const [clock] = yield [CLOCK];
  const nowMs = nowOf(clock);
  const next = after === undefined ? '' : 'AND (created_at > ? OR (created_at = ? AND order_id > ?))';
  const values = after === undefined ? [] : [after.createdAtMs, after.createdAtMs, BigInt(after.orderId)];
  const [found] = yield [
    query(
      `${SELECT} WHERE done_at IS NULL AND created_at <= ? ${next} ORDER BY created_at, order_id LIMIT ?`,
      nowMs - olderMs,
      ...values,
      limit,
    ),
  ];
  return found!.rows.map(releaseOfRow).map((one) => ({ ...one, waitedMs: nowMs - one.createdAtMs }));
}

/** One statement, which needs no transaction around it. */
export function* released(orderIds: readonly string[]): Work<void> {
  if (orderIds.length === 0) return;
  const [clock] = yield [ABOUT_NOW];
  yield [
    query(
      'UPDATE release_outbox SET done_at = ? WHERE order_id IN (?) AND done_at IS NULL',
      nowOf(clock),
      orderIds.map(BigInt),
    ),
  ];
}

export function* releasesSince(saleId: string, revs: ReadonlyMap<string, number>): Work<Release[]> {
  const above = revs.size === 0 ? 0 : Math.min(...revs.values());
  const [found] = yield [
    query(`${SELECT} WHERE sale_id = ? AND rev > ? ORDER BY rev, order_id`, BigInt(saleId), above),
  ];
  return found!.rows.map(releaseOfRow).filter(({ itemId, rev }) => rev > (revs.get(itemId) ?? 0));
}

export function* pruneReleases(olderMs: number): Work<number> {
  const [clock] = yield [CLOCK];
  const beforeMs = nowOf(clock) - olderMs;
  const [found] = yield [
    query('SELECT order_id FROM release_outbox WHERE done_at < ? ORDER BY done_at LIMIT ?', beforeMs, CHUNK),
  ];
  const ids = found!.rows.map((row) => BigInt(row.order_id as string));
  if (ids.length > 0) yield [query('DELETE FROM release_outbox WHERE order_id IN (?)', ids)];
  return ids.length;
}

export function* dueOrders(limit: number, after: DueOrder | undefined, { due }: LifeDialect): Work<DueOrder[]> {
  const [clock] = yield [CLOCK];
  const next = after === undefined ? '' : `AND ${due.order} >= ? AND (${due.order} > ? OR o.id > ?)`;
  const values = after === undefined ? [] : [after.expiresAtMs, after.expiresAtMs, BigInt(after.orderId)];
  const [found] = yield [
    query(
      `SELECT o.id AS due_id, o.sale_id, o.buyer, o.expires_at, p.id AS attempt_id
       FROM ${due.from} LEFT JOIN payments p ON p.order_id = o.id AND p.state = 'open'
       WHERE ${due.where} ${next} ORDER BY ${due.order}, o.id LIMIT ?`,
      nowOf(clock),
      ...values,
      limit,
    ),
  ];
  return found!.rows.map((row) => ({
    orderId: row.due_id as string,
    saleId: row.sale_id as string,
    buyer: row.buyer as string,
    expiresAtMs: Number(row.expires_at),
    paying: row.attempt_id !== null,
  }));
}
