import { describe, expect, it } from 'vitest';
import { DECLINED_MAX, type Move } from '../../src/ledger/port/payments.ts';
import type { StoredRefund } from '../../src/ledger/rules/decide.ts';
import {
  type Decision,
  decideMove,
  decideOpening,
  type MoneyState,
  type OrderState,
} from '../../src/ledger/rules/decide.ts';
import { actor } from '../../src/model/actor.ts';
import { LIFE, stepOf, unitsAt } from '../../src/model/life.ts';
import { hasEnded, ORDER_STATUSES, type OrderRecord, type OrderStatus } from '../../src/model/order.ts';
import { ATTEMPT_STATES, type AttemptState, type PaymentAttempt } from '../../src/model/payment.ts';

function yuan(amount: number) {
  return { amount, currency: 'CNY' };
}

const NOW = 1_000_000;
const AMOUNT = { amount: 8000, currency: 'CNY' };

function order(status: OrderStatus, over: Partial<OrderRecord> = {}): OrderRecord {
  return {
    ...{ id: '1', saleId: '2', itemId: '3', itemCode: 'v', buyer: 'alice', quantity: 1, amount: AMOUNT, status },
    ...{ reason: null, createdAtMs: 0, updatedAtMs: 0, expiresAtMs: NOW + 1, version: 1, revives: null, ...over },
  };
}

function attempt(state: AttemptState, over: Partial<PaymentAttempt> = {}): PaymentAttempt {
  const pays = state === 'captured';
  const nextAtMs = ['open', 'late', 'refunding'].includes(state) ? NOW : null;
  return {
    ...{ id: '9', orderId: '1', provider: 'bank', state, pays, amount: AMOUNT, reference: null, error: null, nextAtMs },
    ...{ refunded: 0, tries: 3, createdAtMs: 0, updatedAtMs: 0, ...over },
  };
}

function state(status: OrderStatus, over: Partial<OrderState> = {}): OrderState {
  return { order: order(status), fence: 5n, open: null, paying: null, ...over };
}

const NO_MONEY: MoneyState = { named: null, referenced: null };
const CAPTURE = { capture: '9', reference: 'r', amount: AMOUNT };
const TAKEN = { taken: 'till', attemptId: '9', amount: AMOUNT };

function move(event: Move['event'], over: Partial<Move> = {}): Move {
  return { orderId: '1', event, by: actor('system', 'x'), auditId: '7', fence: null, ...over };
}

/** Every move there is, with every state of the money it names. */
function* everyMove(): Generator<{ move: Move; money: MoneyState }> {
  for (const event of ['cancel', 'expire', 'refund'] as const) yield { move: move(event), money: NO_MONEY };
  yield { move: move('pay', { money: TAKEN }), money: NO_MONEY };
  for (const part of [{ total: yuan(500) }, { told: 'n', id: '6', amount: yuan(500) }, { total: yuan(8000) }]) {
    yield { move: move('refund_part', { refunds: '8', part }), money: NO_MONEY };
  }
  for (const name of ATTEMPT_STATES) {
    yield { move: move('pay', { money: CAPTURE }), money: { named: attempt(name), referenced: null } };
    const others = attempt(name, { orderId: '77' });
    yield { move: move('pay', { money: CAPTURE, revives: '77' }), money: { named: others, referenced: null } };
  }
}

