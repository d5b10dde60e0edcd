import type { DatabaseSync } from 'node:sqlite';
import { invariant } from '../../base/errors.ts';
import { ordersPath } from '../port.ts';
import { parseSlots, type Tail, type TailOrder } from './tail.ts';

/**
 * Folds the tail into claims, keys and buyer_orders, in slices short enough for the event loop. A round takes all that
 * is in the tail when it begins, sorted by key; `folded.seq` moves, and the tail is let go, when the round is whole.
 * A crash in between repeats the round, and rows that are there already are left as they are.
 */
export class Fold {
  readonly #tail: Tail;
  readonly #claim;
  readonly #claimOf;
  readonly #key;
  readonly #buyerOrder;
  readonly #mark;
  #round: { orders: TailOrder[]; next: number; upTo: number } | null = null;

  constructor(db: DatabaseSync, tail: Tail) {
    this.#tail = tail;
    this.#claim = db.prepare(
      'INSERT INTO claims (sale_id, buyer, slot, order_id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING',
    );
    this.#claimOf = db.prepare(
      'SELECT CAST(order_id AS TEXT) AS orderId FROM claims WHERE sale_id = ? AND buyer = ? AND slot = ?',
    );
    this.#key = db.prepare(
      'INSERT INTO keys (caller, path, key, fingerprint, order_id, created_at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING',
    );
    this.#buyerOrder = db.prepare('INSERT INTO buyer_orders (buyer, order_id) VALUES (?, ?) ON CONFLICT DO NOTHING');
    this.#mark = db.prepare('UPDATE folded SET seq = ?');
  }

  /** Work left in this round and the next. */
  get backlog(): number {
    return this.#tail.size;
  }

  /** One slice, inside the caller's transaction. Returns what must happen after that transaction has committed. */
  slice(lastSeq: number, timeIsUp: () => boolean): () => void {
    this.#round ??= { orders: this.#tail.upTo(lastSeq), next: 0, upTo: lastSeq };
    const round = this.#round;
    let next = round.next;
    for (; next < round.orders.length; next++) {
      // The clock is read once in 64 rows: a slice may run over by that much.
      if ((next & 63) === 63 && next > round.next && timeIsUp()) break;
      this.#write(round.orders[next]!);
    }
    if (next < round.orders.length) {
      return () => {
        round.next = next;
      };
    }
    this.#mark.run(round.upTo);
    return () => {
      for (const order of round.orders) this.#tail.remove(order);
      this.#round = null;
    };
  }

  #write(order: TailOrder): void {
    const id = BigInt(order.orderId);
    const sale = BigInt(order.saleId);
    for (const slot of parseSlots(order.slots)) {
      if (this.#claim.run(sale, order.buyer, slot, id).changes === 0) {
        const { orderId } = this.#claimOf.get(sale, order.buyer, slot) as { orderId: string };
        invariant(orderId === order.orderId, `orders ${orderId} and ${order.orderId} hold the same slot (P2)`);
      }
    }
    if (order.key !== null) {
      this.#key.run(order.buyer, ordersPath(order.saleId), order.key, order.fingerprint, id, order.createdAtMs);
    }
    this.#buyerOrder.run(order.buyer, id);
  }
}
