import type { Runtime } from '../../base/runtime.ts';
import type { Dialect, LockName, NamedLocks } from '../sql/dialect.ts';
import { POOL_MAX_DEFAULT, SqlLedger, type SqlLedgerOptions } from '../sql/ledger.ts';
import { migration } from './migrate.ts';
import { PostgresOrders } from './orders.ts';
import { PostgresConnections } from './session.ts';
import { LIFE_DIALECT, PostgresSteps } from './steps.ts';

/** The ledger on PostgreSQL. */
export class PostgresLedger extends SqlLedger {
  static async open(url: string, runtime: Runtime, options: SqlLedgerOptions): Promise<PostgresLedger> {
    const dialect = await postgresDialect(url, runtime, options);
    return new PostgresLedger(...(await SqlLedger.prepare(dialect, runtime, options)));
  }
}

export async function postgresDialect(
  url: string,
  runtime: Runtime,
  { isolation = 'read committed', poolMax = POOL_MAX_DEFAULT }: Pick<SqlLedgerOptions, 'isolation' | 'poolMax'>,
): Promise<Dialect> {
  return {
    connections: await PostgresConnections.open(url, runtime.timers, poolMax),
    begin: `BEGIN ISOLATION LEVEL ${isolation === 'repeatable read' ? 'REPEATABLE READ' : 'READ COMMITTED'}`,
    beginFresh: 'BEGIN ISOLATION LEVEL READ COMMITTED',
    clock: 'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms',
    lockFirst: isolation === 'repeatable read',
    byPrimaryKey: '',
    // A table that was never analysed looks small. As rows the two columns can be had in order from one index only.
    ordersAfter: (columns, saleId, afterId, limit) => `BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;
      SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off;
      SELECT ${columns} FROM orders WHERE (sale_id, id) > (${saleId}, ${afterId}) AND sale_id <= ${saleId}
      ORDER BY sale_id, id LIMIT ${limit};
      COMMIT`,
    pruneCallKeys: `DELETE FROM call_keys WHERE ctid = ANY (ARRAY(
      SELECT ctid FROM call_keys WHERE created_at < ? ORDER BY created_at LIMIT ?))`,
    leavePresent: () => 'ON CONFLICT DO NOTHING',
    announced,
    life: LIFE_DIALECT,
    steps: new PostgresSteps(),
    orders: new PostgresOrders(),
    locks,
    migration,
    settings: `SELECT name, setting AS value FROM pg_settings
      WHERE name IN ('server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'default_transaction_read_only')`,
    async endLeft(session, left) {
      // Of the same age or older: a number may have been given away again since.
      const are = left.map(
        ({ id, ageMs }) => `pid = ${id} AND backend_start <= clock_timestamp() - interval '${Math.floor(ageMs)} ms'`,
      );
      const { rows } = await session.query(
        `SELECT pid, CASE WHEN state = 'active' THEN 1 ELSE 0 END AS at_work,
           CASE WHEN state LIKE 'idle in transaction%' THEN pg_terminate_backend(pid) END AS ended
         FROM pg_stat_activity
         WHERE datname = current_database() AND usename = current_user AND (${are.join(' OR ')})`,
      );
      return rows.filter(({ at_work }) => Number(at_work) === 1).map(({ pid }) => Number(pid));
    },
    mustCountRightly: async () => {},
    dropStockCheck: (session) => session.query('ALTER TABLE items DROP CONSTRAINT IF EXISTS items_within_total'),
  };
}

/** Advisory locks have numbers, and belong to a database. The first number is ours. */
const OURS = 0x646f6f72;
const LOCKS: Record<LockName, number> = { exclusive: 1, migrate: 2 };
/** Of items: numbers of their own. Two items may have the same one, and then wait for each other at most. */
const ITEMS = OURS + 1;
const ITEM_MASK = 0x7fff_ffffn;
/** The database has room for some thousand locks: a batch of more items than these says that it is about any. */
const ITEMS_MAX = 64;
const ANY_ITEM = -1;

function itemNumbers(itemIds: readonly string[]): number[] {
  return [...new Set(itemIds.map((id) => Number(BigInt(id) & ITEM_MASK)))].sort((a, b) => a - b);
}

/** Until the end of the transaction, always in the same order. */
function take(lock: string, numbers: readonly number[]): string {
  return `SELECT ${numbers.map((number) => `${lock}(${ITEMS}, ${number})`).join(', ')}`;
}

const announced: Dialect['announced'] = {
  say(itemIds) {
    const numbers = itemNumbers(itemIds);
    return take('pg_advisory_xact_lock_shared', numbers.length > ITEMS_MAX ? [ANY_ITEM] : numbers);
  },
  // A SELECT has room for some 1 600 columns.
  wait(itemIds) {
    const numbers = [ANY_ITEM, ...itemNumbers(itemIds)];
    const parts: string[] = [];
    for (let at = 0; at < numbers.length; at += 500)
      parts.push(take('pg_advisory_xact_lock', numbers.slice(at, at + 500)));
    return parts.join('; ');
  },
};

const locks: NamedLocks = {
  async tryTake(session, lock) {
    const { rows } = await session.query(`SELECT pg_try_advisory_lock(${OURS}, ${LOCKS[lock]})::int AS taken`);
    return Number(rows[0]!.taken) === 1;
  },
  async take(session, lock, withinMs) {
    await session.script(
      `SET lock_timeout = ${withinMs}; SELECT pg_advisory_lock(${OURS}, ${LOCKS[lock]}); SET lock_timeout = 0`,
    );
    return true;
  },
  async holder(session, lock) {
    const { rows } = await session.query(
      `SELECT a.pid, a.datname, a.client_addr::text AS client_addr, a.client_port FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
       WHERE l.locktype = 'advisory' AND l.granted AND l.classid = ${OURS} AND l.objid = ${LOCKS[lock]}
         AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
    );
    const [row] = rows;
    return row === undefined
      ? null
      : `database ${row.datname}, backend ${row.pid} for ${row.client_addr}:${row.client_port}`;
  },
};
