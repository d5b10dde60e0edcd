import { afterAll } from 'vitest';
import { createLocks } from '../../src/locks/index.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startRedis } from '../support/servers/redis.ts';
import { locksContract } from './locks.ts';

describeWithRedis('locks on one Redis', () => {
  afterAll(cleanUpServers);

  locksContract('redis', async () => {
    const [here, there] = await Promise.all([startRedis(), startRedis()]);
    return {
      client: (options) => createLocks({ redis: here.url, ...options }),
      elsewhere: () => createLocks({ redis: there.url }),
      withoutReplicas: 'lock_unavailable',
      end: cleanUpServers,
    };
  });
});
