import { expect } from 'vitest';
import type {
  AdminCall,
  AttemptEnd,
  AttemptOpened,
  Believed,
  Ledger,
  Move,
  Moved,
  NewAttempt,
  Opened,
  Release,
  StoredOrder,
} from '../../src/ledger/port.ts';
import { dueOrders } from '../../src/ledger/works/releases.ts';
import type { LifeDialect } from '../../src/ledger/works/work.ts';
import { actor } from '../../src/model/actor.ts';
import type { Money } from '../../src/model/money.ts';
import { type OrderMessage, type OrderRecord, orderFingerprint } from '../../src/model/order.ts';
import type { PaymentAttempt } from '../../src/model/payment.ts';
import type { ItemRecord, NewSale } from '../../src/model/sale.ts';
import { judgeLife, type Rows } from '../support/life-judge.ts';
import { newSale } from '../support/new-sale.ts';
import type { LedgerUnderTest, State } from './ledger.ts';
import { T0 } from './manual.ts';

/** A ledger whose tables can be read and written behind its back. */
export interface LifeUnderTest extends LedgerUnderTest {
  rows(sql: string): Promise<Rows> | Rows;
  change(sql: string): Promise<unknown>;
  /** Whether claims are in their table as soon as an order is committed. */
  readonly claimsAtOnce: boolean;
  readonly dialect: LifeDialect;
  /** The plan of a SELECT by what the database knows of its tables now, as text. */
  explain(sql: string): Promise<string>;
}

export const SALE = '500';
export const OTHER_SALE = '600';
export const PRICE: Money = { amount: 8000, currency: 'CNY' };
export const PAY_WITHIN_MS = 900_000;
const HOUR_MS = 3600 * 1000;

type MoveOver = Partial<Move>;

/** Orders, moves and payments of a test in few words. */
export class LifeKit {
  readonly world: LifeUnderTest;
  #lastId = 1000;
  readonly #opened = new Map<string, Opened>();
  #captures = 0;

  constructor(world: LifeUnderTest) {
    this.world = world;
  }

  get ledger(): Ledger {
    return this.world.ledger;
  }

  get nowMs(): number {
    return this.world.clock.now();
  }

