import { Cluster } from 'ioredis';
import { afterAll, beforeAll, it, onTestFinished } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { RedisStreamsPipe } from '../../src/pipe/redis-streams/pipe.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type RedisCluster, startRedisCluster } from '../support/servers/redis.ts';
import { orderMessage, StreamFeeder } from '../support/streams.ts';
import { pipeContract, RETRY_MS, TRIES_MAX } from './pipe.ts';

describeWithRedis('the pipe on a Redis cluster', () => {
  let cluster: RedisCluster;

  beforeAll(async () => {
    cluster = await startRedisCluster({ masters: 3 });
  });
  afterAll(cleanUpServers);

  function start(sweepMs: number) {
    const nodes = cluster.nodes.map(({ host, port }) => ({ host, port }));
    const redis = `redis+cluster://${nodes.map(({ host, port }) => `${host}:${port}`).join(',')}`;
    const runtime = systemRuntime();
    const prefix = `pipe-${runtime.random.secret(6)}`;
    const client = new Cluster(nodes);
    const feeder = new StreamFeeder(client, prefix);
    const pipe = new RedisStreamsPipe({ redis, prefix, retryMs: RETRY_MS, triesMax: TRIES_MAX, sweepMs }, runtime);
    const end = async (): Promise<void> => {
      await pipe.close();
      client.disconnect();
    };
    return { pipe, feeder, end };
  }

  pipeContract('redis streams, cluster', async () => {
    const { pipe, feeder, end } = start(50);
    return {
      pipe,
      letters: pipe.letters,
      push: (messages) => feeder.write(messages),
      pushEach: (messages) => feeder.writeEach(messages),
      batchMax: 512,
      end,
    };
  });

  it('wake-ups reach every consumer, whatever node the sale is on', async () => {
    // Without any sweep after the first.
    const { pipe, feeder, end } = start(60_000);
    onTestFinished(end);
    const seen: string[] = [];
    pipe.consume(async (batch) => void seen.push(...batch.map(({ saleId }) => saleId)));
    await until('it listens', 5000, async () => {
      await feeder.write([orderMessage('1', { saleId: '1000' })]);
      return seen.length > 0;
    });
    seen.length = 0;
    await sleep(100);
    for (let sale = 1; sale <= 30; sale++) await feeder.write([orderMessage('1', { saleId: String(sale) })]);
    await until('all were woken', 5000, () => new Set(seen).size >= 30);
  });
});
