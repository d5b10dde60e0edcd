import type { Actor } from '../../model/actor.ts';
import type { OrderRecord, OrderStatus } from '../../model/order.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import { type Believed, DECLINED_MAX, type Move } from '../port/payments.ts';
import type { Declined, MoneyState, OrderState, StoredRefund } from '../rules/decide.ts';
import { ATTEMPT_COLUMNS, attemptOfRow, orderOfRow, refundOfRow, SELECT_ATTEMPTS, SELECT_REFUNDS } from './rows.ts';
import { CLOCK, type LifeDialect, nowOf, query, type Row, type Step, type Work } from './work.ts';

/** An order of the batch: as it was read, and as it will be. */
export interface BatchOrder {
  readonly first: { readonly status: OrderStatus; readonly version: number; readonly fence: bigint };
  order: OrderRecord;
  /** The highest token under which the order was moved or one of its attempts opened. */
  fence: bigint;
  /** As stored: '1' or '1,2'. */
  readonly slots: string;
}

export function raiseFence(entry: BatchOrder, token: bigint): void {
  if (token > entry.fence) entry.fence = token;
}

/** What items are called: it never changes, so that each is read once. */
export class ItemFacts {
  readonly #codes = new Map<string, string>();

  codeOf(itemId: string): string {
    return this.#codes.get(itemId)!;
  }

  /** Reads those that are not known yet: none, after the first orders of an item. */
  *learn(itemIds: ReadonlySet<string>): Work<void> {
    const unknown = [...itemIds].filter((id) => !this.#codes.has(id)).map(BigInt);
    if (unknown.length === 0) return;
    const [found] = yield [query('SELECT id, code FROM items WHERE id IN (?)', unknown)];
    for (const { id, code } of found!.rows) this.#codes.set(id as string, code as string);
  }
}

export interface Wanted {
  readonly orderIds: ReadonlySet<string>;
  /** Beside those of the orders. A new one's own id is not looked for: the primary key knows. */
  readonly attemptIds: ReadonlySet<string>;
  readonly references: ReadonlySet<string>;
  /** Orders that are not read, with their open attempts. */
  readonly believed?: ReadonlyMap<string, Believed>;
  /** Payments of their buyers that were declined. */
  readonly declines?: boolean;
  /** Refunds of a part, by their ids and by what they were made with. */
  readonly refunds?: { readonly ids: ReadonlySet<string>; readonly madeWith: ReadonlySet<string> };
}

const OF_PAYMENT = ATTEMPT_COLUMNS.map((name) => `p.${name}`).join(', ');

/**
 * Of each order: the attempt that is open, and the one that pays it. By index: whoever tries a thousand cards must not make
 * every later look at the order cost a thousand rows.
 */
export function liveAttempts({ live }: LifeDialect, orderIds: readonly bigint[]): Step {
  return query(`SELECT ${OF_PAYMENT} FROM ${live.from} WHERE p.order_id IN (?) AND ${live.where}`, orderIds);
}

/** The newest that neither is open nor pays its order: for those who show it. */
export function newestEnded({ ended }: LifeDialect, orderIds: readonly bigint[]): Step {
  return query(
    `SELECT ${OF_PAYMENT} FROM orders o JOIN payments p ON p.id =
       (SELECT q.id FROM ${ended.from} WHERE q.order_id = o.id AND ${ended.where} ORDER BY q.id DESC LIMIT 1)
     WHERE o.id IN (?)`,
    orderIds,
  );
}

interface DeclinedRow {
  readonly orderId: string;
  readonly atMs: number;
  readonly lifted: boolean;
}

const NONE = new Map<never, never>();

/**
 * Orders and payments that a batch is about, locked and read in one round, and changed in memory while the batch is
 * decided. Rows of orders are locked in the order of their ids, before anything else is: every change of a payment that
 * counts for a move of its order is made under that lock, or is conditional on the state that was read.
 */
export class OrderBatch {
  readonly nowMs: number;
  readonly #orders: ReadonlyMap<string, BatchOrder>;
  readonly #attempts = new Map<string, PaymentAttempt>();
  /** Those that are or were of an order. */
  readonly #byOrder = new Map<string, Set<string>>();
  readonly #byReference = new Map<string, string>();
  /** As they were read; those that are not here are new. */
  readonly #stored: ReadonlyMap<string, PaymentAttempt>;
  /** The tokens under which attempts were opened, by their ids. */
  readonly #fences: Map<string, bigint>;
  readonly #declines: ReadonlyMap<string, readonly DeclinedRow[]>;
  readonly #refunds = new Map<string, StoredRefund>();
  /** Who began those that are new. */
  readonly #beginners = new Map<string, Actor>();

