import { byId, type NewOrder } from '../../rules/backstops.ts';
import { seatsText } from '../../rules/seats.ts';
import type { Result } from '../../works/work.ts';
import type { BatchRows, OrderStatements, Written } from '../server/dialect.ts';
import type { Session } from '../server/session.ts';
import { isDuplicate, isMiscount } from './errors.ts';
import { PostgresSession, type Prepared, withNumbers } from './session.ts';
import { judgedStatement, sendStep } from './steps.ts';

/**
 * The rows of a batch, in one statement. Most orders differ only in id, buyer and key. The rest is their *shape*: a batch has
 * few shapes, and each order names its own by number. The database then parses a third of what an array for each column would
 * be (measured: the batch takes two thirds of the time).
 *
 *   $1 … $4     orders: id, buyer, key, number of the shape
 *   $5 … $16    shapes: sale, item, quantity, slots, the first slot (NULL: takes no claim), amount, currency, status, reason,
 *               epoch, fingerprint, time to pay
 *   $17 … $19   further claims, of orders with more than one unit: place of the order in $1, slot, sale
 *   $20         the time
 *
 * A batch with seats has these, too:
 *
 *   $21         orders: their seats as text
 *   $22 … $24   seats: place of the order in $1, item, seat
 */
function insertBatch(
  name: string,
  { conflict, answer, seated }: { conflict: string; answer: string; seated: boolean },
): Prepared {
  const arrays = `$1::bigint[], $2::text[], $3::text[], $4::int[]${seated ? ', $21::text[]' : ''}`;
  const columns = `id, buyer, "key", shape${seated ? ', seats' : ''}`;
  const text = `WITH batch AS MATERIALIZED (
      SELECT ${columns} FROM unnest(${arrays}) AS o (${columns})
    ), new_orders AS (
      INSERT INTO orders (id, buyer, idem_key, sale_id, item_id, quantity, slots, amount, currency, status, reason, epoch,
        fingerprint, created_at, updated_at, expires_at${seated ? ', seats' : ''})
      SELECT id, buyer, "key", ($5::bigint[])[shape], ($6::bigint[])[shape], ($7::int[])[shape], ($8::text[])[shape],
        ($10::bigint[])[shape], ($11::text[])[shape], ($12::text[])[shape], ($13::text[])[shape], ($14::int[])[shape],
        ($15::text[])[shape], $20::bigint, $20::bigint, $20::bigint + ($16::bigint[])[shape]${seated ? ', seats' : ''}
      FROM batch ${conflict}
    ), new_claims AS (
      INSERT INTO claims (sale_id, order_id, slot, buyer)
      SELECT ($5::bigint[])[shape], id, ($9::smallint[])[shape], buyer FROM batch WHERE ($9::smallint[])[shape] IS NOT NULL
      UNION ALL
      SELECT sale_id, ($1::bigint[])[place], slot, ($2::text[])[place]
      FROM unnest($17::int[], $18::smallint[], $19::bigint[]) AS c (place, slot, sale_id) ${conflict}
    )${seated ? newSeats(conflict) : ''} SELECT ${answer}`;
  return { name, text };
}

function newSeats(conflict: string): string {
  return `, new_seats AS (
      INSERT INTO seat_claims (item_id, order_id, seat)
      SELECT item_id, ($1::bigint[])[place], seat
      FROM unnest($22::int[], $23::bigint[], $24::int[]) AS s (place, item_id, seat) ${conflict}
    )`;
}

/** All or nothing: an existing row fails the statement. A fifth quicker than INSERT_NEW. */
const ALL = { conflict: '', answer: '1 AS done' };
const INSERT_ALL = insertBatch('insert_all', { ...ALL, seated: false });
const INSERT_ALL_SEATED = insertBatch('insert_all_seated', { ...ALL, seated: true });

/** Leaves existing rows as they are, and counts those really inserted. */
const NEW = { conflict: 'ON CONFLICT DO NOTHING RETURNING 1' };
const COUNTED = `(SELECT count(*) FROM new_orders)::int AS orders, (SELECT count(*) FROM new_claims)::int AS claims`;
const INSERT_NEW = insertBatch('insert_new', { ...NEW, answer: COUNTED, seated: false });
const INSERT_NEW_SEATED = insertBatch('insert_new_seated', {
  ...NEW,
  answer: `${COUNTED}, (SELECT count(*) FROM new_seats)::int AS seats`,
  seated: true,
});

const TAKE_UNITS = `UPDATE items SET reserved = reserved + ?::int, rev = rev + 1
  WHERE id = ? AND epoch = ? AND total - reserved - sold - blocked >= ?::int`;

/** Fails where it does not change its one row. */
const TAKE: Prepared = { name: 'take_units', text: withNumbers(judgedStatement(TAKE_UNITS)) };

/** `place`: of its order. */
interface TakenSeat {
  readonly place: number;
  readonly itemId: string;
  readonly seat: number;
}

/** What orders have in common that differ only in id, buyer and key. */
interface Shape {
  readonly like: NewOrder;
  readonly number: number;
}

/**
 * The batch in one round trip; on the quick path with its COMMIT: a row in the way fails a statement, and the COMMIT behind it
 * then rolls back. So the hot rows of the items are locked only while the database commits, and not until our next turn.
 */
