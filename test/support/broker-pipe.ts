import { Redis } from 'ioredis';
import { systemRuntime } from '../../src/base/runtime.ts';
import { createLocks } from '../../src/locks/index.ts';
import { BrokerPipe, type BrokerPipeOptions } from '../../src/pipe/brokers/pipe.ts';
import type { Carrier } from '../../src/pipe/brokers/port.ts';
import { StreamFeeder } from './streams.ts';

export interface BrokerWorld {
  pipe: BrokerPipe;
  feeder: StreamFeeder;
  carrier: Carrier;
  end(): Promise<void>;
}

/** One worker with a broker of this kind. The feeder takes the place of the gate; the locks are the engine's. */
export function brokerPipe(
  redis: string,
  prefix: string,
  carrierFor: (prefix: string) => Carrier,
  options: Partial<BrokerPipeOptions> = {},
): BrokerWorld {
  const runtime = systemRuntime();
  const client = new Redis(redis);
  const locks = createLocks({ redis, prefix: `${prefix}:lock` });
  const carrier = carrierFor(prefix);
  const lead: BrokerPipeOptions['lead'] = (job, work) => locks.leader(job, ({ signal }) => work(signal));
  const pipe = new BrokerPipe({ redis, prefix, carrier, lead, sweepMs: 50, ...options }, runtime);
  return {
    pipe,
    carrier,
    feeder: new StreamFeeder(client, prefix),
    end: async () => {
      await pipe.close();
      await locks.close();
      client.disconnect();
    },
  };
}
