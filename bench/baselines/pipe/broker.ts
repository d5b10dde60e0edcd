import type { OrderMessage } from '../../../src/model/order.ts';

export interface Publisher {
  publish(message: OrderMessage): Promise<void>;
  end(): Promise<void>;
}

export interface ConsumerOptions {
  /** Messages that the broker hands out before the first is acknowledged. */
  readonly prefetch: number;
  /** Messages handled at a time. */
  readonly consumers: number;
  /** RabbitMQ: acknowledged when handed out; Kafka: offsets committed in the background. Not one by one. */
  readonly autoAck: boolean;
}

export interface Consumer {
  end(): Promise<void>;
}

export type HandleOne = (message: OrderMessage) => Promise<void>;
