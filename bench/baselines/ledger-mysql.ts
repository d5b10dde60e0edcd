// The floors for the ledger on MySQL and MariaDB: the same rows in one transaction and nothing else (no order is looked at,
// no count is checked), and one transaction per order as in the sources: count, conditional update, insert.
import { createPool } from 'mysql2/promise';
import type { OrderMessage } from '../../src/model/order.ts';
import type { Floors } from '../ledger.ts';

const ORDERS = `INSERT INTO orders (id, sale_id, item_id, buyer, quantity, slots, amount, currency, status, epoch, idem_key,
  fingerprint, created_at, updated_at, expires_at, batch) VALUES `;
const CLAIMS = 'INSERT INTO claims (sale_id, buyer, slot, order_id) VALUES ';

function rows(batch: OrderMessage[]): { orders: string; claims: string } {
  const now = Date.now();
  // SQL built by hand: ten times as fast as the driver's `VALUES ?`. The names of this benchmark need no escaping.
  const orders = batch.map(
    (m) =>
      `(${m.orderId},${m.saleId},${m.itemId},'${m.buyer}',${m.quantity},'${m.slots.join(',')}',${m.price.amount},'${m.price.currency}','reserved',${m.epoch},'${m.key}','${m.fingerprint}',${now},${now},${now + m.payWithinSeconds * 1000},0)`,
  );
  const claims = batch.map((m) => `(${m.saleId},'${m.buyer}',${m.slots[0]},${m.orderId})`);
  return { orders: orders.join(), claims: claims.join() };
}

export async function open(url: string): Promise<Floors> {
  const pool = createPool({ uri: url, connectionLimit: 64, multipleStatements: true });
  return {
    async insertAll(batch) {
      const { orders, claims } = rows(batch);
      await pool.query(
        `START TRANSACTION; ${ORDERS}${orders}; ${CLAIMS}${claims};
         UPDATE items SET reserved = reserved + ${batch.length}, rev = rev + 1 WHERE id = ${batch[0]!.itemId}; COMMIT`,
      );
    },
    async placeOne(message, counted = true) {
      const one = await pool.getConnection();
      try {
        await one.beginTransaction();
        if (counted) {
          const count = 'SELECT count(*) AS n FROM orders WHERE buyer = ? AND sale_id = ?';
          const [found] = await one.query(count, [message.buyer, message.saleId]);
          if ((found as { n: number }[])[0]!.n > 0) throw new Error('only once');
        }
        await one.query('UPDATE items SET reserved = reserved + 1 WHERE id = ? AND total > reserved', [message.itemId]);
        await one.query(ORDERS + rows([message]).orders);
        await one.commit();
      } finally {
        one.release();
      }
    },
    end: () => pool.end(),
  };
}
