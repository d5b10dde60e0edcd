import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import pg from 'pg';
import { forget, remember, type Started } from './clean-up.ts';
import { askDesk } from './desk.ts';
import { POSTGRES, whyMissing } from './install.ts';
import type { AnyDatabase } from './mariadb.ts';
import { HOST, type Place, ServerProcess } from './process.ts';
import { copyTemplate, runAs } from './template.ts';
import { ordinaryUser } from './user.ts';

/** True if this machine can start a private PostgreSQL. */
export const postgresAvailable: boolean = POSTGRES.find() !== null;

export interface PostgresOptions {
  /** Further arguments of postgres, e.g. ['-c', 'default_transaction_isolation=serializable']. */
  args?: string[];
}

/** Account, password and first database. */
const NAME = 'doorbuster';
const USERS = ['postgres', 'nobody'];
/** After a kill it replays its log first. */
const READY_WITHIN_MS = 30_000;

/** A private PostgreSQL. */
export class PostgresServer extends ServerProcess {
  constructor({ args = [] }: PostgresOptions = {}) {
    const command = POSTGRES.find();
    if (command === null) throw new Error(whyMissing(POSTGRES)!);
    const user = ordinaryUser(USERS);
    super({
      name: 'postgres',
      command,
      user,
      // PostgreSQL has one process per connection.
      forks: true,
      args: (place) => [...serverArgs(place), ...args],
      prepare: async ({ folder }) => {
        const data = join(folder, 'data');
        rmSync(data, { recursive: true, force: true });
        await copyTemplate('postgres', user, data, (template) => initialise(command, template));
      },
      ready: async ({ port }) => (await postgresQuery(urlAt(port), 'SELECT 1 AS one', [], 1_000)).length === 1,
      readyWithinMs: READY_WITHIN_MS,
      // A fast shutdown: with SIGTERM it would wait for its clients to leave.
      stopSignal: 'SIGINT',
      removeTraces: removeSharedMemory,
    });
  }

  /** The URL of the first, empty database. Its account has all rights on this server. */
  get url(): string {
    return urlAt(this.port);
  }

  /** Runs one statement on a new connection; no answer within 5 s is an error. */
  query(sql: string, values: unknown[] = []): Promise<Record<string, unknown>[]> {
    return postgresQuery(this.url, sql, values);
  }

  /** The URL of a fresh, empty database on this server. */
  createDatabase(name: string = freshName()): Promise<string> {
    return createDatabase(this.url, name);
  }
}

/** A private PostgreSQL on a free port, as durable as in production; resolves when it answers a query. */
export async function startPostgres(options: PostgresOptions = {}): Promise<PostgresServer> {
  const server = new PostgresServer(options);
  await server.start();
  return server;
}

/** Shared by all files of a test run: nobody kills it, so it need not be durable. */
export function startSharedPostgres(): Promise<PostgresServer> {
  const settings = {
    max_connections: 400,
    fsync: 'off',
    // It would start after a minute, and run more often the more databases there are.
    autovacuum: 'off',
  };
  return startPostgres({ args: Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]) });
}

function urlAt(port: number): string {
  return `postgres://${NAME}:${NAME}@${HOST}:${port}/${NAME}`;
}

function serverArgs({ port, folder }: Place): string[] {
  const settings = {
    listen_addresses: HOST,
    port,
    // Not needed, and its path would be too long in some folders.
    unix_socket_directories: '',
    max_connections: 100,
    shared_buffers: '64MB',
    // A file in its data folder, which is removed with it.
    dynamic_shared_memory_type: 'mmap',
    // A commit is on disk before it is answered.
    fsync: 'on',
    synchronous_commit: 'on',
    full_page_writes: 'on',
  };
  return [
    '-D',
    join(folder, 'data'),
    ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
  ];
}

