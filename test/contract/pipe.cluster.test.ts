import { Cluster } from 'ioredis';
import { afterAll, beforeAll, it, onTestFinished } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { RedisStreamsPipe } from '../../src/pipe/redis-streams/pipe.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type RedisCluster, startRedisCluster } from '../support/servers/redis.ts';
import { Feeder, orderMessage, TEST_ORDERS, type TestKind } from '../support/streams.ts';
import { pipeContract, RETRY_MS, TRIES_MAX } from './pipe.ts';

describeWithRedis('the pipe on a Redis cluster', () => {
  let cluster: RedisCluster;

  beforeAll(async () => {
    cluster = await startRedisCluster({ masters: 3 });
  });
  afterAll(cleanUpServers);

  function start<M>(kind: TestKind<M>, sweepMs: number) {
    const nodes = cluster.nodes.map(({ host, port }) => ({ host, port }));
    const redis = `redis+cluster://${nodes.map(({ host, port }) => `${host}:${port}`).join(',')}`;
    const runtime = systemRuntime();
    const prefix = `pipe-${runtime.random.secret(6)}`;
    const client = new Cluster(nodes);
    const feeder = new Feeder(client, prefix, kind);
    const pipe = new RedisStreamsPipe(
      { channels: kind.channels, redis, prefix, retryMs: RETRY_MS, triesMax: TRIES_MAX, sweepMs },
      runtime,
    );
    const end = async (): Promise<void> => {
      await pipe.close();
      client.disconnect();
    };
    return { pipe, feeder, end };
  }

  pipeContract(
    'redis streams, cluster',
    async (kind) => {
      const { pipe, feeder, end } = start(kind, 50);
      return {
        pipe,
        letters: pipe.letters,
        push: (messages) => feeder.write(messages),
        pushEach: (messages) => feeder.writeEach(messages),
        batchMax: 512,
        end,
      };
    },
    { fewOfLikes: true },
  );

  it('wake-ups reach every consumer, whatever node the sale is on', async () => {
    // Without any sweep after the first.
    const { pipe, feeder, end } = start(TEST_ORDERS, 60_000);
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
