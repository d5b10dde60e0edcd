import { invariant } from '../../base/errors.ts';
import type { OrderMessage, OrderRecord } from '../../model/order.ts';
import type { AdminCall, SaleChange } from '../port/sales.ts';
import {
  BLOCKED_AT_ONCE_MAX,
  type BlockedSeats,
  type NewSeats,
  type SeatMove,
  type SeatsMoved,
  type SeatsOfItem,
} from '../port/seats.ts';
import { byId } from '../rules/backstops.ts';
import {
  decideBlocking,
  decideReseating,
  HOUSE,
  mustBeSeats,
  seatPlace,
  seatsText,
  type Takers,
} from '../rules/seats.ts';
import { auditStep } from './audit.ts';
import { eventStep } from './events.ts';
import { type ItemFacts, OrderBatch, raiseFence } from './order-batch.ts';
import { begin, concluded } from './sale-changes.ts';
import { seatMoveStep } from './seat-moves.ts';
import { type Cells, type InsertStep, type LifeDialect, query, type Step, type Work, Writes } from './work.ts';

/**
 * Seats of the house, and orders that change their seats. Both lock the item's row before they write a claim. A claim that
 * somebody else has written since the claims were read is in the way of the insert, and the work starts again.
 */

/** Orders that are not yet in the table (SQLite). */
interface Tail {
  takersOf(itemId: string, seats: readonly number[]): readonly (readonly [seat: number, orderId: string])[];
}

const CLAIM = ['item_id', 'seat', 'order_id'];

function claimsOf(itemId: string, seats: readonly number[], orderId: string): Cells[] {
  return seats.map((seat) => [BigInt(itemId), seat, BigInt(orderId)]);
}

function takeStep(itemId: string, seats: readonly number[], orderId: string): InsertStep {
  const rows = claimsOf(itemId, seats, orderId);
  return { do: 'insert', table: 'seat_claims', columns: CLAIM, rows, leavePresent: true };
}

function leaveStep(itemId: string, seats: readonly number[], orderId: string): Extract<Step, { do: 'delete' }> {
  return { do: 'delete', table: 'seat_claims', match: CLAIM, rows: claimsOf(itemId, seats, orderId) };
}

/** Of the seats that a batch asks for, those that the table has, by seatPlace. */
export function* seatsTaken(batch: readonly OrderMessage[]): Work<Set<string>> {
  const wanted = batch.filter(({ seats }) => seats !== undefined);
  if (wanted.length === 0) return new Set();
  const rows = wanted.flatMap(({ itemId, seats }) => seats!.map((seat): Cells => [BigInt(itemId), seat]));
  const [found] = yield [findStep(rows)];
  return new Set(found!.rows.map(({ item_id, seat }) => seatPlace(item_id as string, Number(seat))));
}

function findStep(rows: Cells[]): Step {
  return { do: 'find', table: 'seat_claims', columns: CLAIM, match: ['item_id', 'seat'], rows };
}

/** Who has these seats, by the table and by the tail. */
function* takersOf(wanted: readonly SeatsOfItem[], tail: Tail | null): Work<Map<string, Takers>> {
  const rows = wanted.flatMap(({ itemId, seats }) => seats.map((seat): Cells => [BigInt(itemId), seat]));
  const [found] = yield [findStep(rows)];
  const byItem = Map.groupBy(found!.rows, ({ item_id }) => item_id as string);
  return new Map(
    wanted.map(({ itemId, seats }) => {
      const stored = (byItem.get(itemId) ?? []).map(
        ({ seat, order_id }) => [Number(seat), order_id as string] as const,
      );
      return [itemId, new Map([...stored, ...(tail?.takersOf(itemId, seats) ?? [])])];
    }),
  );
}

export function* setBlocked(
  saleId: string,
  wanted: readonly SeatsOfItem[],
  blocked: boolean,
  call: AdminCall,
  dialect: LifeDialect,
  tail: Tail | null,
): Work<SaleChange | { outcome: 'seat_taken'; taken: SeatsOfItem[] }> {
  const named = wanted.reduce((sum, { seats }) => sum + seats.length, 0);
  invariant(named >= 1 && named <= BLOCKED_AT_ONCE_MAX, `${named} seats cannot be blocked at once`);
  invariant(new Set(wanted.map(({ itemId }) => itemId)).size === wanted.length, 'an item is named once');
  const begun = yield* begin(saleId, call, dialect);
  if ('outcome' in begun) return begun;
  const { sale, nowMs, bound } = begun;
  const items = new Map(sale.items.map((item) => [item.id, item]));
  if (wanted.some(({ itemId }) => !items.has(itemId))) return { outcome: 'not_found' };
  if (sale.closed) return { outcome: 'sale_closed' };
  const sorted = wanted.toSorted((a, b) => byId(a.itemId, b.itemId));
  for (const { itemId, seats } of sorted) mustBeSeats(seats, items.get(itemId)!);
  const ids = sorted.map(({ itemId }) => BigInt(itemId));
  yield [query(`SELECT id FROM items ${dialect.byPrimaryKey} WHERE id IN (?) ORDER BY id ${dialect.forUpdate}`, ids)];
  const takers = yield* takersOf(sorted, tail);
  const decided = sorted.map(({ itemId, seats }) => ({
    itemId,
    ...decideBlocking(seats, takers.get(itemId)!, blocked),
  }));
  const taken = decided.filter((one) => one.taken.length > 0).map(({ itemId, taken: seats }) => ({ itemId, seats }));
  if (taken.length > 0) return { outcome: 'seat_taken', taken };
  const writes = new Writes();
  for (const { itemId, changed } of decided) {
    if (changed.length === 0) continue;
    writes.addRows((blocked ? takeStep : leaveStep)(itemId, changed, HOUSE));
    const by = blocked ? changed.length : -changed.length;
    writes.add(query('UPDATE items SET blocked = blocked + ?, rev = rev + 1 WHERE id = ?', by, BigInt(itemId)), 1);
  }
  yield* writes.done();
  const action = blocked ? 'sale.block_seats' : 'sale.unblock_seats';
  const detail = { items: sorted.map(({ itemId, seats }) => ({ item: items.get(itemId)!.code, seats })) };
  return yield* concluded(saleId, { action, detail }, call, bound, nowMs, dialect);
}

