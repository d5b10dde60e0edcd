import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Order } from '../../src/views/present.ts';
import { bearer } from '../support/distributed-calls.ts';
import { sleep, until } from '../support/fault-wait.ts';
import {
  attemptsOf,
  auditOf,
  cancel,
  confirm,
  counts,
  now,
  openSale,
  order,
  PAYMENTS,
  PRICE,
  pay,
  place,
  refund,
  tell,
  untilStatus,
} from '../support/life-http.ts';
import { CALM, expectProblem, openStream } from '../support/openapi-wire.ts';
import { type Answer, cleanUp, startServer, type TestServer } from '../support/server.ts';

/** The life of an order over HTTP, as docs/reference/api.md has it, with the sandbox provider: a server in a process of its own. */
let server: TestServer;

beforeAll(async () => {
  server = await startServer({ env: { ...CALM, ...PAYMENTS } });
});
afterAll(cleanUp);

/** A refusal shows the state that won. */
function expectRefusal(answer: Answer, status: number, code: string, shown: Partial<Order>): void {
  expectProblem(answer, status, code);
  expect(answer.body.order).toMatchObject(shown);
}

function expectReplay(answer: Answer, first: Answer): void {
  expect(answer.headers.get('idempotent-replayed')).toBe('true');
  expect([answer.status, answer.body]).toEqual([first.status, first.body]);
}

const captured = (reference: unknown = expect.stringMatching(/^sandbox-\d+$/)) => ({
  state: 'captured',
  provider: 'sandbox',
  reference,
  refunded: null,
});

