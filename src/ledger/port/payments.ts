import type { Actor } from '../../model/actor.ts';
import type { OrderEvent } from '../../model/life.ts';
import type { Money } from '../../model/money.ts';
import type { OrderRecord, OrderStatus } from '../../model/order.ts';
import type { PartRefund, PaymentAttempt } from '../../model/payment.ts';

/**
 * The ledger's part in the life of an order. Every method is one transaction, durable when its promise resolves; times are
 * the ledger's own clock, read inside the transaction (but for what a capture believes). Callers say how old something must
 * be, never an instant: their clocks may be wrong.
 */
export interface PaymentLedger {
  /**
   * Moves orders, many in one transaction. Each is one conditional UPDATE on (id, status, version); with it go, in the same
   * transaction: the units of its item (one UPDATE per item, rev + 1), the claims of units that are free again, a row of the
   * release outbox, the payment, an audit row, and an event for those who subscribed. Says for each how it left the order, in
   * the same order. Moves of one order in one batch happen one after the other.
   */
  moveOrders(batch: readonly Move[]): Promise<Moved[]>;

  // Payments

  /**
   * Before a provider is called. Only for an order that is `reserved`, whose `expiresAt` is not reached by the ledger's
   * clock, that has no other open attempt, and whose buyer has not had too many declined (DECLINED_MAX). Those that are open
   * for other orders of the buyer in the same sale count, too, as they may all be declined (`too_many_open`: later).
   */
  openAttempt(attempt: NewAttempt): Promise<AttemptOpened>;
  /** Many in one transaction: a rush of payments would otherwise be one each. Answers in the same order. */
  openAttempts(batch: readonly NewAttempt[]): Promise<AttemptOpened[]>;
  /**
   * Ends an open attempt without money; `failed` counts as declined. One that is not open stays as it is. Returns it as it is
   * now; null: none.
   */
  closeAttempt(attemptId: string, end: AttemptEnd, by: Actor, auditId: string): Promise<PaymentAttempt | null>;
  /** The provider's own name for an open attempt, by which its news will be known. */
  nameAttempt(attemptId: string, reference: string): Promise<PaymentAttempt | null>;
  /**
   * Lifts what declined payments have brought upon the order and its buyer. False: there was nothing, or no such order, and
   * nothing is written.
   */
  unblockPayments(orderId: string, by: Actor, auditId: string): Promise<boolean>;
  /**
   * From `captured` (of a paid order) or `late` to `refunding`: from then on what is left is asked of the provider until it
   * succeeds. Not while a part is on its way, unless all of the money is `back`: what is left must be known.
   */
  startRefund(attemptId: string, by: Actor, auditId: string, back?: boolean): Promise<PaymentAttempt | null>;
  /**
   * Of a late payment whose money is back: `refunding` → `refunded`. (That of a paid order, `pays`, goes with its `refund`
   * move, and stays as it is here.) The reference is kept only where the attempt has none: it is found by its own.
   */
  finishRefund(attemptId: string, reference: string | null): Promise<PaymentAttempt | null>;
  /** Of a late payment on its way back: how much the provider says is back in all. */
  noteRefunded(attemptId: string, total: Money, by: Actor, auditId: string): Promise<PaymentAttempt | null>;

  /** Commits the intention to give a part of a paid order's money back: from then on it is asked of the provider. */
  askRefund(asked: NewRefund): Promise<RefundAsked>;
  /** The one of a payment that is not finished; there is at most one. */
  refundUnderWay(attemptId: string): Promise<PartRefund | null>;
  getRefund(refundId: string): Promise<PartRefund | null>;
  /** The provider will never do it. One that is not `asked` stays as it is. */
  voidRefund(refundId: string, error: string, by: Actor, auditId: string): Promise<PartRefund | null>;
  /** A try has failed: each is due again after `afterMs`, by the ledger's clock. */
  postponeRefunds(some: readonly { refundId: string; error: string; afterMs: number }[]): Promise<void>;
  /** The longest due first, by index; `after`: the next page. */
  dueRefunds(limit: number, after?: DueRefund): Promise<DueRefund[]>;

