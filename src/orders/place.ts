import { unavailable } from '../base/errors.ts';
import { orderKey } from '../base/idempotency.ts';
import { type IdSequence, idTimeMs, isId } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep, within } from '../base/timers.ts';
import {
  type BoundTo,
  type Gate,
  type Leaving,
  NotAdmittedError,
  type Refused,
  type SeatWish,
  type Verdict,
} from '../gate/port.ts';
import { KEY_KEPT_MS, type KeyLedger, type OrderLedger, type SaleLedger } from '../ledger/port.ts';
import { type Actor, actorText } from '../model/actor.ts';
import { type OrderMessage, type OrderRecord, orderFingerprint, type PlacedBy } from '../model/order.ts';
import type { RejectReason } from '../model/outcome.ts';
import { type SaleRecord, windowRefusal } from '../model/sale.ts';
import { decidedOrder, type PendingDecisions, queuedOrder } from './pending-decisions.ts';

export interface PlaceRequest {
  saleId: string;
  itemCode: string;
  buyer: string;
  quantity: number;
  /** Of a seated item: which seats, as many as `quantity`. */
  seats?: SeatWish | undefined;
  key: string | null;
  /** Who acts for the buyer: the key is theirs then, and not the buyer's, and the order leaves a row in the audit. */
  by?: Actor | undefined;
  /** Whose key it is, if not that of `by`. */
  keyOf?: string;
  /** Aborted when the caller has left: an order that was not sent to the gate by then is not sent any more. */
  signal?: Leaving | undefined;
}

/** `order.status` is `reserved`; or `queued`, where the ledger may lag: accepted, and yet to be decided. */
export type PlaceResult =
  | { ok: true; order: OrderRecord; replayed: boolean }
  | { ok: false; code: 'sale_not_open' | 'sale_closed' | 'sale_paused'; opensAtMs: number; closesAtMs: number }
  | { ok: false; code: 'limit_reached'; orderIds: string[]; perBuyer: number }
  /** `seats`: those that others have; none: the ledger refused what a wrong gate had admitted, and does not say which. */
  | { ok: false; code: 'seat_taken'; seats: number[] }
  | { ok: false; code: 'sold_out' | 'not_found' | 'idempotency_key_reused' | 'not_together' }
  | { ok: false; code: 'idempotency_in_flight'; retryAfterSeconds: number };

/** A repeat waits this long for the first try, then is told to come back. */
const REPEAT_WAIT_MS = 5000;

/** A request whose key contains whose it is. */
interface Scoped extends PlaceRequest {
  /** If somebody acts for the buyer: the key as it was stored before keys contained that. */
  unscopedKey?: string;
}

function scoped(request: PlaceRequest): Scoped {
  const { by, key } = request;
  if (by === undefined || key === null) return request;
  return { ...request, key: orderKey(request.keyOf ?? actorText(by), key), unscopedKey: key };
}

const SOLD_OUT: PlaceResult = { ok: false, code: 'sold_out' };
const NOT_FOUND: PlaceResult = { ok: false, code: 'not_found' };
const KEY_REUSED: PlaceResult = { ok: false, code: 'idempotency_key_reused' };

export interface PlaceDependencies {
  runtime: Runtime;
  gate: Gate;
  ledger: OrderLedger & SaleLedger & KeyLedger;
  pending: PendingDecisions;
  orderIds: IdSequence;
  auditIds: IdSequence;
  /** Why no order can be taken now, or null. */
  closedBecause: () => string | null;
  /** For a ledger that may lag; null: the answer always waits for the commit. */
  patience: Patience | null;
  /** The gate does not hold a sale that could sell: have it built. */
  rebuild: (saleId: string) => void;
  /**
   * No gate answers for a finished sale: whether the ledger knows every order that one of them has admitted. False: some may
   * be on their way to it, or nobody can tell yet.
   */
  isEmptied: (sale: SaleRecord) => Promise<boolean>;
}

