// Compares the whole distributed shop over HTTP with a bare Fastify route with the same auth and schema.
import type { ChildProcess } from 'node:child_process';
import { cleanUpServers } from '../test/support/servers/clean-up.ts';
import { startMariadb } from '../test/support/servers/mariadb.ts';
import { startPostgres } from '../test/support/servers/postgres.ts';
import { type RedisServer, startRedis } from '../test/support/servers/redis.ts';
import type { Result } from './load/load.ts';
import { ADMIN, createSale, end, load, median, report, runJson, start } from './support.ts';

/**
 * Orders end to end, from HTTP to commit, with 1 and 2 API processes and one worker, on MariaDB and PostgreSQL, in alternating
 * rounds with the bare route: each round gives a ratio, and the figure is the median of the rounds. With 2 API processes
 * there are also two load processes, one for each, and two bare routes.
 */
const CONNECTIONS = 64;

interface Target {
  name: string;
  ports: number[];
  saleId: string;
  again: boolean;
  rounds: number[];
  p50Ms: number[];
  p99Ms: number[];
}

async function measure(target: Target, durationMs: number): Promise<void> {
  const results: Result[] = await Promise.all(
    target.ports.map((port) =>
      load({
        port,
        path: `/v1/sales/${target.saleId}/orders`,
        body: JSON.stringify({ item: 'voucher', quantity: 1 }),
        expect: 201,
        keyed: true,
        again: target.again,
        connections: CONNECTIONS,
        durationMs,
        buyers: target.again ? 5000 : Math.round(12 * durationMs),
      }),
    ),
  );
  target.rounds.push(results.reduce((sum, { perSecond }) => sum + perSecond, 0));
  target.p50Ms.push(median(results.map(({ p50Ms }) => p50Ms)));
  target.p99Ms.push(Math.max(...results.map(({ p99Ms }) => p99Ms)));
}

const LIVE_ORDERS = 100_000;

/** How long a sale is unavailable after Redis has lost everything. */
async function pauseOfRebuild(port: number, redis: { command(...args: string[]): Promise<unknown> }): Promise<number> {
  const saleId = await createSale(port);
  const path = `/v1/sales/${saleId}/orders`;
  const body = JSON.stringify({ item: 'voucher', quantity: 1 });
  const fill = { port, path, body, expect: 201, keyed: true, again: false, connections: 2 * CONNECTIONS };
  await load({ ...fill, durationMs: 120_000, buyers: LIVE_ORDERS });
  const order = async (n: number): Promise<number> => {
    const headers = {
      authorization: `Bearer ${ADMIN}`,
      'doorbuster-buyer': `after-${n}`,
      'content-type': 'application/json',
    };
    const response = await fetch(`http://127.0.0.1:${port}${path}`, { method: 'POST', headers, body });
    await response.arrayBuffer();
    return response.status;
  };
  await redis.command('FLUSHALL');
  const lostMs = performance.now();
  for (let n = 0; (await order(n)) !== 201; n++) await new Promise((resolve) => setTimeout(resolve, 5));
  const pauseMs = Math.round(performance.now() - lostMs);
  // Close it, so that the next rebuild does not include it.
  await closeSale(port, saleId);
  return pauseMs;
}

async function closeSale(port: number, saleId: string): Promise<void> {
  const headers = { authorization: `Bearer ${ADMIN}` };
  await fetch(`http://127.0.0.1:${port}/v1/sales/${saleId}/close`, { method: 'POST', headers });
}

export async function run(args: string[]): Promise<void> {
  const quick = args.includes('--quick');
  const [rounds, durationMs] = quick ? [2, 2000] : [5, 4000];
  const children: ChildProcess[] = [];
  const started = async (args: string[], env: Record<string, string> = {}): Promise<number> => {
    const { port, child } = await start(args, env);
    children.push(child);
    return port;
  };

  const bare = [await started(['bench/baselines/bare-fastify.ts']), await started(['bench/baselines/bare-fastify.ts'])];
  const databases = { MariaDB: await startMariadb(), PostgreSQL: await startPostgres() };
  const target = (name: string, ports: number[], saleId: string, again = false): Target => {
    return { name, ports, saleId, again, rounds: [], p50Ms: [], p99Ms: [] };
  };
  const bareOne = target('bare Fastify, 1 process', bare.slice(0, 1), '1', true);
  const bareTwo = target('bare Fastify, 2 processes', bare, '1', true);
  const targets: { target: Target; floor: Target }[] = [
    { target: bareOne, floor: bareOne },
    { target: bareTwo, floor: bareTwo },
  ];
  const shops: { name: string; port: number; saleId: string; redis: RedisServer }[] = [];
  for (const [name, database] of Object.entries(databases)) {
    const redis = await startRedis({ persistence: 'aof', args: ['--appendfsync', 'everysec'] });
    const env = { REDIS_URL: redis.url, DATABASE_URL: database.url, RATE_LIMIT_BUYER: '100000' };
    await runJson(['bin/doorbuster.js', 'migrate', '--json'], env);
    const serve = (flags: string[]) => started(['bin/doorbuster.js', 'serve', '--port', '0', ...flags], env);
    const ports = [await serve([]), await serve(['--no-worker'])];
    const saleId = await createSale(ports[0]!);
    shops.push({ name, port: ports[0]!, saleId, redis });
    targets.push(
      { target: target(`${name}, 1 API process (and worker)`, ports.slice(0, 1), saleId), floor: bareOne },
      { target: target(`${name}, 2 API processes`, ports, saleId), floor: bareTwo },
    );
  }
  for (const { target } of targets) await measure({ ...target, rounds: [], p50Ms: [], p99Ms: [] }, 1000);
  for (let round = 1; round <= rounds; round++) {
    for (const { target } of targets) await measure(target, durationMs);
    console.error(
      `round ${round} of ${rounds}: ${targets.map(({ target: { name, rounds } }) => `${name} ${rounds.at(-1)}`).join(', ')}`,
    );
  }
  const pauses: Record<string, unknown>[] = [];
  for (const { name, port, saleId, redis } of shops) {
    console.error(`${name}: a rebuild with ${LIVE_ORDERS} live orders…`);
    await closeSale(port, saleId);
    const pausesMs: number[] = [];
    for (let round = 0; round < (quick ? 1 : 3); round++) pausesMs.push(await pauseOfRebuild(port, redis));
    pauses.push({
      what: name,
      'live orders': LIVE_ORDERS,
      'pause ms, median': median(pausesMs),
      all: pausesMs.join(' '),
    });
  }
  const rows = targets.map(({ target, floor }) => ({
    what: target.name,
    'orders per second': median(target.rounds),
    'of bare': Number(median(target.rounds.map((rate, round) => rate / floor.rounds[round]!)).toFixed(3)),
    'p50 ms': median(target.p50Ms),
    'p99 ms': median(target.p99Ms),
  }));
  report(
    'shop',
    { shop: rows, 'a rebuild after Redis has lost everything': pauses },
    [
      'machines of their own: load, API processes, worker, Redis and database share two cores here, the bare route has them with the load alone',
      'a network',
      'a second worker',
    ],
    { rounds, durationMs, connections: CONNECTIONS },
  );
  for (const child of children) await end(child);
  await cleanUpServers();
}
