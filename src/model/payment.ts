import type { Money } from './money.ts';

/**
 * One attempt to pay an order. Its row is committed before the provider is called, and its id is the idempotency key for the
 * provider: the provider acts once, however often the request is sent.
 *
 *   open       the provider may have been called, and the outcome is not known yet. At most one per order, by constraint
 *   captured   the money is there, and the order is paid with it
 *   failed     the provider declined
 *   voided     given up before any money came: the provider has promised that none will
 *   late       money without goods: the order ended meanwhile, or another attempt paid it. Goods or refund must follow
 *   refunding  the money is on its way back: asked of the provider until it says yes
 *   refunded   it is back
 */
export const ATTEMPT_STATES = ['open', 'captured', 'failed', 'voided', 'late', 'refunding', 'refunded'] as const;

export type AttemptState = (typeof ATTEMPT_STATES)[number];

export interface PaymentAttempt {
  id: string;
  orderId: string;
  /** `sandbox`, or `confirm` for money that the shop took itself. */
  provider: string;
  state: AttemptState;
  /** It is the money of its order, now or until it was refunded: at most one per order, by constraint. Late money never is. */
  pays: boolean;
  amount: Money;
  /** How much of it is back with the buyer, in the same currency. While it is less than `amount`, the rest pays the order. */
  refunded: number;
  /** The provider's id for it, once known. */
  reference: string | null;
  /** Why it failed, or what went wrong last. */
  error: string | null;
  /** What has to be done about it (open, late, refunding, or closed and in doubt) is tried next at this time; null: nothing. */
  nextAtMs: number | null;
  tries: number;
  createdAtMs: number;
  updatedAtMs: number;
}

/**
 * A refund of a part of a payment. Its row is committed before the provider is called, and its id is the provider's key.
 *
 *   asked  the provider may have been called; it is asked until it has taken it on. At most one per payment, by constraint
 *   done   the money is on its way to the buyer
 *   void   the provider will never do it, or all of the money went back meanwhile
 */
export interface PartRefund {
  readonly id: string;
  readonly attemptId: string;
  readonly orderId: string;
  readonly amount: Money;
  readonly state: 'asked' | 'done' | 'void';
  /** Identifies it when it is requested or reported again; null: nothing does. */
  readonly madeWith: string | null;
  readonly error: string | null;
  /** An `asked` refund is tried next at this time. */
  readonly nextAtMs: number | null;
  readonly tries: number;
  readonly createdAtMs: number;
}

/** What the sandbox provider knows of an attempt: its truth, which outlives processes as a real provider's does. */
export interface SandboxIntent {
  readonly id: string;
  readonly orderId: string;
  readonly amount: Money;
  readonly state: 'pending' | 'captured' | 'declined' | 'voided' | 'refunded';
  /** How much of it went back. */
  readonly refunded: number;
  /** A pending one is captured then. */
  readonly dueAtMs: number | null;
  /** The shop has been told of the capture, or need not be. */
  readonly told: boolean;
}

/** As an order shows it. */
export type PaymentState = 'none' | 'pending' | 'captured' | 'failed' | 'refunding' | 'refunded';

export interface OrderPayment {
  state: PaymentState;
  provider: string;
  reference: string | null;
  /** What has gone back to the buyer; null: nothing. */
  refunded: Money | null;
}

export function paymentStateOf(state: AttemptState): PaymentState {
  switch (state) {
    case 'open':
      return 'pending';
    case 'voided':
      return 'none';
    case 'late':
      return 'refunding';
    default:
      return state;
  }
}
