import { systemRuntime } from '../../src/base/runtime.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { ORDERS } from '../../src/pipe/orders.ts';
import { type RedisStreamsOptions, RedisStreamsPipe } from '../../src/pipe/redis-streams/pipe.ts';

/** A process that consumes a pipe, and can be killed and stopped. Prints what it gets; `hang`: never decides it. */
export interface PipeAgentOptions extends Omit<RedisStreamsOptions<OrderMessage>, 'channels' | 'redis' | 'keepAlive'> {
  redis: string;
  hang?: boolean;
  handleMs?: number;
}

export type PipeAgentSays = { consumer: string } | { batch: string[] } | { decided: string[] } | { rejection: string };

const { hang = false, handleMs = 0, ...options } = JSON.parse(process.argv[2]!) as PipeAgentOptions;
const say = (what: PipeAgentSays): void => void process.send!(what);

process.on('unhandledRejection', (error) => say({ rejection: String(error) }));
const pipe = new RedisStreamsPipe({ channels: ORDERS, ...options }, systemRuntime());
// A consumer that waits for work does not keep its process alive.
setInterval(() => undefined, 1000);
say({ consumer: pipe.consumer });
pipe.consume(async (batch) => {
  const ids = batch.map(({ orderId }) => orderId);
  say({ batch: ids });
  if (hang) await new Promise(() => undefined);
  await new Promise((resolve) => setTimeout(resolve, handleMs));
  say({ decided: ids });
});
