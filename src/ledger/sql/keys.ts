import {
  type AdminCall,
  KEY_KEPT_MS,
  type KeyBinding,
  type KeyScope,
  type OrderKeyBinding,
  type OrderKeyScope,
  type SaleChange,
} from '../port.ts';
import { ABOUT_NOW, type Cells, nowOf, query, type Row, type Work } from '../work.ts';
import type { Database } from './database.ts';
import type { Session } from './session.ts';

/** A day's keys of a big sale are millions: so many in one transaction. */
const CHUNK = 500;

const SCOPE_NAMES = ['caller', 'acting_for', 'operation', 'subject', 'key'];
const COLUMNS = [...SCOPE_NAMES, 'fingerprint', 'answer', 'created_at'];
const SCOPE_COLUMNS = SCOPE_NAMES.map((name) => `"${name}"`).join(', ');
const SCOPE = SCOPE_NAMES.map((name) => `"${name}" = ?`).join(' AND ');

function scopeOf({ caller, actingFor, operation, subject, key }: KeyScope): string[] {
  return [caller, actingFor ?? '', operation, subject, key];
}

/** Of a call that was done. */
export interface FirstAnswer {
  readonly keyed: NonNullable<AdminCall['keyed']>;
  readonly answer: string;
}

function byText(a: Cells, b: Cells): number {
  const [one, other] = [a.join('\n'), b.join('\n')];
  return one < other ? -1 : one > other ? 1 : 0;
}

/** Idempotency keys: those of orders, which stand in their rows, and those of calls, with their answers. */
export class Keys {
  readonly #database: Database;

  constructor(database: Database) {
    this.#database = database;
  }

  async find(session: Session, scope: KeyScope): Promise<KeyBinding | null> {
    const sql = `SELECT fingerprint, answer, created_at FROM call_keys WHERE ${SCOPE}`;
    const [row] = (await session.query(sql, scopeOf(scope))).rows;
    // One without an answer is of a change that has not committed yet.
    if (row === undefined || row.answer === null || isOver(row, await this.#database.now(session))) return null;
    return { fingerprint: row.fingerprint as string, answer: row.answer as string };
  }

  async findOrder(session: Session, { saleId, buyer, key }: OrderKeyScope): Promise<OrderKeyBinding | null> {
    const { rows } = await session.query(
      'SELECT fingerprint, id, created_at FROM orders WHERE buyer = ? AND sale_id = ? AND idem_key = ?',
      [buyer, BigInt(saleId), key],
    );
    const [row] = rows;
    if (row === undefined || isOver(row, await this.#database.now(session))) return null;
    return { fingerprint: row.fingerprint as string, orderId: row.id as string };
  }

  /**
   * Takes the key for the caller's transaction, or says what a repeat gets. The row itself is the lock: of two processes
   * with the same key the second waits here until the first has committed its answer, or has taken back its row.
   */
  async take(session: Session, call: AdminCall, nowMs: number): Promise<SaleChange | null> {
    if (call.keyed === null) return null;
    const { fingerprint } = call.keyed;
    const scope = scopeOf(call.keyed);
    const { affected } = await session.query(
      `INSERT INTO call_keys (${SCOPE_COLUMNS}, fingerprint, created_at) VALUES (?, ?, ?, ?, ?, ?, ?) ${this.#database.dialect.leavePresent('key')}`,
      [...scope, fingerprint, nowMs],
    );
    if (affected === 1) return null;
    const { rows } = await session.query(
      `SELECT fingerprint, answer, created_at FROM call_keys WHERE ${SCOPE} FOR UPDATE`,
      scope,
    );
    const row = rows[0]!;
    // An expired key may be taken again before it is pruned.
    if (isOver(row, nowMs)) return null;
    if (row.fingerprint !== fingerprint || row.answer === null) return { outcome: 'idempotency_key_reused' };
    return { outcome: 'replayed', answer: row.answer as string };
  }

  /** Outside of any change, and of any transaction: of each the first answer counts, unless it is over. */
  *bindFirst(answers: readonly FirstAnswer[]): Work<undefined[]> {
    const [clock] = yield [ABOUT_NOW];
    const nowMs = nowOf(clock);
    // In one order: of two processes that bind the same keys nobody waits in a circle. Of one key the first stays first.
    const bound = answers
      .map(({ keyed, answer }) => ({ scope: scopeOf(keyed), values: [keyed.fingerprint, answer, nowMs] }))
      .sort((a, b) => byText(a.scope, b.scope));
    const rows = bound.map(({ scope, values }) => [...scope, ...values]);
    const [inserted] = yield [{ do: 'insert', table: 'call_keys', columns: COLUMNS, rows, leavePresent: true }];
    if (inserted!.affected < rows.length) {
      const again = `UPDATE call_keys SET fingerprint = ?, answer = ?, created_at = ? WHERE ${SCOPE} AND created_at <= ?`;
      yield bound.map(({ scope, values }) => query(again, ...values, ...scope, nowMs - KEY_KEPT_MS));
    }
    return answers.map(() => undefined);
  }

  async bindAnswer(session: Session, call: AdminCall, answer: string, nowMs: number): Promise<void> {
    if (call.keyed === null) return;
    await session.query(`UPDATE call_keys SET fingerprint = ?, answer = ?, created_at = ? WHERE ${SCOPE}`, [
      call.keyed.fingerprint,
      answer,
      nowMs,
      ...scopeOf(call.keyed),
    ]);
  }

  /** One chunk, in one transaction: keys of calls first, then the next orders, with a key or without. 0 when none is left. */
  prune(olderMs: number): Promise<number> {
    return this.#database.transaction(async (session) => {
      const beforeMs = (await this.#database.now(session)) - olderMs;
      const { affected } = await session.query(this.#database.dialect.pruneCallKeys, [beforeMs, CHUNK]);
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