/** One statement: seats and rev are of one instant. */
export function* blockedSeats(saleId: string): Work<BlockedSeats[]> {
  const [found] = yield [
    query(
      `SELECT i.id, i.rev, c.seat FROM items i LEFT JOIN seat_claims c ON c.item_id = i.id AND c.order_id = ?
       WHERE i.sale_id = ? AND i.kind = 'seated' ORDER BY i.position, c.seat`,
      BigInt(HOUSE),
      BigInt(saleId),
    ),
  ];
  const blocked = new Map<string, BlockedSeats>();
  for (const { id, rev, seat } of found!.rows) {
    const itemId = id as string;
    const one = blocked.get(itemId) ?? { itemId, rev: Number(rev), seats: [] };
    blocked.set(itemId, one);
    if (seat !== null) one.seats.push(Number(seat));
  }
  return [...blocked.values()];
}

/** Moves one order: it is an admin's work, seat by seat, and no crowd waits for it. */
export function* moveSeats(
  wanted: NewSeats,
  dialect: LifeDialect,
  items: ItemFacts,
  tail: Tail | null,
  keepEvents: boolean,
): Work<SeatsMoved> {
  const { orderId, seats, by, auditId, fence } = wanted;
  const none = new Set<string>();
  const loaded = yield* OrderBatch.open(dialect, items, {
    orderIds: new Set([orderId]),
    attemptIds: none,
    references: none,
  });
  const entry = loaded.entry(orderId);
  if (entry === null) return { outcome: 'unknown' };
  const { order } = entry;
  const { itemId } = order;
  const [item] = yield [query(`SELECT kind, total, rev FROM items WHERE id = ? ${dialect.forUpdate}`, BigInt(itemId))];
  const { kind, total, rev } = item!.rows[0]!;
  if (kind !== 'seated') return { outcome: 'not_movable', order };
  mustBeSeats(seats, { id: itemId, kind, total: Number(total) });
  invariant(seats.length === order.quantity, `order ${orderId} has ${order.quantity} seats, not ${seats.length}`);
  const takers = yield* takersOf([{ itemId, seats }], tail);
  const decided = decideReseating(wanted, entry, takers.get(itemId)!);
  if (decided.outcome !== 'moved') return { ...decided, order };

  const from = order.seats!;
  // It never goes back, whatever the clock does: events of an order are told by their time.
  const atMs = Math.max(loaded.nowMs, order.updatedAtMs);
  const next: OrderRecord = { ...order, seats: [...seats], version: order.version + 1, updatedAtMs: atMs };
  if (fence !== null) raiseFence(entry, BigInt(fence));
  const writes = new Writes();
  writes.add(
    query(
      // MySQL sets one column after the other: the seats as admitted come first.
      `UPDATE orders SET admitted_seats = COALESCE(admitted_seats, seats), seats = ?, version = version + 1, updated_at = ?,
         fence = ? WHERE id = ? AND status = ? AND version = ?`,
      ...[seatsText(seats), atMs, entry.fence, BigInt(orderId), order.status, order.version],
    ),
    1,
  );
  // Unchecked: those that an order in the tail leaves may not be in the table yet.
  writes.addRows(leaveStep(itemId, decided.leaves, orderId), false);
  writes.addRows(takeStep(itemId, decided.takes, orderId));
  writes.add({ do: 'reseated', orderId, buyer: order.buyer, seats }, null);
  const detail = { item: order.itemCode, from, to: seats };
  writes.addRows(auditStep([{ auditId, by, action: 'order.move', subject: `order:${orderId}`, detail }], loaded.nowMs));
  if (keepEvents) writes.addRows(eventStep([{ order: next, type: 'order.moved' }]));
  writes.add(query('UPDATE items SET rev = rev + 1 WHERE id = ?', BigInt(itemId)), 1);
  const { saleId, buyer } = order;
  const told: SeatMove = {
    ...{ orderId, version: next.version, saleId, itemId, buyer, from, to: [...seats], auditId },
    ...{ rev: Number(rev) + 1, createdAtMs: atMs },
  };
  writes.addRows(seatMoveStep(told));
  yield* writes.last();
  return { outcome: 'moved', order: next, from, told };
}
