import { randomBytes } from 'node:crypto';
import { rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import mysql from 'mysql2';
import { forget, remember, type Started } from './clean-up.ts';
import { askDesk } from './desk.ts';
import { MARIADB, whyMissing } from './install.ts';
import { HOST, type Place, ServerProcess } from './process.ts';
import { programPath } from './program.ts';
import { copyTemplate, runAs } from './template.ts';
import { ordinaryUser } from './user.ts';

/** True if this machine can start a private MariaDB. */
export const mariadbAvailable: boolean = MARIADB.find() !== null;

export interface MariadbOptions {
  /** Further arguments of mariadbd, e.g. ['--transaction-isolation=READ-COMMITTED']. */
  args?: string[];
}

/** A database on a shared server. */
export interface AnyDatabase {
  readonly url: string;
  readonly port: number;
  /** Runs one statement on a new connection; no answer within 5 s is an error. */
  query(sql: string, values?: unknown[]): Promise<Record<string, unknown>[]>;
}

/** Account, password and first database. */
const NAME = 'doorbuster';
const USERS = ['mysql', 'nobody'];
/** After a kill it replays its log first. */
const READY_WITHIN_MS = 30_000;
const LOG_SIZE = '--innodb-log-file-size=32M';

/** A private MariaDB. */
export class MariadbServer extends ServerProcess {
  constructor({ args = [] }: MariadbOptions = {}) {
    const command = MARIADB.find();
    if (command === null) throw new Error(whyMissing(MARIADB)!);
    const user = ordinaryUser(USERS);
    super({
      name: 'mariadb',
      command,
      user,
      args: (place) => [...serverArgs(place), ...args],
      prepare: async ({ folder }) => {
        const data = join(folder, 'data');
        rmSync(data, { recursive: true, force: true });
        await copyTemplate('mariadb', user, data, initialise);
      },
      ready: async ({ port }) => (await mysqlQuery(urlAt(port), 'SELECT 1 AS one', [], 1_000)).length === 1,
      readyWithinMs: READY_WITHIN_MS,
    });
  }

  /** The URL of the first, empty database. Its account has all rights on this server. */
  get url(): string {
    return urlAt(this.port);
  }

  /** Runs one statement on a new connection; no answer within 5 s is an error. */
  query(sql: string, values: unknown[] = []): Promise<Record<string, unknown>[]> {
    return mysqlQuery(this.url, sql, values);
  }

  /** The URL of a fresh, empty database on this server. */
  createDatabase(name: string = freshName()): Promise<string> {
    return createDatabase(this.url, name);
  }
}

/** A private MariaDB on a free port, as durable as in production; resolves when it answers a query. */
export async function startMariadb(options: MariadbOptions = {}): Promise<MariadbServer> {
  const server = new MariadbServer(options);
  await server.start();
  return server;
}

/** Shared by all files of a test run: nobody kills it, so it need not be durable. */
export function startSharedMariadb(): Promise<MariadbServer> {
  return startMariadb({ args: ['--max-connections=500', '--innodb-flush-method=nosync'] });
}

function urlAt(port: number): string {
  return `mysql://${NAME}:${NAME}@${HOST}:${port}/${NAME}`;
}

function serverArgs({ port, folder }: Place): string[] {
  return [
    // Ignore the machine's configuration. This must be the first argument.
    '--no-defaults',
    `--datadir=${join(folder, 'data')}`,
    `--tmpdir=${folder}`,
    `--bind-address=${HOST}`,
    `--port=${port}`,
    // Relative to its data folder: an absolute path may be too long for a socket.
    '--socket=mariadb.sock',
    '--pid-file=mariadb.pid',
    '--skip-name-resolve',
    '--character-set-server=utf8mb4',
    '--max-connections=100',
    '--innodb-buffer-pool-size=64M',
    LOG_SIZE,
    // A commit is on disk before it is answered. There is no binary log, so no sync_binlog either.
    '--innodb-flush-log-at-trx-commit=1',
    '--skip-log-bin',
  ];
}

/** Creates the data folder that every server copies. */
async function initialise(data: string): Promise<void> {
  const install = programPath('mariadb-install-db', ['/usr/bin']);
  if (install === null) throw new Error('mariadbd is here, but not mariadb-install-db');
  const folder = dirname(data);
  const file = join(folder, 'accounts.sql');
  const statements = [
    // The bootstrap server has not read accounts yet, and could not create one.
    'FLUSH PRIVILEGES',
    `CREATE USER '${NAME}'@'%' IDENTIFIED BY '${NAME}'`,
    `GRANT ALL ON *.* TO '${NAME}'@'%' WITH GRANT OPTION`,
    `CREATE DATABASE ${NAME} CHARACTER SET utf8mb4`,
  ];
  writeFileSync(file, statements.map((statement) => `${statement};\n`).join(''), { mode: 0o644 });
  await runAs(ordinaryUser(USERS), folder, install, [
    '--no-defaults',
    `--datadir=${data}`,
    // At its start a MariaDB removes the temporary tables of all others in the same folder.
    `--tmpdir=${folder}`,
    '--skip-test-db',
    '--skip-name-resolve',
    '--auth-root-authentication-method=normal',
    `--extra-file=${file}`,
    LOG_SIZE,
    // The template need not survive a power cut.
    '--innodb-flush-log-at-trx-commit=0',
    '--innodb-flush-method=nosync',
  ]);
}

/**
 * Runs one statement on a new connection, for tests that read a database without the code under test. Returns the
 * rows, if there are any.
 */
export function mysqlQuery(
  url: string,
  sql: string,
  values: unknown[] = [],
  withinMs = 5_000,
): Promise<Record<string, unknown>[]> {
  return new Promise((resolve, reject) => {
    // Without the driver's own time-out: ours covers everything.
    const connection = mysql.createConnection({ uri: url, connectTimeout: 0 });
    const settle = (error: Error | null, rows: Record<string, unknown>[] = []): void => {
      clearTimeout(late);
      connection.destroy();
      if (error) reject(error);
      else resolve(rows);
    };
    const late = setTimeout(() => settle(new Error(`${sql}: no answer within ${withinMs} ms`)), withinMs);
    connection.on('error', settle);
    connection.query(sql, values, (error, result) => {
      settle(error, Array.isArray(result) ? (result as Record<string, unknown>[]) : []);
    });
  });
}

function freshName(): string {
  return `test_${randomBytes(6).toString('hex')}`;
}

async function createDatabase(url: string, name: string): Promise<string> {
  await mysqlQuery(url, `CREATE DATABASE ${mysql.escapeId(name)} CHARACTER SET utf8mb4`);
  const created = new URL(url);
  created.pathname = `/${encodeURIComponent(name)}`;
  return created.href;
}

let shared: Promise<MariadbServer> | null = null;

/**
 * A fresh, empty database for tests that leave its server alone: at TEST_MYSQL_URL, whose account must be allowed to
 * create databases, or else on one server that all test files share. cleanUpServers drops it.
 */
export async function mysqlUrl(): Promise<string> {
  const elsewhere = process.env[MARIADB.urlVariable] ?? (await askDesk('mariadb'));
  if (elsewhere) return createMeanwhile(elsewhere);
  // cleanUpServers may have ended it between two tests.
  if (shared !== null && !(await shared).running) shared = null;
  shared ??= startMariadb();
  return (await shared).createDatabase();
}

/** The same, for tests that query it directly or reach it through a proxy. */
export async function anyMysql(): Promise<AnyDatabase> {
  const url = await mysqlUrl();
  return { url, port: Number(new URL(url).port || 3306), query: (sql, values) => mysqlQuery(url, sql, values) };
}

async function createMeanwhile(elsewhere: string): Promise<string> {
  const name = freshName();
  const url = await createDatabase(elsewhere, name);
  const started: Started = {
    end: async () => {
      forget(started);
      // End all sessions first: otherwise the drop would wait for open transactions.
      const sessions = await mysqlQuery(elsewhere, 'SELECT id FROM information_schema.processlist WHERE db = ?', [
        name,
      ]);
      await Promise.all(sessions.map(({ id }) => mysqlQuery(elsewhere, `KILL ${id}`).catch(() => {})));
      await mysqlQuery(elsewhere, `DROP DATABASE IF EXISTS ${mysql.escapeId(name)}`);
    },
    endNow: () => {},
  };
  remember(started);
  return url;
}
