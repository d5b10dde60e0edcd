import { afterAll, beforeAll } from 'vitest';
import { startShop } from '../support/distributed.ts';
import { cleanUp, type TestServer } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { startRedis } from '../support/servers/redis.ts';
import { seatsOverHttp } from './seats-suite.ts';

let servers: TestServer[];

describeWithRedis('numbered seats, distributed', () => {
  describeWithPostgres('on PostgreSQL', () => {
    beforeAll(async () => {
      const redis = await startRedis({ persistence: 'aof' });
      // A busy machine must not answer 202 to what is tested for 201.
      const env = { ANSWER_WITHIN_MS: '10000', REDIS_PREFIX: 'seats-test', WEBHOOKS_PRIVATE: 'on' };
      const addresses = { redisUrl: redis.url, databaseUrl: await postgresUrl() };
      ({ servers } = await startShop({ ...addresses, servers: 2, workers: 1, env }));
    }, 60_000);
    afterAll(async () => {
      await cleanUp();
      await cleanUpServers();
    });

    seatsOverHttp(() => ({ a: servers[0]!, b: servers[1]! }));
  });
});
