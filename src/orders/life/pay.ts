import { within } from '../../base/timers.ts';
import type { Moved, Opened } from '../../ledger/port.ts';
import type { Actor } from '../../model/actor.ts';
import type { Money } from '../../model/money.ts';
import type { OrderRecord } from '../../model/order.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import { type Acting, type Life, LOCK_WAIT_MS, lastAttempt, notInLedger, TRIES_MAX } from './life.ts';
import { BUSY } from './lock.ts';
import { closeAttempt, move } from './move.ts';
import type { CheckedCapture, CheckedProvider } from './provider.ts';
import { settle } from './settle.ts';

export type PayResult =
  | { readonly ok: true; readonly state: 'paid'; readonly order: OrderRecord; readonly attempt: PaymentAttempt | null }
  | {
      readonly ok: true;
      readonly state: 'pending';
      readonly order: OrderRecord;
      readonly attempt: PaymentAttempt;
      readonly redirectUrl: string | null;
    }
  | {
      readonly ok: false;
      readonly code: 'payment_failed';
      readonly order: OrderRecord;
      readonly reason: string;
    }
  | {
      readonly ok: false;
      readonly code: 'order_not_payable' | 'payment_in_progress' | 'payment_blocked' | 'amount_mismatch';
      readonly order: OrderRecord | null;
      /** Where there is more to say than the code does. */
      readonly detail?: string;
    }
  | { readonly ok: false; readonly code: 'not_found' | 'unknown_method' };

/** Runs under the order's lock and calls `pay`: nobody else pays the order before it resolves. */
export type AroundPay<T> = (pay: () => Promise<PayResult>) => Promise<T>;

/** A younger pending payment may still be with the buyer's bank: a new attempt does not end it. */
const PENDING_MS = 30_000;
/** If nobody has heard how an attempt ended, the sweeper asks the provider after so long, and then ever less often. */
const ASK_AFTER_MS = 10_000;
/** How far beyond an order's time its payment may still be waited for. */
const OVER_MS = 500;

const IN_PROGRESS: PayResult = { ok: false, code: 'payment_in_progress', order: null };

export async function pay<T = PayResult>(
  life: Life,
  orderId: string,
  { method, token }: { method: string; token: string | null },
  by: Actor,
  around: AroundPay<PayResult | T> = (act) => act(),
): Promise<PayResult | T> {
  const provider = life.providers.get(method);
  if (provider === undefined) return { ok: false, code: 'unknown_method' };
  const result = await life.lock.run(orderId, LOCK_WAIT_MS, async (fence) => {
    life.reached('pay:locked');
    return await around(() => openAndCapture(life, orderId, provider, token, { by, fence }));
  });
  return result === BUSY ? IN_PROGRESS : result;
}

async function openAndCapture(
  life: Life,
  orderId: string,
  provider: CheckedProvider,
  token: string | null,
  acting: Acting,
): Promise<PayResult> {
  const { attempts, attemptIds, reached } = life;
  for (let tries = 1; ; tries++) {
    const opened = await attempts.ask({
      id: await attemptIds.next(),
      orderId,
      provider: provider.name,
      ...acting,
      askAfterMs: ASK_AFTER_MS,
    });
    switch (opened.outcome) {
      case 'unknown':
        return await notInLedger(life, orderId, 'order_not_payable');
      case 'fenced':
        return { ok: false, code: 'payment_in_progress', order: opened.order };
      case 'too_many_open': {
        // They may end well; if not, the buyer is blocked.
        const detail = 'too many payments of this buyer are under way: wait for their ends';
        return { ok: false, code: 'payment_in_progress', order: opened.order, detail };
      }
      case 'blocked':
        return { ok: false, code: 'payment_blocked', order: opened.order };
      case 'not_payable': {
        const { order } = opened;
        if (order.status !== 'paid') return { ok: false, code: 'order_not_payable', order };
        return { ok: true, state: 'paid', order, attempt: await lastAttempt(life, orderId) };
      }
      case 'payment_open': {
        const { attempt, order } = opened;
        const settled = await settle(life, attempt, acting, opened.ageMs >= PENDING_MS);
        if (settled === 'open' || tries === TRIES_MAX) return { ok: false, code: 'payment_in_progress', order };
        continue;
      }
      case 'opened':
        reached('pay:attempt-open');
        return await capture(life, opened, provider, token, acting);
    }
  }
}

