import { Admin, Producer } from '@platformatic/kafka';
import { Connection } from 'rabbitmq-client';
import { systemRuntime } from '../../src/base/runtime.ts';
import { carrierOf } from '../../src/engine/open.ts';
import type { Carrier } from '../../src/pipe/brokers/port.ts';
import { describeWithOwnKafka, describeWithOwnRabbitmq } from './servers/describe.ts';
import { sharedKafkaUrl, startKafka } from './servers/kafka.ts';
import type { ServerProcess } from './servers/process.ts';
import type { FaultProxy } from './servers/proxy.ts';
import { sharedRabbitmqUrl, startRabbitmq } from './servers/rabbitmq.ts';

export interface Broker {
  readonly url: string;
  readonly host: string;
  readonly port: number;
}

/** A broker that one test may kill and stop. */
export type BrokerServer = ServerProcess & Broker;

/** What the tests need to know about each kind of broker. */
export interface BrokerKind {
  readonly name: 'RabbitMQ' | 'Kafka';
  describe(name: string, suite: () => void): void;
  /** A broker that all test files share. */
  shared(): Promise<Broker>;
  /** True if any proxy can lead to it; otherwise only the proxy that it was started with. */
  readonly proxied: boolean;
  /** `proxy`: clients can reach the broker through it. */
  start(proxy?: FaultProxy): Promise<BrokerServer>;
  /** PIPE_URL of a shop whose names at the broker begin with `prefix`; `port`: of a proxy. */
  pipeUrl(server: Broker, prefix: string, port?: number): string;
  /** How long before a kill -9 queues or topics must have been created, for the broker to know them afterwards. */
  readonly lastsAfterMs: number;
  /** An administrator at the broker. */
  tool(server: Broker, prefix: string): BrokerTool;
}

export interface BrokerTool {
  /** Messages that were not delivered, or not acknowledged (Kafka: all that are stored). */
  waiting(): Promise<number>;
  /** Deletes all messages, and tells no client. */
  lose(): Promise<void>;
  /** Removes the queues or the topic. */
  remove(): Promise<void>;
  /** Publishes a body that is not a valid parcel. */
  publish(partition: number, body: string): Promise<void>;
  close(): Promise<void>;
}

/** The default of both brokers. */
export const PARTITIONS = 8;

export const RABBITMQ_KIND: BrokerKind = {
  name: 'RabbitMQ',
  proxied: true,
  describe: describeWithOwnRabbitmq,
  shared: async () => brokerAt(await sharedRabbitmqUrl()),
  start: async (proxy) => {
    const server = await startRabbitmq();
    proxy?.target(server.port);
    return server;
  },
  pipeUrl: ({ url, port: its }, _, port = its) => url.replace(`:${its}`, `:${port}`),
  // RabbitMQ 3.10 stores the name of a new quorum queue after 3 s. A queue that it has forgotten never answers again.
  lastsAfterMs: 4_000,
  tool: (server, prefix) => rabbitmqTool(server.url, prefix),
};

export const KAFKA_KIND: BrokerKind = {
  name: 'Kafka',
  proxied: false,
  describe: describeWithOwnKafka,
  shared: async () => brokerAt(await sharedKafkaUrl()),
  start: (proxy) => startKafka(proxy ? { proxy } : {}),
  lastsAfterMs: 0,
  // Named, so that the tool need not guess.
  pipeUrl: ({ host, port: its }, prefix, port = its) => `kafka://${host}:${port}/${prefix}`,
  tool: (server, prefix) => kafkaTool(`${server.host}:${server.port}`, prefix),
};

function brokerAt(url: string): Broker {
  const { hostname, port } = new URL(url);
  return { url, host: hostname, port: Number(port) };
}

export const BROKER_KINDS = [RABBITMQ_KIND, KAFKA_KIND];

/** `of`: the kind of message. */
export function carrierAt(
  kind: BrokerKind,
  server: Broker,
  prefix: string,
  port?: number,
  of?: string,
): Promise<Carrier> {
  return carrierOf(kind.pipeUrl(server, prefix, port), prefix, systemRuntime(), of);
}

/** Creates the queues or the topic of a shop with this prefix. */
export async function prepare(kind: BrokerKind, server: Broker, prefix: string): Promise<void> {
  const carrier = await carrierAt(kind, server, prefix);
  await carrier.open();
  await carrier.close();
}

function rabbitmqTool(url: string, prefix: string): BrokerTool {
  const connection = new Connection({ url, retryLow: 50 });
  connection.on('error', () => undefined);
  const orders = `${prefix}.orders`;
  const queues = Array.from({ length: PARTITIONS }, (_, partition) => `${orders}.${partition}`);
  return {
    async waiting() {
      const told = await Promise.all(queues.map((queue) => connection.queueDeclare({ queue, passive: true })));
      return told.reduce((sum, { messageCount }) => sum + messageCount, 0);
    },
    lose: async () => void (await Promise.all(queues.map((queue) => connection.queuePurge({ queue })))),
    remove: async () => void (await Promise.all(queues.map((queue) => connection.queueDelete({ queue })))),
    async publish(partition, body) {
      const channel = await connection.acquire();
      await channel.confirmSelect();
      await channel.basicPublish({ exchange: orders, routingKey: String(partition), durable: true }, body);
      await channel.close();
    },
    close: () => connection.close(),
  };
}

function kafkaTool(bootstrap: string, topic: string): BrokerTool {
  const options = { clientId: 'test', bootstrapBrokers: [bootstrap], retries: 100, retryDelay: 50 };
  const admin = new Admin(options);
  const producer = new Producer(options);
  const partitions = Array.from({ length: PARTITIONS }, (_, partition) => partition);
  const offsets = async (timestamp: bigint): Promise<bigint[]> => {
    const asked = partitions.map((partitionIndex) => ({ partitionIndex, timestamp }));
    const [found] = await admin.listOffsets({ topics: [{ name: topic, partitions: asked }] });
    return found!.partitions
      .toSorted((one, other) => one.partitionIndex - other.partitionIndex)
      .map(({ offset }) => offset);
  };
  return {
    async waiting() {
      const [ends, begins] = [await offsets(-1n), await offsets(-2n)];
      return ends.reduce((sum, end, at) => sum + Number(end - begins[at]!), 0);
    },
    async lose() {
      const ends = (await offsets(-1n)).map((offset, partition) => ({ partition, offset }));
      await admin.deleteRecords({ topics: [{ name: topic, partitions: ends }] });
    },
    remove: () => admin.deleteTopics({ topics: [topic] }),
    publish: async (partition, body) =>
      void (await producer.send({ acks: -1, messages: [{ topic, partition, value: Buffer.from(body) }] })),
    close: async () => void (await Promise.all([admin.close(), producer.close()])),
  };
}
