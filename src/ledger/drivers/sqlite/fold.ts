import type { DatabaseSync } from 'node:sqlite';
import { invariant } from '../../../base/errors.ts';
import { parseSlots, type Tail, type TailOrder, type TailSeats } from './tail.ts';

/** Orders gathered and sorted in one go: some milliseconds of the event loop. */
const RUN_ORDERS = 8192;

/**
 * A round of folding: all that is in the tail when it begins.
 *
 *   gathering   takes the tail in runs, each sorted by key;
 *   writing     merges the runs and writes their rows in key order; what is written leaves the tail at its commit.
 *
 * `folded.seq` is raised when the round is complete. After a crash the round is repeated, and rows that exist stay.
 */
interface Round {
  upTo: number;
  source: Iterator<TailOrder>;
  gathered: boolean;
  runs: { orders: TailOrder[]; next: number }[];
}

/** Folds the tail into claims, seat_claims, order_keys and buyer_orders, in slices short enough for the event loop. */
export class Fold {
  readonly #tail: Tail;
  readonly #claim;
  readonly #claimOf;
  readonly #seat;
  readonly #seatOf;
  readonly #key;
  readonly #buyerOrder;
  readonly #mark;
  #round: Round | null = null;

  constructor(db: DatabaseSync, tail: Tail) {
    this.#tail = tail;
    this.#claim = db.prepare(
      'INSERT INTO claims (sale_id, buyer, slot, order_id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING',
    );
    this.#claimOf = db.prepare(
      'SELECT CAST(order_id AS TEXT) AS orderId FROM claims WHERE sale_id = ? AND buyer = ? AND slot = ?',
    );
    this.#seat = db.prepare(
      'INSERT INTO seat_claims (item_id, seat, order_id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING',
    );
    this.#seatOf = db.prepare(
      'SELECT CAST(order_id AS TEXT) AS orderId FROM seat_claims WHERE item_id = ? AND seat = ?',
    );
    // An existing row may be of a key that has expired and was bound again: the younger binding counts.
    this.#key = db.prepare(
      `INSERT INTO order_keys (sale_id, buyer, key, fingerprint, order_id, created_at) VALUES (?, ?, ?, ?, ?, ?)
       ON CONFLICT DO UPDATE SET fingerprint = excluded.fingerprint, order_id = excluded.order_id,
         created_at = excluded.created_at WHERE excluded.created_at > order_keys.created_at`,
    );
    this.#buyerOrder = db.prepare('INSERT INTO buyer_orders (buyer, order_id) VALUES (?, ?) ON CONFLICT DO NOTHING');
    this.#mark = db.prepare('UPDATE folded SET seq = ?');
  }

  get backlog(): number {
    return this.#tail.size;
  }

  /** Gathers and sorts, which needs no transaction. True: there is something to write. */
  prepare(lastSeq: number): boolean {
    if (this.#round === null) {
      if (this.#tail.size === 0) return false;
      this.#round = { upTo: lastSeq, source: this.#tail.all(), gathered: false, runs: [] };
    }
    if (this.#round.gathered) return true;
    this.#gather(this.#round);
    return false;
  }

  #gather(round: Round): void {
    const orders: TailOrder[] = [];
    while (orders.length < RUN_ORDERS) {
      const { done, value } = round.source.next();
      if (done) {
        round.gathered = true;
        break;
      }
      if (value.seq <= round.upTo) orders.push(value);
    }
    if (orders.length > 0) round.runs.push({ orders: orders.sort(byKey), next: 0 });
  }

  /** Writes until time is up, inside the caller's transaction. Call the returned function after its commit. */
  write(timeIsUp: () => boolean): () => void {
    const round = this.#round!;
    const before = round.runs.map(({ next }) => next);
    const written: TailOrder[] = [];
    let whole = false;
    for (;;) {
      // The clock is read once in 64 rows: a slice may run over by that much.
      if ((written.length & 63) === 63 && timeIsUp()) break;
      const order = takeFirst(round);
      if (order === null) {
        whole = true;
        break;
      }
      this.#writeOrder(order);
      written.push(order);
    }
    whole ||= round.runs.every(({ next, orders }) => next === orders.length);
    if (whole) this.#mark.run(round.upTo);
    const after = round.runs.map(({ next }) => next);
    // Before the commit nothing counts: a slice that fails is written again.
    for (const [at, run] of round.runs.entries()) run.next = before[at]!;
    return () => {
      for (const [at, run] of round.runs.entries()) run.next = after[at]!;
      for (const order of written) this.#tail.remove(order);
      if (whole) this.#round = null;
    };
  }

  #writeOrder(order: TailOrder): void {
    const id = BigInt(order.orderId);
    const sale = BigInt(order.saleId);
    // An order that has ended holds nothing: another may have its slots, and be folded already.
    for (const slot of order.live ? parseSlots(order.slots) : []) {
      if (this.#claim.run(sale, order.buyer, slot, id).changes === 0) {
        const { orderId } = this.#claimOf.get(sale, order.buyer, slot) as { orderId: string };
        invariant(orderId === order.orderId, `orders ${orderId} and ${order.orderId} hold the same slot (P2)`);
      }
    }
    if (order.live && order.seats !== null) this.#writeSeats(order, order.seats, id);
    if (order.key !== null) this.#key.run(sale, order.buyer, order.key, order.fingerprint, id, order.createdAtMs);
    this.#buyerOrder.run(order.buyer, id);
  }

  /** One that was moved may have its seats there already. */
  #writeSeats(order: TailOrder, { itemId, numbers }: TailSeats, id: bigint): void {
    const item = BigInt(itemId);
    for (const seat of numbers) {
      if (this.#seat.run(item, seat, id).changes === 1) continue;
      const { orderId } = this.#seatOf.get(item, seat) as { orderId: string };
      invariant(orderId === order.orderId, `orders ${orderId} and ${order.orderId} have the same seat ${seat} (P1)`);
    }
  }
}

/** The smallest order of all runs. There are few (25 for 200 000 orders), so comparing all of them is quick. */
function takeFirst(round: Round): TailOrder | null {
  let first: Round['runs'][number] | null = null;
  for (const run of round.runs) {
    if (run.next === run.orders.length) continue;
    if (first === null || byKey(run.orders[run.next]!, first.orders[first.next]!) < 0) first = run;
  }
  return first === null ? null : first.orders[first.next++]!;
}

function byKey(a: TailOrder, b: TailOrder): number {
  return compare(a.saleId, b.saleId) || compare(a.buyer, b.buyer) || a.seq - b.seq;
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
