import type { ItemPatch, ItemRecord, NewItem, NewSale, SalePatch, SaleRecord } from '../../model/sale.ts';
import type { AuditNote } from '../port/audit.ts';
import type { AdminCall, SaleChange, SaleDeleted, SaleIds } from '../port/sales.ts';
import { byId } from '../rules/backstops.ts';
import {
  type ChangeableSale,
  closed,
  type Decided,
  epochOf,
  patched,
  patchedItem,
  paused,
  type Refused,
  restocked,
  withItem,
} from '../rules/sale-changes.ts';
import { auditStep } from './audit.ts';
import { addItems, cellsOfDescribed, DESCRIBED, itemsOf, lockedItem, seatMaps, textsStep } from './items.ts';
import { bindKey, repeatOf, selectKey } from './keys.ts';
import { getSale, recordsOf, SELECT_SALES } from './sales.ts';
import {
  CLOCK,
  type InsertStep,
  type LifeDialect,
  nowOf,
  query,
  type Result,
  type Step,
  type Work,
  Writes,
} from './work.ts';

/**
 * Changes of sales and of their items. Each locks the row of its sale first, so that two of them cannot mix; its key, its audit row and
 * its answer go with it.
 */

/** The epoch of an item that is new with its sale: no gate was ever built for it. */
const FIRST_EPOCH = 1;

export function* createSale(sale: NewSale & SaleIds, call: AdminCall, dialect: LifeDialect): Work<SaleChange> {
  const [clock, bound] = yield [CLOCK, ...keyOf(call)];
  const nowMs = nowOf(clock);
  const repeated = bound === undefined ? null : repeatOf(call, bound, nowMs);
  if (repeated !== null) return repeated;
  const writes = new Writes();
  const { id, name, opensAtMs, closesAtMs, perBuyer, payWithinSeconds, startsAtMs, venue } = sale;
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
      'starts_at',
      'venue',
      ...DESCRIBED,
    ],
    rows: [
      [
        ...[BigInt(id), name, opensAtMs, closesAtMs, perBuyer, perBuyer, payWithinSeconds, nowMs, nowMs],
        ...[startsAtMs ?? null, venue ?? null, ...cellsOfDescribed(sale)],
      ],
    ],
  });
  const items = sale.items.map((item, position) => ({
    id: sale.itemIds[position]!,
    position,
    epoch: FIRST_EPOCH,
    item,
  }));
  addItems(writes, id, items);
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

/** A seat map that fits the rules of the model may yet clash with the seats of the sale's other items. */
export function* addItem(
  saleId: string,
  item: NewItem & { id: string },
  call: AdminCall,
  dialect: LifeDialect,
): Work<SaleChange> {
  const begun = yield* begin(saleId, call, dialect);
  if ('outcome' in begun) return begun;
  const { sale, nowMs, bound } = begun;
  const maps = item.seats === undefined ? [] : (yield* seatMaps(saleId)).values();
  const decided = withItem(sale, item, maps);
  if (decided.outcome !== 'decided') return decided;
  const writes = new Writes();
  addChange(writes, begun, decided);
  // The epoch of the others: the sale's gate admits orders of all items with one epoch.
  const epoch = epochOf(sale);
  const [last] = yield [query('SELECT MAX(position) AS position FROM items WHERE sale_id = ?', BigInt(saleId))];
  addItems(writes, saleId, [{ id: item.id, position: Number(last!.rows[0]!.position) + 1, epoch, item }]);
  yield* writes.done();
  return yield* concluded(saleId, decided, call, bound, nowMs, dialect);
}

export function patchItem(
  saleId: string,
  itemCode: string,
  patch: ItemPatch,
  version: number,
  call: AdminCall,
  dialect: LifeDialect,
): Work<SaleChange> {
  return changed(saleId, itemCode, (sale, item) => patchedItem(sale, item, patch, version), call, dialect);
}

/**
 * `epoch`: the one that the caller has raised the items to, after which it saw that nothing is in the pipe. Another one since may
 * have a gate that has admitted orders.
 *
 * Once its items are locked and no writer is on its way to them, no order of the sale can come: a writer that began before finds
 * no item to take units of, and rolls back.
 */
export function* deleteSale(
  saleId: string,
  epoch: number,
  { auditId, by }: Pick<AuditNote, 'auditId' | 'by'>,
  dialect: LifeDialect,
): Work<SaleDeleted> {
  const [sales, items, clock] = yield [
    query(`SELECT id, name FROM sales WHERE id = ? ${dialect.forUpdate}`, BigInt(saleId)),
    query('SELECT id, epoch FROM items WHERE sale_id = ?', BigInt(saleId)),
    CLOCK,
  ];
  if (sales!.rows.length === 0) return { outcome: 'not_found' };
  if (items!.rows.some((item) => Number(item.epoch) !== epoch)) return { outcome: 'rebuilt' };
  const itemIds = items!.rows.map(({ id }) => id as string).sort(byId);
  const waits = dialect.awaitWriters(itemIds);
  if (waits.length > 0) yield waits;
  const [orders] = yield [query('SELECT id FROM orders WHERE sale_id = ? LIMIT 1', BigInt(saleId))];
  if (orders!.rows.length > 0) return { outcome: 'sale_has_orders' };
  const ids = itemIds.map(BigInt);
  const nowMs = nowOf(clock);
  const writes = new Writes();
  for (const table of ['item_texts', 'seat_maps', 'seat_claims']) {
    writes.add(query(`DELETE FROM ${table} WHERE item_id IN (?)`, ids), null);
  }
  writes.add(query('DELETE FROM items WHERE sale_id = ?', BigInt(saleId)), ids.length);
  writes.add(query('DELETE FROM sales WHERE id = ?', BigInt(saleId)), 1);
  const { name } = sales!.rows[0]!;
  writes.addRows(
    auditStep([{ auditId, by, action: 'sale.delete', subject: `sale:${saleId}`, detail: { name } }], nowMs),
  );
  if (dialect.gateTasks) writes.addRows(taskStep(auditId, saleId, nowMs));
  yield* writes.last();
  return { outcome: 'deleted' };
}

