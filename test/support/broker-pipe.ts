import { Redis } from 'ioredis';
import { systemRuntime } from '../../src/base/runtime.ts';
import { createLocks } from '../../src/locks/index.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { BrokerPipe, type BrokerPipeOptions } from '../../src/pipe/brokers/pipe.ts';
import type { Carrier } from '../../src/pipe/brokers/port.ts';
import type { Lead } from '../../src/pipe/brokers/relay.ts';
import { Feeder, StreamFeeder, TEST_ORDERS, type TestKind } from './streams.ts';

interface World<M, F extends Feeder<M>> {
  pipe: BrokerPipe<M>;
  feeder: F;
  carrier: Carrier;
  end(): Promise<void>;
}

export type BrokerWorld = World<OrderMessage, StreamFeeder>;

/** One worker with a broker of this kind. The feeder takes the place of the gate; the locks are the engine's. */
export function brokerPipe(
  redis: string,
  prefix: string,
  carrierFor: (prefix: string) => Carrier,
  options: Partial<BrokerPipeOptions<OrderMessage>> = {},
): BrokerWorld {
  const client = new Redis(redis);
  return world(redis, prefix, TEST_ORDERS, new StreamFeeder(client, prefix), carrierFor(prefix), options);
}

/** The same for any kind of message. `carrierFor`: a carrier of this kind. */
export function brokerPipeOf<M>(
  kind: TestKind<M>,
  redis: string,
  prefix: string,
  carrierFor: (prefix: string, kind: string) => Carrier,
  options: Partial<BrokerPipeOptions<M>> = {},
): World<M, Feeder<M>> {
  const feeder = new Feeder(new Redis(redis), prefix, kind);
  return world(redis, prefix, kind, feeder, carrierFor(prefix, kind.channels.kind), options);
}

function world<M, F extends Feeder<M>>(
  redis: string,
  prefix: string,
  { channels }: TestKind<M>,
  feeder: F,
  carrier: Carrier,
  options: Partial<BrokerPipeOptions<M>>,
): World<M, F> {
  const locks = createLocks({ redis, prefix: `${prefix}:lock` });
  const lead: Lead = (job, work) => locks.leader(job, ({ signal }) => work(signal));
  const given = { channels, redis, prefix, carrier, lead, sweepMs: 50, ...options };
  const pipe = new BrokerPipe<M>(given, systemRuntime());
  return {
    pipe,
    carrier,
    feeder,
    end: async () => {
      await pipe.close();
      await locks.close();
      feeder.client.disconnect();
    },
  };
}
