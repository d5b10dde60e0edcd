import { messageOf, RetryableError } from '../../base/errors.ts';
import { pages, type Round } from '../../base/sweep.ts';
import type { DueRefund } from '../../ledger/port.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import { giveBack, giveBackPart, refundAtProvider } from './give-back.ts';
import { type Due, Lanes } from './lanes.ts';
import type { Life } from './life.ts';
import type { ProviderWatch } from './provider.ts';
import { type Place, revive, SWEEPER } from './revive.ts';
import { settle } from './settle.ts';

export interface DueCounters {
  /** Orders whose time is over and whose unit stays held, since the provider does not say whether it has the money. */
  readonly stranded: number;
  /** Money without goods that is not back yet. */
  readonly owedMoney: number;
}

/** One walk over all that is due. */
interface Pass {
  /** When the next one may begin. */
  againAtMs: number;
}

/** Payments, and payments to count again, that are read at once. */
const ATTEMPTS_MAX = 200;
const RECOUNT_MAX = 500;
/** Between two whole passes over what is due, so many times as long as one takes: reading takes a tenth of the time. */
const PASS_SHARE = 10;
const RECOUNT_MS = 5000;
const LOCK_WAIT_MS = 1000;
/** Between two tries of the same payment. */
const AGAIN_MS_MIN = 1000;
const AGAIN_MS_MAX = 5 * 60_000;
/** Stored instead of a text that the ledger refuses. */
const UNSTORABLE = 'what went wrong cannot be stored';
/** An alert after so many tries, which is about twenty minutes. */
export const TRIES_ALERT = 12;

/**
 * Payments and refunds that somebody must ask their provider about: open, late, on their way back, in doubt. Each is handed to
 * its provider's lane. Two processes that do this at once do no harm: every step is a conditional UPDATE or carries the
 * attempt's key.
 */
export class DuePayments {
  readonly #life: Life;
  readonly #watch: Pick<ProviderWatch, 'isSilent' | 'silentMs'>;
  readonly #place: Place;
  /** Payments that did not settle at the last try, and why that matters. */
  readonly #unsettled = new Map<string, keyof DueCounters>();
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

  constructor(life: Life, watch: Pick<ProviderWatch, 'isSilent' | 'silentMs'>, place: Place) {
    this.#life = life;
    this.#watch = watch;
    this.#place = place;
    this.#lanes = new Lanes(watch, (attempt) => this.#lookAfter(attempt));
    this.#refundLanes = new Lanes(watch, (refund) => this.#refundPart(refund));
  }

  get counters(): DueCounters {
    const counters = { stranded: 0, owedMoney: 0 };
    for (const kind of this.#unsettled.values()) counters[kind]++;
    return counters;
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
    const { ledger, runtime } = this.#life;
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
   * Hands each payment that is open, late or on its way back to its provider's lane, and does not wait for any of them. Those
   * of silent providers are postponed together.
   */
  async payments(signal?: AbortSignal): Promise<Round> {
    await this.#canStore();
    await this.#recount(signal);
    const read = (limit: number, after?: PaymentAttempt) => this.#life.ledger.dueAttempts(limit, after);
    const silentMs = ({ provider }: Due): number => this.#watch.silentMs(provider);
    let changed = 0;
    for await (const silent of this.#handed(this.#lanes, read, this.#passes.payments, signal)) {
      // For as long again as the provider has been silent: nobody asked about them, so they need not wait longer than that.
      changed += await this.#postpone(silent, 'the provider does not answer', silentMs);
    }
    return { changed, more: false };
  }

  /**
   * Hands all that is due to its lane, page by page, and yields those of silent providers. Behind a page for which no lane has
   * room there may be payments of a provider whose lane has; but reading a large backlog in every round would keep the process
   * busy. So it reads on behind such a page only after a pause of ten times as long as the last whole pass took.
   */
  async *#handed<D extends Due>(
    lanes: Lanes<D>,
    read: (limit: number, after?: D) => Promise<D[]>,
    pass: Pass,
    signal?: AbortSignal,
  ): AsyncGenerator<D[]> {
    const { clock, timers } = this.#life.runtime;
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
    await this.#canStore();
    const read = (limit: number, after?: DueRefund) => this.#life.ledger.dueRefunds(limit, after);
    const silentMs = ({ provider }: Due): number => this.#watch.silentMs(provider);
    let changed = 0;
    for await (const silent of this.#handed(this.#refundLanes, read, this.#passes.refunds, signal)) {
      changed += await this.#postponeRefunds(silent, 'the provider does not answer', silentMs);
    }
    return { changed, more: false };
  }

  async #refundPart(was: DueRefund): Promise<void> {
    const { ledger } = this.#life;
    await this.#locked(
      was,
      (text) => this.#postponeRefunds([was], text),
      async (fence) => {
        const refund = await ledger.getRefund(was.id);
        if (refund?.state === 'asked') await giveBackPart(this.#life, refund, { by: SWEEPER, fence });
        this.#unsettled.delete(was.id);
      },
    );
  }

