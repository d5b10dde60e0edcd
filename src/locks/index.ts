import '../base/node-version.ts';

export { DoorbusterError, RetryableError, TerminalError } from '../base/errors.ts';
export * from './client/errors.ts';
export type { JobOutcome, JobSkip, LockEvent, LockEvents } from './client/events.ts';
export type { Grant } from './client/grant.ts';
export type { LockKind } from './client/port.ts';
export type { CompositeGrant } from './composite.ts';
export {
  assertFenced,
  type Fence,
  type FencedScript,
  type FenceSql,
  type FenceSqlOptions,
  type FenceToken,
  fencedScript,
  fencedSet,
  fenceSql,
  type RedisCaller,
  runFenced,
} from './fencing.ts';
export type { IdempotencyOptions } from './idempotency.ts';
export { expressIdempotency } from './idempotency-express.ts';
export { type FastifyIdempotencyOptions, fastifyIdempotency } from './idempotency-fastify.ts';
export type { JobContext, JobOptions } from './job.ts';
export type { Latch, LatchOptions, LatchWait } from './latch.ts';
export type { Leader, LeaderOptions, LeaderWork } from './leader.ts';
export type { Inspection, Lock, Mutex } from './lock.ts';
export {
  createLocks,
  createQuorum,
  type Locks,
  type LocksLog,
  type LocksOptions,
  type QuorumOptions,
} from './locks.ts';
export { MemorySpace } from './memory/space.ts';
export { observeLocks } from './metrics.ts';
export type { MultiLock } from './multi.ts';
export type { OnceOptions } from './once.ts';
export type { AcquireOptions, HoldOptions } from './options.ts';
export type { Quorum, QuorumLock } from './quorum.ts';
export type { ReadWriteLock } from './read-write.ts';
export type { Schedule, ScheduleContext, ScheduleOptions, ScheduleWork } from './schedule.ts';
export type { PermitOptions, Semaphore } from './semaphore.ts';
