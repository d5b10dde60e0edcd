import type { OrderRecord, OrderStatus } from '../../model/order.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import type { Value } from '../sql/session.ts';
import type { MoneyState, OrderState } from './decide.ts';
import { attemptOfRow, orderOfRow, SELECT_ATTEMPTS } from './rows.ts';
import { CLOCK, type LifeDialect, nowOf, query, type Step, type Work } from './step.ts';

/** An order of the batch: as it was read, and as it will be. */
export interface Entry {
  readonly first: { readonly status: OrderStatus; readonly version: number; readonly fence: bigint };
  order: OrderRecord;
  fence: bigint;
  /** As stored: '1' or '1,2'. */
  readonly slots: string;
  readonly seated: boolean;
}

export interface Wanted {
  readonly orderIds: ReadonlySet<string>;
  readonly attemptIds: ReadonlySet<string>;
  readonly references: ReadonlySet<string>;
}

/**
 * Orders and payments that a batch is about, locked and read in one round, and changed in memory while the batch is
 * decided. Rows of orders are locked in the order of their ids, before anything else is: every change of a payment that
 * counts for a move of its order is made under that lock, or is conditional on the state that was read.
 */
export class Book {
  readonly nowMs: number;
  readonly #orders: ReadonlyMap<string, Entry>;
  readonly #attempts = new Map<string, PaymentAttempt>();
  /** Those that are or were of an order. */
  readonly #byOrder = new Map<string, Set<string>>();
  readonly #byReference = new Map<string, string>();
  /** As they were read; those that are not here are new. */
  readonly #stored: ReadonlyMap<string, PaymentAttempt>;

  static *open(dialect: LifeDialect, { orderIds, attemptIds, references }: Wanted): Work<Book> {
    const ids = [...orderIds].map(BigInt);
    const steps: Step[] = [
      query(
        `SELECT id, sale_id, item_id, buyer, quantity, slots, amount, currency, status, reason, created_at, updated_at,
           expires_at, version, fence, revives
         FROM orders ${dialect.byPrimaryKey} WHERE id IN (?) ORDER BY id ${dialect.forUpdate}`,
        ids,
      ),
      query('SELECT id, code, kind FROM items WHERE id IN (SELECT item_id FROM orders WHERE id IN (?))', ids),
      // Which of them count is looked at here: SQLite would take the index of all that were ever paid for it.
      query(`${SELECT_ATTEMPTS} WHERE order_id IN (?)`, ids),
      CLOCK,
    ];
    const also = (where: string, value: Value): void =>
      void steps.push(query(`${SELECT_ATTEMPTS} WHERE ${where}`, value));
    if (attemptIds.size > 0) also('id IN (?)', [...attemptIds].map(BigInt));
    if (references.size > 0) also('reference IN (?)', [...references]);
    const [orders, items, ofOrders, clock, ...named] = yield steps;

    const itemsById = new Map(items!.rows.map((row) => [row.id as string, row]));
    const entries = new Map<string, Entry>();
    for (const row of orders!.rows) {
      const item = itemsById.get(row.item_id as string)!;
      const order = orderOfRow({ ...row, item_code: item.code! });
      const fence = BigInt(row.fence as string);
      entries.set(order.id, {
        first: { status: order.status, version: order.version, fence },
        order,
        fence,
        slots: row.slots as string,
        seated: item.kind === 'seated',
      });
    }
    const counting = ofOrders!.rows.map(attemptOfRow).filter(({ state, pays }) => state === 'open' || pays);
    const attempts = [...counting, ...named.flatMap(({ rows }) => rows.map(attemptOfRow))];
    return new Book(entries, attempts, nowOf(clock));
  }

  private constructor(orders: ReadonlyMap<string, Entry>, attempts: readonly PaymentAttempt[], nowMs: number) {
    this.nowMs = nowMs;
    this.#orders = orders;
    this.#stored = new Map(attempts.map((attempt) => [attempt.id, attempt]));
    for (const attempt of this.#stored.values()) this.put(attempt);
  }

  entry(orderId: string): Entry | null {
    return this.#orders.get(orderId) ?? null;
  }

  stateOf({ order, fence }: Entry): OrderState {
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
