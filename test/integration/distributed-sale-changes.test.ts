import { afterAll, beforeAll } from 'vitest';
import { startShop, type TestShop } from '../support/distributed.ts';
import { LONG } from '../support/long.ts';
import { saleChangesOver } from '../support/sale-changes.ts';
import { cleanUp, type TestServer } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { mysqlUrl } from '../support/servers/mariadb.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { startRedis } from '../support/servers/redis.ts';

/** What a sale says, its items, and its end, at two API processes with a worker beside them. */
function suite(database: () => Promise<string>): void {
  let shop: TestShop;

  beforeAll(async () => {
    const redis = await startRedis();
    shop = await startShop({
      ...{ redisUrl: redis.url, databaseUrl: await database(), servers: 2, workers: 1 },
      env: { ANSWER_WITHIN_MS: '5000' },
    });
  }, 60_000);
  afterAll(async () => {
    await cleanUp();
    await cleanUpServers();
  });

  saleChangesOver(() => {
    const [a, b] = shop.servers as [TestServer, TestServer];
    return { a, b };
  });
}

describeWithRedis('a shop of several processes', () => {
  describeWithPostgres('on PostgreSQL', () => suite(postgresUrl));
  // The ledger's contract suite has the same changes on all three databases.
  if (LONG) describeWithMysql('on MariaDB', () => suite(mysqlUrl));
});
