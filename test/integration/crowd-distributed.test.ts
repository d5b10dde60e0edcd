import { afterAll, describe, expect, it } from 'vitest';
import { saleNow } from '../support/crowd-judge.ts';
import { startShop } from '../support/distributed.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { ADMIN_KEY, AUTH_SECRET, cleanUp, createSale, run } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithOwnMysql, describeWithOwnPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { startMariadb } from '../support/servers/mariadb.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { startRedis } from '../support/servers/redis.ts';

const KEYS = { DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET };
const BUYERS = LONG ? 21_000 : 1_500;

afterAll(async () => {
  await cleanUp();
  await cleanUpServers();
});

interface Database {
  url: string;
  kill(): Promise<void>;
  restart(): Promise<void>;
}

function suite(startDatabase: () => Promise<Database>): void {
  it('doorbuster crowd finds every promise kept by four API processes and two workers, also when the database goes away', async () => {
    const redis = await startRedis();
    const database = await startDatabase();
    const shop = await startShop({ redisUrl: redis.url, databaseUrl: database.url, servers: 4, workers: 2 });
    const urls = shop.servers.flatMap(({ url }) => ['--url', url]);
    const crowd = (sale: string) =>
      run(['crowd', ...urls, '--sale', sale, '--buyers', String(BUYERS), '--admin-key', ADMIN_KEY], KEYS);

    const calm = await crowd(await createSale(shop.servers[0]!, { stock: BUYERS / 3 }));
    expect(calm.stdout).toContain('verdict: every promise held');
    expect(calm.stdout).toMatch(/never oversold: ([\d\s]+) of \1 units sold/);
    expect(calm.code).toBe(0);

    const saleId = await createSale(shop.servers[0]!, { stock: BUYERS / 3 });
    const running = crowd(saleId);
    // Wait until it has started, which takes a while on a busy machine.
    await until(
      'the crowd buys',
      30_000,
      async () => (await saleNow(shop.servers[0]!, saleId)).items[0]!.reserved > 20,
    );
    await database.kill();
    await sleep(3_000);
    await database.restart();
    const { code, stdout } = await running;
    expect(stdout).toContain('verdict: every promise held');
    expect(stdout).toContain('every 202 decided');
    expect(code).toBe(0);
  }, 240_000);

  it('P8: without a worker, crowd --likes says that likes are late, not that they are lost', async () => {
    const [redis, database] = await Promise.all([startRedis(), startDatabase()]);
    const shop = await startShop({ redisUrl: redis.url, databaseUrl: database.url, servers: 1, workers: 0 });
    const { url } = shop.servers[0]!;
    const args = ['crowd', '--likes', '--url', url, '--buyers', '10', '--wait', '1', '--admin-key', ADMIN_KEY];
    const { code, stdout } = await run(args, KEYS);
    expect(stdout).toMatch(/✗ P8 +NOT STORED IN TIME: likes of [123] posts? after 1 s; is a worker running\?/);
    expect(stdout).not.toMatch(/LOST|DRIFT|SEEN WRONG|TOLD WRONG/);
    expect(code).toBe(1);
  }, 60_000);
}

// Long run only: crowd.test.ts tests the command, and distributed-outage.test.ts outages of the database.
describeWithRedis('crowd against a distributed shop', () => {
  (LONG ? describeWithOwnMysql : describe.skip)('on MariaDB', () => suite(startMariadb));
  (LONG ? describeWithOwnPostgres : describe.skip)('on PostgreSQL', () => suite(startPostgres));
});