describe('what becomes of a move', () => {
  it('keeps to the table of an order’s life, whatever the money is', () => {
    for (const status of ORDER_STATUSES) {
      for (const [open, paying] of [
        [null, null],
        [attempt('open', { id: '8' }), null],
        [null, attempt('captured', { id: '8', provider: 'confirm' })],
        [null, attempt('refunding', { id: '8', pays: true })],
      ] as const) {
        for (const expiresAtMs of [NOW - 1, NOW, NOW + 1]) {
          for (const one of everyMove()) {
            const before = { ...state(status, { open, paying }), order: order(status, { expiresAtMs }) };
            const { outcome, to } = decideMove(one.move, before, one.money, NOW);
            const what = `${status} ${JSON.stringify(one.move)} ${one.money.named?.state}`;
            expect(to === null, what).toBe(outcome !== 'moved');
            if (to === null) continue;
            expect(to, what).toBe(stepOf(status, one.move.event));
            expect(hasEnded(status), `${what}: an ended order never lives again`).toBe(false);
            // Only a refund of a part leaves the units where they are.
            expect(unitsAt(status) === unitsAt(to), what).toBe(one.move.event === 'refund_part');
          }
        }
      }
    }
  });

  it('P6: money that has come is never forgotten: it is the order’s, or it is late, or it was known', () => {
    for (const status of ORDER_STATUSES) {
      for (const name of ATTEMPT_STATES) {
        for (const open of [null, attempt('open', { id: '8' })]) {
          const named = attempt(name);
          const {
            outcome,
            attempt: after,
            stores,
          } = decideMove(move('pay', { money: CAPTURE }), state(status, { open }), { named, referenced: null }, NOW);
          const what = `${status}, attempt ${name}: ${outcome}`;
          expect(['captured', 'late', 'refunding', 'refunded'], what).toContain(after!.state);
          expect(stores, what).toBe(outcome !== 'repeat');
          if (after!.state === 'late' && stores)
            expect(after).toMatchObject({ nextAtMs: NOW, pays: false, reference: 'r' });
          if (outcome === 'moved') expect(after).toMatchObject({ pays: true, nextAtMs: null, reference: 'r' });
        }
      }
    }
  });

  const said = ({ outcome }: Decision): string => outcome;

  it('whatever would have to be written is refused to a token that is too old', () => {
    const late = { named: attempt('late', { orderId: '77' }), referenced: null };
    const own = { named: attempt('open'), referenced: null };
    const paying = attempt('refunding', { pays: true });
    const cases: [Move, OrderState, MoneyState][] = [
      [move('pay', { money: CAPTURE }), state('reserved'), own],
      [move('pay', { money: CAPTURE }), state('expired'), own],
      [move('pay', { money: CAPTURE, revives: '77' }), state('reserved'), late],
      [move('pay', { money: TAKEN }), state('reserved'), NO_MONEY],
      [move('cancel'), state('reserved'), NO_MONEY],
      [move('expire'), { ...state('reserved'), order: order('reserved', { expiresAtMs: NOW }) }, NO_MONEY],
      [move('refund'), state('paid', { paying }), NO_MONEY],
      [move('refund_part', { refunds: '9', part: { total: yuan(1) } }), state('paid', { paying }), NO_MONEY],
    ];
    for (const [one, before, money] of cases) {
      expect(said(decideMove({ ...one, fence: '4' }, before, money, NOW)), JSON.stringify(one)).toBe('fenced');
      expect(['moved', 'late'], JSON.stringify(one)).toContain(
        said(decideMove({ ...one, fence: '5' }, before, money, NOW)),
      );
    }
  });

  it('P6: how much is back only grows, is never more than came, and all of it is no part', () => {
    for (const refunded of [0, 500, 7999]) {
      const paying = attempt('captured', { refunded });
      const stored: StoredRefund = {
        ...{ id: '6', attemptId: '9', orderId: '1', amount: yuan(300), backBefore: 400, state: 'asked' },
        ...{ madeWith: null, error: null, nextAtMs: NOW, tries: 0, createdAtMs: 0 },
      };
      for (const amount of [1, 300, 500, 700, 7999, 8000, 9000]) {
        for (const part of [
          { total: yuan(amount) },
          { told: 'n', id: '6', amount: yuan(amount) },
          { own: '6', total: yuan(amount), reference: null },
          { own: '6', total: null, reference: null },
        ]) {
          const row = 'own' in part ? stored : null;
          const one = move('refund_part', { refunds: '9', part });
          const { outcome, to, attempt: after } = decideMove(one, state('paid', { paying }), NO_MONEY, NOW, row);
          const what = `${refunded}, ${JSON.stringify(part)}: ${outcome}`;
          expect(['moved', 'repeat', 'all_back'], what).toContain(outcome);
          expect(after!.refunded, what).toBeGreaterThanOrEqual(refunded);
          expect(after!.refunded, what).toBeLessThan(AMOUNT.amount);
          if (outcome === 'moved') expect([to, after!.state, after!.pays], what).toEqual(['paid', 'captured', true]);
          if ('own' in part && part.total !== null && outcome === 'moved')
            expect(after!.refunded, what).toBeGreaterThanOrEqual(700);
        }
      }
    }
  });

  it('unknown orders, and a payment without money, which is a bug', () => {
    expect(said(decideMove(move('cancel'), null, NO_MONEY, NOW))).toBe('unknown');
    expect(() => decideMove(move('pay'), state('reserved'), NO_MONEY, NOW)).toThrow('without money');
  });

  it('the table is whole, and ended orders stay ended', () => {
    for (const status of ORDER_STATUSES) {
      for (const [event, step] of Object.entries(LIFE[status])) {
        if (hasEnded(status)) expect(['repeat', 'refused'], `${status} ${event}`).toContain(step);
      }
    }
  });
});

describe('what becomes of an attempt that is to be opened', () => {
  const wanted = {
    ...{ id: '9', orderId: '1', provider: 'bank', fence: null, auditId: '7', askAfterMs: 10 },
    by: actor('system', 'x'),
  };
  const said = (before: OrderState | null, named: PaymentAttempt | null = null, nowMs = NOW) =>
    decideOpening(wanted, before, named, nowMs).outcome;

  it('only of a reserved order with time left and nothing open', () => {
    for (const status of ORDER_STATUSES) {
      expect(said(state(status)), status).toBe(status === 'reserved' ? 'opened' : 'not_payable');
    }
    expect(said(null)).toBe('unknown');
    expect(said(state('reserved'), null, NOW + 1)).toBe('not_payable');
    expect(said(state('reserved', { open: attempt('open', { id: '8' }) }))).toBe('payment_open');
    expect(said(state('reserved', { open: attempt('open') }), attempt('open')), 'its own').toBe('opened');
    expect(() => said(state('reserved'), attempt('failed'))).toThrow('other content');
    expect(decideOpening({ ...wanted, fence: '4' }, state('reserved'), null, NOW).outcome).toBe('fenced');
  });

  it('not after too many were declined, of the order or of its buyer', () => {
    const opening = (order: number, buyer: number, open = 0) =>
      decideOpening(wanted, state('reserved'), null, NOW, { order, buyer, open }).outcome;
    expect(opening(DECLINED_MAX.order - 1, DECLINED_MAX.buyer - 1)).toBe('opened');
    expect(opening(DECLINED_MAX.order, DECLINED_MAX.order)).toBe('blocked');
    expect(opening(0, DECLINED_MAX.buyer)).toBe('blocked');
    expect(opening(0, 9, DECLINED_MAX.buyer - 10)).toBe('opened');
    expect(opening(0, 9, DECLINED_MAX.buyer - 9), 'they may all be declined').toBe('too_many_open');
  });

  it('is due when it is asked for, or when the order’s time is over', () => {
    const nextAt = (askAfterMs: number) => {
      const opened = decideOpening({ ...wanted, askAfterMs }, state('reserved'), null, NOW);
      return 'attempt' in opened ? opened.attempt.nextAtMs : null;
    };
    expect([nextAt(0), nextAt(1), nextAt(10)]).toEqual([NOW, NOW + 1, NOW + 1]);
  });
});