  static *open(
    dialect: LifeDialect,
    items: ItemFacts,
    { orderIds, attemptIds, references, believed = NONE, declines = false, refunds }: Wanted,
  ): Work<OrderBatch> {
    const ids = [...orderIds].map(BigInt);
    const steps: Step[] = [];
    if (ids.length > 0) {
      steps.push(
        query(
          `SELECT id, sale_id, item_id, buyer, quantity, slots, seats, amount, currency, status, reason, created_at, updated_at,
             expires_at, version, fence, revives
           FROM orders ${dialect.byPrimaryKey} WHERE id IN (?) ORDER BY id ${dialect.forUpdate}`,
          ids,
        ),
        // The tokens of those that ended stand in their orders.
        liveAttempts(dialect, ids),
      );
    }
    if (references.size > 0) steps.push(query(`${SELECT_ATTEMPTS} WHERE reference IN (?)`, [...references]));
    // With nothing to read there is no round trip: the writes go out at once.
    const alone = steps.length === 0 && attemptIds.size === 0 && believed.size > 0;
    const others: Step[] = [];
    if (declines) {
      others.push(
        query(
          `SELECT o.id AS of_order, d.order_id, d."at", d.lifted FROM orders o JOIN declines d ON d.buyer = o.buyer
           WHERE o.id IN (?)`,
          ids,
        ),
      );
    }
    if (refunds && refunds.ids.size > 0) {
      others.push(query(`${SELECT_REFUNDS} WHERE id IN (?)`, [...refunds.ids].map(BigInt)));
    }
    if (refunds && refunds.madeWith.size > 0) {
      others.push(
        query(`${SELECT_REFUNDS} WHERE attempt_id IN (?) AND made_with IN (?)`, [...attemptIds].map(BigInt), [
          ...refunds.madeWith,
        ]),
      );
    }
    steps.push(...others);
    // Read after the locks are taken.
    if (!alone) steps.push(CLOCK);
    const found = alone ? [] : [...(yield steps)];
    const nowMs = alone ? Math.max(...[...believed.values()].map((one) => one.nowMs)) : nowOf(found.pop());
    const besides = found.splice(found.length - others.length);
    const declined = declines ? declinesByOrder(besides.shift()!.rows) : NONE;
    const orders = ids.length > 0 ? found.shift()!.rows : [];
    const attempts = new Map<string, PaymentAttempt>();
    const fences = new Map<string, bigint>();
    const ofOrder = new Map<string, bigint>();
    const read = (rows: readonly Row[]): void => {
      for (const row of rows) {
        const attempt = attemptOfRow(row);
        attempts.set(attempt.id, attempt);
        const fence = BigInt(row.fence!);
        fences.set(attempt.id, fence);
        if (fence > (ofOrder.get(attempt.orderId) ?? 0n)) ofOrder.set(attempt.orderId, fence);
      }
    };
    for (const { rows } of found) read(rows);
    for (const { attempt, fence } of believed.values()) {
      attempts.set(attempt.id, attempt);
      fences.set(attempt.id, fence);
    }
    // Almost every attempt that is named is of an order that is named with it.
    const elsewhere = [...attemptIds].filter((id) => !attempts.has(id)).map(BigInt);
    if (elsewhere.length > 0) {
      const [named] = yield [query(`${SELECT_ATTEMPTS} WHERE id IN (?)`, elsewhere)];
      read(named!.rows);
    }
    yield* items.learn(new Set(orders.map((row) => row.item_id as string)));

    const entries = new Map<string, BatchOrder>();
    for (const row of orders) {
      row.item_code = items.codeOf(row.item_id as string);
      const order = orderOfRow(row);
      const { status, version } = order;
      const opened = ofOrder.get(order.id) ?? 0n;
      let fence = BigInt(row.fence!);
      if (opened > fence) fence = opened;
      entries.set(order.id, { first: { status, version, fence }, order, fence, slots: row.slots as string });
    }
    for (const { order, fence } of believed.values()) {
      const { status, version } = order;
      // A capture frees nothing; and nobody's token was stored after that of an attempt that is still open.
      entries.set(order.id, { first: { status, version, fence }, order, fence, slots: '' });
    }
    const loaded = new OrderBatch(entries, attempts, fences, declined, nowMs);
    for (const { rows } of besides) for (const row of rows) loaded.putRefund(refundOfRow(row));
    return loaded;
  }

