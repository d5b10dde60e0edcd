// Its SimpleLock, as its README advises for one Redis, in the lean mode it calls the fastest.
import { type LockAdapter, TTL_MS } from '../../locks/adapter.ts';
import { type Ioredis, ioredis, load, pollings } from './packages.ts';

interface Lock {
  acquire(): Promise<object>;
  release(handle: object): Promise<boolean>;
}
interface Module {
  IoredisAdapter: new (client: Ioredis, options: { timeout: number }) => object;
  createLock(config: Record<string, unknown>): Lock;
}

export const adapters: LockAdapter[] = pollings('100 ms').map(({ delayMs, auto, settings, ...rest }) => ({
  name: 'redlock-universal',
  settings: `lean, ${settings}`,
  ...rest,
  async open(url) {
    const { IoredisAdapter, createLock } = await load<Module>('redlock-universal');
    const redis = await ioredis(url, auto);
    // Its own time limit is 5 s: a SET that comes back later leaves a lock nobody holds until it runs out.
    const adapter = new IoredisAdapter(redis, { timeout: 2 * TTL_MS });
    const delay = delayMs === null ? {} : { retryDelay: delayMs };
    const config = { adapter, ttl: TTL_MS, retryAttempts: Number.MAX_SAFE_INTEGER, performance: 'lean', ...delay };
    return {
      async acquire(key) {
        const lock = createLock({ ...config, key });
        const handle = await lock.acquire();
        return async () => {
          if (!(await lock.release(handle))) throw new Error('the lock was lost');
        };
      },
      async close() {
        await redis.quit();
      },
    };
  },
}));