// Concurrent, since some wait for seconds: each has its own sale and buyers.
describe.concurrent('with the sandbox', () => {
  describe('a provider that takes its time', () => {
    it('a provider that never answers: 202 pending, 409 payment_in_progress meanwhile, the outcome by webhook', async () => {
      const sale = await openSale(server);
      const placed = await order(server, sale, 'waiter');
      const startedMs = performance.now();
      const pending = await pay(server, placed, 'timeout', { key: 'once' });
      expect(performance.now() - startedMs).toBeLessThan(9000);
      expect(pending).toMatchObject({
        status: 202,
        body: { ...placed, payment: { state: 'pending', provider: 'sandbox' } },
      });
      // The sandbox takes it some time after 5 s, which is when the call gives up: from here on either may be first.
      const shown = await now(server, placed);
      if (shown.status === 'reserved') expect(shown).toEqual(pending.body);
      const again = await pay(server, placed);
      if (again.status !== 200) {
        expectRefusal(again, 409, 'payment_in_progress', { id: placed.id });
        expect(again.headers.get('retry-after')).toBe('1');
      }
      expect(await untilStatus(server, placed, 'paid', 10_000)).toMatchObject({ version: 2, payment: captured() });
      expect(attemptsOf(server, placed)).toHaveLength(1);
      expect(await counts(server, sale)).toMatchObject({ free: 9, reserved: 0, sold: 1 });
      // Of a 202 the key gives the order as it is now.
      const replayed = await pay(server, placed, 'timeout', { key: 'once' });
      expect(replayed.headers.get('idempotent-replayed')).toBe('true');
      expect(replayed.body).toEqual(await now(server, placed));
    });

    it('P6: with a payment on its way it is given up first, and the order expires all the same', async () => {
      const sale = await openSale(server, { stock: 1, payWithin: 1 });
      const placed = await order(server, sale, 'stuck');
      const startedMs = performance.now();
      const pending = pay(server, placed, 'timeout');
      const [attempt] = await until('the attempt', 3000, async () => {
        const attempts = attemptsOf(server, placed);
        return attempts.length > 0 && attempts;
      });
      const expired = await untilStatus(server, placed, 'expired', 10_000);
      expect(expired).toMatchObject({ payment: { state: 'none' } });
      expect((await pending).body).toMatchObject({ id: placed.id });
      // By then the sandbox would have taken it.
      await sleep(Math.max(startedMs + 6000 - performance.now(), 0));
      expect(await now(server, placed)).toEqual(expired);
      expect(await counts(server, sale)).toMatchObject({ free: 1, reserved: 0, sold: 0 });
      expect(attempt).toBeDefined();
    });

    it('a slow provider: 200 after 3 s; a second click waits for the first; news in between do no harm', async () => {
      const placed = await order(server, await openSale(server), 'patient');
      const startedMs = performance.now();
      const first = pay(server, placed, 'slow');
      const [attempt] = await until('the attempt', 3000, async () => {
        const attempts = attemptsOf(server, placed);
        return attempts.length > 0 && attempts;
      });
      const second = pay(server, placed);
      const reference = `sandbox-${attempt}`;
      const news = { type: 'payment.captured', orderId: placed.id, reference, amount: PRICE } as const;
      expect((await tell(server, news)).status).toBe(200);
      expect(await now(server, placed)).toMatchObject({ status: 'paid', payment: captured(reference) });
      expect(performance.now() - startedMs).toBeLessThan(2900);
      for (const answer of await Promise.all([first, second])) {
        expect(answer).toMatchObject({
          status: 200,
          body: { status: 'paid', version: 2, payment: captured(reference) },
        });
      }
      expect(attemptsOf(server, placed)).toHaveLength(1);
    });
  });

  describe('pay', () => {
    it('P6: 200 with the order paid; its unit is sold; again: the same, and nothing is taken twice', async () => {
      const sale = await openSale(server, { stock: 3 });
      const placed = await order(server, sale, 'payer');
      expect(placed).toMatchObject({ status: 'reserved', payment: null, version: 1 });
      expect(await counts(server, sale)).toMatchObject({ free: 2, reserved: 1, sold: 0 });
      const paid = await pay(server, placed);
      expect(paid.status).toBe(200);
      const { updatedAt, ...rest } = paid.body;
      const { updatedAt: before, ...was } = placed;
      expect(rest).toEqual({ ...was, status: 'paid', version: 2, payment: captured() });
      expect(updatedAt >= before).toBe(true);
      expect(await now(server, placed)).toEqual(paid.body);
      expect(await counts(server, sale)).toMatchObject({ free: 2, reserved: 0, sold: 1 });
      for (const token of [undefined, 'ok', 'declined', 'timeout']) {
        const again = await pay(server, placed, token);
        expect([again.status, again.body]).toEqual([200, paid.body]);
      }
      expect(attemptsOf(server, placed)).toHaveLength(1);
      const list = await server.call('GET', `/v1/orders?saleId=${sale}&status=paid`, { buyer: 'payer' });
      expect(list.body.data).toEqual([paid.body]);
    });

    it('P6: ten clicks at once are one capture', async () => {
      const sale = await openSale(server);
      const placed = await order(server, sale, 'clicker');
      const answers = await Promise.all(Array.from({ length: 10 }, () => pay(server, placed)));
      expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
      for (const { body } of answers) expect(body).toEqual(answers[0]!.body);
      expect(attemptsOf(server, placed)).toHaveLength(1);
      expect(await counts(server, sale)).toMatchObject({ free: 9, reserved: 0, sold: 1 });
    });

    it('402 payment_failed: still reserved, and payable', async () => {
      const sale = await openSale(server);
      const placed = await order(server, sale, 'poor');
      const failed = { state: 'failed', provider: 'sandbox', reference: expect.stringMatching(/^sandbox-/) };
      for (let times = 0; times < 2; times++) {
        const declined = await pay(server, placed, 'declined');
        expectRefusal(declined, 402, 'payment_failed', { ...placed, payment: failed as Order['payment'] });
        expect(await now(server, placed)).toEqual(declined.body.order);
      }
      expect(await counts(server, sale)).toMatchObject({ reserved: 1, sold: 0 });
      expect(await pay(server, placed)).toMatchObject({ status: 200, body: { status: 'paid', payment: captured() } });
      expect(attemptsOf(server, placed)).toHaveLength(3);
      expectRefusal(await cancel(server, placed), 409, 'order_not_cancellable', { status: 'paid' });
    });

    it('409 order_not_payable: cancelled, refunded, expired; each shows what it is', async () => {
      const sale = await openSale(server, { payWithin: 1 });
      const [cancelled, refunded, expired] = [
        await order(server, sale, 'a'),
        await order(server, sale, 'b'),
        await order(server, sale, 'c'),
      ];
      await cancel(server, cancelled);
      await pay(server, refunded);
      await refund(server, refunded);
      await untilStatus(server, expired, 'expired');
      for (const [one, status] of [
        [cancelled, 'cancelled'],
        [refunded, 'refunded'],
        [expired, 'expired'],
      ] as const) {
        expectRefusal(await pay(server, one), 409, 'order_not_payable', { id: one.id, status });
        expectRefusal(await confirm(server, one, `late-${one.id}`), 409, 'order_not_payable', { id: one.id, status });
      }
      expect(await counts(server, sale)).toMatchObject({ free: 10, reserved: 0, sold: 0 });
    });

    it('422: no such provider, a body that is off', async () => {
      const placed = await order(server, await openSale(server), 'typist');
      expectProblem(await pay(server, placed, undefined, { method: 'stripe' }), 422, 'invalid_request');
      expectProblem(await pay(server, placed, undefined, { method: 'confirm' }), 422, 'invalid_request');
      for (const body of [
        {},
        { method: '' },
        { method: 1 },
        { method: 'sandbox', token: 1 },
        { method: 'sandbox', more: 1 },
        [],
      ]) {
        expectProblem(await pay(server, placed, undefined, { body }), 422, 'invalid_request');
      }
      expectProblem(await pay(server, placed, undefined, { raw: '{' }), 400, 'malformed_json');
      expect(await now(server, placed)).toEqual(placed);
    });

    it('owner only: 401, 403 for an admin without a buyer, 404 for anybody else', async () => {
      const placed = await order(server, await openSale(server), 'owner');
      const body = { method: 'sandbox' };
      const path = `/v1/orders/${placed.id}/pay`;
      expectProblem(await server.call('POST', path, { body }), 401, 'unauthenticated');
      expectProblem(await server.call('POST', path, { body, admin: true }), 403, 'forbidden');
      expectProblem(await pay(server, { ...placed, buyer: 'Owner' }), 404, 'not_found');
      const stranger = { admin: true, headers: { 'doorbuster-buyer': 'stranger' } };
      expectProblem(await server.call('POST', path, { body, ...stranger }), 404, 'not_found');
      for (const id of ['1', '99999999999999999999', 'nonsense', '-1']) {
        for (const call of ['pay', 'confirm', 'cancel', 'refund']) {
          const send = call === 'pay' ? body : call === 'confirm' ? { reference: 'r', amount: PRICE } : {};
          const who = call === 'pay' ? { buyer: 'owner' } : { admin: true };
          expectProblem(
            await server.call('POST', `/v1/orders/${id}/${call}`, { body: send, ...who }),
            404,
            'not_found',
          );
        }
      }
      expect(await now(server, placed)).toEqual(placed);
      // The shop's backend, for the buyer.
      const acting = { admin: true, headers: { 'doorbuster-buyer': 'owner' } };
      expect(await server.call('POST', path, { body, ...acting })).toMatchObject({
        status: 200,
        body: { status: 'paid' },
      });
      const [opened] = await auditOf(server, placed);
      expect(opened).toMatchObject({ actor: 'admin:admin', origin: '127.0.0.1' });
    });
  });

  describe('a reference', () => {
    const BAD = ['', '\u0000', 'a\u0000b', 'a\nb', '\ud800', 'x'.repeat(201), '🎟'.repeat(129)];

    it('has at most 200 characters and 512 bytes, no control characters, and is well-formed: else 422', async () => {
      const sale = await openSale(server, { perBuyer: 9 });
      const placed = await order(server, sale, 'refs');
      for (const reference of BAD) {
        expectProblem(await confirm(server, placed, reference), 422, 'invalid_request');
        const news = { type: 'payment.captured' as const, orderId: placed.id, amount: PRICE };
        expectProblem(await tell(server, { ...news, reference }), 422, 'invalid_request');
        if (reference.length < 9)
          expectProblem(await tell(server, { ...news, id: reference, reference: 'r' }), 422, 'invalid_request');
      }
      expect(await now(server, placed)).toEqual(placed);
      for (const reference of ['x'.repeat(200), '🎟'.repeat(128), ' blanks around ']) {
        const one = await order(server, sale, 'refs');
        expect((await confirm(server, one, reference)).body.payment.reference).toBe(reference);
      }
    });
  });

  describe('confirm', () => {
    it('the shop took the money: 200 paid; the same reference again: no effect', async () => {
      const sale = await openSale(server, { perBuyer: 2 });
      const [one, other] = [await order(server, sale, 'cash'), await order(server, sale, 'cash')];
      const paid = await confirm(server, one, 'till-1');
      const payment = { state: 'captured', provider: 'confirm', reference: 'till-1' };
      expect(paid).toMatchObject({ status: 200, body: { status: 'paid', version: 2, payment } });
      const again = await confirm(server, one, 'till-1');
      expect([again.status, again.body]).toEqual([200, paid.body]);
      expectRefusal(await confirm(server, one, 'till-2'), 409, 'order_not_payable', {
        status: 'paid',
        payment: paid.body.payment,
      });
      // One payment pays one order.
      expectRefusal(await confirm(server, other, 'till-1'), 409, 'order_not_payable', {
        id: other.id,
        status: 'reserved',
      });
      expect(await counts(server, sale)).toMatchObject({ reserved: 1, sold: 1 });
      expect(await refund(server, one)).toMatchObject({
        status: 200,
        body: { status: 'refunded', payment: { ...payment, state: 'refunded' } },
      });
      expect(await counts(server, sale)).toMatchObject({ free: 9, reserved: 1, sold: 0 });
    });

    it('409 amount_mismatch: a cent too few, too many, another currency; the order stays as it is', async () => {
      const placed = await order(server, await openSale(server, { perBuyer: 2 }), 'miser', 2);
      const off = [
        PRICE,
        { amount: 15_999, currency: 'CNY' },
        { amount: 16_001, currency: 'CNY' },
        { amount: 16_000, currency: 'USD' },
      ];
      for (const amount of off)
        expectRefusal(await confirm(server, placed, 'off', { amount }), 409, 'amount_mismatch', placed);
      expect(await now(server, placed)).toEqual(placed);
      expect((await confirm(server, placed, 'off', { amount: { amount: 16_000, currency: 'CNY' } })).status).toBe(200);
    });

    it('admins only; a body that is off', async () => {
      const placed = await order(server, await openSale(server), 'sly');
      expectProblem(await confirm(server, placed, 'r', { buyer: 'sly', admin: false }), 403, 'forbidden');
      expectProblem(await server.call('POST', `/v1/orders/${placed.id}/confirm`, { body: {} }), 401, 'unauthenticated');
      for (const reference of ['', 'x'.repeat(201)])
        expectProblem(await confirm(server, placed, reference), 422, 'invalid_request');
      for (const amount of [
        { amount: 80.5, currency: 'CNY' },
        { amount: -1, currency: 'CNY' },
        { amount: '8000', currency: 'CNY' },
        { amount: 8000 },
      ]) {
        expectProblem(await confirm(server, placed, 'r', { amount }), 422, 'invalid_request');
      }
      expect(await now(server, placed)).toEqual(placed);
    });
  });

  describe('cancel', () => {
    it('P4: 200; the unit and the allowance are back, exactly once', async () => {
      const sale = await openSale(server, { stock: 2, perBuyer: 2 });
      const placed = await order(server, sale, 'fickle', 2);
      expectProblem(await place(server, sale, 'next'), 409, 'sold_out');
      expectProblem(await place(server, sale, 'fickle'), 409, 'limit_reached');
      const answers = await Promise.all(Array.from({ length: 5 }, () => cancel(server, placed)));
      for (const { status, body } of answers) {
        expect([status, body]).toEqual([
          200,
          { ...placed, status: 'cancelled', version: 2, updatedAt: body.updatedAt },
        ]);
      }
      expect(await now(server, placed)).toEqual(answers[0]!.body);
      expect(await counts(server, sale)).toMatchObject({ free: 2, reserved: 0, sold: 0 });
      // Both units, and only those; both slots, and only those.
      expect((await place(server, sale, 'fickle', { body: { item: 'voucher', quantity: 2 } })).status).toBe(201);
      expectProblem(await place(server, sale, 'fickle'), 409, 'limit_reached');
      expectProblem(await place(server, sale, 'next'), 409, 'sold_out');
      expect((await cancel(server, placed)).status).toBe(200);
      expectProblem(await place(server, sale, 'next'), 409, 'sold_out');
      expect(await counts(server, sale)).toMatchObject({ free: 0, reserved: 2, sold: 0 });
    });

    it('the owner and admins; a body is not needed; anybody else: 404', async () => {
      const sale = await openSale(server);
      const [one, other] = [await order(server, sale, 'mine'), await order(server, sale, 'yours')];
      expectProblem(await cancel(server, { ...one, buyer: 'yours' }), 404, 'not_found');
      expectProblem(await server.call('POST', `/v1/orders/${one.id}/cancel`), 401, 'unauthenticated');
      expectProblem(await cancel(server, one, { body: { reason: 'none' } }), 422, 'invalid_request');
      expect((await cancel(server, one, { body: {} })).status).toBe(200);
      const byAdmin = await server.call('POST', `/v1/orders/${other.id}/cancel`, { admin: true });
      expect(byAdmin).toMatchObject({ status: 200, body: { status: 'cancelled' } });
      expect((await auditOf(server, one)).at(-1)).toMatchObject({
        actor: 'buyer:mine',
        origin: '127.0.0.1',
        action: 'order.cancel',
      });
      expect((await auditOf(server, other)).at(-1)).toMatchObject({ actor: 'admin:admin' });
    });

    it('409 order_not_cancellable: paid, refunded, expired', async () => {
      const sale = await openSale(server, { payWithin: 1 });
      const [paid, refunded, expired] = [
        await order(server, sale, 'a'),
        await order(server, sale, 'b'),
        await order(server, sale, 'c'),
      ];
      await pay(server, paid);
      await pay(server, refunded);
      await refund(server, refunded);
      await untilStatus(server, expired, 'expired');
      expectRefusal(await cancel(server, paid), 409, 'order_not_cancellable', { status: 'paid' });
      expectRefusal(await cancel(server, refunded), 409, 'order_not_cancellable', { status: 'refunded' });
      expectRefusal(await cancel(server, expired), 409, 'order_not_cancellable', { status: 'expired' });
      expect(await counts(server, sale)).toMatchObject({ free: 9, sold: 1, reserved: 0 });
    });

    it('after a declined payment: the answer shows it as GET does', async () => {
      const placed = await order(server, await openSale(server), 'unlucky');
      await pay(server, placed, 'declined');
      const cancelled = await cancel(server, placed);
      expect(cancelled).toMatchObject({ status: 200, body: { status: 'cancelled', payment: { state: 'failed' } } });
      expect(cancelled.body).toEqual(await now(server, placed));
    });

    it('P6: pay and cancel at once: one wins, and both say which', async () => {
      const sale = await openSale(server, { stock: 40 });
      const orders = await Promise.all(Array.from({ length: 40 }, (_, n) => order(server, sale, `torn-${n}`)));
      const won = { paid: 0, cancelled: 0 };
      await Promise.all(
        orders.map(async (one, n) => {
          const both = n % 2 === 0 ? [pay(server, one), cancel(server, one)] : [cancel(server, one), pay(server, one)];
          const [paying, cancelling] = n % 2 === 0 ? await Promise.all(both) : (await Promise.all(both)).reverse();
          const { status } = await now(server, one);
          if (status === 'paid') {
            expect(paying!.status).toBe(200);
            expectRefusal(cancelling!, 409, 'order_not_cancellable', { status: 'paid' });
          } else {
            expect(cancelling!.status).toBe(200);
            expectRefusal(paying!, 409, 'order_not_payable', { status: 'cancelled' });
          }
          won[status as 'paid' | 'cancelled']++;
        }),
      );
      expect(won.paid + won.cancelled).toBe(40);
      expect(await counts(server, sale)).toMatchObject({ free: won.cancelled, reserved: 0, sold: won.paid });
    });
  });

  describe('declined payments', () => {
    it('P10: after ten of an order 409 payment_blocked, until an admin lifts it', async () => {
      const sale = await openSale(server);
      const placed = await order(server, sale, 'cards');
      for (let i = 0; i < 10; i++) expectProblem(await pay(server, placed, 'declined'), 402, 'payment_failed');
      expectRefusal(await pay(server, placed), 409, 'payment_blocked', { status: 'reserved' });
      expect(attemptsOf(server, placed), 'no attempt was opened').toHaveLength(10);
      const unblock = (more: object) => server.call('POST', `/v1/orders/${placed.id}/pay/unblock`, more);
      expectProblem(await unblock({ buyer: 'cards' }), 403, 'forbidden');
      const lifted = await unblock({ admin: true, key: 'lift' });
      expect(lifted).toMatchObject({ status: 200, body: { id: placed.id, status: 'reserved' } });
      expectReplay(await unblock({ admin: true, key: 'lift' }), lifted);
      expect((await unblock({ admin: true })).status).toBe(200);
      expect((await pay(server, placed)).status).toBe(200);
      const audit = (await auditOf(server, placed)).filter(({ action }) => action === 'payment.unblock');
      expect(audit.map(({ actor, detail }) => [actor, detail])).toEqual([
        [expect.stringMatching(/^admin:/), { declined: { order: 10, buyer: 10 } }],
      ]);
      expectProblem(await server.call('POST', '/v1/orders/1/pay/unblock', { admin: true }), 404, 'not_found');
    });
  });

  describe('refund', () => {
    it('P4, P6: 200; the money is back, the unit is free, the allowance too; again: the same', async () => {
      const sale = await openSale(server, { stock: 1 });
      const placed = await order(server, sale, 'regret');
      await pay(server, placed);
      expectProblem(await place(server, sale, 'next'), 409, 'sold_out');
      const answers = await Promise.all([refund(server, placed), refund(server, placed)]);
      for (const { status, body } of answers) {
        expect([status, body.status, body.payment.state, body.version]).toEqual([200, 'refunded', 'refunded', 3]);
      }
      expect(await now(server, placed)).toEqual(answers[0]!.body);
      expect(await counts(server, sale)).toMatchObject({ free: 1, reserved: 0, sold: 0 });
      expect((await place(server, sale, 'regret')).status).toBe(201);
      expectProblem(await place(server, sale, 'next'), 409, 'sold_out');
      expect((await refund(server, placed)).status).toBe(200);
      expectProblem(await place(server, sale, 'next'), 409, 'sold_out');
      const actions = (await auditOf(server, placed)).map(({ action }) => action);
      expect(actions).toEqual(['order.pay', 'payment.refund', 'order.refund']);
    });

    it('of a part: the order stays paid and keeps its units, `payment.refunded` grows; a key refunds once', async () => {
      const sale = await openSale(server);
      const placed = await order(server, sale, 'part');
      await pay(server, placed);
      const part = (amount: number, more = {}) =>
        refund(server, placed, { body: { amount: { amount, currency: 'CNY' } }, ...more });
      const first = await part(500, { key: 'once' });
      expect(first).toMatchObject({
        status: 200,
        body: {
          status: 'paid',
          version: 3,
          payment: { state: 'captured', refunded: { amount: 500, currency: 'CNY' } },
        },
      });
      expectReplay(await part(500, { key: 'once' }), first);
      expectProblem(await part(600, { key: 'once' }), 422, 'idempotency_key_reused');
      expectRefusal(await part(7501), 409, 'amount_mismatch', { status: 'paid' });
      const euros = { body: { amount: { amount: 1, currency: 'EUR' } } };
      expectRefusal(await refund(server, placed, euros), 409, 'amount_mismatch', { status: 'paid' });
      for (const body of [{ amount: { amount: 0, currency: 'CNY' } }, { amount: 5 }, { part: 1 }]) {
        expectProblem(await refund(server, placed, { body }), 422, 'invalid_request');
      }
      expect(await counts(server, sale)).toMatchObject({ sold: 1 });
      const reference = first.body.payment.reference;
      const news = { id: 'p1', type: 'payment.refunded' as const, orderId: placed.id, reference };
      await tell(server, { ...news, amount: { amount: 500, currency: 'CNY' } });
      expect((await now(server, placed)).payment!.refunded, 'its own news').toEqual({ amount: 500, currency: 'CNY' });
      expect(await refund(server, placed)).toMatchObject({
        body: { status: 'refunded', payment: { state: 'refunded', refunded: PRICE } },
      });
      expect(await counts(server, sale)).toMatchObject({ sold: 0, free: 10 });
      const audit = (await auditOf(server, placed)).map(({ action, detail }) => [action, detail.amount?.amount]);
      expect(audit).toEqual([
        ['order.pay', undefined],
        ['payment.refund_part', 500],
        ['order.refund_part', 500],
        ['payment.refund', 7500],
        ['order.refund', 7500],
      ]);
    });

    it('admins only; 409 order_not_refundable: nothing was paid', async () => {
      const sale = await openSale(server);
      const [reserved, cancelled] = [await order(server, sale, 'a'), await order(server, sale, 'b')];
      await cancel(server, cancelled);
      expectProblem(await refund(server, reserved, { buyer: 'a', admin: false }), 403, 'forbidden');
      expectProblem(await server.call('POST', `/v1/orders/${reserved.id}/refund`), 401, 'unauthenticated');
      expectRefusal(await refund(server, reserved), 409, 'order_not_refundable', { status: 'reserved' });
      expectRefusal(await refund(server, cancelled), 409, 'order_not_refundable', { status: 'cancelled' });
      expect(await counts(server, sale)).toMatchObject({ free: 9, reserved: 1 });
    });
  });

  describe('expiry', () => {
    it('P4: payable until expiresAt, expired at most 2 s after it; unit and allowance are back; the stream shows it and ends', async () => {
      const sale = await openSale(server, { stock: 2, perBuyer: 2, payWithin: 3 });
      const [late, inTime] = [await order(server, sale, 'late'), await order(server, sale, 'in-time')];
      expect(Date.parse(late.expiresAt!) - Date.parse(late.createdAt)).toBe(3000);
      const stream = await openStream(`${server.url}/v1/orders/${late.id}/events`, bearer('late'));
      await sleep(Date.parse(inTime.expiresAt!) - Date.now() - 1000);
      expect(await now(server, late)).toMatchObject({ status: 'reserved' });
      expect((await pay(server, inTime)).status).toBe(200);
      const { data } = await stream.until(({ data: { status } }) => status === 'expired');
      const overMs = Date.parse(data.updatedAt) - Date.parse(late.expiresAt!);
      expect(overMs).toBeGreaterThanOrEqual(0);
      expect(overMs).toBeLessThan(2000);
      await stream.ended;
      expect(data).toEqual(await now(server, late));
      expect(await counts(server, sale)).toMatchObject({ free: 1, reserved: 0, sold: 1 });
      expectProblem(await place(server, sale, 'late', { body: { item: 'voucher', quantity: 2 } }), 409, 'sold_out');
      expect((await place(server, sale, 'late')).status).toBe(201);
      expect((await auditOf(server, late)).map(({ actor, action }) => [actor, action])).toEqual([
        ['system:sweeper', 'order.expire'],
      ]);
    });

    it('pause and close of the sale stop neither pay nor cancel nor expiry', async () => {
      for (const stop of ['pause', 'close']) {
        const sale = await openSale(server, { stock: 5, payWithin: 2 });
        const [paid, cancelled, expired, back] = await Promise.all(
          ['a', 'b', 'c', 'd'].map((buyer) => order(server, sale, buyer)),
        );
        await pay(server, back!);
        expect((await server.call('POST', `/v1/sales/${sale}/${stop}`, { admin: true })).status).toBe(200);
        expect((await pay(server, paid!)).status).toBe(200);
        expect((await cancel(server, cancelled!)).status).toBe(200);
        expect((await refund(server, back!)).status).toBe(200);
        await untilStatus(server, expired!, 'expired');
        expect(await counts(server, sale)).toMatchObject({ total: 5, free: 4, reserved: 0, sold: 1 });
        if (stop === 'close') continue;
        await server.call('POST', `/v1/sales/${sale}/resume`, { admin: true });
        const buyers = ['e', 'f', 'g', 'h', 'i'];
        const placed = await Promise.all(buyers.map((buyer) => place(server, sale, buyer)));
        expect(placed.filter(({ status }) => status === 201)).toHaveLength(4);
      }
    });
  });

  describe('webhooks', () => {
    const news = (one: Order, more: object = {}) => ({
      type: 'payment.captured' as const,
      orderId: one.id,
      reference: `sandbox-of-${one.id}`,
      amount: PRICE,
      ...more,
    });

    it('401: no signature, a wrong one, another body’s, one that is too old or from the future', async () => {
      const placed = await order(server, await openSale(server), 'forger');
      const body = news(placed);
      const bad = [
        { signature: null },
        { signature: '' },
        { signature: 'nonsense' },
        { signature: `t=${Math.floor(Date.now() / 1000)},v1=` },
        { signature: `v1=${'0'.repeat(64)}` },
        { signature: `t=${Math.floor(Date.now() / 1000)},v1=${'0'.repeat(64)}` },
        { secret: 'another-secret-of-at-least-32-bytes---' },
        { atMs: Date.now() - 302_000 },
        { atMs: Date.now() + 303_000 },
      ];
      for (const options of bad) expectProblem(await tell(server, body, options), 401, 'unauthenticated');
      for (const atMs of [Date.now() - 295_000, Date.now() + 295_000])
        expect((await tell(server, body, { atMs })).status).toBe(200);
      expect(await now(server, placed)).toEqual(placed);
    });

    it('signed, and yet off: 400, 415, 422', async () => {
      const placed = await order(server, await openSale(server), 'sloppy');
      expectProblem(await tell(server, news(placed), { raw: '{' }), 400, 'malformed_json');
      expectProblem(await tell(server, news(placed), { raw: 'null' }), 422, 'invalid_request');
      expectProblem(await tell(server, { ...news(placed), type: 'payment.gone' } as never), 422, 'invalid_request');
      expectProblem(await tell(server, { ...news(placed), more: 1 } as never), 422, 'invalid_request');
      expectProblem(
        await tell(server, { ...news(placed), amount: { amount: 1.5, currency: 'CNY' } }),
        422,
        'invalid_request',
      );
    });

    it('P6: nobody speaks for `confirm`, or for a provider that this shop does not have: 404, and nothing moves', async () => {
      const placed = await order(server, await openSale(server), 'cash');
      const paid = await confirm(server, placed, 'till-4711');
      expect(paid.body.status).toBe('paid');
      const refunded = news(placed, { type: 'payment.refunded', reference: 'till-4711' });
      for (const provider of ['confirm', 'other', 'SANDBOX', '__proto__', '%00']) {
        expectProblem(await tell(server, refunded, { provider }), 404, 'not_found');
      }
      // Whoever has no secret does not learn which there are.
      expectProblem(
        await tell(server, refunded, { provider: 'other', secret: 'x'.repeat(32) }),
        401,
        'unauthenticated',
      );
      expect(await now(server, placed)).toEqual(paid.body);
    });

    it('200 without effect: an unknown order, an order that nobody has tried to pay', async () => {
      const placed = await order(server, await openSale(server), 'nobody');
      expect((await tell(server, { ...news(placed), orderId: '1' })).status).toBe(200);
      expect((await tell(server, news(placed))).status).toBe(200);
      expect(await now(server, placed)).toEqual(placed);
      await until('it is in the log', 2000, () => server.output().includes('nobody here has asked for'));
    });
  });

  describe('streams', () => {
    it('show paid and refunded, each once, and end with the order', async () => {
      const placed = await order(server, await openSale(server), 'watcher');
      const stream = await openStream(`${server.url}/v1/orders/${placed.id}/events`, bearer('watcher'));
      await stream.until(({ id }) => id === '1');
      const paid = await pay(server, placed);
      expect((await stream.until(() => true)).data).toEqual(paid.body);
      const refunded = await refund(server, placed);
      expect((await stream.until(() => true)).data).toEqual(refunded.body);
      await stream.ended;
      expect(stream.events.map(({ id }) => id)).toEqual(['1', '2', '3']);
    });
  });

  describe('Idempotency-Key', () => {
    it('P5: the first answer to the letter, whatever became of the order; another body: 422', async () => {
      const sale = await openSale(server, { stock: 3 });
      const [one, two] = [await order(server, sale, 'k1'), await order(server, sale, 'k2')];
      const paid = await pay(server, one, 'ok', { key: 'pay' });
      expect(paid.headers.get('idempotent-replayed')).toBeNull();
      expectReplay(await pay(server, one, 'ok', { key: 'pay' }), paid);
      expectProblem(await pay(server, one, 'declined', { key: 'pay' }), 422, 'idempotency_key_reused');
      const refunded = await refund(server, one, { key: 'pay' });
      expect(refunded).toMatchObject({ status: 200, body: { status: 'refunded' } });
      expectReplay(await refund(server, one, { key: 'pay' }), refunded);
      expectReplay(await pay(server, one, 'ok', { key: 'pay' }), paid);
      expectRefusal(await pay(server, one, 'ok', { key: 'another' }), 409, 'order_not_payable', { status: 'refunded' });
      const cancelled = await cancel(server, two, { key: 'pay' });
      expectReplay(await cancel(server, two, { key: 'pay' }), cancelled);
      // The key is each caller's own.
      expect((await cancel(server, two, { key: 'pay', buyer: 'k1' })).status).toBe(404);
      for (const key of ['', ' ', 'ü', 'x'.repeat(256)])
        expectProblem(await cancel(server, two, { key }), 422, 'invalid_request');
    });

    it('P5: with two at once there is one effect, and the second is a replay; a declined payment is kept, refusals are not', async () => {
      const placed = await order(server, await openSale(server), 'k3');
      const both = await Promise.all([
        pay(server, placed, 'ok', { key: 'k' }),
        pay(server, placed, 'ok', { key: 'k' }),
      ]);
      const [first, second] = both[0]!.headers.get('idempotent-replayed') === null ? both : both.reverse();
      expectReplay(second!, first!);
      const declined = await order(server, await openSale(server), 'k5');
      const failed = await pay(server, declined, 'declined', { key: 'k' });
      expectProblem(failed, 402, 'payment_failed');
      expectReplay(await pay(server, declined, 'declined', { key: 'k' }), failed);
      expect(attemptsOf(server, declined)).toHaveLength(1);
      expect((await pay(server, declined, 'ok', { key: 'another' })).status).toBe(200);
      const other = await order(server, await openSale(server), 'k4');
      expectRefusal(await refund(server, other, { key: 'k' }), 409, 'order_not_refundable', { status: 'reserved' });
      await confirm(server, other, `till-${other.id}`, { key: 'k' });
      const refunded = await refund(server, other, { key: 'k' });
      expect(refunded).toMatchObject({ status: 200, body: { status: 'refunded' } });
      expect(refunded.headers.get('idempotent-replayed')).toBeNull();
    });

    it('P5: also after kill -9 and on the same folder; what was paid, cancelled and refunded stays so', async () => {
      const env = { ...CALM, ...PAYMENTS };
      const first = await startServer({ env });
      const sale = await openSale(first, { stock: 4, perBuyer: 2 });
      const [a, b, c, d] = await Promise.all(['a', 'b', 'c', 'd'].map((buyer) => order(first, sale, buyer)));
      const paid = await pay(first, a!, 'ok', { key: 'k' });
      const cancelled = await cancel(first, b!, { key: 'k' });
      const confirmed = await confirm(first, c!, 'till', { key: 'k' });
      const refunded = await refund(first, c!, { key: 'k' });
      expectProblem(await pay(first, d!, 'declined', { key: 'k' }), 402, 'payment_failed');
      const before = await counts(first, sale);
      expect(before).toMatchObject({ free: 2, reserved: 1, sold: 1 });
      await first.kill();
      const second = await startServer({ env, data: first.data });
      expect(await counts(second, sale)).toEqual(before);
      expectReplay(await pay(second, a!, 'ok', { key: 'k' }), paid);
      expectReplay(await cancel(second, b!, { key: 'k' }), cancelled);
      expectReplay(await confirm(second, c!, 'till', { key: 'k' }), confirmed);
      expectReplay(await refund(second, c!, { key: 'k' }), refunded);
      expect((await pay(second, a!)).body).toEqual(paid.body);
      expect((await pay(second, d!)).body).toMatchObject({ status: 'paid' });
      expect(attemptsOf(second, a!)).toHaveLength(1);
      // The gate of the new process has what is free, and not a unit more.
      expect((await place(second, sale, 'b', { body: { item: 'voucher', quantity: 2 } })).status).toBe(201);
      expectProblem(await place(second, sale, 'x'), 409, 'sold_out');
      expect(await second.stop()).toBe(0);
    });
  });

  describe('audit', () => {
    it('who did what, when, from where; newest first, in pages, for admins', async () => {
      const placed = await order(server, await openSale(server), 'traced');
      await pay(server, placed, 'declined');
      await pay(server, placed);
      await refund(server, placed);
      const rows = await auditOf(server, placed);
      expect(rows.map(({ actor, action, origin }) => [actor, action, origin])).toEqual([
        ['buyer:traced', 'payment.failed', '127.0.0.1'],
        ['buyer:traced', 'order.pay', '127.0.0.1'],
        ['admin:admin', 'payment.refund', '127.0.0.1'],
        ['admin:admin', 'order.refund', '127.0.0.1'],
      ]);
      const [failed, paid] = attemptsOf(server, placed);
      expect(rows[0]!.detail).toEqual({ from: 'open', provider: 'sandbox', attempt: failed });
      expect(rows[1]!.detail).toMatchObject({ from: 'reserved', to: 'paid', provider: 'sandbox', attempt: paid });
      const path = `/v1/ops/audit?subject=order:${placed.id}`;
      const page = await server.call('GET', `${path}&limit=2`, { admin: true });
      expect(page.body.data).toEqual(rows.slice(-2).reverse());
      const next = await server.call('GET', `${path}&limit=2&cursor=${page.body.nextCursor}`, { admin: true });
      expect(next.body.data).toEqual(rows.slice(0, 2).reverse());
      expectProblem(await server.call('GET', path), 401, 'unauthenticated');
      expectProblem(await server.call('GET', path, { buyer: 'traced' }), 403, 'forbidden');
      expectProblem(await server.call('GET', '/v1/ops/audit?limit=201', { admin: true }), 422, 'invalid_request');
      for (const method of ['POST', 'PUT', 'DELETE'])
        expect((await server.call(method, '/v1/ops/audit', { admin: true })).status).toBe(405);
    });
  });
});
