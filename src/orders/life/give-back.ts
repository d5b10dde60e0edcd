import { invariant, messageOf, unavailable } from '../../base/errors.ts';
import { within } from '../../base/timers.ts';
import type { Move, Moved } from '../../ledger/port.ts';
import type { Money } from '../../model/money.ts';
import type { PartRefund, PaymentAttempt } from '../../model/payment.ts';
import type { RefundResult } from '../../payments/port.ts';
import type { EndResult } from './cancel.ts';
import { type Acting, ASK_MS, type Life } from './life.ts';
import { move } from './move.ts';
import type { CheckedState } from './provider.ts';

/** Money on its way back: the provider is asked first, then the ledger takes in what has gone. */

/** Of a paid order whose payment is `refunding`. Throws when the provider cannot refund now; the sweeper tries again. */
export async function giveBack(life: Life, attempt: PaymentAttempt, acting: Acting): Promise<EndResult> {
  await refundAtProvider(life, attempt);
  life.reached('refund:provider-answered');
  const moved = await move(life, attempt.orderId, 'refund', acting, { refunds: attempt.id });
  life.reached('refund:committed');
  return endOf(moved);
}

/** Of a refund that is `asked`. Throws unless it is done or never will be; the sweeper tries again. */
export async function giveBackPart(life: Life, refund: PartRefund, acting: Acting): Promise<EndResult> {
  const ended = await tryPart(life, refund, acting);
  if (ended.ok || (await life.ledger.getRefund(refund.id))?.state !== 'asked') return ended;
  throw unavailable(`the refund cannot be taken in (${ended.code}); it is asked again`);
}

async function tryPart(life: Life, refund: PartRefund, acting: Acting): Promise<EndResult> {
  const { ledger, auditIds, reached } = life;
  const attempt = await ledger.getAttempt(refund.attemptId);
  invariant(attempt !== null, `refund ${refund.id} is of no payment`);
  if (attempt.state === 'refunding') throw unavailable('all of the money of this order is on its way back');
  if (attempt.state !== 'captured') {
    return { ok: false, code: 'order_not_refundable', order: await ledger.getOrder(refund.orderId) };
  }
  const done = await askToRefund(life, attempt, refund.id, refund.amount);
  if ('refused' in done) {
    await ledger.voidRefund(refund.id, done.refused, acting.by, await auditIds.next());
    const order = await ledger.getOrder(refund.orderId);
    return { ok: false, code: 'order_not_refundable', order, detail: done.refused };
  }
  reached('refund:provider-answered');
  const total = attempt.provider === 'confirm' ? null : await backInAll(life, attempt);
  const part = { own: refund.id, total, reference: done.reference };
  let moved = await takeInPart(life, attempt, part, acting);
  // The money has gone: if the lock has passed on meanwhile, the conditional UPDATE alone decides.
  if (moved.outcome === 'fenced') moved = await takeInPart(life, attempt, part, { ...acting, fence: null });
  reached('refund:committed');
  return endOf(moved);
}

/** A part of a paid order's money is back; if it was the last part, the order ends. */
export async function takeInPart(
  life: Life,
  attempt: PaymentAttempt,
  part: NonNullable<Move['part']>,
  acting: Acting,
): Promise<Moved> {
  const { id, orderId } = attempt;
  const moved = await move(life, orderId, 'refund_part', acting, { refunds: id, part });
  if (moved.outcome !== 'all_back') return moved;
  await life.ledger.startRefund(id, acting.by, await life.auditIds.next(), true);
  return await move(life, orderId, 'refund', acting, { refunds: id });
}

/**
 * Resolves when the provider has agreed to send back what is left. The key contains how much was back before: with another
 * amount it is another refund.
 */
export async function refundAtProvider(life: Life, attempt: PaymentAttempt): Promise<{ reference: string | null }> {
  const { id, amount, refunded, pays } = attempt;
  const left = { ...amount, amount: amount.amount - refunded };
  const done = await askToRefund(life, attempt, refunded === 0 ? id : `${id}-${refunded}`, left);
  const refused = 'refused' in done ? done.refused : null;
  // Of money that was late the amount is what was told, and need not be what came.
  const sure = pays || !life.providers.get(attempt.provider)?.partialRefunds;
  if (!('refused' in done) && sure) return done;
  // Somebody may also have given a part of it back meanwhile: the provider knows what is left.
  const said = await ask(life, attempt, ASK_MS);
  if (said.state === 'refunded') return 'refused' in done ? { reference: null } : done;
  if (said.state === 'captured') {
    const back = said.refunded?.amount ?? 0;
    const rest = { ...said.amount, amount: said.amount.amount - back };
    if (refused === null || rest.amount !== left.amount || rest.currency !== left.currency) {
      const more = await askToRefund(life, attempt, `${id}-${back}-${rest.amount}`, rest);
      if (!('refused' in more)) return more;
    }
  }
  throw unavailable(`the payment provider does not refund all of it (${refused ?? said.state}); it is asked again`);
}

/** Money that the shop took itself, the shop gives back itself. */
async function askToRefund(
  { providers, runtime }: Life,
  attempt: PaymentAttempt,
  refundId: string,
  amount: Money,
): Promise<RefundResult> {
  if (attempt.provider === 'confirm') return { reference: null };
  const provider = providers.get(attempt.provider);
  if (provider === undefined) throw unavailable(`the payment provider ${attempt.provider} is not set up`);
  const { id: attemptId, reference } = attempt;
  let done: RefundResult | null;
  try {
    done = await within(runtime.timers, provider.refund({ attemptId, reference, refundId, amount }), ASK_MS);
  } catch (error) {
    throw unavailable(`the payment provider cannot refund now (${messageOf(error)}); it is asked again`, error);
  }
  if (done === null) throw unavailable('the payment provider does not answer; it is asked again');
  return done;
}

/**
 * How much of a payment is back, as its provider says. Compared with that total, every refund counts once, whoever asked for
 * it, however often and in whichever order it is told.
 */
export async function backInAll(life: Life, attempt: PaymentAttempt, withinMs = ASK_MS): Promise<Money> {
  const { amount } = attempt;
  const said = await ask(life, attempt, withinMs);
  if (said.state === 'refunded') return amount;
  return (said.state === 'captured' ? said.refunded : undefined) ?? { ...amount, amount: 0 };
}

async function ask(
  { providers, runtime }: Life,
  { id, provider }: PaymentAttempt,
  withinMs: number,
): Promise<CheckedState> {
  const said = await within(runtime.timers, providers.get(provider)!.query(id), withinMs).catch(() => null);
  if (said === null) throw unavailable('the payment provider cannot say how much is refunded; it is asked again');
  return said;
}

function endOf({ outcome, order, attempt }: Moved): EndResult {
  if (outcome === 'moved' || outcome === 'repeat') return { ok: true, order: order!, attempt };
  return { ok: false, code: 'order_not_refundable', order };
}
