// The scenarios to compare. In a round all sides run at the same time and are loaded in turns.
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { startMariadb } from '../../test/support/servers/mariadb.ts';
import { startPostgres } from '../../test/support/servers/postgres.ts';
import { type RedisServer, startRedis } from '../../test/support/servers/redis.ts';
import type { Job, Slice } from '../load/load.ts';
import { cpuMs, createSale, end, runJson, SECRET, start, talk, temporaryFolder } from '../support.ts';

/** One checkout under test, with fresh processes and an empty store. */
export interface Running {
  /** Runs for `ms`. */
  run(ms: number): Promise<Slice>;
  /** CPU time of the measured process so far, over all threads; null without /proc. */
  cpuMs(): number | null;
  end(): Promise<void>;
}

export interface Scenario {
  readonly name: string;
  /** The name for `--scenario`. */
  readonly group: string;
  /** The part of src/ that it calls through an adaptor; null: HTTP only. */
  readonly adaptor: 'gate' | 'ledger' | null;
  /** `side`: sides that run at the same time must not share a Redis. */
  open(checkout: string, side: string): Promise<Running>;
}

const CONNECTIONS = 64;
/** More than can be sold in one round. */
const BUYERS = 120_000;
const BUYERS_DISTRIBUTED = 50_000;
/** Orders that are placed first and then paid. A sample ends when all are paid, or when its time is over. */
const PAID = 12_000;
/** A payment is several commits in a row: with fewer callers the disk's latency would be measured. */
const CONNECTIONS_PAYING = 128;

const MARIADB_ARGS = ['--innodb-buffer-pool-size=1G', '--innodb-log-file-size=512M'];
const POSTGRES_ARGS = ['-c', 'shared_buffers=1GB', '-c', 'max_wal_size=4GB'];

/** Starts a server on first use, one per name. */
function lazily<T>(begin: () => Promise<T>): (name?: string) => Promise<T> {
  const begun = new Map<string, Promise<T>>();
  return (name = '') => {
    if (!begun.has(name)) begun.set(name, begin());
    return begun.get(name)!;
  };
}

interface DatabaseServer {
  createDatabase(name: string): Promise<string>;
  query(sql: string): Promise<unknown>;
}

const postgres = lazily(() => startPostgres({ args: POSTGRES_ARGS }));
const mariadb = lazily(() => startMariadb({ args: MARIADB_ARGS }));
const bareRedis = lazily(() => startRedis());
const durableRedis = lazily(() => startRedis({ persistence: 'aof', args: ['--appendfsync', 'everysec'] }));

let databases = 0;

/** Every round has its own databases: the schemas of two commits may differ, and grown tables are slower. */
async function newDatabase(server: DatabaseServer): Promise<{ url: string; drop(): Promise<unknown> }> {
  const name = `compare_${++databases}`;
  const url = await server.createDatabase(name);
  return { url, drop: () => server.query(`DROP DATABASE ${name}`).catch(() => undefined) };
}

async function emptied(redis: RedisServer): Promise<RedisServer> {
  await redis.command('FLUSHALL');
  return redis;
}

type Load = Pick<Job, 'connections' | 'buyers' | 'then'>;

const SERVE_ENV = {
  RATE_LIMIT_BUYER: '100000',
  PAYMENTS_SANDBOX: 'on',
  // Other load on the machine must not turn a measurement into refusals.
  EVENT_LOOP_DELAY_MAX_MS: '60000',
};

async function overHttp(checkout: string, data: string, env: Record<string, string>, asked: Load): Promise<Running> {
  const args = [join(checkout, 'bin/doorbuster.js'), 'serve', '--port', '0', '--data', data];
  const server = await start(args, { ...SERVE_ENV, ...env }, checkout);
  const saleId = await createSale(server.port);
  const job: Job = {
    ...{
      port: server.port,
      path: `/v1/sales/${saleId}/orders`,
      body: JSON.stringify({ item: 'voucher', quantity: 1 }),
    },
    ...{ secret: SECRET, expect: 201, keyed: true, again: false, durationMs: 0 },
    ...asked,
  };
  const load = await talk(['bench/load/load.ts', JSON.stringify(job)]);
  return {
    run: (ms) => load.ask(ms),
    cpuMs: () => cpuMs(server.child.pid!),
    end: async () => {
      await end(load.child);
      await end(server.child);
    },
  };
}

function placing(buyers: number): Load {
  return { connections: CONNECTIONS, buyers };
}

function paying(): Load {
  const then = { path: '/v1/orders/:order/pay', body: JSON.stringify({ method: 'sandbox' }), expect: 200 };
  return { connections: CONNECTIONS_PAYING, buyers: PAID, then };
}

async function embedded(checkout: string, asked: Load): Promise<Running> {
  const data = temporaryFolder();
  const running = await overHttp(checkout, data, {}, asked);
  return also(running, () => rmSync(data, { recursive: true, force: true }));
}

async function distributed(checkout: string, side: string, asked: Load): Promise<Running> {
  const redis = await emptied(await durableRedis(side));
  const database = await newDatabase(await postgres());
  const env = { REDIS_URL: redis.url, DATABASE_URL: database.url };
  await runJson([join(checkout, 'bin/doorbuster.js'), 'migrate', '--json'], env, checkout);
  return also(await overHttp(checkout, temporaryFolder(), env, asked), database.drop);
}

async function component(part: 'gate' | 'ledger', checkout: string, url: string): Promise<Running> {
  const { child, ask } = await talk(['bench/compare/component.ts', part, checkout, url]);
  return { run: ask, cpuMs: () => cpuMs(child.pid!), end: () => end(child) };
}

/** Runs `after` when it has ended. */
function also(running: Running, after: () => unknown): Running {
  return {
    ...running,
    end: async () => {
      await running.end();
      await after();
    },
  };
}

function ledgerOn(name: string, server: () => Promise<DatabaseServer>): Scenario {
  return {
    name: `ledger, ${name}`,
    group: 'ledger',
    adaptor: 'ledger',
    open: async (checkout) => {
      const { url, drop } = await newDatabase(await server());
      return also(await component('ledger', checkout, url), drop);
    },
  };
}

export const SCENARIOS: readonly Scenario[] = [
  {
    name: 'orders, SQLite',
    group: 'orders',
    adaptor: null,
    open: (checkout) => embedded(checkout, placing(BUYERS)),
  },
  {
    name: 'gate, Redis',
    group: 'gate',
    adaptor: 'gate',
    open: async (checkout, side) => component('gate', checkout, (await emptied(await bareRedis(side))).url),
  },
  ledgerOn('PostgreSQL', postgres),
  ledgerOn('MariaDB', mariadb),
  {
    name: 'pay, SQLite',
    group: 'pay',
    adaptor: null,
    open: (checkout) => embedded(checkout, paying()),
  },
  {
    name: 'pay, PostgreSQL + Redis',
    group: 'pay',
    adaptor: null,
    open: (checkout, side) => distributed(checkout, side, paying()),
  },
  {
    name: 'shop, PostgreSQL + Redis',
    group: 'shop',
    adaptor: null,
    open: (checkout, side) => distributed(checkout, side, placing(BUYERS_DISTRIBUTED)),
  },
];