async function capture(
  life: Life,
  opened: Opened,
  provider: CheckedProvider,
  token: string | null,
  acting: Acting,
): Promise<PayResult> {
  const { runtime, ledger, answerWithinMs, reached } = life;
  const { order, attempt } = opened;
  const openedMs = runtime.clock.monotonic();
  const request = { attemptId: attempt.id, orderId: order.id, buyer: order.buyer, amount: order.amount, token };
  let result: CheckedCapture | null;
  try {
    // Not beyond the order's time: whoever ends the order then needs its lock.
    const leftMs = (order.expiresAtMs ?? Infinity) - attempt.createdAtMs + OVER_MS;
    const waitMs = Math.min(answerWithinMs, Math.max(leftMs, OVER_MS));
    result = await within(runtime.timers, provider.capture(request), waitMs);
  } catch (error) {
    // Only the provider knows whether it has the money; the sweeper will ask.
    runtime.log.warn({ err: error, orderId: order.id, attemptId: attempt.id }, 'a payment’s outcome is unknown');
    return await pending(life, order, attempt, null);
  }
  if (result === null) return await pending(life, order, attempt, null);
  reached('pay:provider-answered');
  switch (result.state) {
    case 'pending': {
      const { reference, redirectUrl } = result;
      // News of this payment will be found by the reference.
      if (reference !== null) await ledger.nameAttempt(attempt.id, reference);
      return await pending(life, order, attempt, redirectUrl);
    }
    case 'declined': {
      const { reference, reason } = result;
      const closed = await closeAttempt(life, attempt, { state: 'failed', error: reason, reference }, acting.by);
      // The provider's webhook was quicker, and said otherwise.
      if (closed?.state === 'captured') return await asItIs(life, order.id);
      return { ok: false, code: 'payment_failed', order, reason };
    }
    case 'captured': {
      const { reference, amount } = result;
      const money = { capture: attempt.id, reference, amount };
      const nowMs = attempt.createdAtMs + Math.floor(runtime.clock.monotonic() - openedMs);
      const moved = await move(life, order.id, 'pay', acting, { money, believed: { ...opened, nowMs } });
      reached('pay:committed');
      return await resultOf(life, order.id, moved);
    }
  }
}

/** Left `pending`, unless somebody else has heard of its end meanwhile. */
async function pending(
  life: Life,
  order: OrderRecord,
  attempt: PaymentAttempt,
  redirectUrl: string | null,
): Promise<PayResult> {
  const now = (await life.ledger.getAttempt(attempt.id)) ?? attempt;
  if (now.state === 'open') return { ok: true, state: 'pending', order, attempt: now, redirectUrl };
  if (now.state === 'failed') {
    return { ok: false, code: 'payment_failed', order, reason: now.error ?? 'the provider declined' };
  }
  return await asItIs(life, order.id);
}

async function asItIs(life: Life, orderId: string): Promise<PayResult> {
  const order = await life.ledger.getOrder(orderId);
  if (order?.status !== 'paid') return { ok: false, code: 'order_not_payable', order };
  return { ok: true, state: 'paid', order, attempt: await lastAttempt(life, orderId) };
}

async function resultOf(life: Life, orderId: string, { outcome, order, attempt }: Moved): Promise<PayResult> {
  switch (outcome) {
    case 'moved':
    case 'repeat':
      if (order!.status === 'paid') return { ok: true, state: 'paid', order: order!, attempt };
      return { ok: false, code: 'order_not_payable', order };
    case 'amount_mismatch':
      return { ok: false, code: 'amount_mismatch', order };
    case 'fenced':
      return { ok: false, code: 'payment_in_progress', order };
    case 'unknown':
      return await notInLedger(life, orderId, 'order_not_payable');
    default:
      return { ok: false, code: 'order_not_payable', order };
  }
}

/** The shop itself took the money. */
export async function confirm(
  life: Life,
  orderId: string,
  reference: string,
  amount: Money,
  by: Actor,
): Promise<PayResult> {
  const result = await life.lock.run(orderId, LOCK_WAIT_MS, async (fence): Promise<PayResult> => {
    const acting = { by, fence };
    life.reached('pay:locked');
    const money = { taken: reference, attemptId: await life.attemptIds.next(), amount };
    for (let tries = 1; ; tries++) {
      const moved = await move(life, orderId, 'pay', acting, { money });
      life.reached('pay:committed');
      if (moved.outcome !== 'payment_open' || tries === TRIES_MAX) return await resultOf(life, orderId, moved);
      const settled = await settle(life, moved.attempt!, acting, true);
      if (settled === 'open') return { ok: false, code: 'payment_in_progress', order: moved.order };
    }
  });
  return result === BUSY ? IN_PROGRESS : result;
}
