import { actor } from '../../model/actor.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import type { PlaceRequest, PlaceResult } from '../place.ts';
import type { Life } from './life.ts';
import { move } from './move.ts';

export type Place = (request: PlaceRequest) => Promise<PlaceResult>;

/** Who does what nobody asked for. */
export const SWEEPER = actor('system', 'sweeper');

/**
 * Late money gets its goods if there are any: the shop places a new order of the same buyer, through gate, pipe and ledger
 * like every other. The key is derived from the attempt, so that a second try finds the first one's order. Only for an order
 * that expired: a buyer who cancelled does not want the goods, and a buyer whose order is paid has them.
 */
export async function revive(life: Life, place: Place, attempt: PaymentAttempt): Promise<boolean> {
  const { ledger, reached } = life;
  const order = await ledger.getOrder(attempt.orderId);
  if (order?.status !== 'expired') return false;
  const { saleId, itemCode, buyer, quantity, seats, amount } = order;
  if (amount.amount !== attempt.amount.amount || amount.currency !== attempt.amount.currency) return false;
  const key = `revive-${attempt.id}`;
  // Of a seated item the very same seats: the buyer has paid for those and not for others.
  const placed = await place({ saleId, itemCode, buyer, quantity, seats, key, by: SWEEPER, keyOf: 'shop' });
  if (!placed.ok) return false;
  reached('late:placed');
  if (placed.order.status === 'queued') throw new Error('the order that revives it is not decided yet');
  const money = { capture: attempt.id, reference: attempt.reference, amount };
  const acting = { by: SWEEPER, fence: null };
  const { outcome } = await move(life, placed.order.id, 'pay', acting, { money, revives: order.id });
  reached('late:committed');
  return outcome === 'moved' || outcome === 'repeat';
}
