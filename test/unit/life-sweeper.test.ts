import { pino } from 'pino';
import { afterEach, describe, expect, it } from 'vitest';
import { unavailable } from '../../src/base/errors.ts';
import type { OrderRecord } from '../../src/model/order.ts';
import type { PaymentAttempt } from '../../src/model/payment.ts';
import type { Plan } from '../support/life-bank.ts';
import { judgeMoney } from '../support/life-money.ts';
import { BY, LifeWorld, type WorldOptions } from '../support/life-world.ts';

/** What happens without anybody's asking, and what is said when it does not: time is the test's. */
const PAY_WITHIN_S = 60;
const MINUTE_MS = 60_000;

interface Line {
  level: number;
  msg: string;
  orderId?: string;
}

let world: LifeWorld;
let lines: Line[];

async function open(options: Partial<WorldOptions> = {}): Promise<void> {
  lines = [];
  const log = pino({ level: 'warn' }, { write: (line: string) => void lines.push(JSON.parse(line)) });
  world = await LifeWorld.open({ stock: 2, perBuyer: 2, payWithinSeconds: PAY_WITHIN_S, log, ...options });
}

afterEach(() => world.close());

async function place(buyer = 'alice', quantity = 1): Promise<OrderRecord> {
  const request = { saleId: world.saleId, itemCode: 'voucher', buyer, quantity, key: null };
  const placed = await world.until(world.shop.place(request));
  if (!placed.ok) throw new Error(placed.code);
  return placed.order;
}

const many = async (count: number, name: string): Promise<OrderRecord[]> => {
  const request = (at: number) => ({
    saleId: world.saleId,
    itemCode: 'voucher',
    buyer: `${name}${at}`,
    quantity: 1,
    key: null,
  });
  const placed = await world.until(
    Promise.all(Array.from({ length: count }, (_, at) => world.shop.place(request(at)))),
  );
  return placed.map((one) => {
    if (!one.ok) throw new Error(one.code);
    return one.order;
  });
};

const pay = (order: OrderRecord, token: Plan) =>
  world.until(world.shop.payOrder(order.id, { method: 'bank', token }, BY));
const status = async (order: OrderRecord): Promise<string> => (await world.ledger.getOrder(order.id))!.status;
const alerts = (): Line[] => lines.filter(({ level }) => level >= 50);

async function unsettled(kind: string): Promise<number> {
  const text = await world.shop.metrics.registry.metrics();
  return Number(new RegExp(`^doorbuster_payments_unsettled{kind="${kind}"} (\\d+)$`, 'm').exec(text)![1]);
}

it('P4: an order expires at its time, not before, and at most 2 s after it', async () => {
  await open();
  const order = await place();
  await world.advance(PAY_WITHIN_S * 1000 - 1);
  expect(await status(order)).toBe('reserved');
  expect(await pay(order, 'declined')).toMatchObject({ ok: false, code: 'payment_failed' });
  await world.advance(1);
  // By the ledger's clock it is over, whoever has been round: nobody pays it any more.
  expect(await pay(order, 'captured')).toMatchObject({ ok: false, code: 'order_not_payable' });
  expect(world.bank.holds(order.id)).toBe(0);
  await world.advance(300);
  expect(await status(order)).toBe('expired');
  await world.judge();
});

it('a payment that is pending is asked about, and not given up, until the order’s time is over', async () => {
  await open();
  const order = await place();
  await pay(order, 'pending');
  await world.advance(PAY_WITHIN_S * 1000 - 100);
  const asked = world.bank.calls.map(({ what }) => what);
  expect(asked.filter((what) => what === 'query').length).toBeGreaterThan(1);
  expect(asked).not.toContain('void');
  expect(await status(order)).toBe('reserved');
  await world.advance(1500);
  expect(world.bank.calls.at(-1)!.what).toBe('void');
  expect(await status(order)).toBe('expired');
});

