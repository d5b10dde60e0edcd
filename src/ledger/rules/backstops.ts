import { TerminalError } from '../../base/errors.ts';
import { hasGivenBack, type OrderMessage, type OrderRecord } from '../../model/order.ts';
import type { RejectReason } from '../../model/outcome.ts';
import { BOUNDS } from '../../model/sale.ts';
import { areSeats, seatPlace, seatsText } from './seats.ts';

/** An item as its row says while it is locked. */
export interface ItemState {
  id: string;
  saleId: string;
  code: string;
  epoch: number;
  free: number;
  perBuyerMax: number;
  /** How many seats its map has; null: it is counted. */
  seats: number | null;
}

/** What the ledger already has that a batch may collide with. */
export interface Found {
  orders: ReadonlySet<string>;
  /** By claimPlace. */
  claims: ReadonlySet<string>;
  /** By keyPlace: those that are still bound. */
  keys: ReadonlySet<string>;
  /** By seatPlace: those of live orders and of the house. */
  seats: ReadonlySet<string>;
}

export const NOTHING_FOUND: Found = { orders: new Set(), claims: new Set(), keys: new Set(), seats: new Set() };

/** Names contain no control characters, so a line feed separates them. */
export function claimPlace(saleId: string, buyer: string, slot: number): string {
  return `${saleId}\n${buyer}\n${slot}`;
}

export function keyPlace(saleId: string, buyer: string, key: string): string {
  return `${saleId}\n${buyer}\n${key}`;
}

/** An order to be inserted, with its verdict: null is reserved. */
export interface NewOrder {
  readonly message: OrderMessage;
  /** As stored: '1' or '1,2'. */
  readonly slots: string;
  readonly reason: RejectReason | null;
}

/** Units that a transaction takes of an item: one update of each item's row, in id order. */
export interface TakenUnits {
  readonly itemId: string;
  readonly epoch: number;
  readonly units: number;
}

export interface Judgement {
  /** Orders to be inserted, in the order of their messages. */
  fresh: NewOrder[];
  /** Messages whose order is stored, or is inserted further ahead in this batch. */
  repeated: OrderMessage[];
  taken: TakenUnits[];
  /** Every order is new and will be reserved: no backstop refused one. */
  clean: boolean;
}

/**
 * Decides a batch, in the order of its messages, by what was found in the ledger: first epoch, P2, P5 and seats, then the units
 * of each item for the orders that are left; the surplus at the end of the batch is refused. Pure: the rows that are really
 * inserted prove whether what was found still holds.
 */
export function judge(batch: readonly OrderMessage[], items: ReadonlyMap<string, ItemState>, found: Found): Judgement {
  const verdicts = new Map<string, NewOrder>();
  const repeated: OrderMessage[] = [];
  const claims = new Set<string>();
  const keys = new Set<string>();
  const seats = new Set<string>();
  // A buyer who comes once cannot collide within the batch. Most do, and for them most of the work is left out.
  const rivals = buyersMetTwice(batch);
  const byItem = new Map<string, OrderMessage[]>();
  let clean = true;

  /** P2: these slots are not this order's to take. */
  const isOverLimit = ({ saleId, buyer, slots, quantity }: OrderMessage, slotMax: number, alone: boolean): boolean => {
    if (slots.length !== quantity) return true;
    if (slots.length > 1 && new Set(slots).size !== slots.length) return true;
    for (const slot of slots) {
      if (!Number.isInteger(slot) || slot < 1 || slot > slotMax) return true;
      if (alone) continue;
      const place = claimPlace(saleId, buyer, slot);
      if (found.claims.has(place) || claims.has(place)) return true;
    }
    return false;
  };

  /** P1: takes the seats, all or none of them. */
  const hasTaken = (itemId: string, wanted: readonly number[]): boolean => {
    const places = wanted.map((seat) => seatPlace(itemId, seat));
    if (places.some((place) => found.seats.has(place) || seats.has(place))) return false;
    for (const place of places) seats.add(place);
    return true;
  };

  const backstop = (message: OrderMessage): RejectReason | null => {
    const { saleId, buyer, slots, key } = message;
    const item = items.get(message.itemId)!;
    const alone = found === NOTHING_FOUND && !rivals.has(buyer);
    // First: an admission of an older epoch ends as `gate_rebuilt` whatever else is wrong with it.
    if (item.saleId !== saleId || item.epoch !== message.epoch) return 'gate_rebuilt';
    mustFit(message, item);
    if (isOverLimit(message, item.perBuyerMax, alone)) return 'limit_reached';
    // Another order has this key and the gate did not know it. The rebuilt gate will, and a retry gets that order.
    const place = alone || key === null ? null : keyPlace(saleId, buyer, key);
    if (place !== null && (found.keys.has(place) || keys.has(place))) return 'gate_rebuilt';
    if (message.seats !== undefined && !hasTaken(item.id, message.seats)) return 'seat_taken';
    if (alone) return null;
    for (const slot of slots) claims.add(claimPlace(saleId, buyer, slot));
    if (place !== null) keys.add(place);
    return null;
  };

  for (const message of batch) {
    if (found.orders.has(message.orderId) || verdicts.has(message.orderId)) {
      repeated.push(message);
      continue;
    }
    const reason = backstop(message);
    verdicts.set(message.orderId, { message, slots: slotsText(message), reason });
    if (reason !== null) {
      clean = false;
      continue;
    }
    const mine = byItem.get(message.itemId);
    if (mine === undefined) byItem.set(message.itemId, [message]);
    else mine.push(message);
  }

  const taken: TakenUnits[] = [];
  for (const [itemId, messages] of byItem) {
    const { epoch, free } = items.get(itemId)!;
    let units = 0;
    let full = false;
    for (const message of messages) {
      // P1: from the first order that does not fit on, none is admitted: a smaller one must not overtake it.
      full ||= units + message.quantity > free;
      if (full) {
        clean = false;
        verdicts.set(message.orderId, { ...verdicts.get(message.orderId)!, reason: 'sold_out' });
      } else units += message.quantity;
    }
    if (units > 0) taken.push({ itemId, epoch, units });
  }
  taken.sort((a, b) => byId(a.itemId, b.itemId));
  return { fresh: [...verdicts.values()], repeated, taken, clean: clean && repeated.length === 0 };
}

