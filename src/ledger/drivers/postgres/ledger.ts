import type { Runtime } from '../../../base/runtime.ts';
import type { Dialect, LockName, NamedLocks } from '../server/dialect.ts';
import { POOL_MAX_DEFAULT, type SqlLedgerOptions } from '../server/ledger.ts';
import { ANNOUNCED, OURS } from './announced.ts';
import { migration } from './migrate.ts';
import { PostgresOrders } from './orders.ts';
import { PostgresConnections } from './session.ts';
import { LIFE_DIALECT, PostgresSteps } from './steps.ts';

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
    // A table that was never analysed looks small. Compared as a row, the two columns can come in order from one index only.
    ordersAfter: (columns, saleId, afterId, limit) => `BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;
      SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off;
      SELECT ${columns} FROM orders WHERE (sale_id, id) > (${saleId}, ${afterId}) AND sale_id <= ${saleId}
      ORDER BY sale_id, id LIMIT ${limit};
      COMMIT`,
    announced: ANNOUNCED,
    life: LIFE_DIALECT,
    steps: new PostgresSteps(),
    orders: new PostgresOrders(),
    locks,
    migration,
    settings: `SELECT name, setting AS value FROM pg_settings
      WHERE name IN ('server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'default_transaction_read_only')`,
    async endLeft(session, left) {
      // Of the same age or older: the process id may have been reused since.
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
  };
}

const LOCKS: Record<LockName, number> = { exclusive: 1, migrate: 2 };
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
