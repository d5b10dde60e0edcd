import type { DatabaseSync, SQLInputValue, StatementSync } from 'node:sqlite';
import { PRUNED_AT_ONCE } from '../../works/keys.ts';
import {
  type Cells,
  type LifeDialect,
  query,
  type Result,
  type Row,
  type Step,
  type Value,
  type Work,
} from '../../works/work.ts';

export const LIFE_DIALECT: LifeDialect = {
  // BEGIN IMMEDIATE locks the whole file for the one writer: rows need no locks of their own.
  forUpdate: '',
  forShare: '',
  byPrimaryKey: '',
  live: {
    from: 'payments p INDEXED BY payments_order',
    where: "(CASE WHEN p.state = 'open' THEN 0 WHEN p.pays = 1 THEN 1 END) IN (0, 1)",
  },
  ended: { from: 'payments q INDEXED BY payments_ended', where: "q.pays = 0 AND q.state <> 'open'" },
  walks: 'points',
  // The gate dies with the process and is rebuilt from the ledger. For this process a COMMIT that failed did not happen: what may
  // have reached the log is overwritten, or is found by the next start.
  gateTasks: false,
  believes: false,
  pruneCallKeys: `DELETE FROM call_keys WHERE (caller, acting_for, operation, subject, key) IN
    (SELECT caller, acting_for, operation, subject, key FROM call_keys WHERE created_at < ? ORDER BY created_at LIMIT ?)`,
  pruneOrderKeys,
  // A transaction that failed is over when its error is thrown, and nobody else writes.
  awaitWriters: () => [],
  due: {
    from: 'orders o INDEXED BY orders_due',
    where: "o.status = 'reserved' AND o.expires_at <= ?",
    order: 'o.expires_at',
  },
};

type Freed = Extract<Step, { do: 'freed' }>['orders'][number];
type Reseated = Extract<Step, { do: 'reseated' }>;

const NOTHING: Result = { rows: [], affected: 0 };

/** Orders up to the mark of the fold: the keys of those behind it are in the tail. */
function* pruneOrderKeys(beforeMs: number): Work<number> {
  const [found] = yield [
    query(
      `SELECT seq, id, sale_id, buyer, idem_key, created_at FROM orders
       WHERE seq > (SELECT pruned FROM folded) AND seq <= (SELECT seq FROM folded) ORDER BY seq LIMIT ?`,
      PRUNED_AT_ONCE,
    ),
  ];
  const old = found!.rows.filter(({ created_at }) => Number(created_at) < beforeMs);
  if (old.length === 0) return 0;
  const keyed = old.filter(({ idem_key }) => idem_key !== null);
  yield [
    {
      do: 'delete',
      table: 'order_keys',
      // With the order: a key may have been bound anew since then.
      match: ['sale_id', 'buyer', 'key', 'order_id'],
      rows: keyed.map((row) => [BigInt(row.sale_id!), row.buyer!, row.idem_key!, BigInt(row.id!)]),
    },
    query('UPDATE folded SET pruned = ?', BigInt(old.at(-1)!.seq!)),
  ];
  return old.length;
}

/** Runs the rounds of work at once; work that writes, inside the caller's transaction. */
export class Steps {
  readonly #db: DatabaseSync;
  readonly #now: () => number;
  readonly #prepared = new Map<string, StatementSync>();
  /** Orders whose slots are free once the transaction is committed. */
  freed: Freed[] = [];
  /** Orders that have other seats once the transaction is committed. */
  reseated: Reseated[] = [];

  constructor(db: DatabaseSync, now: () => number) {
    this.#db = db;
    this.#now = now;
  }

