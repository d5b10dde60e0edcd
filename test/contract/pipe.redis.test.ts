import { Redis } from 'ioredis';
import { afterAll } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { RedisStreamsPipe } from '../../src/pipe/redis-streams/pipe.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { Feeder } from '../support/streams.ts';
import { pipeContract, RETRY_MS, TRIES_MAX } from './pipe.ts';

describeWithAnyRedis('the pipe on Redis Streams', () => {
  afterAll(cleanUpServers);

  pipeContract('redis streams', async (kind) => {
    const redis = await redisUrl();
    const runtime = systemRuntime();
    const prefix = `pipe-${runtime.random.secret(6)}`;
    const client = new Redis(redis);
    const feeder = new Feeder(client, prefix, kind);
    const { channels } = kind;
    const options = { channels, redis, prefix, retryMs: RETRY_MS, triesMax: TRIES_MAX, sweepMs: 50 };
    const pipe = new RedisStreamsPipe(options, runtime);
    return {
      pipe,
      letters: pipe.letters,
      push: (messages) => feeder.write(messages),
      pushEach: (messages) => feeder.writeEach(messages),
      batchMax: 512,
      end: async () => {
        await pipe.close();
        client.disconnect();
      },
    };
  });
});
