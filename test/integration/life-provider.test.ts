import { afterAll, describe, expect, it } from 'vitest';
import type { ProviderNews } from '../../src/payments/port.ts';
import type { Order } from '../../src/views/present.ts';
import { sleep, until } from '../support/fault-wait.ts';
import type { Bank, Plan } from '../support/life-bank.ts';
import {
  attemptsOf,
  auditOf,
  cancel,
  confirm,
  counts,
  now,
  openSale,
  order,
  PRICE,
  pay,
  place,
  refund,
  type Server,
  tell,
  untilStatus,
} from '../support/life-http.ts';
import { type ServedOptions, type ServedShop, serveShop } from '../support/life-served.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { type Answer, cleanUp } from '../support/server.ts';

/** The life of an order over HTTP with a provider that does what providers do: P4, P6. */
const open: ServedShop[] = [];
let calm: Promise<ServedShop> | null = null;

/** A shop of the test's own, for one that changes the bank's mood or pace. */
async function start(options: ServedOptions = {}): Promise<ServedShop> {
  const served = await serveShop(options);
  open.push(served);
  return served;
}

/** One for all others: a bank that is well, and takes no time. */
function shared(): Promise<ServedShop> {
  calm ??= start({ answerWithinMs: 100 });
  return calm;
}

afterAll(async () => {
  await Promise.all(open.map((one) => one.close()));
  await cleanUp();
});

const payWith = (server: Server, one: Order, plan: Plan): Promise<Answer> => pay(server, one, plan, { method: 'bank' });

const deliver = (server: Server, { provider, ...news }: ProviderNews): Promise<Answer> =>
  tell(server, news, { provider });

const first = async (server: { data: string }, one: Order): Promise<string> =>
  (
    await until('the attempt', 3000, async () => {
      const attempts = attemptsOf(server, one);
      return attempts.length > 0 && attempts;
    })
  )[0]!;

const callsOf = ({ calls }: Bank, id: string): string[] =>
  calls.filter(({ attemptId }) => attemptId === id).map(({ what }) => what);

function expectRefusal(answer: Answer, status: number, code: string, shown: Partial<Order>): void {
  expectProblem(answer, status, code);
  expect(answer.body.order).toMatchObject(shown);
}

