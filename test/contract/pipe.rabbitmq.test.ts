import { afterAll, beforeAll } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { RabbitCarrier } from '../../src/pipe/rabbitmq/carrier.ts';
import { brokerPipeOf } from '../support/broker-pipe.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRabbitmq } from '../support/servers/describe.ts';
import { rabbitmqUrl } from '../support/servers/rabbitmq.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { pipeContract, RETRY_MS, TRIES_MAX } from './pipe.ts';

describeWithRabbitmq('the pipe through RabbitMQ', () => {
  let url: string;
  let redis: string;
  beforeAll(async () => {
    [url, redis] = await Promise.all([rabbitmqUrl(), redisUrl()]);
  });
  afterAll(cleanUpServers);

  pipeContract(
    'rabbitmq',
    async (kind) => {
      const runtime = systemRuntime();
      const name = `pipe-${runtime.random.secret(6)}`;
      const carrier = (prefix: string, of: string) => new RabbitCarrier({ url, prefix, kind: of }, runtime);
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
