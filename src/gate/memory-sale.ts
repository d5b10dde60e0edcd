import { invariant } from '../base/errors.ts';
import type { OrderMessage } from '../model/order.ts';
import { decodeSeatMap } from '../model/seat-map.ts';
import type { SaleValues, SnapshotPage } from '../model/snapshot.ts';
import type { BoundKeys } from './bound-keys.ts';
import { Hall } from './hall.ts';
import type { LargeMap } from './large-map.ts';
import type { AdmitRequest, Verdict } from './port.ts';
import type { SeatLog } from './seat-log.ts';

// What the in-process gate keeps of one sale, and the steps by which it changes: each keeps counts, seats and holds in agreement.

export interface GateItem {
  readonly id: string;
  readonly code: string;
  readonly price: { amount: number; currency: string };
  readonly onSale: boolean;
  total: number;
  blocked: number;
  rev: number;
  /** Units of live holds: queued + settled. */
  heldUnits: number;
  queuedUnits: number;
  /** What the house holds, by hold id. */
  readonly house: Map<string, HouseUnits>;
  houseUnits: number;
  /** Null: it is counted. */
  readonly seating: Seating | null;
}

interface HouseUnits {
  readonly units: number;
  /** Null: they are units of a counted item. */
  readonly seats: readonly number[] | null;
}

interface Seating {
  readonly hall: Hall;
  /** The rev that the gate was built from: it contains all moves up to this one. */
  readonly builtRev: number;
  blockedRev: number;
}

/** Where an order sits, and the rev of its last move since the gate was built. */
export interface Sitting {
  seats: number[];
  movedRev: number;
}

/** Kept small: every live order has one, and a sale may have a million. */
export interface Hold {
  readonly orderId: string;
  readonly item: GateItem;
  readonly buyer: string;
  /** One slot is the rule, so it is stored bare: an array costs as much as the rest of the hold. */
  readonly slots: number | number[];
  /** Null: the item is counted. */
  readonly sitting: Sitting | null;
  queued: boolean;
}

export interface GateSale {
  values: SaleValues;
  readonly epoch: number;
  shut: boolean;
  readonly itemsByCode: Map<string, GateItem>;
  readonly itemsById: Map<string, GateItem>;
  readonly holds: LargeMap<Hold>;
  /** A buyer's live holds; one hold is the rule, so it is stored bare. */
  readonly buyers: LargeMap<Hold | Hold[]>;
  readonly keys: BoundKeys;
  /** Null: the sale has no seats. */
  readonly log: SeatLog | null;
}

export const SOLD_OUT: Verdict = { outcome: 'sold_out' };
const NOT_TOGETHER: Verdict = { outcome: 'not_together' };

export function freeUnits(item: GateItem): number {
  return item.total - item.blocked - item.heldUnits - item.houseUnits;
}

export function unitsOf(hold: Hold): number {
  return typeof hold.slots === 'number' ? 1 : hold.slots.length;
}

export function keyName(buyer: string, key: string): string {
  return `${buyer}\n${key}`;
}

export function messageOf(
  sale: GateSale,
  hold: Hold,
  { saleId, key, fingerprint, placedBy }: AdmitRequest,
): OrderMessage {
  const slots = typeof hold.slots === 'number' ? [hold.slots] : hold.slots;
  const message: OrderMessage = {
    orderId: hold.orderId,
    saleId,
    itemId: hold.item.id,
    itemCode: hold.item.code,
    buyer: hold.buyer,
    quantity: slots.length,
    slots,
    price: hold.item.price,
    payWithinSeconds: sale.values.payWithinSeconds,
    epoch: sale.epoch,
    key,
    fingerprint,
  };
  if (hold.sitting !== null) message.seats = hold.sitting.seats;
  if (placedBy !== undefined) message.placedBy = placedBy;
  return message;
}

export function seatingOf({ map, blocked }: { map: string; blocked: readonly number[] }, rev: number): Seating {
  const hall = new Hall(decodeSeatMap(map));
  hall.block(blocked);
  return { hall, builtRev: rev, blockedRev: rev };
}

