import { createHash } from 'node:crypto';
import { invariant, messageOf, unavailable } from '../../base/errors.ts';
import type { Grouped } from '../../base/grouped.ts';
import type { IdSequence } from '../../base/ids.ts';
import type { Runtime } from '../../base/runtime.ts';
import { within } from '../../base/timers.ts';
import type {
  AttemptEnd,
  AttemptOpened,
  Move,
  Moved,
  NewAttempt,
  Opened,
  OrderLedger,
  PaymentLedger,
} from '../../ledger/port.ts';
import { type Actor, actor } from '../../model/actor.ts';
import { unitsAt } from '../../model/life.ts';
import type { Money } from '../../model/money.ts';
import type { OrderRecord } from '../../model/order.ts';
import type { PartRefund, PaymentAttempt } from '../../model/payment.ts';
import type { ProviderNews, RefundResult } from '../../payments/port.ts';
import type { CheckedCapture, CheckedProvider, CheckedState } from './answers.ts';
import { OrderBusyError, type WithOrderLock } from './lock.ts';
import type { Reached } from './points.ts';
import type { Freed } from './releaser.ts';

export interface LifeDependencies {
  readonly runtime: Runtime;
  readonly ledger: PaymentLedger & OrderLedger;
  /** Moves and attempts, grouped into transactions. */
  readonly moves: Pick<Grouped<Move, Moved>, 'ask'>;
  readonly attempts: Pick<Grouped<NewAttempt, AttemptOpened>, 'ask'>;
  readonly withLock: WithOrderLock;
  /** Gives units back to the gate; resolves also when that has to wait. */
  release(freed: Freed): Promise<void>;
  readonly providers: ReadonlyMap<string, CheckedProvider>;
  readonly attemptIds: IdSequence;
  readonly auditIds: IdSequence;
  /** How long a buyer waits for the provider before the payment is left `pending`. */
  readonly answerWithinMs: number;
  readonly reached: Reached;
}

export type PayResult =
  | { readonly ok: true; readonly state: 'paid'; readonly order: OrderRecord; readonly attempt: PaymentAttempt | null }
  | {
      readonly ok: true;
      readonly state: 'pending';
      readonly order: OrderRecord;
      readonly attempt: PaymentAttempt;
      readonly redirectUrl: string | null;
    }
  | {
      readonly ok: false;
      readonly code: 'payment_failed';
      readonly order: OrderRecord;
      readonly reason: string;
    }
  | {
      readonly ok: false;
      readonly code: 'order_not_payable' | 'payment_in_progress' | 'payment_blocked' | 'amount_mismatch';
      readonly order: OrderRecord | null;
      /** Where there is more to say than the code does. */
      readonly detail?: string;
    }
  | { readonly ok: false; readonly code: 'not_found' | 'unknown_method' };

export type AroundPay<T> = (pay: () => Promise<PayResult>) => Promise<T>;

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

/** News as the provider has it now. */
type Told = Omit<ProviderNews, 'reference'> & {
  readonly reference: string | null;
  readonly voided?: true;
  readonly back?: Money;
};

/** What has become of an open attempt. */
export type Settled = 'paid' | 'closed' | 'open';

/** A second click waits for the first; longer than the first may take. */
const LOCK_WAIT_MS = 8000;
/** How long one question to the provider may take where nobody waits. */
const ASK_MS = 5000;
/** … where the provider itself waits for our answer. */
const NEWS_ASK_MS = 1000;
/** A pending payment that is younger may still be with the buyer's bank: a new attempt does not end it. */
const PENDING_MS = 30_000;
/** Should nobody have heard of its end, the provider is asked after so long, and then ever less often. */
export const ASK_AFTER_MS = 10_000;
const TRIES_MAX = 5;
/** Attempts that have no name yet, among which news may find theirs. An order can have any number; these are its newest. */
const NAMELESS_MAX = 50;
/** How far beyond an order's time its payment may still be waited for. */
const OVER_MS = 500;

/**
 * Pay, cancel, refund, and what the provider tells. Each goes lock → ledger → provider → ledger → gate, and is decided by
 * one conditional UPDATE of the ledger: whatever races, crashes or repeats, there is one capture and one end.
 *
 *   taking money   the attempt is committed, then the provider is called with the attempt's id as its key, then the order
 *                  moves. A process that dies in between leaves an open attempt, about which the provider is asked
 *                  (keepers.ts); while it is open, the order can neither expire nor be cancelled.
 *   giving back    the ledger commits, then the gate gets the units (releaser.ts).
 */
