import { lockItems, pruneOrderKeys } from '../../works/orders.ts';
import type { Cells, LifeDialect, Result, Step, Value } from '../../works/work.ts';
import { query } from '../../works/work.ts';
import type { StepStatements } from '../server/dialect.ts';
import type { Session } from '../server/session.ts';
import { ANNOUNCED } from './announced.ts';
import { PostgresSession, preparedOf } from './session.ts';

export const LIFE_DIALECT: LifeDialect = {
  forUpdate: 'FOR UPDATE',
  forShare: 'FOR SHARE',
  byPrimaryKey: '',
  live: {
    from: 'payments p',
    where: "(CASE WHEN p.state = 'open' THEN 0 WHEN p.pays = 1 THEN 1 END) IN (0, 1)",
  },
  ended: { from: 'payments q', where: "q.pays = 0 AND q.state <> 'open'" },
  walks: 'rows',
  gateTasks: true,
  believes: true,
  pruneCallKeys: `DELETE FROM call_keys WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM call_keys WHERE created_at < ? ORDER BY created_at LIMIT ?))`,
  pruneOrderKeys,
  awaitWriters: (itemIds) => [...ANNOUNCED.wait(itemIds).map((sql) => query(sql)), lockItems(itemIds, '')],
  due: { from: 'orders o', where: "o.status = 'reserved' AND o.expires_at <= ?", order: 'o.expires_at' },
};

/** Types of the columns that are written in rows: an array parameter needs a type. Columns not listed are text. */
const TYPES: Record<string, 'bigint' | 'int'> = {
  id: 'bigint',
  order_id: 'bigint',
  attempt_id: 'bigint',
  refunded: 'bigint',
  back_before: 'bigint',
  intent_id: 'bigint',
  sale_id: 'bigint',
  item_id: 'bigint',
  post_id: 'bigint',
  comment_id: 'bigint',
  parent_id: 'bigint',
  answers: 'bigint',
  number: 'bigint',
  likes_rev: 'bigint',
  changed_at: 'bigint',
  endpoint_id: 'bigint',
  fence: 'bigint',
  revives: 'bigint',
  amount: 'bigint',
  at: 'bigint',
  next_at: 'bigint',
  due_at: 'bigint',
  began_at: 'bigint',
  done_at: 'bigint',
  created_at: 'bigint',
  updated_at: 'bigint',
  audit_id: 'bigint',
  opens_at: 'bigint',
  closes_at: 'bigint',
  starts_at: 'bigint',
  next: 'bigint',
  rev: 'bigint',
  per_buyer: 'int',
  per_buyer_max: 'int',
  pay_within: 'int',
  position: 'int',
  total: 'int',
  epoch: 'int',
  version: 'int',
  slot: 'int',
  seat: 'int',
  part: 'int',
  pays: 'int',
  tries: 'int',
  last_status: 'int',
  told: 'int',
  liked: 'int',
  likes_count: 'int',
  comments_count: 'int',
  replies_count: 'int',
};

/** A round, pipelined: statements are sent without waiting for answers, and rows as one array for each column. */
export class PostgresSteps implements StepStatements {
  readonly stopsAtFailure = false;

  commits(): boolean {
    return true;
  }

  async run(session: Session, steps: readonly Step[]): Promise<Result[]> {
    if (!(session instanceof PostgresSession)) throw new TypeError('a session of PostgreSQL is needed');
    const judged = steps.at(-1)?.do === 'commit';
    const sent = session.together(() => steps.map((step) => (judged ? sendJudged : sendStep)(session, step)));
    // Awaits all of them: those behind one that fails fail, too, and must not be unhandled.
    const results = await Promise.allSettled(sent);
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
    return results.map((result) => (result as PromiseFulfilledResult<Result>).value);
  }
}

/**
 * Sent ahead of a COMMIT that is on its way, too: an unexpected count fails the statement, and with it the transaction, which
 * the COMMIT then rolls back.
 */
async function sendJudged(session: PostgresSession, step: Step): Promise<Result> {
  if (step.do === 'commit') return session.commit();
  if (step.expected === undefined) return sendStep(session, step);
  const { sql, values } = statementOf(step);
  const text = judgedStatement(sql);
  const { rows } = await session.prepared(preparedOf(text), [...values.map(arrayOf), step.expected]);
  return { rows: [], affected: Number(rows[0]!.affected) };
}

