import { createLocks, MemorySpace } from '../../src/locks/index.ts';
import { locksContract } from './locks.ts';

locksContract('memory', async () => {
  const space = new MemorySpace();
  return {
    client: (options) => createLocks({ space, ...options }),
    elsewhere: () => createLocks({ space: new MemorySpace() }),
    withoutReplicas: 'lock_unavailable',
    end: async () => undefined,
  };
});
