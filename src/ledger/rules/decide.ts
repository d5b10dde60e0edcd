import { invariant, TerminalError } from '../../base/errors.ts';
import { stepOf } from '../../model/life.ts';
import type { Money } from '../../model/money.ts';
import type { OrderRecord, OrderStatus } from '../../model/order.ts';
import type { PartRefund, PaymentAttempt } from '../../model/payment.ts';
import { type AttemptOpened, DECLINED_MAX, type Move, type Moved, type NewAttempt } from '../port/payments.ts';

/** With what was back when it was asked for. */
export interface StoredRefund extends PartRefund {
  readonly backBefore: number;
}

/** The provider name under which money is stored that the shop took itself. */
export const CONFIRM = 'confirm';

/** An order, with all that decides what may happen to it. */
export interface OrderState {
  readonly order: OrderRecord;
  /** The highest token of the order's lock under which it was changed. */
  readonly fence: bigint;
  /** Its open attempt; there is at most one. */
  readonly open: PaymentAttempt | null;
  /** The attempt that it was paid with. */
  readonly paying: PaymentAttempt | null;
}

/** Attempts that a move names; they may be another order's. */
export interface MoneyState {
  /** By its id. */
  readonly named: PaymentAttempt | null;
  /** The one that has the provider's reference. */
  readonly referenced: PaymentAttempt | null;
}

/** Declined payments of the last 24 hours that nobody has lifted. */
export interface Declined {
  readonly order: number;
  readonly buyer: number;
  /** Open payments of the buyer's other orders: each of them may yet be declined. */
  readonly open: number;
}

const NONE_DECLINED: Declined = { order: 0, buyer: 0, open: 0 };

export interface Decision {
  readonly outcome: Moved['outcome'];
  /** The status that the order goes to; null: it stays as it is. */
  readonly to: OrderStatus | null;
  /** The attempt that it is about, as it is from now on. */
  readonly attempt: PaymentAttempt | null;
  /** Whether that is a change, or a new one. */
  readonly stores: boolean;
  readonly revives: string | null;
}

/** Decides a move by the state of its order and its money. Pure: if the rows have changed meanwhile, the work starts again. */
export function decideMove(
  move: Move,
  state: OrderState | null,
  money: MoneyState,
  nowMs: number,
  part: StoredRefund | null = null,
): Decision {
  if (state === null) return stays('unknown', null);
  switch (move.event) {
    case 'pay':
      invariant(move.money !== undefined, `order ${move.orderId} is to be paid without money`);
      return 'capture' in move.money
        ? decideCapture(move, move.money, state, money, nowMs)
        : decideTaken(move, move.money, state, money, nowMs);
    case 'cancel':
    case 'expire':
      return decideEnd(move, move.event, state, nowMs);
    case 'refund':
      return decideRefund(move, state, nowMs);
    case 'refund_part':
      invariant(move.part !== undefined, `a part of order ${move.orderId} is to be refunded, and nobody says which`);
      return decideRefundPart(move, move.part, state, part, nowMs);
  }
}

function decideCapture(
  move: Move,
  capture: Extract<NonNullable<Move['money']>, { readonly capture: string }>,
  { order, fence, open }: OrderState,
  { named, referenced }: MoneyState,
  nowMs: number,
): Decision {
  if (named === null) return stays('unknown', null);
  const own = named.orderId === order.id;
  if (!own && named.orderId !== move.revives) return stays('unknown', null);
  if (own && hasMoney(named)) return stays('repeat', named);
  if (isFenced(move, fence)) return stays('fenced', named);
  // Two attempts claim one payment at the provider: we must not guess whose it is.
  if (referenced !== null && referenced.id !== named.id) return stays('refused', referenced);

  const payable = stepOf(order.status, 'pay') === 'paid' && (open === null || open.id === named.id);
  const reference = capture.reference ?? named.reference;
  if (!own) {
    // Not late any more: the money is on its way back, or pays another order.
    if (named.state !== 'late') return stays('refused', named);
    const amount = capture.amount ?? named.amount;
    // A part of it is back with the buyer, so it does not pay for the goods.
    if (named.refunded > 0) return stays('amount_mismatch', named);
    if (!isSame(amount, order.amount) || !isSame(named.amount, order.amount)) return stays('amount_mismatch', named);
    if (!payable) return stays('late', named);
    const attempt = { ...captured(named, nowMs), orderId: order.id, reference };
    return { ...goes('paid', attempt), revives: named.orderId };
  }
  const amount = capture.amount ?? named.amount;
  const right = isSame(amount, order.amount);
  if (right && payable) return goes('paid', { ...captured(named, nowMs), reference });
  const late: PaymentAttempt = {
    ...named,
    state: 'late',
    // The amount that came is the amount that has to go back.
    amount,
    reference,
    error: null,
    nextAtMs: nowMs,
    tries: 0,
    updatedAtMs: nowMs,
  };
  return { ...stays(right ? 'late' : 'amount_mismatch', lessBack(late, capture.back)), stores: true };
}

