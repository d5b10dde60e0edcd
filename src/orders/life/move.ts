import type { AttemptEnd, Move, Moved } from '../../ledger/port.ts';
import type { Actor } from '../../model/actor.ts';
import { unitsAt } from '../../model/life.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import type { Acting, Life } from './life.ts';

export type MoveMore = Pick<Move, 'money' | 'revives' | 'refunds' | 'part' | 'believed'>;

/** Moves an order in the ledger. If that frees its units, they go back to the gate before this resolves. */
export async function move(
  life: Life,
  orderId: string,
  event: Move['event'],
  { by, fence }: Acting,
  more: MoveMore = {},
): Promise<Moved> {
  const { moves, auditIds, releaser } = life;
  const moved = await moves.ask({ orderId, event, by, fence, auditId: await auditIds.next(), ...more });
  const { outcome, order } = moved;
  // The ledger first, then the gate; and both before the order's lock is released.
  if (outcome === 'moved' && unitsAt(order!.status) === null) {
    await releaser.add({ orderId: order!.id, saleId: order!.saleId, buyer: order!.buyer });
  }
  return moved;
}

/** Ends an open attempt without money. One that is not open stays as it is. */
export async function closeAttempt(
  { ledger, auditIds }: Life,
  { id }: PaymentAttempt,
  end: AttemptEnd,
  by: Actor,
): Promise<PaymentAttempt | null> {
  return await ledger.closeAttempt(id, end, by, await auditIds.next());
}
