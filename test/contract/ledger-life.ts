import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DoorbusterError } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import { type DueOrder, KEY_KEPT_MS, type Move, type NewIntent, type Release } from '../../src/ledger/port.ts';
import { Unresolved, type UnresolvedEffects } from '../../src/ledger/unresolved.ts';
import { Writer } from '../../src/ledger/writer.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderRecord } from '../../src/model/order.ts';
import type { PaymentAttempt } from '../../src/model/payment.ts';
import { wholeSnapshot } from '../support/snapshot.ts';
import { countTests } from './count.ts';
import { STATES, type State } from './ledger.ts';
import { LifeKit, type LifeUnderTest, OTHER_SALE, PAY_WITHIN_MS, PRICE, SALE } from './ledger-life-kit.ts';
import { paymentsContract } from './ledger-payments.ts';
import { T0 } from './manual.ts';

/** The contract of src/ledger/port/payments.ts and releases.ts. After every move the tables are judged. */
export function lifeContract(name: string, make: () => Promise<LifeUnderTest>, states: State[] = STATES): void {
  describe(`contract of the life of orders: ${name}`, () => {
    countTests('life', name);
    let kit: LifeKit;

    beforeEach(async () => {
      kit = new LifeKit(await make());
      await kit.createSale();
    });

    afterEach(() => kit.world.close());

    const codeOf = async (promise: Promise<unknown>): Promise<string> => {
      const error = await promise.then(
        () => null,
        (thrown: unknown) => thrown,
      );
      expect(error).toBeInstanceOf(Error);
      return error instanceof DoorbusterError ? error.code : 'error';
    };

    const attemptOf = async (attemptId: string): Promise<PaymentAttempt> => (await kit.ledger.getAttempt(attemptId))!;

    const expire = async (order: OrderRecord): Promise<void> => {
      kit.world.clock.advance(Math.max(order.expiresAtMs! - kit.nowMs, 0));
      expect(await kit.outcome(kit.move('expire', order))).toBe('moved');
    };

    paymentsContract(() => kit);

    describe('a late copy of an admission', () => {
      it.each(['cancel', 'expire', 'refund'] as const)(
        'P4: after %s it is the ended order, whichever slots the gate gave it, and moves nothing',
        async (event) => {
          const message = kit.message('alice', { slots: [1] });
          const [first] = await kit.commit(message);
          if (event === 'expire') await expire(first!.order);
          else {
            if (event === 'refund') await kit.all(kit.taken(first!.order, 'r'));
            expect(await kit.outcome(kit.move(event, first!.order))).toBe('moved');
          }
          const ended = (await kit.stored(message.orderId))!;
          const before = await kit.item();
          const other = kit.message('alice', { slots: [1] });
          const batch = [message, { ...message, slots: [2] }, other, { ...message, slots: [3] }];
          const stored = await kit.commit(...batch);
          expect(stored.map(({ order, inserted }) => [order.status, inserted])).toEqual([
            [ended.status, false],
            [ended.status, false],
            ['reserved', true],
            [ended.status, false],
          ]);
          expect(stored[1]!.order).toEqual(ended);
          expect(await kit.item()).toEqual({ ...before, reserved: before.reserved + 1, rev: before.rev + 1 });
          expect(await codeOf(kit.commit({ ...message, buyer: 'eve' }))).toBe('order_id_reused');
          await kit.judge();
        },
      );
    });

    describe('pay with a capture', () => {
      it('the order is paid, the money is its money, its units are sold (P6)', async () => {
        const order = await kit.order('alice', { slots: [1, 2] });
        const attemptId = await kit.opened(order);
        const before = await kit.item();
        kit.world.clock.advance(5);
        const { outcome, order: paid, attempt } = await kit.one(kit.capture(order, attemptId, { reference: 'r' }));
        expect(outcome).toBe('moved');
        expect(paid).toEqual({ ...order, status: 'paid', version: 2, updatedAtMs: kit.nowMs });
        expect(attempt).toMatchObject({ id: attemptId, state: 'captured', pays: true, reference: 'r', nextAtMs: null });
        expect(await kit.item()).toEqual({ ...before, reserved: 0, sold: 2, rev: before.rev + 1 });
        expect(await kit.releases()).toEqual([]);
      });

      it('a repeat changes nothing, whatever it says', async () => {
        const { order, attemptId } = await kit.paid('alice');
        expect(await kit.unmoved(kit.capture(order, attemptId))).toBe('repeat');
        expect(await kit.unmoved(kit.capture(order, attemptId, { amount: null, reference: null }))).toBe('repeat');
        expect(await kit.unmoved(kit.capture(order, attemptId, { amount: { amount: 1, currency: 'EUR' } }))).toBe(
          'repeat',
        );
      });

      it('amount and reference may be left to what is known', async () => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order);
        const { outcome, attempt } = await kit.one(kit.capture(order, attemptId, { amount: null, reference: null }));
        expect([outcome, attempt!.reference]).toEqual(['moved', null]);
      });

      it('after the order’s time, while nobody has ended it: the unit is still held, and the money is there', async () => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order);
        kit.world.clock.advance(PAY_WITHIN_MS + 5000);
        expect(await kit.outcome(kit.capture(order, attemptId))).toBe('moved');
      });

      it.each(['failed', 'voided'] as const)(
        'of an attempt that was %s: the provider says yes after all',
        async (state) => {
          const order = await kit.order('alice');
          const attemptId = await kit.opened(order);
          await kit.closeAttempt(attemptId, { state, error: null });
          expect(await kit.outcome(kit.capture(order, attemptId))).toBe('moved');
        },
      );

      it('of an order that has ended is late, at once due, and told again a repeat (P6)', async () => {
        for (const end of ['cancel', 'expire'] as const) {
          const order = await kit.order(end);
          const attemptId = await kit.opened(order);
          await kit.closeAttempt(attemptId, { state: 'voided', error: null });
          if (end === 'expire') await expire(order);
          else expect(await kit.outcome(kit.move('cancel', order))).toBe('moved');
          const before = await kit.item();
          const { outcome, order: stored, attempt } = await kit.one(kit.capture(order, attemptId));
          expect(outcome).toBe('late');
          expect(stored).toMatchObject({ status: end === 'cancel' ? 'cancelled' : 'expired', version: 2 });
          expect(attempt).toMatchObject({
            state: 'late',
            pays: false,
            nextAtMs: kit.nowMs,
            reference: `ref-${attemptId}`,
          });
          expect(await kit.item()).toEqual(before);
          expect(await kit.unmoved(kit.capture(order, attemptId))).toBe('repeat');
          expect((await kit.ledger.dueAttempts(9)).map(({ id }) => id)).toContain(attemptId);
        }
      });

      it('of an order that was refunded is late', async () => {
        const { order, attemptId } = await kit.paid('alice');
        const second = await kit.world.ledger.openAttempt(kit.attempt(order));
        expect(second.outcome).toBe('not_payable');
        await kit.ledger.startRefund(attemptId, actor('admin', 'admin'), kit.id());
        expect(await kit.outcome(kit.move('refund', order))).toBe('moved');
        expect(await kit.unmoved(kit.capture(order, attemptId))).toBe('repeat');
      });

      it('of one attempt while another is open: late; the open one may still pay', async () => {
        const order = await kit.order('alice');
        const first = await kit.opened(order);
        await kit.closeAttempt(first, { state: 'failed', error: 'declined' });
        const second = await kit.opened(order);
        const { outcome, order: stored } = await kit.one(kit.capture(order, first));
        expect([outcome, stored!.status, stored!.version]).toEqual(['late', 'reserved', 1]);
        expect(await kit.outcome(kit.capture(order, second))).toBe('moved');
        expect(await attemptOf(first)).toMatchObject({ state: 'late', pays: false });
      });

      it('of a second attempt when the first has paid: late (P6: exactly one capture)', async () => {
        const order = await kit.order('alice');
        const first = await kit.opened(order);
        await kit.closeAttempt(first, { state: 'voided', error: null });
        const second = await kit.opened(order);
        expect(await kit.outcome(kit.capture(order, second))).toBe('moved');
        const { outcome, attempt, order: stored } = await kit.one(kit.capture(order, first));
        expect([outcome, attempt!.state, stored!.status, stored!.version]).toEqual(['late', 'late', 'paid', 2]);
      });

      it.each([
        ['amount', { amount: 7999, currency: 'CNY' }],
        ['currency', { amount: 8000, currency: 'EUR' }],
      ])('another %s: all that came goes back, and the order can be paid', async (_, amount) => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order);
        const { outcome, order: stored, attempt } = await kit.one(kit.capture(order, attemptId, { amount }));
        expect([outcome, stored!.status]).toEqual(['amount_mismatch', 'reserved']);
        expect(attempt).toMatchObject({ state: 'late', amount, pays: false, nextAtMs: kit.nowMs });
        expect(await kit.unmoved(kit.capture(order, attemptId))).toBe('repeat');
        expect(await kit.outcome(kit.capture(order, await kit.opened(order)))).toBe('moved');
      });

      it('what is not there is unknown, and another order’s attempt is not this one’s', async () => {
        const order = await kit.order('alice');
        const other = await kit.order('bob');
        const attemptId = await kit.opened(other);
        expect(await kit.unmoved(kit.capture(order, '424242'))).toBe('unknown');
        expect(await kit.unmoved(kit.capture({ ...order, id: '424242' }, attemptId))).toBe('unknown');
        expect(await kit.unmoved(kit.capture(order, attemptId))).toBe('unknown');
        expect(await kit.unmoved(kit.capture(order, attemptId, { revives: '424242' }))).toBe('unknown');
      });

      it('a reference is one payment: it does not pay a second order', async () => {
        const { attemptId: first } = await kit.paid('alice');
        const order = await kit.order('bob');
        const attemptId = await kit.opened(order);
        expect(await kit.unmoved(kit.capture(order, attemptId, { reference: `ref-${first}` }))).toBe('refused');
        // The same name at another provider is another payment.
        await kit.closeAttempt(attemptId, { state: 'voided', error: null });
        const elsewhere = await kit.opened(order, { provider: 'bank' });
        expect(await kit.outcome(kit.capture(order, elsewhere, { reference: `ref-${first}` }))).toBe('moved');
      });

      it('references are any text, compared byte for byte, also side by side in one batch', async () => {
        const names = [
          'plain',
          'Plain',
          'plain ',
          'zahlung-\u00e9',
          'zahlung-e\u0301',
          `o'h"a\\r?a`,
          '\u{1f389}',
          '$1',
          'NULL',
          '{a,b}',
        ];
        const orders = [];
        for (const [at, buyer] of names.entries()) orders.push(await kit.order(`${buyer}-${at}`));
        const attempts = orders.map((order) => kit.attempt(order));
        await kit.openAll(attempts);
        const moves = orders.map((order, at) => kit.capture(order, attempts[at]!.id, { reference: names[at]! }));
        expect(new Set((await kit.all(...moves)).map(({ outcome }) => outcome))).toEqual(new Set(['moved']));
        for (const [at, reference] of names.entries()) {
          const found = await kit.ledger.findAttempt('sandbox', reference);
          expect([found!.id, found!.reference]).toEqual([attempts[at]!.id, reference]);
        }
        kit.world.clock.advance(1);
        const by = actor('admin', '\u00e4da');
        for (const { id } of attempts) await kit.ledger.startRefund(id, by, kit.id());
        await kit.all(...orders.map((order) => kit.move('refund', order, { by })));
        expect((await kit.releases()).map(({ buyer }) => buyer)).toEqual(orders.map(({ buyer }) => buyer));
        expect((await kit.ledger.audit({}, { limit: 1, before: null }))[0]!.actor).toBe('admin:\u00e4da');
      });

      it('two orders with one reference in one batch: the first has it', async () => {
        const orders = [await kit.order('alice'), await kit.order('bob')];
        const attempts = [await kit.opened(orders[0]!), await kit.opened(orders[1]!)];
        const moves = orders.map((order, at) => kit.capture(order, attempts[at]!, { reference: 'same' }));
        expect((await kit.all(...moves)).map(({ outcome }) => outcome)).toEqual(['moved', 'refused']);
      });
    });

    describe('pay with money that the shop took itself', () => {
      it('the attempt is written with the move', async () => {
        const order = await kit.order('alice');
        const { outcome, order: paid, attempt } = await kit.one(kit.taken(order, 'till 7', { attemptId: '99' }));
        expect([outcome, paid!.status]).toEqual(['moved', 'paid']);
        const { amount } = order;
        const nothing = { refunded: 0, error: null, nextAtMs: null, tries: 0, createdAtMs: T0, updatedAtMs: T0 };
        const confirm = { provider: 'confirm', state: 'captured', pays: true, reference: 'till 7' };
        expect(attempt).toEqual({ id: '99', orderId: order.id, amount, ...confirm, ...nothing });
        expect(await kit.ledger.findAttempt('confirm', 'till 7')).toEqual(attempt);
      });

      it('the same reference again is a repeat; of another order it is refused; another one for a paid order too', async () => {
        const order = await kit.order('alice');
        const move = kit.taken(order, 'till 7');
        expect(await kit.outcome(move)).toBe('moved');
        expect(await kit.unmoved(move)).toBe('repeat');
        expect(await kit.unmoved(kit.taken(order, 'till 7'))).toBe('repeat');
        expect(await kit.unmoved(kit.taken(await kit.order('bob'), 'till 7'))).toBe('refused');
        expect(await kit.unmoved(kit.taken(order, 'till 8'))).toBe('refused');
      });

      it('needs time that is left: too late from the instant of expiresAt on', async () => {
        const [early, late] = [await kit.order('alice'), await kit.order('bob')];
        kit.world.clock.advance(PAY_WITHIN_MS - 1);
        expect(await kit.outcome(kit.taken(early, 'a'))).toBe('moved');
        kit.world.clock.advance(1);
        expect(await kit.unmoved(kit.taken(late, 'b'))).toBe('too_late');
      });

      it('another amount, an open payment, an order that has ended: nothing is written', async () => {
        const order = await kit.order('alice');
        expect(await kit.unmoved(kit.taken(order, 'a', { amount: { amount: 1, currency: 'CNY' } }))).toBe(
          'amount_mismatch',
        );
        expect(await kit.unmoved(kit.taken(order, 'a', { amount: { amount: 8000, currency: 'EUR' } }))).toBe(
          'amount_mismatch',
        );
        const attemptId = await kit.opened(order);
        const open = await kit.one(kit.taken(order, 'a'));
        expect([open.outcome, open.attempt!.id]).toEqual(['payment_open', attemptId]);
        await kit.closeAttempt(attemptId, { state: 'voided', error: null });
        await expire(order);
        expect(await kit.unmoved(kit.taken(order, 'a'))).toBe('refused');
      });

      it('an attempt’s id is used once: anything else is a fault', async () => {
        const [order, other] = [await kit.order('alice'), await kit.order('bob')];
        expect(await kit.outcome(kit.taken(order, 'a', { attemptId: '77' }))).toBe('moved');
        await expect(kit.ledger.moveOrders([kit.taken(other, 'b', { attemptId: '77' })])).rejects.toThrow();
        expect(await kit.stored(other.id)).toEqual(other);
      });
    });

    describe('cancel and expire', () => {
      it('units are free again exactly once, with a row in the outbox that has the item’s rev (P4)', async () => {
        const order = await kit.order('alice', { slots: [1, 2] });
        await kit.order('bob');
        const before = await kit.item();
        kit.world.clock.advance(7);
        expect(await kit.outcome(kit.move('cancel', order))).toBe('moved');
        const after = await kit.item();
        expect(after).toEqual({ ...before, reserved: 1, rev: before.rev + 1 });
        expect(await kit.releases()).toEqual([
          {
            orderId: order.id,
            saleId: SALE,
            itemId: '501',
            buyer: 'alice',
            units: 2,
            rev: after.rev,
            createdAtMs: T0 + 7,
            waitedMs: 0,
          },
        ]);
        expect(await kit.unmoved(kit.move('cancel', order))).toBe('repeat');
        expect(await kit.unmoved(kit.move('expire', order))).toBe('refused');
      });

      it('expire needs the time to be over, and not a millisecond less', async () => {
        const order = await kit.order('alice');
        kit.world.clock.advance(PAY_WITHIN_MS - 1);
        expect(await kit.unmoved(kit.move('expire', order))).toBe('not_due');
        kit.world.clock.advance(1);
        const { outcome, order: expired } = await kit.one(kit.move('expire', order));
        expect([outcome, expired!.status]).toEqual(['moved', 'expired']);
        expect(await kit.unmoved(kit.move('expire', order))).toBe('repeat');
        expect(await kit.unmoved(kit.move('cancel', order))).toBe('refused');
      });

      it('not while money may be on its way: the attempt is named (P6)', async () => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order);
        kit.world.clock.advance(PAY_WITHIN_MS);
        for (const event of ['cancel', 'expire'] as const) {
          expect(await kit.unmoved(kit.move(event, order))).toBe('payment_open');
          expect((await kit.one(kit.move(event, order))).attempt!.id).toBe(attemptId);
        }
        await kit.closeAttempt(attemptId, { state: 'failed', error: 'declined' });
        expect(await kit.outcome(kit.move('expire', order))).toBe('moved');
      });

      it('a paid order is neither cancelled nor expired, and a rejected one is nothing of all', async () => {
        const { order } = await kit.paid('alice');
        kit.world.clock.advance(PAY_WITHIN_MS);
        const [stored] = await kit.commit(kit.message('bob', { slots: [9] }));
        expect(stored!.order.status).toBe('rejected');
        for (const event of ['cancel', 'expire'] as const) {
          expect(await kit.unmoved(kit.move(event, order))).toBe('refused');
          expect(await kit.unmoved(kit.move(event, stored!.order))).toBe('refused');
          expect(await kit.unmoved(kit.move(event, { id: '424242' }))).toBe('unknown');
        }
        expect(await kit.unmoved(kit.move('refund', stored!.order))).toBe('refused');
        expect(await kit.unmoved(kit.taken(stored!.order, 'a'))).toBe('refused');
      });
    });

    describe('refund', () => {
      const by = actor('admin', 'ada', '192.0.2.7');

      it('of a paid order: first the money is on its way back, then its units are free (P4, P6)', async () => {
        const { order, attemptId } = await kit.paid('alice', { slots: [1, 2] });
        expect(await kit.unmoved(kit.move('refund', order))).toBe('refused');
        kit.world.clock.advance(3);
        expect(await kit.ledger.startRefund(attemptId, by, kit.id())).toMatchObject({
          state: 'refunding',
          pays: true,
          nextAtMs: kit.nowMs,
          tries: 0,
        });
        expect(await kit.ledger.finishRefund(attemptId, 'x'), 'it ends with its order').toMatchObject({
          state: 'refunding',
        });
        const before = await kit.item();
        const { outcome, order: refunded, attempt } = await kit.one(kit.move('refund', order, { refunds: attemptId }));
        expect([outcome, refunded!.status, refunded!.version]).toEqual(['moved', 'refunded', 3]);
        expect(attempt).toMatchObject({ id: attemptId, state: 'refunded', pays: true, nextAtMs: null });
        expect(await kit.item()).toEqual({ ...before, sold: 0, rev: before.rev + 1 });
        expect(await kit.releases()).toMatchObject([{ orderId: order.id, units: 2, rev: before.rev + 1 }]);
        expect(await kit.unmoved(kit.move('refund', order))).toBe('repeat');
      });

      it('of money that the shop took itself needs no provider', async () => {
        const order = await kit.order('alice');
        await kit.one(kit.taken(order, 'till'));
        const { outcome, attempt } = await kit.one(kit.move('refund', order));
        expect([outcome, attempt!.state]).toEqual(['moved', 'refunded']);
      });

      it('of an order that is not paid is refused', async () => {
        const order = await kit.order('alice');
        expect(await kit.unmoved(kit.move('refund', order))).toBe('refused');
        await expire(order);
        expect(await kit.unmoved(kit.move('refund', order))).toBe('refused');
      });

      it('of late money does not end the order that is paid with other money', async () => {
        const order = await kit.order('alice');
        const first = await kit.opened(order);
        await kit.closeAttempt(first, { state: 'voided', error: null });
        const second = await kit.opened(order);
        await kit.one(kit.capture(order, second));
        expect(await kit.outcome(kit.capture(order, first))).toBe('late');
        expect(await kit.ledger.startRefund(first, by, kit.id())).toMatchObject({ state: 'refunding', pays: false });
        expect(await kit.unmoved(kit.move('refund', order))).toBe('refused');
        await kit.ledger.startRefund(second, by, kit.id());
        // Both refunds are under way: the order ends with its own money only.
        expect(await kit.unmoved(kit.move('refund', order, { refunds: first }))).toBe('refused');
        expect(await kit.ledger.finishRefund(first, null)).toMatchObject({
          state: 'refunded',
          pays: false,
          nextAtMs: null,
        });
        expect(await kit.stored(order.id)).toMatchObject({ status: 'paid' });
        expect(await kit.outcome(kit.move('refund', order, { refunds: second }))).toBe('moved');
      });
    });

    describe('late money that finds goods', () => {
      const revive = (order: OrderRecord, lost: OrderRecord, attemptId: string, over: Partial<Move> = {}): Move =>
        kit.capture(order, attemptId, { revives: lost.id, ...over });

      it('moves to the order that revives, in the same transaction (P6)', async () => {
        const { order: lost, attemptId } = await kit.late('alice');
        const order = await kit.order('alice');
        const { outcome, order: paid, attempt } = await kit.one(revive(order, lost, attemptId));
        expect(outcome).toBe('moved');
        expect(paid).toMatchObject({ id: order.id, status: 'paid', revives: lost.id, version: 2 });
        expect(attempt).toMatchObject({
          id: attemptId,
          orderId: order.id,
          state: 'captured',
          pays: true,
          nextAtMs: null,
        });
        expect(await kit.stored(lost.id)).toEqual(lost);
        expect(await kit.ledger.attemptsOf(lost.id, 9)).toEqual([]);
        expect(await kit.unmoved(revive(order, lost, attemptId))).toBe('repeat');
        await kit.world.crash();
        expect(await kit.stored(order.id)).toEqual(paid);
      });

      it('not when it is on its way back, nor twice', async () => {
        const { order: lost, attemptId } = await kit.late('alice');
        const [first, second] = [await kit.order('alice'), await kit.order('alice', { slots: [2] })];
        expect(await kit.outcome(revive(first, lost, attemptId))).toBe('moved');
        expect(await kit.unmoved(revive(second, lost, attemptId))).toBe('unknown');
        const { order: gone, attemptId: back } = await kit.late('bob');
        await kit.ledger.startRefund(back, actor('system', 'sweeper'), kit.id());
        expect(await kit.unmoved(revive(second, gone, back))).toBe('refused');
      });

      it('not for an order that has ended, is paid, may be paid otherwise, or costs something else', async () => {
        const { order: lost, attemptId } = await kit.late('alice');
        const ended = await kit.order('alice');
        await kit.one(kit.move('cancel', ended));
        expect(await kit.unmoved(revive(ended, lost, attemptId))).toBe('late');
        const { order: paid } = await kit.paid('alice');
        expect(await kit.unmoved(revive(paid, lost, attemptId))).toBe('late');
        const open = await kit.order('alice', { slots: [2] });
        await kit.opened(open);
        expect(await kit.unmoved(revive(open, lost, attemptId))).toBe('late');
        const dear = await kit.order('bob', { price: { amount: 9000, currency: 'CNY' } });
        expect(await kit.unmoved(revive(dear, lost, attemptId))).toBe('amount_mismatch');
        expect(await attemptOf(attemptId)).toMatchObject({ state: 'late', orderId: lost.id });
      });

      it('made late and moved on in one batch', async () => {
        const lost = await kit.order('alice');
        const attemptId = await kit.opened(lost);
        await kit.closeAttempt(attemptId, { state: 'voided', error: null });
        await kit.one(kit.move('cancel', lost));
        const order = await kit.order('alice');
        const moved = await kit.all(kit.capture(lost, attemptId), revive(order, lost, attemptId));
        expect(moved.map(({ outcome }) => outcome)).toEqual(['late', 'moved']);
        expect(await attemptOf(attemptId)).toMatchObject({ orderId: order.id, state: 'captured' });
      });
    });

    describe('the fence', () => {
      /** The highest token under which something was stored about it. */
      const fenceOf = async (order: OrderRecord): Promise<number> => {
        const rows = await kit.world.rows(
          `SELECT fence FROM orders WHERE id = ${order.id} UNION ALL SELECT fence FROM payments WHERE order_id = ${order.id}`,
        );
        return Math.max(...rows.map(({ fence }) => Number(fence)));
      };

      it('refuses a lower token in every move, takes an equal or higher one, and lets no token pass (P7)', async () => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order, { fence: '10' });
        expect(await fenceOf(order)).toBe(10);
        expect(await kit.ledger.highestFence()).toBeGreaterThanOrEqual(10n);
        const low = { fence: '9' };
        expect(await kit.unmoved(kit.capture(order, attemptId, low))).toBe('fenced');
        expect(await kit.unmoved(kit.taken(order, 'a', low))).toBe('fenced');
        expect(await kit.unmoved(kit.move('cancel', order, low))).toBe('fenced');
        expect(await kit.unmoved(kit.move('expire', order, low))).toBe('fenced');
        await kit.closeAttempt(attemptId, { state: 'voided', error: null });
        expect((await kit.open(order, low)).outcome).toBe('fenced');
        expect(await kit.outcome(kit.taken(order, 'a', { fence: '10' }))).toBe('moved');
        expect(await kit.unmoved(kit.move('refund', order, low))).toBe('fenced');
        expect(await kit.outcome(kit.move('refund', order))).toBe('moved');
        expect(await fenceOf(order), 'a move without a token leaves it').toBe(10);
      });

      it('a capture that believes what it was opened with neither lowers it nor passes it', async () => {
        for (const fence of [null, '12', '14'] as const) {
          const order = await kit.order(`b${fence}`);
          await kit.closeAttempt(await kit.opened(order, { fence: '12' }), { state: 'voided', error: null });
          const opened = await kit.open(order, { fence });
          if (opened.outcome !== 'opened') throw new Error('should be opened');
          expect(opened.fence).toBe(fence === '14' ? 14n : 12n);
          const believing = { believed: kit.believing(opened), fence };
          expect(await kit.unmoved(kit.capture(order, opened.attempt.id, { ...believing, fence: '11' }))).toBe(
            'fenced',
          );
          expect(await kit.outcome(kit.capture(order, opened.attempt.id, believing))).toBe('moved');
          expect(await fenceOf(order)).toBe(fence === '14' ? 14 : 12);
        }
      });

      it('a move raises it, and what has happened is told to whoever is too late', async () => {
        const order = await kit.order('alice');
        expect(await kit.outcome(kit.move('cancel', order, { fence: '7' }))).toBe('moved');
        expect(await fenceOf(order)).toBe(7);
        expect(await kit.unmoved(kit.move('cancel', order, { fence: '3' }))).toBe('repeat');
      });
    });

    describe('what a capture believes', () => {
      const opened = async (buyer: string) => {
        const order = await kit.order(buyer);
        const one = await kit.open(order);
        if (one.outcome !== 'opened') throw new Error('should be opened');
        return { order, id: one.attempt.id, believed: kit.believing(one) };
      };

      it('is not believed where it is not so: each is told what a look would have told (P6)', async () => {
        const [paid, gone, voided, other, twin] = [
          await opened('paid'),
          await opened('gone'),
          await opened('voided'),
          await opened('other'),
          await opened('twin'),
        ];
        await kit.one(kit.capture(paid.order, paid.id));
        await kit.closeAttempt(gone.id, { state: 'voided', error: null });
        await kit.one(kit.move('cancel', gone.order));
        await kit.closeAttempt(voided.id, { state: 'voided', error: null });
        await kit.one(kit.capture(other.order, other.id, { reference: 'one' }));
        const fresh = await opened('fresh');
        const moved = await kit.all(
          kit.capture(paid.order, paid.id, { believed: paid.believed }),
          kit.capture(gone.order, gone.id, { believed: gone.believed }),
          kit.capture(voided.order, voided.id, { believed: voided.believed }),
          kit.capture(twin.order, twin.id, { believed: twin.believed, reference: 'one' }),
          kit.capture(fresh.order, fresh.id, { believed: fresh.believed }),
          kit.capture(fresh.order, fresh.id, { believed: fresh.believed }),
        );
        expect(moved.map(({ outcome }) => outcome)).toEqual(['repeat', 'late', 'moved', 'refused', 'moved', 'repeat']);
      });

      it('a reference that is another’s is refused before all else: amount, time, token, an open payment', async () => {
        const first = await kit.order('first');
        await kit.one(kit.taken(first, 'till'));
        const [wrong, low, open, late] = [
          await kit.order('wrong'),
          await kit.order('low'),
          await kit.order('open'),
          await kit.order('late', { payWithinSeconds: 60 }),
        ];
        await kit.closeAttempt(await kit.opened(low, { fence: '9' }), { state: 'voided', error: null });
        const openId = await kit.opened(open);
        kit.world.clock.advance(60_000);
        for (const move of [
          kit.taken(wrong, 'till', { amount: { amount: 1, currency: 'CNY' } }),
          kit.taken(low, 'till', { fence: '5' }),
          kit.taken(open, 'till'),
          kit.taken(late, 'till'),
        ]) {
          expect(await kit.unmoved(move), move.orderId).toBe('refused');
        }
        expect((await kit.ledger.getAttempt(openId))!.state).toBe('open');
      });

      it('an attempt keeps its token beside late money that moves to another order', async () => {
        const { order: lost, attemptId } = await kit.late('lost');
        const revived = await kit.order('lost', { slots: [2] });
        const other = await kit.order('other');
        const one = await kit.open(other, { fence: '6' });
        if (one.outcome !== 'opened') throw new Error('should be opened');
        const believed = kit.believing(one);
        const moved = await kit.all(
          kit.capture(revived, attemptId, { revives: lost.id }),
          kit.capture(other, one.attempt.id, { believed, fence: '6' }),
        );
        expect(moved.map(({ outcome }) => outcome)).toEqual(['moved', 'moved']);
        expect(await kit.unmoved(kit.move('refund', other, { fence: '5' }))).toBe('fenced');
      });

      it('is judged by its constraint, too: a reference is another’s', async () => {
        const [first, second, third] = [await opened('a'), await opened('b'), await opened('c')];
        const reference = 'one';
        const { believed } = first;
        expect(await kit.outcome(kit.capture(first.order, first.id, { reference, believed }))).toBe('moved');
        const moved = await kit.all(
          kit.capture(second.order, second.id, { reference, believed: second.believed }),
          kit.capture(third.order, third.id, { believed: third.believed }),
        );
        expect(moved.map(({ outcome }) => outcome)).toEqual(['refused', 'moved']);
      });
    });

    describe('a batch', () => {
      it('may be empty', async () => {
        expect(await kit.all()).toEqual([]);
        expect(await kit.ledger.openAttempts([])).toEqual([]);
      });

      it('moves of one order happen one after the other, each told how it left the order', async () => {
        const order = await kit.order('alice');
        const moved = await kit.all(
          kit.move('expire', order),
          kit.taken(order, 'a'),
          kit.taken(order, 'a'),
          kit.move('cancel', order),
          kit.move('refund', order),
          kit.move('refund', order),
        );
        expect(moved.map(({ outcome, order: left }) => `${outcome} ${left!.status} ${left!.version}`)).toEqual([
          'not_due reserved 1',
          'moved paid 2',
          'repeat paid 2',
          'refused paid 2',
          'moved refunded 3',
          'repeat refunded 3',
        ]);
        expect(await kit.item()).toMatchObject({ reserved: 0, sold: 0, rev: 2 });
        expect(await kit.count('audit', `subject = 'order:${order.id}'`)).toBe(2);
      });

      it('raises rev by one for each item whose units it moved, and for no other (P9)', async () => {
        await kit.createSale(OTHER_SALE);
        const orders = [
          await kit.order('a', { slots: [1, 2] }),
          await kit.order('b'),
          await kit.order('c', { saleId: OTHER_SALE, itemCode: 'poster' }),
          (await kit.paid('d')).order,
        ];
        const revs = async () =>
          Promise.all(
            [SALE, OTHER_SALE].flatMap((saleId) =>
              ['voucher', 'poster'].map(async (code) => (await kit.item(code, saleId)).rev),
            ),
          );
        const before = await revs();
        const [a, b, c, d] = orders as [OrderRecord, OrderRecord, OrderRecord, OrderRecord];
        await kit.all(kit.move('cancel', a), kit.taken(b, 'b'), kit.move('cancel', c), kit.move('refund', d));
        expect(await revs()).toEqual([before[0]! + 1, before[1], before[2], before[3]! + 1]);
        expect(await kit.item()).toMatchObject({ reserved: 0, sold: 2 });
        const releases = await kit.releases();
        expect(releases.map(({ rev }) => rev)).toEqual([before[0]! + 1, before[3]! + 1]);
      });

      it('is taken whole or not at all', async () => {
        const [alice, bob, carol] = [await kit.order('alice'), await kit.order('bob'), await kit.order('carol')];
        await kit.one(kit.move('cancel', bob, { auditId: '5' }));
        const before = await kit.everything();
        // The audit row's id exists already, so the last statements of the transaction fail.
        const clash = kit.move('cancel', alice, { auditId: '5' });
        expect(await codeOf(kit.ledger.moveOrders([kit.taken(carol, 'c'), clash]))).toBe('error');
        expect(await kit.everything()).toEqual(before);
        expect(await kit.outcome({ ...clash, auditId: kit.id() })).toBe('moved');
        // The ledger's memory, too, frees its slot only when its end is committed.
        expect((await kit.commit(kit.message('carol')))[0]!.order.reason).toBe('limit_reached');
        await kit.order('alice');
      });

      it('may be large', async () => {
        const orders = (
          await kit.commit(
            ...Array.from({ length: 700 }, (_, i) =>
              kit.message(`buyer-${i}`, { itemCode: i % 2 ? 'poster' : 'voucher' }),
            ),
          )
        )
          .map(({ order }) => order)
          .filter(({ status }) => status === 'reserved');
        expect(orders).toHaveLength(700);
        const attempts = orders.map((order) => kit.attempt(order));
        expect(new Set((await kit.openAll(attempts)).map(({ outcome }) => outcome))).toEqual(new Set(['opened']));
        const revs = (await kit.item()).rev;
        const paid = await kit.all(
          ...orders.map((order, at) => kit.capture(order, attempts[at]!.id, { fence: String(at) })),
        );
        expect(new Set(paid.map(({ outcome }) => outcome))).toEqual(new Set(['moved']));
        expect(await kit.item()).toMatchObject({ reserved: 0, sold: 350, rev: revs + 1 });
      });
    });

    describe.each(states)('an order that ends, $name', (state) => {
      it('gives back its slots and no others: the buyer may have them again, once (P2, P4)', async () => {
        const [first, other] = [await kit.order('alice', { slots: [1, 2] }), await kit.order('alice', { slots: [3] })];
        await kit.order('bob', { slots: [1] });
        await kit.reach(state);
        expect(await kit.outcome(kit.move('cancel', first))).toBe('moved');
        const again = async (slots: number[], buyer = 'alice') => {
          const [stored] = await kit.commit(kit.message(buyer, { slots }));
          return stored!.order.reason ?? stored!.order.status;
        };
        expect(await again([3])).toBe('limit_reached');
        expect(await again([1], 'bob')).toBe('limit_reached');
        expect(await again([2, 1])).toBe('reserved');
        expect(await again([1])).toBe('limit_reached');
        // To end the first again must not free what the second has taken since.
        expect(await kit.unmoved(kit.move('cancel', first))).toBe('repeat');
        expect(await again([2])).toBe('limit_reached');
        while (await kit.ledger.maintain(1000));
        await kit.judge(true);
        await kit.world.crash();
        expect(await again([1])).toBe('limit_reached');
        expect(await kit.outcome(kit.taken(other, 'x'))).toBe('moved');
        expect(await kit.outcome(kit.move('refund', other))).toBe('moved');
        expect(await again([3])).toBe('reserved');
        while (await kit.ledger.maintain(1000));
        await kit.judge(true);
      });

      it('and then the ledger comes into that state: the same', async () => {
        const order = await kit.order('alice', { slots: [1], key: 'k' });
        await kit.one(kit.move('cancel', order));
        const next = await kit.order('alice', { slots: [1] });
        await kit.reach(state);
        const [stored] = await kit.commit(kit.message('alice', { slots: [1] }));
        expect(stored!.order.reason).toBe('limit_reached');
        expect(await kit.outcome(kit.move('cancel', next))).toBe('moved');
        await kit.order('alice', { slots: [1] });
        const listed = await kit.ledger.listOrders({ buyer: 'alice' }, { limit: 9, before: null });
        expect(listed.map(({ status }) => status)).toEqual(['reserved', 'rejected', 'cancelled', 'cancelled']);
        while (await kit.ledger.maintain(1000));
        await kit.judge(true);
      });

      it('keeps its key for 24 hours, holds nothing for a gate, and is not stored again (P5)', async () => {
        const message = kit.message('alice', { slots: [2], key: 'k' });
        const order = (await kit.commit(message))[0]!.order;
        const other = await kit.order('bob', { slots: [1, 3] });
        await kit.one(kit.move('cancel', order));
        await kit.reach(state);
        const scope = { saleId: SALE, buyer: 'alice', key: 'k' };
        expect(await kit.ledger.findOrderKey(scope)).toMatchObject({ orderId: order.id });
        const before = await kit.item();
        expect(await kit.commit(message)).toMatchObject([
          { inserted: false, order: { status: 'cancelled', version: 2 } },
        ]);
        expect(await kit.item(), 'a message that comes again takes nothing').toEqual(before);
        const [second] = await kit.commit(kit.message('alice', { slots: [2], key: 'k' }));
        expect(second!.order.reason, 'the key is bound').toBe('gate_rebuilt');
        const snapshot = (await wholeSnapshot(kit.ledger, SALE))!;
        expect(snapshot.holds).toEqual([{ orderId: other.id, itemId: '501', buyer: 'bob', slots: [1, 3] }]);
        expect(snapshot.keys).toMatchObject([{ buyer: 'alice', key: 'k', orderId: order.id }]);
        kit.world.clock.advance(KEY_KEPT_MS);
        expect(await kit.ledger.findOrderKey(scope)).toBeNull();
        expect((await wholeSnapshot(kit.ledger, SALE))!.keys).toEqual([]);
      });

      it('a writer that meets it again gives nothing back and takes nothing', async () => {
        const message = kit.message('alice');
        const order = (await kit.commit(message))[0]!.order;
        await kit.one(kit.move('cancel', order));
        await kit.reach(state);
        const before = await kit.item();
        const heard: string[] = [];
        const effects: UnresolvedEffects = {
          async decided(stored) {
            for (const { order, inserted } of stored) {
              heard.push(order.status === 'rejected' ? 'rejected' : `stored ${order.status} ${inserted}`);
            }
          },
          withdrawn: async () => void heard.push('withdrawn'),
          failed: () => heard.push('failed'),
        };
        const unresolved = new Unresolved(kit.ledger, kit.world.runtime, effects);
        const writer = new Writer(kit.ledger, kit.world.runtime, { ...effects, committed: () => {} }, unresolved);
        await (await writer.write([message])).told;
        unresolved.close();
        expect(heard).toEqual(['stored cancelled false']);
        expect(await kit.item()).toEqual(before);
      });
    });

    describe('attempts', () => {
      it('are opened for an order that can be paid, and due when asked for', async () => {
        const order = await kit.order('alice', { slots: [1, 2] });
        kit.world.clock.advance(100);
        const opened = await kit.open(order, { id: '77' });
        expect(opened).toEqual({
          outcome: 'opened',
          order,
          attempt: {
            id: '77',
            orderId: order.id,
            provider: 'sandbox',
            state: 'open',
            pays: false,
            amount: { amount: 16_000, currency: 'CNY' },
            refunded: 0,
            reference: null,
            error: null,
            nextAtMs: T0 + 10_100,
            tries: 0,
            createdAtMs: T0 + 100,
            updatedAtMs: T0 + 100,
          },
          fence: 0n,
        });
        expect(await kit.ledger.dueAttempts(9)).toEqual([]);
        kit.world.clock.advance(10_000);
        expect(await kit.ledger.dueAttempts(9)).toEqual([(opened as { attempt: unknown }).attempt]);
        await kit.world.crash();
        expect(await attemptOf('77')).toEqual((opened as { attempt: unknown }).attempt);
        expect(await kit.stored(order.id), 'the order is as it was').toEqual(order);
      });

      it('one at a time; not of an order that has ended, is paid, or whose time is over (P6)', async () => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order);
        expect(await kit.open(order)).toMatchObject({ outcome: 'payment_open', attempt: { id: attemptId } });
        expect((await kit.open({ id: '424242' })).outcome).toBe('unknown');
        expect((await kit.open((await kit.paid('bob')).order)).outcome).toBe('not_payable');
        const late = await kit.order('carol');
        kit.world.clock.advance(PAY_WITHIN_MS - 1);
        const inTime = await kit.opened(late);
        expect((await attemptOf(inTime)).nextAtMs, 'due when the time is over').toBe(late.expiresAtMs);
        await kit.closeAttempt(inTime, { state: 'voided', error: null });
        kit.world.clock.advance(1);
        expect(await kit.open(late)).toEqual({ outcome: 'not_payable', order: late });
        expect(await kit.count('payments')).toBe(3);
      });

      it('two of one order in one batch: the first; and asked for again it is the same one', async () => {
        const order = await kit.order('alice');
        const wanted = [kit.attempt(order), kit.attempt(order)];
        const opened = await kit.openAll([...wanted, wanted[0]!]);
        expect(opened.map(({ outcome }) => outcome)).toEqual(['opened', 'payment_open', 'opened']);
        expect(await kit.ledger.openAttempt(wanted[0]!)).toEqual(opened[0]);
        expect(await kit.count('payments')).toBe(1);
        const other = { ...wanted[0]!, orderId: (await kit.order('bob')).id };
        await expect(kit.ledger.openAttempt(other)).rejects.toThrow();
        expect(await kit.count('payments')).toBe(1);
      });

      it('P6: many changes at once, also of the same one: each is done once, and none fails for another', async () => {
        const orders = [];
        for (let n = 0; n < 20; n++) orders.push(await kit.order(`crowd-${n}`));
        const ids: string[] = [];
        for (const order of orders) ids.push(await kit.opened(order));
        const told = await Promise.all([
          ...ids.map((id) => kit.closeAttempt(id, { state: 'failed', error: 'no' })),
          ...ids.map((id) => kit.ledger.nameAttempt(id, `name-${id}`)),
          ...ids.map((id) => kit.closeAttempt(id, { state: 'voided', error: null })),
          ...ids.map((id) => kit.ledger.nameAttempt(id, 'everybody’s')),
          kit.closeAttempt('424242', { state: 'voided', error: null }),
        ]);
        expect(told.pop()).toBeNull();
        for (const [at, id] of ids.entries()) {
          const stored = await kit.ledger.getAttempt(id);
          const answers = [0, 1, 2, 3].map((n) => told[n * ids.length + at]!);
          // The first close counts, and the other one is told so.
          expect([answers[0]!.state, answers[2]!.state]).toEqual([stored!.state, stored!.state]);
        }
        const audited = await kit.world.rows(
          "SELECT action FROM audit WHERE action IN ('payment.failed', 'payment.voided')",
        );
        expect(audited).toHaveLength(ids.length);
      });

      it('P6: capture and void of one intent of the sandbox at once: one of them wins', async () => {
        const ids = Array.from({ length: 40 }, () => kit.id());
        const intent = { orderId: '1', amount: { amount: 5, currency: 'CNY' }, state: 'pending' as const };
        for (const id of ids) await kit.ledger.putIntent({ ...intent, id, dueAfterMs: null, told: true, refunded: 0 });
        const [captured, voided] = await Promise.all([
          Promise.all(ids.map((id) => kit.ledger.moveIntent(id, ['pending'], 'captured'))),
          Promise.all(ids.map((id) => kit.ledger.moveIntent(id, ['pending'], 'voided'))),
        ]);
        for (const [at, id] of ids.entries()) {
          const { state } = (await kit.ledger.getIntent(id))!;
          expect([captured[at]?.state, voided[at]?.state].filter(Boolean)).toEqual([state]);
        }
      });

      it('that are open are closed once, with what the provider says', async () => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order);
        kit.world.clock.advance(9);
        const closed = await kit.closeAttempt(attemptId, { state: 'failed', error: 'no', reference: 'r' });
        expect(closed).toMatchObject({
          state: 'failed',
          error: 'no',
          reference: 'r',
          nextAtMs: null,
          updatedAtMs: T0 + 9,
        });
        expect(await kit.closeAttempt(attemptId, { state: 'voided', error: null })).toEqual(closed);
        expect(await kit.ledger.findAttempt('sandbox', 'r')).toEqual(closed);
        expect(await kit.ledger.findAttempt('bank', 'r')).toBeNull();
        expect(await kit.ledger.findAttempt('sandbox', 'R')).toBeNull();
        expect(await kit.closeAttempt('424242', { state: 'voided', error: null })).toBeNull();
        // A reference that another attempt has is not stored again, and nothing fails for it.
        const second = await kit.opened(order);
        const again = await kit.closeAttempt(second, { state: 'failed', error: null, reference: 'r' });
        expect(again).toMatchObject({ id: second, state: 'failed', reference: null });
        expect((await kit.ledger.findAttempt('sandbox', 'r'))!.id).toBe(attemptId);
      });

      it('P10: what a provider says of a failure is stored on every ledger, whatever is in it', async () => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order);
        await kit.postpone(attemptId, 'bank\u0000says:\r\nno\ud800', T0 + 5000);
        expect(await attemptOf(attemptId)).toMatchObject({ tries: 1, error: 'bank says: no\ufffd' });
        await kit.postpone(attemptId, undefined as unknown as string, T0 + 5000);
        expect(await attemptOf(attemptId)).toMatchObject({ tries: 2, error: null });
        const closed = await kit.closeAttempt(attemptId, { state: 'failed', error: 'card\u0000refused' });
        expect(closed).toMatchObject({ state: 'failed', error: 'card refused' });
        expect(await attemptOf(attemptId)).toEqual(closed);
      });

      it('with money are not closed', async () => {
        const { attemptId } = await kit.paid('alice');
        const before = await attemptOf(attemptId);
        expect(await kit.closeAttempt(attemptId, { state: 'voided', error: null })).toEqual(before);
        expect(await attemptOf(attemptId)).toEqual(before);
      });

      it('refunds start from captured and late only, and end once', async () => {
        const by = actor('admin', 'admin');
        const order = await kit.order('alice');
        const open = await kit.opened(order);
        expect(await kit.ledger.startRefund(open, by, kit.id())).toMatchObject({ state: 'open' });
        expect(await kit.ledger.startRefund('424242', by, kit.id())).toBeNull();
        const { attemptId } = await kit.late('bob');
        expect(await kit.ledger.finishRefund(attemptId, null)).toMatchObject({ state: 'late' });
        const started = await kit.ledger.startRefund(attemptId, by, kit.id());
        expect(started).toMatchObject({ state: 'refunding', nextAtMs: kit.nowMs });
        kit.world.clock.advance(50);
        expect(await kit.ledger.startRefund(attemptId, by, kit.id())).toEqual(started);
        const back = await kit.ledger.finishRefund(attemptId, 'back-1');
        expect(back, 'it is found by its own name').toMatchObject({ state: 'refunded', reference: `ref-${attemptId}` });
        expect(await kit.ledger.finishRefund(attemptId, 'back-2')).toEqual(back);
        expect(await kit.ledger.finishRefund('424242', null)).toBeNull();
      });

      it('are postponed, an open one not past its order’s time', async () => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order);
        await kit.postpone(attemptId, 'x'.repeat(2000), T0 + 5000);
        expect(await attemptOf(attemptId)).toMatchObject({ tries: 1, nextAtMs: T0 + 5000, error: 'x'.repeat(500) });
        await kit.postpone(attemptId, 'hangs', T0 + 2 * PAY_WITHIN_MS);
        expect(await attemptOf(attemptId)).toMatchObject({ tries: 2, nextAtMs: order.expiresAtMs, error: 'hangs' });
        kit.world.clock.advance(PAY_WITHIN_MS);
        await kit.postpone(attemptId, 'hangs', T0 + 2 * PAY_WITHIN_MS);
        expect(await attemptOf(attemptId)).toMatchObject({ tries: 3, nextAtMs: T0 + 2 * PAY_WITHIN_MS });
        await kit.closeAttempt(attemptId, { state: 'voided', error: null });
        const closed = await attemptOf(attemptId);
        await kit.postpone(attemptId, 'no', T0);
        expect(await attemptOf(attemptId), 'nothing is to be done about it').toEqual(closed);
        await kit.postpone('424242', 'no', T0);
      });

      it('that ended without money are in doubt until it is cleared, and another doubt is not', async () => {
        const order = await kit.order('alice');
        const attemptId = await kit.opened(order);
        const open = await attemptOf(attemptId);
        expect(await kit.ledger.doubtAttempt(attemptId, 'no')).toEqual(open);
        expect(await kit.ledger.doubtAttempt('424242', 'no')).toBeNull();
        await kit.closeAttempt(attemptId, { state: 'voided', error: null });
        expect(await kit.ledger.dueAttempts(9)).toEqual([]);
        const first = await kit.ledger.doubtAttempt(attemptId, 'told of its money');
        expect(first).toMatchObject({ state: 'voided', nextAtMs: kit.nowMs, tries: 0, error: 'told of its money' });
        expect(await kit.ledger.dueAttempts(9)).toEqual([first]);
        const second = await kit.ledger.doubtAttempt(attemptId, 'told again');
        expect(await kit.ledger.clearDoubt(first!), 'of the first one').toEqual(second);
        await kit.postpone(attemptId, 'down', T0 + 5000);
        const later = await attemptOf(attemptId);
        expect(later).toMatchObject({ state: 'voided', tries: 1, nextAtMs: T0 + 5000 });
        expect(await kit.ledger.clearDoubt(second!)).toEqual(later);
        expect(await kit.ledger.clearDoubt(later!)).toMatchObject({ state: 'voided', nextAtMs: null });
        await kit.ledger.doubtAttempt(attemptId, 'told of its money');
        const { outcome } = await kit.one(kit.capture(order, attemptId));
        expect(outcome).toBe('moved');
        const paid = await attemptOf(attemptId);
        expect(paid).toMatchObject({ state: 'captured', pays: true, nextAtMs: null });
        expect(await kit.ledger.doubtAttempt(attemptId, 'no')).toEqual(paid);
      });

      it('are listed newest first, and an order shows the one that it is paid with', async () => {
        const order = await kit.order('alice');
        const ids: string[] = [];
        for (let i = 0; i < 3; i++) {
          ids.unshift(await kit.opened(order));
          await kit.closeAttempt(ids[0]!, { state: 'failed', error: null });
        }
        const bare = await kit.order('bob');
        expect((await kit.ledger.attemptsOf(order.id, 9)).map(({ id }) => id)).toEqual(ids);
        const last = async () => (await kit.ledger.lastAttempts([order.id, bare.id])).get(order.id)!.id;
        expect(await last()).toBe(ids[0]);
        await kit.one(kit.capture(order, ids[1]!));
        expect(await last()).toBe(ids[1]);
        expect((await kit.ledger.lastAttempts([bare.id])).size).toBe(0);
        expect((await kit.ledger.lastAttempts([])).size).toBe(0);
      });

      it('that are due come longest due first, at most so many', async () => {
        const waits = [3000, 1000, 2000];
        const ids: string[] = [];
        for (const [at, askAfterMs] of waits.entries()) {
          ids.push(await kit.opened(await kit.order(`b${at}`), { askAfterMs }));
        }
        const due = async (limit = 9) => (await kit.ledger.dueAttempts(limit)).map(({ id }) => id);
        kit.world.clock.advance(2000);
        expect(await due()).toEqual([ids[1], ids[2]]);
        kit.world.clock.advance(1000);
        expect(await due()).toEqual([ids[1], ids[2], ids[0]]);
        expect(await due(1)).toEqual([ids[1]]);
        const [first] = await kit.ledger.dueAttempts(1);
        expect((await kit.ledger.dueAttempts(1, first)).map(({ id }) => id)).toEqual([ids[2]]);
        expect((await kit.ledger.dueAttempts(9, first)).map(({ id }) => id)).toEqual([ids[2], ids[0]]);
        const [last] = (await kit.ledger.dueAttempts(9)).slice(-1);
        expect(await kit.ledger.dueAttempts(9, last)).toEqual([]);
      });

      it('of the same instant come each once, in pages', async () => {
        const orders = [];
        for (let at = 0; at < 5; at++) orders.push(await kit.order(`b${at}`));
        const ids = [];
        for (const order of orders) ids.push(await kit.opened(order, { askAfterMs: 1000 }));
        kit.world.clock.advance(1000);
        for (const limit of [1, 2, 4, 5, 6]) {
          const met: PaymentAttempt[] = [];
          let page: PaymentAttempt[];
          do {
            page = await kit.ledger.dueAttempts(limit, met.at(-1));
            met.push(...page);
          } while (page.length === limit);
          expect(met.map(({ id }) => id).sort(), `${limit} a page`).toEqual(ids.toSorted());
        }
      });

      it('are postponed many at once, by the ledger’s clock; it says whose order’s time is over', async () => {
        const [young, old] = [await kit.order('alice'), await kit.order('bob', { payWithinSeconds: 5 })];
        const [a, b] = [await kit.opened(young), await kit.opened(old)];
        kit.world.clock.advance(5000);
        const batch = [a, b, '424242'].map((attemptId) => ({ attemptId, error: 'hangs', afterMs: 1000 }));
        const postponed = await kit.ledger.postponeAttempts(batch);
        expect(postponed.map(({ attempt, over }) => ({ id: attempt.id, over }))).toEqual([
          { id: a, over: false },
          { id: b, over: true },
        ]);
        for (const { attempt } of postponed) {
          expect(attempt).toMatchObject({ nextAtMs: kit.nowMs + 1000, tries: 1, error: 'hangs' });
          expect(await kit.ledger.getAttempt(attempt.id)).toEqual(attempt);
        }
        expect(await kit.ledger.postponeAttempts([])).toEqual([]);
        expect(await kit.ledger.unfinishedAmong([a, b, '424242'])).toEqual(new Set([a, b]));
        await kit.closeAttempt(a, { state: 'voided', error: null });
        expect(await kit.ledger.unfinishedAmong([a, b])).toEqual(new Set([b]));
        expect(await kit.ledger.unfinishedAmong([])).toEqual(new Set());
      });

      it('that were tried in vain so often are found, due or not, until they are settled', async () => {
        const [first, second] = [await kit.order('alice'), await kit.order('bob')];
        const [a, b] = [await kit.opened(first), await kit.opened(second)];
        const found = async (tries: number, limit = 9, saleId: string | null = null) =>
          (await kit.ledger.unsettledAttempts(tries, limit, saleId)).map(({ attempt }) => attempt.id);
        expect(await found(1)).toEqual([]);
        // Before their orders' time is over: then they would be due at the latest.
        const soonMs = kit.world.clock.now() + 1000;
        await kit.postpone(b, 'no answer', soonMs);
        for (let tries = 1; tries <= 2; tries++) await kit.postpone(a, 'no answer', soonMs + 1);
        expect(await found(1)).toEqual([b, a]);
        expect(await found(1, 1)).toEqual([b]);
        expect(await found(2)).toEqual([a]);
        expect(await found(3)).toEqual([]);
        expect(await found(1, 9, first.saleId)).toEqual([b, a]);
        expect(await found(1, 9, '1')).toEqual([]);
        expect(await kit.ledger.unsettledAttempts(2, 9, null)).toEqual([
          { attempt: await kit.ledger.getAttempt(a), saleId: first.saleId, orderStatus: 'reserved' },
        ]);
        await kit.one(kit.capture(first, a));
        await kit.closeAttempt(b, { state: 'failed', error: null });
        expect(await found(1)).toEqual([]);
      });
    });

    describe('constraints below every statement (P6)', () => {
      let order: OrderRecord;

      beforeEach(async () => {
        order = await kit.order('alice');
        await kit.one(kit.taken(order, 'till'));
        await kit.opened(await kit.order('bob'));
      });

      const insert = (id: number, over: Record<string, string | number>) => {
        const row = { order_id: 424242, state: `'failed'`, pays: 0, reference: 'NULL', next_at: 'NULL', ...over };
        return kit.world.change(
          `INSERT INTO payments (id, order_id, provider, state, pays, amount, currency, reference, next_at, tries, created_at, updated_at, actor)
           VALUES (${id}, ${row.order_id}, 'confirm', ${row.state}, ${row.pays}, 1, 'CNY', ${row.reference}, ${row.next_at}, 0, 1, 1, 'till')`,
        );
      };

      it('a second open attempt, a second payment, a reference twice, money that nobody looks after: none is stored', async () => {
        await insert(1, {});
        await insert(2, { reference: `'other'` });
        const open = await kit.world.rows(`SELECT order_id FROM payments WHERE state = 'open'`);
        const wrong: Record<string, string | number>[] = [
          { state: `'open'`, next_at: 5, order_id: String(open[0]!.order_id) },
          { state: `'captured'`, pays: 1, order_id: order.id },
          { reference: `'till'` },
          { state: `'late'` },
          { state: `'refunding'` },
          { state: `'open'` },
          { state: `'captured'`, pays: 0 },
          { state: `'open'`, pays: 1, next_at: 5 },
          { state: `'lost'` },
          { state: `'refunded'`, next_at: 5 },
          { state: `'captured'`, pays: 1, next_at: 5 },
        ];
        for (const [at, over] of wrong.entries()) {
          await expect(insert(10 + at, over), JSON.stringify(over)).rejects.toThrow();
        }
        expect(await kit.count('payments')).toBe(4);
      });
    });

    describe('orders that are due', () => {
      it('come longest first, at most so many, and only reserved ones', async () => {
        const orders: OrderRecord[] = [];
        for (const [buyer, payWithinSeconds] of [
          ['a', 30],
          ['b', 10],
          ['c', 20],
          ['d', 5],
          ['e', 6],
          ['f', 100],
        ] as const) {
          orders.push(await kit.order(buyer, { payWithinSeconds }));
        }
        await kit.one(kit.taken(orders[3]!, 'd'));
        await kit.one(kit.move('cancel', orders[4]!));
        const due = async (limit = 9) => (await kit.ledger.dueOrders(limit)).map(({ buyer }) => buyer);
        expect(await due()).toEqual([]);
        kit.world.clock.advance(9_999);
        expect(await due()).toEqual([]);
        kit.world.clock.advance(1);
        expect(await due()).toEqual(['b']);
        kit.world.clock.advance(20_000);
        expect(await due()).toEqual(['b', 'c', 'a']);
        expect(await due(2)).toEqual(['b', 'c']);
        expect(await kit.ledger.dueOrders(1)).toEqual([
          { orderId: orders[1]!.id, saleId: SALE, buyer: 'b', expiresAtMs: T0 + 10_000, paying: false },
        ]);
        await kit.all(...orders.slice(0, 3).map((order) => kit.move('expire', order)));
        expect(await due()).toEqual([]);
      });

      it('with an open payment say so, and those behind them are on the next pages, each once', async () => {
        const orders: OrderRecord[] = [];
        // Some of the same instant, some not, as commits of batches make them.
        for (const [at, payWithinSeconds] of [10, 10, 10, 10, 10, 11, 11, 12].entries()) {
          orders.push(await kit.order(`b${at}`, { payWithinSeconds }));
        }
        for (const at of [0, 1, 3, 6]) await kit.opened(orders[at]!, { askAfterMs: 60_000 });
        kit.world.clock.advance(12_000);
        for (let limit = 1; limit <= 9; limit++) {
          const met: DueOrder[] = [];
          let page: DueOrder[];
          do {
            page = await kit.ledger.dueOrders(limit, met.at(-1));
            met.push(...page);
          } while (page.length === limit);
          expect(met.map(({ orderId }) => orderId).sort(), `${limit} a page`).toEqual(
            orders.map(({ id }) => id).sort(),
          );
          expect(met.map(({ expiresAtMs }) => expiresAtMs)).toEqual(orders.map(({ expiresAtMs }) => expiresAtMs));
          const paying = met.filter((order) => order.paying).map(({ orderId }) => orderId);
          expect(paying.sort()).toEqual([0, 1, 3, 6].map((at) => orders[at]!.id).sort());
        }
      });

      it('are found by an index that holds reserved orders only', async () => {
        await kit.createSale('700', { items: [{ code: 'voucher', name: 'V', price: PRICE, stock: 9000 }] });
        const many = Array.from({ length: 3000 }, (_, i) =>
          kit.message(`b${i}`, { saleId: '700', payWithinSeconds: 60 + i }),
        );
        await kit.commit(...many);
        kit.world.clock.advance(70_000);
        const plan = await kit.world.explain(kit.dueQuery(10));
        expect(plan).toContain('orders_due');
        expect(await kit.ledger.dueOrders(100)).toHaveLength(11);
      });
    });

    describe('units on their way back', () => {
      it('come oldest first, in pages, of some age; and are gone when the gate has them', async () => {
        const orders: OrderRecord[] = [];
        for (const buyer of ['a', 'b', 'c', 'd']) orders.push(await kit.order(buyer));
        await kit.all(kit.move('cancel', orders[1]!), kit.move('cancel', orders[0]!));
        kit.world.clock.advance(1000);
        await kit.all(kit.move('cancel', orders[3]!), kit.move('cancel', orders[2]!));
        const ids = (some: { orderId: string }[]) => some.map(({ orderId }) => orderId);
        const all = await kit.ledger.releases(9, 0);
        expect(ids(all)).toEqual(ids(orders.map(({ id }) => ({ orderId: id }))));
        expect(ids(await kit.ledger.releases(9, 1))).toEqual(ids(all.slice(0, 2)));
        expect(ids(await kit.ledger.releases(9, 1001))).toEqual([]);
        const first = await kit.ledger.releases(1, 0);
        expect(await kit.ledger.releases(2, 0, first[0])).toEqual(all.slice(1, 3));
        expect(await kit.ledger.releases(9, 0, all[2])).toEqual(all.slice(3));
        await kit.ledger.released([orders[0]!.id, orders[2]!.id, '424242']);
        await kit.ledger.released([]);
        expect(await kit.ledger.releases(9, 0)).toEqual([all[1], all[3]]);
        await kit.world.crash();
        expect(await kit.ledger.releases(9, 0)).toEqual([all[1], all[3]]);
      });

      const pagesSince = async (saleId: string, revs: ReadonlyMap<string, number>): Promise<Release[][]> => {
        const pages: Release[][] = [];
        for await (const page of kit.ledger.releasesSince(saleId, revs)) pages.push(page);
        return pages;
      };
      const releasesSince = async (revs: ReadonlyMap<string, number>): Promise<Release[]> =>
        (await pagesSince(SALE, revs)).flat();

      it('a gate that is built gets those of a later rev again, whether another gate had them or not', async () => {
        await kit.createSale(OTHER_SALE);
        const [a, b, c, d] = [
          await kit.order('a'),
          await kit.order('b'),
          await kit.order('c', { itemCode: 'poster' }),
          await kit.order('d', { saleId: OTHER_SALE }),
        ];
        await kit.one(kit.move('cancel', a));
        const snapshot = (await wholeSnapshot(kit.ledger, SALE))!;
        expect(snapshot.holds.map(({ orderId }) => orderId)).toEqual([b.id, c.id]);
        await kit.all(...[b, c, d].map((order) => kit.move('cancel', order)));
        await kit.ledger.released([a.id, b.id]);
        const revs = new Map(snapshot.items.map(({ id, rev }) => [id, rev]));
        const since = await releasesSince(revs);
        expect(new Set(since.map(({ orderId }) => orderId))).toEqual(new Set([b.id, c.id]));
        expect(await releasesSince(new Map())).toHaveLength(3);
        const later = (await wholeSnapshot(kit.ledger, SALE))!;
        expect(await releasesSince(new Map(later.items.map(({ id, rev }) => [id, rev])))).toEqual([]);
      });

      it('P10: come in pages for a gate that is built, each once, however many there are', async () => {
        const stock = { name: 'x', price: PRICE, stock: 9000 };
        await kit.createSale('700', { items: ['voucher', 'poster'].map((code) => ({ code, ...stock })) });
        const batch = Array.from({ length: 700 }, (_, n) =>
          kit.message(`b${n}`, { saleId: '700', itemCode: n < 20 ? 'poster' : 'voucher' }),
        );
        const orders = (await kit.commit(...batch)).map(({ order }) => order);
        // Some with a rev of their own, the rest under one that many share.
        for (const order of orders.slice(0, 5)) await kit.ledger.moveOrders([kit.move('cancel', order)]);
        await kit.ledger.moveOrders(orders.slice(5).map((order) => kit.move('cancel', order)));
        const pages = await pagesSince('700', new Map());
        expect(pages.map(({ length }) => length)).toEqual([500, 180, 20]);
        const met = pages.flat().map(({ orderId }) => orderId);
        expect(met.toSorted()).toEqual(orders.map(({ id }) => id).toSorted());
        // The rev of one item is far above the other's: each is asked for its own only.
        const { items } = (await kit.ledger.getSale('700'))!;
        const revs = new Map(items.map(({ id, rev }) => [id, rev]));
        revs.set('702', revs.get('702')! - 1);
        expect((await pagesSince('700', revs)).map(({ length }) => length)).toEqual([15]);
      });

      it('P4: orders that end while a gate is being built are in its pages or not, and released in any case', async () => {
        const orders = [await kit.order('a'), await kit.order('b'), await kit.order('c')];
        const snapshot = (await kit.ledger.rebuildSnapshot(SALE))!;
        await kit.one(kit.move('cancel', orders[0]!));
        const gate = new MemoryGate(systemRuntime(), () => undefined);
        const content = (async function* () {
          yield* snapshot.content;
          await kit.one(kit.move('cancel', orders[1]!));
        })();
        await gate.install({ ...snapshot, content }, async () => {
          const revs = new Map(snapshot.items.map(({ id, rev }) => [id, rev]));
          const since = await releasesSince(revs);
          expect(since.map(({ orderId }) => orderId)).toEqual([orders[0]!.id, orders[1]!.id]);
          for (const { orderId, buyer } of since) await gate.release(SALE, { orderId, buyer });
          return await kit.ledger.getSale(SALE);
        });
        const { items } = (await kit.ledger.getSale(SALE))!;
        expect((await gate.view(SALE))![0]).toMatchObject({ held: 1, free: items[0]!.total - 1 });
        expect(await gate.holdOf(SALE, { orderId: orders[2]!.id, buyer: 'c' })).not.toBeNull();
      });

      it('are forgotten some time after the gate has them, and never before', async () => {
        const orders = [await kit.order('a'), await kit.order('b')];
        await kit.all(...orders.map((order) => kit.move('cancel', order)));
        await kit.ledger.released([orders[0]!.id]);
        expect(await kit.ledger.pruneReleases(0)).toBe(0);
        kit.world.clock.advance(1);
        expect(await kit.ledger.pruneReleases(1)).toBe(0);
        expect(await kit.ledger.pruneReleases(0)).toBe(1);
        expect(await kit.ledger.pruneReleases(-KEY_KEPT_MS)).toBe(0);
        expect(await kit.ledger.releases(9, 0)).toMatchObject([{ orderId: orders[1]!.id }]);
      });
    });

    describe('events', () => {
      const types = async () => (await kit.ledger.outgoingEvents(99)).map(({ id, type }) => `${id} ${type}`);

      it('are not written while nobody has subscribed', async () => {
        const order = await kit.order('alice');
        await kit.one(kit.move('cancel', order));
        expect(await kit.count('order_events')).toBe(0);
      });

      it('one for each version of an order, with the order as it was, in the transaction that made it', async () => {
        kit.ledger.keepEvents = true;
        const message = kit.message('alice');
        const order = (await kit.commit(message, kit.message('bob', { slots: [9] }), message))[0]!.order;
        await kit.commit(message, kit.message('carol', { slots: [9] }));
        expect(await types()).toEqual([`${order.id}-1 order.reserved`]);
        kit.world.clock.advance(1);
        await kit.all(kit.taken(order, 'a'), kit.move('refund', order), kit.move('refund', order));
        const [dave, erin] = [await kit.order('dave'), await kit.order('erin')];
        kit.world.clock.advance(PAY_WITHIN_MS);
        await kit.all(kit.move('cancel', dave), kit.move('expire', erin));
        const events = await kit.ledger.outgoingEvents(99);
        expect(events.map(({ id, type }) => `${id} ${type}`)).toEqual([
          `${order.id}-1 order.reserved`,
          `${order.id}-2 order.paid`,
          `${order.id}-3 order.refunded`,
          `${dave.id}-1 order.reserved`,
          `${erin.id}-1 order.reserved`,
          `${dave.id}-2 order.cancelled`,
          `${erin.id}-2 order.expired`,
        ]);
        expect(events[0]).toEqual({
          id: `${order.id}-1`,
          orderId: order.id,
          version: 1,
          type: 'order.reserved',
          atMs: T0,
          body: JSON.stringify(order),
        });
        expect(JSON.parse(events[2]!.body)).toEqual(await kit.stored(order.id));
        await kit.world.crash();
        expect(await kit.ledger.outgoingEvents(99)).toEqual(events);
        expect(await kit.ledger.outgoingEvents(2)).toEqual(events.slice(0, 2));
        await kit.ledger.forgetEvents([events[0]!.id, events[3]!.id, '424242-1']);
        await kit.ledger.forgetEvents([]);
        expect(await kit.ledger.outgoingEvents(99)).toEqual([events[1], events[2], ...events.slice(4)]);
      });

      it('of an order come in its order, also when the clock goes back', async () => {
        kit.ledger.keepEvents = true;
        const order = await kit.order('alice');
        kit.world.clock.step(-60_000);
        await kit.one(kit.taken(order, 'a'));
        kit.world.clock.step(-60_000);
        await kit.one(kit.move('refund', order));
        expect(await types()).toEqual([
          `${order.id}-1 order.reserved`,
          `${order.id}-2 order.paid`,
          `${order.id}-3 order.refunded`,
        ]);
      });
    });

    describe('audit', () => {
      const of = (subject?: string, limit = 99, before: string | null = null) =>
        kit.ledger.audit(subject === undefined ? {} : { subject }, { limit, before });

      it('has who did what, when and from where, for every change and for nothing else', async () => {
        const order = await kit.order('alice');
        kit.world.clock.advance(1);
        const failed = await kit.opened(order, { by: actor('buyer', 'alice', '203.0.113.9') });
        const [began] = await kit.world.rows(`SELECT actor, origin FROM payments WHERE id = ${failed}`);
        expect(began).toEqual({ actor: 'buyer:alice', origin: '203.0.113.9' });
        for (let times = 0; times < 2; times++) await kit.closeAttempt(failed, { state: 'failed', error: 'no' });
        const attemptId = await kit.opened(order);
        kit.world.clock.advance(1);
        await kit.one(kit.capture(order, attemptId, { by: actor('provider', 'sandbox', '198.51.100.1') }));
        await kit.one(kit.capture(order, attemptId));
        await kit.one(kit.move('cancel', order));
        await kit.ledger.startRefund(attemptId, actor('admin', 'ada'), kit.id());
        await kit.ledger.startRefund(attemptId, actor('admin', 'eve'), kit.id());
        await kit.one(kit.move('refund', order, { by: actor('system', 'sweeper') }));
        const entries = (await of(`order:${order.id}`)).reverse();
        expect(entries.map(({ actor, origin, action, atMs }) => [actor, origin, action, atMs - T0])).toEqual([
          ['provider:sandbox', null, 'payment.failed', 1],
          ['provider:sandbox', '198.51.100.1', 'order.pay', 2],
          ['admin:ada', null, 'payment.refund', 2],
          ['system:sweeper', null, 'order.refund', 2],
        ]);
        expect(JSON.parse(entries[1]!.detail)).toEqual({
          from: 'reserved',
          to: 'paid',
          attempt: attemptId,
          provider: 'sandbox',
        });
        expect(entries[0]!.subject).toBe(`order:${order.id}`);
      });

      it('shows former rows, which had no kind, in the same form, and leaves them as they are', async () => {
        const former = [
          ['sale.stock', 'alice', 'admin:alice'],
          ['sale.create', 'sweeper', 'admin:sweeper'],
          ['sale.create', 'demo', 'system:demo'],
          ['sale.close', 'library', 'library:app'],
          ['order.cancel', 'library', 'library:app'],
          ['order.expire', 'sweeper', 'system:sweeper'],
          ['webhook.gone', 'webhooks', 'system:webhooks'],
          ['order.pay', 'provider:a:b', 'provider:a:b'],
          ['order.pay', 'buyer:admin:alice', 'buyer:admin:alice'],
        ];
        for (const [at, [action, stored]] of former.entries()) {
          await kit.world.change(
            `INSERT INTO audit (id, at, actor, origin, action, subject, detail)
             VALUES (${9000 + at}, 1, '${stored}', NULL, '${action}', 'order:9', '{}')`,
          );
        }
        const shown = (await of('order:9')).reverse();
        expect(shown.map(({ action, actor: text }) => [action, text])).toEqual(
          former.map(([action, , text]) => [action, text]),
        );
        const rows = await kit.world.rows("SELECT actor FROM audit WHERE subject = 'order:9' ORDER BY id");
        expect(rows.map((row) => row.actor)).toEqual(former.map(([, stored]) => stored));
      });

      it('has late money, and what it was late for', async () => {
        const { order, attemptId } = await kit.late('alice');
        const [entry] = await of(`order:${order.id}`, 1);
        expect(entry).toMatchObject({ action: 'payment.late' });
        expect(JSON.parse(entry!.detail)).toMatchObject({ attempt: attemptId, outcome: 'late', status: 'expired' });
      });

      it('newest first, of one subject or of all, page by page; changes of sales have their origin', async () => {
        await kit.ledger.addStock(SALE, 'voucher', 1, { ...kit.call(), by: actor('admin', 'ada', '203.0.113.5') });
        const order = await kit.order('alice');
        await kit.one(kit.move('cancel', order));
        const all = await of();
        expect(all.map(({ subject }) => subject)).toEqual([`order:${order.id}`, `sale:${SALE}`, `sale:${SALE}`]);
        expect(all.map(({ origin }) => origin)).toEqual(['192.0.2.1', '203.0.113.5', null]);
        expect(await of(`sale:${SALE}`)).toEqual(all.slice(1));
        expect(await of(undefined, 2)).toEqual(all.slice(0, 2));
        expect(await of(undefined, 2, all[1]!.id)).toEqual(all.slice(2));
        expect(await of(`sale:${SALE}`, 9, all[1]!.id)).toEqual(all.slice(2));
        expect(await of('order:424242')).toEqual([]);
      });
    });

    describe('answers under a key', () => {
      const scope = { caller: 'admin:bob', actingFor: 'alice', operation: 'order.pay', subject: '7', key: 'k' };

      it('the first one counts, for 24 hours', async () => {
        const bound = async () => (await kit.ledger.findKey(scope))?.answer ?? null;
        await kit.ledger.bindAnswer({ ...scope, fingerprint: 'f' }, 'first');
        await kit.ledger.bindAnswer({ ...scope, fingerprint: 'g' }, 'second');
        await kit.world.crash();
        expect(await kit.ledger.findKey(scope)).toEqual({ fingerprint: 'f', answer: 'first' });
        kit.world.clock.advance(KEY_KEPT_MS);
        expect(await bound()).toBeNull();
        await kit.ledger.bindAnswer({ ...scope, fingerprint: 'h' }, 'third');
        expect(await bound()).toBe('third');
        expect(await kit.ledger.pruneKeys(0)).toBe(0);
        kit.world.clock.advance(1);
        expect(await kit.ledger.pruneKeys(0)).toBe(1);
        expect(await bound()).toBeNull();
      });
    });

    describe('the sandbox provider’s book', () => {
      const NONE = {
        orderId: '7',
        amount: { amount: 5, currency: 'CNY' },
        state: 'pending' as const,
        told: false,
        refunded: 0,
      };
      const wanted = (id: string, over: Partial<NewIntent> = {}): NewIntent => ({
        ...NONE,
        id,
        dueAfterMs: 100,
        ...over,
      });
      const intent = (id: string, over: object = {}) => ({ ...NONE, id, dueAtMs: T0 + 100, ...over });

      it('keeps the first of an id, moves it from a state, and knows what is due by its own clock', async () => {
        const { ledger } = kit;
        expect(await ledger.getIntent('1')).toBeNull();
        expect(await ledger.putIntent(wanted('1'))).toEqual(intent('1'));
        expect(await ledger.putIntent(wanted('1', { state: 'captured' }))).toEqual(intent('1'));
        await ledger.putIntent(wanted('2', { told: true, dueAfterMs: 50 }));
        await ledger.putIntent(wanted('3', { state: 'declined', dueAfterMs: null }));
        const due = async (afterMs: number) => {
          kit.world.clock.advance(afterMs);
          const { captured, untold } = await ledger.captureDue(9);
          return [captured, untold.map(({ id }) => id)];
        };
        // The second is captured, and nobody is to be told of it.
        expect([await due(49), await due(1), await due(49)]).toEqual([
          [0, []],
          [1, []],
          [0, []],
        ]);
        expect((await ledger.getIntent('2'))!.state).toBe('captured');
        expect(await due(1)).toEqual([1, ['1']]);
        expect(await ledger.moveIntent('1', ['pending'], 'voided')).toBeNull();
        expect(await ledger.moveIntent('9', ['pending'], 'captured')).toBeNull();
        expect(await ledger.moveIntent('1', ['pending', 'captured'], 'captured')).toEqual(
          intent('1', { state: 'captured' }),
        );
        expect(await due(0)).toEqual([0, ['1']]);
        await ledger.intentsTold(['1', '2']);
        await ledger.intentsTold([]);
        expect(await due(0)).toEqual([0, []]);
        await kit.world.crash();
        expect(await kit.ledger.getIntent('1')).toEqual(intent('1', { state: 'captured', told: true }));
      });
    });
  });
}
