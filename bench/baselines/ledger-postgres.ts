// The floors for the ledger on PostgreSQL: the same rows in one transaction and nothing else (no order is looked at, no
// count is checked), and one transaction per order as in the sources: count, conditional update, insert.
import { Pool } from 'pg';
import type { Floors } from '../ledger.ts';

const COLUMNS = `id, sale_id, item_id, buyer, quantity, slots, amount, currency, status, epoch, idem_key, fingerprint,
  created_at, updated_at, expires_at`;
// Arrays and prepared statements, sent together: twice as fast as the usual VALUES ($1, $2, …).
const ORDERS = `INSERT INTO orders (${COLUMNS}) SELECT id, $4::bigint, $5::bigint, buyer, 1, '1', $6::bigint, 'CNY', 'reserved', 1,
  key, $7, $8::bigint, $8::bigint, $9::bigint FROM unnest($1::bigint[], $2::text[], $3::text[]) AS o (id, buyer, key)`;
const CLAIMS = `INSERT INTO claims (sale_id, buyer, slot, order_id) SELECT $3::bigint, buyer, 1, id
  FROM unnest($1::bigint[], $2::text[]) AS o (id, buyer)`;
const ITEM = 'UPDATE items SET reserved = reserved + $1::int, rev = rev + 1 WHERE id = $2';
const ONE_COUNT = 'SELECT count(*)::int AS n FROM orders WHERE buyer = $1 AND sale_id = $2';
const ONE_ITEM = 'UPDATE items SET reserved = reserved + 1 WHERE id = $1 AND total > reserved';
const ONE_ORDER = `INSERT INTO orders (${COLUMNS}) VALUES ($1, $2, $3, $4, 1, '1', $5, 'CNY', 'reserved', 1, $6, $7, $8, $8, $9)`;

export async function open(url: string): Promise<Floors> {
  const pipelines = new Pool({ connectionString: url, max: 4, pipeline: true });
  const pool = new Pool({ connectionString: url, max: 64 });
  return {
    async insertAll(batch) {
      const now = Date.now();
      const [ids, buyers, keys] = [batch.map((m) => m.orderId), batch.map((m) => m.buyer), batch.map((m) => m.key)];
      const { saleId, itemId, price, fingerprint, payWithinSeconds } = batch[0]!;
      const until = now + payWithinSeconds * 1000;
      const orders = [ids, buyers, keys, saleId, itemId, price.amount, fingerprint, now, until];
      const client = await pipelines.connect();
      await Promise.all([
        client.query('BEGIN'),
        client.query({ name: 'orders', text: ORDERS, values: orders }),
        client.query({ name: 'claims', text: CLAIMS, values: [ids, buyers, saleId] }),
        client.query({ name: 'item', text: ITEM, values: [batch.length, itemId] }),
        client.query('COMMIT'),
      ]);
      client.release();
    },
    async placeOne(m) {
      const one = await pool.connect();
      const now = Date.now();
      const order = [m.orderId, m.saleId, m.itemId, m.buyer, m.price.amount, m.key, m.fingerprint, now, now + 900_000];
      try {
        await one.query('BEGIN');
        const { rows } = await one.query(ONE_COUNT, [m.buyer, m.saleId]);
        if (rows[0].n > 0) throw new Error('only once');
        await one.query(ONE_ITEM, [m.itemId]);
        await one.query(ONE_ORDER, order);
        await one.query('COMMIT');
      } finally {
        one.release();
      }
    },
    end: async () => void (await Promise.all([pipelines.end(), pool.end()])),
  };
}
