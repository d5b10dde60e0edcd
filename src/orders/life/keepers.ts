import { messageOf } from '../../base/errors.ts';
import type { IdSequence } from '../../base/ids.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { Actor, Ledger } from '../../ledger/port.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import type { PlaceRequest, PlaceResult } from '../place.ts';
import type { OrderLife } from './life.ts';
import { OrderBusyError, type WithOrderLock } from './lock.ts';
import type { Reached } from './points.ts';

export interface KeepersDependencies {
  readonly runtime: Runtime;
  readonly ledger: Ledger;
  readonly life: OrderLife;
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

const SWEEPER: Actor = { actor: 'sweeper', origin: null };
/** Orders of one round; the next round follows at once while there are more. */
const DUE_MAX = 256;
const ATTEMPTS_MAX = 200;
const AT_ONCE = 16;
const RECOUNT_MS = 5000;
const LOCK_WAIT_MS = 1000;
/** Between two tries of the same: twice as long each time. */
const AGAIN_MS_MIN = 1000;
const AGAIN_MS_MAX = 5 * 60_000;
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
  #recountedMs = 0;

  constructor(dependencies: KeepersDependencies) {
    this.#on = dependencies;
  }

  get counters(): KeepersCounters {
    const counters = { stranded: 0, owedMoney: 0 };
    for (const kind of this.#unsettled.values()) counters[kind]++;
    return counters;
  }

  /** Ends orders whose time is over. Returns whether there may be more. */
  async expire(): Promise<boolean> {
    const { ledger, life, reached } = this.#on;
    const due = await ledger.dueOrders(DUE_MAX);
    if (due.length === 0) return false;
    reached('expire:found');
    // Those with an open payment are looked after below. The rest is one transaction: they are moved in the same turn.
    const ready = due.filter(({ openAttempt }) => openAttempt === null);
    const moved = await Promise.allSettled(ready.map(({ orderId }) => life.move(orderId, 'expire', SWEEPER)));
    reached('expire:committed');
    const failure = moved.find((end) => end.status === 'rejected');
    if (failure) throw failure.reason;
    return due.length === DUE_MAX;
  }

  /** Another process looks after them now. */
  forget(): void {
    this.#unsettled.clear();
    this.#alerted.clear();
  }

  /** A webhook, a second click or another process may have settled one of them meanwhile. */
  async #recount(): Promise<void> {
    const { ledger, runtime } = this.#on;
    const nowMs = runtime.clock.monotonic();
    if (this.#unsettled.size === 0 || nowMs - this.#recountedMs < RECOUNT_MS) return;
    this.#recountedMs = nowMs;
    for (const id of [...this.#unsettled.keys()]) {
      const attempt = await ledger.getAttempt(id);
      if (attempt === null || attempt.nextAtMs === null) this.#unsettled.delete(id);
    }
  }

  /** Looks after payments that are open, late or on their way back. Returns whether there may be more. */
  async payments(): Promise<boolean> {
    const due = await this.#on.ledger.dueAttempts(ATTEMPTS_MAX);
    await this.#recount();
    const rest = [...due];
    const worker = async (): Promise<void> => {
      for (let attempt = rest.shift(); attempt; attempt = rest.shift()) await this.#lookAfter(attempt);
    };
    await Promise.all(Array.from({ length: Math.min(AT_ONCE, due.length) }, worker));
    return due.length === ATTEMPTS_MAX;
  }

  async #lookAfter(attempt: PaymentAttempt): Promise<void> {
    const { withLock } = this.#on;
    try {
      await withLock(attempt.orderId, LOCK_WAIT_MS, (fence) => this.#step(attempt, fence));
    } catch (error) {
      // Somebody works on that order: that may settle it.
      if (error instanceof OrderBusyError) return;
      await this.#postpone(attempt, messageOf(error), true);
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
        if (settled === 'open') await this.#postpone(attempt, over ? 'the provider does not say' : 'pending', over);
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
        else await this.#postpone(attempt, 'the provider does not say whether it has the money', true);
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
    const placed = await place({ saleId, itemCode, buyer, quantity, key: `revive-${attempt.id}`, caller: 'shop' });
    if (!placed.ok) return false;
    reached('late:placed');
    if (placed.order.status === 'queued') throw new Error('the order that revives it is not decided yet');
    const money = { capture: attempt.id, reference: attempt.reference, amount };
    const { outcome } = await life.move(placed.order.id, 'pay', SWEEPER, { money, revives: order.id });
    reached('late:committed');
    return outcome === 'moved' || outcome === 'repeat';
  }

  /** `counts`: goods or money hang on it, and not only a buyer's patience. */
  async #postpone(attempt: PaymentAttempt, error: string, counts: boolean): Promise<void> {
    const { ledger, runtime } = this.#on;
    if (counts) this.#unsettled.set(attempt.id, attempt.state === 'open' ? 'stranded' : 'owedMoney');
    const afterMs = Math.min(AGAIN_MS_MIN * 2 ** attempt.tries, AGAIN_MS_MAX);
    await ledger.postponeAttempt(attempt.id, error, runtime.clock.now() + afterMs).catch(() => undefined);
    if (attempt.tries + 1 < TRIES_ALERT || this.#alerted.has(attempt.id)) return;
    this.#alerted.add(attempt.id);
    const { id: attemptId, orderId, state, tries } = attempt;
    runtime.log.error(
      { attemptId, orderId, state, tries, error },
      'a payment needs somebody: it does not settle by itself',
    );
  }
}
