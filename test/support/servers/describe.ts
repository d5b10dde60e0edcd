import { relative } from 'node:path';
import { describe, expect, inject } from 'vitest';
import { ROOT } from '../server.ts';
import { KAFKA, MARIADB, POSTGRES, type Product, RABBITMQ, REDIS, whyMissing } from './install.ts';
import { noteSkipped } from './skipped.ts';

/** A suite that starts, pauses or kills its own Redis. Without Redis it is skipped, and named at the end of the run. */
export function describeWithRedis(name: string, suite: () => void): void {
  describeWith(REDIS, name, suite);
}

/** A suite that needs any Redis, from redisUrl(). */
export function describeWithAnyRedis(name: string, suite: () => void): void {
  describeWithAny(REDIS, name, suite);
}

/** A suite that needs any MariaDB or MySQL, from mysqlUrl(). */
export function describeWithMysql(name: string, suite: () => void): void {
  describeWithAny(MARIADB, name, suite);
}

/** A suite that starts, pauses or kills its own MariaDB: it cannot use TEST_MYSQL_URL. */
export function describeWithOwnMysql(name: string, suite: () => void): void {
  describeWith(MARIADB, name, suite);
}

/** A suite that needs any PostgreSQL, from postgresUrl(). */
export function describeWithPostgres(name: string, suite: () => void): void {
  describeWithAny(POSTGRES, name, suite);
}

/** A suite that starts, pauses or kills its own PostgreSQL: it cannot use TEST_POSTGRES_URL. */
export function describeWithOwnPostgres(name: string, suite: () => void): void {
  describeWith(POSTGRES, name, suite);
}

/** A suite that needs any RabbitMQ, from rabbitmqUrl(). */
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
