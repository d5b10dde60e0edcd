import { afterAll, afterEach, expect, it } from 'vitest';
import { createLocks, type Locks } from '../../src/locks/locks.ts';
import { seedOf } from '../support/crowd-record.ts';
import { startShop, type TestShop } from '../support/distributed.ts';
import { type CrowdPlan, DistributedCrowd, NO_SHOP_FAULTS } from '../support/distributed-crowd.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { cleanUp } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithOwnMysql, describeWithOwnPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { startMariadb } from '../support/servers/mariadb.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

const PLAN: CrowdPlan = { buyers: LONG ? 20_000 : 1_700, stock: LONG ? 12_000 : 1_000, perBuyer: 2, atOnce: 96 };
const MINUTES = 60_000;
/** Longer than the leases of a rebuild (10 s) and of messages in hand (5 s); in the long run also than a lock's default of 30 s. */
const STOPPED_MS = LONG ? 45_000 : 12_000;
const STOPPED_WORKER_MS = LONG ? STOPPED_MS : 7_000;

interface Database {
  url: string;
  kill(): Promise<void>;
  restart(): Promise<void>;
}

interface World {
  shop: TestShop;
  crowd: DistributedCrowd;
  redis: RedisServer;
  database: Database;
  saleId: string;
}

interface Fault {
  servers?: number;
  /** Starts a private Redis before the shop; `url`: the address that the shop uses. */
  redis?: () => Promise<{ redis: RedisServer; url?: string }>;
  /** Injects the fault while the crowd runs. */
  strike: (world: World) => Promise<void>;
}

afterEach(async () => {
  await cleanUp();
  await cleanUpServers();
});
afterAll(cleanUp);

/** Resolves in the middle of the crowd. */
async function inTheMiddle({ crowd }: World, share = 0.3): Promise<void> {
  const enough = PLAN.stock * share;
  await until('the crowd is in the middle', 60_000, () => crowd.record.accepted().size > enough);
}

async function stopFor(pid: number, ms = STOPPED_MS): Promise<void> {
  process.kill(pid, 'SIGSTOP');
  await sleep(ms);
  process.kill(pid, 'SIGCONT');
}

async function killRedis(world: World): Promise<void> {
  await inTheMiddle(world);
  await world.redis.kill();
  await sleep(1_500);
  await world.redis.restart();
}

/** The process that holds the lock of the rebuild, if any. */
async function rebuilding(locks: Locks, saleId: string): Promise<number | null> {
  const { holders } = await locks.inspect('mutex', `rebuild:${saleId}`);
  const pid = /\/(\d+)/.exec(holders[0]?.info ?? '')?.[1];
  return pid === undefined ? null : Number(pid);
}

/** Switches the address from the master to its replica. */
let promote: (replica: () => Promise<unknown>) => Promise<void>;

