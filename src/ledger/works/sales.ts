import type { ItemKind, ItemRecord, NewSale, SalePatch, SaleRecord, SaleStamp } from '../../model/sale.ts';
import type { SaleSnapshot } from '../../model/snapshot.ts';
import type { Page } from '../port/page.ts';
import type { AdminCall, GateTask, Rebuilding, SaleChange, SaleIds } from '../port/sales.ts';
import { byId } from '../rules/backstops.ts';
import {
  type ChangeableSale,
  closed,
  type Decided,
  patched,
  paused,
  type Refused,
  restocked,
} from '../rules/sale-changes.ts';
import { auditStep, rebuiltNotes } from './audit.ts';
import { type GateRow, snapshotOf } from './gate-pages.ts';
import { bindKey, repeatOf, selectKey } from './keys.ts';
import { CLOCK, type LifeDialect, nowOf, query, type Result, type Row, type Step, type Work, Writes } from './work.ts';

/** Sales and their items. Every change of a sale locks its row first, so that two of them cannot mix. */

const SELECT_SALES = `SELECT id, name, opens_at, closes_at, per_buyer, per_buyer_max, pay_within, paused, closed, version,
  created_at FROM sales`;
const SELECT_ITEMS = `SELECT sale_id, id, code, name, amount, currency, kind, total, reserved, sold, blocked, epoch, rev
  FROM items`;

function itemsOf(saleIds: readonly string[]): Step {
  return query(`${SELECT_ITEMS} WHERE sale_id IN (?) ORDER BY position`, saleIds.map(BigInt));
}

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

export function* createSale(sale: NewSale & SaleIds, call: AdminCall, dialect: LifeDialect): Work<SaleChange> {
  const [clock, bound] = yield [CLOCK, ...keyOf(call)];
  const nowMs = nowOf(clock);
  const repeated = bound === undefined ? null : repeatOf(call, bound, nowMs);
  if (repeated !== null) return repeated;
  const writes = new Writes();
  const { id, name, opensAtMs, closesAtMs, perBuyer, payWithinSeconds } = sale;
  writes.addRows({
    do: 'insert',
    table: 'sales',
    columns: [
      'id',
      'name',
      'opens_at',
      'closes_at',
      'per_buyer',
      'per_buyer_max',
      'pay_within',
      'created_at',
      'updated_at',
    ],
    rows: [[BigInt(id), name, opensAtMs, closesAtMs, perBuyer, perBuyer, payWithinSeconds, nowMs, nowMs]],
  });
  writes.addRows({
    do: 'insert',
    table: 'items',
    columns: ['id', 'sale_id', 'position', 'code', 'name', 'amount', 'currency', 'kind', 'total'],
    rows: sale.items.map(({ code, name, price, stock }, position) => [
      BigInt(sale.itemIds[position]!),
      BigInt(id),
      position,
      code,
      name,
      price.amount,
      price.currency,
      'counted',
      stock,
    ]),
  });
  yield* writes.done();
  return yield* concluded(id, { action: 'sale.create', detail: { name } }, call, bound, nowMs, dialect);
}

export function patchSale(
  saleId: string,
  patch: SalePatch,
  version: number,
  call: AdminCall,
  dialect: LifeDialect,
): Work<SaleChange> {
  return changed(saleId, null, (sale) => patched(sale, patch, version), call, dialect);
}

export function addStock(
  saleId: string,
  itemCode: string,
  add: number,
  call: AdminCall,
  dialect: LifeDialect,
): Work<SaleChange> {
  return changed(saleId, itemCode, (sale, item) => restocked(sale, item, add), call, dialect);
}

export function setPaused(saleId: string, on: boolean, call: AdminCall, dialect: LifeDialect): Work<SaleChange> {
  return changed(saleId, null, (sale) => paused(sale, on), call, dialect);
}

export function closeSale(saleId: string, call: AdminCall, dialect: LifeDialect): Work<SaleChange> {
  return changed(saleId, null, closed, call, dialect);
}

function keyOf({ keyed }: AdminCall): Step[] {
  return keyed === null ? [] : [selectKey(keyed)];
}