  id(): string {
    return String(++this.#lastId);
  }

  call(): AdminCall {
    return { by: actor('admin', 'admin'), auditId: this.id(), keyed: null, answer: () => '' };
  }

  /** Items of sale 500 are 501 (voucher) and 502 (poster). */
  async createSale(saleId = SALE, over: Partial<NewSale> = {}): Promise<void> {
    const items = ['voucher', 'poster'].map((code) => ({ code, name: code, price: PRICE, stock: 400 }));
    const window = { opensAtMs: T0, closesAtMs: T0 + 72 * HOUR_MS };
    const sale = newSale({ ...window, perBuyer: 3, payWithinSeconds: PAY_WITHIN_MS / 1000, items, ...over });
    const itemIds = items.map((_, at) => String(Number(saleId) + 1 + at));
    const change = await this.ledger.createSale({ ...sale, id: saleId, itemIds }, this.call());
    expect(change.outcome).toBe('changed');
  }

  message(buyer: string, over: Partial<OrderMessage> = {}): OrderMessage {
    const { saleId = SALE, itemCode = 'voucher', slots = [1] } = over;
    const quantity = slots.length;
    return {
      orderId: this.id(),
      saleId,
      itemId: String(Number(saleId) + (itemCode === 'voucher' ? 1 : 2)),
      itemCode,
      buyer,
      quantity,
      slots,
      price: PRICE,
      payWithinSeconds: PAY_WITHIN_MS / 1000,
      epoch: 1,
      key: null,
      fingerprint: orderFingerprint(itemCode, quantity),
      ...over,
    };
  }

  commit(...batch: OrderMessage[]): Promise<StoredOrder[]> {
    return this.ledger.commitOrders(batch);
  }

  async order(buyer: string, over: Partial<OrderMessage> = {}): Promise<OrderRecord> {
    const [stored] = await this.commit(this.message(buyer, over));
    expect(stored!.order.status).toBe('reserved');
    return stored!.order;
  }

  stored(id: string): Promise<OrderRecord | null> {
    return this.ledger.getOrder(id);
  }

  async item(code = 'voucher', saleId = SALE): Promise<ItemRecord> {
    return (await this.ledger.getSale(saleId))!.items.find((one) => one.code === code)!;
  }

  // Moves

  move(event: Move['event'], order: { id: string }, over: MoveOver = {}): Move {
    return {
      orderId: order.id,
      event,
      by: actor('buyer', 'alice', '192.0.2.1'),
      auditId: this.id(),
      fence: null,
      ...over,
    };
  }

  capture(
    order: OrderRecord,
    attemptId: string,
    over: MoveOver & { reference?: string | null; amount?: Money | null } = {},
  ): Move {
    const { reference = `ref-${attemptId}`, amount = order.amount, ...rest } = over;
    // Every other capture states what it believes of its order, however old that is: it must make no difference.
    const opened = this.#opened.get(attemptId);
    const believed =
      opened?.order.id === order.id && this.#captures++ % 2 === 0 ? { believed: this.believing(opened) } : {};
    return this.move('pay', order, { money: { capture: attemptId, reference, amount }, ...believed, ...rest });
  }

  taken(order: OrderRecord, reference: string, over: MoveOver & { amount?: Money; attemptId?: string } = {}): Move {
    const { amount = order.amount, attemptId = this.id(), ...rest } = over;
    return this.move('pay', order, { money: { taken: reference, attemptId, amount }, ...rest });
  }

  /** Moves, and judges what is stored then. */
  async all(...batch: Move[]): Promise<Moved[]> {
    const moved = await this.ledger.moveOrders(batch);
    expect(moved).toHaveLength(batch.length);
    const last = new Map<string, Moved>();
    for (const [at, one] of moved.entries()) {
      expect(one.order?.id ?? batch[at]!.orderId).toBe(batch[at]!.orderId);
      if (one.order !== null) last.set(one.order.id, one);
    }
    for (const { order } of last.values()) expect(await this.stored(order!.id), 'as it is stored').toEqual(order);
    const { attempt } = moved.at(-1) ?? {};
    if (attempt) expect(await this.ledger.getAttempt(attempt.id), 'as it is stored').toEqual(attempt);
    await this.judge();
    return moved;
  }

  async one(move: Move): Promise<Moved> {
    return (await this.all(move))[0]!;
  }

  /** The outcome of one move. */
  async outcome(move: Move): Promise<string> {
    return (await this.one(move)).outcome;
  }

  /** As `outcome`, for a move that must change nothing at all. */
  async unmoved(move: Move): Promise<string> {
    const before = await this.everything();
    const outcome = await this.outcome(move);
    expect(await this.everything(), `${move.event}: ${outcome}`).toEqual(before);
    return outcome;
  }

  /** All that a move could change. */
  async everything(): Promise<unknown> {
    const tables = [
      ...['items', 'orders', 'payments', 'claims', 'release_outbox', 'order_events', 'audit', 'refunds'],
      ...['seat_claims', 'seat_moves', 'sales', 'item_texts'],
    ];
    const all: Record<string, unknown> = {};
    for (const table of tables) all[table] = await this.world.rows(`SELECT * FROM ${table} ORDER BY 1, 2`);
    return all;
  }

  judge(claims = this.world.claimsAtOnce): Promise<void> {
    return judgeLife((sql) => this.world.rows(sql), { claims });
  }

  // Payments

  attempt(order: { id: string }, over: Partial<NewAttempt> = {}): NewAttempt {
    return {
      id: this.id(),
      orderId: order.id,
      provider: 'sandbox',
      fence: null,
      by: actor('buyer', 'alice'),
      askAfterMs: 10_000,
      ...over,
    };
  }

  async open(order: { id: string }, over: Partial<NewAttempt> = {}): Promise<AttemptOpened> {
    const [opened] = await this.openAll([this.attempt(order, over)]);
    return opened!;
  }

  async openAll(batch: readonly NewAttempt[]): Promise<AttemptOpened[]> {
    const opened = await this.ledger.openAttempts(batch);
    for (const one of opened) if (one.outcome === 'opened') this.#opened.set(one.attempt.id, one);
    return opened;
  }

  async opened(order: { id: string }, over: Partial<NewAttempt> = {}): Promise<string> {
    const opened = await this.open(order, over);
    if (opened.outcome !== 'opened') throw new Error(`should be opened: ${opened.outcome}`);
    return opened.attempt.id;
  }

  believing(opened: Opened): Believed {
    return { ...opened, nowMs: this.nowMs };
  }

  closeAttempt(attemptId: string, end: AttemptEnd): Promise<PaymentAttempt | null> {
    return this.ledger.closeAttempt(attemptId, end, actor('provider', 'sandbox'), this.id());
  }

  /** An order that is paid through a provider. */
  async paid(buyer: string, over: Partial<OrderMessage> = {}): Promise<{ order: OrderRecord; attemptId: string }> {
    const order = await this.order(buyer, over);
    const attemptId = await this.opened(order);
    const moved = await this.one(this.capture(order, attemptId));
    expect(moved.outcome).toBe('moved');
    return { order: moved.order!, attemptId };
  }

  /** Money for an order that has expired meanwhile. */
  async late(buyer: string, over: Partial<OrderMessage> = {}): Promise<{ order: OrderRecord; attemptId: string }> {
    const order = await this.order(buyer, over);
    const attemptId = await this.opened(order);
    await this.closeAttempt(attemptId, { state: 'voided', error: null });
    this.world.clock.advance(PAY_WITHIN_MS);
    expect(await this.outcome(this.move('expire', order))).toBe('moved');
    expect(await this.outcome(this.capture(order, attemptId))).toBe('late');
    return { order: (await this.stored(order.id))!, attemptId };
  }

  /** Makes it due again at that instant of the ledger's clock. */
  async postpone(attemptId: string, error: string, atMs: number): Promise<boolean> {
    const postponed = await this.ledger.postponeAttempts([{ attemptId, error, afterMs: atMs - this.nowMs }]);
    return postponed.length === 1;
  }

  releases(): Promise<Release[]> {
    return this.ledger.releases(100, 0);
  }

  /** The statement that finds orders that are due, with its values in it. */
  dueQuery(limit: number): string {
    const work = dueOrders(limit, undefined, this.world.dialect);
    work.next();
    const { value } = work.next([{ rows: [{ now_ms: this.nowMs }], affected: 0 }]);
    const [step] = value as unknown as [{ sql: string; values: readonly (string | number)[] }];
    let at = 0;
    return step.sql.replace(/\?/g, () => String(step.values[at++]));
  }

  async count(table: string, where = '1 = 1'): Promise<number> {
    const rows = await this.world.rows(`SELECT count(*) AS n FROM ${table} WHERE ${where}`);
    return Number(rows[0]!.n);
  }

  /** Brings the ledger into a state of folding. */
  async reach({ filler, fold, crash }: State): Promise<void> {
    if (filler) {
      const saleId = filler.ahead ? '100' : '900';
      await this.createSale(saleId);
      const buyers = Array.from({ length: filler.orders }, (_, i) => `filler-${String(i).padStart(3, '0')}`);
      await this.commit(...buyers.map((buyer) => this.message(buyer, { saleId, itemCode: 'poster' })));
    }
    if (fold === 'part') for (let slice = 0; slice < 2; slice++) await this.ledger.maintain(0);
    if (fold === 'all') while (await this.ledger.maintain(1000));
    if (crash) await this.world.crash();
  }
}
