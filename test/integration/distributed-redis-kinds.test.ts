import { afterAll, expect, it } from 'vitest';
import { startShop, type TestShop } from '../support/distributed.ts';
import { admin, counts, place, replayed } from '../support/distributed-calls.ts';
import { until } from '../support/fault-wait.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { type Answer, allOrders, cleanUp, createSale, type TestServer } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithRedis } from '../support/servers/describe.ts';
import { mysqlUrl } from '../support/servers/mariadb.ts';
import { type RedisSentinel, startRedis, startRedisCluster, startRedisSentinel } from '../support/servers/redis.ts';

/** One API process and one worker on each kind of Redis. */

async function shopOn(redisUrl: string): Promise<TestShop> {
  const databaseUrl = await mysqlUrl();
  return startShop({ redisUrl, databaseUrl, servers: 1, workers: 1, env: { LOG_LEVEL: 'fatal' } });
}

/** Create, buy, the limit, sold out, pause, restock, a replay. */
async function expectSells(server: TestServer): Promise<void> {
  const sale = await createSale(server, { stock: 2, perBuyer: 1 });
  const first = await place(server, sale, 'alice', { key: 'k' });
  expect(first.status, JSON.stringify(first.body)).toBe(201);
  expectProblem(await place(server, sale, 'alice'), 409, 'limit_reached');
  expect((await place(server, sale, 'bob')).status).toBe(201);
  expectProblem(await place(server, sale, 'carol'), 409, 'sold_out');
  const again = await place(server, sale, 'alice', { key: 'k' });
  expect([again.status, again.body, replayed(again)]).toEqual([201, first.body, true]);
  expect((await admin(server, 'POST', `/v1/sales/${sale}/pause`)).status).toBe(200);
  expectProblem(await place(server, sale, 'carol'), 409, 'sale_paused');
  await admin(server, 'POST', `/v1/sales/${sale}/resume`);
  const more = await admin(server, 'POST', `/v1/sales/${sale}/items/voucher/stock`, { body: { add: 1 } });
  expect(more.status).toBe(200);
  expect((await place(server, sale, 'carol')).status).toBe(201);
  expect(await counts(server, sale)).toMatchObject({ total: 3, free: 0, queued: 0, reserved: 3 });
}

async function stopAll({ servers, workers }: TestShop): Promise<void> {
  const codes = await Promise.all([...servers, ...workers].map((one) => one.stop()));
  expect(codes).toEqual(codes.map(() => 0));
}

describeWithRedis('kinds of Redis', () => {
  describeWithMysql('with MariaDB', () => {
    afterAll(async () => {
      await cleanUp();
      await cleanUpServers();
    });

    it('a password and a database number in the address', async () => {
      const redis = await startRedis();
      await redis.command('CONFIG', 'SET', 'requirepass', 'open sesame');
      const address = `redis://:${encodeURIComponent('open sesame')}@127.0.0.1:${redis.port}/3`;
      const shop = await shopOn(address);
      await expectSells(shop.servers[0]!);
      const printed = [...shop.servers, ...shop.workers].map((one) => one.output()).join('');
      expect(printed).not.toMatch(/open.{1,3}sesame/);
      await stopAll(shop);
    });

    it('a cluster: sales lie on different nodes, and each sells', async () => {
      const cluster = await startRedisCluster();
      const hosts = cluster.nodes.map(({ host, port }) => `${host}:${port}`).join(',');
      const shop = await shopOn(`redis+cluster://${hosts}`);
      const server = shop.servers[0]!;
      await expectSells(server);
      const sales = await Promise.all(Array.from({ length: 8 }, () => createSale(server, { stock: 3 })));
      const owners = new Set(await Promise.all(sales.map((sale) => cluster.ownerOf(`doorbuster:{${sale}:0}:gate`))));
      expect(owners.size).toBeGreaterThan(1);
      const bought = await Promise.all(sales.map((sale) => place(server, sale, 'alice')));
      expect(bought.map(({ status }) => status)).toEqual(sales.map(() => 201));
      await stopAll(shop);
    }, 45_000);

    it('sentinels: the master dies; what was 201 stays, and it sells again without a restart', async () => {
      const sentinel: RedisSentinel = await startRedisSentinel();
      const hosts = sentinel.sentinelAddresses.map(({ host, port }) => `${host}:${port}`).join(',');
      const shop = await shopOn(`redis+sentinel://${hosts}/${sentinel.name}`);
      const server = shop.servers[0]!;
      await expectSells(server);
      const stock = 40;
      const sale = await createSale(server, { stock });
      const first: Answer[] = [];
      for (let n = 0; n < 10; n++) first.push(await place(server, sale, `early-${n}`, { key: 'k' }));
      expect(first.map(({ status }) => status)).toEqual(first.map(() => 201));

      await sentinel.failover('kill');
      await until('it sells again', 15_000, async () => {
        const one = await place(server, sale, 'after', { key: 'k' });
        return one.status === 201;
      });
      for (const { body } of first) {
        expect((await server.call('GET', `/v1/orders/${body.id}`, { admin: true })).body).toEqual(body);
      }
      const replay = await place(server, sale, 'early-3', { key: 'k' });
      expect([replay.status, replay.body, replayed(replay)]).toEqual([201, first[3]!.body, true]);
      expectProblem(await place(server, sale, 'early-4'), 409, 'limit_reached');
      // To the last unit, and no further.
      const rest = await Promise.all(Array.from({ length: stock }, (_, n) => place(server, sale, `late-${n}`)));
      await until('nothing is queued', 10_000, async () => (await counts(server, sale)).queued === 0);
      expect(rest.filter(({ body }) => body.code === 'sold_out')).toHaveLength(11);
      expect(await counts(server, sale)).toMatchObject({ total: stock, free: 0, reserved: stock });
      expect((await allOrders(server, sale)).filter(({ status }) => status === 'reserved')).toHaveLength(stock);
      await stopAll(shop);
    }, 60_000);
  });
});
