import { describe, expect, it } from 'vitest';
import { DECLINED_MAX } from '../../src/ledger/port/payments.ts';
import type { Move, NewRefund } from '../../src/ledger/port.ts';
import { liveAttempts, newestEnded } from '../../src/ledger/works/order-batch.ts';
import { openByClaims } from '../../src/ledger/works/payments.ts';
import { actor } from '../../src/model/actor.ts';
import type { Money } from '../../src/model/money.ts';
import type { OrderRecord } from '../../src/model/order.ts';
import { type LifeKit, PRICE, SALE } from './ledger-life-kit.ts';

const BY = actor('admin', 'ada');
const FAILED = { state: 'failed', error: 'no' } as const;
const DAY_MS = DECLINED_MAX.withinMs;

function yuan(amount: number) {
  return { amount, currency: 'CNY' };
}

/** Refunds of a part, declined payments, and orders with very many attempts: a part of the contract of the life of orders. */
export function paymentsContract(kitOf: () => LifeKit): void {
  const asking = (attemptId: string, amount: number, over: Partial<NewRefund> = {}): NewRefund => {
    const kit = kitOf();
    return { id: kit.id(), attemptId, amount: yuan(amount), madeWith: null, by: BY, auditId: kit.id(), ...over };
  };
  const part = (order: OrderRecord, attemptId: string, of: NonNullable<Move['part']>): Move =>
    kitOf().move('refund_part', order, { refunds: attemptId, part: of });
  const own = (id: string, total: number | null = null) =>
    ({ own: id, total: total === null ? null : yuan(total), reference: `back-${id}` }) as const;
  const asked = async (attemptId: string, amount: number, over: Partial<NewRefund> = {}): Promise<string> => {
    const answer = await kitOf().ledger.askRefund(asking(attemptId, amount, over));
    if (answer.outcome !== 'asked') throw new Error(`should be asked: ${answer.outcome}`);
    return answer.refund.id;
  };
  const refundedOf = async (attemptId: string) => (await kitOf().ledger.getAttempt(attemptId))!.refunded;

  describe('a refund of a part', () => {
    it('P6: is an intention first, then a part of the money; the order stays paid, its units stay sold', async () => {
      const kit = kitOf();
      const { order, attemptId } = await kit.paid('alice');
      const before = await kit.item();
      const answer = await kit.ledger.askRefund(asking(attemptId, 500));
      expect(answer).toMatchObject({ outcome: 'asked', attempt: { id: attemptId, refunded: 0 } });
      const { refund } = answer as { refund: { id: string } };
      expect(refund).toMatchObject({ state: 'asked', amount: yuan(500), nextAtMs: kit.nowMs, tries: 0 });
      expect(await kit.ledger.dueRefunds(9)).toEqual([{ ...refund, provider: expect.any(String) }]);
      expect(await kit.ledger.refundUnderWay(attemptId)).toEqual(refund);
      expect(await refundedOf(attemptId)).toBe(0);
      await kit.world.crash();
      kit.world.clock.advance(7);
      const moved = await kit.one(part(order, attemptId, own(refund.id, 500)));
      expect(moved.outcome).toBe('moved');
      expect(moved.order).toEqual({ ...order, version: order.version + 1, updatedAtMs: kit.nowMs });
      expect(moved.attempt).toMatchObject({ state: 'captured', pays: true, refunded: 500 });
      expect(await kit.item(), 'no unit has moved').toEqual(before);
      expect(await kit.releases()).toEqual([]);
      expect(await kit.ledger.getRefund(refund.id)).toMatchObject({ state: 'done', nextAtMs: null });
      expect(await kit.ledger.dueRefunds(9)).toEqual([]);
      expect(await kit.unmoved(part(order, attemptId, own(refund.id, 500)))).toBe('repeat');
      const audit = await kit.ledger.audit({ subject: `order:${order.id}` }, { limit: 9, before: null });
      expect(audit.map(({ action, detail }) => [action, JSON.parse(detail).amount]).slice(0, 2)).toEqual([
        ['order.refund_part', yuan(500)],
        ['payment.refund_part', yuan(500)],
      ]);
    });

    it('P6: is asked for once with a key, one at a time, and never above what is left', async () => {
      const kit = kitOf();
      const { order, attemptId } = await kit.paid('alice');
      const ask = async (amount: number, over: Partial<NewRefund> = {}) =>
        (await kit.ledger.askRefund(asking(attemptId, amount, over))).outcome;
      expect(await ask(8001)).toBe('amount_mismatch');
      expect(await ask(1, { amount: { amount: 1, currency: 'EUR' } })).toBe('amount_mismatch');
      expect(await ask(1, { attemptId: '424242' })).toBe('refused');
      const first = await asked(attemptId, 3000, { madeWith: 'k1' });
      expect(await kit.ledger.askRefund(asking(attemptId, 3000, { madeWith: 'k1' }))).toMatchObject({
        outcome: 'repeat',
        refund: { id: first, state: 'asked' },
      });
      expect(await ask(2000, { madeWith: 'k1' })).toBe('key_reused');
      expect(await ask(2000, { madeWith: 'k2' })).toBe('under_way');
      expect((await kit.ledger.startRefund(attemptId, BY, kit.id()))!.state, 'what is left is not known').toBe(
        'captured',
      );
      await kit.one(part(order, attemptId, own(first, 3000)));
      expect(await ask(5001)).toBe('amount_mismatch');
      expect(await ask(5000, { madeWith: 'k3' })).toBe('all');
      expect(await ask(5000, { madeWith: 'k3' }), 'the key knows that it was all').toBe('repeat');
      expect(await ask(3000, { madeWith: 'k1' })).toBe('repeat');
      kit.world.clock.advance(DAY_MS);
      expect(await ask(3000, { madeWith: 'k1' }), 'a key is free again after a day').toBe('asked');
      expect(await kit.count('refunds', `state = 'asked'`)).toBe(1);
    });

    it('P6: two that race for what is left get it once', async () => {
      const kit = kitOf();
      const { attemptId } = await kit.paid('alice');
      const answers = await Promise.all(
        Array.from({ length: 6 }, () => kit.ledger.askRefund(asking(attemptId, 5000)).catch(() => null)),
      );
      expect(answers.filter((answer) => answer?.outcome === 'asked')).toHaveLength(1);
      expect(await kit.count('refunds')).toBe(1);
    });

    it('P6: what the provider says is back in all counts once, told again and in any order', async () => {
      const kit = kitOf();
      const { order, attemptId } = await kit.paid('alice');
      const total = (amount: number) => part(order, attemptId, { total: yuan(amount) });
      expect(await kit.outcome(total(500))).toBe('moved');
      expect(await kit.unmoved(total(500))).toBe('repeat');
      expect(await kit.unmoved(total(300)), 'older').toBe('repeat');
      // Its webhook came before our own call returned.
      const id = await asked(attemptId, 700);
      expect(await kit.outcome(total(1200))).toBe('moved');
      expect(await kit.outcome(part(order, attemptId, own(id, 1200)))).toBe('moved');
      expect(await refundedOf(attemptId)).toBe(1200);
      const late = await asked(attemptId, 100);
      expect(await kit.outcome(part(order, attemptId, own(late, 1200))), 'an answer that lags behind').toBe('moved');
      expect(await refundedOf(attemptId)).toBe(1300);
      expect(await kit.unmoved(total(8000))).toBe('all_back');
      expect(await kit.unmoved(part(order, attemptId, { total: { amount: 1400, currency: 'EUR' } }))).toBe(
        'amount_mismatch',
      );
      expect(await kit.unmoved(part(order, '424242', { total: yuan(1400) }))).toBe('refused');
    });

    it('P6: of a provider that cannot say so each news count once, by their id, also two in one batch', async () => {
      const kit = kitOf();
      const { order, attemptId } = await kit.paid('alice');
      const told = (news: string, amount: number) =>
        part(order, attemptId, { told: news, id: kit.id(), amount: yuan(amount) });
      const moved = await kit.all(told('n1', 500), told('n1', 500), told('n2', 500));
      expect(moved.map(({ outcome }) => outcome)).toEqual(['moved', 'repeat', 'moved']);
      expect(await refundedOf(attemptId)).toBe(1000);
      expect(await kit.unmoved(told('n2', 500))).toBe('repeat');
      expect(await kit.unmoved(told('n3', 7000))).toBe('all_back');
    });

    it('P4, P6: a refund after parts gives back what is left, and ends a part that is under way', async () => {
      const kit = kitOf();
      const { order, attemptId } = await kit.paid('alice');
      await kit.one(part(order, attemptId, { total: yuan(500) }));
      const id = await asked(attemptId, 100);
      expect(await kit.ledger.startRefund(attemptId, BY, kit.id(), true)).toMatchObject({ state: 'refunding' });
      expect((await kit.ledger.askRefund(asking(attemptId, 1))).outcome).toBe('refused');
      const back = await kit.one(kit.move('refund', order, { refunds: attemptId }));
      expect(back.attempt).toMatchObject({ state: 'refunded', refunded: PRICE.amount });
      expect(await kit.ledger.getRefund(id)).toMatchObject({ state: 'void', nextAtMs: null });
      expect((await kit.item()).sold).toBe(0);
      const [entry] = await kit.ledger.audit({ subject: `order:${order.id}` }, { limit: 1, before: null });
      expect(JSON.parse(entry!.detail)).toMatchObject({ amount: yuan(7500), refunded: yuan(8000) });
      expect(await kit.unmoved(part(order, attemptId, { total: yuan(600) }))).toBe('refused');
    });

    it('that the provider refuses is void; one that it cannot do now is postponed, and found when it takes too long', async () => {
      const kit = kitOf();
      const { order, attemptId } = await kit.paid('alice');
      const first = await asked(attemptId, 500);
      await kit.ledger.postponeRefunds([{ refundId: first, error: 'down\u0000', afterMs: 5000 }]);
      expect(await kit.ledger.dueRefunds(9)).toEqual([]);
      expect(await kit.ledger.unsettledRefunds(2, 9, null)).toEqual([]);
      expect(await kit.ledger.unsettledRefunds(1, 9, order.saleId)).toMatchObject([
        { refund: { id: first, tries: 1, error: 'down' }, provider: 'sandbox', saleId: order.saleId },
      ]);
      expect(await kit.ledger.unsettledRefunds(1, 9, '600')).toEqual([]);
      kit.world.clock.advance(5000);
      expect(await kit.ledger.dueRefunds(9)).toHaveLength(1);
      expect(await kit.ledger.voidRefund(first, '\u0000never', BY, kit.id())).toMatchObject({
        state: 'void',
        error: 'never',
      });
      expect(await kit.unmoved(part(order, attemptId, own(first, 500)))).toBe('refused');
      expect(await kit.ledger.voidRefund('424242', 'never', BY, kit.id())).toBeNull();
      expect(await asked(attemptId, 500), 'and the next one may be asked for').not.toBe(first);
    });

    it('P6: that the provider tells in another currency: of our own what was asked for counts, of others nothing', async () => {
      const kit = kitOf();
      const { order, attemptId } = await kit.paid('alice');
      const total = { amount: 70, currency: 'USD' };
      expect(await kit.unmoved(part(order, attemptId, { total }))).toBe('amount_mismatch');
      const first = await asked(attemptId, 500);
      const answer = { own: first, total, reference: null };
      expect(await kit.outcome(part(order, attemptId, answer))).toBe('moved');
      expect(await kit.unmoved(part(order, attemptId, answer))).toBe('repeat');
      expect(await refundedOf(attemptId)).toBe(500);
    });

    it('P6: of money that is late when it is met: it is on its way back at once, and revives nothing', async () => {
      const kit = kitOf();
      const ends: [back: Money, state: string, refunded: number][] = [
        [yuan(0), 'late', 0],
        [yuan(500), 'refunding', 500],
        [yuan(8000), 'refunded', 8000],
        [{ amount: 70, currency: 'USD' }, 'refunding', 0],
      ];
      for (const [at, [back, state, refunded]] of ends.entries()) {
        const order = await kit.order(`b${at}`);
        const attemptId = await kit.opened(order);
        await kit.closeAttempt(attemptId, { state: 'voided', error: null });
        expect(await kit.outcome(kit.move('cancel', order))).toBe('moved');
        const money = { capture: attemptId, reference: null, amount: null, back };
        const { outcome, attempt } = await kit.one(kit.move('pay', order, { money }));
        expect([outcome, attempt]).toMatchObject(['late', { state, refunded, pays: false }]);
        expect((await kit.ledger.dueAttempts(9)).some(({ id }) => id === attemptId)).toBe(state !== 'refunded');
      }
    });

    it('of late money is noted, and it revives nothing any more', async () => {
      const kit = kitOf();
      const { order, attemptId } = await kit.late('alice');
      const note = async (amount: number) =>
        (await kit.ledger.noteRefunded(attemptId, yuan(amount), BY, kit.id()))!.refunded;
      expect(await note(500), 'not while it is late').toBe(0);
      await kit.ledger.startRefund(attemptId, BY, kit.id());
      expect([await note(500), await note(300), await note(9000)]).toEqual([500, 500, 500]);
      expect(await kit.ledger.finishRefund(attemptId, null)).toMatchObject({ state: 'refunded', refunded: 8000 });
      await kit.world.change(`UPDATE payments SET state = 'late', next_at = 1, refunded = 500 WHERE id = ${attemptId}`);
      const again = await kit.order('alice', { slots: [2] });
      const money = { capture: attemptId, reference: null, amount: null };
      expect(await kit.outcome(kit.move('pay', again, { money, revives: order.id }))).toBe('amount_mismatch');
    });
  });

  describe('P10: payments that were declined', () => {
    const decline = async (order: { id: string }): Promise<void> => {
      await kitOf().closeAttempt(await kitOf().opened(order), FAILED);
    };
    const outcome = async (order: { id: string }): Promise<string> => {
      const opened = await kitOf().open(order);
      if (opened.outcome === 'opened') {
        await kitOf().closeAttempt(opened.attempt.id, { state: 'voided', error: null });
      }
      return opened.outcome;
    };

    it('of an order: the tenth is the last, until it is lifted; those that were given up do not count', async () => {
      const kit = kitOf();
      const order = await kit.order('alice');
      const other = await kit.order('alice', { slots: [2] });
      for (let i = 0; i < DECLINED_MAX.order - 1; i++) await decline(order);
      for (let i = 0; i < 3; i++) expect(await outcome(order)).toBe('opened');
      await decline(order);
      expect(await outcome(order)).toBe('blocked');
      const batch = [kit.attempt(order), kit.attempt(other), kit.attempt(order)];
      expect((await kit.openAll(batch)).map((one) => one.outcome)).toEqual(['blocked', 'opened', 'blocked']);
      expect(await kit.ledger.unblockPayments(order.id, BY, kit.id())).toBe(true);
      expect(await kit.ledger.unblockPayments(order.id, BY, kit.id()), 'again: nothing').toBe(false);
      expect(await kit.ledger.unblockPayments('424242', BY, kit.id())).toBe(false);
      expect(await outcome(order)).toBe('opened');
      const audit = await kit.ledger.audit({ subject: `order:${order.id}` }, { limit: 200, before: null });
      const lifted = audit.filter(({ action }) => action === 'payment.unblock');
      expect(lifted.map(({ actor, detail }) => [actor, JSON.parse(detail)])).toEqual([
        ['admin:ada', { declined: { order: 10, buyer: 10 } }],
      ]);
    });

    it('of a buyer: the thirtieth in 24 hours is the last; lifted for one order, its other orders keep their own', async () => {
      const kit = kitOf();
      const orders: OrderRecord[] = [];
      for (let slot = 1; slot <= 3; slot++)
        orders.push(await kit.order('alice', { slots: [slot], payWithinSeconds: 172_800 }));
      const bob = await kit.order('bob');
      for (const order of orders.slice(0, 2)) for (let i = 0; i < DECLINED_MAX.order; i++) await decline(order);
      for (let i = 0; i < 9; i++) await decline(orders[2]!);
      expect(await outcome(orders[2]!)).toBe('opened');
      kit.world.clock.advance(DAY_MS - 1);
      expect(await outcome(orders[0]!)).toBe('blocked');
      await decline(orders[2]!);
      const extra = await kit.order('alice', { saleId: '600', payWithinSeconds: 172_800 }).catch(() => null);
      expect(extra).toBeNull();
      expect(await outcome(bob), 'nobody else').not.toBe('blocked');
      expect(await kit.ledger.unblockPayments(orders[2]!.id, BY, kit.id())).toBe(true);
      expect(await Promise.all(orders.map(outcome))).toEqual(['blocked', 'blocked', 'opened']);
      kit.world.clock.advance(1);
      expect(await outcome(orders[0]!), 'a day later').toBe('opened');
      await decline(orders[0]!);
      expect(await kit.count('declines'), 'those that no longer count are gone').toBe(1);
    });

    it.each(['not folded', 'folded'])(
      'of a buyer: those that are open for other orders count, too (%s)',
      async (how) => {
        const kit = kitOf();
        const max = DECLINED_MAX.buyer;
        await kit.createSale('700', { perBuyer: 100 });
        const place = (slot: number) => kit.order('eve', { saleId: '700', slots: [slot] });
        const orders: OrderRecord[] = [];
        for (let slot = 1; slot <= max + 10; slot++) orders.push(await place(slot));
        if (how === 'folded') while (await kit.ledger.maintain(1000));
        const outcomes = async (some: readonly OrderRecord[]) => {
          const opened = await kit.openAll(some.map((order) => kit.attempt(order)));
          return opened.map(({ outcome }) => outcome);
        };
        const times = (outcome: string, count: number) => Array.from({ length: count }, () => outcome);
        // In one transaction or in several.
        expect(await outcomes(orders.slice(0, 20))).toEqual(times('opened', 20));
        const bob = await kit.order('bob', { saleId: '700', slots: [2] });
        expect(await outcomes([bob, ...orders.slice(20)])).toEqual([
          ...times('opened', max - 20 + 1),
          ...times('too_many_open', 10),
        ]);
        // One is paid, one is given up, one is declined: two may be tried.
        const [first, second, third, ...rest] = await Promise.all(
          orders.slice(0, max).map(async ({ id }) => (await kit.ledger.lastAttempts([id])).get(id)!.id),
        );
        await kit.one(kit.capture(orders[0]!, first!));
        await kit.closeAttempt(second!, { state: 'voided', error: null });
        await kit.closeAttempt(third!, FAILED);
        expect(await outcomes(orders.slice(max, max + 4))).toEqual(['opened', 'opened', ...times('too_many_open', 2)]);
        for (const attemptId of rest) await kit.closeAttempt(attemptId, FAILED);
        for (const { id } of orders.slice(max, max + 2)) {
          await kit.closeAttempt((await kit.ledger.lastAttempts([id])).get(id)!.id, FAILED);
        }
        expect(await kit.count('declines')).toBe(max);
        expect(await outcomes(orders.slice(-2))).toEqual(['blocked', 'blocked']);
      },
    );

    it('P6: one that is told twice counts once, and money that comes after all is taken', async () => {
      const kit = kitOf();
      const order = await kit.order('alice');
      const attemptId = await kit.opened(order);
      await kit.closeAttempt(attemptId, FAILED);
      await kit.closeAttempt(attemptId, FAILED);
      expect(await kit.count('declines')).toBe(1);
      for (let i = 1; i < DECLINED_MAX.order; i++) await decline(order);
      expect(await outcome(order)).toBe('blocked');
      expect(await kit.outcome(kit.capture(order, attemptId))).toBe('moved');
    });
  });

  describe('P10: an order with very many attempts', () => {
    it('is read by index: only its open, its paying and its newest attempt', async () => {
      const kit = kitOf();
      const { dialect } = kit.world;
      const others: OrderRecord[] = [];
      for (let i = 0; i < 20; i++) others.push((await kit.paid(`b${i}`)).order);
      const order = await kit.order('alice');
      const first = 5_000_000;
      const columns = 'id, order_id, provider, state, pays, amount, currency, actor, tries, created_at, updated_at';
      for (let from = 0; from < 2500; from += 500) {
        const rows = Array.from(
          { length: 500 },
          (_, at) => `(${first + from + at}, ${order.id}, 'sandbox', 'failed', 0, 8000, 'CNY', 'x', 0, 0, 0)`,
        );
        await kit.world.change(`INSERT INTO payments (${columns}) VALUES ${rows.join(', ')}`);
      }
      const ids = [order.id, others[3]!.id];
      const last = await kit.ledger.lastAttempts(ids);
      expect(last.get(order.id)!.id).toBe(String(first + 2499));
      expect(last.get(others[3]!.id)).toMatchObject({ pays: true });
      expect((await kit.ledger.attemptsOf(order.id, 3)).map(({ id }) => id)).toEqual(
        [2499, 2498, 2497].map((at) => String(first + at)),
      );
      for (const step of [liveAttempts(dialect, []), newestEnded(dialect, [])]) {
        const { sql } = step as { sql: string };
        const plan = await kit.world.explain(sql.replace('IN (?)', `IN (${ids.join(', ')})`));
        expect(plan).toMatch(/payments_(order|ended|newest)/);
        expect(plan, 'nothing is sorted to find the newest').not.toMatch(/filesort|Sort Key|Sort {2}|TEMP B-TREE/);
        expect(plan).not.toMatch(/Seq Scan on payments|SCAN payments|SCAN p\b/);
      }
      const { sql } = openByClaims(dialect, SALE, []) as { sql: string };
      const ofBuyer = await kit.world.explain(sql.replace('IN (?)', `IN ('alice')`).replace('?', SALE));
      expect(ofBuyer).toMatch(/payments_order/);
      const open = await kit.opened(order);
      expect((await kit.ledger.lastAttempts(ids)).get(order.id)!.id).toBe(open);
    });
  });
}