/** Creates the data folder that every server copies. */
async function initialise(postgres: string, data: string): Promise<void> {
  // initdb of the same version is beside the program itself; PATH may contain only a link to that.
  const initdb = join(dirname(realpathSync(postgres)), 'initdb');
  const user = ordinaryUser(USERS);
  const folder = dirname(data);
  const password = join(folder, 'password');
  writeFileSync(password, `${NAME}\n`, { mode: 0o644 });
  const account = ['--username', NAME, '--pwfile', password, '--auth', 'scram-sha-256'];
  // The template need not survive a power cut: no sync here, and -F below.
  await runAs(user, folder, initdb, ['-D', data, ...account, '--encoding', 'UTF8', '--locale', 'C', '--no-sync']);
  await runAs(user, folder, postgres, ['--single', '-F', '-D', data, 'postgres'], `CREATE DATABASE ${NAME}\n`);
}

/**
 * A few bytes of System V memory keep a second server out of the data folder. A killed server leaves them for the
 * next one in the same folder; if there is none they would stay until the machine restarts.
 */
export function removeSharedMemory({ folder }: Pick<Place, 'folder'>): void {
  const file = join(folder, 'data', 'postmaster.pid');
  if (!existsSync(file)) return;
  // The seventh line: key and id.
  const id = /^\s*\d+\s+(\d+)\s*$/.exec(readFileSync(file, 'utf8').split('\n')[6] ?? '')?.[1];
  if (id !== undefined) spawnSync('ipcrm', ['-m', id], { stdio: 'ignore', timeout: 5_000 });
}

/**
 * Runs one statement on a new connection, for tests that read a database without the code under test. Returns the
 * rows, if there are any.
 */
export async function postgresQuery(
  url: string,
  sql: string,
  values: unknown[] = [],
  withinMs = 5_000,
): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: withinMs });
  // The pending query rejects with the same error.
  client.on('error', () => {});
  const { promise: tooLate, reject } = Promise.withResolvers<never>();
  const late = setTimeout(() => reject(new Error(`${sql}: no answer within ${withinMs} ms`)), withinMs);
  const ask = async (): Promise<Record<string, unknown>[]> => {
    await client.connect();
    return (await client.query(sql, values)).rows;
  };
  try {
    return await Promise.race([ask(), tooLate]);
  } finally {
    clearTimeout(late);
    // Not awaited: a paused server does not answer.
    client.end().catch(() => {});
  }
}

function freshName(): string {
  return `test_${randomBytes(6).toString('hex')}`;
}

async function createDatabase(url: string, name: string): Promise<string> {
  await postgresQuery(url, `CREATE DATABASE ${pg.escapeIdentifier(name)}`);
  const created = new URL(url);
  created.pathname = `/${encodeURIComponent(name)}`;
  return created.href;
}

let shared: Promise<PostgresServer> | null = null;

/**
 * A fresh, empty database for tests that leave its server alone: at TEST_POSTGRES_URL, whose account must be allowed to
 * create databases, or else on one server that all test files share. cleanUpServers drops it.
 */
export async function postgresUrl(): Promise<string> {
  const elsewhere = process.env[POSTGRES.urlVariable] ?? (await askDesk('postgres'));
  if (elsewhere) return createMeanwhile(elsewhere);
  // cleanUpServers may have ended it between two tests.
  if (shared !== null && !(await shared).running) shared = null;
  shared ??= startPostgres();
  return (await shared).createDatabase();
}

/** The same, for tests that query it directly or reach it through a proxy. */
export async function anyPostgres(): Promise<AnyDatabase> {
  const url = await postgresUrl();
  return { url, port: Number(new URL(url).port || 5432), query: (sql, values) => postgresQuery(url, sql, values) };
}

async function createMeanwhile(elsewhere: string): Promise<string> {
  const name = freshName();
  const url = await createDatabase(elsewhere, name);
  const started: Started = {
    end: async () => {
      forget(started);
      // FORCE ends open sessions.
      await postgresQuery(elsewhere, `DROP DATABASE IF EXISTS ${pg.escapeIdentifier(name)} WITH (FORCE)`);
    },
    endNow: () => {},
  };
  remember(started);
  return url;
}
