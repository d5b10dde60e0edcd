// The RabbitMQ of docs/concepts/sources.md, 003: one message per order into a durable queue, persistent as Spring sends it; one listener, which
// acknowledges each message when it has handled it.
import { Connection } from 'rabbitmq-client';
import type { OrderMessage } from '../../../src/model/order.ts';
import type { Consumer, ConsumerOptions, HandleOne, Publisher } from './broker.ts';

/** The queue must exist. */
export async function openPublisher(url: string, queue: string, confirm: boolean): Promise<Publisher> {
  const connection = new Connection({ url, noDelay: true });
  const channel = await connection.acquire();
  if (confirm) await channel.confirmSelect();
  return {
    publish: (message) => channel.basicPublish({ routingKey: queue, durable: true }, message),
    async end() {
      await channel.close();
      await connection.close();
    },
  };
}

export async function openConsumer(
  url: string,
  queue: string,
  { prefetch, consumers, autoAck }: ConsumerOptions,
  handle: HandleOne,
): Promise<Consumer> {
  const connection = new Connection({ url, noDelay: true });
  const consumer = connection.createConsumer(
    {
      queue,
      queueOptions: { durable: true },
      qos: { prefetchCount: prefetch },
      concurrency: consumers,
      noAck: autoAck,
    },
    async ({ body }) => handle(body as OrderMessage),
  );
  await new Promise<void>((resolve, reject) => {
    consumer.once('ready', resolve);
    // A message that fails would be redelivered for ever.
    consumer.on('error', (error) => {
      console.error(error);
      reject(error);
    });
  });
  return {
    async end() {
      await consumer.close();
      await connection.queueDelete(queue);
      await connection.close();
    },
  };
}
