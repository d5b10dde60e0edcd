import { IdSequence } from '../../src/base/ids.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { ITEM_ID, PRICE } from './floors.ts';

const SALE_ID = '1';
const BATCH = 512;
const PAY_WITHIN_SECONDS = 86_400;

export type Ask = (sql: string) => Promise<Record<string, unknown>[]>;

const COUNTS = `SELECT i.reserved AS item_reserved, i.sold AS item_sold,
  (SELECT count(*) FROM orders WHERE status = 'reserved') AS reserved,
  (SELECT count(*) FROM orders WHERE status = 'paid' AND version = 2) AS paid,
  (SELECT count(*) FROM orders) AS orders,
  (SELECT count(*) FROM orders o JOIN payments p ON p.order_id = o.id
   WHERE o.status = 'paid' AND p.state = 'captured' AND p.pays = 1 AND p.amount = o.amount AND p.reference IS NOT NULL) AS captured,
  (SELECT count(*) FROM payments) AS payments FROM items i`;

/** Unpaid orders of one item. Each is handed out once, in random order. */
export class Orders {
  readonly #ledger: Ledger;
  readonly #ids: IdSequence;
  readonly #ask: Ask;
  #waiting: string[] = [];
  #placed = 0;

  static async open(ledger: Ledger, ask: Ask): Promise<Orders> {
    const window = { opensAtMs: 0, closesAtMs: Date.now() + 86_400_000 };
    const items = [{ code: 'voucher', name: 'Voucher', price: PRICE, stock: 1_000_000_000 }];
    const sale = { name: 'Bench', ...window, perBuyer: 1, payWithinSeconds: PAY_WITHIN_SECONDS, items };
    const call = { by: actor('system', 'bench'), auditId: '3', keyed: null, answer: () => '' };
    await ledger.createSale({ ...sale, id: SALE_ID, itemIds: [ITEM_ID] }, call);
    return new Orders(ledger, ask);
  }

  private constructor(ledger: Ledger, ask: Ask) {
    this.#ledger = ledger;
    this.#ask = ask;
    this.#ids = new IdSequence('order', (kind, size) => ledger.takeIdBlock(kind, size), systemRuntime().clock, 20_000);
  }

  /** Places orders until at least `count` are unpaid. */
  async fill(count: number): Promise<void> {
    const fresh: string[] = [];
    while (this.#waiting.length + fresh.length < count) {
      const batch: OrderMessage[] = [];
      while (batch.length < BATCH) batch.push(message(await this.#ids.next()));
      await this.#ledger.commitOrders(batch);
      fresh.push(...batch.map(({ orderId }) => orderId));
    }
    // As an idle shop does: SQLite folds new orders into its tables.
    while (await this.#ledger.maintain(50));
    this.#placed += fresh.length;
    this.#waiting = [...shuffled(fresh), ...this.#waiting];
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  /** Hands out up to `count` orders. */
  take(count: number): string[] {
    return this.#waiting.splice(-count);
  }

  /** Checks that exactly the orders that were handed out are paid, with one captured payment each, and that the counts agree. */
  async mustAgree(what: string): Promise<void> {
    const [row] = await this.#ask(COUNTS);
    const found = Object.fromEntries(Object.entries(row!).map(([name, count]) => [name, Number(count)]));
    const reserved = this.#waiting.length;
    const paid = this.#placed - reserved;
    const counts = { item_reserved: reserved, item_sold: paid, reserved, paid, orders: this.#placed };
    const expected: Record<string, number> = { ...counts, captured: paid, payments: paid };
    for (const [name, count] of Object.entries(expected)) {
      if (found[name] === count) continue;
      throw new Error(`${what}: ${name} is ${found[name]} instead of ${count}: ${JSON.stringify(found)}`);
    }
  }
}

function message(orderId: string): OrderMessage {
  return {
    orderId,
    saleId: SALE_ID,
    itemId: ITEM_ID,
    itemCode: 'voucher',
    buyer: `buyer-${Math.random().toString(36).slice(2, 14)}${orderId}`,
    quantity: 1,
    slots: [1],
    price: PRICE,
    payWithinSeconds: PAY_WITHIN_SECONDS,
    epoch: 1,
    key: `key-${orderId}`,
    fingerprint: 'voucher x1',
  };
}

function shuffled<T>(values: T[]): T[] {
  for (let at = values.length - 1; at > 0; at--) {
    const other = Math.floor(Math.random() * (at + 1));
    [values[at], values[other]] = [values[other]!, values[at]!];
  }
  return values;
}
