import { unavailable } from '../../base/errors.ts';
import type { Actor } from '../../model/actor.ts';
import type { Money } from '../../model/money.ts';
import type { OrderRecord } from '../../model/order.ts';
import type { PartRefund, PaymentAttempt } from '../../model/payment.ts';
import type { EndResult } from './cancel.ts';
import { giveBack, giveBackPart } from './give-back.ts';
import { type Acting, type Life, LOCK_WAIT_MS, lastAttempt, notInLedger, TRIES_MAX } from './life.ts';
import { BUSY } from './lock.ts';

export interface RefundOf {
  /** Null: all that is left. */
  readonly amount?: Money | null;
  /** A digest of the Idempotency-Key: a part that is asked for again with it goes back once. */
  readonly madeWith?: string | null;
}

/**
 * Without `amount`, or with all that is left, the order ends: the money goes back first, then the units are free. With less
 * the order stays paid. The intention is committed before the provider is called, and the sweeper goes on with it.
 */
export async function refund(
  life: Life,
  orderId: string,
  by: Actor,
  { amount = null, madeWith = null }: RefundOf = {},
): Promise<EndResult> {
  const result = await life.lock.run(orderId, LOCK_WAIT_MS, async (fence): Promise<EndResult> => {
    life.reached('refund:locked');
    for (let tries = 1; tries <= TRIES_MAX; tries++) {
      const ended = await refundOnce(life, orderId, { by, fence }, amount, madeWith);
      if (ended !== 'again') return ended;
    }
    throw unavailable('other refunds of this order are under way');
  });
  if (result === BUSY) throw unavailable(`order ${orderId} is being worked on`);
  return result;
}

/** `again`: another refund stood in the way, and is done. */
async function refundOnce(
  life: Life,
  orderId: string,
  acting: Acting,
  amount: Money | null,
  madeWith: string | null,
): Promise<EndResult | 'again'> {
  const { ledger, auditIds, reached } = life;
  const order = await ledger.getOrder(orderId);
  if (order === null) return await notInLedger(life, orderId, 'order_not_refundable');
  const last = await lastAttempt(life, orderId);
  const refusal = { ok: false, code: 'order_not_refundable', order } as const;
  if (!last?.pays) return refusal;
  if (amount !== null) {
    const asked = await askForPart(life, order, last, amount, madeWith, acting);
    if (asked !== 'all') return asked;
  }
  if (order.status === 'refunded') return { ok: true, order, attempt: last };
  if (order.status !== 'paid') return refusal;
  let attempt = last;
  if (last.state === 'captured') attempt = (await ledger.startRefund(last.id, acting.by, await auditIds.next()))!;
  if (attempt.state === 'captured') {
    // A part is on its way: what is left is known when that is done.
    const part = await ledger.refundUnderWay(attempt.id);
    if (part !== null) await finishOther(life, part, acting);
    return 'again';
  }
  reached('refund:started');
  return await giveBack(life, attempt, acting);
}

/** `all`: the amount is all that is left, and the order ends with it. */
async function askForPart(
  life: Life,
  order: OrderRecord,
  paidWith: PaymentAttempt,
  amount: Money,
  madeWith: string | null,
  acting: Acting,
): Promise<EndResult | 'again' | 'all'> {
  const { ledger, attemptIds, auditIds, reached } = life;
  const isPart = amount.amount < paidWith.amount.amount - paidWith.refunded;
  if (isPart && !canRefundParts(life, paidWith.provider)) {
    const detail = `the payment provider ${paidWith.provider} refunds whole payments only`;
    return { ok: false, code: 'order_not_refundable', order, detail };
  }
  const asked = await ledger.askRefund({
    id: await attemptIds.next(),
    attemptId: paidWith.id,
    amount,
    madeWith,
    by: acting.by,
    auditId: await auditIds.next(),
  });
  switch (asked.outcome) {
    case 'all':
      return 'all';
    case 'asked':
      reached('refund:started');
      return await giveBackPart(life, asked.refund, acting);
    case 'repeat':
      if (asked.refund.state === 'asked') return await giveBackPart(life, asked.refund, acting);
      if (asked.refund.state === 'done') return { ok: true, order, attempt: paidWith };
      // It was all that was left; or the provider has refused it for good.
      if (asked.refund.error === null || order.status === 'refunded') return 'all';
      return { ok: false, code: 'order_not_refundable', order, detail: asked.refund.error };
    case 'under_way': {
      const { refund: other } = asked;
      // A caller without a key that got no answer asks again: that must not become a second refund.
      const same = madeWith === null && other.madeWith === null && other.amount.amount === amount.amount;
      if (same) return await giveBackPart(life, other, acting);
      await finishOther(life, other, acting);
      return 'again';
    }
    case 'key_reused':
      return { ok: false, code: 'idempotency_key_reused', order };
    case 'amount_mismatch':
      return { ok: false, code: 'amount_mismatch', order };
    case 'refused':
      return { ok: false, code: 'order_not_refundable', order };
  }
}

/** Finishes the refund that stands in the way. If that fails, the caller must learn that its own refund is not stored. */
async function finishOther(life: Life, part: PartRefund, acting: Acting): Promise<void> {
  try {
    await giveBackPart(life, part, acting);
  } catch (error) {
    throw unavailable('another refund of this order is under way; nothing of this one is stored: send it again', error);
  }
}

function canRefundParts({ providers }: Life, provider: string): boolean {
  return provider === 'confirm' || providers.get(provider)?.partialRefunds === true;
}
