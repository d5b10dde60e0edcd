import { rmSync } from 'node:fs';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createDoorbuster, type Doorbuster, type PaymentProvider } from '../../src/index.ts';
import { temporary } from '../support/sqlite-ledger.ts';

/** Adapters are other people's code: whatever one answers, its money and the goods agree (P4, P6), and somebody is told. */
const PRICE = { amount: 8000, currency: 'CNY' };
const CAPTURED = { state: 'captured', reference: 'r', amount: PRICE };

interface Line {
  level: number;
  msg: string;
}

let data: string;
let shop: Doorbuster;
let sale: string;
let orderId: string;
let buyers = 0;
let lines: Line[];
let answers: { capture: unknown; query: unknown; void: unknown; refund: unknown };
let calls: string[];

beforeAll(async () => {
  data = temporary();
  const answer = (call: keyof typeof answers) => async (): Promise<never> => {
    calls.push(call);
    return answers[call] as never;
  };
  const provider: PaymentProvider = {
    ...{ name: 'cards', capture: answer('capture'), query: answer('query') },
    ...{ void: answer('void'), refund: answer('refund') },
  };
  const log = pino({ level: 'error' }, { write: (line: string) => void lines.push(JSON.parse(line) as Line) });
  shop = await createDoorbuster({ data, providers: [provider], log });
  const items = [{ code: 'voucher', name: '100 off', price: PRICE, stock: 100 }];
  const made = await shop.sales.create({ name: 'S', opensAt: 0, closesAt: Date.now() + 3_600_000, items });
  if (!made.ok) throw new Error(made.code);
  sale = made.sale.id;
});
afterAll(async () => {
  await shop.close();
  rmSync(data, { recursive: true, force: true });
});

beforeEach(async () => {
  lines = [];
  calls = [];
  const id = `r${++buyers}`;
  const captured = { ...CAPTURED, reference: id };
  answers = { capture: captured, query: captured, void: captured, refund: { reference: null } };
  const placed = await shop.orders.place({ sale, buyer: `b${buyers}`, item: 'voucher' });
  if (!placed.ok) throw new Error(placed.code);
  orderId = placed.order.id;
});
afterEach(async () => {
  expect((await shop.check()).findings).toEqual([]);
});

const pay = () => shop.orders.pay(orderId, { method: 'cards' });

describe('P6: a captured payment pays its order, whatever its reference is', () => {
  it.each<[string, unknown, string | null]>([
    ['a number', 4711, '4711'],
    ['as long as it may be', 'é'.repeat(256), 'é'.repeat(256)],
    ['too long', 'é'.repeat(257), null],
    ['of 4 000 bytes', 'r'.repeat(4000), null],
    ['with U+0000', 'ref\u0000', null],
    ['ill-formed', 'r\ud800', null],
    ['empty', '', null],
    ['missing', undefined, null],
    ['null', null, null],
    ['an object', { id: 'r' }, null],
  ])('%s', async (_, reference, stored) => {
    answers.capture = { ...CAPTURED, reference };
    const payment = { state: 'captured', reference: stored };
    expect(await pay()).toMatchObject({ ok: true, state: 'paid', order: { status: 'paid', payment } });
    expect(lines.map(({ msg }) => msg)).toEqual(
      stored === null ? ['a payment is kept without its reference: the provider’s cannot be stored'] : [],
    );
    expect(await shop.orders.refund(orderId)).toMatchObject({ ok: true, order: { status: 'refunded' } });
    expect(calls).toEqual(['capture', 'refund']);
  });
});

it.each<[string, unknown, string]>([
  ['none', undefined, 'declined'],
  ['no text', 51, 'declined'],
  ['nothing but control characters', '\u0000\n', 'declined'],
  ['U+0000 and line breaks', 'card\u0000refused:\r\ncode 51', 'card refused: code 51'],
  ['too long', 'x'.repeat(600), 'x'.repeat(500)],
])('a decline whose reason is %s is a decline', async (_, reason, told) => {
  answers.capture = { state: 'declined', reference: 'bad\u0000', reason };
  expect(await pay()).toMatchObject({ ok: false, code: 'payment_failed', reason: told });
  answers.capture = { ...CAPTURED, reference: `again-${orderId}` };
  expect(await pay()).toMatchObject({ ok: true, state: 'paid' });
});

const NO_ANSWERS: [string, unknown][] = [
  ['nothing', undefined],
  ['a word', 'ok'],
  ['a state that there is not', { ...CAPTURED, state: 'success' }],
  ['money without its amount', { state: 'captured', reference: 'r' }],
  ['money that is a number', { ...CAPTURED, amount: 8000 }],
  ['a fraction', { ...CAPTURED, amount: { ...PRICE, amount: 80.5 } }],
  ['an amount that is text', { ...CAPTURED, amount: { ...PRICE, amount: '8000' } }],
  ['no currency', { ...CAPTURED, amount: { amount: 8000 } }],
  ['a part that is a number', { ...CAPTURED, refunded: 10 }],
];

describe('P4, P6: what is no answer is a call that failed: the payment is pending, and the provider is asked', () => {
  it.each(NO_ANSWERS)('capture: %s', async (_, answer) => {
    answers.capture = answer;
    expect(await pay()).toMatchObject({ ok: true, state: 'pending', order: { payment: { state: 'pending' } } });
    expect(lines.map(({ msg }) => msg)).toEqual([
      'the provider cards answered capture with something that is no answer',
    ]);
    expect(await pay()).toMatchObject({ ok: true, state: 'paid' });
    expect(calls).toEqual(['capture', 'query']);
  });

  it.each(NO_ANSWERS)('query and void: %s', async (_, answer) => {
    answers.capture = { state: 'pending' };
    answers.query = answer;
    expect(await pay()).toMatchObject({ ok: true, state: 'pending', redirectUrl: null });
    expect(await shop.orders.cancel(orderId)).toMatchObject({ ok: false, code: 'payment_in_progress' });
    answers.query = { state: 'unknown' };
    answers.void = answer;
    expect(await shop.orders.cancel(orderId)).toMatchObject({ ok: false, code: 'payment_in_progress' });
    expect(lines.map(({ msg }) => msg)).toEqual([
      'the provider cards answered query with something that is no answer',
      'the provider cards answered void with something that is no answer',
    ]);
    answers.void = { state: 'voided' };
    expect(await shop.orders.cancel(orderId)).toMatchObject({ ok: true, order: { status: 'cancelled' } });
  });

  it.each([
    ['nothing', undefined],
    ['a word', 'ok'],
    ['neither', {}],
    ['a flag', { refused: true }],
  ])('refund: %s', async (_, answer) => {
    await pay();
    answers.refund = answer;
    await expect(shop.orders.refund(orderId)).rejects.toThrow('no answer');
    expect(await shop.orders.get(orderId)).toMatchObject({ status: 'paid', payment: { state: 'refunding' } });
    expect(lines[0]!.msg).toBe('the provider cards answered refund with something that is no answer');
    answers.refund = { reference: 'back\u0000' };
    expect(await shop.orders.refund(orderId)).toMatchObject({ ok: true, order: { status: 'refunded' } });
  });
});
