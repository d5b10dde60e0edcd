import { type AdminCall, KEY_KEPT_MS, type KeyBinding, type KeyScope, ordersPath, type SaleChange } from '../port.ts';
import type { Database } from './database.ts';
import type { Row, Session } from './session.ts';

/** A day's keys of a big sale are millions: so many in one transaction. */
const CHUNK = 500;

const SCOPE = 'caller = ? AND path = ? AND "key" = ?';

/** The sale whose orders a path is about. */
const ORDERS_PATH = new RegExp(`^${ordersPath('(\\d+)')}$`);

/** Idempotency keys: those of orders, which stand in their rows, and those of administrative calls, with their answers. */
export class Keys {
  readonly #database: Database;

  constructor(database: Database) {
    this.#database = database;
  }

  async find(session: Session, { caller, path, key }: KeyScope): Promise<KeyBinding | null> {
    const saleId = ORDERS_PATH.exec(path)?.[1];
    const { rows } = await (saleId === undefined
      ? session.query(`SELECT fingerprint, NULL AS id, answer, created_at FROM answers WHERE ${SCOPE}`, [
          caller,
          path,
          key,
        ])
      : session.query(
          'SELECT fingerprint, id, NULL AS answer, created_at FROM orders WHERE buyer = ? AND sale_id = ? AND idem_key = ?',
          [caller, BigInt(saleId), key],
        ));
    const [row] = rows;
    if (row === undefined || isOver(row, await this.#database.now(session))) return null;
    return {
      fingerprint: row.fingerprint as string,
      orderId: row.id as string | null,
      answer: row.answer as string | null,
    };
  }

  /**
   * Takes the key for the caller's transaction, or says what a repeat gets. The row itself is the lock: of two processes
   * with the same key the second waits here until the first has committed its answer, or has taken back its row.
   */
  async take(session: Session, call: AdminCall, nowMs: number): Promise<SaleChange | null> {
    if (call.keyed === null) return null;
    const { caller, path, key, fingerprint } = call.keyed;
    const { affected } = await session.query(
      `INSERT INTO answers (caller, path, "key", fingerprint, created_at) VALUES (?, ?, ?, ?, ?) ${this.#database.dialect.leavePresent('key')}`,
      [caller, path, key, fingerprint, nowMs],
    );
    if (affected === 1) return null;
    const { rows } = await session.query(
      `SELECT fingerprint, answer, created_at FROM answers WHERE ${SCOPE} FOR UPDATE`,
      [caller, path, key],
    );
    const row = rows[0]!;
    // An expired key may be taken again before it is pruned.
    if (isOver(row, nowMs)) return null;
    if (row.fingerprint !== fingerprint || row.answer === null) return { outcome: 'idempotency_key_reused' };
    return { outcome: 'replayed', answer: row.answer as string };
  }

  /** Outside of any change: the first answer counts, unless it is over. */
  async bindFirst(session: Session, keyed: NonNullable<AdminCall['keyed']>, answer: string): Promise<void> {
    const { caller, path, key, fingerprint } = keyed;
    const nowMs = await this.#database.now(session);
    const { leavePresent } = this.#database.dialect;
    await session.query(
      `INSERT INTO answers (caller, path, "key", fingerprint, answer, created_at) VALUES (?, ?, ?, ?, ?, ?) ${leavePresent('key')}`,
      [caller, path, key, fingerprint, answer, nowMs],
    );
    await session.query(
      `UPDATE answers SET fingerprint = ?, answer = ?, created_at = ? WHERE ${SCOPE} AND created_at <= ?`,
      [fingerprint, answer, nowMs, caller, path, key, nowMs - KEY_KEPT_MS],
    );
  }

  async bindAnswer(session: Session, call: AdminCall, answer: string, nowMs: number): Promise<void> {
    if (call.keyed === null) return;
    const { caller, path, key, fingerprint } = call.keyed;
    await session.query(`UPDATE answers SET fingerprint = ?, answer = ?, created_at = ? WHERE ${SCOPE}`, [
      fingerprint,
      answer,
      nowMs,
      caller,
      path,
      key,
    ]);
  }

  /** One chunk, in one transaction: answers first, then the next orders, with a key or without. 0 when none is left. */
  prune(olderMs: number): Promise<number> {
    return this.#database.transaction(async (session) => {
      const beforeMs = (await this.#database.now(session)) - olderMs;
      const { affected } = await session.query(this.#database.dialect.pruneAnswers, [beforeMs, CHUNK]);
      return affected > 0 ? affected : await this.#pruneOrders(session, beforeMs);
    });
  }

  /** The next orders above the mark, up to the first that is young. Returns how many, whether they had a key or not. */
  async #pruneOrders(session: Session, beforeMs: number): Promise<number> {
    const { rows: marks } = await session.query('SELECT order_id FROM pruned WHERE one = 1 FOR UPDATE');
    const mark = BigInt(marks[0]!.order_id as string);
    const { rows: orders } = await session.query('SELECT id, created_at FROM orders WHERE id > ? ORDER BY id LIMIT ?', [
      mark,
      CHUNK,
    ]);
    const young = orders.findIndex((row) => Number(row.created_at) >= beforeMs);
    const passed = young < 0 ? orders.length : young;
    if (passed === 0) return 0;
    const upTo = BigInt(orders[passed - 1]!.id as string);
    const forget = 'UPDATE orders SET idem_key = NULL WHERE id > ? AND id <= ? AND idem_key IS NOT NULL';
    await session.query(forget, [mark, upTo]);
    await session.query('UPDATE pruned SET order_id = ? WHERE one = 1', [upTo]);
    return passed;
  }
}

function isOver(row: Row, nowMs: number): boolean {
  return Number(row.created_at) <= nowMs - KEY_KEPT_MS;
}
