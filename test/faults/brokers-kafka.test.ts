import { brokerFaults } from '../support/broker-faults.ts';
import { KAFKA_KIND } from '../support/broker-kinds.ts';
import { MARIADB_KIND } from '../support/broker-shop.ts';
import { describeWithOwnKafka, describeWithOwnMysql, describeWithRedis } from '../support/servers/describe.ts';

describeWithRedis('the distributed shop', () => {
  describeWithOwnMysql('on MariaDB', () => {
    describeWithOwnKafka('through Kafka', () =>
      brokerFaults(KAFKA_KIND, MARIADB_KIND, {
        outages: ['kill -9'],
        // Long run only; the short run covers them with RabbitMQ.
        kills: false,
        rebuilds: [],
        overload: false,
      }),
    );
  });
});
