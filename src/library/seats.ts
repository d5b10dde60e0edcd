import { BlockSeats, MoveOrder } from '../contract/seats.ts';
import { faults } from '../contract/validate.ts';
import type { Shop } from '../engine/shop.ts';
import type { SaleChange } from '../ledger/port.ts';
import type { Actor } from '../model/actor.ts';
import type { Fault } from '../model/sale.ts';
import type { Caller } from '../sales/manage.ts';
import type { Order } from '../views/present.ts';
import type { SaleResult } from './doorbuster.ts';

/** The state of every seat: a character each, `f` free, `r` reserved or queued, `s` sold, `b` blocked. */
export interface Seats {
  /** Rises with every change. */
  revision: string;
  items: {
    code: string;
    rows: { section: string; row: string; numbers: number[]; states: string; x?: number; y?: number; angle?: number }[];
  }[];
}

/** `seats`: names of those that orders have. */
export type SeatsResult = SaleResult | { ok: false; code: 'seat_taken'; seats: string[] };

export type MoveResult =
  | { ok: true; order: Order }
  | { ok: false; code: 'seat_taken'; seats: string[]; order: Order }
  | { ok: false; code: 'order_not_movable' | 'payment_in_progress'; order: Order | null }
  | { ok: false; code: 'not_found' }
  | { ok: false; code: 'invalid_request'; errors: Fault[] };

/** `changed`: how a change of a sale is answered. */
export async function seatsResult(
  shop: Shop,
  saleId: string,
  seats: string[],
  blocked: boolean,
  caller: Caller,
  changed: (change: SaleChange) => Promise<SaleResult>,
): Promise<SeatsResult> {
  const errors = faults(BlockSeats, { seats });
  if (errors.length > 0) return { ok: false, code: 'invalid_request', errors };
  const change = await shop.setBlocked(saleId, seats, blocked, caller);
  return change.outcome === 'seat_taken' ? { ok: false, code: 'seat_taken', seats: change.seats } : changed(change);
}

export async function movedOrder(shop: Shop, orderId: string, seats: string[], by: Actor): Promise<MoveResult> {
  const errors = faults(MoveOrder, { seats });
  if (errors.length > 0) return { ok: false, code: 'invalid_request', errors };
  const result = await shop.moveOrder(orderId, seats, by);
  if (result.ok) return { ok: true, order: await shop.showOrder(result.order) };
  switch (result.code) {
    case 'not_found':
      return { ok: false, code: 'not_found' };
    case 'invalid_request':
      return { ok: false, code: 'invalid_request', errors: result.errors };
    case 'seat_taken':
      return { ok: false, code: 'seat_taken', seats: result.seats, order: await shop.showOrder(result.order) };
    default:
      return { ok: false, code: result.code, order: result.order && (await shop.showOrder(result.order)) };
  }
}
