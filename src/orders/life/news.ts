import { unavailable } from '../../base/errors.ts';
import { digestOf } from '../../base/idempotency.ts';
import { within } from '../../base/timers.ts';
import type { Moved } from '../../ledger/port.ts';
import { actor } from '../../model/actor.ts';
import type { Money } from '../../model/money.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import type { ProviderNews } from '../../payments/port.ts';
import { backInAll, takeInPart } from './give-back.ts';
import { type Acting, ASK_MS, type Life, TRIES_MAX } from './life.ts';
import { BUSY } from './lock.ts';
import { closeAttempt, move } from './move.ts';

/** News as the provider has it now. */
type Told = Omit<ProviderNews, 'reference'> & {
  readonly reference: string | null;
  readonly voided?: true;
  readonly back?: Money;
};

/** Not as long as a buyer waits: the call that holds the lock may be waiting for this very news. */
const LOCK_WAIT_MS = 250;
/** How long one question may take while the provider itself waits for our answer. */
const ASK_SOON_MS = 1000;
/** Among so many attempts without a reference, an order's newest, news may find theirs. An order can have any number. */
const NAMELESS_MAX = 50;

/** Takes in what a provider tells. Returns false when it is about no payment that we know. */
export async function hear(life: Life, news: ProviderNews, origin: string | null = null): Promise<boolean> {
  const by = actor('provider', news.provider, origin);
  const found = await attemptOf(life, news);
  if (found === null) return false;
  const done = await life.lock.run(found.orderId, LOCK_WAIT_MS, (fence) => takeIn(life, news, found, { by, fence }));
  if (done === BUSY) {
    life.runtime.log.debug({ orderId: found.orderId }, 'news of a payment are taken in while the order is worked on');
    await takeIn(life, news, found, { by, fence: null });
  }
  return true;
}

async function takeIn(
  life: Life,
  news: ProviderNews,
  found: PaymentAttempt,
  acting: Acting,
  tries = TRIES_MAX,
): Promise<void> {
  const { ledger, reached } = life;
  const { by } = acting;
  reached('webhook:locked');
  const attempt = (await ledger.getAttempt(found.id)) ?? found;
  const latest = await latestOf(life, news, attempt);
  if (latest === null) {
    // The attempt was closed for a reason: old news alone do not open it again. The sweeper asks until it is known.
    if (news.type === 'payment.captured' || (news.type === 'payment.refunded' && !isWhole(news, attempt))) {
      await ledger.doubtAttempt(attempt.id, 'the provider told of its money, and cannot be asked');
    }
    return;
  }
  // Somebody else changed the attempt while we asked: what we know is outdated.
  const now = await ledger.getAttempt(found.id);
  if (now !== null && now.state !== attempt.state && tries > 1)
    return await takeIn(life, news, found, acting, tries - 1);
  // A provider may tell it only once: if the lock has passed on meanwhile, the conditional UPDATE alone decides.
  const moved = await act(life, latest, attempt, acting);
  if (moved?.outcome === 'fenced') await act(life, latest, attempt, { by, fence: null });
  // News of a part that is back mean that the money came. Now that this is known, the part is taken in.
  if (latest.type !== news.type && news.type === 'payment.refunded' && !isWhole(news, attempt)) {
    const known = await ledger.getAttempt(found.id);
    if (known !== null) await partTold(life, news, known, { by, fence: null });
  }
  reached('webhook:committed');
}

/**
 * News come in any order: while we do not know how a payment ended, they are a reason to ask. If the provider cannot say, or
 * only that the payment is pending, news of an open attempt count as they are, and news of a closed one do not (null).
 */
async function latestOf(life: Life, news: ProviderNews, attempt: PaymentAttempt): Promise<Told | null> {
  const provider = life.providers.get(news.provider);
  if (provider === undefined || !['open', 'failed', 'voided'].includes(attempt.state)) return news;
  const said = await within(life.runtime.timers, provider.query(attempt.id), ASK_SOON_MS).catch(() => null);
  const closed = attempt.state !== 'open';
  if (closed && (said === null || said.state === 'pending' || said.state === 'unknown')) return null;
  switch (said?.state) {
    case 'captured': {
      const back = said.refunded && { back: said.refunded };
      // The amount that was told of a capture is compared with the order, too.
      if (news.type === 'payment.captured') return { ...news, ...back };
      return { ...news, ...back, type: 'payment.captured', reference: said.reference, amount: said.amount };
    }
    case 'declined':
      return { ...news, type: 'payment.failed' };
    case 'refunded':
      return { ...news, type: 'payment.refunded' };
    case 'voided':
      // The provider will never have the money, whatever it told before.
      return closed || news.type === 'payment.failed' ? { ...news, type: 'payment.failed', voided: true } : news;
    default:
      return news;
  }
}

