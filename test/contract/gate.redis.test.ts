import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { gateContract } from './gate.ts';
import { ownPrefix, streamed, TranslatedGate } from './gate-redis-world.ts';
import { gateSeatsContract } from './gate-seats.ts';
import { T0 } from './manual.ts';

describeWithAnyRedis('the gate on one Redis', () => {
  let target: string;
  let eye: Redis;
  let gate: RedisGate | null = null;

  beforeAll(async () => {
    target = await redisUrl();
    eye = new Redis(target);
  });
  afterEach(() => gate?.close());
  afterAll(async () => {
    eye.disconnect();
    await cleanUpServers();
  });

  const make = async () => {
    const clock = new ManualClock(T0);
    const prefix = ownPrefix();
    gate = new RedisGate({ target, prefix }, systemRuntime());
    const translated = new TranslatedGate(gate, clock);
    return { gate: translated, clock, emitted: () => streamed(eye, prefix, '7') };
  };
  gateContract('redis', make);
  gateSeatsContract('redis', make);
});
