import { type LockAdapter, TTL_MS } from '../../locks/adapter.ts';
import { load } from './packages.ts';

interface Lock {
  lock(leaseMs?: bigint): Promise<void>;
  unlock(): Promise<void>;
}
interface Module {
  Redisson: new (config: Record<string, unknown>) => { getLock(name: string): Lock; quit(): Promise<void> };
}

// A waiter that misses the message sleeps until the lock it saw would have run out, so a short lease gets it going again
// sooner; a second is as short as a lease can sensibly be.
function redisson(eventAdapter: 'pubsub' | 'streams', leaseMs: number, auto: boolean, only?: 'contended'): LockAdapter {
  return {
    name: 'node-redisson',
    settings: `${eventAdapter}, lease ${leaseMs / 1000} s${auto ? ', autopipelining' : ''}`,
    ...(only === undefined ? {} : { only }),
    async open(url) {
      const { Redisson } = await load<Module>('node-redisson');
      const { hostname: host, port } = new URL(url);
      const options = { host, port: Number(port), enableAutoPipelining: auto };
      const redisson = new Redisson({ redis: { options }, eventAdapter });
      return {
        async acquire(name) {
          const lock = redisson.getLock(name);
          await lock.lock(BigInt(leaseMs));
          return () => lock.unlock();
        },
        close: () => redisson.quit(),
      };
    },
  };
}

export const adapters = [
  redisson('pubsub', TTL_MS, false),
  redisson('pubsub', TTL_MS, true),
  redisson('streams', TTL_MS, false, 'contended'),
  redisson('pubsub', 1000, false, 'contended'),
  redisson('streams', 1000, false, 'contended'),
];
