import { afterAll } from 'vitest';
import { createLocks } from '../../src/locks/index.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startRedis, startRedisCluster } from '../support/servers/redis.ts';
import { locksContract } from './locks.ts';

describeWithRedis('locks on a Redis cluster', () => {
  afterAll(cleanUpServers);

  locksContract('cluster', async () => {
    // Three masters: names of one test lie on several of them, and multi-locks and list() cross them.
    const [cluster, there] = await Promise.all([startRedisCluster({ masters: 3 }), startRedis()]);
    const redis = `redis+cluster://${cluster.nodes.map(({ host, port }) => `${host}:${port}`).join(',')}`;
    return {
      client: (options) => createLocks({ redis, ...options }),
      elsewhere: () => createLocks({ redis: there.url }),
      // WAIT speaks of one server's writes, and a client of a cluster talks to several: refused rather than guessed.
      withoutReplicas: 'lock_replicas',
      end: async () => undefined,
    };
  });
});
