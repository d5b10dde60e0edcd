import type { ItemRecord, SaleRecord, SaleStamp } from '../../model/sale.ts';
import type { SaleSnapshot } from '../../model/snapshot.ts';
import type { Page } from '../port/page.ts';
import type { GateTask, Rebuilding } from '../port/sales.ts';
import { byId } from '../rules/backstops.ts';
import { auditStep, rebuiltNotes } from './audit.ts';
import { type GateRow, snapshotOf } from './gate-pages.ts';
import { describedOf, itemOfRow, itemsOf, seatsToGate } from './items.ts';
import { CLOCK, type LifeDialect, nowOf, query, type Result, type Work, Writes } from './work.ts';

/** Sales as they are read, and the snapshots that gates are built from. What changes a sale is in sale-changes.ts. */

export const SELECT_SALES = `SELECT id, name, opens_at, closes_at, per_buyer, per_buyer_max, pay_within, paused, closed, version,
  created_at, description, image, metadata, starts_at, venue, items_epoch FROM sales`;

export function* getSale(saleId: string): Work<SaleRecord | null> {
  const [sales, items, clock] = yield [query(`${SELECT_SALES} WHERE id = ?`, BigInt(saleId)), itemsOf([saleId]), CLOCK];
  return recordsOf(sales!, items!, nowOf(clock))[0] ?? null;
}

export function* listSales({ limit, before }: Page): Work<SaleRecord[]> {
  const [sales] = yield [
    before === null
      ? query(`${SELECT_SALES} ORDER BY id DESC LIMIT ?`, limit)
      : query(`${SELECT_SALES} WHERE id < ? ORDER BY id DESC LIMIT ?`, BigInt(before), limit),
  ];
  if (sales!.rows.length === 0) return [];
  const [items, clock] = yield [itemsOf(sales!.rows.map(({ id }) => id as string)), CLOCK];
  return recordsOf(sales!, items!, nowOf(clock));
}

export function* saleStamps(saleIds: readonly string[]): Work<Map<string, SaleStamp>> {
  if (saleIds.length === 0) return new Map();
  const [found] = yield [
    query(
      `SELECT s.id, s.version, COALESCE(MAX(i.epoch), 0) AS epoch, COALESCE(SUM(i.rev), 0) AS rev
       FROM sales s LEFT JOIN items i ON i.sale_id = s.id WHERE s.id IN (?) GROUP BY s.id, s.version`,
      saleIds.map(BigInt),
    ),
  ];
  return new Map(
    found!.rows.map(({ id, version, epoch, rev }) => [
      id as string,
      { epoch: Number(epoch), rev: Number(rev), version: Number(version) },
    ]),
  );
}

/** Waits for every change under way: each locks the sale's row first. */
export function* saleAtRest(saleId: string, { forUpdate }: LifeDialect): Work<SaleRecord | null> {
  yield [query(`SELECT id FROM sales WHERE id = ? ${forUpdate}`, BigInt(saleId))];
  return yield* getSale(saleId);
}

export function* openSaleIds(): Work<string[]> {
  const [clock] = yield [CLOCK];
  const [found] = yield [query('SELECT id FROM sales WHERE closed = 0 AND closes_at > ? ORDER BY id', nowOf(clock))];
  return found!.rows.map(({ id }) => id as string);
}

/**
 * Raises the epoch of the items and reads the sale while they are locked. Once this commits, no order of an older epoch can
 * be stored as reserved, and so the pages that are read afterwards contain every order the new gate must hold.
 */
export function* rebuildSnapshot(
  saleId: string,
  above: number,
  note: Rebuilding | undefined,
  readPage: (afterId: string) => Promise<GateRow[]>,
  { byPrimaryKey, forUpdate }: LifeDialect,
): Work<SaleSnapshot | null> {
  // Under the lock of the sale no item is added: one that is missing here would keep its old epoch.
  const [, found] = yield [
    query(`SELECT id FROM sales WHERE id = ? ${forUpdate}`, BigInt(saleId)),
    query('SELECT id FROM items WHERE sale_id = ?', BigInt(saleId)),
  ];
  if (found!.rows.length === 0) return null;
  const ids = found!.rows
    .map(({ id }) => id as string)
    .sort(byId)
    .map(BigInt);
  const [items] = yield [
    query(`SELECT id, epoch, rev FROM items ${byPrimaryKey} WHERE id IN (?) ORDER BY id ${forUpdate}`, ids),
  ];
  const epoch = Math.max(above, ...items!.rows.map((row) => Number(row.epoch))) + 1;
  yield [
    {
      do: 'update',
      table: 'items',
      match: ['id'],
      set: ['epoch', 'rev'],
      rows: items!.rows.map(({ id, rev }) => [BigInt(id as string), epoch, Number(rev) + 1]),
      expected: ids.length,
    },
  ];
  const [sales, raised, clock] = yield [
    query(`${SELECT_SALES} WHERE id = ?`, BigInt(saleId)),
    itemsOf([saleId]),
    CLOCK,
  ];
  const nowMs = nowOf(clock);
  const sale = recordsOf(sales!, raised!, nowMs)[0]!;
  const snapshot = snapshotOf(sale, yield* seatsToGate(sale.items), nowMs, readPage);
  const writes = new Writes();
  writes.addRows(auditStep(rebuiltNotes(snapshot, note), nowMs));
  yield* writes.last();
  return snapshot;
}

export function* unfinishedTasks(olderMs: number, { gateTasks }: LifeDialect): Work<GateTask[]> {
  if (!gateTasks) return [];
  const [clock] = yield [CLOCK];
  const [found] = yield [
    query('SELECT audit_id, sale_id FROM gate_tasks WHERE created_at < ? ORDER BY audit_id', nowOf(clock) - olderMs),
  ];
  return found!.rows.map((row) => ({ auditId: row.audit_id as string, saleId: row.sale_id as string }));
}

export function* finishTask(auditId: string, { gateTasks }: LifeDialect): Work<void> {
  if (gateTasks) yield [query('DELETE FROM gate_tasks WHERE audit_id = ?', BigInt(auditId))];
}

/** In the order of the rows of `sales`. */
export function recordsOf(sales: Result, items: Result, readAtMs: number): SaleRecord[] {
  const bySale = new Map<string, ItemRecord[]>();
  for (const row of items.rows) {
    const mine = bySale.get(row.sale_id as string);
    if (mine === undefined) bySale.set(row.sale_id as string, [itemOfRow(row)]);
    else mine.push(itemOfRow(row));
  }
  return sales.rows.map((row) => ({
    id: row.id as string,
    name: row.name as string,
    opensAtMs: Number(row.opens_at),
    closesAtMs: Number(row.closes_at),
    perBuyer: Number(row.per_buyer),
    payWithinSeconds: Number(row.pay_within),
    paused: Number(row.paused) === 1,
    closed: Number(row.closed) === 1,
    version: Number(row.version),
    createdAtMs: Number(row.created_at),
    readAtMs,
    ...describedOf(row),
    ...(row.starts_at !== null && { startsAtMs: Number(row.starts_at) }),
    ...(row.venue !== null && { venue: row.venue as string }),
    itemsEpoch: Number(row.items_epoch),
    items: bySale.get(row.id as string) ?? [],
  }));
}