function buyersMetTwice(batch: readonly OrderMessage[]): Set<string> {
  const met = new Set<string>();
  const twice = new Set<string>();
  for (const { buyer } of batch) {
    if (met.has(buyer)) twice.add(buyer);
    else met.add(buyer);
  }
  return twice;
}

/** Ids are positive and have no leading zeros: the longer one is the larger. */
export function byId(a: string, b: string): number {
  return a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);
}

const NO_SEATS: readonly number[] = [];

/** A message that names seats of a counted item, none of a seated one, or one that the item's map has not, is of no gate. */
function mustFit({ orderId, itemId, seats }: OrderMessage, item: ItemState): void {
  if (item.seats === null ? seats === undefined : seats !== undefined && areSeats(seats, item.seats)) return;
  throw new TerminalError('order_malformed', `order ${orderId} asks for seats that item ${itemId} does not have`);
}

export function slotsText({ slots }: OrderMessage): string {
  return slots.length === 1 ? String(slots[0]) : slots.join(',');
}

const ID = /^[1-9]\d{0,18}$/;

/** Refuses what no gate sends: it would be stored as something else, or would not fit into a statement. */
export function mustBeWellFormed(message: OrderMessage): void {
  const { orderId, saleId, itemId, quantity, price, epoch, payWithinSeconds, seats } = message;
  const right =
    ID.test(orderId) &&
    ID.test(saleId) &&
    ID.test(itemId) &&
    Number.isSafeInteger(quantity) &&
    quantity >= 1 &&
    Number.isSafeInteger(price.amount * quantity) &&
    Number.isSafeInteger(epoch) &&
    Number.isSafeInteger(payWithinSeconds) &&
    (seats === undefined || (seats.length === quantity && quantity <= BOUNDS.quantityMax && areSeats(seats)));
  if (!right) throw new TerminalError('order_malformed', `order ${orderId} cannot be stored as it is`);
}

/** A stored order, with what tells whether a message is a repeat of it. */
export interface StoredContent {
  readonly order: OrderRecord;
  /** As stored: '1' or '1,2'. */
  readonly slots: string;
  /** As it was admitted, whatever it was moved to since: '12.13', or nothing. */
  readonly seats: string;
  readonly fingerprint: string;
}

/**
 * The same id with other content is a fault, whether it was stored before or comes earlier in the batch. Slots and seats are not
 * compared for an order that has ended: a copy of its admission that the gate executed late may have been given others.
 */
export function mustBeSame(batch: readonly OrderMessage[], rows: ReadonlyMap<string, StoredContent>): void {
  const contents = new Map<string, string>();
  const holds = (orderId: string): boolean => !hasGivenBack(rows.get(orderId)?.order.status ?? 'queued');
  for (const [orderId, { order, slots, seats, fingerprint }] of rows)
    contents.set(orderId, contentOf(order, holds(orderId) ? `${slots}\n${seats}` : '', fingerprint));
  for (const message of batch) {
    const held = holds(message.orderId) ? `${slotsText(message)}\n${seatsText(message.seats ?? NO_SEATS)}` : '';
    const content = contentOf(message, held, message.fingerprint);
    const known = contents.get(message.orderId);
    if (known === undefined) contents.set(message.orderId, content);
    else if (known !== content) {
      throw new TerminalError('order_id_reused', `order ${message.orderId} is stored with other content`);
    }
  }
}

function contentOf(
  order: Pick<OrderMessage, 'saleId' | 'itemId' | 'buyer' | 'quantity'>,
  held: string,
  fingerprint: string,
): string {
  return [order.saleId, order.itemId, order.buyer, order.quantity, held, fingerprint].join('\n');
}
