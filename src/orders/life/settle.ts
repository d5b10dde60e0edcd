import { within } from '../../base/timers.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import { takeInPart } from './give-back.ts';
import { type Acting, ASK_MS, type Life } from './life.ts';
import { closeAttempt, move } from './move.ts';
import type { CheckedState } from './provider.ts';

/** What has become of an attempt; `open`: it cannot be said yet. */
export type Settled = 'paid' | 'closed' | 'open';

/**
 * Asks the provider what has become of an attempt that is open or in doubt, and does what follows. With `giveUp` a payment
 * that is not captured is voided.
 */
export async function settle(life: Life, attempt: PaymentAttempt, acting: Acting, giveUp: boolean): Promise<Settled> {
  const { providers, runtime, ledger, reached } = life;
  const provider = providers.get(attempt.provider);
  if (provider === undefined) return 'open';
  let said: CheckedState | null;
  try {
    said = await within(runtime.timers, provider.query(attempt.id), ASK_MS);
    if (said?.state === 'pending' && said.reference !== null && attempt.reference === null) {
      await ledger.nameAttempt(attempt.id, said.reference);
    }
    if (giveUp && (said?.state === 'pending' || said?.state === 'unknown')) {
      said = await within(runtime.timers, provider.void(attempt.id), ASK_MS);
    }
  } catch (error) {
    runtime.log.debug({ err: error, attemptId: attempt.id }, 'the payment provider cannot say');
    return 'open';
  }
  reached('settle:asked');
  const settled = await follow(life, attempt, said, acting);
  reached('settle:committed');
  return settled;
}

async function follow(
  life: Life,
  attempt: PaymentAttempt,
  said: CheckedState | null,
  acting: Acting,
): Promise<Settled> {
  const { by } = acting;
  switch (said?.state) {
    case 'captured': {
      const { reference, amount, refunded: back } = said;
      const money = { capture: attempt.id, reference, amount, ...(back && { back }) };
      const { outcome, order } = await move(life, attempt.orderId, 'pay', acting, { money });
      // Refused: the provider gives two payments one reference. Until somebody has looked at it, it stays open.
      if (outcome === 'fenced' || outcome === 'refused') return 'open';
      // The money came, and a part of it went back before we heard of it.
      if (order?.status === 'paid' && back !== undefined && back.amount > 0) {
        await takeInPart(life, attempt, { total: back }, { by, fence: null });
      }
      return order?.status === 'paid' ? 'paid' : 'closed';
    }
    case 'declined': {
      const { reason, reference } = said;
      if (attempt.state === 'open')
        await closeAttempt(life, attempt, { state: 'failed', error: reason, reference }, by);
      else await life.ledger.clearDoubt(attempt);
      return 'closed';
    }
    case 'voided':
    case 'refunded':
      if (attempt.state === 'open') await closeAttempt(life, attempt, { state: 'voided', error: null }, by);
      else await life.ledger.clearDoubt(attempt);
      return 'closed';
    default:
      return 'open';
  }
}
