import fc from 'fast-check';
import { expect, it } from 'vitest';
import { KEY_KEPT_MS, type Move, type Moved } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { Money } from '../../src/model/money.ts';
import type { OrderMessage, OrderRecord, OrderStatus } from '../../src/model/order.ts';
import type { AttemptState, PaymentAttempt } from '../../src/model/payment.ts';
import { LifeKit, type LifeUnderTest, PRICE, SALE } from '../contract/ledger-life-kit.ts';
import { wholeSnapshot } from '../support/snapshot.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

const BUYERS = ['alice', 'bob', 'zoe'];
const KEYS = ['k1', 'k2'];
/** Fewer than three buyers could hold: some orders wait for the end of others. */
const STOCK = 7;
const PER_BUYER = 3;
const PAY_WITHIN_SECONDS = 60;
const CNY1: Money = { amount: 1, currency: 'CNY' };

// Programs

type What =
  | { event: 'cancel' | 'expire' | 'refund' }
  | { event: 'capture'; attempt: number; wrong: boolean; stranger: boolean }
  | { event: 'taken'; reference: number; wrong: boolean }
  | { event: 'revive'; attempt: number };

/** Orders and attempts are meant by their number among those that there are. */
type Op =
  | { do: 'commit'; buyer: string; slots: number[]; key: string | null; poster: boolean }
  | { do: 'again'; order: number }
  | { do: 'move'; moves: { order: number; what: What }[] }
  | { do: 'open'; orders: number[] }
  | { do: 'close'; attempt: number; state: 'failed' | 'voided' }
  | { do: 'refunding' | 'refunded'; attempt: number }
  | { do: 'pass'; seconds: number }
  | { do: 'fill'; ahead: boolean }
  | { do: 'slice' | 'fold' | 'crash' | 'reopen' | 'rebuild' | 'prune' };

/** Mostly the latest: what happens to old ones is soon the same. */
const number = fc.oneof({ weight: 3, arbitrary: fc.nat(2) }, { weight: 1, arbitrary: fc.nat(40) });

const what: fc.Arbitrary<What> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({ event: fc.constantFrom('cancel' as const, 'expire' as const, 'refund' as const) }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      event: fc.constant('capture' as const),
      attempt: number,
      wrong: rarely(),
      stranger: rarely(),
    }),
  },
  { weight: 2, arbitrary: fc.record({ event: fc.constant('taken' as const), reference: fc.nat(30), wrong: rarely() }) },
  { weight: 1, arbitrary: fc.record({ event: fc.constant('revive' as const), attempt: number }) },
);

function rarely(): fc.Arbitrary<boolean> {
  return fc.nat(7).map((n) => n === 7);
}

const op: fc.Arbitrary<Op> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('commit' as const),
      buyer: fc.constantFrom(...BUYERS),
      slots: fc.uniqueArray(fc.integer({ min: 1, max: PER_BUYER }), { minLength: 1, maxLength: 2 }),
      key: fc.option(fc.constantFrom(...KEYS), { freq: 3 }),
      poster: rarely(),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('again' as const), order: number }) },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('move' as const),
      moves: fc.array(fc.record({ order: number, what }), { minLength: 1, maxLength: 5 }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('open' as const),
      orders: fc.array(number, { minLength: 1, maxLength: 3 }),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('close' as const),
      attempt: number,
      state: fc.constantFrom('failed' as const, 'voided' as const),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constantFrom('refunding' as const, 'refunded' as const), attempt: number }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('pass' as const), seconds: fc.constantFrom(1, 30, 60, 90_000) }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('fill' as const), ahead: fc.boolean() }) },
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constantFrom('slice' as const, 'slice' as const, 'fold' as const, 'crash' as const, 'reopen' as const),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('rebuild' as const, 'prune' as const) }) },
);

// The model: what the ledger should say, in the plainest words

interface ModelOrder {
  message: OrderMessage;
  status: OrderStatus;
  version: number;
  expiresAtMs: number;
  atMs: number;
  revives: string | null;
}

interface ModelAttempt {
  id: string;
  order: ModelOrder;
  provider: string;
  state: AttemptState;
  pays: boolean;
  reference: string | null;
  /** Money for so many units, or what came instead. */
  units: number;
}

const MONEY: AttemptState[] = ['captured', 'late', 'refunding', 'refunded'];

