import type { DatabaseSync, SQLInputValue } from 'node:sqlite';
import { TerminalError } from '../../base/errors.ts';
import {
  firstRecord,
  hasGivenBack,
  isLive,
  type OrderMessage,
  type OrderRecord,
  type OrderStatus,
} from '../../model/order.ts';
import type { RejectReason } from '../../model/outcome.ts';
import type { OrderFilter, Page, StoredOrder } from '../port.ts';
import type { Keys } from './keys.ts';
import type { Tail, TailOrder } from './tail.ts';

const COLUMNS = `CAST(o.id AS TEXT) AS id, CAST(o.sale_id AS TEXT) AS saleId, CAST(o.item_id AS TEXT) AS itemId,
  i.code AS itemCode, o.buyer, o.quantity, o.amount, o.currency, o.status, o.reason,
  o.created_at AS createdAtMs, o.updated_at AS updatedAtMs, o.expires_at AS expiresAtMs, o.version,
  CAST(o.revives AS TEXT) AS revives`;

/** A page of what a gate is built from: see gate-pages.ts. */
export const GATE_ROWS = `SELECT CAST(id AS TEXT) AS orderId, CAST(item_id AS TEXT) AS itemId, buyer, slots, status,
  idem_key AS key, fingerprint, created_at AS boundAtMs
  FROM orders INDEXED BY orders_sale WHERE sale_id = ? AND id > ? ORDER BY orders.id LIMIT ?`;

/** Orders of one buyer that are looked through on the event loop: some milliseconds. */
export const EXAMINED_MAX = 500;

export interface OrderRow extends Omit<OrderRecord, 'amount'> {
  amount: number;
  currency: string;
}

export function orderOfRow({ amount, currency, ...row }: OrderRow): OrderRecord {
  return { ...row, amount: { amount, currency } };
}

/** An item as it stands before the batch. */
interface ItemState {
  saleId: string;
  epoch: number;
  free: number;
  perBuyerMax: number;
}

/** An order of the batch that this transaction inserted. */
interface Inserted {
  at: number;
  message: OrderMessage;
  tail: TailOrder;
}

/**
 * Orders: the batched insert with its backstops, and reads. `commit` runs inside the caller's transaction; the tail
 * is told through the function it returns, only after that transaction has committed.
 */
export class Orders {
  readonly #db: DatabaseSync;
  readonly #tail: Tail;
  readonly #keys: Keys;
  readonly #insert;
  readonly #get;
  readonly #identity;
  readonly #reject;
  readonly #claimTaken;
  readonly #listForBuyer;
  readonly #takeUnits;
  readonly #item;
  #seq: number;