/** Whether the request asks for what the item has: units, or seats of its map. */
export function isKnown({ seating }: GateItem, { seats }: AdmitRequest): boolean {
  if (seating === null || seats === undefined) return seating === null && seats === undefined;
  return typeof seats === 'string' || seats.every((seat) => seating.hall.has(seat));
}

/** The seats that an order gets, or why it gets none. */
export function chosenSeats(item: GateItem, hall: Hall, { seats, quantity }: AdmitRequest): number[] | Verdict {
  if (typeof seats !== 'string') {
    const taken = seats!.filter((seat) => !hall.isFree(seat));
    if (taken.length > 0) return { outcome: 'seat_taken', seats: taken };
    return item.onSale ? [...seats!] : SOLD_OUT;
  }
  if (!item.onSale || freeUnits(item) < quantity) return SOLD_OUT;
  return hall.best(quantity, seats === 'together') ?? NOT_TOGETHER;
}

export function leaveHouse(item: GateItem, holdId: string): void {
  const hold = item.house.get(holdId);
  if (hold === undefined) return;
  item.house.delete(holdId);
  item.houseUnits -= hold.units;
  if (hold.seats !== null) item.seating!.hall.leave(hold.seats);
}

/** Notes what is shown as changed. */
export function logSeats({ log }: GateSale, { id, seating }: GateItem): void {
  for (const { state, seats } of seating?.hall.changes() ?? []) log!.add({ itemId: id, seats, state });
}

export function addPage(sale: GateSale, saleId: string, { holds, keys }: SnapshotPage): void {
  for (const { orderId, itemId, buyer, slots, seats, paid } of holds) {
    const item = sale.itemsById.get(itemId);
    invariant(item !== undefined, `order ${orderId} holds an item that sale ${saleId} does not have`);
    invariant(
      (item.seating === null) === (seats === undefined),
      `order ${orderId} has seats of a counted item, or none`,
    );
    const sitting = seats === undefined ? null : { seats, movedRev: 0 };
    const hold = { orderId, item, buyer, slots: slots.length === 1 ? slots[0]! : slots, sitting, queued: false };
    addHold(sale, hold);
    if (seats !== undefined && paid) item.seating!.hall.sell(seats);
  }
  for (const { buyer, key, fingerprint, orderId, boundAtMs } of keys) {
    sale.keys.bind(keyName(buyer, key), orderId, fingerprint, boundAtMs);
  }
}

export function addHold(sale: GateSale, hold: Hold): void {
  sale.holds.set(hold.orderId, hold);
  hold.item.heldUnits += unitsOf(hold);
  if (hold.sitting !== null) hold.item.seating!.hall.take(hold.sitting.seats, 'reserved');
  const mine = sale.buyers.get(hold.buyer);
  if (mine === undefined) sale.buyers.set(hold.buyer, hold);
  else if (Array.isArray(mine)) mine.push(hold);
  else sale.buyers.set(hold.buyer, [mine, hold]);
}

/** Ends a hold and frees its units and slots. Without a hold it does nothing, so units come back once only (P4). */
export function dropHold(sale: GateSale, orderId: string): Hold | null {
  const hold = sale.holds.get(orderId);
  if (hold === undefined) return null;
  sale.holds.delete(orderId);
  const units = unitsOf(hold);
  hold.item.heldUnits -= units;
  if (hold.queued) hold.item.queuedUnits -= units;
  if (hold.sitting !== null) {
    hold.item.seating!.hall.leave(hold.sitting.seats);
    logSeats(sale, hold.item);
  }
  const mine = sale.buyers.get(hold.buyer);
  if (Array.isArray(mine)) {
    mine.splice(mine.indexOf(hold), 1);
    if (mine.length === 0) sale.buyers.delete(hold.buyer);
  } else {
    sale.buyers.delete(hold.buyer);
  }
  return hold;
}

export function slotsOf(mine: Hold | Hold[] | undefined): number[] {
  if (mine === undefined) return [];
  return (Array.isArray(mine) ? mine : [mine]).flatMap((hold) => hold.slots);
}

export function ordersOf(mine: Hold | Hold[] | undefined): string[] {
  if (mine === undefined) return [];
  return Array.isArray(mine) ? mine.map((hold) => hold.orderId) : [mine.orderId];
}