async function act(life: Life, news: Told, attempt: PaymentAttempt, acting: Acting): Promise<Moved | null> {
  const { ledger, auditIds } = life;
  const { by } = acting;
  const { reference, amount, back } = news;
  switch (news.type) {
    case 'payment.captured': {
      const money = { capture: attempt.id, reference, amount, ...(back && { back }) };
      return await move(life, attempt.orderId, 'pay', acting, { money });
    }
    case 'payment.failed':
      // A payment that was given up was not declined: it does not count against the buyer.
      if (news.voided) await closeAttempt(life, attempt, { state: 'voided', error: null, reference }, by);
      else await closeAttempt(life, attempt, { state: 'failed', error: 'the provider declined', reference }, by);
      return null;
    case 'payment.refunded':
      if (!isWhole(news, attempt)) return await partTold(life, news, attempt, acting);
      // Also when we did not ask for it (a chargeback): the goods must not stay without their money.
      if ((attempt.pays && attempt.state === 'captured') || attempt.state === 'late') {
        await ledger.startRefund(attempt.id, by, await auditIds.next(), true);
      } else if (attempt.state !== 'refunding') {
        // The money came and went before we had heard of it.
        await closeAttempt(life, attempt, { state: 'voided', error: 'refunded by the provider', reference }, by);
        return null;
      }
      await ledger.finishRefund(attempt.id, reference);
      return await move(life, attempt.orderId, 'refund', acting, { refunds: attempt.id });
  }
}

/**
 * A provider tells that a part is back, whoever asked for it. A provider that can say how much is back in all is asked: which
 * refund the news are about, and whether it is one of ours, need not be known. With another provider each of the news counts
 * once, by its id; through such a provider we never refund a part ourselves.
 */
async function partTold(
  life: Life,
  news: Omit<ProviderNews, 'reference'>,
  attempt: PaymentAttempt,
  acting: Acting,
): Promise<Moved | null> {
  const { ledger, providers, auditIds, attemptIds } = life;
  const { id, state, pays } = attempt;
  const { by } = acting;
  // It must be known that the money came before a part of it can be back; the sweeper asks about it.
  if (state === 'open') throw unavailable('the payment provider cannot say whether this payment was captured');
  if (state !== 'captured' && state !== 'late' && state !== 'refunding') return null;
  const total = providers.get(attempt.provider)?.partialRefunds ? await backInAll(life, attempt, ASK_SOON_MS) : null;
  if (pays) {
    if (total !== null) return await takeInPart(life, attempt, { total }, acting);
    const told = digestOf('news', news.provider, news.id);
    return await takeInPart(life, attempt, { told, id: await attemptIds.next(), amount: news.amount }, acting);
  }
  // This money cannot pay for anything any more: the rest goes back, too.
  if (state === 'late') await ledger.startRefund(id, by, await auditIds.next());
  if (total !== null && total.amount >= attempt.amount.amount) await ledger.finishRefund(id, null);
  else if (total !== null) await ledger.noteRefunded(id, total, by, await auditIds.next());
  return null;
}

/** By the provider's reference; else among the order's attempts without one: if there are several, the provider is asked. */
async function attemptOf(life: Life, { provider, reference, orderId }: ProviderNews): Promise<PaymentAttempt | null> {
  const { ledger, providers, runtime } = life;
  const known = await ledger.findAttempt(provider, reference);
  if (known !== null) return known;
  const nameless = (await ledger.attemptsOf(orderId, NAMELESS_MAX)).filter(
    (attempt) => attempt.provider === provider && attempt.reference === null,
  );
  if (nameless.length <= 1) return nameless[0] ?? null;
  const asked = providers.get(provider);
  if (asked === undefined) return null;
  for (const attempt of nameless) {
    const said = await within(runtime.timers, asked.query(attempt.id), ASK_MS).catch(() => null);
    // The provider tells it again later.
    if (said === null) throw unavailable('the payment provider cannot say which payment this is about');
    if ('reference' in said && said.reference === reference) return attempt;
  }
  return null;
}

function isWhole({ amount }: Pick<ProviderNews, 'amount'>, { amount: came }: PaymentAttempt): boolean {
  return amount.currency === came.currency && amount.amount >= came.amount;
}
