import type { Random } from '../../../base/random.ts';
import { byId, type NewOrder, type TakenUnits } from '../../rules/backstops.ts';
import { seatsText } from '../../rules/seats.ts';
import { query } from '../../works/work.ts';
import type { BatchRows, OrderStatements, Written } from '../server/dialect.ts';
import type { Session } from '../server/session.ts';
import { textLiteral } from './literal.ts';
import { MysqlSteps } from './steps.ts';

/** In one packet: far below max_allowed_packet, which some set to 1 MiB. An order of many units is many rows. */
const ORDERS_PER_PACKET = 1000;
const UNITS_PER_PACKET = 4000;

/**
 * The batch as text, several statements in one packet: the server cannot prepare a statement with a varying number of rows,
 * and one round trip with literals is quicker than several with parameters.
 *
 * `ON DUPLICATE KEY UPDATE id = id` and not INSERT IGNORE, which would store truncated names and hide other errors. It counts a
 * row as affected only if it was inserted (without FOUND_ROWS, see session.ts). A row with our `batch` number was inserted
 * by us.
 */
export class MysqlOrders implements OrderStatements {
  readonly #random: Random;
  readonly #steps = new MysqlSteps();

  constructor(random: Random) {
    this.#random = random;
  }

  async write(session: Session, rows: BatchRows): Promise<Written> {
    const { orders, also, taken, nowMs, hopefully } = rows;
    const batch = Math.floor(this.#random.fraction() * Number.MAX_SAFE_INTEGER);
    const updates = taken.map(takeUnits);
    for (let from = 0, to = 0; from < orders.length; from = to) {
      to = endOfPacket(orders, from);
      const some = to - from === orders.length ? orders : orders.slice(from, to);
      const last = to === orders.length;
      const { sql, expected } = this.#packet(some, nowMs, batch);
      const statements = last && also.length === 0 ? [...sql, ...updates] : sql;
      const results = await session.script(statements.join('; '));
      const right = results.every(({ affected }, at) => affected === (expected[at] ?? 1));
      if (!right) return 'hindered';
      if (!hopefully && !(await areOurs(session, some, batch))) return 'hindered';
    }
    if (also.length === 0) return 'written';
    // Only after every order is known to be new; the hot rows follow in the same packet.
    const results = await this.#steps.run(session, [...also, ...updates.map((sql) => query(sql))]);
    return results.slice(also.length).every(({ affected }) => affected === 1) ? 'written' : 'hindered';
  }

  #packet(orders: readonly NewOrder[], nowMs: number, batch: number): { sql: string[]; expected: number[] } {
    let orderRows = '';
    const claims: { place: string; row: string }[] = [];
    const taken: { itemId: string; seat: number; orderId: string }[] = [];
    const seated = orders.some(({ message }) => message.seats !== undefined);
    for (const { message, slots, reason } of orders) {
      const { orderId, saleId, itemId, quantity, price, epoch, key, payWithinSeconds, seats } = message;
      const buyer = textLiteral(message.buyer);
      const fingerprint = textLiteral(message.fingerprint);
      const live = reason === null;
      const keyed = live && key !== null ? textLiteral(key) : null;
      orderRows += `${orderRows === '' ? '' : ','}(${orderId},${saleId},${itemId},${buyer},${quantity},${textLiteral(slots)},${price.amount * quantity},${textLiteral(price.currency)},${live ? "'reserved',NULL" : `'rejected','${reason}'`},${epoch},${keyed ?? 'NULL'},${fingerprint},${nowMs},${nowMs},${live ? nowMs + payWithinSeconds * 1000 : 'NULL'},${batch}${seated ? `,${seats === undefined ? 'NULL' : `'${seatsText(seats)}'`}` : ''})`;
      if (!live) continue;
      for (const slot of message.slots) {
        claims.push({ place: `${saleId} ${message.buyer}`, row: `(${saleId},${buyer},${slot},${orderId})` });
      }
      if (seats !== undefined) for (const seat of seats) taken.push({ itemId, seat, orderId });
    }
    const sql = [
      `INSERT INTO orders (id,sale_id,item_id,buyer,quantity,slots,amount,currency,status,reason,epoch,idem_key,fingerprint,created_at,updated_at,expires_at,batch${seated ? ',seats' : ''}) VALUES ${orderRows} ON DUPLICATE KEY UPDATE id = id`,
    ];
    const expected = [orders.length];
    if (claims.length > 0) {
      sql.push(
        `INSERT INTO claims (sale_id,buyer,slot,order_id) VALUES ${inOrder(claims)} ON DUPLICATE KEY UPDATE slot = slot`,
      );
      expected.push(claims.length);
    }
    if (taken.length > 0) {
      // Sorted for the same reason as the claims.
      taken.sort((a, b) => byId(a.itemId, b.itemId) || a.seat - b.seat);
      const rows = taken.map(({ itemId, seat, orderId }) => `(${itemId},${seat},${orderId})`).join(',');
      sql.push(`INSERT INTO seat_claims (item_id,seat,order_id) VALUES ${rows} ON DUPLICATE KEY UPDATE seat = seat`);
      expected.push(taken.length);
    }
    return { sql, expected };
  }
}

/** The place behind the last order of the packet that begins here. */
function endOfPacket(orders: readonly NewOrder[], from: number): number {
  let to = from;
  let units = 0;
  while (to < orders.length && to - from < ORDERS_PER_PACKET && (to === from || units < UNITS_PER_PACKET)) {
    units += orders[to++]!.message.slots.length;
  }
  return to;
}

/** On the careful path counts are not enough: each row must have the number of this transaction. */
async function areOurs(session: Session, orders: readonly NewOrder[], batch: number): Promise<boolean> {
  const { rows } = await session.query('SELECT count(*) AS n FROM orders WHERE id IN (?) AND batch = ?', [
    orders.map(({ message }) => BigInt(message.orderId)),
    batch,
  ]);
  return Number(rows[0]!.n) === orders.length;
}

/** Sorted by buyer: writers of other items of the sale insert claims of the same buyers, and in one order they cannot deadlock. */
function inOrder(rows: { place: string; row: string }[]): string {
  rows.sort((a, b) => (a.place < b.place ? -1 : a.place > b.place ? 1 : 0));
  let text = rows[0]!.row;
  for (let at = 1; at < rows.length; at++) text += `,${rows[at]!.row}`;
  return text;
}

function takeUnits({ itemId, epoch, units }: TakenUnits): string {
  return `UPDATE items SET reserved = reserved + ${units}, rev = rev + 1 WHERE id = ${itemId} AND epoch = ${epoch} AND total - reserved - sold - blocked >= ${units}`;
}
