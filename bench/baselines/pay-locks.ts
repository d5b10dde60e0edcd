// Locks for payments one by one, as fast as can be: a chain of promises, or SET NX PX and a compare-and-delete in Redis on
// one connection whose commands of one turn go out together. Neither renews, mints a token or keeps a queue, as ours do.
import { Redis } from 'ioredis';

export interface PayLock {
  run<T>(name: string, work: () => Promise<T>): Promise<T>;
  end(): void;
}

const LEASE_MS = 15_000;
const RELEASE = `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`;

export function inProcess(): PayLock {
  const last = new Map<string, Promise<unknown>>();
  return {
    async run(name, work) {
      const before = last.get(name);
      const mine = before === undefined ? work() : before.then(work, work);
      last.set(name, mine);
      try {
        return await mine;
      } finally {
        if (last.get(name) === mine) last.delete(name);
      }
    },
    end: () => undefined,
  };
}

export async function inRedis(url: string): Promise<PayLock> {
  const redis = new Redis(url, { enableAutoPipelining: true });
  const release = (await redis.script('LOAD', RELEASE)) as string;
  let taken = 0;
  return {
    async run(name, work) {
      const owner = `${process.pid}:${taken++}`;
      while ((await redis.set(name, owner, 'PX', LEASE_MS, 'NX')) !== 'OK') {
        await new Promise((resolve) => setTimeout(resolve, 1 + Math.random()));
      }
      try {
        return await work();
      } finally {
        await redis.evalsha(release, 1, name, owner);
      }
    },
    end: () => redis.disconnect(),
  };
}
