// The floors for payments on SQLite: a separate connection to the ledger's file, opened as the ledger opens it.
import { openLedgerFile } from '../../src/ledger/drivers/sqlite/file.ts';
import { detailOf, freshId, ITEM_ID, must, type PayFloors, PRICE } from '../pay/floors.ts';

const { amount, currency } = PRICE;
const COLUMNS =
  'id, order_id, provider, state, pays, amount, currency, reference, next_at, tries, created_at, updated_at, actor, origin';
const PAID = `UPDATE orders SET status = 'paid', version = version + 1, updated_at = ?2`;
const MANY = '(SELECT value FROM json_each(?1))';

export async function open(file: string): Promise<PayFloors> {
  const db = openLedgerFile(file);
  const [begin, commit] = [db.prepare('BEGIN IMMEDIATE'), db.prepare('COMMIT')];
  const look = db.prepare('SELECT status, amount FROM orders WHERE id = ?');
  const paid = db.prepare(`${PAID} WHERE id = ?1 AND status = 'reserved'`);
  const allPaid = db.prepare(`${PAID} WHERE id IN ${MANY} AND status = 'reserved'`);
  const payment = db.prepare(
    `INSERT INTO payments (${COLUMNS}) VALUES (?, ?, 'bare', ?, ?, ${amount}, '${currency}', ?, ?, 0, ?, ?, 'buyer:bench', '127.0.0.1')`,
  );
  const captures = db.prepare(
    `UPDATE payments SET state = 'captured', pays = 1, reference = 'ref-' || id, next_at = NULL, updated_at = ?2 WHERE id IN ${MANY}`,
  );
  const audit = db.prepare(`INSERT INTO audit VALUES (?, ?, 'buyer:bench', '127.0.0.1', 'bare', ?, ?)`);
  const item = db.prepare(
    `UPDATE items SET reserved = reserved - ?1, sold = sold + ?1, rev = rev + 1 WHERE id = ${ITEM_ID} AND reserved >= ?1`,
  );
  const pay = (orderId: string, id = freshId()): void => {
    must(paid.run(BigInt(orderId), Date.now()).changes === 1);
    payment.run(BigInt(id), BigInt(orderId), 'captured', 1, `ref-${id}`, null, Date.now(), Date.now());
    must(item.run(1).changes === 1);
    commit.run();
  };
  const writeAll = (orderIds: readonly string[], paymentIds: readonly string[], state: 'open' | 'captured'): void => {
    const now = Date.now();
    for (const [at, id] of paymentIds.entries()) {
      const [reference, nextAt] = state === 'open' ? [null, now + 10_000] : [`ref-${id}`, null];
      const pays = state === 'open' ? 0 : 1;
      payment.run(BigInt(id), BigInt(orderIds[at]!), state, pays, reference, nextAt, now, now);
    }
  };
  const auditAll = (orderIds: readonly string[], paymentIds: readonly string[]): void => {
    for (const [at, id] of paymentIds.entries()) {
      audit.run(BigInt(freshId()), Date.now(), `order:${orderIds[at]}`, detailOf(id));
    }
  };
  return {
    async payOne(orderId) {
      begin.run();
      const found = look.get(BigInt(orderId));
      must(found?.status === 'reserved' && found.amount === amount);
      pay(orderId);
    },
    async payInTwo(orderId) {
      const id = freshId();
      const looked = (): void => {
        begin.run();
        const found = look.get(BigInt(orderId));
        must(found?.status === 'reserved' && found.amount === amount);
      };
      looked();
      writeAll([orderId], [id], 'open');
      commit.run();
      looked();
      must(paid.run(BigInt(orderId), Date.now()).changes === 1);
      must(captures.run(`[${id}]`, Date.now()).changes === 1);
      must(item.run(1).changes === 1);
      commit.run();
    },
    async payOneBlindly(orderId) {
      begin.run();
      pay(orderId);
    },
    async confirmAll(orderIds) {
      const ids = orderIds.map(freshId);
      begin.run();
      allPaid.run(`[${orderIds}]`, Date.now());
      writeAll(orderIds, ids, 'captured');
      auditAll(orderIds, ids);
      item.run(orderIds.length);
      commit.run();
    },
    async payAll(orderIds) {
      const ids = orderIds.map(freshId);
      begin.run();
      writeAll(orderIds, ids, 'open');
      commit.run();
      begin.run();
      allPaid.run(`[${orderIds}]`, Date.now());
      captures.run(`[${ids}]`, Date.now());
      auditAll(orderIds, ids);
      item.run(orderIds.length);
      commit.run();
    },
    end: async () => db.close(),
  };
}
