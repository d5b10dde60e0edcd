import { Redis } from 'ioredis';
import { afterAll, describe, expect, inject, it } from 'vitest';
import { seedOf } from '../support/crowd-record.ts';
import { startWorker, type TestShop } from '../support/distributed.ts';
import { admin, counts, isWhole, place } from '../support/distributed-calls.ts';
import { type CrowdPlan, DistributedCrowd, NO_SHOP_FAULTS } from '../support/distributed-crowd.ts';
import { until } from '../support/fault-wait.ts';
import { checkOutFormer, FORMER, whyNoFormer } from '../support/former.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, run, startServer } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithOwnPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { startRedis } from '../support/servers/redis.ts';
import { noteSkipped } from '../support/servers/skipped.ts';

/** One crowd for each step of the upgrade. */
const PLAN: CrowdPlan = { buyers: 800, stock: 6_000, perBuyer: 2, atOnce: 64 };

afterAll(async () => {
  await cleanUp();
  await cleanUpServers();
});

const missing = LONG ? whyNoFormer() : 'it runs in npm run test:long';
if (LONG && missing !== null) {
  const file = inject('skippedFile');
  if (file) noteSkipped(file, { name: 'test/faults/upgrade.test.ts', reason: missing });
}

describe.skipIf(missing !== null)(`an upgrade from ${FORMER.slice(0, 7)}`, () => {
  describeWithRedis('on Redis', () => describeWithOwnPostgres('and PostgreSQL', suite));
});

function suite(): void {
  it('P1, P2, P3: old and new take and carry orders side by side; each reads what the other writes', async () => {
    const { random, label } = seedOf('upgrade');
    const former = checkOutFormer();
    const [redis, database] = await Promise.all([startRedis({ persistence: 'aof' }), startPostgres()]);
    const client = new Redis(redis.url);
    const env = { REDIS_URL: redis.url, DATABASE_URL: database.url };
    const quiet = { ...env, LOG_LEVEL: 'warn' };
    const oldMigrate = await run(['migrate'], quiet, former);
    expect(oldMigrate.code, oldMigrate.stderr).toBe(0);
    const oldServer = await startServer({ args: ['--no-worker'], env, bin: former });
    const oldWorker = await startWorker(env, former);
    const shop: TestShop = {
      addresses: { redisUrl: redis.url, databaseUrl: database.url },
      servers: [oldServer],
      workers: [oldWorker],
      startServer: () => Promise.reject(new Error('not here')),
      startWorker: () => Promise.reject(new Error('not here')),
    };
    const crowd = new DistributedCrowd(shop, random);
    try {
      const saleId = await crowd.createSale(PLAN);
      const phase = (name: string): Promise<void> => crowd.run(saleId, PLAN, name);
      await phase('all old');
      const newMigrate = await run(['migrate'], quiet);
      expect(newMigrate.code, newMigrate.stderr).toBe(0);
      // A new server, and the old worker alone: the wrong order, and still nothing is lost.
      shop.servers.push(await startServer({ args: ['--no-worker'], env }));
      await phase('old worker');
      const newWorker = await startWorker(env);
      await phase('both workers');
      expect(await oldWorker.stop()).toBe(0);
      await phase('new worker');
      // An old one is started again in the middle of the upgrade, and takes over from a new one that is killed.
      const again = await startWorker(env, former);
      const last = phase('new worker is killed');
      const before = crowd.record.accepted().size;
      await until('the crowd is in the middle', 30_000, () => crowd.record.accepted().size > before + PLAN.buyers / 4);
      await newWorker.kill();
      await last;
      await startWorker(env);
      await phase('both again');
      await crowd.buyTheRest(saleId);
      const { faults, orders } = await crowd.verdict(saleId, PLAN.perBuyer);
      expect(faults, label).toEqual(NO_SHOP_FAULTS);
      await again.stop();

      // What one version has sold, the other takes back and sells again.
      const [older, newer] = shop.servers as [typeof oldServer, typeof oldServer];
      const some = orders.filter(({ status }) => status === 'reserved').slice(0, 20);
      for (const [at, { id }] of some.entries()) {
        const cancelled = await admin(at % 2 === 0 ? older : newer, 'POST', `/v1/orders/${id}/cancel`);
        expect(cancelled.status, JSON.stringify(cancelled.body)).toBe(200);
      }
      const placed = await place(newer, saleId, 'late', { key: 'k' });
      expect((await place(older, saleId, 'late', { key: 'k' })).body.id).toBe(placed.body.id);
      const item = await until('nothing is queued', 10_000, async () => {
        const now = await counts(older, saleId);
        return now.queued === 0 ? now : null;
      });
      expect(isWhole(item), JSON.stringify(item)).toBe(true);
      const free = some.reduce((units, { quantity }) => units + quantity, -1);
      expect([item.free, item.reserved]).toEqual([free, PLAN.stock - free]);
      for (const server of shop.servers) {
        expect((await admin(server, 'GET', '/v1/ops/dead-letters')).body.data).toEqual([]);
      }
      expect(await client.hget('doorbuster:format', 'format')).toBe('1');
      console.log(`${crowd.summary()} (${label})`);
    } finally {
      crowd.close();
      client.disconnect();
    }
  }, 300_000);
}
