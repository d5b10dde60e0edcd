import { messageOf, RetryableError } from '../../base/errors.ts';
import type { IdSequence } from '../../base/ids.ts';
import type { Runtime } from '../../base/runtime.ts';
import { pages, type Round } from '../../base/sweep.ts';
import type { DueOrder, DueRefund, OrderLedger, PaymentLedger, Upkeep } from '../../ledger/port.ts';
import { actor } from '../../model/actor.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import type { PlaceRequest, PlaceResult } from '../place.ts';
import { type Due, Lanes, type ProviderWatch } from './lanes.ts';
import type { OrderLife } from './life.ts';
import { OrderBusyError, type WithOrderLock } from './lock.ts';
import type { Reached } from './points.ts';

export interface KeepersDependencies {
  readonly runtime: Runtime;
  readonly ledger: PaymentLedger & OrderLedger & Upkeep;
  readonly life: OrderLife;
  readonly watch: Pick<ProviderWatch, 'isSilent' | 'silentMs'>;
  readonly withLock: WithOrderLock;
  readonly auditIds: IdSequence;
  place(request: PlaceRequest): Promise<PlaceResult>;
  readonly reached: Reached;
}

export interface KeepersCounters {
  /** Orders whose time is over and whose unit stays held, since the provider does not say whether it has the money. */
  readonly stranded: number;
  /** Money without goods that is not back yet. */
  readonly owedMoney: number;
}

/** Over all that is due, to its end. */
interface Pass {
  /** The next one. */
  againAtMs: number;
}

const SWEEPER = actor('system', 'sweeper');
/** Orders, payments, and payments to count again, that are read at once. */
const DUE_MAX = 256;
const ATTEMPTS_MAX = 200;
const RECOUNT_MAX = 500;
/** Between two whole passes over what is due, so many times as long as one takes: reading has a tenth of the time. */
const PASS_SHARE = 10;
const RECOUNT_MS = 5000;
const LOCK_WAIT_MS = 1000;
/** Between two tries of the same. */
const AGAIN_MS_MIN = 1000;
const AGAIN_MS_MAX = 5 * 60_000;
/** Kept in the place of a text that the ledger refuses. */
const UNSTORABLE = 'what went wrong cannot be stored';
/** After so many tries, which is about twenty minutes, somebody must look. */
export const TRIES_ALERT = 12;

/**
 * What happens to orders without anybody's asking: their time is over, or their money is on its way. One process of the
 * cluster does it at a time; twice would do no harm, since every step is a conditional UPDATE or has the attempt's key.
 */