/** The last value is the number of rows that it must change. */
export function judgedStatement(sql: string): string {
  return `WITH changed AS (${sql} RETURNING 1) SELECT count(*)::int AS affected, 1 / (count(*) = ?)::int AS as_expected FROM changed`;
}

/** Sends the step without waiting for earlier answers. */
export function sendStep(session: PostgresSession, step: Step): Promise<Result> {
  const { sql, values } = statementOf(step);
  return values.length === 0 ? session.query(sql) : session.prepared(preparedOf(sql), values.map(arrayOf));
}

const SPECIAL = /["\\]/;

/** A list as an array literal of PostgreSQL: the driver's own is slow, also where nothing has to be escaped. */
function arrayOf(value: Value): unknown {
  if (typeof value !== 'object' || value === null) return value;
  let text = '';
  for (const one of value) {
    if (text !== '') text += ',';
    if (one === null) text += 'NULL';
    else if (typeof one !== 'string') text += one;
    else text += `"${SPECIAL.test(one) ? one.replaceAll('\\', '\\\\').replaceAll('"', '\\"') : one}"`;
  }
  return `{${text}}`;
}

function statementOf(step: Step): { sql: string; values: readonly Value[] } {
  switch (step.do) {
    case 'clock':
    case 'commit':
    case 'freed':
    case 'reseated':
      throw new TypeError(`the ledger sees to ${step.do}`);
    case 'query':
      return step;
    case 'insert': {
      const { table, columns, rows, leavePresent, overwrite } = step;
      const names = columns.map(quoted).join(', ');
      const present = overwrite ? overwriting(columns, overwrite) : leavePresent ? ' ON CONFLICT DO NOTHING' : '';
      const sql = `INSERT INTO ${table} (${names}) SELECT * FROM unnest(${columns.map(placeOf).join(', ')})${present}`;
      return { sql, values: turned(columns.length, rows) };
    }
    case 'find': {
      const { table, columns, match, rows } = step;
      const names = match.map((_, at) => `m${at}`).join(', ');
      // Without a collation a text of the array could not be compared with a column that has one.
      const found = match.map((name, at) => `t.${quoted(name)} = v.m${at}${isText(name) ? ' COLLATE "C"' : ''}`);
      const sql = `SELECT ${columns.map((name) => `t.${quoted(name)}`).join(', ')} FROM unnest(${match.map(placeOf).join(', ')}) AS v (${names})
        JOIN ${table} AS t ON ${found.join(' AND ')}`;
      return { sql, values: turned(match.length, rows) };
    }
    case 'update': {
      const { table, match, set, rows, and } = step;
      const columns = [...match, ...set];
      const names = [...match.map((_, at) => `m${at}`), ...set.map((_, at) => `s${at}`)].join(', ');
      const sets = set.map((name, at) => `${quoted(name)} = v.s${at}`).join(', ');
      const more = and === undefined ? '' : ` AND ${and.sql}`;
      const sql = `UPDATE ${table} AS t SET ${sets} FROM unnest(${columns.map(placeOf).join(', ')}) AS v (${names}) WHERE ${matches(match)}${more}`;
      return { sql, values: [...turned(columns.length, rows), ...(and?.values ?? [])] };
    }
    case 'delete': {
      const { table, match, rows } = step;
      const names = match.map((_, at) => `m${at}`).join(', ');
      const sql = `DELETE FROM ${table} AS t USING unnest(${match.map(placeOf).join(', ')}) AS v (${names}) WHERE ${matches(match)}`;
      return { sql, values: turned(match.length, rows) };
    }
  }
}

function overwriting(columns: readonly string[], key: readonly string[]): string {
  const sets = columns
    .filter((name) => !key.includes(name))
    .map((name) => `${quoted(name)} = excluded.${quoted(name)}`);
  return ` ON CONFLICT (${key.map(quoted).join(', ')}) DO UPDATE SET ${sets.join(', ')}`;
}

function isText(column: string): boolean {
  return TYPES[column] === undefined;
}

function placeOf(column: string): string {
  return `?::${TYPES[column] ?? 'text'}[]`;
}

function matches(columns: readonly string[]): string {
  return columns.map((name, at) => `t.${quoted(name)} = v.m${at}`).join(' AND ');
}

/** Rows as columns. */
function turned(columns: number, rows: readonly Cells[]): Value[] {
  return Array.from({ length: columns }, (_, at) => rows.map((cells) => cells[at]!));
}

function quoted(name: string): string {
  return `"${name}"`;
}
