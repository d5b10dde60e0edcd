import type { DatabaseSync, SQLInputValue } from 'node:sqlite';
import type { Clock } from '../../../base/clock.ts';
import { invariant, TerminalError } from '../../../base/errors.ts';
import { firstRecord, isLive, type OrderMessage, type OrderRecord, type OrderStatus } from '../../../model/order.ts';
import type { RejectReason } from '../../../model/outcome.ts';
import type { AuditNote } from '../../port/audit.ts';
import { KEY_KEPT_MS, type OrderKeyBinding, type OrderKeyScope } from '../../port/keys.ts';
import type { OrderFilter, StoredOrder } from '../../port/orders.ts';
import type { Page } from '../../port/page.ts';
import {
  claimPlace,
  type Found,
  type ItemState,
  judge,
  keyPlace,
  mustBeSame,
  mustBeWellFormed,
  NOTHING_FOUND,
  slotsText,
} from '../../rules/backstops.ts';
import { parseSeats, seatPlace, seatsText } from '../../rules/seats.ts';
import type { OrderStore, OrderTail } from '../../store.ts';
import { placedNotes, writeNotes } from '../../works/audit.ts';
import { writeReserved } from '../../works/events.ts';
import { type GateRow, PAGE_ORDERS } from '../../works/gate-pages.ts';
import { rowsAmong } from '../../works/orders.ts';
import { Fold } from './fold.ts';
import type { Steps } from './steps.ts';
import type { Tail, TailOrder } from './tail.ts';

const COLUMNS = `CAST(o.id AS TEXT) AS id, CAST(o.sale_id AS TEXT) AS saleId, CAST(o.item_id AS TEXT) AS itemId,
  i.code AS itemCode, o.buyer, o.quantity, o.amount, o.currency, o.status, o.reason,
  o.created_at AS createdAtMs, o.updated_at AS updatedAtMs, o.expires_at AS expiresAtMs, o.version,
  CAST(o.revives AS TEXT) AS revives, o.seats`;

/** A page of what a gate is built from: see gate-pages.ts. */
const GATE_ROWS = `SELECT CAST(id AS TEXT) AS orderId, CAST(item_id AS TEXT) AS itemId, buyer, slots, seats,
  status, idem_key AS key, fingerprint, created_at AS boundAtMs
  FROM orders INDEXED BY orders_sale WHERE sale_id = ? AND id > ? ORDER BY orders.id LIMIT ?`;

/** Orders of one buyer that are read on the event loop at most: some milliseconds. */
export const EXAMINED_MAX = 500;

interface OrderRow extends Omit<OrderRecord, 'amount' | 'seats'> {
  amount: number;
  currency: string;
  seats: string | null;
}

function orderOfRow({ amount, currency, seats, ...row }: OrderRow): OrderRecord {
  const order = { ...row, amount: { amount, currency } };
  return seats === null ? order : { ...order, seats: parseSeats(seats) };
}

/** What the orders need of their store. */
interface On {
  readonly clock: Clock;
  readonly steps: Steps;
  transaction<T>(run: () => T): T;
  read<T>(run: () => T): T;
  /** On the reader thread, for queries that may take long. */
  readElsewhere(sql: string, values: SQLInputValue[]): Promise<unknown[]>;
}

/** An order as the tail is read back from it. */
interface TailRow extends Omit<TailOrder, 'live' | 'seats'> {
  readonly status: OrderStatus;
  readonly itemId: string;
  readonly seated: string | null;
}

/** What a transaction has written; it counts after the commit. */
interface Made {
  readonly stored: StoredOrder[];
  readonly tail: TailOrder[];
  readonly seq: number;
}

