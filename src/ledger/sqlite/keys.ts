import type { DatabaseSync } from 'node:sqlite';
import { type AdminCall, KEY_KEPT_MS, type KeyBinding, type KeyScope, ordersPath } from '../port.ts';
import type { Tail } from './tail.ts';

/** Idempotency keys: those of orders (through the tail first) and those of administrative calls. */
export class Keys {
  readonly #tail: Tail;
  readonly #find;
  readonly #bind;
  readonly #pruneAnswers;
  readonly #oldOrders;
  readonly #pruneOrder;
  readonly #pruned;

  constructor(db: DatabaseSync, tail: Tail) {
    this.#tail = tail;
    this.#find = db.prepare(
      'SELECT fingerprint, CAST(order_id AS TEXT) AS orderId, answer, created_at AS createdAtMs FROM keys WHERE caller = ? AND path = ? AND key = ?',
    );
    // An expired key may be taken again before it is pruned.
    this.#bind = db.prepare(
      `INSERT INTO keys (caller, path, key, fingerprint, answer, created_at) VALUES (?, ?, ?, ?, ?, ?)
       ON CONFLICT DO UPDATE SET fingerprint = excluded.fingerprint, order_id = NULL, answer = excluded.answer, created_at = excluded.created_at
       WHERE keys.created_at <= excluded.created_at - ${KEY_KEPT_MS}`,
    );
    this.#pruneAnswers = db.prepare(
      `DELETE FROM keys WHERE (caller, path, key) IN
         (SELECT caller, path, key FROM keys WHERE order_id IS NULL AND created_at < ? ORDER BY created_at LIMIT ${CHUNK})`,
    );
    this.#oldOrders = db.prepare(
      `SELECT seq, id, CAST(sale_id AS TEXT) AS saleId, buyer, idem_key AS key, created_at AS createdAtMs FROM orders
       WHERE seq > (SELECT pruned FROM folded) AND seq <= (SELECT seq FROM folded) ORDER BY seq LIMIT ${CHUNK}`,
    );
    this.#oldOrders.setReadBigInts(true);
    this.#pruneOrder = db.prepare('DELETE FROM keys WHERE caller = ? AND path = ? AND key = ? AND order_id = ?');
    this.#pruned = db.prepare('UPDATE folded SET pruned = ?');
  }

  find({ caller, path, key }: KeyScope, nowMs: number): KeyBinding | null {
    for (const order of this.#tail.of(caller)) {
      if (order.key === key && ordersPath(order.saleId) === path && order.createdAtMs > nowMs - KEY_KEPT_MS) {
        return { fingerprint: order.fingerprint, orderId: order.orderId, answer: null };
      }
    }
    const row = this.#find.get(caller, path, key) as (KeyBinding & { createdAtMs: number }) | undefined;
    if (row === undefined || row.createdAtMs <= nowMs - KEY_KEPT_MS) return null;
    return { fingerprint: row.fingerprint, orderId: row.orderId, answer: row.answer };
  }

  bindAnswer(keyed: NonNullable<AdminCall['keyed']>, answer: string, nowMs: number): void {
    this.#bind.run(keyed.caller, keyed.path, keyed.key, keyed.fingerprint, answer, nowMs);
  }

  /**
   * One chunk of the keys bound before that instant: those of administrative calls first, then the next orders, with a key or
   * without. Returns how many rows that was; 0 when none is left.
   */
  prune(beforeMs: number): number {
    const answers = Number(this.#pruneAnswers.run(beforeMs).changes);
    if (answers > 0) return answers;
    const orders = this.#oldOrders.all() as unknown as OldOrder[];
    const old = orders.filter(({ createdAtMs }) => createdAtMs < beforeMs);
    for (const { id, saleId, buyer, key } of old) {
      // Not one that was bound anew since then.
      if (key !== null) this.#pruneOrder.run(buyer, ordersPath(saleId), key, id);
    }
    if (old.length > 0) this.#pruned.run(old.at(-1)!.seq);
    return old.length;
  }
}

/** A day's keys of a big sale are millions: so many in one transaction. */
const CHUNK = 500;

interface OldOrder {
  seq: bigint;
  id: bigint;
  saleId: string;
  buyer: string;
  key: string | null;
  createdAtMs: bigint;
}
