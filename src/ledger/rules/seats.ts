import { TerminalError } from '../../base/errors.ts';
import { unitsAt } from '../../model/life.ts';
import type { ItemRecord } from '../../model/sale.ts';
import { SEAT_BOUNDS } from '../../model/seat-map.ts';
import type { NewSeats } from '../port/seats.ts';
import { isFenced, type OrderState } from './decide.ts';

/** The order that blocked seats stand under: nobody's. */
export const HOUSE = '0';

/** As stored: '12.13'. */
export function seatsText(seats: readonly number[]): string {
  return seats.join('.');
}

export function parseSeats(text: string): number[] {
  return text.split('.').map(Number);
}

export function seatPlace(itemId: string, seat: number): string {
  return `${itemId} ${seat}`;
}

/** Whether these can be seats of an item with so many: ascending, and none twice. */
export function areSeats(seats: readonly number[], size: number = SEAT_BOUNDS.saleSeatsMax): boolean {
  let last = -1;
  for (const seat of seats) {
    if (!Number.isInteger(seat) || seat <= last || seat >= size) return false;
    last = seat;
  }
  return seats.length > 0;
}

/** Refuses what no caller sends: seats that the item does not have. */
export function mustBeSeats(
  seats: readonly number[],
  { id, kind, total }: Pick<ItemRecord, 'id' | 'kind' | 'total'>,
): void {
  if (kind === 'seated' && areSeats(seats, total)) return;
  throw new TerminalError('seats_malformed', `item ${id} does not have the seats ${seatsText(seats)}`);
}

/** Who has a seat, of those that were found taken: an order, or the house. */
export type Takers = ReadonlyMap<number, string>;

/** Seats that are blocked, or not blocked, as they should be may be named all the same: a repeat of the call changes nothing. */
export function decideBlocking(
  seats: readonly number[],
  takers: Takers,
  blocked: boolean,
): { taken: number[]; changed: number[] } {
  return {
    taken: seats.filter((seat) => (takers.get(seat) ?? HOUSE) !== HOUSE),
    changed: seats.filter((seat) => takers.has(seat) !== blocked),
  };
}

export type ReseatDecision =
  | { readonly outcome: 'repeat' | 'not_movable' | 'fenced' }
  | { readonly outcome: 'seat_taken'; readonly taken: number[] }
  | { readonly outcome: 'moved'; readonly leaves: number[]; readonly takes: number[] };

/** Whether an order may have these seats of its item instead of its own. Those that it keeps are neither left nor taken. */
export function decideReseating(
  { seats, fence: token }: Pick<NewSeats, 'seats' | 'fence'>,
  { order, fence }: Pick<OrderState, 'order' | 'fence'>,
  takers: Takers,
): ReseatDecision {
  const own = order.seats;
  if (own === undefined || unitsAt(order.status) === null) return { outcome: 'not_movable' };
  if (seatsText(own) === seatsText(seats)) return { outcome: 'repeat' };
  if (isFenced({ fence: token }, fence)) return { outcome: 'fenced' };
  const taken = seats.filter((seat) => (takers.get(seat) ?? order.id) !== order.id);
  if (taken.length > 0) return { outcome: 'seat_taken', taken };
  const [mine, theirs] = [new Set(own), new Set(seats)];
  return {
    outcome: 'moved',
    leaves: own.filter((seat) => !theirs.has(seat)),
    takes: seats.filter((seat) => !mine.has(seat)),
  };
}
