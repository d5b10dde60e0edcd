import { randomBytes } from 'node:crypto';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { until } from '../support/fault-wait.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { ADMIN_KEY, AUTH_SECRET, run } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis, describeWithPostgres } from '../support/servers/describe.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { redisUrl } from '../support/servers/redis.ts';

/** Two ledgers on one prefix of Redis: each would consume the other's orders, and take its sales for finished. */
describeWithAnyRedis('two shops on one prefix of Redis', () => {
  describeWithPostgres('with databases of their own', () => {
    let redis: string;
    let ours: string;
    let theirs: string;
    let client: Redis;
    let prefix: string;
    let proxy: FaultProxy;
    const shops: DistributedShop[] = [];

    beforeAll(async () => {
      [redis, ours, theirs] = await Promise.all([redisUrl(), postgresUrl(), postgresUrl()]);
      client = new Redis(redis);
      proxy = await startProxy(Number(new URL(redis).port || 6379));
    }, 60_000);
    beforeEach(() => {
      prefix = `two-${randomBytes(4).toString('hex')}`;
    });
    afterEach(async () => {
      await proxy.refuse(false);
      await Promise.all(shops.splice(0).map((shop) => shop.close()));
    });
    afterAll(async () => {
      client?.disconnect();
      await proxy?.close();
      await cleanUpServers();
    });

    async function start(database: string, { worker = true, redisAt = redis } = {}): Promise<DistributedShop> {
      const ledger = await openSqlLedger(database, systemRuntime(), { migrate: true, exclusive: false });
      const shop = await DistributedShop.open(
        ledger,
        { redis: redisAt, prefix, answerWithinMs: 2000, pipeMax: 1000, worker, writerLock: 'off' },
        systemRuntime(),
      );
      shops.push(shop);
      return shop;
    }

    let buyers = 0;
    const buy = (shop: DistributedShop, saleId: string): Promise<string> =>
      shop.place({ saleId, itemCode: 'voucher', buyer: `buyer-${++buyers}`, quantity: 1, key: null }).then(
        (result) => (result.ok ? result.order.status : result.code),
        (error: Error) => error.message,
      );

    /** A proxy in front of Redis. */
    const through = (): string => {
      const url = new URL(redis);
      url.port = String(proxy.port);
      return url.href;
    };

    it('P3: the second does not start and says which key is in its way; the first goes on, and has company', async () => {
      const first = await start(ours);
      const owner = (await client.get(`${prefix}:shop`))!;
      expect(owner).toMatch(/^[0-9a-f]{32}$/);
      const saleId = await createSaleIn(first);
      expect(await buy(first, saleId)).toBe('reserved');

      await expect(start(theirs)).rejects.toMatchObject({
        name: 'TerminalError',
        code: 'bad_config',
        message: expect.stringContaining(`${prefix}:shop`),
      });
      const env = {
        ...{ REDIS_URL: redis, DATABASE_URL: theirs, REDIS_PREFIX: prefix, LOG_LEVEL: 'fatal', PORT: '0' },
        ...{ DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET },
      };
      const commands = [['worker'], ['serve', '--no-worker'], ['doctor']];
      const ends = await Promise.all(commands.map((args) => run(args, env)));
      for (const [at, { code, stderr }] of ends.slice(0, 2).entries()) {
        expect(code, stderr).toBe(1);
        const lines = stderr.trimEnd().split('\n');
        expect(lines).toEqual([expect.stringContaining(`doorbuster ${commands[at]![0]}: another shop (${owner})`)]);
        expect(lines[0]).toContain(`the Redis key ${prefix}:shop`);
        expect(lines[0]).toContain('REDIS_PREFIX');
      }
      expect(ends[2]!.code).toBe(1);
      expect(ends[2]!.stdout).toMatch(
        new RegExp(`shop .*another shop \\(${owner}\\) has the Redis key ${prefix}:shop`),
      );

      await start(ours, { worker: false });
      expect(await buy(first, saleId)).toBe('reserved');
      expect(await client.get(`${prefix}:shop`)).toBe(owner);
      expect((await first.deadLetters.page(10, null)).data).toEqual([]);
    }, 60_000);

    it('P3: a Redis that is out at the start is asked when it is back, before anything is sold or carried', async () => {
      const first = await start(ours, { worker: false });
      const saleId = await createSaleIn(first);
      await proxy.refuse(true);
      const [late, foreign] = await Promise.all([
        start(ours, { redisAt: through() }),
        start(theirs, { redisAt: through() }),
      ]);
      expect(await buy(late, saleId)).not.toBe('reserved');
      expect(late.readiness().status).toBe('unavailable');
      // No worker of its own shop runs yet, and that of the other shop must not take it.
      const queued = buy(first, saleId);
      await proxy.refuse(false);
      await until('it is told', 10_000, () => foreign.readiness().parts.gate.includes(`${prefix}:shop`));
      await until('ours sells', 10_000, async () => (await buy(late, saleId)) === 'reserved');
      expect(['reserved', 'queued']).toContain(await queued);
      await expect(createSaleIn(foreign)).rejects.toThrow(`${prefix}:shop`);
      const known = (await first.listSales({ limit: 100, before: null })).map(({ id }) => id);
      for (const id of await client.smembers(`${prefix}:sales`)) expect(known, 'of ours only').toContain(id);
      expect((await first.deadLetters.page(10, null)).data).toEqual([]);
    }, 60_000);

    it('a Redis that has forgotten whose it is hears it again; one that is another’s by now is left alone', async () => {
      const shop = await start(ours);
      const saleId = await createSaleIn(shop);
      expect(await buy(shop, saleId)).toBe('reserved');
      const owner = await client.get(`${prefix}:shop`);
      await client.del(`${prefix}:shop`);
      await until('it is set again', 5_000, async () => (await client.get(`${prefix}:shop`)) === owner);
      await client.set(`${prefix}:shop`, 'another');
      await until('it sells no more', 5_000, async () => (await buy(shop, saleId)).includes(`${prefix}:shop`));
      expect(shop.readiness()).toMatchObject({
        status: 'unavailable',
        parts: { gate: expect.stringContaining(`${prefix}:shop`) },
      });
      expect(await client.get(`${prefix}:shop`)).toBe('another');
    });
  });
});