const FAULTS = {
  'four API processes, two workers': { servers: 4, strike: async () => {} },
  'kill -9 of an API process and of a worker': {
    strike: async (world) => {
      await inTheMiddle(world);
      const { shop, crowd } = world;
      crowd.died(shop.servers[0]!);
      await Promise.all([shop.servers[0]!.kill(), shop.workers[0]!.kill()]);
      await shop.startServer();
    },
  },
  'kill -9 of the database, out for a while': {
    strike: async (world) => {
      await inTheMiddle(world);
      await world.database.kill();
      await sleep(LONG ? 60_000 : 4_000);
      await world.database.restart();
    },
  },
  'kill -9 of the database, and its return at once': {
    strike: async (world) => {
      await inTheMiddle(world);
      await world.database.restart();
    },
  },
  'kill -9 of a Redis with AOF, and its return': {
    redis: async () => ({ redis: await startRedis({ persistence: 'aof' }) }),
    strike: killRedis,
  },
  'kill -9 of a Redis without persistence, which comes back empty': { strike: killRedis },
  'FLUSHALL, twice': {
    strike: async (world) => {
      await inTheMiddle(world, 0.2);
      await world.redis.command('FLUSHALL');
      await inTheMiddle(world, 0.6);
      await world.redis.command('FLUSHALL');
    },
  },
  'a lagging replica is promoted': {
    redis: async () => {
      const master = await startRedis();
      const replica = await startRedis({ args: ['--replicaof', '127.0.0.1', String(master.port)] });
      const proxy = await startProxy(master.port);
      promote = async (meanwhile) => {
        // From here on the replica gets nothing: it does not know what is sold now.
        await replica.command('REPLICAOF', 'NO', 'ONE');
        await meanwhile();
        proxy.target(replica.port);
        proxy.cut();
      };
      return { redis: master, url: `redis://127.0.0.1:${proxy.port}` };
    },
    strike: async (world) => {
      await inTheMiddle(world, 0.2);
      await promote(() => inTheMiddle(world, 0.5));
    },
  },
  'SIGSTOP of a worker for longer than every lease': {
    strike: async (world) => {
      await inTheMiddle(world);
      await stopFor(world.shop.workers[0]!.process.pid!, STOPPED_WORKER_MS);
    },
  },
  'SIGSTOP of whoever rebuilds, for longer than every lease': {
    strike: async (world) => {
      await inTheMiddle(world);
      await using locks = createLocks({ redis: world.redis.url, prefix: 'doorbuster:lock' });
      let stopped: number | null = null;
      for (let tries = 0; stopped === null && tries < 5; tries++) {
        await world.redis.command('FLUSHALL');
        stopped = await until('somebody rebuilds', 1_000, () => rebuilding(locks, world.saleId)).catch(() => null);
      }
      expect(stopped, 'a process that rebuilds').not.toBeNull();
      await stopFor(stopped!);
    },
  },
} satisfies Record<string, Fault>;

type FaultName = keyof typeof FAULTS;

async function run(label: string, fault: Fault, startDatabase: () => Promise<Database>): Promise<void> {
  const { random, label: seed } = seedOf(label);
  const { redis, url = redis.url } = fault.redis ? await fault.redis() : { redis: await startRedis() };
  const database = await startDatabase();
  const shop = await startShop({
    redisUrl: url,
    databaseUrl: database.url,
    servers: fault.servers ?? 2,
    workers: 2,
  });
  const crowd = new DistributedCrowd(shop, random);
  const saleId = await crowd.createSale(PLAN);
  await Promise.all([crowd.run(saleId, PLAN), fault.strike({ shop, crowd, redis, database, saleId })]);

  const { faults, orders, sale, lostWithProcess } = await crowd.verdict(saleId, PLAN.perBuyer);
  const rejected = orders.filter(({ status }) => status === 'rejected').length;
  console.log(`${seed}: ${crowd.summary()}; rejected ${rejected}, 202 lost with their process ${lostWithProcess}`);
  expect(faults, seed).toEqual(NO_SHOP_FAULTS);
  expect(sale.items[0]!.total, seed).toBe(PLAN.stock);
  expect(crowd.record.accepted().size, seed).toBeGreaterThan(PLAN.stock / 3);

  // Without any intervention, a new crowd buys exactly what is left.
  const end = await crowd.buyTheRest(saleId);
  expect(end, seed).toMatchObject({ state: 'sold_out', items: [{ reserved: PLAN.stock, free: 0, queued: 0 }] });
  expect((await crowd.verdict(saleId, PLAN.perBuyer)).faults, seed).toEqual(NO_SHOP_FAULTS);
  crowd.close();
}

/** The long run tests every fault on every database, the short one each fault on one of them. */
function suite(name: string, startDatabase: () => Promise<Database>, quick: readonly FaultName[]): void {
  const names = LONG ? (Object.keys(FAULTS) as FaultName[]) : quick;
  it.each(names)(
    'P1, P2, P3, P5, P9 hold, and it sells on: %s',
    (fault) => run(`${name}, ${fault}`, FAULTS[fault], startDatabase),
    8 * MINUTES,
  );
}

describeWithRedis('the distributed shop', () => {
  describeWithOwnMysql('on MariaDB', () =>
    suite('MariaDB', startMariadb, ['kill -9 of a Redis without persistence, which comes back empty']),
  );
  describeWithOwnPostgres('on PostgreSQL', () =>
    suite('PostgreSQL', startPostgres, ['kill -9 of an API process and of a worker']),
  );
});
