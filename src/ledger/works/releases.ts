import type { DueOrder } from '../port/payments.ts';
import type { Release, WaitingRelease } from '../port/releases.ts';
import { releaseOfRow } from './rows.ts';
import { pruneSeatMoves } from './seat-moves.ts';
import { ABOUT_NOW, CLOCK, type LifeDialect, nowOf, query, type Work } from './work.ts';

const SELECT = 'SELECT order_id, sale_id, item_id, buyer, units, rev, created_at FROM release_outbox';

/** Rows that one transaction forgets at most. */
const CHUNK = 500;
/** Rows of one page for a gate that is built. */
export const SINCE_PAGE = 500;

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

/** Items of the sale that have changed since these revs, with the span of revs of their releases. */
export function* itemsSince(saleId: string, revs: ReadonlyMap<string, number>): Work<ItemSpan[]> {
  const [found] = yield [query('SELECT id, rev FROM items WHERE sale_id = ? ORDER BY id', BigInt(saleId))];
  return found!.rows
    .map(({ id, rev }) => ({ itemId: id as string, above: revs.get(id as string) ?? 0, upTo: Number(rev) }))
    .filter(({ above, upTo }) => upTo > above);
}

export interface ItemSpan {
  readonly itemId: string;
  readonly above: number;
  readonly upTo: number;
}

/**
 * A page of the releases of an item; one with fewer than SINCE_PAGE is the last. The index is by sale and rev, for all items
 * together: without the span's upper end, an item that seldom changes would read the releases of one that changes all the time.
 */
export function* releasesSince(saleId: string, { itemId, above, upTo }: ItemSpan, after?: Release): Work<Release[]> {
  const next = after === undefined ? '' : 'AND (rev > ? OR order_id > ?)';
  const values = after === undefined ? [] : [after.rev, BigInt(after.orderId)];
  const [found] = yield [
    query(
      `${SELECT} WHERE sale_id = ? AND rev >= ? AND rev <= ? AND item_id = ? ${next} ORDER BY rev, order_id LIMIT ?`,
      BigInt(saleId),
      after?.rev ?? above + 1,
      upTo,
      BigInt(itemId),
      ...values,
      SINCE_PAGE,
    ),
  ];
  return found!.rows.map(releaseOfRow);
}

export function* pruneReleases(olderMs: number): Work<number> {
  const [clock] = yield [CLOCK];
  const beforeMs = nowOf(clock) - olderMs;
  const [found] = yield [
    query('SELECT order_id FROM release_outbox WHERE done_at < ? ORDER BY done_at LIMIT ?', beforeMs, CHUNK),
  ];
  const ids = found!.rows.map((row) => BigInt(row.order_id as string));
  if (ids.length === 0) return yield* pruneSeatMoves(beforeMs, CHUNK);
  yield [query('DELETE FROM release_outbox WHERE order_id IN (?)', ids)];
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
