/**
 * The tail: orders that are committed in `orders` and not yet folded into claims, seat_claims, order_keys and buyer_orders.
 *
 * Three of them are ordered by buyer, and buyers come in random order: with a million rows every insert touches a
 * page of its own, and the commit a buyer waits for would write hundreds of pages (measured: 50–130 µs an order
 * instead of about 10). So the commit only appends to `orders`; the tail stands in for the tables until `fold` writes
 * them in key order, many rows a page. Every lookup asks both. After a crash the tail is read back from `orders`.
 *
 * An order that ends while in the tail stays for its key and its place in the buyer's list, and no longer holds slots or seats.
 */
export interface TailOrder {
  readonly seq: number;
  readonly orderId: string;
  readonly saleId: string;
  readonly buyer: string;
  /** As stored: '1' or '1,2'. */
  readonly slots: string;
  /** False once it has ended: its slots and seats are free, and another order may have them. */
  live: boolean;
  readonly key: string | null;
  readonly fingerprint: string;
  readonly createdAtMs: number;
  /** Those that it has now; null: its item is counted. */
  seats: TailSeats | null;
}

export interface TailSeats {
  readonly itemId: string;
  readonly numbers: readonly number[];
}

export function parseSlots(slots: string): number[] {
  return slots.split(',').map(Number);
}

export class Tail {
  readonly #byBuyer = new Map<string, TailOrder | TailOrder[]>();
  /** Who has a seat, by item and seat: live orders only. */
  readonly #bySeat = new Map<string, Map<number, TailOrder>>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  add(order: TailOrder): void {
    const mine = this.#byBuyer.get(order.buyer);
    if (mine === undefined) this.#byBuyer.set(order.buyer, order);
    else if (Array.isArray(mine)) mine.push(order);
    else this.#byBuyer.set(order.buyer, [mine, order]);
    this.#size++;
    if (order.live) this.#sit(order);
  }

  remove(order: TailOrder): void {
    const mine = this.#byBuyer.get(order.buyer);
    if (Array.isArray(mine)) {
      const at = mine.indexOf(order);
      if (at < 0) return;
      mine.splice(at, 1);
      if (mine.length === 0) this.#byBuyer.delete(order.buyer);
    } else if (mine === order) {
      this.#byBuyer.delete(order.buyer);
    } else {
      return;
    }
    this.#size--;
    this.#rise(order);
  }

  /** Its end is committed. A round of folding that has gathered it sees this, too: it is the same object. */
  end(buyer: string, orderId: string): void {
    for (const order of this.of(buyer)) {
      if (order.orderId !== orderId) continue;
      order.live = false;
      this.#rise(order);
    }
  }

  /** Its move to other seats is committed. */
  reseat(buyer: string, orderId: string, numbers: readonly number[]): void {
    for (const order of this.of(buyer)) {
      if (order.orderId !== orderId || order.seats === null) continue;
      this.#rise(order);
      order.seats = { ...order.seats, numbers };
      if (order.live) this.#sit(order);
    }
  }

  #sit(order: TailOrder): void {
    if (order.seats === null) return;
    const { itemId, numbers } = order.seats;
    let seats = this.#bySeat.get(itemId);
    if (seats === undefined) {
      seats = new Map();
      this.#bySeat.set(itemId, seats);
    }
    for (const seat of numbers) seats.set(seat, order);
  }

  /** Its own seats only: another order may have one of them by now. */
  #rise(order: TailOrder): void {
    if (order.seats === null) return;
    const { itemId, numbers } = order.seats;
    const seats = this.#bySeat.get(itemId);
    if (seats === undefined) return;
    for (const seat of numbers) if (seats.get(seat) === order) seats.delete(seat);
    if (seats.size === 0) this.#bySeat.delete(itemId);
  }

  /** Of these seats, those that live orders have. */
  takersOf(itemId: string, wanted: readonly number[]): [seat: number, orderId: string][] {
    const seats = this.#bySeat.get(itemId);
    if (seats === undefined) return [];
    return wanted.flatMap((seat): [number, string][] => {
      const order = seats.get(seat);
      return order === undefined ? [] : [[seat, order.orderId]];
    });
  }

  of(buyer: string): readonly TailOrder[] {
    const mine = this.#byBuyer.get(buyer);
    if (mine === undefined) return NONE;
    return Array.isArray(mine) ? mine : [mine];
  }

  /** The slots that live orders of this buyer have in the sale. */
  slotsOf(saleId: string, buyer: string): readonly number[] {
    const mine = this.#byBuyer.get(buyer);
    if (mine === undefined) return NO_SLOTS;
    return this.of(buyer).flatMap((order) => (order.live && order.saleId === saleId ? parseSlots(order.slots) : []));
  }

  /** Every order, in no particular order. Orders added or removed meanwhile may be included or not. */
  *all(): Generator<TailOrder> {
    for (const mine of this.#byBuyer.values()) {
      if (Array.isArray(mine)) yield* mine.slice();
      else yield mine;
    }
  }
}

const NONE: readonly TailOrder[] = [];
const NO_SLOTS: readonly number[] = [];