export class PostgresOrders implements OrderStatements {
  async write(session: Session, { orders, also, taken: units, nowMs, hopefully }: BatchRows): Promise<Written> {
    if (!(session instanceof PostgresSession)) throw new TypeError('a session of PostgreSQL is needed');
    // Sorted by buyer: writers of other items of the sale insert claims of the same buyers, and in one order they cannot deadlock.
    const sorted = orders.toSorted(byBuyer);
    const shapes = new Map<string, Shape>();
    const numbers: number[] = [];
    const more: { place: number; slot: number; saleId: string }[] = [];
    const taken: TakenSeat[] = [];
    const seated = orders.some(({ message }) => message.seats !== undefined);
    let claims = 0;
    for (const [at, order] of sorted.entries()) {
      const { message, reason } = order;
      const { itemId, saleId, quantity, price, epoch, fingerprint, payWithinSeconds, seats } = message;
      const name = `${itemId} ${saleId} ${quantity} ${order.slots} ${price.amount} ${epoch} ${payWithinSeconds} ${reason} ${price.currency}\n${fingerprint}`;
      let shape = shapes.get(name);
      if (shape === undefined) {
        shape = { like: order, number: shapes.size + 1 };
        shapes.set(name, shape);
      }
      numbers.push(shape.number);
      if (reason !== null) continue;
      claims += message.slots.length;
      for (let slot = 1; slot < message.slots.length; slot++) {
        more.push({ place: at + 1, slot: message.slots[slot]!, saleId });
      }
      if (seats !== undefined) for (const seat of seats) taken.push({ place: at + 1, itemId, seat });
    }
    // Sorted for the same reason as the claims.
    if (seated) taken.sort((a, b) => byId(a.itemId, b.itemId) || a.seat - b.seat);
    const all = [...shapes.values()].map(({ like }) => like);
    const live = <T>({ reason }: NewOrder, value: T): T | null => (reason === null ? value : null);
    const sent: Promise<Result>[] = session.together(() => [
      session.prepared(statementFor(hopefully, seated), [
        bare(sorted, ({ message }) => message.orderId),
        quoted(sorted, ({ message }) => message.buyer),
        quoted(sorted, (order) => live(order, order.message.key)),
        `{${numbers.join(',')}}`,
        bare(all, ({ message }) => message.saleId),
        bare(all, ({ message }) => message.itemId),
        bare(all, ({ message }) => message.quantity),
        quoted(all, ({ slots }) => slots),
        bare(all, (order) => live(order, order.message.slots[0]!)),
        bare(all, ({ message }) => message.price.amount * message.quantity),
        quoted(all, ({ message }) => message.price.currency),
        bare(all, (order) => live(order, 'reserved') ?? 'rejected'),
        bare(all, ({ reason }) => reason),
        bare(all, ({ message }) => message.epoch),
        quoted(all, ({ message }) => message.fingerprint),
        bare(all, (order) => live(order, order.message.payWithinSeconds * 1000)),
        bare(more, ({ place }) => place),
        bare(more, ({ slot }) => slot),
        bare(more, ({ saleId }) => saleId),
        nowMs,
        ...(seated ? seatArrays(sorted, taken) : []),
      ]),
      ...also.map((step) => sendStep(session, step)),
      ...units.map(({ itemId, epoch, units: n }) => session.prepared(TAKE, [n, itemId, epoch, n, 1])),
      ...(hopefully ? [session.commit()] : []),
    ]);
    // Awaits all of them: those behind one that fails fail, too, and must not be unhandled.
    const results = await Promise.allSettled(sent);
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) {
      if (hopefully && (isDuplicate(failed.reason) || isMiscount(failed.reason))) return 'hindered';
      throw failed.reason;
    }
    if (hopefully) return 'committed';
    const { rows } = (results[0] as PromiseFulfilledResult<Result>).value;
    const counts = rows[0]!;
    const whole = counts.orders === orders.length && counts.claims === claims && (counts.seats ?? 0) === taken.length;
    return whole ? 'written' : 'hindered';
  }
}

function statementFor(hopefully: boolean, seated: boolean): Prepared {
  if (hopefully) return seated ? INSERT_ALL_SEATED : INSERT_ALL;
  return seated ? INSERT_NEW_SEATED : INSERT_NEW;
}

function seatArrays(orders: readonly NewOrder[], taken: readonly TakenSeat[]): string[] {
  return [
    bare(orders, ({ message }) => (message.seats === undefined ? null : seatsText(message.seats))),
    bare(taken, ({ place }) => place),
    bare(taken, ({ itemId }) => itemId),
    bare(taken, ({ seat }) => seat),
  ];
}

function byBuyer(a: NewOrder, b: NewOrder): number {
  return a.message.buyer < b.message.buyer ? -1 : a.message.buyer > b.message.buyer ? 1 : 0;
}

/** An array literal of values that need no quotes: numbers, ids, our own words. */
function bare<T>(rows: readonly T[], pick: (row: T) => string | number | null): string {
  let text = '{';
  for (let at = 0; at < rows.length; at++) {
    const value = pick(rows[at]!) ?? 'NULL';
    text += at === 0 ? value : `,${value}`;
  }
  return `${text}}`;
}

const SPECIAL = /["\\]/;
const SPECIALS = /["\\]/g;

function quoted<T>(rows: readonly T[], pick: (row: T) => string | null): string {
  let text = '{';
  for (let at = 0; at < rows.length; at++) {
    const value = pick(rows[at]!);
    if (at > 0) text += ',';
    if (value === null) text += 'NULL';
    else text += SPECIAL.test(value) ? `"${value.replace(SPECIALS, '\\$&')}"` : `"${value}"`;
  }
  return `${text}}`;
}
