import { unavailable } from '../base/errors.ts';
import { type IdSequence, isId } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Gate, Verdict } from '../gate/port.ts';
import { type Ledger, ordersPath } from '../ledger/port.ts';
import { type OrderRecord, orderFingerprint } from '../model/order.ts';
import type { RejectReason } from '../model/outcome.ts';
import { windowRefusal } from '../model/sale.ts';
import type { Acks } from './acks.ts';

export interface PlaceRequest {
  saleId: string;
  itemCode: string;
  buyer: string;
  quantity: number;
  key: string | null;
}

export type PlaceResult =
  | { ok: true; order: OrderRecord; replayed: boolean }
  | { ok: false; code: 'sale_not_open' | 'sale_closed' | 'sale_paused'; opensAtMs: number; closesAtMs: number }
  | { ok: false; code: 'limit_reached'; orderIds: string[]; perBuyer: number }
  | { ok: false; code: 'sold_out' | 'not_found' | 'idempotency_key_reused' | 'seat_taken' | 'not_together' }
  | { ok: false; code: 'idempotency_in_flight'; retryAfterSeconds: number };

/** A repeat waits this long for the first try, then is told to come back. */
const REPEAT_WAIT_MS = 5000;

const SOLD_OUT: PlaceResult = { ok: false, code: 'sold_out' };
const NOT_FOUND: PlaceResult = { ok: false, code: 'not_found' };
const KEY_REUSED: PlaceResult = { ok: false, code: 'idempotency_key_reused' };

export interface PlaceDependencies {
  runtime: Runtime;
  gate: Gate;
  ledger: Ledger;
  acks: Acks;
  orderIds: IdSequence;
  /** Why no order can be taken now, or null. */
  closedBecause: () => string | null;
  /** The gate does not hold a sale that could sell: have it built. */
  rebuild: (saleId: string) => void;
}

/**
 * Placing an order: gate → pipe → ledger → answer. No application lock is taken. The answer is given after the commit
 * and not before: `ok` means that the order is in the ledger (P3). The embedded shop never leaves an order queued.
 */
export class PlaceOrder {
  readonly #on: PlaceDependencies;

  constructor(dependencies: PlaceDependencies) {
    this.#on = dependencies;
  }

  async place(request: PlaceRequest): Promise<PlaceResult> {
    const { gate, acks, orderIds, closedBecause } = this.#on;
    const closed = closedBecause();
    // The ledger is out. It could not store the order; whether it can still be read for a repeat is worth a try.
    if (closed !== null) return this.#whileClosed(request, closed);

    const { saleId, itemCode, buyer, quantity, key } = request;
    const orderId = orderIds.take() ?? (await orderIds.next());
    const decision = acks.expect(orderId);
    const fingerprint = orderFingerprint(itemCode, quantity);
    let verdict: Verdict;
    try {
      verdict = await gate.admit({ saleId, orderId, itemCode, buyer, quantity, key, fingerprint });
    } catch (error) {
      acks.forget(orderId);
      throw error;
    }
    if (verdict.outcome === 'admitted') return this.#answer(await decision);
    acks.forget(orderId);
    return this.#refuse(verdict, request, fingerprint);
  }

  #answer(order: OrderRecord): PlaceResult {
    if (order.status === 'rejected') return refusedByLedger(order.reason!);
    return { ok: true, order, replayed: false };
  }

  async #refuse(
    verdict: Exclude<Verdict, { outcome: 'admitted' }>,
    request: PlaceRequest,
    fingerprint: string,
  ): Promise<PlaceResult> {
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
      case 'replayed':
        return this.#replay(verdict.orderId);
      case 'stale':
        return this.#withoutGate(request, fingerprint);
      default:
        return { ok: false, code: verdict.outcome };
    }
  }

  /** The first answer again: the order as it was when it was reserved. */
  async #replay(orderId: string): Promise<PlaceResult> {
    const { runtime, acks, ledger } = this.#on;
    const decision = acks.of(orderId);
    if (decision !== null) {
      const order = await within(runtime, decision, REPEAT_WAIT_MS);
      if (order === null) return { ok: false, code: 'idempotency_in_flight', retryAfterSeconds: 1 };
      if (order.status === 'rejected') return refusedByLedger(order.reason!);
      return { ok: true, order, replayed: true };
    }
    const order = await ledger.getOrder(orderId);
    if (order === null) throw unavailable('the first try of this key is not decided yet');
    if (order.status === 'rejected') return refusedByLedger(order.reason!);
    return { ok: true, order: firstAnswer(order), replayed: true };
  }

  /** The gate does not hold the sale: it does not exist, is over, or the gate is being rebuilt. */
  async #withoutGate(request: PlaceRequest, fingerprint: string): Promise<PlaceResult> {
    const { ledger, runtime, rebuild } = this.#on;
    const sale = isId(request.saleId) ? await ledger.getSale(request.saleId) : null;
    if (sale === null || !sale.items.some(({ code }) => code === request.itemCode)) return NOT_FOUND;
    const bound = await this.#boundInLedger(request, fingerprint);
    if (bound !== null) return bound;
    const refusal = windowRefusal(sale, runtime.clock.now());
    if (refusal === 'sale_closed') {
      return { ok: false, code: refusal, opensAtMs: sale.opensAtMs, closesAtMs: sale.closesAtMs };
    }
    rebuild(request.saleId);
    throw unavailable('the gate of this sale is being rebuilt');
  }

  async #whileClosed(request: PlaceRequest, reason: string): Promise<PlaceResult> {
    const fingerprint = orderFingerprint(request.itemCode, request.quantity);
    const bound = await this.#boundInLedger(request, fingerprint).catch(() => null);
    if (bound !== null) return bound;
    throw unavailable(reason);
  }

  async #boundInLedger(request: PlaceRequest, fingerprint: string): Promise<PlaceResult | null> {
    if (request.key === null) return null;
    const scope = { caller: request.buyer, path: ordersPath(request.saleId), key: request.key };
    const bound = await this.#on.ledger.findKey(scope);
    if (bound?.orderId == null) return null;
    return bound.fingerprint === fingerprint ? this.#replay(bound.orderId) : KEY_REUSED;
  }
}

function firstAnswer(order: OrderRecord): OrderRecord {
  return { ...order, status: 'reserved', reason: null, version: 1, updatedAtMs: order.createdAtMs };
}

/** A backstop of the ledger refused what the gate had let in. */
function refusedByLedger(reason: RejectReason): PlaceResult {
  switch (reason) {
    case 'sold_out':
    case 'seat_taken':
      return { ok: false, code: reason };
    case 'limit_reached':
      return { ok: false, code: 'limit_reached', orderIds: [], perBuyer: 0 };
    default:
      throw unavailable('the gate of this sale is being rebuilt; try again');
  }
}

async function within<T>(runtime: Runtime, promise: Promise<T>, ms: number): Promise<T | null> {
  let cancel = (): void => {};
  const late = new Promise<null>((resolve) => {
    cancel = runtime.timers.after(ms, () => resolve(null));
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    cancel();
  }
}
