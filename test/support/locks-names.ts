import type { AcquireOptions, Grant, Locks } from '../../src/locks/index.ts';

/** Which lock, in words that can be sent to another process: `fair door`, `semaphore:2 desk`. */
export type LockName =
  | `${'mutex' | 'fair' | 'read' | 'write'} ${string}`
  | `semaphore:${number} ${string}`
  | `multi ${string}`;

export interface AnyLock {
  acquire(options?: AcquireOptions): Promise<Grant>;
  tryAcquire(options?: Omit<AcquireOptions, 'wait'>): Promise<Grant | null>;
}

export function lockOf(locks: Locks, lock: LockName): AnyLock {
  const [kind = '', name = ''] = lock.split(' ');
  if (kind === 'mutex') return locks.mutex(name);
  if (kind === 'fair') return locks.fair(name);
  if (kind === 'read') return locks.readWrite(name).read;
  if (kind === 'write') return locks.readWrite(name).write;
  // Of a multi-lock, tests that go through all kinds use only what it has in common with the others.
  if (kind === 'multi') return locks.multi([name, `${name}-2`]) as unknown as AnyLock;
  return locks.semaphore(name, { permits: Number(kind.split(':')[1]) }) as unknown as AnyLock;
}