  do<T>(work: Work<T>): T {
    let round = work.next();
    while (!round.done) round = work.next(round.value.map((step) => this.#run(step)));
    return round.value;
  }

  #run(step: Step): Result {
    switch (step.do) {
      case 'clock':
        return { rows: [{ now_ms: this.#now() }], affected: 0 };
      case 'commit':
        return NOTHING;
      case 'freed':
        this.freed.push(...step.orders);
        return NOTHING;
      case 'reseated':
        this.reseated.push(step);
        return NOTHING;
      case 'query': {
        const { sql, values } = statementOf(step.sql, step.values);
        const statement = this.#prepare(sql);
        if (!step.sql.startsWith('SELECT')) return { rows: [], affected: Number(statement.run(...values).changes) };
        return { rows: statement.all(...values).map(rowOf), affected: 0 };
      }
      case 'insert': {
        const { table, columns, rows, leavePresent, overwrite } = step;
        const places = columns.map(() => '?').join(', ');
        const sql = `INSERT INTO ${table} (${columns.map(quoted).join(', ')}) VALUES (${places})`;
        if (overwrite !== undefined) return this.#each(sql + overwriting(columns, overwrite), rows);
        return this.#each(leavePresent ? `${sql} ON CONFLICT DO NOTHING` : sql, rows);
      }
      case 'find': {
        const { table, columns, match, rows } = step;
        const sql = `SELECT ${columns.map(quoted).join(', ')} FROM ${table} AS t WHERE ${matches(match)}`;
        const statement = this.#prepare(sql);
        return { rows: rows.flatMap((cells) => statement.all(...cells).map(rowOf)), affected: 0 };
      }
      case 'update': {
        const { table, match, set, rows, and } = step;
        const sql = `UPDATE ${table} AS t SET ${set.map((name) => `${quoted(name)} = ?`).join(', ')} WHERE ${matches(match)}`;
        const given = and === undefined ? [] : and.values.map(inputOf);
        const turned = rows.map((cells) => [...cells.slice(match.length), ...cells.slice(0, match.length)]);
        return this.#each(and === undefined ? sql : `${sql} AND ${and.sql}`, turned, given);
      }
      case 'delete':
        return this.#each(`DELETE FROM ${step.table} AS t WHERE ${matches(step.match)}`, step.rows);
    }
  }

  #each(sql: string, rows: readonly Cells[], more: readonly SQLInputValue[] = []): Result {
    const statement = this.#prepare(sql);
    let affected = 0;
    for (const cells of rows) affected += Number(statement.run(...cells, ...more).changes);
    return { rows: [], affected };
  }

  #prepare(sql: string): StatementSync {
    let statement = this.#prepared.get(sql);
    if (statement === undefined) {
      statement = this.#db.prepare(sql);
      statement.setReadBigInts(true);
      // Bounded: every statement is written out in the source.
      this.#prepared.set(sql, statement);
    }
    return statement;
  }
}

function quoted(name: string): string {
  return `"${name}"`;
}

function overwriting(columns: readonly string[], key: readonly string[]): string {
  const sets = columns
    .filter((name) => !key.includes(name))
    .map((name) => `${quoted(name)} = excluded.${quoted(name)}`);
  return ` ON CONFLICT (${key.map(quoted).join(', ')}) DO UPDATE SET ${sets.join(', ')}`;
}

function matches(columns: readonly string[]): string {
  return columns.map((name) => `t.${quoted(name)} = ?`).join(' AND ');
}

function isList(value: Value): value is Extract<Value, readonly unknown[]> {
  return typeof value === 'object' && value !== null;
}

const OF_ONE = new Map<string, string>();
const OF_MANY = new Map<string, string>();

/** A query as SQLite takes it. */
export function statementOf(sql: string, given: readonly Value[]): { sql: string; values: SQLInputValue[] } {
  // For a list of one, which most are, it takes half of the time.
  if (given.every((value) => !isList(value) || value.length === 1)) {
    const values = given.map((value) => inputOf(isList(value) ? value[0]! : value));
    return { sql: rewritten(OF_ONE, sql, '= ?'), values };
  }
  // A list is passed as JSON, so that the statement is the same for any length.
  return { sql: rewritten(OF_MANY, sql, 'IN (SELECT value FROM json_each(?))'), values: given.map(inputOf) };
}

function rewritten(texts: Map<string, string>, sql: string, list: string): string {
  let text = texts.get(sql);
  if (text === undefined) {
    text = sql.replaceAll('IN (?)', list);
    // Bounded: every statement is written out in the source.
    texts.set(sql, text);
  }
  return text;
}

function inputOf(value: Value): SQLInputValue {
  if (!isList(value)) return value;
  return `[${value.map((one) => (typeof one === 'string' ? JSON.stringify(one) : String(one))).join(',')}]`;
}

/** As the other drivers return it: 64-bit numbers are text. */
function rowOf(row: Record<string, unknown>): Row {
  // In place, since there are many: nobody else has the row.
  for (const name in row) if (typeof row[name] === 'bigint') row[name] = row[name].toString();
  return row as Row;
}