  /** One that ended without money (failed, voided) may have it after all: its provider has to be asked, from now on. */
  doubtAttempt(attemptId: string, error: string): Promise<PaymentAttempt | null>;
  /** The doubt is gone, unless there was another one since the attempt was read like this. */
  clearDoubt(read: PaymentAttempt): Promise<PaymentAttempt | null>;
  /**
   * A try has failed: each is due again after `afterMs`, an open one also when its order's time is over. Returns those that
   * were postponed, as they are now: not those that are settled by now.
   */
  postponeAttempts(batch: readonly Postponement[]): Promise<Postponed[]>;
  getAttempt(attemptId: string): Promise<PaymentAttempt | null>;
  /** The highest token of a lock under which an order was changed; 0: none. Reads all orders: only for the start. */
  highestFence(): Promise<bigint>;
  findAttempt(provider: string, reference: string): Promise<PaymentAttempt | null>;
  /** Newest first, at most so many: an order can have any number of them. */
  attemptsOf(orderId: string, limit: number): Promise<PaymentAttempt[]>;
  /** The attempt that each is paid with, else its open one, else its newest: by index, however many it has. */
  lastAttempts(orderIds: readonly string[]): Promise<Map<string, PaymentAttempt>>;
  /** Open, late and refunding ones that are due, the longest due first, by index; `after`: the next page. */
  dueAttempts(limit: number, after?: PaymentAttempt): Promise<PaymentAttempt[]>;
  /** Which of these attempts and refunds of a part are not settled, due or not. */
  unfinishedAmong(ids: readonly string[]): Promise<Set<string>>;

  /** Attempts that are not settled after at least so many tries. The longest due first, by index. */
  unsettledAttempts(tries: number, limit: number, saleId: string | null): Promise<Unsettled[]>;
  unsettledRefunds(tries: number, limit: number, saleId: string | null): Promise<UnsettledRefund[]>;

  // Expiry

  /**
   * Reserved orders whose time is over by the ledger's clock, the longest first, by index; `after`: the next page. Those with
   * an open attempt (`paying`) are among them, and stay there until that is settled: whoever reads must go on behind them.
   */
  dueOrders(limit: number, after?: DueOrder): Promise<DueOrder[]>;
}

export interface Move {
  readonly orderId: string;
  readonly event: Extract<OrderEvent, 'pay' | 'cancel' | 'expire' | 'refund' | 'refund_part'>;
  readonly by: Actor;
  readonly auditId: string;
  /** The token of the order's lock; null: moved without it (Redis is out). A row with a higher one refuses it. */
  readonly fence: string | null;
  /**
   * With `pay`: the money. `capture` of an attempt (which may be of another order: late money that moves to the order that
   * revives it), or `taken` by the shop itself, for which the attempt is written here; it needs the order's time not to be
   * over, a capture does not: the unit is still held, and the money is there. `back`: what the provider says of it is back
   * in all; late money of which anything is back pays for nothing any more, and the rest goes back, too.
   */
  readonly money?:
    | {
        readonly capture: string;
        readonly reference: string | null;
        readonly amount: Money | null;
        readonly back?: Money;
      }
    | { readonly taken: string; readonly attemptId: string; readonly amount: Money };
  /** With `pay` for late money: the ended order whose money this was. */
  readonly revives?: string;
  /**
   * With `capture`: order and open attempt as they were when it was opened, a moment ago. Where nothing has happened since
   * they need not be read again: every row is written on the condition that it is so, else all are read.
   */
  readonly believed?: Believed;
  /** With `refund` and `refund_part`: the attempt whose money is back. Refused if the order was not paid with it. */
  readonly refunds?: string;
  /**
   * With `refund_part`, one of
   *   own    a refund that we asked for; `total`: what the provider says is back in all, null where nobody else can say
   *   told   news of a provider that cannot say what is back in all: counted once by `told`, under this id
   *   total  what the provider says is back in all, by whomever: told again or in any order it adds nothing
   */
  readonly part?:
    | { readonly own: string; readonly total: Money | null; readonly reference: string | null }
    | { readonly told: string; readonly id: string; readonly amount: Money }
    | { readonly total: Money };
}

export interface NewRefund {
  readonly id: string;
  readonly attemptId: string;
  readonly amount: Money;
  /** A digest of the Idempotency-Key and its scope; null: none. */
  readonly madeWith: string | null;
  readonly by: Actor;
  readonly auditId: string;
}

