import type { DatabaseSync } from 'node:sqlite';
import {
  type AdminCall,
  KEY_KEPT_MS,
  type KeyBinding,
  type KeyScope,
  type OrderKeyBinding,
  type OrderKeyScope,
} from '../port.ts';
import type { Tail } from './tail.ts';

/** Idempotency keys: those of calls, with their answers, and those of orders (through the tail first). */
export class Keys {
  /** Orders up to this id have keys that do not say who used them. */
  readonly unscopedUpTo: string | null;
  readonly #tail: Tail;
  readonly #find;
  readonly #bind;
  readonly #findOrder;
  readonly #pruneCalls;
  readonly #oldOrders;
  readonly #pruneOrder;
  readonly #pruned;

  constructor(db: DatabaseSync, tail: Tail) {
    this.#tail = tail;
    this.#find = db.prepare(
      `SELECT fingerprint, answer, created_at AS createdAtMs FROM call_keys
       WHERE caller = ? AND acting_for = ? AND operation = ? AND subject = ? AND key = ?`,
    );
    // An expired key may be taken again before it is pruned.
    this.#bind = db.prepare(
      `INSERT INTO call_keys (caller, acting_for, operation, subject, key, fingerprint, answer, created_at)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?)
       ON CONFLICT DO UPDATE SET fingerprint = excluded.fingerprint, answer = excluded.answer, created_at = excluded.created_at
       WHERE call_keys.created_at <= excluded.created_at - ${KEY_KEPT_MS}`,
    );
    this.#findOrder = db.prepare(
      `SELECT fingerprint, CAST(order_id AS TEXT) AS orderId, created_at AS createdAtMs FROM order_keys
       WHERE sale_id = ? AND buyer = ? AND key = ?`,
    );
    this.#pruneCalls = db.prepare(
      `DELETE FROM call_keys WHERE (caller, acting_for, operation, subject, key) IN
         (SELECT caller, acting_for, operation, subject, key FROM call_keys WHERE created_at < ? ORDER BY created_at LIMIT ${CHUNK})`,
    );
    this.#oldOrders = db.prepare(
      `SELECT seq, id, sale_id AS saleId, buyer, idem_key AS key, created_at AS createdAtMs FROM orders
       WHERE seq > (SELECT pruned FROM folded) AND seq <= (SELECT seq FROM folded) ORDER BY seq LIMIT ${CHUNK}`,
    );
    this.#oldOrders.setReadBigInts(true);
    this.#pruneOrder = db.prepare(
      'DELETE FROM order_keys WHERE sale_id = ? AND buyer = ? AND key = ? AND order_id = ?',
    );
    this.#pruned = db.prepare('UPDATE folded SET pruned = ?');
    const unscoped = db.prepare('SELECT CAST(up_to AS TEXT) AS upTo FROM unscoped_keys').get();
    this.unscopedUpTo = (unscoped as { upTo: string } | undefined)?.upTo ?? null;
  }

  find({ caller, actingFor, operation, subject, key }: KeyScope, nowMs: number): KeyBinding | null {
    const row = this.#find.get(caller, actingFor ?? '', operation, subject, key) as Aged<KeyBinding> | undefined;
    if (row === undefined || row.createdAtMs <= nowMs - KEY_KEPT_MS) return null;
    return { fingerprint: row.fingerprint, answer: row.answer };
  }

  findOrder({ saleId, buyer, key }: OrderKeyScope, nowMs: number): OrderKeyBinding | null {
    for (const order of this.#tail.of(buyer)) {
      if (order.key === key && order.saleId === saleId && order.createdAtMs > nowMs - KEY_KEPT_MS) {
        return { fingerprint: order.fingerprint, orderId: order.orderId };
      }
    }
    const row = this.#findOrder.get(BigInt(saleId), buyer, key) as Aged<OrderKeyBinding> | undefined;
    if (row === undefined || row.createdAtMs <= nowMs - KEY_KEPT_MS) return null;
    return { fingerprint: row.fingerprint, orderId: row.orderId };
  }

  bindAnswer(keyed: NonNullable<AdminCall['keyed']>, answer: string, nowMs: number): void {
    const { caller, actingFor, operation, subject, key, fingerprint } = keyed;
    this.#bind.run(caller, actingFor ?? '', operation, subject, key, fingerprint, answer, nowMs);
  }

  /**
   * One chunk of the keys bound before that instant: those of administrative calls first, then the next orders, with a key or
   * without. Returns how many rows that was; 0 when none is left.
   */
  prune(beforeMs: number): number {
    const calls = Number(this.#pruneCalls.run(beforeMs).changes);
    if (calls > 0) return calls;
    const orders = this.#oldOrders.all() as unknown as OldOrder[];
    const old = orders.filter(({ createdAtMs }) => createdAtMs < beforeMs);
    for (const { id, saleId, buyer, key } of old) {
      // Not one that was bound anew since then.
      if (key !== null) this.#pruneOrder.run(saleId, buyer, key, id);
    }
    if (old.length > 0) this.#pruned.run(old.at(-1)!.seq);
    return old.length;
  }
}

/** A day's keys of a big sale are millions: so many in one transaction. */
const CHUNK = 500;

type Aged<T> = T & { createdAtMs: number };

interface OldOrder {
  seq: bigint;
  id: bigint;
  saleId: bigint;
  buyer: string;
  key: string | null;
  createdAtMs: bigint;
}
