import { relative } from 'node:path';
import { describe, expect, inject } from 'vitest';
import { ROOT } from '../server.ts';
import { KAFKA, MARIADB, POSTGRES, type Product, RABBITMQ, REDIS, whyMissing } from './install.ts';
import { noteSkipped } from './skipped.ts';

/** A suite that starts, pauses or kills a Redis of its own. Where there is none it is skipped, and named at the end. */
export function describeWithRedis(name: string, suite: () => void): void {
  describeWith(REDIS, name, suite);
}

/** A suite that needs any Redis, and takes what redisUrl() gives. */
export function describeWithAnyRedis(name: string, suite: () => void): void {
  describeWithAny(REDIS, name, suite);
}

/** A suite that needs any MariaDB or MySQL, and takes what mysqlUrl() gives. */
export function describeWithMysql(name: string, suite: () => void): void {
  describeWithAny(MARIADB, name, suite);
}

/** A suite that starts, pauses or kills a MariaDB of its own: TEST_MYSQL_URL is no help to it. */
export function describeWithOwnMysql(name: string, suite: () => void): void {
  describeWith(MARIADB, name, suite);
}

/** A suite that needs any PostgreSQL, and takes what postgresUrl() gives. */
export function describeWithPostgres(name: string, suite: () => void): void {
  describeWithAny(POSTGRES, name, suite);
}

/** A suite that starts, pauses or kills a PostgreSQL of its own: TEST_POSTGRES_URL is no help to it. */
export function describeWithOwnPostgres(name: string, suite: () => void): void {
  describeWith(POSTGRES, name, suite);
}

/** A suite that needs any RabbitMQ, and takes what rabbitmqUrl() gives. */
export function describeWithRabbitmq(name: string, suite: () => void): void {
  describeWithAny(RABBITMQ, name, suite);
}

/** A suite that starts, pauses or kills a RabbitMQ of its own: TEST_RABBITMQ_URL is no help to it. */
export function describeWithOwnRabbitmq(name: string, suite: () => void): void {
  describeWith(RABBITMQ, name, suite);
}

/** A suite that needs any Kafka, and takes what kafkaUrl() gives. */
export function describeWithKafka(name: string, suite: () => void): void {
  describeWithAny(KAFKA, name, suite);
}

/** A suite that starts, pauses or kills a Kafka of its own: TEST_KAFKA_URL is no help to it. */
export function describeWithOwnKafka(name: string, suite: () => void): void {
  describeWith(KAFKA, name, suite);
}

function describeWithAny(product: Product, name: string, suite: () => void): void {
  if (process.env[product.urlVariable]) describe(name, suite);
  else describeWith(product, name, suite);
}

function describeWith(product: Product, name: string, suite: () => void): void {
  const missing = whyMissing(product);
  if (missing === null) {
    describe(name, suite);
    return;
  }
  // The set-up knows more: it has tried to install it.
  const reason = inject('serversMissing')?.[product.name] ?? missing;
  const file = inject('skippedFile');
  const path = expect.getState().testPath;
  if (file) noteSkipped(file, { name: path ? `${relative(ROOT, path)} > ${name}` : name, reason });
  describe.skip(name, suite);
}
