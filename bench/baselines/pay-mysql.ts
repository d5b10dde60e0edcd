// The floors for payments on MySQL and MariaDB. SQL is built by hand: the ids of this benchmark need no escaping.
import { createPool, type ResultSetHeader, type RowDataPacket } from 'mysql2/promise';
import { detailOf, freshId, ITEM_ID, must, type PayFloors, PRICE } from '../pay/floors.ts';

const { amount, currency } = PRICE;
const PAYMENTS = `INSERT INTO payments (id, order_id, provider, state, pays, amount, currency, reference, error, next_at, tries,
  created_at, updated_at, actor, origin) VALUES `;
const BY = `'buyer:bench','127.0.0.1'`;
const item = (units: number): string =>
  `UPDATE items SET reserved = reserved - ${units}, sold = sold + ${units}, rev = rev + 1 WHERE id = ${ITEM_ID}`;
const paid = (where: string): string =>
  `UPDATE orders FORCE INDEX (PRIMARY) SET status = 'paid', version = version + 1, updated_at = ${Date.now()} WHERE ${where} AND status = 'reserved'`;
const captured = (orderId: string, id = freshId(), now = Date.now()): string =>
  `(${id},${orderId},'bare','captured',1,${amount},'${currency}','ref-${id}',NULL,NULL,0,${now},${now},${BY})`;
const opened = (orderId: string, id: string, now = Date.now()): string =>
  `(${id},${orderId},'bare','open',0,${amount},'${currency}',NULL,NULL,${now + 10_000},0,${now},${now},${BY})`;
const audited = (orderId: string, id: string): string =>
  `(${freshId()},${Date.now()},${BY},'bare','order:${orderId}','${detailOf(id)}')`;
const audit = (orderIds: readonly string[], ids: readonly string[]): string =>
  `INSERT INTO audit (id, at, actor, origin, action, subject, detail) VALUES ${orderIds.map((id, at) => audited(id, ids[at]!)).join()}`;
const captures = (ids: string): string =>
  `UPDATE payments FORCE INDEX (PRIMARY) SET state = 'captured', pays = 1, reference = concat('ref-', id), next_at = NULL,
   updated_at = ${Date.now()} WHERE id IN (${ids})`;
const changed = (result: unknown): boolean => (result as ResultSetHeader).affectedRows === 1;

export async function open(url: string, poolMax: number): Promise<PayFloors> {
  const pool = createPool({ uri: url, connectionLimit: poolMax, multipleStatements: true });
  pool.pool.on('connection', (one) => void one.query('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED'));
  const withOne = async (work: (ask: (sql: string) => Promise<unknown>) => Promise<void>): Promise<void> => {
    const one = await pool.getConnection();
    // No rollback: a failure ends the benchmark.
    await work(async (sql) => (await one.query(sql))[0]);
    one.release();
  };
  return {
    payOne: (orderId) =>
      withOne(async (ask) => {
        const sql = `START TRANSACTION; SELECT status, amount FROM orders WHERE id = ${orderId} FOR UPDATE`;
        const [, found] = (await ask(sql)) as [unknown, RowDataPacket[]];
        must(found[0]?.status === 'reserved' && Number(found[0].amount) === amount);
        must(changed(await ask(paid(`id = ${orderId}`))));
        await ask(PAYMENTS + captured(orderId));
        must(changed(await ask(`${item(1)} AND reserved >= 1`)));
        await ask('COMMIT');
      }),
    payInTwo: (orderId) =>
      withOne(async (ask) => {
        const look = async (): Promise<void> => {
          const sql = `START TRANSACTION; SELECT status, amount FROM orders WHERE id = ${orderId} FOR UPDATE`;
          const [, found] = (await ask(sql)) as [unknown, RowDataPacket[]];
          must(found[0]?.status === 'reserved' && Number(found[0].amount) === amount);
        };
        const id = freshId();
        await look();
        await ask(PAYMENTS + opened(orderId, id));
        await ask('COMMIT');
        await look();
        must(changed(await ask(paid(`id = ${orderId}`))));
        must(changed(await ask(`${captures(id)} AND state = 'open'`)));
        must(changed(await ask(`${item(1)} AND reserved >= 1`)));
        await ask('COMMIT');
      }),
    payOneBlindly: (orderId) =>
      withOne(async (ask) => {
        const payment = PAYMENTS + captured(orderId);
        const done = (await ask(`START TRANSACTION; ${paid(`id = ${orderId}`)}; ${payment}`)) as unknown[];
        must(changed(done[1]));
        // A CHECK keeps the counts from becoming negative.
        await ask(`${item(1)}; COMMIT`);
      }),
    async confirmAll(orderIds) {
      const ids = orderIds.map(freshId);
      const payments = PAYMENTS + orderIds.map((orderId, at) => captured(orderId, ids[at])).join();
      const rest = `${payments}; ${audit(orderIds, ids)}; ${item(orderIds.length)}; COMMIT`;
      await pool.query(`START TRANSACTION; ${paid(`id IN (${orderIds.join()})`)}; ${rest}`);
    },
    async payAll(orderIds) {
      const ids = orderIds.map(freshId);
      const payments = PAYMENTS + orderIds.map((orderId, at) => opened(orderId, ids[at]!)).join();
      await pool.query(`START TRANSACTION; ${payments}; COMMIT`);
      const rest = `${captures(ids.join())}; ${audit(orderIds, ids)}; ${item(orderIds.length)}; COMMIT`;
      await pool.query(`START TRANSACTION; ${paid(`id IN (${orderIds.join()})`)}; ${rest}`);
    },
    end: () => pool.end(),
  };
}
