import { afterAll, beforeAll } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { KafkaCarrier } from '../../src/pipe/kafka/carrier.ts';
import { brokerPipeOf } from '../support/broker-pipe.ts';
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

  pipeContract(
    'kafka',
    async (kind) => {
      const runtime = systemRuntime();
      const name = `pipe-${runtime.random.secret(6)}`;
      const carrier = (prefix: string, of: string) => new KafkaCarrier({ url, prefix, kind: of }, runtime);
      const options = { retryMs: RETRY_MS, triesMax: TRIES_MAX };
      const { pipe, feeder, end } = brokerPipeOf(kind, redis, name, carrier, options);
      return {
        pipe,
        letters: pipe.letters,
        push: (messages) => feeder.write(messages),
        pushEach: (messages) => feeder.writeEach(messages),
        batchMax: 512,
        fillsBatches: false,
        end,
      };
    },
    { fewOfLikes: true },
  );
});
