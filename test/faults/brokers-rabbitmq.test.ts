import { brokerFaults } from '../support/broker-faults.ts';
import { RABBITMQ_KIND } from '../support/broker-kinds.ts';
import { POSTGRES_KIND } from '../support/broker-shop.ts';
import { describeWithOwnPostgres, describeWithOwnRabbitmq, describeWithRedis } from '../support/servers/describe.ts';

describeWithRedis('the distributed shop', () => {
  describeWithOwnPostgres('on PostgreSQL', () => {
    describeWithOwnRabbitmq('through RabbitMQ', () =>
      brokerFaults(RABBITMQ_KIND, POSTGRES_KIND, {
        kills: false,
        // Long run only: carrier-rabbitmq.test.ts covers a broker that hangs, and brokers-kafka.test.ts buyers meanwhile.
        outages: [],
        rebuilds: ['FLUSHALL'],
        overload: true,
      }),
    );
  });
});