describe.each([255, 256, 257, 512])('P10: %i payments that are pending at a bank that hangs', (pending) => {
  it('hold up no other order, are all counted, and end when it answers again', async () => {
    await open({ stock: 600, perBuyer: 1 });
    const paying = await many(pending, 'p');
    await world.until(
      Promise.all(paying.map(({ id }) => world.shop.payOrder(id, { method: 'bank', token: 'pending' }, BY))),
    );
    const unpaid = await many(50, 'u');
    world.bank.mood = 'mute';
    await world.advance(PAY_WITHIN_S * 1000 + 1000);
    const still = async (orders: OrderRecord[]) => {
      const stored = await world.ledger.storedAmong(orders.map(({ id }) => id));
      return [...stored.values()].filter(({ status }) => status === 'reserved').map(({ buyer }) => buyer);
    };
    expect(await still(unpaid)).toEqual([]);
    expect(await still(paying)).toHaveLength(pending);
    await world.advance(10_000);
    expect(await unsettled('stranded')).toBe(pending);
    // Asked about some, and not about each of them again and again.
    const asked = world.bank.calls.filter(({ what }) => what === 'query').length;
    expect(asked).toBeLessThan(pending + 100);
    world.bank.mood = 'well';
    // It has hung for a minute: as long again, and what was not asked about is settled.
    for (let seconds = 0; seconds < 75; seconds++) await world.jump(1000);
    expect((await still(paying)).length, 'those that were asked about in vain wait longer').toBeLessThan(50);
    for (let minutes = 0; minutes < 6; minutes++) await world.jump(MINUTE_MS);
    expect(await still(paying)).toEqual([]);
    expect(await unsettled('stranded')).toBe(0);
    await world.judge();
  });
});

it('P10: more payments than fit into a lane are not all read in every round, and are all looked after', async () => {
  const ORDERS = 1300;
  await open({ stock: ORDERS, perBuyer: 1 });
  const paying = await many(ORDERS, 'p');
  await world.until(
    Promise.all(paying.map(({ id }) => world.shop.payOrder(id, { method: 'bank', token: 'pending' }, BY))),
  );
  // Each question takes a while, but less than a silent provider's.
  const slow = Promise.withResolvers<void>();
  const { ledger } = world;
  const { dueAttempts, getAttempt } = ledger;
  let pages = 0;
  const takesTime = async (limit: number, after?: PaymentAttempt): Promise<PaymentAttempt[]> => {
    pages++;
    world.clock.advance(10);
    return dueAttempts.call(ledger, limit, after);
  };
  const held = async (id: string): Promise<PaymentAttempt | null> => {
    await slow.promise;
    return getAttempt.call(ledger, id);
  };
  await world.jump(PAY_WITHIN_S * 1000);
  Object.assign(ledger, { dueAttempts: takesTime, getAttempt: held });
  await world.advance(5000);
  // Some 15 rounds: every 700 ms a whole pass of seven pages, and in between three, of which the last has no room at all.
  expect(pages).toBeGreaterThan(20);
  expect(pages).toBeLessThan(75);
  Object.assign(ledger, { dueAttempts, getAttempt });
  slow.resolve();
  for (let seconds = 0; seconds < 20; seconds++) await world.jump(1000);
  expect((await ledger.dueOrders(9)).length).toBe(0);
  await world.judge();
});

it('P10: payments that cannot be postponed, since the disk is full, are not asked about again and again', async () => {
  await open({ stock: 250, perBuyer: 1 });
  const orders = await many(201, 'p');
  await world.until(
    Promise.all(orders.map(({ id }) => world.shop.payOrder(id, { method: 'bank', token: 'pending' }, BY))),
  );
  world.bank.mood = 'down';
  const { ledger } = world;
  const { postponeAttempts, probe } = ledger;
  const full = async () => {
    throw unavailable('the disk is full');
  };
  Object.assign(ledger, { postponeAttempts: full, probe: full });
  await world.jump(PAY_WITHIN_S * 1000);
  const before = world.bank.calls.length;
  await world.advance(20_000);
  expect(world.bank.calls.length - before).toBeLessThan(100);
  expect(lines.filter(({ msg }) => msg.includes('order sweeper failed')).length).toBeGreaterThan(0);
  Object.assign(ledger, { postponeAttempts, probe });
  world.bank.mood = 'well';
  for (let seconds = 0; seconds < 20; seconds++) await world.jump(1000);
  expect((await ledger.dueOrders(9)).length).toBe(0);
  await world.judge();
});

