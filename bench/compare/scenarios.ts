// What is compared. A sample is one measurement of one checkout: fresh processes, an empty store, seconds.
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { startMariadb } from '../../test/support/servers/mariadb.ts';
import { startPostgres } from '../../test/support/servers/postgres.ts';
import { type RedisServer, startRedis } from '../../test/support/servers/redis.ts';
import type { Job } from '../load/load.ts';
import { cpuMs, createSale, end, load, runJson, start, temporaryFolder } from '../support.ts';

export interface Sample {
  readonly perSecond: number;
  /** CPU time of the measured process for one order, all its threads; null where there is no /proc. */
  readonly cpuUs: number | null;
}

export interface Scenario {
  readonly name: string;
  /** What `--scenario` says. */
  readonly group: string;
  /** The part of src/ that it calls, by an adaptor; null: by HTTP alone. */
  readonly adaptor: 'gate' | 'ledger' | null;
  sample(checkout: string): Promise<Sample>;
}

const CONNECTIONS = 64;
const WARM_UP_MS = 800;
const MEASURED_MS = 3000;
/** More than can be sold meanwhile. */
const BUYERS = 40 * (WARM_UP_MS + MEASURED_MS);
const BUYERS_DISTRIBUTED = 15 * (WARM_UP_MS + MEASURED_MS);
/** Orders that are placed first, and then paid: a sample ends when all are, or when its time is over. */
const PAID = 10_000;
/** A payment is several commits one after the other: fewer callers would measure the disk's patience. */
const CONNECTIONS_PAYING = 256;

const MARIADB_ARGS = ['--innodb-buffer-pool-size=1G', '--innodb-log-file-size=512M'];
const POSTGRES_ARGS = ['-c', 'shared_buffers=1GB', '-c', 'max_wal_size=4GB'];

/** A server that is started when the first scenario needs it. */
function once<T>(begin: () => Promise<T>): () => Promise<T> {
  let begun: Promise<T> | null = null;
  return () => {
    begun ??= begin();
    return begun;
  };
}

interface DatabaseServer {
  createDatabase(name: string): Promise<string>;
  query(sql: string): Promise<unknown>;
}

const postgres = once(() => startPostgres({ args: POSTGRES_ARGS }));
const mariadb = once(() => startMariadb({ args: MARIADB_ARGS }));
const bareRedis = once(() => startRedis());
const durableRedis = once(() => startRedis({ persistence: 'aof', args: ['--appendfsync', 'everysec'] }));

let databases = 0;

/** Every sample has a database of its own: the schemas of two commits differ, and tables that have grown are slower. */
async function withDatabase<T>(server: DatabaseServer, use: (url: string) => Promise<T>): Promise<T> {
  const name = `compare_${++databases}`;
  const url = await server.createDatabase(name);
  try {
    return await use(url);
  } finally {
    await server.query(`DROP DATABASE ${name}`).catch(() => undefined);
  }
}

async function emptied(redis: RedisServer): Promise<RedisServer> {
  await redis.command('FLUSHALL');
  return redis;
}

type Load = Pick<Job, 'connections' | 'warmUpMs' | 'durationMs' | 'buyers' | 'then'>;

const SERVE_ENV = {
  RATE_LIMIT_BUYER: '100000',
  PAYMENTS_SANDBOX: 'on',
  // A machine that is late for reasons of its own must not turn a measurement into refusals.
  EVENT_LOOP_DELAY_MAX_MS: '60000',
};

async function overHttp(checkout: string, data: string, env: Record<string, string>, asked: Load): Promise<Sample> {
  const bin = join(checkout, 'bin/doorbuster.js');
  const args = [bin, 'serve', '--port', '0', '--data', data];
  const { port, child } = await start(args, { ...SERVE_ENV, ...env }, checkout);
  try {
    const saleId = await createSale(port);
    const cpuBefore = cpuMs(child.pid!);
    const { requests, perSecond } = await load({
      ...{ port, path: `/v1/sales/${saleId}/orders`, body: JSON.stringify({ item: 'voucher', quantity: 1 }) },
      ...{ expect: 201, keyed: true, again: false },
      ...asked,
    });
    const cpuAfter = cpuMs(child.pid!);
    if (cpuBefore === null || cpuAfter === null) return { perSecond, cpuUs: null };
    // Warm-up and placing are in it, on all sides alike: a figure to compare, not to quote.
    return { perSecond, cpuUs: ((cpuAfter - cpuBefore) * 1000) / requests };
  } finally {
    await end(child);
  }
}

function placing(buyers: number): Load {
  return { connections: CONNECTIONS, warmUpMs: WARM_UP_MS, durationMs: MEASURED_MS, buyers };
}

function paying(): Load {
  const then = { path: '/v1/orders/:order/pay', body: JSON.stringify({ method: 'sandbox' }), expect: 200 };
  return { connections: CONNECTIONS_PAYING, durationMs: MEASURED_MS, buyers: PAID, then };
}

async function embedded(checkout: string, asked: Load): Promise<Sample> {
  const data = temporaryFolder();
  try {
    return await overHttp(checkout, data, {}, asked);
  } finally {
    rmSync(data, { recursive: true, force: true });
  }
}

async function distributed(checkout: string, server: DatabaseServer, asked: Load): Promise<Sample> {
  const redis = await emptied(await durableRedis());
  return withDatabase(server, async (url) => {
    const env = { REDIS_URL: redis.url, DATABASE_URL: url };
    await runJson([join(checkout, 'bin/doorbuster.js'), 'migrate', '--json'], env, checkout);
    return overHttp(checkout, temporaryFolder(), env, asked);
  });
}

function component(part: 'gate' | 'ledger', checkout: string, url: string, measuredMs: number): Promise<Sample> {
  return runJson(['bench/compare/component.ts', part, checkout, url, String(WARM_UP_MS), String(measuredMs)]);
}

const GATE_MS = 2500;
const LEDGER_MS = 2500;

function ledgerOn(name: string, server: () => Promise<DatabaseServer>): Scenario {
  return {
    name: `ledger, ${name}`,
    group: 'ledger',
    adaptor: 'ledger',
    sample: async (checkout) => withDatabase(await server(), (url) => component('ledger', checkout, url, LEDGER_MS)),
  };
}

export const SCENARIOS: readonly Scenario[] = [
  {
    name: 'orders, SQLite',
    group: 'orders',
    adaptor: null,
    sample: (checkout) => embedded(checkout, placing(BUYERS)),
  },
  {
    name: 'gate, Redis',
    group: 'gate',
    adaptor: 'gate',
    sample: async (checkout) => component('gate', checkout, (await emptied(await bareRedis())).url, GATE_MS),
  },
  ledgerOn('PostgreSQL', postgres),
  ledgerOn('MariaDB', mariadb),
  {
    name: 'pay, SQLite',
    group: 'pay',
    adaptor: null,
    sample: (checkout) => embedded(checkout, paying()),
  },
  {
    name: 'pay, PostgreSQL + Redis',
    group: 'pay',
    adaptor: null,
    sample: async (checkout) => distributed(checkout, await postgres(), paying()),
  },
  {
    name: 'shop, PostgreSQL + Redis',
    group: 'shop',
    adaptor: null,
    sample: async (checkout) => distributed(checkout, await postgres(), placing(BUYERS_DISTRIBUTED)),
  },
];