/**
 *   asked            from now on
 *   repeat           this key has asked for it already
 *   key_reused       this key has asked for another amount
 *   under_way        another one is not finished: that first
 *   all              it is all that is left: a refund of the order
 *   amount_mismatch  more than is left, or another currency
 *   refused          the order is not paid with this attempt, or its money is on its way back
 */
export type RefundAsked =
  | {
      readonly outcome: 'asked' | 'repeat' | 'under_way';
      readonly refund: PartRefund;
      readonly attempt: PaymentAttempt;
    }
  | { readonly outcome: 'key_reused' | 'all' | 'amount_mismatch' | 'refused' };

/** So many declined payments within 24 hours, by the ledger's clock, and nobody may try again before an admin lifts it. */
export const DECLINED_MAX = { order: 10, buyer: 30, withinMs: 24 * 3600 * 1000 } as const;

/**
 *   moved            now, by this move
 *   repeat           it was so already (for `pay`: with this very money)
 *   refused          another state won; `order` says which. Or another order has this money (`attempt`): a reference is used
 *                    once
 *   fenced           the order's lock has passed to somebody else since
 *   payment_open     `cancel`, `expire`, `pay` with `taken`: money may be on its way; ask the provider first
 *   late             `pay`: the money is there and the order cannot have it: the attempt is `late` from now on; if a part of
 *                    it is back already, on its way back
 *   too_late         `pay` with `taken`: the order's time is over
 *   amount_mismatch  `pay`: not what the order costs. A captured attempt is `late` from now on: all of it goes back
 *   all_back         `refund_part`: nothing is left of the money: it is a `refund`
 *   not_due          `expire`: its time is not over
 *   unknown          there is no such order (or attempt)
 */
export interface Moved {
  readonly outcome:
    | 'moved'
    | 'repeat'
    | 'refused'
    | 'fenced'
    | 'payment_open'
    | 'late'
    | 'too_late'
    | 'amount_mismatch'
    | 'all_back'
    | 'not_due'
    | 'unknown';
  /** As this move left it; null only with `unknown`. */
  readonly order: OrderRecord | null;
  /** The attempt that the move was about, as this move left it. */
  readonly attempt: PaymentAttempt | null;
}

export interface NewAttempt {
  readonly id: string;
  readonly orderId: string;
  readonly provider: string;
  readonly fence: string | null;
  /** Kept with the attempt. The audit has what becomes of it. */
  readonly by: Actor;
  /** The provider is asked about it after so long, or when the order's time is over, should nobody have heard of its end. */
  readonly askAfterMs: number;
}

export interface Opened {
  readonly order: OrderRecord;
  readonly attempt: PaymentAttempt;
  /** The highest token under which something was stored about the order, with this one's. */
  readonly fence: bigint;
}

export interface Believed extends Opened {
  /** The ledger's clock, as far as the time that has gone by since the opening tells. */
  readonly nowMs: number;
}

export type AttemptOpened =
  | ({ readonly outcome: 'opened' } & Opened)
  /** `ageMs`: how long ago it was opened, by the ledger's clock. */
  | {
      readonly outcome: 'payment_open';
      readonly order: OrderRecord;
      readonly attempt: PaymentAttempt;
      readonly ageMs: number;
    }
  | { readonly outcome: 'not_payable' | 'fenced' | 'blocked' | 'too_many_open'; readonly order: OrderRecord }
  | { readonly outcome: 'unknown' };

export interface AttemptEnd {
  readonly state: 'failed' | 'voided';
  readonly error: string | null;
  readonly reference?: string | null;
}

export interface Postponement {
  readonly attemptId: string;
  readonly error: string;
  readonly afterMs: number;
}

export interface Postponed {
  readonly attempt: PaymentAttempt;
  /** Its order's time is over. */
  readonly over: boolean;
}

export interface Unsettled {
  readonly attempt: PaymentAttempt;
  readonly saleId: string;
  readonly orderStatus: OrderStatus;
}

export interface DueRefund extends PartRefund {
  readonly provider: string;
}

export interface UnsettledRefund {
  readonly refund: PartRefund;
  readonly provider: string;
  readonly saleId: string;
}

export interface DueOrder {
  readonly orderId: string;
  readonly saleId: string;
  readonly buyer: string;
  readonly expiresAtMs: number;
  /** It has an open attempt, and cannot expire before that is settled. */
  readonly paying: boolean;
}