/** Late money, less what is back already. */
function lessBack(late: PaymentAttempt, back: Money | undefined): PaymentAttempt {
  if (back === undefined || back.amount === 0) return late;
  const { amount, currency } = late.amount;
  // Another currency cannot be counted; the provider is asked what is left before the rest goes back.
  const counted = back.currency === currency ? back.amount : 0;
  return counted >= amount
    ? refunded(late, late.updatedAtMs)
    : { ...late, state: 'refunding', refunded: Math.max(late.refunded, counted) };
}

function decideTaken(
  move: Move,
  { taken, attemptId, amount }: { readonly taken: string; readonly attemptId: string; readonly amount: Money },
  { order, fence, open, paying }: OrderState,
  { named, referenced }: MoneyState,
  nowMs: number,
): Decision {
  if (referenced !== null) return stays(referenced.orderId === order.id ? 'repeat' : 'refused', referenced);
  if (named !== null) throw new TerminalError('attempt_id_reused', `attempt ${attemptId} is stored with other content`);
  if (isFenced(move, fence)) return stays('fenced', null);
  if (stepOf(order.status, 'pay') !== 'paid') return stays('refused', paying);
  if (!isSame(amount, order.amount)) return stays('amount_mismatch', null);
  if (isOver(order, nowMs)) return stays('too_late', null);
  if (open !== null) return stays('payment_open', open);
  const attempt: PaymentAttempt = {
    id: attemptId,
    orderId: order.id,
    provider: CONFIRM,
    state: 'captured',
    pays: true,
    amount,
    refunded: 0,
    reference: taken,
    error: null,
    nextAtMs: null,
    tries: 0,
    createdAtMs: nowMs,
    updatedAtMs: nowMs,
  };
  return goes('paid', attempt);
}

function decideEnd(
  move: Move,
  event: 'cancel' | 'expire',
  { order, fence, open, paying }: OrderState,
  nowMs: number,
): Decision {
  const to = stepOf(order.status, event);
  if (to === 'repeat' || to === 'refused') return stays(to, paying);
  if (isFenced(move, fence)) return stays('fenced', open);
  if (event === 'expire' && !isOver(order, nowMs)) return stays('not_due', open);
  if (open !== null) return stays('payment_open', open);
  return goes(to, null);
}

function decideRefund(move: Move, { order, fence, paying }: OrderState, nowMs: number): Decision {
  const to = stepOf(order.status, 'refund');
  if (to === 'repeat' || to === 'refused') return stays(to, paying);
  if (isFenced(move, fence)) return stays('fenced', paying);
  if (paying === null || (move.refunds !== undefined && move.refunds !== paying.id)) return stays('refused', paying);
  const back = paying.state === 'refunding' || (paying.state === 'captured' && paying.provider === CONFIRM);
  if (!back) return stays('refused', paying);
  return goes(to, refunded(paying, nowMs));
}

/** The amount that is back only grows, whatever is told, how often, and in which order. */
function decideRefundPart(
  move: Move,
  part: NonNullable<Move['part']>,
  { order, fence, paying }: OrderState,
  stored: StoredRefund | null,
  nowMs: number,
): Decision {
  const to = stepOf(order.status, 'refund_part');
  if (to !== order.status || paying === null || move.refunds !== paying.id) return stays('refused', paying);
  if ('own' in part && stored?.state === 'done') return stays('repeat', paying);
  if ('told' in part && stored !== null) return stays('repeat', paying);
  if (isFenced(move, fence)) return stays('fenced', paying);
  if ('own' in part && stored?.state !== 'asked') return stays('refused', paying);
  const said = 'told' in part ? part.amount : part.total;
  const comparable = said === null || said.currency === paying.amount.currency;
  // For a refund that we asked for we know the amount ourselves.
  if (!comparable && !('own' in part)) return stays('amount_mismatch', paying);
  const total = totalOf(part, paying.refunded, stored, comparable);
  if (total >= paying.amount.amount) return stays('all_back', paying);
  if (total === paying.refunded) {
    // The webhook of our own refund came before its answer: the money is counted already.
    return 'own' in part ? { ...goes(to, paying), stores: false } : stays('repeat', paying);
  }
  return goes(to, { ...paying, refunded: total, updatedAtMs: nowMs });
}

