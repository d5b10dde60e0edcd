import { copyFileSync, existsSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { temporaryFolder } from './server.ts';

/** The content of the file, read with SQLite and none of our code. */
export interface LedgerFile {
  faults: string[];
  /** Ids of all orders that were not rejected. */
  orderIds: Set<string>;
  /** Orders that are not folded yet. */
  tail: number;
  /** The server ended in the middle of a fold: a part of the tail is already in the tables. */
  midRound: boolean;
}

/** A copy of the ledger after a crash: opening the file itself would repair it before the server sees it. */
export function copyOfLedger(data: string): string {
  const copy = temporaryFolder();
  for (const file of ['ledger.sqlite', 'ledger.sqlite-wal']) {
    if (existsSync(join(data, file))) copyFileSync(join(data, file), join(copy, file));
  }
  return copy;
}

interface Row {
  seq: number;
  id: string;
  saleId: string;
  buyer: string;
  slots: string;
  quantity: number;
  status: string;
  key: string | null;
  fingerprint: string;
  createdAt: number;
}

/**
 * Reads the ledger of a stopped server, and checks what must hold at every instant: the file is intact, `reserved` is the sum
 * of the live orders and within the total, a buyer's slots are distinct and within the limit, a key has one order, and every row
 * of claims, keys and buyer_orders belongs to an order. With `folded`, none of these rows is missing either.
 */
export function readLedger(data: string, { folded }: { folded: boolean }): LedgerFile {
  const db = new DatabaseSync(join(data, 'ledger.sqlite'));
  try {
    const faults: string[] = [];
    const integrity = db.prepare('PRAGMA integrity_check').all() as { integrity_check: string }[];
    if (integrity.length !== 1 || integrity[0]!.integrity_check !== 'ok') faults.push(JSON.stringify(integrity));
    faults.push(...itemFaults(db));

    const orders = db
      .prepare(
        `SELECT seq, CAST(id AS TEXT) AS id, CAST(sale_id AS TEXT) AS saleId, buyer, slots, quantity, status,
           idem_key AS key, fingerprint, created_at AS createdAt FROM orders ORDER BY seq`,
      )
      .all() as unknown as Row[];
    const stored = orders.filter(({ status }) => status !== 'rejected');
    const { seq } = db.prepare('SELECT seq FROM folded').get() as { seq: number };
    const expected = { claims: new Map<string, number>(), keys: new Map<string, number>(), buyers: new Map() };
    for (const order of stored) {
      const slots = order.slots.split(',').map(Number);
      if (slots.length !== order.quantity)
        faults.push(`order ${order.id}: ${order.quantity} units, slots ${order.slots}`);
      for (const slot of slots) once(expected.claims, [order.saleId, order.buyer, slot, order.id], order.seq);
      if (order.key !== null) {
        const { saleId, buyer, key, fingerprint, id, createdAt } = order;
        once(expected.keys, [saleId, buyer, key, fingerprint, id, createdAt], order.seq);
      }
      once(expected.buyers, [order.buyer, order.id], order.seq);
    }
    // A rejected order is in its buyer's list from its commit on, but has no claims or keys.
    for (const { buyer, id, status } of orders) if (status === 'rejected') once(expected.buyers, [buyer, id], 0);
    faults.push(...doubles('a slot', stored, (o) => o.slots.split(',').map((slot) => [o.saleId, o.buyer, slot])));
    faults.push(...doubles('a key', stored, (o) => (o.key === null ? [] : [[o.saleId, o.buyer, o.key]])));

    const tables = {
      claims: 'SELECT CAST(sale_id AS TEXT), buyer, slot, CAST(order_id AS TEXT) FROM claims',
      keys: 'SELECT CAST(sale_id AS TEXT), buyer, key, fingerprint, CAST(order_id AS TEXT), created_at FROM order_keys',
      buyers: 'SELECT buyer, CAST(order_id AS TEXT) FROM buyer_orders',
    };
    let midRound = false;
    const upTo = folded ? Number.POSITIVE_INFINITY : seq;
    for (const [name, sql] of Object.entries(tables)) {
      const want = expected[name as keyof typeof tables];
      const found = new Set<string>();
      for (const row of db.prepare(sql).all()) {
        const text = JSON.stringify(Object.values(row));
        found.add(text);
        const of = want.get(text);
        if (of === undefined) faults.push(`${name} has ${text}, which no order has`);
        else if (of > seq) midRound = true;
      }
      for (const [text, of] of want) if (of <= upTo && !found.has(text)) faults.push(`${name} lacks ${text}`);
    }
    return {
      faults: faults.slice(0, 10),
      orderIds: new Set(stored.map(({ id }) => id)),
      tail: stored.filter((order) => order.seq > seq).length,
      midRound,
    };
  } finally {
    db.close();
  }
}

function once(rows: Map<string, number>, row: unknown[], seq: number): void {
  rows.set(JSON.stringify(row), seq);
}

function doubles(what: string, orders: Row[], names: (order: Row) => unknown[][]): string[] {
  const seen = new Map<string, string>();
  const faults: string[] = [];
  for (const order of orders) {
    for (const name of names(order)) {
      const text = JSON.stringify(name);
      const other = seen.get(text);
      if (other !== undefined) faults.push(`orders ${other} and ${order.id} both have ${what}: ${text}`);
      seen.set(text, order.id);
    }
  }
  return faults;
}

function itemFaults(db: DatabaseSync): string[] {
  const wrong = db
    .prepare(
      `SELECT i.code, i.total, i.reserved, i.sold, i.blocked,
         coalesce(sum(o.quantity) FILTER (WHERE o.status = 'reserved'), 0) AS inOrders,
         coalesce(sum(o.quantity) FILTER (WHERE o.status = 'paid'), 0) AS paid
       FROM items i LEFT JOIN orders o ON o.item_id = i.id GROUP BY i.id
       HAVING i.reserved <> inOrders OR i.sold <> paid OR i.reserved + i.sold + i.blocked > i.total`,
    )
    .all();
  const beyond = db
    .prepare(
      `SELECT o.buyer, sum(o.quantity) AS units, s.per_buyer_max AS most FROM orders o JOIN sales s ON s.id = o.sale_id
       WHERE o.status IN ('reserved', 'paid') GROUP BY o.sale_id, o.buyer HAVING units > most`,
    )
    .all();
  return [
    ...wrong.map((row) => `an item and its orders differ: ${JSON.stringify(row)}`),
    ...beyond.map((row) => `a buyer is above the limit: ${JSON.stringify(row)}`),
  ];
}