  constructor(db: DatabaseSync, tail: Tail, keys: Keys) {
    this.#db = db;
    this.#tail = tail;
    this.#keys = keys;
    this.#insert = db.prepare(
      `INSERT INTO orders (seq, id, sale_id, item_id, buyer, quantity, slots, amount, currency, status, epoch, idem_key, fingerprint, created_at, updated_at, expires_at)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'reserved', ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
    );
    this.#get = db.prepare(`SELECT ${COLUMNS} FROM orders o JOIN items i ON i.id = o.item_id WHERE o.id = ?`);
    this.#identity = db.prepare('SELECT slots, idem_key AS key, fingerprint FROM orders WHERE id = ?');
    this.#reject = db.prepare(
      "UPDATE orders SET status = 'rejected', reason = ?, expires_at = NULL, idem_key = NULL WHERE id = ?",
    );
    this.#claimTaken = db.prepare('SELECT 1 FROM claims WHERE sale_id = ? AND buyer = ? AND slot = ?');
    // Rejections are rare: they go into the buyer's list at once, and not through the tail.
    this.#listForBuyer = db.prepare('INSERT INTO buyer_orders (buyer, order_id) VALUES (?, ?)');
    this.#takeUnits = db.prepare(
      `UPDATE items SET reserved = reserved + ?1, rev = rev + 1
       WHERE id = ?2 AND epoch = ?3 AND total - reserved - sold - blocked >= ?1`,
    );
    this.#item = db.prepare(
      `SELECT CAST(i.sale_id AS TEXT) AS saleId, i.epoch, i.total - i.reserved - i.sold - i.blocked AS free,
         s.per_buyer_max AS perBuyerMax FROM items i JOIN sales s ON s.id = i.sale_id WHERE i.id = ?`,
    );
    const last = db.prepare('SELECT max(seq) AS seq FROM orders').get() as { seq: number | null };
    this.#seq = last.seq ?? 0;
    this.#loadTail();
  }

  get lastSeq(): number {
    return this.#seq;
  }

  /** After a restart: what was committed and not yet folded. */
  #loadTail(): void {
    const rows = this.#db
      .prepare(
        `SELECT seq, CAST(id AS TEXT) AS orderId, CAST(sale_id AS TEXT) AS saleId, buyer, slots, status, idem_key AS key, fingerprint, created_at AS createdAtMs
         FROM orders WHERE seq > (SELECT seq FROM folded) AND status <> 'rejected'`,
      )
      .iterate() as Iterable<Omit<TailOrder, 'live'> & { status: OrderStatus }>;
    for (const { seq, orderId, saleId, buyer, slots, status, key, fingerprint, createdAtMs } of rows) {
      this.#tail.add({ seq, orderId, saleId, buyer, slots, live: isLive(status), key, fingerprint, createdAtMs });
    }
  }

  /** The batch, inside the caller's transaction. If that does not commit, the caller must call `undo`. */
  commit(batch: readonly OrderMessage[], nowMs: number, undo: (() => void)[]): { stored: StoredOrder[]; seq: number } {
    const stored = new Array<StoredOrder>(batch.length);
    const inserted: Inserted[] = [];
    const rejected = new Map<Inserted, RejectReason>();
    const repeated: { at: number; message: OrderMessage; slots: string }[] = [];
    const items = new Map<string, ItemState | null>();
    let seq = this.#seq;
    undo.push(() => {
      for (const entry of inserted) this.#tail.remove(entry.tail);
    });

    for (const [at, message] of batch.entries()) {
      const slots = slotsText(message);
      if (!this.#insertRow(seq + 1, message, nowMs)) {
        repeated.push({ at, message, slots });
        continue;
      }
      seq++;
      const entry: Inserted = {
        at,
        message,
        tail: {
          seq,
          orderId: message.orderId,
          saleId: message.saleId,
          buyer: message.buyer,
          slots,
          live: true,
          key: message.key,
          fingerprint: message.fingerprint,
          createdAtMs: nowMs,
        },
      };
      inserted.push(entry);
      const reason = this.#backstop(message, nowMs, items);
      if (reason !== null) rejected.set(entry, reason);
      // In the tail at once: the next order of this batch must see this one's slot and key.
      else this.#tail.add(entry.tail);
    }

    this.#takeStock(inserted, rejected, items);

    for (const entry of inserted) {
      const reason = rejected.get(entry) ?? null;
      if (reason !== null) {
        this.#tail.remove(entry.tail);
        this.#reject.run(reason, BigInt(entry.message.orderId));
        this.#listForBuyer.run(entry.message.buyer, BigInt(entry.message.orderId));
      }
      stored[entry.at] = { order: firstRecord(entry.message, reason, nowMs), inserted: true };
    }
    // Last: what stands stored for a repeat may have been decided in this very batch.
    for (const { at, message, slots } of repeated) {
      stored[at] = { order: this.#sameOrder(message, slots), inserted: false };
    }
    return { stored, seq };
  }

  /** Rejected from the start: no units, no claims, no key. Inside the caller's transaction. */
  reject(batch: readonly OrderMessage[], reason: RejectReason, nowMs: number): { stored: StoredOrder[]; seq: number } {
    let seq = this.#seq;
    const stored = batch.map((message): StoredOrder => {
      const before = this.get(message.orderId);
      if (before !== null) return { order: before, inserted: false };
      this.#insertRow(++seq, message, nowMs);
      this.#reject.run(reason, BigInt(message.orderId));
      this.#listForBuyer.run(message.buyer, BigInt(message.orderId));
      return { order: this.get(message.orderId)!, inserted: true };
    });
    return { stored, seq };
  }

  /** Whether it was inserted: an order that is stored already stays as it is. */
  #insertRow(seq: number, message: OrderMessage, nowMs: number): boolean {
    const { changes } = this.#insert.run(
      seq,
      BigInt(message.orderId),
      BigInt(message.saleId),
      BigInt(message.itemId),
      message.buyer,
      message.quantity,
      slotsText(message),
      message.price.amount * message.quantity,
      message.price.currency,
      message.epoch,
      message.key,
      message.fingerprint,
      nowMs,
      nowMs,
      nowMs + message.payWithinSeconds * 1000,
    );
    return changes === 1;
  }

  /** The transaction has committed: its numbers are used. */
  committed(seq: number): void {
    this.#seq = seq;
  }

  /** Epoch, P2 and P5 below the gate. What they refuse proves the gate wrong, or old. */
  #backstop(message: OrderMessage, nowMs: number, items: Map<string, ItemState | null>): RejectReason | null {
    let item = items.get(message.itemId);
    if (item === undefined) {
      item = (this.#item.get(BigInt(message.itemId)) as unknown as ItemState | undefined) ?? null;
      items.set(message.itemId, item);
    }
    // First: an admission of an older epoch ends like this whatever else there is to say of it.
    if (item === null || item.saleId !== message.saleId || item.epoch !== message.epoch) return 'gate_rebuilt';
    const { slots, buyer, saleId } = message;
    if (slots.length !== message.quantity || new Set(slots).size !== slots.length) return 'limit_reached';
    for (const slot of slots) {
      if (!Number.isInteger(slot) || slot < 1 || slot > item.perBuyerMax) return 'limit_reached';
      if (this.#claimTaken.get(BigInt(saleId), buyer, slot) !== undefined) return 'limit_reached';
    }
    if (this.#tail.holdsAnySlot(saleId, buyer, slots)) return 'limit_reached';
    // Another order has this key: the gate did not know it. Rebuilt, it will, and a retry gets that order.
    const { key } = message;
    if (key !== null && this.#keys.findOrder({ saleId, buyer, key }, nowMs) !== null) return 'gate_rebuilt';
    return null;
  }

  /** P1 below the gate: item rows in id order, one conditional update each; the surplus is the tail of the batch. */
  #takeStock(inserted: Inserted[], rejected: Map<Inserted, RejectReason>, items: Map<string, ItemState | null>): void {
    const byItem = new Map<string, Inserted[]>();
    for (const entry of inserted) {
      if (rejected.has(entry)) continue;
      const orders = byItem.get(entry.message.itemId);
      if (orders) orders.push(entry);
      else byItem.set(entry.message.itemId, [entry]);
    }
    const itemIds = [...byItem.keys()];
    if (itemIds.length > 1) itemIds.sort((a, b) => (BigInt(a) < BigInt(b) ? -1 : 1));
    for (const itemId of itemIds) {
      const orders = byItem.get(itemId)!;
      const { epoch, free } = items.get(itemId)!;
      const wanted = orders.reduce((sum, entry) => sum + entry.message.quantity, 0);
      if (this.#takeUnits.run(wanted, BigInt(itemId), epoch).changes === 1) continue;
      const units = rejectSurplus(orders, free, rejected);
      if (units > 0) this.#takeUnits.run(units, BigInt(itemId), epoch);
    }
  }

  #sameOrder(message: OrderMessage, slots: string): OrderRecord {
    const order = this.get(message.orderId)!;
    const identity = this.#identity.get(BigInt(message.orderId)) as { slots: string; fingerprint: string };
    const same =
      order.saleId === message.saleId &&
      order.itemId === message.itemId &&
      order.buyer === message.buyer &&
      order.quantity === message.quantity &&
      // Those of an order that has ended are free: a later copy of its admission may have been given others.
      (identity.slots === slots || hasGivenBack(order.status)) &&
      identity.fingerprint === message.fingerprint;
    if (!same) {
      throw new TerminalError('order_id_reused', `order ${message.orderId} is stored with other content`);
    }
    return order;
  }

  get(orderId: string): OrderRecord | null {
    const row = this.#get.get(BigInt(orderId)) as OrderRow | undefined;
    return row === undefined ? null : orderOfRow(row);
  }

  /**
   * A buyer's own orders: few, by index, and through the tail. Null: more would have to be looked through than the event loop
   * has time for, as by a filter that nothing matches; `listOfBuyerQuery` then has the same for the reader thread.
   */
  listOfBuyer(filter: OrderFilter & { buyer: string }, page: Page): OrderRecord[] | null {
    const tail = this.#tail.of(filter.buyer);
    if (tail.length > EXAMINED_MAX) return null;
    const before = page.before === null ? null : BigInt(page.before);
    const { where, values } = conditions(filter);
    const ofBuyer = [filter.buyer, ...(before === null ? [] : [before])];
    const theirs = `SELECT order_id FROM buyer_orders WHERE buyer = ? ${before === null ? '' : 'AND order_id < ?'}
      ORDER BY order_id DESC`;
    const examined = where === '' ? page.limit : EXAMINED_MAX;
    const folded = this.#db
      .prepare(
        `SELECT ${COLUMNS} FROM (${theirs} LIMIT ?) b JOIN orders o ON o.id = b.order_id JOIN items i ON i.id = o.item_id
         WHERE 1 = 1 ${where} ORDER BY b.order_id DESC LIMIT ?`,
      )
      .all(...ofBuyer, examined, ...values, page.limit) as unknown as OrderRow[];
    const isEnough = where === '' || folded.length === page.limit;
    if (
      !isEnough &&
      this.#db.prepare(`SELECT 1 FROM (${theirs} LIMIT 1 OFFSET ?)`).get(...ofBuyer, examined) !== undefined
    )
      return null;
    const fresh = tail
      .filter((order) => before === null || BigInt(order.orderId) < before)
      .filter((order) => filter.saleId === undefined || order.saleId === filter.saleId)
      .map((order) => this.get(order.orderId)!)
      .filter((order) => filter.status === undefined || order.status === filter.status);
    const all = new Map([...fresh, ...folded.map(orderOfRow)].map((order) => [order.id, order]));
    return [...all.values()].sort((a, b) => (BigInt(a.id) < BigInt(b.id) ? 1 : -1)).slice(0, page.limit);
  }

  listOfBuyerQuery(filter: OrderFilter & { buyer: string }, page: Page): { sql: string; values: SQLInputValue[] } {
    const { where, values } = conditions(filter);
    const tail = JSON.stringify(this.#tail.of(filter.buyer).map(({ orderId }) => orderId));
    return {
      sql: `SELECT ${COLUMNS} FROM (SELECT order_id FROM buyer_orders WHERE buyer = ?
          UNION SELECT CAST(value AS INTEGER) FROM json_each(?)) b
        JOIN orders o ON o.id = b.order_id JOIN items i ON i.id = o.item_id
        WHERE 1 = 1 ${where} ${page.before === null ? '' : 'AND o.id < ?'} ORDER BY o.id DESC LIMIT ?`,
      values: [filter.buyer, tail, ...values, ...(page.before === null ? [] : [BigInt(page.before)]), page.limit],
    };
  }
}

function slotsText({ slots }: OrderMessage): string {
  return slots.length === 1 ? String(slots[0]) : slots.join(',');
}

/** Lets in the orders that fit, up to the first that does not; returns their units. */
function rejectSurplus(orders: Inserted[], free: number, rejected: Map<Inserted, RejectReason>): number {
  let units = 0;
  let full = false;
  for (const entry of orders) {
    full ||= units + entry.message.quantity > free;
    if (full) rejected.set(entry, 'sold_out');
    else units += entry.message.quantity;
  }
  return units;
}

function conditions(filter: OrderFilter): { where: string; values: SQLInputValue[] } {
  const where: string[] = [];
  const values: SQLInputValue[] = [];
  if (filter.saleId !== undefined) {
    where.push('AND o.sale_id = ?');
    values.push(BigInt(filter.saleId));
  }
  if (filter.status !== undefined) {
    where.push('AND o.status = ?');
    values.push(filter.status);
  }
  return { where: where.join(' '), values };
}

/** The query of an operator's list, which may be long and runs on the reader thread. */
export function listQuery(filter: OrderFilter, page: Page): { sql: string; values: SQLInputValue[] } {
  const { where, values } = conditions(filter);
  const before = page.before === null ? '' : 'AND o.id < ?';
  return {
    sql: `SELECT ${COLUMNS} FROM orders o JOIN items i ON i.id = o.item_id WHERE 1 = 1 ${where} ${before} ORDER BY o.id DESC LIMIT ?`,
    values: [...values, ...(page.before === null ? [] : [BigInt(page.before)]), page.limit],
  };
}