export interface Patience {
  /** How long an answer waits for the commit; then the order is left queued. */
  answerWithinMs: number;
  /** The order is answered as queued: from now on this process must see to its end (P3). */
  queued: (message: OrderMessage) => Promise<void>;
}

/** How long an order waits for an id if its answer has no bound of its own. */
const ID_WAIT_MS_MAX = 2000;
/** How often a repeat looks for the decision of a first try that another process made. */
const LOOK_EVERY_MS = 50;
/** How long one read of a ledger that may be out may take. */
const LOOK_MS_MAX = 1000;

/**
 * Placing an order: gate → pipe → ledger → answer. No application lock is taken. A `reserved` order is in the ledger (P3):
 * the answer is given after the commit and not before. A `queued` one (only with `patience`) is in the pipe, and followed
 * to its end.
 */
export class PlaceOrder {
  readonly #on: PlaceDependencies;
  readonly #asking = new Map<string, Promise<SaleRecord | null>>();

  constructor(dependencies: PlaceDependencies) {
    this.#on = dependencies;
  }

  async place(asked: PlaceRequest): Promise<PlaceResult> {
    const { gate, pending, orderIds, closedBecause } = this.#on;
    const request = scoped(asked);
    const closed = closedBecause();
    // The ledger is out and cannot store the order. It may still be readable, and answer a repeat.
    if (closed !== null) return this.#whileClosed(request, closed);

    const { saleId, itemCode, buyer, quantity, seats, key } = request;
    const fingerprint = fingerprintOf(request);
    // The gate would take a key of that time for the buyer's own.
    if (request.unscopedKey !== undefined && this.#mayBeUnscoped()) {
      const bound = await this.#boundInLedger(request, fingerprint);
      if (bound !== null) return bound;
    }
    const orderId = orderIds.take() ?? (await this.#withoutIds(request, fingerprint));
    if (typeof orderId !== 'string') return orderId;
    let placedBy: PlacedBy | undefined;
    if (request.by !== undefined) {
      try {
        placedBy = await this.#placedBy(request.by);
      } catch (error) {
        orderIds.giveBack(orderId);
        // A repeat needs no row: it gets its answer.
        const first = await this.#boundInGate(request, fingerprint);
        if (first !== null) return first;
        throw error;
      }
    }
    const decision = pending.expect(orderId);
    let verdict: Verdict;
    try {
      const { signal } = request;
      const wanted = { saleId, orderId, itemCode, buyer, quantity, seats };
      verdict = await gate.admit({ ...wanted, key, fingerprint, placedBy, signal });
    } catch (error) {
      pending.forget(orderId);
      if (error instanceof NotAdmittedError) this.#giveBack(orderId, placedBy);
      throw error;
    }
    if (verdict.outcome === 'admitted') {
      if (this.#on.patience === null) return this.#answer(decidedOrder(verdict.message, await decision), false);
      return this.#patiently(verdict.message, decision, this.#on.patience);
    }
    pending.forget(orderId);
    // Refusing must cost nothing that is scarce: a crowd before a sold-out item would use up the ids of those who can buy.
    if (verdict.uncertain === undefined) this.#giveBack(orderId, placedBy);
    return this.#refuse(verdict, request, fingerprint);
  }

  /** What a repeat gets, if an earlier request with its key was admitted; null: none was, as far as gate and ledger know. */
  async again(asked: PlaceRequest): Promise<PlaceResult | null> {
    const request = scoped(asked);
    const fingerprint = fingerprintOf(request);
    return (await this.#boundInGate(request, fingerprint)) ?? (await this.#boundInLedger(request, fingerprint));
  }

  /** The audit row's id goes with the order, so that however often the order is delivered, both are written once. */
  async #placedBy(by: Actor): Promise<PlacedBy> {
    const { runtime, auditIds, patience } = this.#on;
    const auditId = auditIds.take();
    if (auditId !== null) return { ...by, auditId };
    // They come from the ledger, as orders' ids do, and are waited for as long.
    const coming = auditIds.next().catch((error: unknown) => ({ error }));
    const id = await within(runtime.timers, coming, patience?.answerWithinMs ?? ID_WAIT_MS_MAX);
    if (typeof id === 'string') return { ...by, auditId: id };
    if (id !== null) throw id.error;
    throw unavailable('the ledger gives no ids for the audit now');
  }

  #giveBack(orderId: string, placedBy: PlacedBy | undefined): void {
    const { orderIds, auditIds } = this.#on;
    orderIds.giveBack(orderId);
    if (placedBy !== undefined) auditIds.giveBack(placedBy.auditId);
  }

  /** No id is left, and the next ones come from a ledger that may be out. A repeat needs none: it gets its answer. */
  async #withoutIds(request: Scoped, fingerprint: string): Promise<string | PlaceResult> {
    const { runtime, orderIds, patience } = this.#on;
    const first = await this.#boundInGate(request, fingerprint);
    if (first !== null) return first;
    const coming = orderIds.next();
    const asked = this.#boundInLedger(request, fingerprint).catch(() => null);
    const id = await within(
      runtime.timers,
      coming.catch((error: unknown) => ({ error })),
      patience?.answerWithinMs ?? ID_WAIT_MS_MAX,
    );
    if (typeof id === 'string') return id;
    if (id === null) {
      const giveBack = (late: string): void => orderIds.giveBack(late);
      coming.then(giveBack, () => undefined);
    }
    const bound = await within(runtime.timers, asked, id === null ? 0 : LOOK_MS_MAX);
    if (bound !== null) return bound;
    if (id !== null) throw id.error;
    throw unavailable('the ledger gives no ids for new orders now');
  }