it('P10: refunds of a part that cannot be stored, since the disk is full, are not asked for again and again', async () => {
  await open({ stock: 50, perBuyer: 1 });
  const orders = await many(50, 'p');
  for (const order of orders) await pay(order, 'captured');
  world.bank.mood = 'down';
  const part = { amount: { amount: 500, currency: 'CNY' }, madeWith: null };
  const refunds = orders.map(({ id }) => world.shop.refundOrder(id, BY, part).catch(() => null));
  await world.until(Promise.all(refunds));
  const { ledger } = world;
  const { moveOrders, postponeAttempts, postponeRefunds, probe } = ledger;
  const full = async () => {
    throw unavailable('the disk is full');
  };
  Object.assign(ledger, { moveOrders: full, postponeAttempts: full, postponeRefunds: full, probe: full });
  world.bank.mood = 'well';
  const before = world.bank.calls.length;
  await world.advance(20_000);
  const asked = world.bank.calls.slice(before).filter(({ what }) => what === 'refund').length;
  expect(asked, 'those that were under way when it was noticed').toBeLessThan(50);
  expect(lines.filter(({ msg }) => msg.includes('order sweeper failed')).length).toBeGreaterThan(0);
  Object.assign(ledger, { moveOrders, postponeAttempts, postponeRefunds, probe });
  for (let seconds = 0; seconds < 20; seconds++) await world.jump(1000);
  expect(world.rows(`SELECT id FROM refunds WHERE state = 'asked'`)).toEqual([]);
  expect(new Set([...world.bank.book.values()].map(({ back }) => back))).toEqual(new Set([500]));
  await world.judge();
});

it('P10: what is said of a failure, and cannot be stored, is not asked about again and again', async () => {
  await open({ stock: 3 });
  const [part, whole] = await many(2, 'p');
  for (const order of [part!, whole!]) await pay(order, 'captured');
  world.bank.mood = 'down';
  const some = { amount: { amount: 500, currency: 'CNY' }, madeWith: null };
  await world.until(world.shop.refundOrder(part!.id, BY, some).catch(() => null));
  await world.until(world.shop.refundOrder(whole!.id, BY).catch(() => null));
  const { ledger } = world;
  const { postponeAttempts, postponeRefunds } = ledger;
  // As a column too narrow for it, or an encoding that lacks it: the ledger itself is well.
  const refuses = (texts: readonly { error: string }[]): void => {
    if (texts.some(({ error }) => error.includes('bank'))) throw new Error('invalid byte sequence');
  };
  Object.assign(ledger, {
    postponeAttempts: async (all: Parameters<typeof postponeAttempts>[0]) => {
      refuses(all);
      return postponeAttempts.call(ledger, all);
    },
    postponeRefunds: async (all: Parameters<typeof postponeRefunds>[0]) => {
      refuses(all);
      return postponeRefunds.call(ledger, all);
    },
  });
  const before = world.bank.calls.length;
  await world.advance(20_000);
  // After 1, 2, 4, 8 seconds each.
  expect(world.bank.calls.length - before).toBeLessThan(15);
  expect(alerts().filter(({ msg }) => msg.includes('cannot be stored')).length).toBeGreaterThan(2);
  Object.assign(ledger, { postponeAttempts, postponeRefunds });
  world.bank.mood = 'well';
  for (let minutes = 0; minutes < 2; minutes++) await world.jump(MINUTE_MS);
  expect(await status(whole!)).toBe('refunded');
  expect(world.rows(`SELECT id FROM refunds WHERE state = 'asked'`)).toEqual([]);
  await world.judge();
});

it('P6: a payment that is captured at the last instant, and that nobody tells, is found by asking', async () => {
  await open();
  const order = await place();
  await pay(order, 'pending');
  await world.advance(PAY_WITHIN_S * 1000 - 5);
  world.bank.finish(world.bank.pending()[0]!.id, 'captured');
  await world.advance(2000);
  expect(await status(order)).toBe('paid');
});

it('a provider that does not say: the unit stays held, is counted, and after a bound somebody is called, once', async () => {
  await open({ stock: 1 });
  const order = await place();
  await pay(order, 'travelling');
  world.bank.mood = 'down';
  await world.jump(PAY_WITHIN_S * 1000);
  await world.advance(4000);
  expect(await status(order)).toBe('reserved');
  expect(await unsettled('stranded')).toBe(1);
  expect(alerts()).toEqual([]);
  for (let minutes = 0; minutes < 120; minutes++) {
    await world.jump(MINUTE_MS);
    // Between two tries it is stranded, too.
    expect(await unsettled('stranded'), `after ${minutes} minutes`).toBe(1);
  }
  expect(await status(order)).toBe('reserved');
  expect((await world.gate.view(world.saleId))![0]).toMatchObject({ free: 0 });
  expect(alerts()).toHaveLength(1);
  expect(alerts()[0]).toMatchObject({ orderId: order.id });
  // Ever less often: two hours are some 30 questions and not thousands.
  expect(world.bank.calls.length).toBeLessThan(60);

  world.bank.mood = 'well';
  for (let minutes = 0; minutes < 6; minutes++) await world.jump(MINUTE_MS);
  expect(await status(order)).toBe('expired');
  expect(await unsettled('stranded')).toBe(0);
  await world.settle();
  await world.judgeSettled();
});