// Concurrent, since some wait for seconds: each has its own shop.
describe.concurrent('with a bank', () => {
  describe('refund', () => {
    it.each(['down', 'lossy', 'mute'] as const)(
      'P4, P6: with a provider that is %s: 503, the shop goes on selling, and the refund ends by itself',
      async (mood) => {
        const { bank, shop, ...server } = await start();
        const sale = await openSale(server, { stock: 2 });
        const placed = await order(server, sale, 'a');
        await payWith(server, placed, 'captured');
        bank.mood = mood;
        const out = await refund(server, placed);
        expectProblem(out, 503, 'unavailable');
        expect(out.headers.get('retry-after')).toMatch(/^\d+$/);
        expect(shop.readiness().status).toBe('ok');
        expect((await place(server, sale, 'b')).status).toBe(201);
        expect(await now(server, placed)).toMatchObject({ status: 'paid', payment: { state: 'refunding' } });
        expect(await counts(server, sale)).toMatchObject({ sold: 1, reserved: 1 });
        bank.mood = 'well';
        expect(await untilStatus(server, placed, 'refunded', 12_000)).toMatchObject({ payment: { state: 'refunded' } });
        const attempt = await first(server, placed);
        expect(bank.book.get(attempt)).toMatchObject({ state: 'refunded', captures: 1, refunds: 1 });
        expect(await counts(server, sale)).toMatchObject({ free: 1, sold: 0, reserved: 1 });
      },
    );
  });

  describe('pay', () => {
    it('pending: 202; asked again the provider is asked, and what it has taken is not taken twice', async () => {
      const { bank, ...server } = await shared();
      const placed = await order(server, await openSale(server), 'a');
      const pending = await payWith(server, placed, 'pending');
      expect(pending).toMatchObject({ status: 202, body: { status: 'reserved', payment: { state: 'pending' } } });
      const again = await payWith(server, placed, 'captured');
      expectRefusal(again, 409, 'payment_in_progress', { status: 'reserved' });
      expect(again.headers.get('retry-after')).toBe('1');
      bank.finish(await first(server, placed), 'captured');
      expect(await payWith(server, placed, 'captured')).toMatchObject({
        status: 200,
        body: { status: 'paid', version: 2 },
      });
      expect(attemptsOf(server, placed)).toHaveLength(1);
      expect(bank.holds(placed.id)).toBe(PRICE.amount);
    });

    it.each(['lost', 'silent', 'broken', 'travelling'] as const)('%s: 202, and then one capture', async (plan) => {
      const { bank, ...server } = await shared();
      const placed = await order(server, await openSale(server), 'a');
      expect((await payWith(server, placed, plan)).status).toBe(202);
      const again = await payWith(server, placed, 'captured');
      if (plan === 'lost' || plan === 'silent') {
        expect(again).toMatchObject({ status: 200, body: { status: 'paid' } });
      } else {
        // Whether the call will still come in, nobody knows: it is young.
        expectRefusal(again, 409, 'payment_in_progress', { status: 'reserved' });
        expect((await cancel(server, placed)).status).toBe(200);
        bank.arrive(await first(server, placed));
      }
      const paid = plan === 'lost' || plan === 'silent';
      expect(bank.holds(placed.id)).toBe(paid ? PRICE.amount : 0);
      expect(await now(server, placed)).toMatchObject({ status: paid ? 'paid' : 'cancelled' });
    });

    it('news before the call returns: paid at once, and the call says so, whatever it is told itself', async () => {
      for (const plan of ['pending', 'silent', 'captured'] as const) {
        const returns = Promise.withResolvers<void>();
        let calls = 0;
        // The second pause of a capture is the one before its answer.
        const { bank, ...server } = await start({
          answerWithinMs: 2000,
          takesItsTime: async () => {
            if (++calls === 2) await returns.promise;
          },
        });
        const placed = await order(server, await openSale(server), plan);
        const call = payWith(server, placed, plan);
        const attempt = await first(server, placed);
        await until('the bank has it', 2000, () => bank.book.has(attempt));
        bank.finish(attempt, 'captured');
        for (let times = 0; times < 2; times++)
          expect((await deliver(server, bank.newsOf(placed.id)[0]!)).status).toBe(200);
        const paid = await now(server, placed);
        expect(paid).toMatchObject({ status: 'paid', version: 2, payment: { state: 'captured' } });
        returns.resolve();
        expect(await call, plan).toMatchObject({ status: 200, body: paid });
        expect(bank.holds(placed.id)).toBe(PRICE.amount);
      }
    });

    it('P6: less than it costs was taken: 409 amount_mismatch, still reserved, the money goes back by itself', async () => {
      const { bank, ...server } = await shared();
      const sale = await openSale(server);
      const placed = await order(server, sale, 'a');
      expectRefusal(await payWith(server, placed, 'partial'), 409, 'amount_mismatch', { status: 'reserved' });
      await until('it is back', 4000, () => bank.holds(placed.id) === 0);
      expect(await now(server, placed)).toMatchObject({ status: 'reserved', payment: { state: 'refunded' } });
      expect(await payWith(server, placed, 'captured')).toMatchObject({ status: 200, body: { status: 'paid' } });
      expect(bank.holds(placed.id)).toBe(PRICE.amount);
      expect(await counts(server, sale)).toMatchObject({ reserved: 0, sold: 1 });
    });

    it('P6: a webhook with another amount or currency: nothing is sold for it', async () => {
      const { bank, ...server } = await shared();
      const sale = await openSale(server);
      for (const [buyer, amount] of [
        ['a', { amount: 1, currency: 'CNY' }],
        ['b', { amount: 8000, currency: 'USD' }],
      ] as const) {
        const placed = await order(server, sale, buyer);
        await payWith(server, placed, 'pending');
        bank.finish(await first(server, placed), 'captured');
        const [news] = bank.newsOf(placed.id).slice(-1);
        expect((await deliver(server, { ...news!, amount })).status).toBe(200);
        expect(await now(server, placed)).toMatchObject({ status: 'reserved' });
        await until('it is back', 4000, () => bank.holds(placed.id) === 0);
        await until('and known to be', 2000, async () => (await now(server, placed)).payment?.state === 'refunded');
      }
      expect(await counts(server, sale)).toMatchObject({ reserved: 2, sold: 0 });
    });
  });

  describe('with a payment on its way', () => {
    it('confirm: the provider gives up what it has not taken, before the order is paid otherwise', async () => {
      const { bank, ...server } = await shared();
      const placed = await order(server, await openSale(server), 'a');
      await payWith(server, placed, 'pending');
      const confirmed = await confirm(server, placed, `till-${placed.id}`);
      expect(confirmed).toMatchObject({ status: 200, body: { payment: { provider: 'confirm' } } });
      expect(callsOf(bank, await first(server, placed))).toEqual(['capture', 'query', 'void']);
      expect(bank.holds(placed.id)).toBe(0);
      // What it tells of that one later is no news about the order.
      for (const news of bank.newsOf(placed.id)) expect((await deliver(server, news)).status).toBe(200);
      expect(await now(server, placed)).toEqual(confirmed.body);
    });

    it('confirm: what the provider has taken wins', async () => {
      const { bank, ...server } = await shared();
      const placed = await order(server, await openSale(server), 'a');
      await payWith(server, placed, 'lost');
      const shown = { status: 'paid', payment: { state: 'captured', provider: 'bank' } };
      expectRefusal(
        await confirm(server, placed, `till-${placed.id}`),
        409,
        'order_not_payable',
        shown as Partial<Order>,
      );
      expect(bank.holds(placed.id)).toBe(PRICE.amount);
    });

    it('cancel: given up at the provider, then the unit is free; the answer shows it as GET does', async () => {
      const { bank, ...server } = await shared();
      const sale = await openSale(server, { stock: 1 });
      const placed = await order(server, sale, 'a');
      await payWith(server, placed, 'pending');
      const cancelled = await cancel(server, placed);
      expect(cancelled.status).toBe(200);
      expect(cancelled.body).toMatchObject({ status: 'cancelled', payment: { state: 'none', provider: 'bank' } });
      expect(cancelled.body).toEqual(await now(server, placed));
      expect(callsOf(bank, await first(server, placed))).toEqual(['capture', 'query', 'void']);
      for (const news of bank.newsOf(placed.id)) await deliver(server, news);
      expect(await now(server, placed)).toEqual(cancelled.body);
      expect(await counts(server, sale)).toMatchObject({ free: 1, reserved: 0, sold: 0 });
      expect((await place(server, sale, 'b')).status).toBe(201);
    });

    it('cancel: what the provider has taken wins: 409, and the order is paid', async () => {
      const { bank, ...server } = await shared();
      const placed = await order(server, await openSale(server), 'a');
      await payWith(server, placed, 'silent');
      expectRefusal(await cancel(server, placed), 409, 'order_not_cancellable', { status: 'paid' });
      expect(bank.holds(placed.id)).toBe(PRICE.amount);
    });

    it('cancel: a provider that cannot say: 409 payment_in_progress, and nothing is free', async () => {
      const { bank, ...server } = await start();
      const sale = await openSale(server, { stock: 1 });
      const placed = await order(server, sale, 'a');
      await payWith(server, placed, 'pending');
      bank.mood = 'down';
      const refused = await cancel(server, placed);
      expectRefusal(refused, 409, 'payment_in_progress', {
        status: 'reserved',
        payment: (await now(server, placed)).payment,
      });
      expect(refused.headers.get('retry-after')).toBe('1');
      expectProblem(await place(server, sale, 'b'), 409, 'sold_out');
      bank.mood = 'well';
      expect((await cancel(server, placed)).status).toBe(200);
    });

    it('expiry: asked and given up first; while the provider is out the unit stays held, and nobody else waits for it', async () => {
      const { bank, ...server } = await start();
      const sale = await openSale(server, { stock: 3, payWithin: 1 });
      const [stuck, hung] = [await order(server, sale, 'stuck'), await order(server, sale, 'hung')];
      await payWith(server, stuck, 'pending');
      await payWith(server, hung, 'travelling');
      bank.mood = 'mute';
      await sleep(Date.parse(hung.expiresAt!) - Date.now() + 300);
      // Its provider is not asked: it has none. It must not wait for those that are.
      const free = await order(server, sale, 'free');
      const expired = await untilStatus(server, free, 'expired', 8000);
      expect(Date.parse(expired.updatedAt) - Date.parse(free.expiresAt!)).toBeLessThan(2000);
      expect(await counts(server, sale)).toMatchObject({ free: 1, reserved: 2 });
      expectRefusal(await payWith(server, stuck, 'captured'), 409, 'order_not_payable', { status: 'reserved' });
      bank.mood = 'well';
      for (const one of [stuck, hung]) {
        expect(await untilStatus(server, one, 'expired', 15_000)).toMatchObject({ payment: { state: 'none' } });
      }
      bank.arrive();
      expect(bank.holds(hung.id)).toBe(0);
      expect(await counts(server, sale)).toMatchObject({ free: 3, reserved: 0, sold: 0 });
    });
  });

  describe('what a provider tells', () => {
    it('payment.failed: the attempt is over, the order payable; payment.refunded of a paid one: refunded, once', async () => {
      const { bank, ...server } = await shared();
      const sale = await openSale(server, { stock: 1 });
      const placed = await order(server, sale, 'told');
      await payWith(server, placed, 'nameless');
      const failing = await first(server, placed);
      bank.finish(failing, 'declined');
      await deliver(server, bank.newsOf(placed.id)[0]!);
      const reference = bank.referenceOf(failing);
      expect(await now(server, placed)).toMatchObject({ status: 'reserved', payment: { state: 'failed', reference } });
      const paid = await payWith(server, placed, 'captured');
      expect(paid).toMatchObject({ status: 200, body: { status: 'paid' } });
      // Of the money that failed: it is not what this order was paid with.
      await deliver(server, { ...bank.newsOf(placed.id)[0]!, type: 'payment.refunded', id: 'other' });
      expect(await now(server, placed)).toEqual(paid.body);
      bank.chargeBack(attemptsOf(server, placed)[1]!);
      const [back] = bank.newsOf(placed.id).slice(-1);
      for (let times = 0; times < 2; times++) expect((await deliver(server, back!)).status).toBe(200);
      expect(await now(server, placed)).toMatchObject({
        status: 'refunded',
        version: 3,
        payment: { state: 'refunded' },
      });
      expect(await counts(server, sale)).toMatchObject({ free: 1, reserved: 0, sold: 0 });
      expect((await place(server, sale, 'told')).status).toBe(201);
      // A capture that is told again of an order that was refunded: it stays so (mollie/WooCommerce #1252).
      for (const news of bank.newsOf(placed.id)) await deliver(server, news);
      expect(await now(server, placed)).toMatchObject({ status: 'refunded', version: 3 });
      expect(await counts(server, sale)).toMatchObject({ free: 0, reserved: 1, sold: 0 });
      expectProblem(await place(server, sale, 'other'), 409, 'sold_out');
    });

    it('of a payment that was given up: it ends nothing of the next one', async () => {
      const { bank, ...server } = await shared();
      const placed = await order(server, await openSale(server), 'a');
      await payWith(server, placed, 'travelling');
      // Given up by the shop itself, so that the next one may begin.
      const given = await first(server, placed);
      await server.shop.paymentNews({ ...newsOf(bank.name, placed, given), type: 'payment.failed' });
      await payWith(server, placed, 'nameless');
      await deliver(server, { ...newsOf(bank.name, placed, given), type: 'payment.failed' });
      expect(await now(server, placed)).toMatchObject({ status: 'reserved', payment: { state: 'pending' } });
      const [, open] = attemptsOf(server, placed);
      bank.finish(open!, 'captured');
      await deliver(server, bank.newsOf(placed.id).at(-1)!);
      expect(await now(server, placed)).toMatchObject({
        status: 'paid',
        payment: { state: 'captured', reference: bank.referenceOf(open!) },
      });
      expect(await refund(server, placed)).toMatchObject({ status: 200 });
      expect(bank.holds(placed.id)).toBe(0);
    });

    function newsOf(provider: string, one: Order, attempt: string): ProviderNews {
      const reference = `${provider}-${attempt}`;
      return { provider, id: `void-${attempt}`, type: 'payment.captured', orderId: one.id, reference, amount: PRICE };
    }
  });

  describe('late money', () => {
    /** The bank said no, the order ended, and then the buyer paid at the bank after all. */
    async function late(end: 'expire' | 'cancel', stock: number, othersTake: boolean) {
      const served = await shared();
      const { bank, ...server } = served;
      const sale = await openSale(server, { stock, payWithin: 1 });
      const placed = await order(server, sale, 'late');
      expect((await payWith(server, placed, 'declined')).status).toBe(402);
      if (end === 'cancel') await cancel(server, placed);
      else await untilStatus(server, placed, 'expired');
      if (othersTake) expect((await place(server, sale, 'quicker')).status).toBe(201);
      const attempt = await first(server, placed);
      bank.finish(attempt, 'captured');
      for (const news of bank.newsOf(placed.id)) expect((await deliver(server, news)).status).toBe(200);
      return { served, server, bank, sale, placed, attempt };
    }

    it('P6: units are free: a new order of the same buyer has the goods and the money; the old one stays expired', async () => {
      const { server, bank, sale, placed, attempt } = await late('expire', 1, false);
      const revived = await until('the order that revives it', 4000, async () => {
        const { body } = await server.call('GET', `/v1/orders?saleId=${sale}&status=paid`, { buyer: 'late' });
        return (body.data as Order[])[0];
      });
      const payment = { state: 'captured', provider: 'bank', reference: bank.referenceOf(attempt) };
      expect(revived).toMatchObject({ revives: placed.id, status: 'paid', amount: placed.amount, payment });
      expect(await now(server, placed)).toMatchObject({ status: 'expired', payment: null });
      expect(bank.holds(placed.id)).toBe(PRICE.amount);
      expect(await counts(server, sale)).toMatchObject({ free: 0, reserved: 0, sold: 1 });
      // Told again: nothing.
      for (const news of bank.newsOf(placed.id)) await deliver(server, news);
      await sleep(600);
      expect(await now(server, revived)).toEqual(revived);
      expect(await auditOf(server, revived)).toMatchObject([
        { action: 'order.place', actor: 'system:sweeper', detail: { buyer: placed.buyer } },
        { action: 'order.pay', actor: 'system:sweeper', detail: { revives: placed.id } },
      ]);
      expect(await refund(server, revived)).toMatchObject({ status: 200, body: { status: 'refunded' } });
      expect(bank.holds(placed.id)).toBe(0);
    });

    it.each([
      ['sold out meanwhile', 'expire', 1, true],
      ['cancelled by the buyer', 'cancel', 2, false],
    ] as const)('P6: %s: the money goes back by itself', async (_, end, stock, othersTake) => {
      const { server, bank, sale, placed } = await late(end, stock, othersTake);
      await until('it is back', 4000, () => bank.holds(placed.id) === 0);
      const status = end === 'cancel' ? 'cancelled' : 'expired';
      await until('and shown to be', 2000, async () => (await now(server, placed)).payment?.state === 'refunded');
      expect(await now(server, placed)).toMatchObject({ status });
      expect(bank.book.get(await first(server, placed))).toMatchObject({ captures: 1, refunds: 1 });
      expect((await counts(server, sale)).sold).toBe(0);
      for (const news of bank.newsOf(placed.id)) await deliver(server, news);
      await sleep(400);
      expect(bank.holds(placed.id)).toBe(0);
      expect(await now(server, placed)).toMatchObject({ status, payment: { state: 'refunded' } });
    });
  });
});
