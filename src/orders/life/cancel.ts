import type { Actor } from '../../model/actor.ts';
import type { OrderRecord } from '../../model/order.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import { type Life, LOCK_WAIT_MS, TRIES_MAX } from './life.ts';
import { BUSY } from './lock.ts';
import { move } from './move.ts';
import { settle } from './settle.ts';

/** How a flow ends that ends the order: cancel and refund. */
export type EndResult =
  | { readonly ok: true; readonly order: OrderRecord; readonly attempt: PaymentAttempt | null }
  | {
      readonly ok: false;
      readonly code:
        | 'order_not_cancellable'
        | 'order_not_refundable'
        | 'payment_in_progress'
        | 'amount_mismatch'
        | 'idempotency_key_reused';
      readonly order: OrderRecord | null;
      /** Where there is more to say than the code does. */
      readonly detail?: string;
    }
  | { readonly ok: false; readonly code: 'not_found' };

export async function cancel(life: Life, orderId: string, by: Actor): Promise<EndResult> {
  const result = await life.lock.run(orderId, LOCK_WAIT_MS, async (fence): Promise<EndResult> => {
    const acting = { by, fence };
    life.reached('cancel:locked');
    for (let tries = 1; ; tries++) {
      const { outcome, order, attempt } = await move(life, orderId, 'cancel', acting);
      if (outcome === 'moved' || outcome === 'repeat') {
        life.reached('cancel:committed');
        return { ok: true, order: order!, attempt };
      }
      if (outcome === 'unknown') return { ok: false, code: 'not_found' };
      if (outcome === 'payment_open' && tries < TRIES_MAX) {
        // Before the unit is anybody's, it must be known whether the provider has the money, or will have it.
        if ((await settle(life, attempt!, acting, true)) !== 'open') continue;
      }
      const code = outcome === 'payment_open' ? 'payment_in_progress' : 'order_not_cancellable';
      return { ok: false, code, order };
    }
  });
  return result === BUSY ? { ok: false, code: 'payment_in_progress', order: null } : result;
}
