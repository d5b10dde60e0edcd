// The same through Kafka (docs/concepts/sources.md, 001): one record per order, each confirmed by all replicas; one listener
// per partition, which handles record after record.
import { Admin, Consumer as KafkaConsumer, type Message, Producer } from '@platformatic/kafka';
import type { OrderMessage } from '../../../src/model/order.ts';
import type { Consumer, ConsumerOptions, HandleOne, Publisher } from './broker.ts';

const brokersOf = (url: string): string[] => [url.replace('kafka://', '')];

/** The topic must exist. */
export async function openPublisher(url: string, topic: string, confirm: boolean): Promise<Publisher> {
  const acks = confirm ? -1 : 1;
  const producer = new Producer({ clientId: 'one-by-one', bootstrapBrokers: brokersOf(url), acks });
  return {
    async publish(message) {
      const [key, value] = [Buffer.from(message.orderId), Buffer.from(JSON.stringify(message))];
      await producer.send({ messages: [{ topic, key, value }], acks });
    },
    end: () => producer.close(),
  };
}

export async function openConsumer(
  url: string,
  topic: string,
  { prefetch, consumers, autoAck }: ConsumerOptions,
  handle: HandleOne,
): Promise<Consumer> {
  const base = { clientId: 'one-by-one', bootstrapBrokers: brokersOf(url) };
  const admin = new Admin(base);
  await admin.createTopics({ topics: [topic], partitions: consumers, replicas: 1 });
  const consumer = new KafkaConsumer({ ...base, groupId: `of-${topic}` });
  const autocommit = autoAck ? 1000 : false;
  const stream = await consumer.consume({ topics: [topic], mode: 'earliest', autocommit, highWaterMark: prefetch });
  // Records of one partition are handled one after the other.
  const lanes = Array.from({ length: consumers }, () => Promise.resolve());
  const one = async ({ value, commit }: Message): Promise<void> => {
    await handle(JSON.parse(value.toString()) as OrderMessage);
    if (!autoAck) await commit();
  };
  stream.on('data', (message: Message) => {
    lanes[message.partition] = lanes[message.partition]!.then(() => one(message));
  });
  return {
    async end() {
      await Promise.all(lanes);
      await stream.close();
      await consumer.close(true);
      await admin.deleteTopics({ topics: [topic] });
      await admin.close();
    },
  };
}