export class OrderLife {
  readonly #on: LifeDependencies;

  constructor(dependencies: LifeDependencies) {
    this.#on = dependencies;
  }

  // Pay

  /** `around` is run with the order's lock, and calls what pays: nobody else pays this order before it is done. */
  async pay<T = PayResult>(
    orderId: string,
    { method, token }: { method: string; token: string | null },
    by: Actor,
    around: AroundPay<PayResult | T> = (pay) => pay(),
  ): Promise<PayResult | T> {
    const provider = this.#on.providers.get(method);
    if (provider === undefined) return { ok: false, code: 'unknown_method' };
    try {
      return await this.#on.withLock(orderId, LOCK_WAIT_MS, async (fence) => {
        this.#on.reached('pay:locked');
        return await around(() => this.#pay(orderId, provider, token, by, fence));
      });
    } catch (error) {
      if (error instanceof OrderBusyError) return { ok: false, code: 'payment_in_progress', order: null };
      throw error;
    }
  }

  async #pay(
    orderId: string,
    provider: CheckedProvider,
    token: string | null,
    by: Actor,
    fence: string | null,
  ): Promise<PayResult> {
    const { attempts, attemptIds, reached } = this.#on;
    for (let tries = 1; ; tries++) {
      const opened = await attempts.ask({
        id: await attemptIds.next(),
        orderId,
        provider: provider.name,
        fence,
        by,
        askAfterMs: ASK_AFTER_MS,
      });
      switch (opened.outcome) {
        case 'unknown':
          return { ok: false, code: 'not_found' };
        case 'fenced':
          return { ok: false, code: 'payment_in_progress', order: opened.order };
        case 'too_many_open': {
          // They may end well; if not, it is blocked.
          const detail = 'too many payments of this buyer are under way: wait for their ends';
          return { ok: false, code: 'payment_in_progress', order: opened.order, detail };
        }
        case 'blocked':
          return { ok: false, code: 'payment_blocked', order: opened.order };
        case 'not_payable': {
          const { order } = opened;
          if (order.status !== 'paid') return { ok: false, code: 'order_not_payable', order };
          return { ok: true, state: 'paid', order, attempt: await this.#paidWith(orderId) };
        }
        case 'payment_open': {
          const { attempt, order } = opened;
          const young = opened.ageMs < PENDING_MS;
          const settled = await this.settle(attempt, fence, by, !young);
          if (settled === 'open' || tries === TRIES_MAX) return { ok: false, code: 'payment_in_progress', order };
          continue;
        }
        case 'opened':
          reached('pay:attempt-open');
          return await this.#capture(opened, provider, token, by, fence);
      }
    }
  }

  async #capture(
    opened: Opened,
    provider: CheckedProvider,
    token: string | null,
    by: Actor,
    fence: string | null,
  ): Promise<PayResult> {
    const { runtime, ledger, answerWithinMs, reached } = this.#on;
    const { order, attempt } = opened;
    const openedMs = runtime.clock.monotonic();
    const request = { attemptId: attempt.id, orderId: order.id, buyer: order.buyer, amount: order.amount, token };
    let result: CheckedCapture | null;
    try {
      // Not beyond the order's time: whoever ends it then needs its lock.
      const leftMs = (order.expiresAtMs ?? Infinity) - attempt.createdAtMs + OVER_MS;
      const waitMs = Math.min(answerWithinMs, Math.max(leftMs, OVER_MS));
      result = await within(runtime.timers, provider.capture(request), waitMs);
    } catch (error) {
      // Whether it has the money, only the provider knows; it will be asked.
      runtime.log.warn({ err: error, orderId: order.id, attemptId: attempt.id }, 'a payment’s outcome is unknown');
      return await this.#pending(order, attempt, null);
    }
    if (result === null) return await this.#pending(order, attempt, null);
    reached('pay:provider-answered');
    switch (result.state) {
      case 'pending': {
        const { reference, redirectUrl } = result;
        // Its news will be known by it.
        if (reference !== null) await ledger.nameAttempt(attempt.id, reference);
        return await this.#pending(order, attempt, redirectUrl);
      }
      case 'declined': {
        const { reference, reason } = result;
        const closed = await this.#close(attempt, { state: 'failed', error: reason, reference }, by);
        // Its webhook was quicker, and said otherwise.
        if (closed?.state === 'captured') return await this.#asItIs(order.id);
        return { ok: false, code: 'payment_failed', order, reason };
      }
      case 'captured': {
        const { reference, amount } = result;
        const money = { capture: attempt.id, reference, amount };
        const nowMs = attempt.createdAtMs + Math.floor(runtime.clock.monotonic() - openedMs);
        const moved = await this.#move(order.id, 'pay', by, fence, { money, believed: { ...opened, nowMs } });
        reached('pay:committed');
        return this.#payResult(moved);
      }
    }
  }

  /** Unless somebody else has heard of its end meanwhile. */
  async #pending(order: OrderRecord, attempt: PaymentAttempt, redirectUrl: string | null): Promise<PayResult> {
    const now = (await this.#on.ledger.getAttempt(attempt.id)) ?? attempt;
    if (now.state === 'open') return { ok: true, state: 'pending', order, attempt: now, redirectUrl };
    if (now.state === 'failed') {
      return { ok: false, code: 'payment_failed', order, reason: now.error ?? 'the provider declined' };
    }
    return await this.#asItIs(order.id);
  }

  #payResult({ outcome, order, attempt }: Moved): PayResult {
    switch (outcome) {
      case 'moved':
      case 'repeat':
        if (order!.status === 'paid') return { ok: true, state: 'paid', order: order!, attempt };
        return { ok: false, code: 'order_not_payable', order };
      case 'amount_mismatch':
        return { ok: false, code: 'amount_mismatch', order };
      case 'fenced':
        return { ok: false, code: 'payment_in_progress', order };
      case 'unknown':
        return { ok: false, code: 'not_found' };
      default:
        return { ok: false, code: 'order_not_payable', order };
    }
  }

  async #asItIs(orderId: string): Promise<PayResult> {
    const order = await this.#on.ledger.getOrder(orderId);
    if (order?.status === 'paid') {
      return { ok: true, state: 'paid', order, attempt: await this.#paidWith(orderId) };
    }
    return { ok: false, code: 'order_not_payable', order };
  }

  async #paidWith(orderId: string): Promise<PaymentAttempt | null> {
    return (await this.#on.ledger.lastAttempts([orderId])).get(orderId) ?? null;
  }

  /** The shop itself took the money. */
  async confirm(orderId: string, reference: string, amount: Money, by: Actor): Promise<PayResult> {
    try {
      return await this.#on.withLock(orderId, LOCK_WAIT_MS, async (fence) => {
        this.#on.reached('pay:locked');
        const attemptId = await this.#on.attemptIds.next();
        for (let tries = 1; ; tries++) {
          const moved = await this.#money(orderId, { taken: reference, attemptId, amount }, by, fence);
          this.#on.reached('pay:committed');
          if (moved.outcome !== 'payment_open' || tries === TRIES_MAX) return this.#payResult(moved);
          const settled = await this.settle(moved.attempt!, fence, by, true);
          if (settled === 'open') return { ok: false, code: 'payment_in_progress', order: moved.order };
        }
      });
    } catch (error) {
      if (error instanceof OrderBusyError) return { ok: false, code: 'payment_in_progress', order: null };
      throw error;
    }
  }

  // Cancel

  async cancel(orderId: string, by: Actor): Promise<EndResult> {
    const { withLock, reached } = this.#on;
    try {
      return await withLock(orderId, LOCK_WAIT_MS, async (fence) => {
        reached('cancel:locked');
        for (let tries = 1; ; tries++) {
          const moved = await this.#move(orderId, 'cancel', by, fence);
          const { outcome, order, attempt } = moved;
          if (outcome === 'moved' || outcome === 'repeat') {
            reached('cancel:committed');
            return { ok: true, order: order!, attempt };
          }
          if (outcome === 'unknown') return { ok: false, code: 'not_found' };
          if (outcome === 'payment_open' && tries < TRIES_MAX) {
            // The provider first: what it has, or will have, must be known before the unit is anybody's.
            if ((await this.settle(attempt!, fence, by, true)) !== 'open') continue;
          }
          const code = outcome === 'payment_open' ? 'payment_in_progress' : 'order_not_cancellable';
          return { ok: false, code, order };
        }
      });
    } catch (error) {
      if (error instanceof OrderBusyError) return { ok: false, code: 'payment_in_progress', order: null };
      throw error;
    }
  }

  // Refund

  /**
   * Without `amount`, or with all that is left: the money first, then the goods: a unit is free when its money is back. With
   * less the order stays paid. The intention is committed before the provider is called; a keeper goes on with it.
   */
  async refund(
    orderId: string,
    by: Actor,
    { amount = null, madeWith = null }: { amount?: Money | null; madeWith?: string | null } = {},
  ): Promise<EndResult> {
    return await this.#on
      .withLock(orderId, LOCK_WAIT_MS, async (fence): Promise<EndResult> => {
        this.#on.reached('refund:locked');
        for (let tries = 1; tries <= TRIES_MAX; tries++) {
          const ended = await this.#refund(orderId, by, fence, amount, madeWith);
          if (ended !== 'again') return ended;
        }
        throw unavailable('other refunds of this order are under way');
      })
      .catch((error: unknown) => {
        if (error instanceof OrderBusyError) throw unavailable(error.message);
        throw error;
      });
  }

  /** `again`: another refund stood in the way, and is done. */
  async #refund(
    orderId: string,
    by: Actor,
    fence: string | null,
    amount: Money | null,
    madeWith: string | null,
  ): Promise<EndResult | 'again'> {
    const { ledger, auditIds, reached } = this.#on;
    const order = await ledger.getOrder(orderId);
    if (order === null) return { ok: false, code: 'not_found' };
    const last = await this.#paidWith(orderId);
    const refusal = { ok: false, code: 'order_not_refundable', order } as const;
    if (!last?.pays) return refusal;
    if (amount !== null) {
      const asked = await this.#askForPart(order, last, amount, madeWith, by, fence);
      if (asked !== 'all') return asked;
    }
    if (order.status === 'refunded') return { ok: true, order, attempt: last };
    if (order.status !== 'paid') return refusal;
    let attempt = last;
    if (last.state === 'captured') attempt = (await ledger.startRefund(last.id, by, await auditIds.next()))!;
    if (attempt.state === 'captured') {
      // A part is on its way: what is left is known when it is done.
      const part = await ledger.refundUnderWay(attempt.id);
      if (part !== null) await this.#finishOther(part, by, fence);
      return 'again';
    }
    reached('refund:started');
    return await this.giveBack(attempt, by, fence);
  }

  /** `all`: it is all that is left, and the order goes with it. */
  async #askForPart(
    order: OrderRecord,
    paidWith: PaymentAttempt,
    amount: Money,
    madeWith: string | null,
    by: Actor,
    fence: string | null,
  ): Promise<EndResult | 'again' | 'all'> {
    const { ledger, attemptIds, auditIds, reached } = this.#on;
    const isPart = amount.amount < paidWith.amount.amount - paidWith.refunded;
    if (isPart && !this.#canRefundParts(paidWith.provider)) {
      const detail = `the payment provider ${paidWith.provider} refunds whole payments only`;
      return { ok: false, code: 'order_not_refundable', order, detail };
    }
    const asked = await ledger.askRefund({
      id: await attemptIds.next(),
      attemptId: paidWith.id,
      amount,
      madeWith,
      by,
      auditId: await auditIds.next(),
    });
    switch (asked.outcome) {
      case 'all':
        return 'all';
      case 'asked':
        reached('refund:started');
        return await this.giveBackPart(asked.refund, by, fence);
      case 'repeat':
        if (asked.refund.state === 'asked') return await this.giveBackPart(asked.refund, by, fence);
        if (asked.refund.state === 'done') return { ok: true, order, attempt: paidWith };
        // It was all that was left; or the provider has refused it for good.
        if (asked.refund.error === null || order.status === 'refunded') return 'all';
        return { ok: false, code: 'order_not_refundable', order, detail: asked.refund.error };
      case 'under_way': {
        const { refund } = asked;
        // Whoever did not get an answer and has no key asks again: that must not be a second refund.
        const same = madeWith === null && refund.madeWith === null && refund.amount.amount === amount.amount;
        if (same) return await this.giveBackPart(refund, by, fence);
        await this.#finishOther(refund, by, fence);
        return 'again';
      }
      case 'key_reused':
        return { ok: false, code: 'idempotency_key_reused', order };
      case 'amount_mismatch':
        return { ok: false, code: 'amount_mismatch', order };
      case 'refused':
        return { ok: false, code: 'order_not_refundable', order };
    }
  }

  /** What stands in the way of another refund. While it cannot be done, nothing of the other one is stored: say so. */
  async #finishOther(part: PartRefund, by: Actor, fence: string | null): Promise<void> {
    try {
      await this.giveBackPart(part, by, fence);
    } catch (error) {
      throw unavailable(
        'another refund of this order is under way; nothing of this one is stored: send it again',
        error,
      );
    }
  }

  #canRefundParts(provider: string): boolean {
    return provider === 'confirm' || this.#on.providers.get(provider)?.partialRefunds === true;
  }

  /** Of a paid order whose payment is `refunding`. Throws when the provider cannot now; a keeper goes on. */
  async giveBack(attempt: PaymentAttempt, by: Actor, fence: string | null): Promise<EndResult> {
    const { reached } = this.#on;
    await this.refundAtProvider(attempt);
    reached('refund:provider-answered');
    const moved = await this.#move(attempt.orderId, 'refund', by, fence, { refunds: attempt.id });
    reached('refund:committed');
    return endOf(moved);
  }

  /** Of a refund that is `asked`. Throws unless it is done, or never will be; a keeper goes on. */
  async giveBackPart(refund: PartRefund, by: Actor, fence: string | null): Promise<EndResult> {
    const ended = await this.#giveBackPart(refund, by, fence);
    if (ended.ok || (await this.#on.ledger.getRefund(refund.id))?.state !== 'asked') return ended;
    throw unavailable(`the refund cannot be taken in (${ended.code}); it is asked again`);
  }

  async #giveBackPart(refund: PartRefund, by: Actor, fence: string | null): Promise<EndResult> {
    const { ledger, auditIds, reached } = this.#on;
    const attempt = await ledger.getAttempt(refund.attemptId);
    invariant(attempt !== null, `refund ${refund.id} is of no payment`);
    if (attempt.state === 'refunding') throw unavailable('all of the money of this order is on its way back');
    if (attempt.state !== 'captured') {
      return { ok: false, code: 'order_not_refundable', order: await ledger.getOrder(refund.orderId) };
    }
    const done = await this.#refundOnce(attempt, refund.id, refund.amount);
    if ('refused' in done) {
      await ledger.voidRefund(refund.id, done.refused, by, await auditIds.next());
      const order = await ledger.getOrder(refund.orderId);
      return { ok: false, code: 'order_not_refundable', order, detail: done.refused };
    }
    reached('refund:provider-answered');
    const total = attempt.provider === 'confirm' ? null : await this.#backInAll(attempt);
    const part = { own: refund.id, total, reference: done.reference };
    let moved = await this.#part(attempt, part, by, fence);
    // The money has gone: should the lock have passed on meanwhile, the conditional UPDATE alone decides.
    if (moved.outcome === 'fenced') moved = await this.#part(attempt, part, by, null);
    reached('refund:committed');
    return endOf(moved);
  }

  /**
   * Resolves when the provider has taken on to send back what is left. The key says how much was back before: with another
   * amount it is another refund.
   */
  async refundAtProvider(attempt: PaymentAttempt): Promise<{ reference: string | null }> {
    const { id, amount, refunded, pays } = attempt;
    const left = { ...amount, amount: amount.amount - refunded };
    const done = await this.#refundOnce(attempt, refunded === 0 ? id : `${id}-${refunded}`, left);
    const refused = 'refused' in done ? done.refused : null;
    // Of money that was late the amount is what was told, and need not be what came.
    const sure = pays || !this.#on.providers.get(attempt.provider)?.partialRefunds;
    if (!('refused' in done) && sure) return done;
    // Somebody may also have given a part of it back meanwhile: the provider knows what is left.
    const said = await this.#ask(attempt, ASK_MS);
    if (said.state === 'refunded') return 'refused' in done ? { reference: null } : done;
    if (said.state === 'captured') {
      const back = said.refunded?.amount ?? 0;
      const rest = { ...said.amount, amount: said.amount.amount - back };
      if (refused === null || rest.amount !== left.amount || rest.currency !== left.currency) {
        const more = await this.#refundOnce(attempt, `${id}-${back}-${rest.amount}`, rest);
        if (!('refused' in more)) return more;
      }
    }
    throw unavailable(`the payment provider does not refund all of it (${refused ?? said.state}); it is asked again`);
  }

  /** Money that the shop took itself, the shop gives back itself. */
  async #refundOnce(attempt: PaymentAttempt, refundId: string, amount: Money): Promise<RefundResult> {
    const { providers, runtime } = this.#on;
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
   * How much of a payment is back, as its provider has it: by it every refund is counted once, whoever asked for it, however
   * often and in whichever order it is told.
   */
  async #backInAll(attempt: PaymentAttempt, withinMs = ASK_MS): Promise<Money> {
    const { amount } = attempt;
    const said = await this.#ask(attempt, withinMs);
    if (said.state === 'refunded') return amount;
    return (said.state === 'captured' ? said.refunded : undefined) ?? { ...amount, amount: 0 };
  }

  async #ask({ id, provider }: PaymentAttempt, withinMs: number): Promise<CheckedState> {
    const asked = this.#on.providers.get(provider)!;
    const said = await within(this.#on.runtime.timers, asked.query(id), withinMs).catch(() => null);
    if (said === null) throw unavailable('the payment provider cannot say how much is refunded; it is asked again');
    return said;
  }

  /** A part of a paid order's money is back; if it was the last one, the order goes with it. */
  async #part(
    attempt: PaymentAttempt,
    part: NonNullable<Move['part']>,
    by: Actor,
    fence: string | null,
  ): Promise<Moved> {
    const moved = await this.#move(attempt.orderId, 'refund_part', by, fence, { refunds: attempt.id, part });
    return moved.outcome === 'all_back' ? await this.#allBack(attempt, by, fence) : moved;
  }

  async #allBack(attempt: PaymentAttempt, by: Actor, fence: string | null): Promise<Moved> {
    await this.#on.ledger.startRefund(attempt.id, by, await this.#on.auditIds.next(), true);
    return await this.#move(attempt.orderId, 'refund', by, fence, { refunds: attempt.id });
  }

  // What the provider says

  /**
   * Asks the provider what has become of an attempt that is open or in doubt, and does what follows. With `give up`, what is
   * not captured is voided. `open`: it cannot be said yet.
   */
  async settle(attempt: PaymentAttempt, fence: string | null, by: Actor, giveUp: boolean): Promise<Settled> {
    const { providers, runtime, reached } = this.#on;
    const provider = providers.get(attempt.provider);
    if (provider === undefined) return 'open';
    let said: CheckedState | null;
    try {
      said = await within(runtime.timers, provider.query(attempt.id), ASK_MS);
      if (said?.state === 'pending' && said.reference !== null && attempt.reference === null) {
        await this.#on.ledger.nameAttempt(attempt.id, said.reference);
      }
      if (giveUp && (said?.state === 'pending' || said?.state === 'unknown')) {
        said = await within(runtime.timers, provider.void(attempt.id), ASK_MS);
      }
    } catch (error) {
      runtime.log.debug({ err: error, attemptId: attempt.id }, 'the payment provider cannot say');
      return 'open';
    }
    reached('settle:asked');
    const settled = await this.#follow(attempt, said, by, fence);
    reached('settle:committed');
    return settled;
  }

  async #follow(attempt: PaymentAttempt, said: CheckedState | null, by: Actor, fence: string | null): Promise<Settled> {
    const { ledger } = this.#on;
    switch (said?.state) {
      case 'captured': {
        const { reference, amount, refunded: back } = said;
        const money = { capture: attempt.id, reference, amount, ...(back && { back }) };
        const moved = await this.#money(attempt.orderId, money, by, fence);
        // Refused: the provider gives two payments one name. Somebody must look; until then it is open.
        if (moved.outcome === 'fenced' || moved.outcome === 'refused') return 'open';
        // It came, and a part of it has gone back before we heard of it.
        if (moved.order?.status === 'paid' && back !== undefined && back.amount > 0) {
          await this.#part(attempt, { total: back }, by, null);
        }
        return moved.order?.status === 'paid' ? 'paid' : 'closed';
      }
      case 'declined':
        if (attempt.state === 'open') {
          await this.#close(attempt, { state: 'failed', error: said.reason, reference: said.reference }, by);
        } else await ledger.clearDoubt(attempt);
        return 'closed';
      case 'voided':
      case 'refunded':
        if (attempt.state === 'open') await this.#close(attempt, { state: 'voided', error: null }, by);
        else await ledger.clearDoubt(attempt);
        return 'closed';
      default:
        return 'open';
    }
  }

  /** Returns false when it is about nothing that we know. */
  async heard(news: ProviderNews, origin: string | null = null): Promise<boolean> {
    const { ledger, withLock, reached, runtime } = this.#on;
    const by = actor('provider', news.provider, origin);
    const found = await this.#attemptOf(news);
    if (found === null) return false;
    const act = async (fence: string | null, tries = TRIES_MAX): Promise<void> => {
      reached('webhook:locked');
      const attempt = (await ledger.getAttempt(found.id)) ?? found;
      const latest = await this.#latest(news, attempt);
      if (latest === null) {
        // What somebody has closed was closed for a reason: old news alone do not open it again. It is asked about until it is
        // known.
        if (news.type === 'payment.captured' || (news.type === 'payment.refunded' && !isWhole(news, attempt))) {
          await ledger.doubtAttempt(attempt.id, 'the provider told of its money, and cannot be asked');
        }
        return;
      }
      // Somebody else has heard of it while we asked: what we know is of before.
      const now = await ledger.getAttempt(found.id);
      if (now !== null && now.state !== attempt.state && tries > 1) return await act(fence, tries - 1);
      // A provider may tell it once: should the lock have passed on meanwhile, the conditional UPDATE alone decides.
      const moved = await this.#act(latest, attempt, by, fence);
      if (moved?.outcome === 'fenced') await this.#act(latest, attempt, by, null);
      // A part that is back tells that the money came. Now that this is known, the part is taken in.
      if (latest.type !== news.type && news.type === 'payment.refunded' && !isWhole(news, attempt)) {
        const known = await ledger.getAttempt(found.id);
        if (known !== null) await this.#partTold(news, known, by, null);
      }
      reached('webhook:committed');
    };
    try {
      // Not for as long as a buyer waits: the call whose lock it is may be waiting for this very news.
      await withLock(found.orderId, 250, act);
    } catch (error) {
      if (!(error instanceof OrderBusyError)) throw error;
      runtime.log.debug({ orderId: found.orderId }, 'news of a payment are taken in while the order is worked on');
      await act(null);
    }
    return true;
  }

  /**
   * News come in any order: of a payment whose end we do not know yet they are a reason to ask. Where the provider cannot say
   * (or not more than that it is under way), the news of an open one count as they are; null: those of a closed one do not.
   */
  async #latest(news: ProviderNews, attempt: PaymentAttempt): Promise<Told | null> {
    const provider = this.#on.providers.get(news.provider);
    if (provider === undefined || !['open', 'failed', 'voided'].includes(attempt.state)) return news;
    const said = await within(this.#on.runtime.timers, provider.query(attempt.id), NEWS_ASK_MS).catch(() => null);
    const closed = attempt.state !== 'open';
    if (closed && (said === null || said.state === 'pending' || said.state === 'unknown')) return null;
    switch (said?.state) {
      case 'captured': {
        const back = said.refunded && { back: said.refunded };
        // What it told of a capture is held against the order, too.
        if (news.type === 'payment.captured') return { ...news, ...back };
        return { ...news, ...back, type: 'payment.captured', reference: said.reference, amount: said.amount };
      }
      case 'declined':
        return { ...news, type: 'payment.failed' };
      case 'refunded':
        return { ...news, type: 'payment.refunded' };
      case 'voided':
        // It will never have the money, whatever it told before.
        return closed || news.type === 'payment.failed' ? { ...news, type: 'payment.failed', voided: true } : news;
      default:
        return news;
    }
  }

  async #act(news: Told, attempt: PaymentAttempt, by: Actor, fence: string | null): Promise<Moved | null> {
    const { ledger } = this.#on;
    const { reference, amount, back } = news;
    switch (news.type) {
      case 'payment.captured': {
        const money = { capture: attempt.id, reference, amount, ...(back && { back }) };
        return await this.#money(attempt.orderId, money, by, fence);
      }
      case 'payment.failed':
        // What was given up was not declined: it does not count against the buyer.
        if (news.voided) await this.#close(attempt, { state: 'voided', error: null, reference }, by);
        else await this.#close(attempt, { state: 'failed', error: 'the provider declined', reference }, by);
        return null;
      case 'payment.refunded':
        if (!isWhole(news, attempt)) return await this.#partTold(news, attempt, by, fence);
        // Also without our asking (a chargeback): the goods must not stay without their money.
        if ((attempt.pays && attempt.state === 'captured') || attempt.state === 'late') {
          await ledger.startRefund(attempt.id, by, await this.#on.auditIds.next(), true);
        } else if (attempt.state !== 'refunding') {
          // It came and went before we had heard of it.
          await this.#close(attempt, { state: 'voided', error: 'refunded by the provider', reference }, by);
          return null;
        }
        await ledger.finishRefund(attempt.id, reference);
        return await this.#move(attempt.orderId, 'refund', by, fence, { refunds: attempt.id });
    }
  }

  /**
   * A provider tells of a part that is back, by whomever. Where it can say how much is back in all, it is asked, and the news
   * are only a reason to: which refund they are about, and whether it is one of ours, need not be known. Where it cannot, each
   * counts once, by its id; such a provider never gives back a part that we asked for.
   */
  async #partTold(
    news: Omit<ProviderNews, 'reference'>,
    attempt: PaymentAttempt,
    by: Actor,
    fence: string | null,
  ): Promise<Moved | null> {
    const { ledger, providers, auditIds, attemptIds } = this.#on;
    const { id, state, pays } = attempt;
    // The money is known to have come before a part of it can be known to be back; keepers ask about it.
    if (state === 'open') throw unavailable('the payment provider cannot say whether this payment was captured');
    if (state !== 'captured' && state !== 'late' && state !== 'refunding') return null;
    const total = providers.get(attempt.provider)?.partialRefunds ? await this.#backInAll(attempt, NEWS_ASK_MS) : null;
    if (pays) {
      if (total !== null) return await this.#part(attempt, { total }, by, fence);
      const told = digestOf(news);
      return await this.#part(attempt, { told, id: await attemptIds.next(), amount: news.amount }, by, fence);
    }
    // It cannot pay for anything any more: the rest goes back, too.
    if (state === 'late') await ledger.startRefund(id, by, await auditIds.next());
    if (total !== null && total.amount >= attempt.amount.amount) await ledger.finishRefund(id, null);
    else if (total !== null) await ledger.noteRefunded(id, total, by, await auditIds.next());
    return null;
  }

  /** By the provider's reference. One that has none yet may be it; which of several, only the provider knows. */
  async #attemptOf({ provider, reference, orderId }: ProviderNews): Promise<PaymentAttempt | null> {
    const { ledger } = this.#on;
    const known = await ledger.findAttempt(provider, reference);
    if (known !== null) return known;
    const nameless = (await ledger.attemptsOf(orderId, NAMELESS_MAX)).filter(
      (attempt) => attempt.provider === provider && attempt.reference === null,
    );
    if (nameless.length <= 1) return nameless[0] ?? null;
    const asked = this.#on.providers.get(provider);
    if (asked === undefined) return null;
    for (const attempt of nameless) {
      const said = await within(this.#on.runtime.timers, asked.query(attempt.id), ASK_MS).catch(() => null);
      // Whoever tells it tells it again.
      if (said === null) throw unavailable('the payment provider cannot say which payment this is about');
      if ('reference' in said && said.reference === reference) return attempt;
    }
    return null;
  }

  async #close({ id }: PaymentAttempt, end: AttemptEnd, by: Actor): Promise<PaymentAttempt | null> {
    return await this.#on.ledger.closeAttempt(id, end, by, await this.#on.auditIds.next());
  }

  // Moves

  async #money(orderId: string, money: Move['money'], by: Actor, fence: string | null): Promise<Moved> {
    return await this.#move(orderId, 'pay', by, fence, { money: money! });
  }

  async #move(
    orderId: string,
    event: Move['event'],
    by: Actor,
    fence: string | null,
    more: Pick<Move, 'money' | 'revives' | 'refunds' | 'part' | 'believed'> = {},
  ): Promise<Moved> {
    const { moves, auditIds, release } = this.#on;
    const moved = await moves.ask({ orderId, event, by, fence, auditId: await auditIds.next(), ...more });
    const { outcome, order } = moved;
    // The ledger first, then the gate; and both before the order's lock is released.
    if (outcome === 'moved' && unitsAt(order!.status) === null) {
      await release({ orderId: order!.id, saleId: order!.saleId, buyer: order!.buyer });
    }
    return moved;
  }

  /** For keepers: an expired order's end, or late money that found a new order. */
  move(orderId: string, event: Move['event'], by: Actor, more: Pick<Move, 'money' | 'revives'> = {}): Promise<Moved> {
    return this.#move(orderId, event, by, null, more);
  }
}

function endOf({ outcome, order, attempt }: Moved): EndResult {
  if (outcome === 'moved' || outcome === 'repeat') return { ok: true, order: order!, attempt };
  return { ok: false, code: 'order_not_refundable', order };
}

function isWhole({ amount }: Pick<ProviderNews, 'amount'>, { amount: came }: PaymentAttempt): boolean {
  return amount.currency === came.currency && amount.amount >= came.amount;
}

function digestOf({ provider, id }: Pick<ProviderNews, 'provider' | 'id'>): string {
  return createHash('sha256')
    .update(JSON.stringify(['news', provider, id]))
    .digest('hex');
}
