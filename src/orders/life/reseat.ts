import { RetryableError, unavailable } from '../../base/errors.ts';
import { type Gate, houseHoldId } from '../../gate/port.ts';
import type { SaleLedger, SeatLedger } from '../../ledger/port.ts';
import type { Actor } from '../../model/actor.ts';
import { unitsAt } from '../../model/life.ts';
import type { OrderRecord } from '../../model/order.ts';
import { type Fault, mayAdmit } from '../../model/sale.ts';
import { namedTwice, type SaleSeats } from '../../model/sale-seats.ts';
import { type Life, LOCK_WAIT_MS, notInLedger, TRIES_MAX } from './life.ts';
import { BUSY } from './lock.ts';

export interface Reseating {
  readonly gate: Pick<Gate, 'dropHouseHold' | 'holdSeats'>;
  readonly ledger: Pick<SaleLedger, 'getSale'> & Pick<SeatLedger, 'moveSeats'>;
  /** The seats of a sale that has this item; null: there is no such sale any more. */
  seatsOf(saleId: string, itemId: string): Promise<SaleSeats | null>;
  /** The order has other seats. */
  moved(order: OrderRecord): void;
}

export type ReseatResult =
  | { readonly ok: true; readonly order: OrderRecord }
  | {
      readonly ok: false;
      readonly code: 'order_not_movable' | 'payment_in_progress';
      readonly order: OrderRecord | null;
    }
  | { readonly ok: false; readonly code: 'seat_taken'; readonly order: OrderRecord; readonly seats: string[] }
  | { readonly ok: false; readonly code: 'invalid_request'; readonly errors: Fault[] }
  | { readonly ok: false; readonly code: 'not_found'; readonly what: 'order' | 'seat' };

/**
 * Moves a reserved or paid order to other seats of its item, all or none, under the order's lock: the house holds the new seats in the
 * gate; one transaction of the ledger swaps the claims and leaves a row for the gate; the gate swaps the order's hold, and the hold of
 * the house ends. Whoever dies in between leaves a row that another process carries to the gate, or a hold of the house that the
 * upkeep drops.
 */
export async function reseat(
  life: Life,
  on: Reseating,
  orderId: string,
  names: readonly string[],
  by: Actor,
): Promise<ReseatResult> {
  const twice = namedTwice(names);
  if (twice !== null) return invalid(`/seats/${twice}`, 'is named twice');
  const result = await life.lock.run(orderId, LOCK_WAIT_MS, async (fence): Promise<ReseatResult> => {
    for (let tries = 1; ; tries++) {
      const done = await once(life, on, orderId, names, { by, fence: tries === 1 ? fence : null });
      // If the lock has passed on meanwhile, the conditional UPDATE alone decides.
      if (done !== 'again' || tries >= TRIES_MAX) return done === 'again' ? busy(null) : done;
    }
  });
  return result === BUSY ? busy(null) : result;
}

async function once(
  life: Life,
  on: Reseating,
  orderId: string,
  names: readonly string[],
  { by, fence }: { by: Actor; fence: string | null },
): Promise<ReseatResult | 'again'> {
  const { auditIds, reached } = life;
  const order = await life.ledger.getOrder(orderId);
  if (order === null) {
    const missing = await notInLedger(life, orderId, 'order_not_movable' as const);
    return missing.code === 'not_found' ? { ...missing, what: 'order' } : missing;
  }
  if (order.seats === undefined || unitsAt(order.status) === null) {
    return { ok: false, code: 'order_not_movable', order };
  }
  const found = await wantedSeats(on, order, names);
  if ('ok' in found) return found;
  const { seats, sale } = found;
  const { saleId, itemId, buyer } = order;
  const auditId = await auditIds.next();
  const hold = houseHoldId(auditId);
  const drop = (): Promise<void> => on.gate.dropHouseHold(saleId, itemId, hold);
  const held = await on.gate.holdSeats(saleId, itemId, seats, { holdId: hold, order: { orderId, buyer } });
  if (held.outcome === 'seat_taken') return taken(order, sale, held.seats);
  // Only a sale that is over has no gate: nobody else can take these seats then.
  if (held.outcome === 'stale' && (await sells(on, saleId)))
    throw unavailable('the gate of this sale is being rebuilt');
  reached('move:held');
  let moved: Awaited<ReturnType<SeatLedger['moveSeats']>>;
  try {
    moved = await on.ledger.moveSeats({ orderId, seats, by, auditId, fence });
  } catch (error) {
    // After a lost reply it may have been moved all the same: the row then tells the gate, which drops the hold as well.
    if (!(error instanceof RetryableError)) await drop();
    throw error;
  }
  reached('move:committed');
  if (moved.outcome === 'moved') {
    on.moved(moved.order);
    // The ledger first, then the gate; and both before the order's lock is released.
    await life.seatMover.add(moved.told);
    reached('move:in-gate');
    return { ok: true, order: moved.order };
  }
  await drop();
  switch (moved.outcome) {
    case 'repeat':
      return { ok: true, order: moved.order };
    case 'seat_taken':
      return taken(moved.order, sale, moved.taken);
    case 'not_movable':
      return { ok: false, code: 'order_not_movable', order: moved.order };
    case 'fenced':
      return 'again';
    case 'unknown':
      return { ok: false, code: 'not_found', what: 'order' };
  }
}

async function wantedSeats(
  on: Reseating,
  order: OrderRecord,
  names: readonly string[],
): Promise<ReseatResult | { seats: number[]; sale: SaleSeats }> {
  const { saleId, itemId, quantity } = order;
  const sale = await on.seatsOf(saleId, itemId);
  if (sale === null) return { ok: false, code: 'not_found', what: 'order' };
  const { found, unknown } = sale.findAll(names);
  const other = found.find(({ item }) => item.id !== itemId);
  if (other !== undefined) return invalid('/seats', `must be seats of the order’s item, ${order.itemCode}`);
  if (names.length !== quantity) return invalid('/seats', `must be as many as the order has, which is ${quantity}`);
  if (unknown.length > 0) return { ok: false, code: 'not_found', what: 'seat' };
  return { seats: found[0]!.seats, sale };
}

async function sells({ ledger }: Reseating, saleId: string): Promise<boolean> {
  const sale = await ledger.getSale(saleId);
  return sale !== null && mayAdmit(sale);
}

function taken(order: OrderRecord, sale: SaleSeats, seats: readonly number[]): ReseatResult {
  return { ok: false, code: 'seat_taken', order, seats: sale.names(order.itemId, seats) };
}

function busy(order: OrderRecord | null): ReseatResult {
  return { ok: false, code: 'payment_in_progress', order };
}

function invalid(path: string, message: string): ReseatResult {
  return { ok: false, code: 'invalid_request', errors: [{ path, message }] };
}