  #answer(order: OrderRecord, replayed: boolean): PlaceResult {
    if (order.status === 'rejected') return refusedByLedger(order.reason!);
    return { ok: true, order: order.status === 'reserved' ? order : firstAnswer(order), replayed };
  }

  /** Waits for the commit. If it does not come in time, looks once whether it was missed, and whether the hold stands. */
  async #patiently(
    message: OrderMessage,
    decision: ReturnType<PendingDecisions['expect']>,
    { answerWithinMs, queued }: Patience,
  ): Promise<PlaceResult> {
    const { runtime, pending, gate } = this.#on;
    const decided = await within(runtime.timers, decision, answerWithinMs);
    if (decided !== null) return this.#answer(decidedOrder(message, decided), false);
    pending.forget(message.orderId);
    // The hold first: with the ledger first, the order could be decided between the two looks, and be seen by neither.
    const held = await gate.holdOf(message.saleId, message);
    const stored = await this.#lookInLedger(message.orderId);
    if (stored !== null) return this.#answer(stored, false);
    if (held === null) throw unavailable('the gate of this sale was rebuilt; try again');
    // A settled hold: the order is in the ledger, which cannot be read now. A repeat of its key gets the answer.
    if (!held.queued) throw unavailable('the order is decided, and the ledger cannot be read now');
    await queued(message);
    return { ok: true, order: queuedOrder(message, idTimeMs(message.orderId)), replayed: false };
  }

  /** The order if the ledger has it; null if not, or if it cannot be asked now. */
  async #lookInLedger(orderId: string): Promise<OrderRecord | null> {
    const { runtime, ledger } = this.#on;
    return within(
      runtime.timers,
      ledger.getOrder(orderId).catch(() => null),
      LOOK_MS_MAX,
    );
  }

  async #refuse(verdict: Refused, request: Scoped, fingerprint: string): Promise<PlaceResult> {
    switch (verdict.outcome) {
      case 'sold_out':
        return SOLD_OUT;
      case 'not_found':
        return NOT_FOUND;
      case 'idempotency_key_reused':
        return KEY_REUSED;
      case 'limit_reached':
        return { ok: false, code: 'limit_reached', orderIds: verdict.orderIds, perBuyer: verdict.perBuyer };
      case 'sale_not_open':
      case 'sale_closed':
      case 'sale_paused':
        return { ok: false, code: verdict.outcome, opensAtMs: verdict.opensAtMs, closesAtMs: verdict.closesAtMs };
      case 'seat_taken':
        return { ok: false, code: 'seat_taken', seats: verdict.seats };
      case 'replayed':
        return this.#replay(verdict.orderId, request);
      case 'stale':
        return this.#withoutGate(request, fingerprint);
      default:
        return { ok: false, code: verdict.outcome };
    }
  }

  /** The first answer again: the order as it was when it was reserved. */
  async #replay(orderId: string, request: PlaceRequest): Promise<PlaceResult> {
    const { runtime, pending, ledger, patience } = this.#on;
    if (patience !== null) return this.#replayPatiently(orderId, request, patience);
    const decision = pending.of(orderId);
    if (decision !== null) {
      const order = await within(runtime.timers, decision, REPEAT_WAIT_MS);
      if (order === null) return { ok: false, code: 'idempotency_in_flight', retryAfterSeconds: 1 };
      if ('id' in order) return this.#answer(order, true);
    }
    const order = await ledger.getOrder(orderId);
    if (order === null) throw unavailable('the first try of this key is not decided yet');
    if (order.status === 'rejected') return refusedByLedger(order.reason!);
    return { ok: true, order: firstAnswer(order), replayed: true };
  }

  /** The first try may be under way in any process, so the ledger is asked. A repeat of a 202 gets the order as it is now. */
  async #replayPatiently(
    orderId: string,
    request: PlaceRequest,
    { answerWithinMs, queued }: Patience,
  ): Promise<PlaceResult> {
    const { runtime, gate } = this.#on;
    const { saleId, buyer, key, by } = request;
    const endMs = runtime.clock.monotonic() + Math.min(answerWithinMs, REPEAT_WAIT_MS);
    for (;;) {
      const held = await gate.holdOf(saleId, { orderId, buyer });
      const stored = await this.#lookInLedger(orderId);
      if (stored !== null) return this.#answer(stored, true);
      if (held === null) throw unavailable('the first try of this key is not decided yet');
      if (runtime.clock.monotonic() >= endMs) {
        if (!held.queued) throw unavailable('the first answer of this key cannot be read now');
        const { queued: _, ...known } = held;
        const fingerprint = fingerprintOf(request);
        const placedBy = by && (await this.#placedBy(by));
        const message = {
          ...{ ...known, orderId, saleId, buyer, key, fingerprint, payWithinSeconds: 0 },
          ...(placedBy && { placedBy }),
        };
        // The process that answers 202 sees to the order's end, whichever admitted it.
        await queued(message);
        return { ok: true, order: queuedOrder(message, idTimeMs(orderId)), replayed: true };
      }
      await sleep(runtime.timers, LOOK_EVERY_MS);
    }
  }

  /** The gate does not hold the sale: it does not exist, is over, or the gate is being rebuilt. */
  async #withoutGate(request: Scoped, fingerprint: string): Promise<PlaceResult> {
    const { rebuild, isEmptied } = this.#on;
    const sale = isId(request.saleId) ? await this.#saleOf(request.saleId) : null;
    if (sale === null || !sale.items.some(({ code }) => code === request.itemCode)) return NOT_FOUND;
    const refusal = windowRefusal(sale, sale.readAtMs);
    // Asked before the ledger: what leaves the pipe between the two looks is in the ledger by then.
    const emptied = refusal !== 'sale_closed' || request.key === null || (await isEmptied(sale));
    const bound = await this.#boundInLedger(request, fingerprint);
    if (bound !== null) return bound;
    // P5: the first try of this key may be in the pipe, and become an order yet.
    if (!emptied) throw unavailable('orders of this sale are still being decided');
    if (refusal === 'sale_closed') {
      return { ok: false, code: refusal, opensAtMs: sale.opensAtMs, closesAtMs: sale.closesAtMs };
    }
    rebuild(request.saleId);
    throw unavailable('the gate of this sale is being rebuilt');
  }

  /** A crowd before a gate that is being rebuilt shares one read: the rebuild needs the ledger, too. */
  #saleOf(saleId: string): Promise<SaleRecord | null> {
    let asking = this.#asking.get(saleId);
    if (!asking) {
      asking = this.#on.ledger.getSale(saleId).finally(() => this.#asking.delete(saleId));
      this.#asking.set(saleId, asking);
    }
    return asking;
  }

  async #whileClosed(request: Scoped, reason: string): Promise<PlaceResult> {
    const fingerprint = fingerprintOf(request);
    const bound = await this.#boundInLedger(request, fingerprint).catch(() => null);
    if (bound !== null) return bound;
    throw unavailable(reason);
  }

  async #boundInGate(request: Scoped, fingerprint: string): Promise<PlaceResult | null> {
    if (request.key === null || !isId(request.saleId)) return null;
    return this.#ofKey(await this.#on.gate.keyOf(request.saleId, request.buyer, request.key), request, fingerprint);
  }

  async #boundInLedger(request: Scoped, fingerprint: string): Promise<PlaceResult | null> {
    const { saleId, buyer, key } = request;
    if (key === null || !isId(saleId)) return null;
    const bound = (await this.#on.ledger.findOrderKey({ saleId, buyer, key })) ?? (await this.#unscoped(request));
    return this.#ofKey(bound, request, fingerprint);
  }

  async #ofKey(bound: BoundTo | null, request: Scoped, fingerprint: string): Promise<PlaceResult | null> {
    if (bound === null) return null;
    return bound.fingerprint === fingerprint ? this.#replay(bound.orderId, request) : KEY_REUSED;
  }

  /** An order from before keys contained their user: whoever acts for its buyer may have used the key. */
  async #unscoped({ saleId, buyer, unscopedKey: key }: Scoped): Promise<BoundTo | null> {
    if (key === undefined || !this.#mayBeUnscoped()) return null;
    const { gate, ledger } = this.#on;
    // The gate as well: an order that was admitted before the update may still be in the pipe.
    const bound = (await ledger.findOrderKey({ saleId, buyer, key })) ?? (await gate.keyOf(saleId, buyer, key));
    return bound !== null && BigInt(bound.orderId) <= BigInt(ledger.unscopedUpTo!) ? bound : null;
  }

  /** False when all such keys have expired, which spares a read. Twice as long as a key is kept: the clocks may differ. */
  #mayBeUnscoped(): boolean {
    const { ledger, runtime } = this.#on;
    const upTo = ledger.unscopedUpTo;
    return upTo !== null && idTimeMs(upTo) > runtime.clock.now() - 2 * KEY_KEPT_MS;
  }
}

/** The best seats that were free are not part of it: a repeat asks for the best again, and gets those of the first. */
function fingerprintOf({ itemCode, quantity, seats }: PlaceRequest): string {
  if (seats === undefined || seats === 'any') return orderFingerprint(itemCode, quantity);
  return orderFingerprint(itemCode, quantity, seats === 'together' ? { together: true } : { seats });
}

function firstAnswer(order: OrderRecord): OrderRecord {
  if (order.status === 'rejected') return order;
  return { ...order, status: 'reserved', reason: null, version: 1, updatedAtMs: order.createdAtMs };
}

/** A backstop of the ledger refused what the gate had admitted. */
function refusedByLedger(reason: RejectReason): PlaceResult {
  switch (reason) {
    case 'sold_out':
      return SOLD_OUT;
    case 'seat_taken':
      return { ok: false, code: reason, seats: [] };
    case 'limit_reached':
      return { ok: false, code: 'limit_reached', orderIds: [], perBuyer: 0 };
    default:
      throw unavailable('the gate of this sale is being rebuilt; try again');
  }
}