/** `itemCode`: the item that the rule is about; it is locked and read. A refusal writes nothing, not even its key. */
function* changed(
  saleId: string,
  itemCode: string | null,
  rule: (sale: SaleRecord, item: ItemRecord | null) => Refused | Decided,
  call: AdminCall,
  dialect: LifeDialect,
): Work<SaleChange> {
  const [sales, items, clock, bound] = yield [
    query(`${SELECT_SALES} WHERE id = ? ${dialect.forUpdate}`, BigInt(saleId)),
    itemsOf([saleId]),
    CLOCK,
    ...keyOf(call),
  ];
  const nowMs = nowOf(clock);
  const [sale] = recordsOf(sales!, items!, nowMs);
  if (sale === undefined) return { outcome: 'not_found' };
  const repeated = bound === undefined ? null : repeatOf(call, bound, nowMs);
  if (repeated !== null) return repeated;
  const decided = rule(sale, itemCode === null ? null : yield* lockedItem(sale, itemCode, dialect));
  if (decided.outcome !== 'decided') return decided;
  const writes = new Writes();
  if (decided.sale !== null) {
    const next = { ...sale, ...decided.sale };
    const everMax = Math.max(Number(sales!.rows[0]!.per_buyer_max), next.perBuyer);
    writes.add(saleUpdate(next, everMax, sale.version, nowMs), 1);
  }
  if (decided.stock !== undefined) {
    const { itemId, total } = decided.stock;
    writes.add(query('UPDATE items SET total = ?, rev = rev + 1 WHERE id = ?', total, BigInt(itemId)), 1);
  }
  yield* writes.done();
  return yield* concluded(saleId, decided, call, bound, nowMs, dialect);
}

/** Writers of orders change its counts without the lock of the sale. */
function* lockedItem(sale: SaleRecord, itemCode: string, { forUpdate }: LifeDialect): Work<ItemRecord | null> {
  const item = sale.items.find(({ code }) => code === itemCode);
  if (item === undefined) return null;
  const [found] = yield [query(`${SELECT_ITEMS} WHERE id = ? ${forUpdate}`, BigInt(item.id))];
  return itemOfRow(found!.rows[0]!);
}

function saleUpdate(next: ChangeableSale & { id: string }, perBuyerMax: number, version: number, nowMs: number): Step {
  return query(
    `UPDATE sales SET name = ?, opens_at = ?, closes_at = ?, per_buyer = ?, per_buyer_max = ?, pay_within = ?, paused = ?,
       closed = ?, version = version + 1, updated_at = ? WHERE id = ? AND version = ?`,
    next.name,
    next.opensAtMs,
    next.closesAtMs,
    next.perBuyer,
    perBuyerMax,
    next.payWithinSeconds,
    next.paused ? 1 : 0,
    next.closed ? 1 : 0,
    nowMs,
    BigInt(next.id),
    version,
  );
}

/** What goes with every change: its audit row, its task for the gate, its key with the answer. */
function* concluded(
  saleId: string,
  { action, detail }: Pick<Decided, 'action' | 'detail'>,
  call: AdminCall,
  bound: Result | undefined,
  nowMs: number,
  { gateTasks }: LifeDialect,
): Work<SaleChange> {
  const sale = (yield* getSale(saleId))!;
  const answer = call.answer(sale);
  const { auditId, by, keyed } = call;
  const writes = new Writes();
  writes.addRows(auditStep([{ auditId, by, action, subject: `sale:${saleId}`, detail }], nowMs));
  if (gateTasks) {
    const rows = [[BigInt(auditId), BigInt(saleId), nowMs]];
    writes.addRows({ do: 'insert', table: 'gate_tasks', columns: ['audit_id', 'sale_id', 'created_at'], rows });
  }
  if (keyed !== null) writes.add(bindKey({ keyed, answer }, bound!, nowMs), 1);
  yield* writes.last();
  return { outcome: 'changed', sale, answer };
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
  // A sale's items never change.
  const [found] = yield [query('SELECT id FROM items WHERE sale_id = ?', BigInt(saleId))];
  if (found!.rows.length === 0) return null;
  const ids = found!.rows
    .map(({ id }) => id as string)
    .sort(byId)
    .map(BigInt);
  const [items] = yield [
    query(`SELECT id, epoch, rev FROM items ${byPrimaryKey} WHERE id IN (?) ORDER BY id ${forUpdate}`, ids),
  ];
  yield [
    {
      do: 'update',
      table: 'items',
      match: ['id'],
      set: ['epoch', 'rev'],
      rows: items!.rows.map(({ id, epoch, rev }) => [
        BigInt(id as string),
        Math.max(Number(epoch), above) + 1,
        Number(rev) + 1,
      ]),
      expected: ids.length,
    },
  ];
  const [sales, raised, clock] = yield [
    query(`${SELECT_SALES} WHERE id = ?`, BigInt(saleId)),
    itemsOf([saleId]),
    CLOCK,
  ];
  const nowMs = nowOf(clock);
  const snapshot = snapshotOf(recordsOf(sales!, raised!, nowMs)[0]!, nowMs, readPage);
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
function recordsOf(sales: Result, items: Result, readAtMs: number): SaleRecord[] {
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
    items: bySale.get(row.id as string) ?? [],
  }));
}

function itemOfRow(row: Row): ItemRecord {
  return {
    id: row.id as string,
    code: row.code as string,
    name: row.name as string,
    price: { amount: Number(row.amount), currency: row.currency as string },
    kind: row.kind as ItemKind,
    total: Number(row.total),
    reserved: Number(row.reserved),
    sold: Number(row.sold),
    blocked: Number(row.blocked),
    epoch: Number(row.epoch),
    rev: Number(row.rev),
  };
}
