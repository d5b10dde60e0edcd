import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { systemRuntime } from '../../src/base/runtime.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { LEDGER_FILE } from '../../src/ledger/drivers/sqlite/folder.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { childrenOf } from '../../test/support/servers/family.ts';
import { startMariadb } from '../../test/support/servers/mariadb.ts';
import { startPostgres } from '../../test/support/servers/postgres.ts';
import { cpuMs, temporaryFolder } from '../support.ts';
import type { PayFloors } from './floors.ts';
import type { Ask } from './orders.ts';

/** A private database, as durable as in production. */
export interface Store {
  readonly version: string;
  readonly ledger: Ledger;
  /** Queries the tables directly, without the ledger. */
  readonly ask: Ask;
  /** Pool sizes that a baseline may try. */
  readonly pools: readonly number[];
  floors(poolMax: number): Promise<PayFloors>;
  /** Updates statistics, as a server does by itself after a while; otherwise its planner assumes empty tables. */
  analyse(): Promise<unknown>;
  /** CPU time of the database's processes so far; 0 for an embedded one. */
  cpuMs(): number;
  end(): Promise<void>;
}

/** A shop's default, and twice as many. */
const POOLS = [10, 20];

export const STORES: Record<string, () => Promise<Store>> = { sqlite, mariadb, postgres };

async function sqlite(): Promise<Store> {
  const folder = temporaryFolder();
  const file = join(folder, LEDGER_FILE);
  const ledger = SqliteLedger.open(folder, systemRuntime());
  const db = new DatabaseSync(file, { timeout: 1000 });
  const ask: Ask = async (sql) => db.prepare(sql).all();
  const [{ version }] = (await ask('SELECT sqlite_version() AS version')) as [{ version: string }];
  return {
    version: `SQLite ${version}`,
    ledger,
    ask,
    pools: [1],
    floors: async () => (await import('../baselines/pay-sqlite.ts')).open(file),
    // SQLite does not do it in a shop either.
    analyse: async () => undefined,
    cpuMs: () => 0,
    end: async () => {
      db.close();
      await ledger.close();
    },
  };
}

async function mariadb(): Promise<Store> {
  const server = await startMariadb({ args: ['--innodb-buffer-pool-size=1G', '--innodb-log-file-size=512M'] });
  const [{ version }] = (await server.query('SELECT version() AS version')) as [{ version: string }];
  const ledger = await openSqlLedger(server.url, systemRuntime(), { migrate: true, exclusive: false });
  return {
    version,
    ledger,
    ask: (sql) => server.query(sql),
    pools: POOLS,
    floors: async (poolMax) => (await import('../baselines/pay-mysql.ts')).open(server.url, poolMax),
    analyse: () => server.query('ANALYZE TABLE orders, payments, items, audit'),
    cpuMs: () => cpuMs(server.pid) ?? 0,
    end: () => ledger.close(),
  };
}

async function postgres(): Promise<Store> {
  const server = await startPostgres({ args: ['-c', 'shared_buffers=1GB', '-c', 'max_wal_size=4GB'] });
  const asked = `SELECT split_part(version(), ' (', 1) AS version`;
  const [{ version }] = (await server.query(asked)) as [{ version: string }];
  const ledger = await openSqlLedger(server.url, systemRuntime(), { migrate: true, exclusive: false });
  return {
    version,
    ledger,
    ask: (sql) => server.query(sql),
    pools: POOLS,
    floors: async (poolMax) => (await import('../baselines/pay-postgres.ts')).open(server.url, poolMax),
    analyse: () => server.query('ANALYZE'),
    cpuMs: () => [server.pid, ...childrenOf(server.pid)].reduce((sum, pid) => sum + (cpuMs(pid) ?? 0), 0),
    end: () => ledger.close(),
  };
}
