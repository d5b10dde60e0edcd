import { readdirSync, rmSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createDoorbuster, type Doorbuster, type Order, type PaymentProvider, TerminalError } from '../../src/index.ts';
import { until } from '../support/fault-wait.ts';
import { Bank } from '../support/life-bank.ts';
import { temporary } from '../support/sqlite-ledger.ts';

/** The life of an order by the library: refusals are values, and whoever listens hears every change once. */
const PRICE = { amount: 8000, currency: 'CNY' };
const EVENTS = ['order.reserved', 'order.paid', 'order.cancelled', 'order.expired', 'order.refunded'] as const;

let data: string;
let shop: Doorbuster;
let bank: Bank;
const heard: [string, Order][] = [];

beforeEach(async () => {
  data = temporary();
  bank = new Bank();
  shop = await createDoorbuster({ data, sandbox: true, providers: [bank.provider()] });
  heard.length = 0;
  for (const event of EVENTS) shop.on(event, (order) => heard.push([event, order]));
});
afterEach(async () => {
  await shop.close();
  rmSync(data, { recursive: true, force: true });
});

async function sale(payWithin = 900): Promise<string> {
  const items = [{ code: 'voucher', name: '100 off', price: PRICE, stock: 5 }];
  const made = await shop.sales.create({
    name: 'S',
    opensAt: 0,
    closesAt: Date.now() + 3_600_000,
    perBuyer: 5,
    payWithin,
    items,
  });
  if (!made.ok) throw new Error(made.code);
  return made.sale.id;
}

async function place(saleId: string, buyer = 'alice'): Promise<Order> {
  const placed = await shop.orders.place({ sale: saleId, buyer, item: 'voucher' });
  if (!placed.ok) throw new Error(placed.code);
  return placed.order;
}

it('pay, confirm, cancel, refund: each answers with the order, and each is heard once', async () => {
  const saleId = await sale();
  const [paid, confirmed, cancelled] = [await place(saleId), await place(saleId), await place(saleId)];
  for (let times = 0; times < 2; times++) {
    expect(await shop.orders.pay(paid.id, { method: 'sandbox' })).toMatchObject({
      ok: true,
      state: 'paid',
      order: { status: 'paid', version: 2, payment: { state: 'captured', provider: 'sandbox' } },
    });
    expect(await shop.orders.confirm(confirmed.id, { reference: 'till', amount: PRICE })).toMatchObject({
      ok: true,
      order: { status: 'paid', payment: { provider: 'confirm', reference: 'till' } },
    });
    expect(await shop.orders.cancel(cancelled.id)).toMatchObject({ ok: true, order: { status: 'cancelled' } });
  }
  for (let times = 0; times < 2; times++) {
    expect(await shop.orders.refund(paid.id)).toMatchObject({
      ok: true,
      order: { status: 'refunded', version: 3, payment: { state: 'refunded' } },
    });
  }
  expect((await shop.sales.get(saleId))!.items[0]).toMatchObject({ total: 5, free: 4, reserved: 0, sold: 1 });
  expect(heard.map(([event, { id }]) => [event, id])).toEqual([
    ['order.reserved', paid.id],
    ['order.reserved', confirmed.id],
    ['order.reserved', cancelled.id],
    ['order.paid', paid.id],
    ['order.paid', confirmed.id],
    ['order.cancelled', cancelled.id],
    ['order.refunded', paid.id],
  ]);
  // What is heard is the order as it was stored.
  expect(heard.at(-1)![1]).toEqual(await shop.orders.get(paid.id));
  expect(heard.at(4)![1]).toEqual(await shop.orders.get(confirmed.id));
});

it('refusals are values, with the order as it is', async () => {
  const saleId = await sale();
  const order = await place(saleId);
  expect(await shop.orders.pay(order.id, { method: 'sandbox', token: 'declined' })).toMatchObject({
    ok: false,
    code: 'payment_failed',
    reason: expect.any(String),
    order: { status: 'reserved', payment: { state: 'failed' } },
  });
  // As HTTP says it.
  expect(await shop.orders.pay(order.id, { method: 'nobody' })).toEqual({
    ...{ ok: false, code: 'invalid_request' },
    errors: [{ path: '/method', message: 'is no payment provider of this shop' }],
  });
  const off = { reference: 'r', amount: { ...PRICE, amount: 1 } };
  expect(await shop.orders.confirm(order.id, off)).toMatchObject({
    ok: false,
    code: 'amount_mismatch',
    order: { id: order.id },
  });
  expect(await shop.orders.refund(order.id)).toMatchObject({
    ok: false,
    code: 'order_not_refundable',
    order: { status: 'reserved' },
  });
  const pending = await shop.orders.pay(order.id, { method: 'bank', token: 'pending' });
  expect(pending).toMatchObject({
    ok: true,
    state: 'pending',
    redirectUrl: null,
    order: { payment: { state: 'pending' } },
  });
  expect(await shop.orders.pay(order.id, { method: 'sandbox' })).toMatchObject({
    ok: false,
    code: 'payment_in_progress',
  });
  bank.finish(bank.pending()[0]!.id, 'captured');
  expect(await shop.orders.cancel(order.id)).toMatchObject({
    ok: false,
    code: 'order_not_cancellable',
    order: { status: 'paid', payment: { state: 'captured', provider: 'bank' } },
  });
  await shop.orders.refund(order.id);
  expect(await shop.orders.pay(order.id, { method: 'sandbox' })).toMatchObject({
    ok: false,
    code: 'order_not_payable',
  });
  expect(bank.holds(order.id)).toBe(0);
});

