// The floors for payments on PostgreSQL: prepared statements; independent ones are sent together.
import { Pool, type PoolClient } from 'pg';
import { detailOf, freshId, ITEM_ID, must, type PayFloors, PRICE } from '../pay/floors.ts';

const { amount, currency } = PRICE;
const COLUMNS =
  'id, order_id, provider, state, pays, amount, currency, reference, next_at, tries, created_at, updated_at, actor, origin';
const BY = `'buyer:bench', '127.0.0.1'`;
const SQL = {
  look: 'SELECT status, amount FROM orders WHERE id = $1 FOR UPDATE',
  paid: `UPDATE orders SET status = 'paid', version = version + 1, updated_at = $2 WHERE id = $1 AND status = 'reserved'`,
  payment: `INSERT INTO payments (${COLUMNS}) VALUES ($1, $2, 'bare', 'captured', 1, $3, $4, $5, NULL, 0, $6, $6, ${BY})`,
  opened: `INSERT INTO payments (${COLUMNS}) VALUES ($1, $2, 'bare', 'open', 0, $3, $4, NULL, $5::bigint + 10000, 0, $5, $5, ${BY})`,
  captured: `UPDATE payments SET state = 'captured', pays = 1, reference = $2, next_at = NULL, updated_at = $3
    WHERE id = $1 AND state = 'open'`,
  item: 'UPDATE items SET reserved = reserved - $1::int, sold = sold + $1::int, rev = rev + 1 WHERE id = $2 AND reserved >= $1::int',
  allPaid: `UPDATE orders SET status = 'paid', version = version + 1, updated_at = $2
    WHERE id = ANY ($1::bigint[]) AND status = 'reserved'`,
  allCaptured: `INSERT INTO payments (${COLUMNS}) SELECT id, o, 'bare', 'captured', 1, $3::bigint, $4, 'ref-' || id, NULL, 0,
    $5::bigint, $5::bigint, ${BY} FROM unnest($1::bigint[], $2::bigint[]) AS r (id, o)`,
  allOpened: `INSERT INTO payments (${COLUMNS}) SELECT id, o, 'bare', 'open', 0, $3::bigint, $4, NULL, $5::bigint + 10000, 0,
    $5::bigint, $5::bigint, ${BY} FROM unnest($1::bigint[], $2::bigint[]) AS r (id, o)`,
  captures: `UPDATE payments SET state = 'captured', pays = 1, reference = 'ref-' || id, next_at = NULL, updated_at = $2
    WHERE id = ANY ($1::bigint[])`,
  audit: `INSERT INTO audit (id, at, actor, origin, action, subject, detail) SELECT id, $4::bigint, ${BY},
    'bare', 'order:' || o, detail FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS r (id, o, detail)`,
};

export async function open(url: string, poolMax: number): Promise<PayFloors> {
  const pool = new Pool({ connectionString: url, max: poolMax, pipeline: true });
  const withOne = async (work: (one: PoolClient) => Promise<void>): Promise<void> => {
    const one = await pool.connect();
    // No rollback: a failure ends the benchmark.
    await work(one);
    one.release();
  };
  const ask = (one: PoolClient, name: keyof typeof SQL, ...values: unknown[]) =>
    one.query({ name, text: SQL[name], values });
  const payment = (one: PoolClient, orderId: string, id = freshId()) =>
    ask(one, 'payment', id, orderId, amount, currency, `ref-${id}`, Date.now());
  return {
    payOne: (orderId) =>
      withOne(async (one) => {
        const [, found] = await Promise.all([one.query('BEGIN'), ask(one, 'look', orderId)]);
        must(found.rows[0]?.status === 'reserved' && Number(found.rows[0].amount) === amount);
        must((await ask(one, 'paid', orderId, Date.now())).rowCount === 1);
        await payment(one, orderId);
        must((await ask(one, 'item', 1, ITEM_ID)).rowCount === 1);
        await one.query('COMMIT');
      }),
    payInTwo: (orderId) =>
      withOne(async (one) => {
        const look = async (): Promise<void> => {
          const [, found] = await Promise.all([one.query('BEGIN'), ask(one, 'look', orderId)]);
          must(found.rows[0]?.status === 'reserved' && Number(found.rows[0].amount) === amount);
        };
        const id = freshId();
        await look();
        await ask(one, 'opened', id, orderId, amount, currency, Date.now());
        await one.query('COMMIT');
        await look();
        must((await ask(one, 'paid', orderId, Date.now())).rowCount === 1);
        must((await ask(one, 'captured', id, `ref-${id}`, Date.now())).rowCount === 1);
        must((await ask(one, 'item', 1, ITEM_ID)).rowCount === 1);
        await one.query('COMMIT');
      }),
    payOneBlindly: (orderId) =>
      withOne(async (one) => {
        const first = [one.query('BEGIN'), ask(one, 'paid', orderId, Date.now()), payment(one, orderId)];
        must((await Promise.all(first))[1]!.rowCount === 1);
        const [item] = await Promise.all([ask(one, 'item', 1, ITEM_ID), one.query('COMMIT')]);
        must(item.rowCount === 1);
      }),
    confirmAll: (orderIds) =>
      withOne(async (one) => {
        const [ids, now] = [orderIds.map(freshId), Date.now()];
        await Promise.all([
          one.query('BEGIN'),
          ask(one, 'allPaid', orderIds, now),
          ask(one, 'allCaptured', ids, orderIds, amount, currency, now),
          ask(one, 'audit', orderIds.map(freshId), orderIds, ids.map(detailOf), now),
          ask(one, 'item', orderIds.length, ITEM_ID),
          one.query('COMMIT'),
        ]);
      }),
    payAll: (orderIds) =>
      withOne(async (one) => {
        const [ids, now] = [orderIds.map(freshId), Date.now()];
        const details = ids.map(detailOf);
        await Promise.all([
          one.query('BEGIN'),
          ask(one, 'allOpened', ids, orderIds, amount, currency, now),
          one.query('COMMIT'),
        ]);
        await Promise.all([
          one.query('BEGIN'),
          ask(one, 'allPaid', orderIds, now),
          ask(one, 'captures', ids, now),
          ask(one, 'audit', orderIds.map(freshId), orderIds, details, now),
          ask(one, 'item', orderIds.length, ITEM_ID),
          one.query('COMMIT'),
        ]);
      }),
    end: () => pool.end(),
  };
}