function keyOf({ keyed }: AdminCall): Step[] {
  return keyed === null ? [] : [selectKey(keyed)];
}

/** A change that may go on: its sale is locked and read. */
export interface Begun {
  readonly sale: SaleRecord;
  /** The highest limit that the sale ever had. */
  readonly perBuyerMax: number;
  readonly nowMs: number;
  /** What was found of its key. */
  readonly bound: Result | undefined;
}

export function* begin(
  saleId: string,
  call: AdminCall,
  { forUpdate }: LifeDialect,
): Work<Begun | Exclude<SaleChange, { outcome: 'changed' }>> {
  const [sales, items, clock, bound] = yield [
    query(`${SELECT_SALES} WHERE id = ? ${forUpdate}`, BigInt(saleId)),
    itemsOf([saleId]),
    CLOCK,
    ...keyOf(call),
  ];
  const nowMs = nowOf(clock);
  const [sale] = recordsOf(sales!, items!, nowMs);
  if (sale === undefined) return { outcome: 'not_found' };
  const repeated = bound === undefined ? null : repeatOf(call, bound, nowMs);
  return repeated ?? { sale, perBuyerMax: Number(sales!.rows[0]!.per_buyer_max), nowMs, bound };
}

/** `itemCode`: the item that the rule is about; it is locked and read. A refusal writes nothing, not even its key. */
function* changed(
  saleId: string,
  itemCode: string | null,
  rule: (sale: SaleRecord, item: ItemRecord | null) => Refused | Decided,
  call: AdminCall,
  dialect: LifeDialect,
): Work<SaleChange> {
  const begun = yield* begin(saleId, call, dialect);
  if ('outcome' in begun) return begun;
  const { sale, nowMs, bound } = begun;
  const decided = rule(sale, itemCode === null ? null : yield* lockedItem(sale, itemCode, dialect));
  if (decided.outcome !== 'decided') return decided;
  const writes = new Writes();
  addChange(writes, begun, decided);
  yield* writes.done();
  return yield* concluded(saleId, decided, call, bound, nowMs, dialect);
}

function addChange(writes: Writes, { sale, perBuyerMax, nowMs }: Begun, decided: Decided): void {
  if (decided.sale !== null) {
    const next = { ...sale, ...decided.sale };
    writes.add(saleUpdate(next, Math.max(perBuyerMax, next.perBuyer), sale.version, nowMs), 1);
  }
  if (decided.stock !== undefined) {
    const { itemId, total } = decided.stock;
    writes.add(query('UPDATE items SET total = ?, rev = rev + 1 WHERE id = ?', total, BigInt(itemId)), 1);
  }
  if (decided.item === undefined) return;
  const { id, name, price, onSale } = decided.item;
  const values = [name, price.amount, price.currency, onSale ? 1 : 0, BigInt(id)];
  // MySQL counts only rows that are different now, so that a change of the texts alone changes none here.
  writes.add(query('UPDATE items SET name = ?, amount = ?, currency = ?, on_sale = ? WHERE id = ?', ...values), null);
  writes.add(textsStep(id, cellsOfDescribed(decided.item)), null);
}

function saleUpdate(next: ChangeableSale & { id: string }, perBuyerMax: number, version: number, nowMs: number): Step {
  return query(
    `UPDATE sales SET name = ?, opens_at = ?, closes_at = ?, per_buyer = ?, per_buyer_max = ?, pay_within = ?, paused = ?,
       closed = ?, items_epoch = ?, starts_at = ?, venue = ?, description = ?, image = ?, metadata = ?, version = version + 1,
       updated_at = ? WHERE id = ? AND version = ?`,
    next.name,
    next.opensAtMs,
    next.closesAtMs,
    next.perBuyer,
    perBuyerMax,
    next.payWithinSeconds,
    next.paused ? 1 : 0,
    next.closed ? 1 : 0,
    next.itemsEpoch,
    next.startsAtMs ?? null,
    next.venue ?? null,
    ...cellsOfDescribed(next),
    nowMs,
    BigInt(next.id),
    version,
  );
}

/** What goes with every change: its audit row, its task for the gate, its key with the answer. */
export function* concluded(
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
  if (gateTasks) writes.addRows(taskStep(auditId, saleId, nowMs));
  if (keyed !== null) writes.add(bindKey({ keyed, answer }, bound!, nowMs), 1);
  yield* writes.last();
  return { outcome: 'changed', sale, answer };
}

function taskStep(auditId: string, saleId: string, nowMs: number): InsertStep {
  const rows = [[BigInt(auditId), BigInt(saleId), nowMs]];
  return { do: 'insert', table: 'gate_tasks', columns: ['audit_id', 'sale_id', 'created_at'], rows };
}
