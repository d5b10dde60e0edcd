import type { SeatMove, WaitingSeatMove } from '../port/seats.ts';
import { parseSeats, seatsText } from '../rules/seats.ts';
import type { ItemSpan } from './releases.ts';
import { CLOCK, type InsertStep, nowOf, query, type Row, type Work } from './work.ts';

/** The outbox of moves to other seats: like that of releases, but an order may be moved any number of times. */

const COLUMNS = [
  'order_id',
  'version',
  'sale_id',
  'item_id',
  'buyer',
  'from_seats',
  'to_seats',
  'audit_id',
  'rev',
  'created_at',
] as const;
const SELECT = `SELECT ${COLUMNS.join(', ')} FROM seat_moves`;

export function seatMoveStep({ orderId, version, saleId, itemId, buyer, ...move }: SeatMove): InsertStep {
  return {
    do: 'insert',
    table: 'seat_moves',
    columns: COLUMNS,
    rows: [
      [
        ...[BigInt(orderId), version, BigInt(saleId), BigInt(itemId), buyer, seatsText(move.from), seatsText(move.to)],
        ...[BigInt(move.auditId), move.rev, move.createdAtMs],
      ],
    ],
  };
}

function moveOfRow(row: Row): SeatMove {
  return {
    orderId: row.order_id as string,
    version: Number(row.version),
    saleId: row.sale_id as string,
    itemId: row.item_id as string,
    buyer: row.buyer as string,
    from: parseSeats(row.from_seats as string),
    to: parseSeats(row.to_seats as string),
    auditId: row.audit_id as string,
    rev: Number(row.rev),
    createdAtMs: Number(row.created_at),
  };
}

export function* seatMoves(limit: number, olderMs: number, after?: SeatMove): Work<WaitingSeatMove[]> {
  const [clock] = yield [CLOCK];
  const nowMs = nowOf(clock);
  const next =
    after === undefined
      ? ''
      : 'AND (created_at > ? OR (created_at = ? AND (order_id > ? OR (order_id = ? AND version > ?))))';
  const place = after === undefined ? [] : [after.createdAtMs, after.createdAtMs, ...orderTwice(after), after.version];
  const [found] = yield [
    query(
      `${SELECT} WHERE done_at IS NULL AND created_at <= ? ${next} ORDER BY created_at, order_id, version LIMIT ?`,
      nowMs - olderMs,
      ...place,
      limit,
    ),
  ];
  return found!.rows.map(moveOfRow).map((one) => ({ ...one, waitedMs: nowMs - one.createdAtMs }));
}

export function* seatMovesTold(moves: readonly Pick<SeatMove, 'orderId' | 'version'>[]): Work<void> {
  if (moves.length === 0) return;
  const [clock] = yield [CLOCK];
  const told = 'UPDATE seat_moves SET done_at = ? WHERE order_id = ? AND version = ? AND done_at IS NULL';
  yield moves.map(({ orderId, version }) => query(told, nowOf(clock), BigInt(orderId), version));
}

/** A page of the moves of an item, in the order of their revs; one with fewer than `limit` is the last. */
export function* seatMovesSince(
  saleId: string,
  { itemId, above, upTo }: ItemSpan,
  limit: number,
  after?: SeatMove,
): Work<SeatMove[]> {
  // A transaction moves one order, so that no two moves of an item have the same rev.
  const [found] = yield [
    query(
      `${SELECT} WHERE sale_id = ? AND rev > ? AND rev <= ? AND item_id = ? ORDER BY rev LIMIT ?`,
      BigInt(saleId),
      after?.rev ?? above,
      upTo,
      BigInt(itemId),
      limit,
    ),
  ];
  return found!.rows.map(moveOfRow);
}

export function* pruneSeatMoves(beforeMs: number, limit: number): Work<number> {
  const [found] = yield [
    query('SELECT order_id, version FROM seat_moves WHERE done_at < ? ORDER BY done_at LIMIT ?', beforeMs, limit),
  ];
  const rows = found!.rows.map(({ order_id, version }) => [BigInt(order_id as string), Number(version)]);
  if (rows.length > 0) yield [{ do: 'delete', table: 'seat_moves', match: ['order_id', 'version'], rows }];
  return rows.length;
}

function orderTwice({ orderId }: SeatMove): [bigint, bigint] {
  return [BigInt(orderId), BigInt(orderId)];
}
