import { afterAll, beforeAll } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { mysqlDialect } from '../../src/ledger/drivers/mysql/ledger.ts';
import { LIFE_DIALECT as MYSQL } from '../../src/ledger/drivers/mysql/steps.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { postgresDialect } from '../../src/ledger/drivers/postgres/ledger.ts';
import { LIFE_DIALECT as POSTGRES } from '../../src/ledger/drivers/postgres/steps.ts';
import type { SqlLedger, SqlLedgerOptions } from '../../src/ledger/drivers/server/ledger.ts';
import type { Connections, Session } from '../../src/ledger/drivers/server/session.ts';
import type { State } from '../contract/ledger.ts';
import type { LifeUnderTest } from '../contract/ledger-life-kit.ts';
import { type ManualRuntime, manualRuntime } from '../contract/manual.ts';
import { cleanUpServers } from './servers/clean-up.ts';
import { MARIADB } from './servers/install.ts';
import { type MariadbServer, mysqlQuery, mysqlUrl, startMariadb } from './servers/mariadb.ts';
import { postgresQuery, postgresUrl } from './servers/postgres.ts';

export type Product = 'mysql' | 'postgres';

export interface SqlUnderTest extends LifeUnderTest {
  ledger: SqlLedger;
  /** Reads the tables behind the ledger's back. */
  rows(sql: string): Promise<Record<string, unknown>[]>;
}

/** These drivers have no tail: everything is in its table once it is committed. */
export const SQL_STATES: State[] = [{ name: 'just committed' }, { name: 'after a crash', crash: true }];

const TABLES = [
  'orders',
  'refunds',
  'declines',
  'sandbox_refunds',
  'payments',
  'claims',
  'seat_claims',
  'seat_maps',
  'seat_moves',
  'item_texts',
  'call_keys',
  'unscoped_keys',
  'release_outbox',
  'order_events',
  'sandbox_intents',
  'webhook_endpoints',
  'webhook_deliveries',
  'users',
  'gate_tasks',
  'id_blocks',
  'audit',
  'items',
  'sales',
  'users',
  'posts',
  'post_likes',
  'comments',
  'comment_likes',
];

const UNMARK = ['UPDATE pruned SET order_id = 0', "UPDATE like_shards SET epoch = 1, mode = 'direct'"];

/** A fresh database, on a server that all test files share. */
export function freshDatabase(product: Product): Promise<string> {
  return product === 'mysql' ? mysqlUrl() : postgresUrl();
}

let alone: Promise<MariadbServer> | null = null;

/** A database on a server of this test file's own, where the product counts something for the whole server only. */
export async function databaseAlone(product: Product): Promise<string> {
  if (product === 'postgres' || process.env[MARIADB.urlVariable]) return freshDatabase(product);
  alone ??= startMariadb();
  return (await alone).createDatabase();
}

export function queryDatabase(url: string, sql: string, values: unknown[] = []): Promise<Record<string, unknown>[]> {
  if (url.startsWith('postgres')) return postgresQuery(url, sql, values);
  return mysqlQuery(url, sql.replaceAll('"', '`'), values);
}

/**
 * One database for the file, emptied before each test. Its ledger stays open from test to test, since opening it would take
 * most of a test's time. The ledger's clock is the test's; timers are real, since conflicts are retried after a pause.
 */
export function sqlWorlds(
  product: Product,
  options: Partial<SqlLedgerOptions> = {},
): { make(): Promise<SqlUnderTest>; url(): string } {
  let url: string;
  let ledger: SqlLedger | null = null;
  let runtime: ManualRuntime;

  beforeAll(async () => {
    url = await freshDatabase(product);
    // Only the content of the tables is judged here; durability is tested in test/faults.
    const name = new URL(url).pathname.slice(1);
    if (product === 'postgres') await postgresQuery(url, `ALTER DATABASE "${name}" SET synchronous_commit = off`);
  });
  afterAll(async () => {
    await ledger?.close();
    await cleanUpServers();
  });

  const open = (): Promise<SqlLedger> =>
    openSqlLedger(url, systemRuntime(), {
      migrate: true,
      exclusive: false,
      now: () => runtime.clock.now(),
      ...options,
    });

  return {
    url: () => url,
    async make() {
      runtime = manualRuntime();
      ledger ??= await open();
      ledger.keepEvents = false;
      await emptyDatabase(url);
      const world: SqlUnderTest = {
        ledger,
        clock: runtime.clock,
        runtime,
        rows: async (sql) => (await behind(url, (session) => session.query(sql))).rows,
        change: (sql) => queryDatabase(url, sql),
        claimsAtOnce: true,
        dialect: product === 'mysql' ? MYSQL : POSTGRES,
        explain: async (sql) => {
          await world.rows(product === 'mysql' ? 'ANALYZE TABLE orders' : 'ANALYZE');
          return JSON.stringify(await world.rows(`EXPLAIN ${sql}`));
        },
        // The database keeps what is committed; a new ledger stands for a new process.
        async crash() {
          await world.reopen();
        },
        async reopen() {
          await ledger!.close();
          ledger = await open();
          world.ledger = ledger;
        },
        async close() {},
      };
      return world;
    },
  };
}

const sweepers = new Map<string, Promise<Connections>>();

/** DELETE and not TRUNCATE, and on a connection that is kept: for a few rows both are many times quicker. */
export async function emptyDatabase(url: string): Promise<void> {
  await behind(url, (session) =>
    session.script([...TABLES.map((table) => `DELETE FROM ${table}`), ...UNMARK].join('; ')),
  );
}

/** Behind the ledger's back, on a connection that is kept. */
async function behind<T>(url: string, run: (session: Session) => Promise<T>): Promise<T> {
  let sweeper = sweepers.get(url);
  if (sweeper === undefined) {
    const make = url.startsWith('postgres') ? postgresDialect : mysqlDialect;
    sweeper = make(url, systemRuntime(), { poolMax: 1 }).then(({ connections }) => connections);
    sweepers.set(url, sweeper);
  }
  const session = await (await sweeper).take();
  try {
    return await run(session);
  } finally {
    session.release();
  }
}