class Model {
  readonly orders: ModelOrder[] = [];
  readonly attempts: ModelAttempt[] = [];
  nowMs = 0;

  live(): ModelOrder[] {
    return this.orders.filter(({ status }) => status === 'reserved' || status === 'paid');
  }

  openOf(order: ModelOrder): ModelAttempt | undefined {
    return this.attempts.find((attempt) => attempt.order === order && attempt.state === 'open');
  }

  boundTo(buyer: string, key: string): ModelOrder | undefined {
    return this.orders.find(
      ({ message, status, atMs }) =>
        message.buyer === buyer && message.key === key && status !== 'rejected' && this.nowMs - atMs < KEY_KEPT_MS,
    );
  }

  units(itemId: string, status: OrderStatus): number {
    return this.orders
      .filter((order) => order.message.itemId === itemId && order.status === status)
      .reduce((sum, { message }) => sum + message.quantity, 0);
  }

  /** `reserved`, or why not. */
  verdict({ buyer, slots, key, itemId, quantity }: OrderMessage): string {
    const mine = this.live().filter(({ message }) => message.buyer === buyer);
    if (mine.some(({ message }) => message.slots.some((slot) => slots.includes(slot)))) return 'limit_reached';
    if (key !== null && this.boundTo(buyer, key) !== undefined) return 'gate_rebuilt';
    const taken = this.units(itemId, 'reserved') + this.units(itemId, 'paid');
    return taken + quantity > STOCK ? 'sold_out' : 'reserved';
  }

  #go(order: ModelOrder, status: OrderStatus): Moved['outcome'] {
    order.status = status;
    order.version++;
    return 'moved';
  }

  cancel(order: ModelOrder): Moved['outcome'] {
    if (order.status === 'cancelled') return 'repeat';
    if (order.status !== 'reserved') return 'refused';
    return this.openOf(order) ? 'payment_open' : this.#go(order, 'cancelled');
  }

  expire(order: ModelOrder): Moved['outcome'] {
    if (order.status === 'expired') return 'repeat';
    if (order.status !== 'reserved') return 'refused';
    if (this.nowMs < order.expiresAtMs) return 'not_due';
    return this.openOf(order) ? 'payment_open' : this.#go(order, 'expired');
  }

  refund(order: ModelOrder): Moved['outcome'] {
    if (order.status === 'refunded') return 'repeat';
    if (order.status !== 'paid') return 'refused';
    const paying = this.attempts.find((attempt) => attempt.order === order && attempt.pays)!;
    if (paying.state !== 'refunding' && paying.provider !== 'confirm') return 'refused';
    paying.state = 'refunded';
    return this.#go(order, 'refunded');
  }

  capture(order: ModelOrder, attempt: ModelAttempt, wrong: boolean): Moved['outcome'] {
    if (attempt.order !== order) return 'unknown';
    if (MONEY.includes(attempt.state)) return 'repeat';
    attempt.reference = `ref-${attempt.id}`;
    const open = this.openOf(order);
    const free = order.status === 'reserved' && (open === undefined || open === attempt);
    if (wrong || !free) {
      attempt.state = 'late';
      if (wrong) attempt.units = 0;
      return wrong ? 'amount_mismatch' : 'late';
    }
    attempt.state = 'captured';
    attempt.pays = true;
    return this.#go(order, 'paid');
  }

  taken(order: ModelOrder, reference: string, wrong: boolean, attemptId: string): Moved['outcome'] {
    const used = this.attempts.find((attempt) => attempt.reference === reference);
    if (used !== undefined) return used.order === order ? 'repeat' : 'refused';
    if (order.status !== 'reserved') return 'refused';
    if (wrong) return 'amount_mismatch';
    if (this.nowMs >= order.expiresAtMs) return 'too_late';
    if (this.openOf(order)) return 'payment_open';
    const units = order.message.quantity;
    this.attempts.push({ id: attemptId, order, provider: 'confirm', state: 'captured', pays: true, reference, units });
    return this.#go(order, 'paid');
  }

  revive(order: ModelOrder, attempt: ModelAttempt): Moved['outcome'] {
    const lost = attempt.order;
    if (lost === order) return this.capture(order, attempt, false);
    if (attempt.state !== 'late') return 'refused';
    if (attempt.units !== order.message.quantity) return 'amount_mismatch';
    if (order.status !== 'reserved' || this.openOf(order)) return 'late';
    Object.assign(attempt, { order, state: 'captured', pays: true });
    order.revives = lost.message.orderId;
    return this.#go(order, 'paid');
  }
}

