import { afterAll, beforeAll } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { KafkaCarrier } from '../../src/pipe/kafka/carrier.ts';
import { brokerPipe } from '../support/broker-pipe.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithKafka } from '../support/servers/describe.ts';
import { kafkaUrl } from '../support/servers/kafka.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { pipeContract, RETRY_MS, TRIES_MAX } from './pipe.ts';

describeWithKafka('the pipe through Kafka', () => {
  let url: string;
  let redis: string;
  beforeAll(async () => {
    [url, redis] = await Promise.all([kafkaUrl(), redisUrl()]);
  });
  afterAll(cleanUpServers);

  pipeContract('kafka', async () => {
    const runtime = systemRuntime();
    const name = `pipe-${runtime.random.secret(6)}`;
    const carrier = (prefix: string) => new KafkaCarrier({ url, prefix }, runtime);
    const { pipe, feeder, end } = brokerPipe(redis, name, carrier, { retryMs: RETRY_MS, triesMax: TRIES_MAX });
    return {
      pipe,
      letters: pipe.letters,
      push: (messages) => feeder.write(messages),
      pushEach: (messages) => feeder.writeEach(messages),
      batchMax: 512,
      fillsBatches: false,
      end,
    };
  });
});
