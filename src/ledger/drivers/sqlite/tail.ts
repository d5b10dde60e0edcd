/**
 * The tail: orders that are committed in `orders` and not yet folded into claims, order_keys and buyer_orders.
 *
 * Those three tables are ordered by buyer, and buyers come in random order: with a million rows every insert touches a
 * page of its own, and the commit a buyer waits for would write hundreds of pages (measured: 50–130 µs an order
 * instead of about 10). So the commit only appends to `orders`; the tail stands in for the three tables until `fold` writes
 * them in key order, many rows a page. Every lookup asks both. After a crash the tail is read back from `orders`.
 *
 * An order that ends while in the tail stays for its key and its place in the buyer's list, and no longer holds slots.
 */
export interface TailOrder {
  readonly seq: number;
  readonly orderId: string;
  readonly saleId: string;
  readonly buyer: string;
  /** As stored: '1' or '1,2'. */
  readonly slots: string;
  /** False once it has ended: its slots are free, and another order may have them. */
  live: boolean;
  readonly key: string | null;
  readonly fingerprint: string;
  readonly createdAtMs: number;
}

export function parseSlots(slots: string): number[] {
  return slots.split(',').map(Number);
}

export class Tail {
  readonly #byBuyer = new Map<string, TailOrder | TailOrder[]>();
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
  }

  /** Its end is committed. A round of folding that has gathered it sees this, too: it is the same object. */
  end(buyer: string, orderId: string): void {
    for (const order of this.of(buyer)) if (order.orderId === orderId) order.live = false;
  }

  of(buyer: string): readonly TailOrder[] {
    const mine = this.#byBuyer.get(buyer);
    if (mine === undefined) return NONE;
    return Array.isArray(mine) ? mine : [mine];
  }

  /** Limiter that live orders of this buyer have in the sale. */
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
