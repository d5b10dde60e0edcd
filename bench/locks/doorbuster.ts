import { createLocks } from '../../src/locks/index.ts';
import { type LockAdapter, TTL_MS } from './adapter.ts';

/** Ours, as a user would call it: a lock by name, waiting as long as it takes. */
function adapterOf(kind: 'mutex' | 'fair', only?: LockAdapter['only']): LockAdapter {
  return {
    name: 'doorbuster',
    settings: `${kind}, lease ${TTL_MS / 1000} s renewed at a third; otherwise the defaults`,
    ...(only ? { only } : {}),
    async open(url) {
      const locks = createLocks({ redis: url, lease: TTL_MS });
      return {
        async acquire(name) {
          const grant = await locks[kind](name).acquire();
          return () => grant.release();
        },
        close: () => locks.close(),
      };
    },
  };
}

// The fair lock is first come, first served, and changes process nearly every time; without waiters it is the mutex.
export const adapters: LockAdapter[] = [adapterOf('mutex'), adapterOf('fair', 'contended')];
