import { invariant } from '../../base/errors.ts';
import type { SandboxIntent } from '../../model/payment.ts';
import type { NewIntent } from '../port/sandbox.ts';
import {
  ABOUT_NOW,
  type Cells,
  CLOCK,
  COMMIT,
  type LifeDialect,
  nowOf,
  query,
  type Row,
  type Work,
  Writes,
} from './work.ts';

const COLUMNS = ['id', 'order_id', 'amount', 'currency', 'state', 'due_at', 'told', 'refunded'];
const SELECT = `SELECT ${COLUMNS.join(', ')} FROM sandbox_intents`;

/** Needs no transaction: the first to insert an id stores it, and every caller reads what is stored. */
export function* putIntents(intents: readonly NewIntent[]): Work<SandboxIntent[]> {
  const [clock] = yield [ABOUT_NOW];
  const nowMs = nowOf(clock);
  const wanted = intents.map(({ dueAfterMs, ...intent }): SandboxIntent => {
    return { ...intent, dueAtMs: dueAfterMs === null ? null : nowMs + dueAfterMs };
  });
  const rows = wanted.map(({ id, orderId, amount, state, dueAtMs, told, refunded }): Cells => {
    return [BigInt(id), BigInt(orderId), amount.amount, amount.currency, state, dueAtMs, told ? 1 : 0, refunded];
  });
  const [put] = yield [{ do: 'insert', table: 'sandbox_intents', columns: COLUMNS, rows, leavePresent: true }];
  if (put!.affected === rows.length) return wanted;
  const [found] = yield [
    query(
      `${SELECT} WHERE id IN (?)`,
      wanted.map(({ id }) => BigInt(id)),
    ),
  ];
  const stored = new Map(found!.rows.map(intentOfRow).map((intent) => [intent.id, intent]));
  return wanted.map(({ id }) => stored.get(id)!);
}

export function* getIntent(id: string): Work<SandboxIntent | null> {
  const [found] = yield [query(`${SELECT} WHERE id = ?`, BigInt(id))];
  return found!.rows.map(intentOfRow)[0] ?? null;
}

export interface IntentMove {
  readonly id: string;
  readonly from: readonly SandboxIntent['state'][];
  readonly to: SandboxIntent['state'];
}

/** Each intent at most once: a second move of it would not see the first. */
export function* moveIntents(batch: readonly IntentMove[], { forUpdate }: LifeDialect): Work<(SandboxIntent | null)[]> {
  invariant(new Set(batch.map(({ id }) => id)).size === batch.length, 'an intent is moved once');
  const sql = `${SELECT} WHERE id IN (?) ORDER BY id ${forUpdate}`;
  const [found] = yield [
    query(
      sql,
      batch.map(({ id }) => BigInt(id)),
    ),
  ];
  const intents = new Map(found!.rows.map(intentOfRow).map((intent) => [intent.id, intent]));
  const moved = new Map<SandboxIntent['state'], bigint[]>();
  const answers = batch.map(({ id, from, to }): SandboxIntent | null => {
    const intent = intents.get(id);
    if (intent === undefined || !from.includes(intent.state)) return null;
    if (intent.state !== to) moved.set(to, [...(moved.get(to) ?? []), BigInt(id)]);
    return { ...intent, state: to };
  });
  const writes = new Writes();
  for (const [to, ids] of moved) {
    writes.add(query('UPDATE sandbox_intents SET state = ? WHERE id IN (?)', to, ids), ids.length);
  }
  yield* writes.last();
  return answers;
}

export function* refundIntent(
  id: string,
  refundId: string,
  amount: number,
  { forUpdate }: LifeDialect,
): Work<SandboxIntent | null> {
  const [found, done] = yield [
    query(`${SELECT} WHERE id = ? ${forUpdate}`, BigInt(id)),
    query('SELECT refund_id FROM sandbox_refunds WHERE refund_id = ?', refundId),
  ];
  const intent = found!.rows.map(intentOfRow)[0];
  if (intent === undefined) return null;
  if (done!.rows.length > 0) return intent;
  const refunded = intent.refunded + amount;
  if (intent.state !== 'captured' || refunded > intent.amount.amount) return null;
  const state = refunded === intent.amount.amount ? 'refunded' : 'captured';
  const writes = new Writes();
  writes.addRows({
    do: 'insert',
    table: 'sandbox_refunds',
    columns: ['refund_id', 'intent_id', 'amount'],
    rows: [[refundId, BigInt(id), amount]],
  });
  writes.add(query('UPDATE sandbox_intents SET state = ?, refunded = ? WHERE id = ?', state, refunded, BigInt(id)), 1);
  yield* writes.last();
  return { ...intent, state, refunded };
}

/** All in one transaction: otherwise each of a rush of delayed captures would need its own. */
export function* captureDue(
  limit: number,
  { forUpdate }: LifeDialect,
): Work<{ captured: number; untold: SandboxIntent[] }> {
  const [clock] = yield [CLOCK];
  const [pending] = yield [
    query(
      `SELECT id FROM sandbox_intents WHERE told IN (0, 1) AND state = 'pending' AND due_at <= ?
       ORDER BY due_at, id LIMIT ? ${forUpdate}`,
      nowOf(clock),
      limit,
    ),
  ];
  const ids = pending!.rows.map((row) => BigInt(row.id as string));
  if (ids.length > 0) {
    yield [query(`UPDATE sandbox_intents SET state = 'captured' WHERE id IN (?) AND state = 'pending'`, ids)];
  }
  const [untold] = yield [query(`${SELECT} WHERE told = 0 AND state = 'captured' ORDER BY due_at, id LIMIT ?`, limit)];
  return { captured: ids.length, untold: untold!.rows.map(intentOfRow) };
}

export function* intentsTold(ids: readonly string[]): Work<void> {
  if (ids.length === 0) return;
  yield [query('UPDATE sandbox_intents SET told = 1 WHERE id IN (?)', ids.map(BigInt)), COMMIT];
}

function intentOfRow(row: Row): SandboxIntent {
  return {
    id: row.id as string,
    orderId: row.order_id as string,
    amount: { amount: Number(row.amount), currency: row.currency as string },
    state: row.state as SandboxIntent['state'],
    dueAtMs: row.due_at === null ? null : Number(row.due_at),
    told: Number(row.told) === 1,
    refunded: Number(row.refunded),
  };
}