/** Orders: the batched insert with its backstops, the tail, and reads that go through both. */
export class Orders implements OrderStore {
  readonly tail: OrderTail;
  readonly #db: DatabaseSync;
  readonly #on: On;
  readonly #tail: Tail;
  readonly #insert;
  readonly #insertSeated;
  readonly #get;
  readonly #reject;
  readonly #claimTaken;
  readonly #seatTaken;
  readonly #keyBound;
  readonly #listForBuyer;
  readonly #takeUnits;
  readonly #item;
  #seq: number;

  constructor(db: DatabaseSync, tail: Tail, on: On) {
    this.#db = db;
    this.#on = on;
    this.#tail = tail;
    const inserting = (more: string, place: string): string =>
      `INSERT INTO orders (seq, id, sale_id, item_id, buyer, quantity, slots, amount, currency, status, epoch, idem_key, fingerprint, created_at, updated_at, expires_at${more})
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'reserved', ?, ?, ?, ?, ?, ?${place}) ON CONFLICT (id) DO NOTHING`;
    this.#insert = db.prepare(inserting('', ''));
    // A value more takes a twentieth of a counted order's time: those have a statement without it.
    this.#insertSeated = db.prepare(inserting(', seats', ', ?'));
    this.#get = db.prepare(`SELECT ${COLUMNS} FROM orders o JOIN items i ON i.id = o.item_id WHERE o.id = ?`);
    this.#reject = db.prepare(
      "UPDATE orders SET status = 'rejected', reason = ?, expires_at = NULL, idem_key = NULL WHERE id = ?",
    );
    this.#claimTaken = db.prepare('SELECT 1 FROM claims WHERE sale_id = ? AND buyer = ? AND slot = ?');
    this.#seatTaken = db.prepare('SELECT 1 FROM seat_claims WHERE item_id = ? AND seat = ?');
    this.#keyBound = db.prepare(
      `SELECT fingerprint, CAST(order_id AS TEXT) AS orderId, created_at AS createdAtMs FROM order_keys
       WHERE sale_id = ? AND buyer = ? AND key = ?`,
    );
    // Rejections are rare: they are written to the buyer's list at once and skip the tail.
    this.#listForBuyer = db.prepare('INSERT INTO buyer_orders (buyer, order_id) VALUES (?, ?)');
    this.#takeUnits = db.prepare(
      `UPDATE items SET reserved = reserved + ?1, rev = rev + 1
       WHERE id = ?2 AND epoch = ?3 AND total - reserved - sold - blocked >= ?1`,
    );
    this.#item = db.prepare(
      `SELECT CAST(i.id AS TEXT) AS id, CAST(i.sale_id AS TEXT) AS saleId, i.code, i.epoch,
         i.total - i.reserved - i.sold - i.blocked AS free, s.per_buyer_max AS perBuyerMax,
         CASE i.kind WHEN 'seated' THEN i.total END AS seats
       FROM items i JOIN sales s ON s.id = i.sale_id WHERE i.id = ?`,
    );
    const last = db.prepare('SELECT max(seq) AS seq FROM orders').get() as { seq: number | null };
    this.#seq = last.seq ?? 0;
    this.#loadTail();
    this.tail = this.#makeTail(new Fold(db, tail));
  }

  /** After a restart: what was committed and not yet folded. */
  #loadTail(): void {
    const rows = this.#db
      .prepare(
        `SELECT seq, CAST(id AS TEXT) AS orderId, CAST(sale_id AS TEXT) AS saleId, buyer, slots, status, idem_key AS key, fingerprint, created_at AS createdAtMs,
           CAST(item_id AS TEXT) AS itemId, seats AS seated
         FROM orders WHERE seq > (SELECT seq FROM folded) AND status <> 'rejected'`,
      )
      .iterate() as Iterable<TailRow>;
    for (const { seq, orderId, saleId, buyer, slots, status, key, fingerprint, createdAtMs, itemId, seated } of rows) {
      const seats = seated === null ? null : { itemId, numbers: parseSeats(seated) };
      this.#tail.add({
        seq,
        orderId,
        saleId,
        buyer,
        slots,
        live: isLive(status),
        key,
        fingerprint,
        createdAtMs,
        seats,
      });
    }
  }

  #makeTail(fold: Fold): OrderTail {
    return {
      get backlog() {
        return fold.backlog;
      },
      fold: (budgetMs) => {
        const { clock, transaction } = this.#on;
        const untilMs = clock.monotonic() + budgetMs;
        if (fold.prepare(this.#seq)) transaction(() => fold.write(() => clock.monotonic() >= untilMs))();
        return fold.backlog > 0;
      },
      liveOf: (buyer) => this.#tail.of(buyer).filter(({ live }) => live),
      takersOf: (itemId, seats) => this.#tail.takersOf(itemId, seats),
    };
  }

  async commit(batch: readonly OrderMessage[], keepEvents: boolean): Promise<StoredOrder[]> {
    for (const message of batch) mustBeWellFormed(message);
    return this.#keep(
      this.#on.transaction(() => {
        const nowMs = this.#on.clock.now();
        const made = this.#write(batch, nowMs);
        const notes = placedNotes(batch, made.stored);
        if (notes.length > 0) this.#on.steps.do(writeNotes(notes, nowMs));
        if (keepEvents) this.#on.steps.do(writeReserved(made.stored));
        return made;
      }),
    );
  }

  /** Rejected from the start: no units, no claims, no key. */
  async reject(batch: readonly OrderMessage[], reason: RejectReason, note?: AuditNote): Promise<StoredOrder[]> {
    for (const message of batch) mustBeWellFormed(message);
    return this.#keep(
      this.#on.transaction(() => {
        const nowMs = this.#on.clock.now();
        this.#items(batch);
        let seq = this.#seq;
        const stored = batch.map((message): StoredOrder => {
          const inserted = this.#insertRow(seq + 1, message, nowMs);
          if (inserted) {
            seq++;
            this.#rejectRow(message, reason);
          }
          return { order: this.#read(message.orderId)!, inserted };
        });
        const notes = placedNotes(batch, stored);
        this.#on.steps.do(writeNotes(note === undefined ? notes : [...notes, note], nowMs));
        return { stored, tail: [], seq };
      }),
    );
  }

  /** Runs in the turn of the commit: the next batch must see the slots and keys of this one. */
  #keep({ stored, tail, seq }: Made): StoredOrder[] {
    for (const order of tail) this.#tail.add(order);
    this.#seq = seq;
    return stored;
  }

  /** Inserts before it checks: that tells which orders exist already, and seldom has to be undone. */
  #write(batch: readonly OrderMessage[], nowMs: number): Made {
    // First: an order of no item cannot be inserted, and this says why.
    const items = this.#items(batch);
    /** Places in the batch. */
    const repeats: number[] = [];
    let seq = this.#seq;
    for (const [at, message] of batch.entries()) {
      if (this.#insertRow(seq + 1, message, nowMs)) seq++;
      else repeats.push(at);
    }
    const found = this.#find(batch, repeats.length === 0 ? NO_ORDERS : presentAmong(batch, repeats), nowMs);
    const { fresh, taken } = judge(batch, items, found);
    for (const { itemId, epoch, units } of taken) {
      const { changes } = this.#takeUnits.run(units, BigInt(itemId), epoch);
      invariant(changes === 1, `item ${itemId} has not the ${units} units that it was read with (P1)`);
    }
    const tail: TailOrder[] = [];
    // In the order of the batch, as they were inserted.
    const stored = fresh.map(({ message, slots, reason }, at): StoredOrder => {
      if (reason !== null) this.#rejectRow(message, reason);
      else tail.push(tailOrder(message, slots, this.#seq + 1 + at, nowMs));
      const { code } = items.get(message.itemId)!;
      const known = message.itemCode === code ? message : { ...message, itemCode: code };
      return { order: firstRecord(known, reason, nowMs), inserted: true };
    });
    return { stored: repeats.length === 0 ? stored : this.#withRepeats(batch, stored), tail, seq };
  }

  #withRepeats(batch: readonly OrderMessage[], made: readonly StoredOrder[]): StoredOrder[] {
    const rows = this.#on.steps.do(rowsAmong(batch.map(({ orderId }) => orderId)));
    mustBeSame(batch, rows);
    const fresh = new Map(made.map((one) => [one.order.id, one]));
    return batch.map(({ orderId }) => {
      const one = fresh.get(orderId) ?? { order: rows.get(orderId)!.order, inserted: false };
      fresh.delete(orderId);
      return one;
    });
  }

  #items(batch: readonly OrderMessage[]): Map<string, ItemState> {
    const items = new Map<string, ItemState>();
    for (const { itemId, orderId } of batch) {
      if (items.has(itemId)) continue;
      const item = this.#item.get(BigInt(itemId)) as unknown as ItemState | undefined;
      if (item === undefined) {
        throw new TerminalError('item_unknown', `order ${orderId} is of item ${itemId}: there is none`);
      }
      items.set(itemId, item);
    }
    return items;
  }

  /** Orders, claims, keys and seats that the batch may collide with, in the tables and in the tail. */
  #find(batch: readonly OrderMessage[], present: ReadonlySet<string>, nowMs: number): Found {
    const claims = new Set<string>();
    const keys = new Set<string>();
    const seats = new Set<string>();
    for (const message of batch) {
      const { saleId, buyer, slots, key } = message;
      if (message.seats !== undefined) this.#findSeats(message.itemId, message.seats, seats);
      for (const slot of slots) {
        if (this.#claimTaken.get(BigInt(saleId), buyer, slot) !== undefined)
          claims.add(claimPlace(saleId, buyer, slot));
      }
      for (const slot of this.#tail.slotsOf(saleId, buyer)) claims.add(claimPlace(saleId, buyer, slot));
      if (key !== null && this.#boundKey({ saleId, buyer, key }, nowMs) !== null)
        keys.add(keyPlace(saleId, buyer, key));
    }
    const nothing = present.size + claims.size + keys.size + seats.size === 0;
    return nothing ? NOTHING_FOUND : { orders: present, claims, keys, seats };
  }

  #findSeats(itemId: string, wanted: readonly number[], found: Set<string>): void {
    for (const [seat] of this.#tail.takersOf(itemId, wanted)) found.add(seatPlace(itemId, seat));
    for (const seat of wanted) {
      if (this.#seatTaken.get(BigInt(itemId), seat) !== undefined) found.add(seatPlace(itemId, seat));
    }
  }

  #boundKey({ saleId, buyer, key }: OrderKeyScope, nowMs: number): OrderKeyBinding | null {
    for (const order of this.#tail.of(buyer)) {
      if (order.key === key && order.saleId === saleId && order.createdAtMs > nowMs - KEY_KEPT_MS) {
        return { fingerprint: order.fingerprint, orderId: order.orderId };
      }
    }
    const row = this.#keyBound.get(BigInt(saleId), buyer, key) as
      | (OrderKeyBinding & { createdAtMs: number })
      | undefined;
    if (row === undefined || row.createdAtMs <= nowMs - KEY_KEPT_MS) return null;
    return { fingerprint: row.fingerprint, orderId: row.orderId };
  }

  /** Whether it was inserted: an order that is stored already stays as it is. */
  #insertRow(seq: number, message: OrderMessage, nowMs: number): boolean {
    const cells = [
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
    ];
    const { seats } = message;
    const inserted =
      seats === undefined ? this.#insert.run(...cells) : this.#insertSeated.run(...cells, seatsText(seats));
    return inserted.changes === 1;
  }

  #rejectRow({ orderId, buyer }: OrderMessage, reason: RejectReason): void {
    this.#reject.run(reason, BigInt(orderId));
    this.#listForBuyer.run(buyer, BigInt(orderId));
  }

  #read(orderId: string): OrderRecord | null {
    const row = this.#get.get(BigInt(orderId)) as OrderRow | undefined;
    return row === undefined ? null : orderOfRow(row);
  }

  async findKey(scope: OrderKeyScope): Promise<OrderKeyBinding | null> {
    return this.#on.read(() => this.#boundKey(scope, this.#on.clock.now()));
  }

  /** Reads the first page on the event loop: most sales have no second one, and need no thread. */
  async page(saleId: string, afterId: string): Promise<GateRow[]> {
    const values = [BigInt(saleId), BigInt(afterId), PAGE_ORDERS];
    if (afterId !== '0') return (await this.#on.readElsewhere(GATE_ROWS, values)) as GateRow[];
    return this.#on.read(() => this.#db.prepare(GATE_ROWS).all(...values) as unknown as GateRow[]);
  }

  async list(filter: OrderFilter, page: Page): Promise<OrderRecord[]> {
    const { buyer } = filter;
    if (buyer === undefined) return this.#longList(listQuery(filter, page));
    const ofBuyer = { ...filter, buyer };
    const few = this.#on.read(() => this.#listOfBuyer(ofBuyer, page));
    return few ?? this.#longList(this.#listOfBuyerQuery(ofBuyer, page));
  }

  async #longList({ sql, values }: { sql: string; values: SQLInputValue[] }): Promise<OrderRecord[]> {
    return ((await this.#on.readElsewhere(sql, values)) as OrderRow[]).map(orderOfRow);
  }

  /**
   * A buyer's orders, by index and from the tail. Null: it would have to read more rows than the event loop has time for, as
   * with a filter that matches nothing; the reader thread then runs `#listOfBuyerQuery`.
   */
  #listOfBuyer(filter: OrderFilter & { buyer: string }, page: Page): OrderRecord[] | null {
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
      .map((order) => this.#read(order.orderId)!)
      .filter((order) => filter.status === undefined || order.status === filter.status);
    const all = new Map([...fresh, ...folded.map(orderOfRow)].map((order) => [order.id, order]));
    return [...all.values()].sort((a, b) => (BigInt(a.id) < BigInt(b.id) ? 1 : -1)).slice(0, page.limit);
  }

  #listOfBuyerQuery(filter: OrderFilter & { buyer: string }, page: Page): { sql: string; values: SQLInputValue[] } {
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

const NO_ORDERS: ReadonlySet<string> = new Set();

/** Of those that could not be inserted, the orders that were there before this batch. */
function presentAmong(batch: readonly OrderMessage[], repeats: readonly number[]): Set<string> {
  const first = new Map<string, number>();
  for (const [at, { orderId }] of batch.entries()) if (!first.has(orderId)) first.set(orderId, at);
  return new Set(
    repeats.map((at) => batch[at]!.orderId).filter((orderId, place) => first.get(orderId) === repeats[place]),
  );
}

function tailOrder(message: OrderMessage, slots: string, seq: number, createdAtMs: number): TailOrder {
  const { orderId, saleId, itemId, buyer, key, fingerprint, seats: numbers } = message;
  const seats = numbers === undefined ? null : { itemId, numbers };
  return { seq, orderId, saleId, buyer, slots, live: true, key, fingerprint, createdAtMs, seats };
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
function listQuery(filter: OrderFilter, page: Page): { sql: string; values: SQLInputValue[] } {
  const { where, values } = conditions(filter);
  const before = page.before === null ? '' : 'AND o.id < ?';
  return {
    sql: `SELECT ${COLUMNS} FROM orders o JOIN items i ON i.id = o.item_id WHERE 1 = 1 ${where} ${before} ORDER BY o.id DESC LIMIT ?`,
    values: [...values, ...(page.before === null ? [] : [BigInt(page.before)]), page.limit],
  };
}
