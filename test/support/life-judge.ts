import { expect } from 'vitest';

export type Rows = Record<string, unknown>[];
export type Query = (sql: string) => Promise<Rows> | Rows;

const LIVE = `o.status IN ('reserved', 'paid')`;
const ENDED = `o.status IN ('cancelled', 'expired', 'refunded')`;

/**
 * What must hold of orders, units and money in the tables of any ledger at any committed instant, read behind its back.
 * `claims`: not where claims are still to be folded.
 */
export async function judgeLife(query: Query, { claims }: { claims: boolean }): Promise<void> {
  const none = async (what: string, sql: string): Promise<void> => expect(await query(sql), what).toEqual([]);
  const units = (status: string) => `coalesce(sum(CASE WHEN o.status = '${status}' THEN o.quantity END), 0)`;
  await none('P1: above the total', 'SELECT id FROM items WHERE reserved + sold + blocked > total');
  await none(
    'P9: units of live orders, and those that are counted',
    `SELECT i.id, i.reserved, i.sold, ${units('reserved')} AS r, ${units('paid')} AS s FROM items i LEFT JOIN orders o ON o.item_id = i.id
     GROUP BY i.id, i.reserved, i.sold HAVING ${units('reserved')} <> i.reserved OR ${units('paid')} <> i.sold`,
  );
  await none(
    'P4: an order that has ended has its row in the outbox, and no other has one',
    `SELECT o.id, o.status FROM orders o LEFT JOIN release_outbox r ON r.order_id = o.id WHERE (${ENDED}) <> (r.order_id IS NOT NULL)`,
  );
  await none(
    'P4: and it says what comes back',
    `SELECT r.order_id FROM release_outbox r LEFT JOIN orders o ON o.id = r.order_id AND o.quantity = r.units
       AND o.item_id = r.item_id AND o.sale_id = r.sale_id AND o.buyer = r.buyer WHERE o.id IS NULL`,
  );
  await none(
    'P6: a paid order has the money that it is paid with, and no other order has any',
    `SELECT o.id, o.status, p.state FROM orders o LEFT JOIN payments p ON p.order_id = o.id AND p.pays = 1
     WHERE CASE o.status WHEN 'paid' THEN coalesce(p.state, '') NOT IN ('captured', 'refunding')
       WHEN 'refunded' THEN coalesce(p.state, '') <> 'refunded' ELSE p.id IS NOT NULL END`,
  );
  await none(
    'P6: money may be on its way for an order that nobody can pay any more',
    `SELECT p.id FROM payments p JOIN orders o ON o.id = p.order_id WHERE p.state = 'open' AND o.status <> 'reserved'`,
  );
  await none(
    'P6: what the money is, and what the order costs',
    `SELECT p.id FROM payments p JOIN orders o ON o.id = p.order_id
     WHERE p.pays = 1 AND (p.amount <> o.amount OR p.currency <> o.currency)`,
  );
  await none(
    'P6: what is back of the money of a paid order: not all of it; and of a refunded one: all',
    `SELECT p.id FROM payments p JOIN orders o ON o.id = p.order_id WHERE p.pays = 1 AND p.amount > 0
     AND CASE o.status WHEN 'paid' THEN p.refunded >= p.amount ELSE p.refunded <> p.amount END`,
  );
  await judgeSeats(query, claims);
  if (!claims) return;
  await none(
    'P2: a live unit without a claim, or a claim too many',
    `SELECT o.id, o.status, o.quantity, count(c.slot) AS claims FROM orders o LEFT JOIN claims c
       ON c.sale_id = o.sale_id AND c.buyer = o.buyer AND c.order_id = o.id
     GROUP BY o.id, o.quantity, o.status HAVING count(c.slot) <> CASE WHEN ${LIVE} THEN o.quantity ELSE 0 END`,
  );
}

/** P1 for seats: whoever sits somewhere is alone there, and so is the house; all or none of an order's seats. */
async function judgeSeats(query: Query, claims: boolean): Promise<void> {
  const orders = await query(
    `SELECT o.id, o.item_id, o.seats, o.quantity FROM orders o WHERE ${LIVE} AND o.seats IS NOT NULL`,
  );
  const rows = await query('SELECT item_id, seat, order_id FROM seat_claims');
  const taken = new Map<string, string>();
  const take = (itemId: unknown, seat: unknown, by: unknown): void => {
    const place = `${itemId} ${seat}`;
    expect(taken.get(place) ?? null, `P1: the seat ${place} is taken twice`).toBe(null);
    taken.set(place, String(by));
  };
  for (const { item_id, seat, order_id } of rows) if (String(order_id) === '0') take(item_id, seat, '0');
  const blocked = Map.groupBy(taken.keys(), (place) => place.split(' ')[0]!);
  for (const { id, blocked: counted } of await query('SELECT id, blocked FROM items')) {
    expect(blocked.get(String(id))?.length ?? 0, `P9: blocked seats of item ${id}, and those that are counted`).toBe(
      Number(counted),
    );
  }
  for (const { id, item_id, seats, quantity } of orders) {
    const own = String(seats).split('.');
    expect(own, `as many seats as units of order ${id}`).toHaveLength(Number(quantity));
    for (const seat of own) take(item_id, seat, id);
  }
  const stored = new Map(rows.map(({ item_id, seat, order_id }) => [`${item_id} ${seat}`, String(order_id)]));
  const sorted = (all: ReadonlyMap<string, string>) => [...all].toSorted(([a], [b]) => (a < b ? -1 : 1));
  // What is still to be folded is not in the table; what is there is right.
  const expected = claims ? taken : new Map([...taken].filter(([place]) => stored.has(place)));
  expect(sorted(stored), 'P1: claims of seats, and the orders that have them').toEqual(sorted(expected));
}