it('an order that is not there, and ids that are none: not_found', async () => {
  for (const id of ['1', 'nonsense', '', '-1', '1.5', '99999999999999999999', ' 1']) {
    expect([id, await shop.orders.pay(id, { method: 'sandbox' })]).toEqual([
      id,
      { ok: false, code: 'not_found', order: null },
    ]);
    const confirmed = await shop.orders.confirm(id, { reference: 'r', amount: PRICE });
    expect([id, confirmed]).toEqual([id, { ok: false, code: 'not_found', order: null }]);
    expect([id, await shop.orders.cancel(id)]).toEqual([id, { ok: false, code: 'not_found', order: null }]);
    expect([id, await shop.orders.refund(id)]).toEqual([id, { ok: false, code: 'not_found', order: null }]);
  }
});

it('what HTTP would refuse as a body does not reach the ledger', async () => {
  const order = await place(await sale());
  const bad = [
    { reference: '', amount: PRICE },
    { reference: 'x'.repeat(201), amount: PRICE },
    { reference: 'r', amount: { amount: Number.NaN, currency: 'CNY' } },
    { reference: 'r', amount: { amount: '8000', currency: 'CNY' } },
    { reference: 'r', amount: null },
    {},
  ];
  for (const taken of bad) {
    expect([taken, await shop.orders.confirm(order.id, taken as never)]).toMatchObject([taken, { ok: false }]);
  }
  expect(await shop.orders.get(order.id)).toEqual(order);
  expect(shop.readiness().status).toBe('ok');
});

it('expiry is heard, and so is the order that late money pays', async () => {
  const saleId = await sale(1);
  const order = await place(saleId);
  await shop.orders.pay(order.id, { method: 'bank', token: 'declined' });
  const [, expired] = await until('it is heard', 5000, () => heard.find(([event]) => event === 'order.expired'));
  expect(expired).toEqual(await shop.orders.get(order.id));
  expect(await shop.orders.pay(order.id, { method: 'sandbox' })).toMatchObject({
    ok: false,
    code: 'order_not_payable',
    order: { status: 'expired' },
  });
  expect((await shop.sales.get(saleId))!.items[0]).toMatchObject({ free: 5, reserved: 0, sold: 0 });
});

it('closing waits for a payment that has begun; after it nothing is begun', async () => {
  const order = await place(await sale());
  const paying = shop.orders.pay(order.id, { method: 'sandbox', token: 'slow' });
  await until('it has begun', 2000, async () => (await shop.orders.get(order.id))?.payment?.state === 'pending');
  const closing = shop.close();
  await expect(shop.orders.pay(order.id, { method: 'bank' })).rejects.toMatchObject({ code: 'unavailable' });
  expect(bank.calls).toEqual([]);
  expect(await paying).toMatchObject({ ok: true, state: 'paid' });
  await closing;
  await expect(shop.orders.cancel(order.id)).rejects.toMatchObject({ code: 'unavailable' });
  shop = await createDoorbuster({ data, sandbox: true });
  expect(await shop.orders.get(order.id)).toMatchObject({ status: 'paid' });
});

describe('P6: providers that could take money and not give it back are refused before anything is opened', () => {
  const good = new Bank({ name: 'cards' }).provider();
  it.each<[string, unknown, RegExp]>([
    ['no array', { cards: good }, /providers must be an array/],
    ['nothing', [null], /providers\[0\]\.name/],
    ['no name', [{ ...good, name: undefined }], /providers\[0\]\.name/],
    ['an empty name', [{ ...good, name: '' }], /providers\[0\]\.name/],
    ['a name of 33 characters', [{ ...good, name: 'x'.repeat(33) }], /at most 32 characters/],
    ['a name of 66 bytes', [{ ...good, name: '卡'.repeat(22) }], /at most 64 bytes/],
    ['a control character', [{ ...good, name: 'my\u0000bank' }], /control characters/],
    ['confirm', [good, { ...good, name: 'confirm' }], /providers\[1\]\.name must not be confirm/],
    ['one name twice', [good, { ...good }], /providers\[1\]\.name is taken.*cards/],
    ['sandbox beside the sandbox', [{ ...good, name: 'sandbox' }], /providers\[0\]\.name is taken.*sandbox/],
    ...(['capture', 'query', 'void', 'refund'] as const).map((call): [string, unknown, RegExp] => [
      `no ${call}`,
      [{ ...good, [call]: undefined }],
      new RegExp(call),
    ]),
  ])('%s', async (_, providers, words) => {
    const other = temporary();
    const given = { data: other, sandbox: true, providers: providers as PaymentProvider[] };
    const refused = await createDoorbuster(given).then(
      (opened) => opened.close(),
      (error: unknown) => error,
    );
    expect(refused).toBeInstanceOf(TerminalError);
    expect(refused).toMatchObject({ code: 'bad_config', message: expect.stringMatching(words) });
    expect(readdirSync(other)).toEqual([]);
    rmSync(other, { recursive: true, force: true });
  });

  it('a name of its own, or the sandbox’s where there is none, is taken', async () => {
    const other = temporary();
    const providers = ['sandbox', 'My Bank', '卡'].map((name) => new Bank({ name }).provider());
    await (await createDoorbuster({ data: other, providers })).close();
    rmSync(other, { recursive: true, force: true });
  });
});
