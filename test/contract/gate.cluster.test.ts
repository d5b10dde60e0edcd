import { Cluster } from 'ioredis';
import { afterAll, afterEach, beforeAll } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startRedisCluster } from '../support/servers/redis.ts';
import { gateContract } from './gate.ts';
import { ownPrefix, streamed, TranslatedGate } from './gate-redis-world.ts';
import { gateSeatsContract } from './gate-seats.ts';
import { T0 } from './manual.ts';

describeWithRedis('the gate on a Redis cluster', () => {
  let target: string;
  let eye: Cluster;
  let gate: RedisGate | null = null;

  beforeAll(async () => {
    // Three masters: sales of one test are on several of them, and a script that uses an undeclared key fails.
    const { nodes } = await startRedisCluster({ masters: 3 });
    target = `redis+cluster://${nodes.map(({ host, port }) => `${host}:${port}`).join(',')}`;
    eye = new Cluster(nodes.map(({ host, port }) => ({ host, port })));
  });
  afterEach(() => gate?.close());
  afterAll(async () => {
    eye?.disconnect();
    await cleanUpServers();
  });

  const make = async () => {
    const clock = new ManualClock(T0);
    const prefix = ownPrefix();
    gate = new RedisGate({ target, prefix }, systemRuntime());
    return { gate: new TranslatedGate(gate, clock), clock, emitted: () => streamed(eye, prefix, '7') };
  };
  gateContract('cluster', make);
  gateSeatsContract('cluster', make);
});
