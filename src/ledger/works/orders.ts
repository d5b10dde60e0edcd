import type { OrderMessage, OrderRecord, OrderStatus } from '../../model/order.ts';
import type { OrderKeyBinding, OrderKeyScope } from '../port/keys.ts';
import type { OrderFilter } from '../port/orders.ts';
import type { Page } from '../port/page.ts';
import type { StoredContent } from '../rules/backstops.ts';
import type { GateRow } from './gate-pages.ts';
import { isOver, PRUNED_AT_ONCE } from './keys.ts';
import { orderOfRow } from './rows.ts';
import { CLOCK, type LifeDialect, nowOf, query, type Row, type Step, type Value, type Work } from './work.ts';

/** Reads of orders. Storing them is the driver's: it is what a crowd waits for. */

export const ORDER_COLUMNS = `o.id, o.sale_id, o.item_id, i.code AS item_code, o.buyer, o.quantity, o.amount, o.currency, o.status,
  o.reason, o.created_at, o.updated_at, o.expires_at, o.version, o.revives, o.seats`;

/** So many ids in one statement. */
const IDS_PER_READ = 1000;

export function* rowsAmong(orderIds: readonly string[]): Work<Map<string, StoredContent>> {
  const ids = [...new Set(orderIds)];
  const stored = new Map<string, StoredContent>();
  for (let at = 0; at < ids.length; at += IDS_PER_READ) {
    const [found] = yield [
      query(
        `SELECT ${ORDER_COLUMNS}, o.slots, o.admitted_seats, o.fingerprint FROM orders o JOIN items i ON i.id = o.item_id WHERE o.id IN (?)`,
        ids.slice(at, at + IDS_PER_READ).map(BigInt),
      ),
    ];
    for (const row of found!.rows) {
      const order = orderOfRow(row);
      const seats = (row.admitted_seats ?? row.seats ?? '') as string;
      stored.set(order.id, { order, slots: row.slots as string, seats, fingerprint: row.fingerprint as string });
    }
  }
  return stored;
}

export function* ordersAmong(orderIds: readonly string[]): Work<Map<string, OrderRecord>> {
  const rows = yield* rowsAmong(orderIds);
  const orders = new Map<string, OrderRecord>();
  for (const id of orderIds) {
    const row = rows.get(id);
    if (row !== undefined) orders.set(id, row.order);
  }
  return orders;
}

/** Waits first for writers of their items that are writing, or whose COMMIT is on its way. */
export function* ordersAtRest(batch: readonly OrderMessage[], dialect: LifeDialect): Work<Map<string, OrderRecord>> {
  const steps = dialect.awaitWriters([...new Set(batch.map(({ itemId }) => itemId))]);
  if (steps.length > 0) yield steps;
  return yield* ordersAmong(batch.map(({ orderId }) => orderId));
}

// For drivers without a tail: everything of an order is written with it.

export function* listOrders(filter: OrderFilter, page: Page): Work<OrderRecord[]> {
  const where: string[] = [];
  const values: Value[] = [];
  const must = (condition: string, value: Value | undefined): void => {
    if (value === undefined) return;
    where.push(condition);
    values.push(value);
  };
  must('o.buyer = ?', filter.buyer);
  must('o.sale_id = ?', filter.saleId === undefined ? undefined : BigInt(filter.saleId));
  must('o.status = ?', filter.status);
  must('o.id < ?', page.before === null ? undefined : BigInt(page.before));
  const [found] = yield [
    query(
      `SELECT ${ORDER_COLUMNS} FROM orders o JOIN items i ON i.id = o.item_id
       ${where.length > 0 ? `WHERE ${where.join(' AND ')}` : ''} ORDER BY o.id DESC LIMIT ?`,
      ...values,
      page.limit,
    ),
  ];
  return found!.rows.map(orderOfRow);
}

export function* findOrderKey({ saleId, buyer, key }: OrderKeyScope): Work<OrderKeyBinding | null> {
  const [found, clock] = yield [
    query(
      'SELECT fingerprint, id, created_at FROM orders WHERE buyer = ? AND sale_id = ? AND idem_key = ?',
      buyer,
      BigInt(saleId),
      key,
    ),
    CLOCK,
  ];
  const row = found!.rows[0];
  if (row === undefined || isOver(row, nowOf(clock))) return null;
  return { fingerprint: row.fingerprint as string, orderId: row.id as string };
}

/** From here to the end of the transaction no batch with these items commits. */
export function lockItems(itemIds: readonly string[], byPrimaryKey: string): Step {
  const ids = itemIds.map(BigInt);
  return query(`SELECT id FROM items ${byPrimaryKey} WHERE id IN (?) ORDER BY id FOR UPDATE`, ids);
}

/** Forgets the keys of the next orders above the mark, up to the first young one. Returns how many orders it passed. */
export function* pruneOrderKeys(beforeMs: number): Work<number> {
  const [marks] = yield [query('SELECT order_id FROM pruned WHERE one = 1 FOR UPDATE')];
  const mark = BigInt(marks!.rows[0]!.order_id as string);
  const [orders] = yield [
    query('SELECT id, created_at FROM orders WHERE id > ? ORDER BY id LIMIT ?', mark, PRUNED_AT_ONCE),
  ];
  const young = orders!.rows.findIndex((row) => Number(row.created_at) >= beforeMs);
  const passed = young < 0 ? orders!.rows.length : young;
  if (passed === 0) return 0;
  const upTo = BigInt(orders!.rows[passed - 1]!.id as string);
  yield [
    query('UPDATE orders SET idem_key = NULL WHERE id > ? AND id <= ? AND idem_key IS NOT NULL', mark, upTo),
    query('UPDATE pruned SET order_id = ? WHERE one = 1', upTo),
  ];
  return passed;
}

export const GATE_COLUMNS = 'id, item_id, buyer, slots, seats, status, idem_key, fingerprint, created_at';

export function gateRowOf(row: Row): GateRow {
  return {
    orderId: row.id as string,
    itemId: row.item_id as string,
    buyer: row.buyer as string,
    slots: row.slots as string,
    seats: row.seats as string | null,
    status: row.status as OrderStatus,
    key: row.idem_key as string | null,
    fingerprint: row.fingerprint as string,
    boundAtMs: Number(row.created_at),
  };
}