function totalOf(
  part: NonNullable<Move['part']>,
  refunded: number,
  stored: StoredRefund | null,
  comparable: boolean,
): number {
  if ('told' in part) return refunded + part.amount.amount;
  if (!('own' in part)) return Math.max(refunded, part.total.amount);
  const { amount, backBefore } = stored!;
  // If only the shop gives money back, each part adds. A provider's total may lag behind the refund it has just made.
  if (part.total === null) return refunded + amount.amount;
  return Math.max(refunded, comparable ? part.total.amount : 0, backBefore + amount.amount);
}

/** Decides whether an attempt may be opened. */
export function decideOpening(
  wanted: NewAttempt,
  state: OrderState | null,
  named: PaymentAttempt | null,
  nowMs: number,
  declined: Declined = NONE_DECLINED,
): AttemptOpened {
  if (state === null) return { outcome: 'unknown' };
  const { order, open } = state;
  if (named !== null) {
    // The first answer was lost, and the call came again.
    const same = named.orderId === order.id && named.provider === wanted.provider && named.state === 'open';
    if (same) return { outcome: 'opened', order, attempt: named, fence: state.fence };
    throw new TerminalError('attempt_id_reused', `attempt ${wanted.id} is stored with other content`);
  }
  if (stepOf(order.status, 'pay') !== 'paid' || isOver(order, nowMs)) return { outcome: 'not_payable', order };
  if (isFenced(wanted, state.fence)) return { outcome: 'fenced', order };
  if (open !== null) return { outcome: 'payment_open', order, attempt: open, ageMs: nowMs - open.createdAtMs };
  if (declined.order >= DECLINED_MAX.order || declined.buyer >= DECLINED_MAX.buyer)
    return { outcome: 'blocked', order };
  if (declined.buyer + declined.open >= DECLINED_MAX.buyer) return { outcome: 'too_many_open', order };
  const attempt: PaymentAttempt = {
    id: wanted.id,
    orderId: order.id,
    provider: wanted.provider,
    state: 'open',
    pays: false,
    amount: order.amount,
    refunded: 0,
    reference: null,
    error: null,
    nextAtMs: Math.min(nowMs + wanted.askAfterMs, order.expiresAtMs ?? Number.POSITIVE_INFINITY),
    tries: 0,
    createdAtMs: nowMs,
    updatedAtMs: nowMs,
  };
  const fence = wanted.fence === null ? state.fence : BigInt(wanted.fence);
  return { outcome: 'opened', order, attempt, fence };
}

function stays(outcome: Moved['outcome'], attempt: PaymentAttempt | null): Decision {
  return { outcome, to: null, attempt, stores: false, revives: null };
}

function goes(to: OrderStatus, attempt: PaymentAttempt | null): Decision {
  return { outcome: 'moved', to, attempt, stores: attempt !== null, revives: null };
}

export function isFenced({ fence }: { readonly fence: string | null }, row: bigint): boolean {
  return fence !== null && BigInt(fence) < row;
}

function isOver({ expiresAtMs }: OrderRecord, nowMs: number): boolean {
  return expiresAtMs !== null && expiresAtMs <= nowMs;
}

function isSame(a: Money, b: Money): boolean {
  return a.amount === b.amount && a.currency === b.currency;
}

function hasMoney({ state }: PaymentAttempt): boolean {
  return state === 'captured' || state === 'late' || state === 'refunding' || state === 'refunded';
}

function captured(attempt: PaymentAttempt, nowMs: number): PaymentAttempt {
  return { ...attempt, state: 'captured', pays: true, error: null, nextAtMs: null, tries: 0, updatedAtMs: nowMs };
}

export function refunded(attempt: PaymentAttempt, nowMs: number): PaymentAttempt {
  const { amount } = attempt.amount;
  return { ...attempt, state: 'refunded', refunded: amount, error: null, nextAtMs: null, updatedAtMs: nowMs };
}