  private constructor(
    orders: ReadonlyMap<string, BatchOrder>,
    attempts: ReadonlyMap<string, PaymentAttempt>,
    fences: Map<string, bigint>,
    declines: ReadonlyMap<string, readonly DeclinedRow[]>,
    nowMs: number,
  ) {
    this.nowMs = nowMs;
    this.#orders = orders;
    this.#stored = attempts;
    this.#fences = fences;
    this.#declines = declines;
    for (const attempt of this.#stored.values()) this.put(attempt);
  }

  entry(orderId: string): BatchOrder | null {
    return this.#orders.get(orderId) ?? null;
  }

  stateOf({ order, fence }: BatchOrder): OrderState {
    let open: PaymentAttempt | null = null;
    let paying: PaymentAttempt | null = null;
    for (const id of this.#byOrder.get(order.id) ?? []) {
      const attempt = this.#attempts.get(id)!;
      if (attempt.orderId !== order.id) continue;
      if (attempt.state === 'open') open = attempt;
      if (attempt.pays) paying = attempt;
    }
    return { order, fence, open, paying };
  }

  /** `provider`: whose reference it is, where no attempt says so. */
  moneyOf(attemptId: string, provider: string | null, reference: string | null): MoneyState {
    const named = this.#attempts.get(attemptId) ?? null;
    const at = provider ?? named?.provider;
    const referenced =
      at === undefined || reference === null ? undefined : this.#byReference.get(`${at}\n${reference}`);
    return { named, referenced: referenced === undefined ? null : this.#attempts.get(referenced)! };
  }

  /** Of an order and its buyer, within the time that counts. */
  declinedOf({ order }: BatchOrder): Omit<Declined, 'open'> {
    const counted = (this.#declines.get(order.id) ?? []).filter(
      ({ atMs }) => atMs > this.nowMs - DECLINED_MAX.withinMs,
    );
    return {
      order: counted.filter(({ orderId }) => orderId === order.id).length,
      buyer: counted.filter(({ lifted }) => !lifted).length,
    };
  }

  /** The stored refund that a move names; null: none yet. */
  refundOf({ part, refunds }: Move): StoredRefund | null {
    if (part === undefined) return null;
    if ('own' in part) return this.#refunds.get(part.own) ?? null;
    return 'told' in part ? (this.#refunds.get(`${refunds} ${part.told}`) ?? null) : null;
  }

  putRefund(refund: StoredRefund): void {
    this.#refunds.set(refund.id, refund);
    if (refund.madeWith !== null) this.#refunds.set(`${refund.attemptId} ${refund.madeWith}`, refund);
  }

  attempt(attemptId: string): PaymentAttempt | null {
    return this.#attempts.get(attemptId) ?? null;
  }

  /** A new one, under the token of the order's lock. From now on whoever had the lock before is too late. */
  open(attempt: PaymentAttempt, by: Actor, fence: string | null): void {
    this.put(attempt);
    this.#beginners.set(attempt.id, by);
    if (fence === null) return;
    const token = BigInt(fence);
    this.#fences.set(attempt.id, token);
    raiseFence(this.#orders.get(attempt.orderId)!, token);
  }

  has(attemptId: string): boolean {
    return this.#attempts.has(attemptId);
  }

  /** Of a new one. */
  beginnerOf(attemptId: string): Actor {
    return this.#beginners.get(attemptId)!;
  }

  /** The token of its order's lock. An attempt that has moved to another order has none. */
  fenceOf({ id, orderId }: PaymentAttempt): bigint {
    const before = this.#stored.get(id);
    if (before !== undefined && before.orderId !== orderId) return 0n;
    return this.#fences.get(id) ?? 0n;
  }

  put(attempt: PaymentAttempt): void {
    const { id, orderId, provider, reference } = attempt;
    this.#attempts.set(id, attempt);
    const mine = this.#byOrder.get(orderId);
    if (mine === undefined) this.#byOrder.set(orderId, new Set([id]));
    else mine.add(id);
    if (reference !== null) this.#byReference.set(`${provider}\n${reference}`, id);
  }

  /** With what each was; null: it is new. In the order of their ids. */
  changedAttempts(): { before: PaymentAttempt | null; now: PaymentAttempt }[] {
    const changed: { before: PaymentAttempt | null; now: PaymentAttempt }[] = [];
    for (const now of this.#attempts.values()) {
      const before = this.#stored.get(now.id) ?? null;
      if (now !== before) changed.push({ before, now });
    }
    return changed.sort((a, b) => (BigInt(a.now.id) < BigInt(b.now.id) ? -1 : 1));
  }
}

function declinesByOrder(rows: readonly Row[]): Map<string, DeclinedRow[]> {
  const declines = new Map<string, DeclinedRow[]>();
  for (const row of rows) {
    const of = row.of_order as string;
    const one = { orderId: row.order_id as string, atMs: Number(row.at), lifted: Number(row.lifted) === 1 };
    const others = declines.get(of);
    if (others === undefined) declines.set(of, [one]);
    else others.push(one);
  }
  return declines;
}
