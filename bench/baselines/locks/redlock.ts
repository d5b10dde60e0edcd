import { type LockAdapter, TTL_MS } from '../../locks/adapter.ts';
import { type Ioredis, ioredis, load, pollings } from './packages.ts';

interface Redlock {
  acquire(names: string[], ttlMs: number): Promise<object>;
  release(lock: object, settings: { retryCount: number }): Promise<unknown>;
}
export type RedlockClass = new (clients: Ioredis[], settings: Record<string, number>) => Redlock;

/** The fork's interface is the same, so it shares this. */
export function redlockAdapters(name: string, find: () => Promise<RedlockClass>): LockAdapter[] {
  return pollings('200 ± 100 ms').map(({ delayMs, auto, ...rest }) => ({
    name,
    ...rest,
    async open(url) {
      const redis = await ioredis(url, auto);
      // Half the delay, as in its defaults: without it many waiters ask in bursts, and hand over far less often.
      const delay = delayMs === null ? {} : { retryDelay: delayMs, retryJitter: Math.floor(delayMs / 2) };
      const redlock = new (await find())([redis], { retryCount: -1, ...delay });
      return {
        async acquire(resource) {
          const lock = await redlock.acquire([resource], TTL_MS);
          return async () => {
            // Not lock.release(): with the acquire's endless retries it would never come back from a lock that ran out.
            await redlock.release(lock, { retryCount: 0 });
          };
        },
        async close() {
          await redis.quit();
        },
      };
    },
  }));
}

export const adapters = redlockAdapters('redlock', async () => {
  return (await load<{ default: RedlockClass }>('redlock')).default;
});