export class LifeKeepers {
  readonly #on: KeepersDependencies;
  /** Payments that did not settle at the last try, and why that matters. */
  readonly #unsettled = new Map<string, keyof KeepersCounters>();
  readonly #alerted = new Set<string>();
  readonly #lanes: Lanes<PaymentAttempt>;
  readonly #refundLanes: Lanes<DueRefund>;
  readonly #passes: { readonly payments: Pass; readonly refunds: Pass } = {
    payments: { againAtMs: 0 },
    refunds: { againAtMs: 0 },
  };
  #recountedMs = 0;
  /** Why the last step of a payment, or of a refund, could not be stored. */
  #failure: unknown = null;

  constructor(dependencies: KeepersDependencies) {
    this.#on = dependencies;
    this.#lanes = new Lanes(dependencies.watch, (attempt) => this.#lookAfter(attempt));
    this.#refundLanes = new Lanes(dependencies.watch, (refund) => this.#refundPart(refund));
  }

  get counters(): KeepersCounters {
    const counters = { stranded: 0, owedMoney: 0 };
    for (const kind of this.#unsettled.values()) counters[kind]++;
    return counters;
  }

  /**
   * Ends orders whose time is over, in one pass over all of them: those with an open payment stay as they are, however many
   * there are, and are looked after below.
   */
  async expire(signal?: AbortSignal): Promise<Round> {
    const { ledger, life, reached, runtime } = this.#on;
    const read = (limit: number, after?: DueOrder) => ledger.dueOrders(limit, after);
    let changed = 0;
    let failure: PromiseRejectedResult | undefined;
    for await (const due of pages<DueOrder>(runtime.timers, DUE_MAX, read, signal)) {
      reached('expire:found');
      // One transaction: they are moved in the same turn.
      const ready = due.filter(({ paying }) => !paying);
      const moved = await Promise.allSettled(ready.map(({ orderId }) => life.move(orderId, 'expire', SWEEPER)));
      reached('expire:committed');
      changed += moved.filter((end) => end.status === 'fulfilled' && end.value.outcome === 'moved').length;
      failure ??= moved.find((end) => end.status === 'rejected');
    }
    if (failure) throw failure.reason;
    return { changed, more: false };
  }

  /** Another process looks after them now. What is under way is finished. */
  forget(): void {
    this.#lanes.clear();
    this.#refundLanes.clear();
    this.#unsettled.clear();
    this.#alerted.clear();
  }

  /** Resolves when no payment is being looked after. */
  async idle(): Promise<void> {
    await Promise.all([this.#lanes.idle(), this.#refundLanes.idle()]);
  }

  /** A webhook, a second click or another process may have settled one of them meanwhile. */
  async #recount(signal?: AbortSignal): Promise<void> {
    const { ledger, runtime } = this.#on;
    const nowMs = runtime.clock.monotonic();
    if (this.#unsettled.size === 0 || nowMs - this.#recountedMs < RECOUNT_MS) return;
    this.#recountedMs = nowMs;
    const ids = [...this.#unsettled.keys()];
    const next = async (sizeMax: number) => ids.splice(0, sizeMax);
    for await (const some of pages(runtime.timers, RECOUNT_MAX, next, signal)) {
      const unfinished = await ledger.unfinishedAmong(some);
      for (const id of some) if (!unfinished.has(id)) this.#unsettled.delete(id);
    }
  }

  /**
   * Looks after payments that are open, late or on their way back: hands each to its provider's lane, and does not wait for
   * any of them. What a lane does not take is postponed together.
   */
  async payments(signal?: AbortSignal): Promise<Round> {
    const { ledger, watch } = this.#on;
    await this.#canStore();
    await this.#recount(signal);
    const read = (limit: number, after?: PaymentAttempt) => ledger.dueAttempts(limit, after);
    const silentMs = ({ provider }: Due): number => watch.silentMs(provider);
    let changed = 0;
    for await (const silent of this.#handed(this.#lanes, read, this.#passes.payments, signal)) {
      // For as long again as it has been silent: they were not asked about, and need not wait longer than it hung.
      changed += await this.#postpone(silent, 'the provider does not answer', silentMs);
    }
    return { changed, more: false };
  }

  /**
   * Hands all that is due to its lane, page by page, and yields those of silent providers. Behind a page of which no lane has
   * room there may be payments of a provider whose lane has; but a pass over a large backlog in every round would keep the
   * process busy with reading. So it goes on behind such a page only when ten times as long as the last whole pass took is over.
   */
  async *#handed<D extends Due>(
    lanes: Lanes<D>,
    read: (limit: number, after?: D) => Promise<D[]>,
    pass: Pass,
    signal?: AbortSignal,
  ): AsyncGenerator<D[]> {
    const { clock, timers } = this.#on.runtime;
    const startedMs = clock.monotonic();
    for await (const due of pages<D>(timers, ATTEMPTS_MAX, read, signal)) {
      const ends = due.map((one) => lanes.take(one));
      yield due.filter((_, at) => ends[at] === 'silent');
      if (startedMs < pass.againAtMs && ends.every((end) => end === 'full')) return;
    }
    const endedMs = clock.monotonic();
    pass.againAtMs = endedMs + PASS_SHARE * (endedMs - startedMs);
  }

  /** Refunds of a part that a provider has not taken on yet: each in its provider's lane, as payments are. */
  async refunds(signal?: AbortSignal): Promise<Round> {
    const { ledger, watch } = this.#on;
    await this.#canStore();
    const read = (limit: number, after?: DueRefund) => ledger.dueRefunds(limit, after);
    const silentMs = ({ provider }: Due): number => watch.silentMs(provider);
    let changed = 0;
    for await (const silent of this.#handed(this.#refundLanes, read, this.#passes.refunds, signal)) {
      changed += await this.#postponeRefunds(silent, 'the provider does not answer', silentMs);
    }
    return { changed, more: false };
  }

  async #refundPart(was: DueRefund): Promise<void> {
    const { withLock, ledger, life } = this.#on;
    try {
      await withLock(was.orderId, LOCK_WAIT_MS, async (fence) => {
        const refund = await ledger.getRefund(was.id);
        if (refund?.state === 'asked') await life.giveBackPart(refund, SWEEPER, fence);
        this.#unsettled.delete(was.id);
      });
    } catch (error) {
      // Somebody works on that order: that may settle it.
      if (error instanceof OrderBusyError) return;
      await this.#failed(was, error, (text) => this.#postponeRefunds([was], text));
    }
  }

  async #postponeRefunds(
    some: readonly DueRefund[],
    error: string,
    forMs: (refund: DueRefund) => number = doubling,
  ): Promise<number> {
    if (some.length === 0) return 0;
    await this.#on.ledger.postponeRefunds(
      some.map((refund) => ({ refundId: refund.id, error, afterMs: boundedMs(forMs(refund)) })),
    );
    for (const { id, orderId, tries } of some) {
      this.#unsettled.set(id, 'owedMoney');
      this.#alert({ id, orderId, tries: tries + 1 }, { refundId: id, state: 'refunding a part' }, error);
    }
    return some.length;
  }

  /**
   * What was done could not be stored, or not even that it was tried: throws until the ledger can store again. To do it again
   * at once would only ask providers again.
   */
  async #canStore(): Promise<void> {
    const failure = this.#failure;
    if (failure === null) return;
    await this.#on.ledger.probe();
    // Unless something else could not be stored while it was asked.
    if (this.#failure === failure) this.#failure = null;
  }

  /** What was done could not be stored: nothing more is begun before the ledger can store again. */
  #notStored(failure: unknown): void {
    this.#failure = failure;
    this.#lanes.clear();
    this.#refundLanes.clear();
  }

  /**
   * A step has failed: it is postponed, with why. Where the ledger is well and refuses the text, that goes to the log, and the
   * step is postponed all the same: else the provider would be asked again in every round.
   */
  async #failed(
    { id, orderId, provider }: Due & { readonly orderId: string },
    error: unknown,
    postpone: (text: string) => Promise<unknown>,
  ): Promise<void> {
    try {
      await postpone(messageOf(error));
    } catch (failure) {
      if (failure instanceof RetryableError) return this.#notStored(failure);
      const reason = messageOf(failure);
      this.#on.runtime.log.error(
        { err: error, id, orderId, provider, reason },
        `a payment did not settle, and ${UNSTORABLE}`,
      );
      await postpone(UNSTORABLE).catch((again: unknown) => this.#notStored(again));
    }
  }

  async #lookAfter(attempt: PaymentAttempt): Promise<void> {
    const { withLock } = this.#on;
    try {
      await withLock(attempt.orderId, LOCK_WAIT_MS, (fence) => this.#step(attempt, fence));
    } catch (error) {
      // Somebody works on that order: that may settle it.
      if (error instanceof OrderBusyError) return;
      await this.#failed(attempt, error, (text) => this.#postpone([attempt], text));
    }
  }

  async #step(was: PaymentAttempt, fence: string | null): Promise<void> {
    const { ledger, life, reached, auditIds } = this.#on;
    // As it is under the lock.
    const attempt = await ledger.getAttempt(was.id);
    if (attempt === null || attempt.nextAtMs === null) {
      this.#unsettled.delete(was.id);
      return;
    }
    switch (attempt.state) {
      case 'open': {
        const order = await ledger.getOrder(attempt.orderId);
        // It is due at the latest when its order's time is over, by the ledger's clock: so that need not be asked.
        const over = order !== null && order.expiresAtMs !== null && attempt.nextAtMs >= order.expiresAtMs;
        const settled = await life.settle(attempt, fence, SWEEPER, over);
        if (settled === 'open') await this.#postpone([attempt], over ? 'the provider does not say' : 'pending');
        else this.#unsettled.delete(attempt.id);
        return;
      }
      case 'late':
        reached('late:found');
        if (await this.#revive(attempt)) {
          this.#unsettled.delete(attempt.id);
          return;
        }
        await ledger.startRefund(attempt.id, SWEEPER, await auditIds.next());
        reached('late:refund-started');
        await this.#refund({ ...attempt, state: 'refunding' }, fence);
        return;
      case 'refunding':
        await this.#refund(attempt, fence);
        return;
      case 'failed':
      case 'voided':
        if ((await life.settle(attempt, fence, SWEEPER, true)) !== 'open') this.#unsettled.delete(attempt.id);
        else await this.#postpone([attempt], 'the provider does not say whether it has the money');
    }
  }

  async #refund(attempt: PaymentAttempt, fence: string | null): Promise<void> {
    const { ledger, life, reached } = this.#on;
    if (attempt.pays) {
      await life.giveBack(attempt, SWEEPER, fence);
    } else {
      const { reference } = await life.refundAtProvider(attempt);
      await ledger.finishRefund(attempt.id, reference);
      reached('late:refunded');
    }
    this.#unsettled.delete(attempt.id);
  }

  /**
   * Late money gets its goods if there are any: by a new order of the same buyer, through gate, pipe and ledger like every
   * other, under a key of the attempt's own, so that a second try finds the first one's order. Only for an order that
   * expired: whoever cancelled does not want it, and whose order is paid has it.
   */
  async #revive(attempt: PaymentAttempt): Promise<boolean> {
    const { ledger, life, place, reached } = this.#on;
    const order = await ledger.getOrder(attempt.orderId);
    if (order?.status !== 'expired') return false;
    const { saleId, itemCode, buyer, quantity, amount } = order;
    if (amount.amount !== attempt.amount.amount || amount.currency !== attempt.amount.currency) return false;
    const placed = await place({
      saleId,
      itemCode,
      buyer,
      quantity,
      key: `revive-${attempt.id}`,
      by: SWEEPER,
      keyOf: 'shop',
    });
    if (!placed.ok) return false;
    reached('late:placed');
    if (placed.order.status === 'queued') throw new Error('the order that revives it is not decided yet');
    const money = { capture: attempt.id, reference: attempt.reference, amount };
    const { outcome } = await life.move(placed.order.id, 'pay', SWEEPER, { money, revives: order.id });
    reached('late:committed');
    return outcome === 'moved' || outcome === 'repeat';
  }

  /** In one transaction. Counts those that goods or money hang on, and not only a buyer's patience. */
  async #postpone(
    some: readonly PaymentAttempt[],
    error: string,
    forMs: (attempt: PaymentAttempt) => number = doubling,
  ): Promise<number> {
    if (some.length === 0) return 0;
    const postponed = await this.#on.ledger.postponeAttempts(
      some.map((attempt) => ({ attemptId: attempt.id, error, afterMs: boundedMs(forMs(attempt)) })),
    );
    for (const { attempt, over } of postponed) {
      const { id: attemptId, orderId, state, tries } = attempt;
      if (state !== 'open') this.#unsettled.set(attemptId, 'owedMoney');
      else if (over) this.#unsettled.set(attemptId, 'stranded');
      this.#alert({ id: attemptId, orderId, tries }, { attemptId, state }, error);
    }
    return postponed.length;
  }

  /** `tries`: with the one that has just failed. */
  #alert(of: { id: string; orderId: string; tries: number }, named: Record<string, string>, error: string): void {
    const { id, orderId, tries } = of;
    if (tries < TRIES_ALERT || this.#alerted.has(id)) return;
    this.#alerted.add(id);
    this.#on.runtime.log.error(
      { ...named, orderId, tries, error },
      'a payment needs somebody: it does not settle by itself',
    );
  }
}

/** Between two tries of the same: twice as long each time. */
function doubling({ tries }: { readonly tries: number }): number {
  return AGAIN_MS_MIN * 2 ** tries;
}

function boundedMs(ms: number): number {
  return Math.round(Math.min(Math.max(ms, AGAIN_MS_MIN), AGAIN_MS_MAX));
}
