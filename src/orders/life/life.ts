import type { Grouped } from '../../base/grouped.ts';
import type { IdSequence } from '../../base/ids.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { AttemptOpened, Move, Moved, NewAttempt, OrderLedger, PaymentLedger, Upkeep } from '../../ledger/port.ts';
import type { Actor } from '../../model/actor.ts';
import type { OrderRecord } from '../../model/order.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import type { OrderLock } from './lock.ts';
import type { Reached } from './points.ts';
import type { CheckedProvider } from './provider.ts';
import type { Releaser } from './releaser.ts';
import type { SeatMover } from './seat-mover.ts';

/**
 * What the flows of this folder share: pay.ts, cancel.ts, refund.ts, news.ts, settle.ts and the sweeper. Each flow goes
 * lock → ledger → provider → ledger → gate, and is decided by one conditional UPDATE of the ledger: whatever races, crashes or
 * repeats, there is one capture and one end.
 *
 *   taking money   The attempt is committed, then the provider is called with the attempt's id as its key, then the order
 *                  moves. A process that dies in between leaves an open attempt, and the sweeper asks the provider about it.
 *                  While an attempt is open, its order can neither expire nor be cancelled.
 *   giving back    The ledger commits, then the gate gets the units (move.ts, releaser.ts).
 */
export interface Life {
  readonly runtime: Runtime;
  readonly ledger: PaymentLedger & OrderLedger & Upkeep;
  /** Moves and new attempts, grouped into transactions. */
  readonly moves: Pick<Grouped<Move, Moved>, 'ask' | 'idle'>;
  readonly attempts: Pick<Grouped<NewAttempt, AttemptOpened>, 'ask'>;
  readonly lock: Pick<OrderLock, 'run'>;
  readonly releaser: Releaser;
  readonly seatMover: SeatMover;
  readonly providers: ReadonlyMap<string, CheckedProvider>;
  readonly attemptIds: IdSequence;
  readonly auditIds: IdSequence;
  /** How long a buyer waits for the provider before the payment is left `pending`. */
  readonly answerWithinMs: number;
  readonly reached: Reached;
  /** The order if it is admitted and not yet in the ledger. */
  queuedOrder(orderId: string): Promise<OrderRecord | null>;
}

/** Who acts, and with which token of the order's lock; null: without the lock. */
export interface Acting {
  readonly by: Actor;
  readonly fence: string | null;
}

/** A second click waits for the first: longer than the first may take. */
export const LOCK_WAIT_MS = 8000;
/** How long one question to the provider may take. */
export const ASK_MS = 5000;
/** What stands in the way of a flow is settled, and the flow tried again, so often. */
export const TRIES_MAX = 5;

export type NotInLedger<Code> =
  | { readonly ok: false; readonly code: Code; readonly order: OrderRecord }
  | { readonly ok: false; readonly code: 'not_found' };

/** The ledger does not know the order. It may be queued: then `code`, with the order as it is. */
export async function notInLedger<Code>(life: Life, orderId: string, code: Code): Promise<NotInLedger<Code>> {
  const order = await life.queuedOrder(orderId);
  return order === null ? { ok: false, code: 'not_found' } : { ok: false, code, order };
}

/** The attempt that pays the order, or else its newest one. */
export async function lastAttempt({ ledger }: Life, orderId: string): Promise<PaymentAttempt | null> {
  return (await ledger.lastAttempts([orderId])).get(orderId) ?? null;
}