  async #postponeRefunds(
    some: readonly DueRefund[],
    error: string,
    forMs: (refund: DueRefund) => number = doubling,
  ): Promise<number> {
    if (some.length === 0) return 0;
    await this.#life.ledger.postponeRefunds(
      some.map((refund) => ({ refundId: refund.id, error, afterMs: boundedMs(forMs(refund)) })),
    );
    for (const { id, orderId, tries } of some) {
      this.#unsettled.set(id, 'owedMoney');
      this.#alert({ id, orderId, tries: tries + 1 }, { refundId: id, state: 'refunding a part' }, error);
    }
    return some.length;
  }

  /**
   * Throws while the ledger cannot store, after a step whose outcome could not be stored: trying it again would only ask the
   * providers again.
   */
  async #canStore(): Promise<void> {
    const failure = this.#failure;
    if (failure === null) return;
    await this.#life.ledger.probe();
    // Unless another step could not be stored meanwhile.
    if (this.#failure === failure) this.#failure = null;
  }

  /** A step's outcome could not be stored: nothing more is begun before the ledger can store again. */
  #notStored(failure: unknown): void {
    this.#failure = failure;
    this.#lanes.clear();
    this.#refundLanes.clear();
  }

  /**
   * A step has failed: it is postponed, with the reason. If the ledger is well and refuses that text, the text goes to the log,
   * and the step is postponed all the same: else the provider would be asked again in every round.
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
      this.#life.runtime.log.error(
        { err: error, id, orderId, provider, reason },
        `a payment did not settle, and ${UNSTORABLE}`,
      );
      await postpone(UNSTORABLE).catch((again: unknown) => this.#notStored(again));
    }
  }

  async #lookAfter(attempt: PaymentAttempt): Promise<void> {
    await this.#locked(
      attempt,
      (text) => this.#postpone([attempt], text),
      (fence) => this.#step(attempt, fence),
    );
  }

  /** Under the order's lock. If that is busy, whoever holds it may settle the payment; else it comes again. */
  async #locked(
    due: Due & { readonly orderId: string },
    postpone: (text: string) => Promise<unknown>,
    work: (fence: string | null) => Promise<void>,
  ): Promise<void> {
    try {
      await this.#life.lock.run(due.orderId, LOCK_WAIT_MS, work);
    } catch (error) {
      await this.#failed(due, error, postpone);
    }
  }

  async #step(was: PaymentAttempt, fence: string | null): Promise<void> {
    const { ledger, reached, auditIds } = this.#life;
    const acting = { by: SWEEPER, fence };
    // As it is under the lock.
    const attempt = await ledger.getAttempt(was.id);
    if (attempt === null || attempt.nextAtMs === null) {
      this.#unsettled.delete(was.id);
      return;
    }
    switch (attempt.state) {
      case 'open': {
        const order = await ledger.getOrder(attempt.orderId);
        // It is due at the latest when its order's time is over by the ledger's clock, so that clock need not be read.
        const over = order !== null && order.expiresAtMs !== null && attempt.nextAtMs >= order.expiresAtMs;
        const settled = await settle(this.#life, attempt, acting, over);
        if (settled === 'open') await this.#postpone([attempt], over ? 'the provider does not say' : 'pending');
        else this.#unsettled.delete(attempt.id);
        return;
      }
      case 'late':
        reached('late:found');
        if (await revive(this.#life, this.#place, attempt)) {
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
        if ((await settle(this.#life, attempt, acting, true)) !== 'open') this.#unsettled.delete(attempt.id);
        else await this.#postpone([attempt], 'the provider does not say whether it has the money');
    }
  }

  async #refund(attempt: PaymentAttempt, fence: string | null): Promise<void> {
    const { ledger, reached } = this.#life;
    if (attempt.pays) {
      await giveBack(this.#life, attempt, { by: SWEEPER, fence });
    } else {
      const { reference } = await refundAtProvider(this.#life, attempt);
      await ledger.finishRefund(attempt.id, reference);
      reached('late:refunded');
    }
    this.#unsettled.delete(attempt.id);
  }

  /** In one transaction. Counts those that hold goods or money back, and not those that only keep a buyer waiting. */
  async #postpone(
    some: readonly PaymentAttempt[],
    error: string,
    forMs: (attempt: PaymentAttempt) => number = doubling,
  ): Promise<number> {
    if (some.length === 0) return 0;
    const postponed = await this.#life.ledger.postponeAttempts(
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

  /** `tries`: including the one that has just failed. */
  #alert(of: { id: string; orderId: string; tries: number }, named: Record<string, string>, error: string): void {
    const { id, orderId, tries } = of;
    if (tries < TRIES_ALERT || this.#alerted.has(id)) return;
    this.#alerted.add(id);
    this.#life.runtime.log.error(
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
