import { type LockAdapter, TTL_MS } from '../../locks/adapter.ts';
import { type Ioredis, ioredis, load, pollings } from './packages.ts';

interface Mutex {
  acquire(): Promise<void>;
  release(): Promise<void>;
}
interface Module {
  Mutex: new (client: Ioredis, key: string, options: Record<string, number>) => Mutex;
}

export const adapters: LockAdapter[] = pollings('10 ms').map(({ delayMs, auto, settings, ...rest }) => ({
  name: 'redis-semaphore',
  settings: `no refresh, ${settings}`,
  ...rest,
  async open(url) {
    const { Mutex } = await load<Module>('redis-semaphore');
    const redis = await ioredis(url, auto);
    const delay = delayMs === null ? {} : { retryInterval: delayMs };
    const options = { lockTimeout: TTL_MS, acquireTimeout: 1e9, refreshInterval: 0, ...delay };
    return {
      async acquire(key) {
        const mutex = new Mutex(redis, key, options);
        await mutex.acquire();
        return () => mutex.release();
      },
      async close() {
        await redis.quit();
      },
    };
  },
}));
