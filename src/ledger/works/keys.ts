import { KEY_KEPT_MS, type KeyBinding, type KeyScope } from '../port/keys.ts';
import type { AdminCall } from '../port/sales.ts';
import {
  ABOUT_NOW,
  type Cells,
  CLOCK,
  type LifeDialect,
  nowOf,
  query,
  type Result,
  type Row,
  type Step,
  type Work,
} from './work.ts';

/** A big sale leaves millions of keys a day: so many are deleted in one transaction. */
export const PRUNED_AT_ONCE = 500;

const SCOPE_NAMES = ['caller', 'acting_for', 'operation', 'subject', 'key'];
const COLUMNS = [...SCOPE_NAMES, 'fingerprint', 'answer', 'created_at'];
const SCOPE = SCOPE_NAMES.map((name) => `"${name}" = ?`).join(' AND ');
const BIND_AGAIN = `UPDATE call_keys SET fingerprint = ?, answer = ?, created_at = ? WHERE ${SCOPE} AND created_at <= ?`;

function scopeOf({ caller, actingFor, operation, subject, key }: KeyScope): string[] {
  return [caller, actingFor ?? '', operation, subject, key];
}

/** What a call was answered. */
export interface FirstAnswer {
  readonly keyed: NonNullable<AdminCall['keyed']>;
  readonly answer: string;
}

export function* findKey(scope: KeyScope): Work<KeyBinding | null> {
  const [found, clock] = yield [selectKey(scope), CLOCK];
  const row = found!.rows[0];
  return row === undefined || isOver(row, nowOf(clock)) ? null : bindingOf(row);
}

export function selectKey(scope: KeyScope): Step {
  return query(`SELECT fingerprint, answer, created_at FROM call_keys WHERE ${SCOPE}`, ...scopeOf(scope));
}

/** What stands in the way of a call with this key; null: nothing. */
export function repeatOf(
  call: AdminCall,
  found: Result,
  nowMs: number,
): { outcome: 'idempotency_key_reused' } | { outcome: 'replayed'; answer: string } | null {
  const row = found.rows[0];
  if (row === undefined || isOver(row, nowMs)) return null;
  const { fingerprint, answer } = bindingOf(row);
  return fingerprint === call.keyed?.fingerprint
    ? { outcome: 'replayed', answer }
    : { outcome: 'idempotency_key_reused' };
}

/**
 * Binds the key in the transaction of its call; `found` is what `selectKey` has found. If another process has bound it
 * since, no row is written, and the call is tried again: then it finds the other's answer.
 */
export function bindKey({ keyed, answer }: FirstAnswer, found: Result, nowMs: number): Step {
  const values = [keyed.fingerprint, answer, nowMs];
  const scope = scopeOf(keyed);
  // An expired key may be taken again before it is pruned.
  if (found.rows.length > 0) return { ...query(BIND_AGAIN, ...values, ...scope, nowMs - KEY_KEPT_MS), expected: 1 };
  const rows = [[...scope, ...values]];
  return { do: 'insert', table: 'call_keys', columns: COLUMNS, rows, leavePresent: true, expected: 1 };
}

/** Outside of any transaction. Of each key the first answer counts, unless it has expired. */
export function* bindFirst(answers: readonly FirstAnswer[]): Work<undefined[]> {
  const [clock] = yield [ABOUT_NOW];
  const nowMs = nowOf(clock);
  // Sorted, so that two processes that bind the same keys do not deadlock. Of one key the first answer stays first.
  const bound = answers
    .map(({ keyed, answer }) => ({ scope: scopeOf(keyed), values: [keyed.fingerprint, answer, nowMs] }))
    .sort((a, b) => byText(a.scope, b.scope));
  const rows = bound.map(({ scope, values }) => [...scope, ...values]);
  const [inserted] = yield [{ do: 'insert', table: 'call_keys', columns: COLUMNS, rows, leavePresent: true }];
  if (inserted!.affected < rows.length) {
    yield bound.map(({ scope, values }) => query(BIND_AGAIN, ...values, ...scope, nowMs - KEY_KEPT_MS));
  }
  return answers.map(() => undefined);
}

/** One chunk: keys of calls first, then those of the next orders. 0 when none is left. */
export function* pruneKeys(olderMs: number, { pruneCallKeys, pruneOrderKeys }: LifeDialect): Work<number> {
  const [clock] = yield [CLOCK];
  const beforeMs = nowOf(clock) - olderMs;
  const [forgotten] = yield [query(pruneCallKeys, beforeMs, PRUNED_AT_ONCE)];
  return forgotten!.affected > 0 ? forgotten!.affected : yield* pruneOrderKeys(beforeMs);
}

function byText(a: Cells, b: Cells): number {
  const [one, other] = [a.join('\n'), b.join('\n')];
  return one < other ? -1 : one > other ? 1 : 0;
}

export function isOver(row: Row, nowMs: number): boolean {
  return Number(row.created_at) <= nowMs - KEY_KEPT_MS;
}

function bindingOf(row: Row): KeyBinding {
  return { fingerprint: row.fingerprint as string, answer: row.answer as string };
}