it('P6: money that cannot go back yet: asked for until it does, counted, and somebody is called', async () => {
  await open({ stock: 1 });
  const order = await place();
  await pay(order, 'declined');
  await world.jump(PAY_WITHIN_S * 1000);
  await world.advance(500);
  expect(await status(order)).toBe('expired');
  await place('bob');
  world.bank.finish([...world.bank.book.keys()][0]!, 'captured');
  await world.until(world.shop.paymentNews(world.bank.news.at(-1)!));
  world.bank.mood = 'down';
  await world.advance(2000);
  expect(world.bank.holds(order.id)).toBe(order.amount.amount);
  expect(await unsettled('owedMoney')).toBe(1);
  for (let minutes = 0; minutes < 60; minutes++) await world.jump(MINUTE_MS);
  expect(alerts().filter(({ orderId }) => orderId === order.id)).toHaveLength(1);
  expect(await unsettled('owedMoney')).toBe(1);
  world.bank.mood = 'well';
  for (let minutes = 0; minutes < 6; minutes++) await world.jump(MINUTE_MS);
  expect(world.bank.holds(order.id)).toBe(0);
  expect(await unsettled('owedMoney')).toBe(0);
  await world.settle();
  await judgeMoney((sql) => world.rows(sql), world.bank);
});

it('late money of several units: all or nothing, by the buyer’s limit', async () => {
  await open({ stock: 4 });
  const order = await place('alice', 2);
  await pay(order, 'declined');
  await world.jump(PAY_WITHIN_S * 1000);
  await world.advance(500);
  // One slot is taken by another order: two units do not fit any more, and one is not what was paid for.
  const other = await place('alice');
  await pay(other, 'captured');
  world.bank.finish(world.bank.of(order.id)[0]!.id, 'captured');
  await world.settle();
  expect(world.bank.holds(order.id)).toBe(0);
  expect(world.rows('SELECT id FROM orders WHERE revives IS NOT NULL')).toEqual([]);
  await world.judgeSettled();
});

it('P6: news of a payment that was given up do not end the next one (its reference was never told)', async () => {
  await open();
  const order = await place();
  await pay(order, 'nameless');
  await world.jump(31_000);
  await pay(order, 'nameless');
  const [first, second] = [...world.bank.book.keys()];
  expect(world.bank.book.get(first!)!.state).toBe('voided');
  // The bank says that the first has failed: so it has.
  for (const news of world.bank.news) await world.until(world.shop.paymentNews(news));
  expect(await world.ledger.getAttempt(second!)).toMatchObject({ state: 'open' });
  world.bank.finish(second!, 'captured');
  await world.until(world.shop.paymentNews(world.bank.news.at(-1)!));
  expect(await status(order)).toBe('paid');
  expect(await world.ledger.getAttempt(second!)).toMatchObject({ state: 'captured', pays: true });
  await world.settle();
  await world.judgeSettled();
});

it.each(['silent', 'pending', 'declined'] as const)(
  'P6: news in the wrong order: money that came and went (%s) buys nothing',
  async (plan) => {
    await open();
    const order = await place();
    await pay(order, plan);
    const [id] = [...world.bank.book.keys()];
    world.bank.finish(id!, 'captured');
    world.bank.chargeBack(id!);
    for (const news of world.bank.news.toReversed()) await world.until(world.shop.paymentNews(news));
    expect(await status(order)).toBe('reserved');
    for (const news of world.bank.news) await world.until(world.shop.paymentNews(news));
    expect(await status(order)).toBe('reserved');
    expect(await pay(order, 'captured')).toMatchObject({ ok: true, state: 'paid' });
    await world.settle();
    await world.judgeSettled();
  },
);

