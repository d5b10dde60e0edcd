import type { Money } from '../model/money.ts';

/**
 * Who takes the money. The attempt's id is the key of every call: sent again, a call has no second effect, and its outcome
 * can be asked for.
 *
 * A call that rejects, or that does not answer in time, leaves its outcome unknown: the attempt stays open, and the
 * provider is asked (`query`) until it knows.
 */
export interface PaymentProvider {
  readonly name: string;
  /**
   * It can give a part back: `refund` sends exactly `amount`, once for each `refundId`, and `query` says how much of a captured
   * payment is back in all (`refunded`). Without it only whole payments are refunded through this provider.
   */
  readonly partialRefunds?: boolean;
  /** Takes the money, or begins to. */
  capture(request: CaptureRequest): Promise<CaptureResult>;
  /** What has become of the payment. */
  query(attemptId: string): Promise<ProviderState>;
  /** Gives up what has not been captured: from `voided` on no money will come. What has been is `captured`. */
  void(attemptId: string): Promise<ProviderState>;
  /**
   * Sends money back: all that is left, or with `partialRefunds` a part. Resolves when the provider has taken that on for good,
   * or `refused`: it never will under this `refundId`, and has sent nothing.
   */
  refund(request: RefundRequest): Promise<RefundResult>;
}

export type RefundResult = { readonly reference: string | null } | { readonly refused: string };

export interface CaptureRequest {
  readonly attemptId: string;
  readonly orderId: string;
  readonly buyer: string;
  readonly amount: Money;
  /** What the buyer's client got from the provider, if the provider works that way. */
  readonly token: string | null;
}

export type CaptureResult =
  | {
      readonly state: 'captured';
      readonly reference: string;
      readonly amount: Money;
      /** How much of it is back with the buyer in all, by whomever; for those with `partialRefunds`. */
      readonly refunded?: Money;
    }
  | { readonly state: 'declined'; readonly reference: string | null; readonly reason: string }
  /** The buyer has something to do, or the bank takes its time: the outcome comes by webhook, or when asked for. */
  | { readonly state: 'pending'; readonly reference: string | null; readonly redirectUrl: string | null };

/** `unknown`: the provider does not know the attempt: the call did not arrive, or not yet. */
export type ProviderState =
  | CaptureResult
  | { readonly state: 'voided' | 'unknown' }
  | { readonly state: 'refunded'; readonly reference: string | null };

export interface RefundRequest {
  readonly attemptId: string;
  readonly reference: string | null;
  /** The key of this refund: sent again with it, nothing more goes back. The attempt's id where nothing was refunded before. */
  readonly refundId: string;
  readonly amount: Money;
}

/** What a provider tells by itself. At least once, in any order, also before its own call has returned. */
export interface ProviderNews {
  readonly provider: string;
  /** Of the news itself: the same when it comes again. */
  readonly id: string;
  readonly type: 'payment.captured' | 'payment.failed' | 'payment.refunded';
  readonly orderId: string;
  readonly reference: string;
  /** Of a refund: what went back by it, which may be a part. */
  readonly amount: Money;
}
