import { TerminalError } from '../../../base/errors.ts';
import type { Runtime } from '../../../base/runtime.ts';
import type { Dialect, LockName, NamedLocks } from '../server/dialect.ts';
import { POOL_MAX_DEFAULT, type SqlLedgerOptions } from '../server/ledger.ts';
import type { LastingSession } from '../server/session.ts';
import { migration } from './migrate.ts';
import { MysqlOrders } from './orders.ts';
import { MysqlConnections } from './session.ts';
import { LIFE_DIALECT, MysqlSteps } from './steps.ts';

export async function mysqlDialect(
  url: string,
  runtime: Runtime,
  { isolation = 'read committed', poolMax = POOL_MAX_DEFAULT }: Pick<SqlLedgerOptions, 'isolation' | 'poolMax'>,
): Promise<Dialect> {
  return {
    connections: await MysqlConnections.open(url, runtime.timers, isolation, poolMax),
    begin: 'START TRANSACTION',
    beginFresh: 'SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION',
    clock: 'SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED) AS now_ms',
    lockFirst: false,
    byPrimaryKey: 'FORCE INDEX (PRIMARY)',
    ordersAfter: (columns, saleId, afterId, limit) => `SELECT ${columns} FROM orders FORCE INDEX (orders_sale)
      WHERE sale_id = ${saleId} AND id > ${afterId} ORDER BY id LIMIT ${limit}`,
    announced: null,
    life: LIFE_DIALECT,
    steps: new MysqlSteps(),
    orders: new MysqlOrders(runtime.random),
    locks,
    migration,
    settings: `SHOW GLOBAL VARIABLES WHERE Variable_name IN
      ('version', 'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'innodb_doublewrite', 'read_only')`,
    async endLeft(session, left) {
      // Session ids start again with the server: if it started after the session was left, that id is another's now.
      const { rows: status } = await session.query("SHOW GLOBAL STATUS LIKE 'Uptime'");
      const upMs = Number(status[0]?.Value ?? 0) * 1000;
      const ids = left.filter(({ ageMs }) => ageMs < upMs).map(({ id }) => id);
      // Uptime is in whole seconds, so for a server that has just started this is not known yet.
      const unsure = left.filter(({ ageMs }) => ageMs >= upMs && ageMs < upMs + 1000).map(({ id }) => id);
      if (ids.length === 0) return unsure;
      const { rows } = await session.query(
        `SELECT id, command FROM information_schema.processlist
         WHERE db = DATABASE() AND "user" = SUBSTRING_INDEX(USER(), '@', 1) AND command <> 'Killed' AND id IN (?)`,
        [ids],
      );
      const atWork = unsure;
      for (const { id, command } of rows) {
        if (command === 'Sleep') await session.query(`KILL CONNECTION ${Number(id)}`);
        else atWork.push(Number(id));
      }
      return atWork;
    },
    async mustCountRightly(session) {
      const { affected } = await session.query(
        'INSERT INTO probe (one, "at") VALUES (1, 0) ON DUPLICATE KEY UPDATE one = one',
      );
      if (affected === 0) return;
      // A proxy in between may have asked for FOUND_ROWS in our name.
      throw new TerminalError(
        'database_counts',
        'the database counts rows that were left as they were: something between it and us sets CLIENT_FOUND_ROWS',
      );
    },
  };
}

/** GET_LOCK names are global to the server, so the name contains the database. They have at most 64 characters. */
function lockName(lock: LockName): string {
  return `CONCAT('doorbuster.${lock}.', MD5(DATABASE()))`;
}

const locks: NamedLocks = {
  async tryTake(session, lock) {
    const { rows } = await session.query(`SELECT GET_LOCK(${lockName(lock)}, 0) AS taken`);
    return Number(rows[0]!.taken) === 1;
  },
  async take(session, lock, withinMs) {
    const { rows } = await session.query(`SELECT GET_LOCK(${lockName(lock)}, ${withinMs / 1000}) AS taken`);
    return Number(rows[0]!.taken) === 1;
  },
  async holder(session: LastingSession, lock) {
    const { rows } = await session.query(
      `SELECT id, host, db FROM information_schema.processlist WHERE id = IS_USED_LOCK(${lockName(lock)})`,
    );
    const [row] = rows;
    return row === undefined ? null : `database ${row.db}, connection ${row.id} from ${row.host}`;
  },
};