it('P6: news of a provider that cannot be asked do not overrule what has come since', async () => {
  await open();
  const order = await place();
  await pay(order, 'pending');
  const [id] = [...world.bank.book.keys()];
  world.bank.finish(id!, 'captured');
  world.bank.mood = 'mute';
  // It is asked about, and does not answer for a while.
  world.begin('news', world.shop.paymentNews(world.bank.news[0]!));
  await world.quiet();
  world.bank.chargeBack(id!);
  world.bank.mood = 'well';
  world.begin('news', world.shop.paymentNews(world.bank.news[1]!));
  await world.advance(20_000);
  // Both were taken in, or will be told again; nobody tells them again of his own accord.
  expect(await status(order)).not.toBe('paid');
  await world.settle();
  expect(await status(order)).not.toBe('paid');
  await world.judgeSettled();
});

it.each(['down', 'mute'] as const)(
  'P6: news that are told again while the provider is %s do not buy with money that is gone',
  async (mood) => {
    await open();
    const order = await place();
    await pay(order, 'lost');
    world.bank.chargeBack([...world.bank.book.keys()][0]!);
    const [captured] = world.bank.news;
    await world.until(world.shop.paymentNews(captured!));
    expect(await status(order)).toBe('reserved');
    // It was asked, and said that the money is back. Now it cannot be asked, and repeats what it told first.
    world.bank.mood = mood;
    await world.until(world.shop.paymentNews(captured!).catch(() => false));
    expect(await status(order)).toBe('reserved');
    await world.settle();
    await world.judgeSettled();
  },
);

it.each(['down', 'mute'] as const)(
  'P6: a capture that is told once, of a payment that was closed, while the provider is %s, is found all the same',
  async (mood) => {
    await open();
    const order = await place();
    await pay(order, 'declined');
    // The buyer tries again at the bank, and it works; it is told while nobody can be asked, and never again.
    world.bank.finish([...world.bank.book.keys()][0]!, 'captured');
    world.bank.mood = mood;
    expect(await world.until(world.shop.paymentNews(world.bank.news.at(-1)!))).toBe(true);
    expect(await status(order)).toBe('reserved');
    await world.reopen();
    await world.advance(5_000);
    expect(await status(order)).toBe('reserved');
    await world.settle({ tells: false });
    expect(await status(order)).toBe('paid');
    await world.judgeSettled();
  },
);

it.each(['pending', 'voided'] as const)(
  'P6: a capture that is told of a payment that was closed, while its provider says %s, buys nothing',
  async (state) => {
    await open();
    const order = await place();
    await pay(order, 'declined');
    const [id] = [...world.bank.book.keys()];
    const [told] = world.bank.news;
    const intent = world.bank.book.get(id!)!;
    world.bank.book.set(id!, { ...intent, state });
    await world.until(world.shop.paymentNews({ ...told!, type: 'payment.captured' }));
    expect(await status(order)).toBe('reserved');
    await world.settle({ tells: false });
    await world.judgeSettled();
  },
);

it('P7: after a restart with a clock that stepped back orders can still be paid and cancelled', async () => {
  await open();
  const [paid, cancelled] = [await place('alice'), await place('bob')];
  for (const order of [paid, cancelled]) await pay(order, 'declined');
  world.crash();
  world.clock.step(-20_000);
  await world.reopen();
  expect(await pay(paid, 'captured')).toMatchObject({ ok: true, state: 'paid' });
  expect(await world.until(world.shop.cancelOrder(cancelled.id, BY))).toMatchObject({ ok: true });
});

it('a million open orders cost no scan of all: what is due is found by index', async () => {
  await open({ stock: 3000, perBuyer: 2000 });
  // Many that are not due, and one that is.
  for (let n = 0; n < 2000; n++)
    world.begin(
      'place',
      world.shop.place({ saleId: world.saleId, itemCode: 'voucher', buyer: 'crowd', quantity: 1, key: null }),
    );
  await world.quiet();
  const plan = world.rows(
    `EXPLAIN QUERY PLAN SELECT id FROM orders o WHERE o.status = 'reserved' AND o.expires_at <= 0 ORDER BY o.expires_at LIMIT 1`,
  );
  expect(JSON.stringify(plan)).toMatch(/USING (COVERING )?INDEX/);
  expect(JSON.stringify(plan)).not.toMatch(/SCAN/);
});
