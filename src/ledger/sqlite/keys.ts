import type { DatabaseSync } from 'node:sqlite';
import { type AdminCall, KEY_KEPT_MS, type KeyBinding, type KeyScope, ordersPath } from '../port.ts';
import type { Tail } from './tail.ts';

/** Idempotency keys: those of orders (through the tail first) and those of administrative calls. */
export class Keys {
  readonly #tail: Tail;
  readonly #find;
  readonly #bind;
  readonly #prune;

  constructor(db: DatabaseSync, tail: Tail) {
    this.#tail = tail;
    this.#find = db.prepare(
      'SELECT fingerprint, CAST(order_id AS TEXT) AS orderId, answer, created_at AS createdAtMs FROM keys WHERE caller = ? AND path = ? AND key = ?',
    );
    // An expired key may be taken again before it is pruned.
    this.#bind = db.prepare(
      `INSERT INTO keys (caller, path, key, fingerprint, answer, created_at) VALUES (?, ?, ?, ?, ?, ?)
       ON CONFLICT DO UPDATE SET fingerprint = excluded.fingerprint, order_id = NULL, answer = excluded.answer, created_at = excluded.created_at`,
    );
    this.#prune = db.prepare(
      'DELETE FROM keys WHERE (caller, path, key) IN (SELECT caller, path, key FROM keys WHERE created_at < ? ORDER BY created_at LIMIT 2000)',
    );
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

  /** A bounded number at a time: a day's keys of a big sale are millions. */
  prune(beforeMs: number): number {
    return Number(this.#prune.run(beforeMs).changes);
  }
}