// A run of a program on a ledger and on the model

class Run {
  readonly #kit: LifeKit;
  readonly #model = new Model();
  #fillers = 0;

  constructor(world: LifeUnderTest) {
    this.#kit = new LifeKit(world);
  }

  async start(): Promise<void> {
    const items = ['voucher', 'poster'].map((code) => ({ code, name: code, price: PRICE, stock: STOCK }));
    await this.#kit.createSale(SALE, { items, perBuyer: PER_BUYER });
    // In the order of folding: before and behind the sale of the test.
    const fillers = [{ code: 'voucher', name: 'F', price: PRICE, stock: 100_000 }];
    for (const saleId of ['100', '900']) await this.#kit.createSale(saleId, { items: fillers });
  }

  close(): Promise<void> {
    return this.#kit.world.close();
  }

  #latest<T>(all: readonly T[], number: number): T | undefined {
    return all[all.length - 1 - (number % Math.max(all.length, 1))];
  }

  async step(op: Op): Promise<void> {
    const kit = this.#kit;
    const model = this.#model;
    const { ledger, world } = kit;
    model.nowMs = kit.nowMs;
    switch (op.do) {
      case 'commit':
        await this.#commit(op);
        break;
      case 'again': {
        const order = this.#latest(model.orders, op.order);
        if (order === undefined) return;
        const [stored] = await ledger.commitOrders([order.message]);
        expect([stored!.inserted, stored!.order.status]).toEqual([false, order.status]);
        break;
      }
      case 'move':
        await this.#move(op.moves);
        break;
      case 'open':
        await this.#open(op.orders);
        break;
      case 'close': {
        const attempt = this.#latest(model.attempts, op.attempt);
        if (attempt === undefined) return;
        if (attempt.state === 'open') attempt.state = op.state;
        const closed = await kit.closeAttempt(attempt.id, { state: op.state, error: null });
        expect(closed!.state).toBe(attempt.state);
        break;
      }
      case 'refunding': {
        const attempt = this.#latest(model.attempts, op.attempt);
        if (attempt === undefined) return;
        if (attempt.state === 'captured' || attempt.state === 'late') attempt.state = 'refunding';
        const started = await ledger.startRefund(attempt.id, actor('system', 'test'), kit.id());
        expect(started!.state).toBe(attempt.state);
        break;
      }
      case 'refunded': {
        const attempt = this.#latest(model.attempts, op.attempt);
        if (attempt === undefined) return;
        if (attempt.state === 'refunding' && !attempt.pays) attempt.state = 'refunded';
        expect((await ledger.finishRefund(attempt.id, null))!.state).toBe(attempt.state);
        break;
      }
      case 'pass':
        world.clock.advance(op.seconds * 1000);
        model.nowMs = kit.nowMs;
        break;
      case 'fill': {
        const saleId = op.ahead ? '100' : '900';
        const batch = Array.from({ length: 63 }, () => kit.message(`filler-${++this.#fillers}`, { saleId }));
        await ledger.commitOrders(batch);
        break;
      }
      case 'slice':
        await ledger.maintain(0);
        break;
      case 'fold':
        while (await ledger.maintain(1000));
        break;
      case 'crash':
      case 'reopen':
        await world[op.do]();
        break;
      case 'rebuild':
        await this.rebuild();
        break;
      case 'prune':
        while ((await ledger.pruneKeys(KEY_KEPT_MS)) > 0);
        break;
    }
    await this.#judge();
  }

  async #commit({ buyer, slots, key, poster }: Extract<Op, { do: 'commit' }>): Promise<void> {
    const { ledger } = this.#kit;
    const message = this.#kit.message(buyer, {
      slots,
      key,
      itemCode: poster ? 'poster' : 'voucher',
      payWithinSeconds: PAY_WITHIN_SECONDS,
      epoch: (await this.#kit.item()).epoch,
    });
    const expected = this.#model.verdict(message);
    const [stored] = await ledger.commitOrders([message]);
    expect(stored!.order.reason ?? stored!.order.status, `order ${message.orderId}`).toBe(expected);
    this.#model.orders.push({
      message,
      status: expected === 'reserved' ? 'reserved' : 'rejected',
      version: 1,
      expiresAtMs: this.#kit.nowMs + PAY_WITHIN_SECONDS * 1000,
      atMs: this.#kit.nowMs,
      revives: null,
    });
  }

  async #open(numbers: number[]): Promise<void> {
    const model = this.#model;
    const reserved = model.orders.filter(({ status }, at) => status === 'reserved' || at % 4 === 0);
    const orders = numbers.flatMap((number) => this.#latest(reserved, number) ?? []);
    const wanted = orders.map(({ message }) => this.#kit.attempt({ id: message.orderId }));
    const expected = orders.map((order, at) => {
      if (order.status !== 'reserved' || model.nowMs >= order.expiresAtMs) return 'not_payable';
      if (model.openOf(order)) return 'payment_open';
      const { id } = wanted[at]!;
      const units = order.message.quantity;
      model.attempts.push({ id, order, provider: 'sandbox', state: 'open', pays: false, reference: null, units });
      return 'opened';
    });
    const opened = await this.#kit.openAll(wanted);
    expect(opened.map(({ outcome }) => outcome)).toEqual(expected);
  }

  async #move(moves: { order: number; what: What }[]): Promise<void> {
    const kit = this.#kit;
    const batch: Move[] = [];
    const expected: string[] = [];
    const revs = await this.#revs();
    const before = new Map(this.#model.orders.map((order) => [order, order.version]));
    for (const { order: number, what } of moves) {
      const order = this.#target(number, what);
      if (order === undefined) continue;
      const made = this.#make(order, what);
      if (made === null) continue;
      batch.push(made.move);
      expected.push(made.expected);
    }
    const moved = await kit.ledger.moveOrders(batch);
    expect(moved.map(({ outcome }) => outcome)).toEqual(expected);
    // One transaction: rev rises by one for an item of which units moved, and not otherwise.
    const after = await this.#revs();
    for (const [itemId, rev] of revs) {
      const touched = [...before].some(
        ([order, version]) => order.message.itemId === itemId && order.version !== version,
      );
      expect(after.get(itemId)! - rev, `rev of item ${itemId}`).toBe(touched ? 1 : 0);
    }
  }

  /** Money is mostly for the order that it was meant for, and nothing happens to an order that was refused. */
  #target(number: number, what: What): ModelOrder | undefined {
    const { orders, attempts } = this.#model;
    const own = what.event === 'capture' && !what.stranger ? this.#latest(attempts, what.attempt)?.order : undefined;
    return (
      own ??
      this.#latest(
        orders.filter(({ status }) => status !== 'rejected'),
        number,
      )
    );
  }

  /** The move, and what the model makes of it. */
  #make(order: ModelOrder, what: What): { move: Move; expected: string } | null {
    const kit = this.#kit;
    const model = this.#model;
    const { orderId, quantity } = order.message;
    const record = {
      id: orderId,
      amount: { amount: PRICE.amount * quantity, currency: PRICE.currency },
    } as OrderRecord;
    switch (what.event) {
      case 'cancel':
      case 'expire':
      case 'refund':
        return { move: kit.move(what.event, record), expected: model[what.event](order) };
      case 'capture': {
        const attempt = this.#latest(model.attempts, what.attempt);
        if (attempt === undefined || attempt.provider === 'confirm') return null;
        const move = kit.capture(record, attempt.id, what.wrong ? { amount: CNY1 } : {});
        return { move, expected: model.capture(order, attempt, what.wrong) };
      }
      case 'taken': {
        const reference = `till-${what.reference}`;
        const attemptId = kit.id();
        const move = kit.taken(record, reference, { attemptId, ...(what.wrong ? { amount: CNY1 } : {}) });
        return { move, expected: model.taken(order, reference, what.wrong, attemptId) };
      }
      case 'revive': {
        const attempt = this.#latest(model.attempts, what.attempt);
        if (attempt === undefined || attempt.provider === 'confirm') return null;
        const revives = attempt.order.message.orderId;
        const move = kit.capture(record, attempt.id, { revives });
        return { move, expected: model.revive(order, attempt) };
      }
    }
  }

  async #revs(): Promise<Map<string, number>> {
    const sale = (await this.#kit.ledger.getSale(SALE))!;
    return new Map(sale.items.map(({ id, rev }) => [id, rev]));
  }

  async rebuild(): Promise<void> {
    const { holds, keys } = (await wholeSnapshot(this.#kit.ledger, SALE))!;
    const live = this.#model.live().map(({ message: { orderId, itemId, buyer, slots } }) => ({
      ...{ orderId, itemId, buyer, slots },
    }));
    const sorted = (all: { orderId: string }[]) => all.toSorted((a, b) => Number(a.orderId) - Number(b.orderId));
    expect(sorted(holds), 'P2: the slots of live orders').toEqual(sorted(live));
    const bound = keys.map(({ buyer, key, orderId }) => `${buyer} ${key} ${orderId}`);
    expect(bound.toSorted(), 'P5: keys of orders, ended or not').toEqual(this.#keys().toSorted());
  }

  #keys(): string[] {
    return BUYERS.flatMap((buyer) =>
      KEYS.flatMap((key) => {
        const order = this.#model.boundTo(buyer, key);
        return order === undefined ? [] : [`${buyer} ${key} ${order.message.orderId}`];
      }),
    );
  }

  async #judge(): Promise<void> {
    const { ledger } = this.#kit;
    const model = this.#model;
    const stored = await ledger.storedAmong(model.orders.map(({ message }) => message.orderId));
    const is = ({ id, status, version, revives }: OrderRecord) => `${id} ${status} ${version} ${revives}`;
    expect([...stored.values()].map(is)).toEqual(
      model.orders.map(({ message, status, version, revives }) => `${message.orderId} ${status} ${version} ${revives}`),
    );
    for (const attempt of model.attempts) {
      const { state, pays, orderId } = (await ledger.getAttempt(attempt.id)) as PaymentAttempt;
      const { order } = attempt;
      expect(`${attempt.id} ${state} ${pays} ${orderId}`).toBe(
        `${attempt.id} ${attempt.state} ${attempt.pays} ${order.message.orderId}`,
      );
    }
    for (const { id, reserved, sold, total } of (await ledger.getSale(SALE))!.items) {
      expect([reserved, sold], `P9: units of item ${id}`).toEqual([
        model.units(id, 'reserved'),
        model.units(id, 'paid'),
      ]);
      expect(reserved + sold, 'P1').toBeLessThanOrEqual(total);
    }
    const ended = model.orders.filter(({ status }) => ['cancelled', 'expired', 'refunded'].includes(status));
    const releases = await ledger.releases(1000, 0);
    expect(releases.map(({ orderId }) => orderId).toSorted(), 'P4: once each').toEqual(
      ended.map(({ message }) => message.orderId).toSorted(),
    );
    for (const buyer of BUYERS) {
      const listed = await ledger.listOrders({ buyer }, { limit: 1000, before: null });
      const mine = model.orders.filter(({ message }) => message.buyer === buyer).map(({ message }) => message.orderId);
      expect(listed.map(({ id }) => id).toReversed()).toEqual(mine);
      for (const key of KEYS) {
        const bound = await ledger.findOrderKey({ saleId: SALE, buyer, key });
        expect(bound?.orderId, `P5: ${buyer}’s ${key}`).toBe(model.boundTo(buyer, key)?.message.orderId);
      }
    }
  }

  /** At rest: what is in the tables agrees with itself. */
  async end(): Promise<void> {
    for (const op of ['rebuild', 'crash', 'fold', 'rebuild'] as const) await this.step({ do: op });
    await this.#kit.judge(true);
  }
}

/** The property on one adapter: `make` gives an empty ledger for each run. */
export function ledgerAlive(
  name: string,
  make: () => Promise<LifeUnderTest>,
  runs: { short: number; long: number; opsMax: number },
): void {
  it(
    `P1 P2 P4 P5 P6 P9: whatever happens to orders, and whenever it crashes, it is what the model says (${name})`,
    async () => {
      const program = fc.array(op, { minLength: 10, maxLength: runs.opsMax, size: 'max' });
      await fc.assert(
        fc.asyncProperty(program, async (ops) => {
          const run = new Run(await make());
          try {
            await run.start();
            for (const one of ops) await run.step(one);
            await run.end();
          } finally {
            await run.close();
          }
        }),
        seeded(`life ${name}`, runs),
      );
    },
    LONG_TIMEOUT_MS,
  );
}
