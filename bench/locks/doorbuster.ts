import { createLocks } from '../../src/locks/index.ts';
import { type LockAdapter, TTL_MS } from './adapter.ts';

/** Ours, as a user would call it: a mutex by name, waiting as long as it takes. */
export const adapters: LockAdapter[] = [
  {
    name: 'doorbuster',
    settings: `mutex, lease ${TTL_MS / 1000} s renewed at a third; otherwise the defaults`,
    async open(url) {
      const locks = createLocks({ redis: url, lease: TTL_MS });
      return {
        async acquire(name) {
          const grant = await locks.mutex(name).acquire();
          return () => grant.release();
        },
        close: () => locks.close(),
      };
    },
  },
];
