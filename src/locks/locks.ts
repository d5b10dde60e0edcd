import { hostname } from 'node:os';
import { TerminalError } from '../base/errors.ts';
import { KeepAlive } from '../base/keep-alive.ts';
import { type Logger, silentLog } from '../base/logger.ts';
import type { RedisTarget } from '../base/redis/address.ts';
import { type Runtime, systemRuntime } from '../base/runtime.ts';
import { checkedCount, checkedDuration, checkedFlag, checkedName, refuseUnknown } from './client/checks.ts';
import { LockClient } from './client/client.ts';
import { Emitter, type LockEvents } from './client/events.ts';
import type { Grant } from './client/grant.ts';
import type { LockKind } from './client/port.ts';
import { outside } from './context.ts';
import { Job } from './job.ts';
import { Latch, type LatchOptions } from './latch.ts';
import { Leader, type LeaderOptions, type LeaderWork } from './leader.ts';
import { type Inspection, Lock, Mutex, shown } from './lock.ts';
import { MemoryLockStore, MemorySpace, processSpace } from './memory/store.ts';
import { MultiLock } from './multi.ts';
import { type OnceOptions, once } from './once.ts';
import { OrderWatch } from './order.ts';
import { Quorum } from './quorum.ts';
import { ReadWriteLock } from './read-write.ts';
import { RedisLockStore } from './redis/store.ts';
import { Schedule, type ScheduleOptions, type ScheduleWork } from './schedule.ts';
import { Semaphore } from './semaphore.ts';

/** What the locks need of a log. */
export type LocksLog = Pick<Logger, 'debug' | 'info' | 'warn' | 'error'>;

export interface LocksOptions {
  /**
   * Where the locks live: an address (`redis://`, `rediss://`, `redis+sentinel://h1,h2/master`, `redis+cluster://h1,h2`),
   * or an ioredis client whose settings are copied. Without it: in this process.
   */
  redis?: RedisTarget;
  /** What every key begins with. Locks of different prefixes never meet. */
  prefix?: string;
  /** The lease that is renewed at a third while a lock is held, in milliseconds. Default 30 000. */
  lease?: number;
  /** How long the next in line may take to confirm before the lock goes to the one behind. Default 500. */
  handOverMs?: number;
  /** How long one command may take. Default 1 000. */
  commandMs?: number;
  /** How long acquire and release go on while Redis cannot be reached. Default 5 000. */
  outageMs?: number;
  /**
   * Keeps the event loop turning for a moment (some 60 µs at most) while Redis is about to answer, instead of sleeping. Only
   * for a Redis on the same machine: there one lock at a time is nearly twice as fast. Default false.
   */
  attentive?: boolean;
  /** Where warnings and failures go: pino, `console`, or whatever has these four. Silent if left out. */
  log?: LocksLog;
  /** Clock, timers and randomness, for tests and simulation. */
  runtime?: Partial<Runtime>;
  /** Without Redis: locks of the same space meet. By default all of this process do. */
  space?: MemorySpace;
}

const LOCKS_OPTIONS: ReadonlySet<string> = new Set([
  'redis',
  'prefix',
  'lease',
  'handOverMs',
  'commandMs',
  'outageMs',
  'attentive',
  'log',
  'runtime',
  'space',
] satisfies (keyof LocksOptions)[]);

const QUORUM_OPTIONS: ReadonlySet<string> = new Set(
  [...LOCKS_OPTIONS, 'masters'].filter((name) => name !== 'redis' && name !== 'space'),
);
const SEMAPHORE_OPTIONS: ReadonlySet<string> = new Set(['permits']);

const KINDS: readonly LockKind[] = ['mutex', 'fair', 'readwrite', 'semaphore', 'once'];

function checkedLog(log: LocksLog | undefined): LocksLog {
  if (log === undefined) return silentLog();
  for (const level of ['debug', 'info', 'warn', 'error'] as const) {
    if (typeof log?.[level] === 'function') continue;
    throw new TerminalError('invalid_argument', `log must have debug, info, warn and error; it has no ${level}`);
  }
  return log;
}

function checkedKind(kind: unknown): LockKind {
  if (KINDS.includes(kind as LockKind)) return kind as LockKind;
  throw new TerminalError('invalid_argument', `"${String(kind)}" is no kind of lock; there are ${KINDS.join(', ')}`);
}

/** Locks of every kind, on one Redis or in this process. Make one for each process, and close it at the end. */
export class Locks {
  readonly #client: LockClient;
  readonly #order: OrderWatch;
  readonly #emitter: Emitter;
  readonly #jobs = new Set<Job>();

  constructor(options: LocksOptions = {}) {
    refuseUnknown(options, LOCKS_OPTIONS, 'createLocks');
    // `redis: process.env.REDIS_URL` without that variable would lock inside this process, and against nobody else.
    if ('redis' in options && !options.redis) {
      throw new TerminalError(
        'invalid_argument',
        'createLocks was given a redis that is empty; leave the option out for locks inside this process',
      );
    }
    if (options.redis !== undefined && options.space !== undefined) {
      throw new TerminalError(
        'invalid_argument',
        'locks live in Redis or in a space of this process: give one of them',
      );
    }
    if (options.space !== undefined && !(options.space instanceof MemorySpace)) {
      throw new TerminalError('invalid_argument', 'space must be a MemorySpace');
    }
    const log: LocksLog = checkedLog(options.log);
    const runtime: Runtime = { ...systemRuntime(log as Logger), ...options.runtime };
    const prefix = options.prefix ?? 'doorbuster:lock';
    if (typeof prefix !== 'string' || prefix === '' || /[{}]/.test(prefix)) {
      throw new TerminalError('invalid_argument', 'prefix must be a string without braces');
    }
    const commandMs = checkedDuration(options.commandMs ?? 1000, 'commandMs', 10);
    this.#emitter = new Emitter((error) => log.error({ err: error }, 'a listener of the locks failed'));
    const settings = {
      leaseMs: checkedDuration(options.lease ?? 30_000, 'lease', 30),
      handOverMs: checkedDuration(options.handOverMs ?? 500, 'handOverMs', 20),
      outageMs: checkedDuration(options.outageMs ?? 5000, 'outageMs', 0),
      owner: `${hostname()}/${process.pid}`,
    };
    const keepAlive = new KeepAlive(runtime.timers);
    const attentive = checkedFlag(options.attentive ?? false, 'attentive');
    this.#client = new LockClient(settings, runtime, this.#emitter, keepAlive);
    this.#order = new OrderWatch(this.#emitter, (first, second, here, there) => {
      log.warn({ first, second, here, there }, 'locks are taken in crossed order: one day each waits for the other');
    });
    this.#client.attach(
      options.redis === undefined
        ? new MemoryLockStore(options.space ?? processSpace(runtime.clock), prefix, runtime, this.#client)
        : new RedisLockStore(
            { target: options.redis, prefix, commandMs, handOverMs: settings.handOverMs, attentive, keepAlive },
            runtime,
            this.#client,
          ),
    );
  }

  /** For our own modules. */
  static clientOf(locks: Locks): LockClient {
    return locks.#client;
  }

  /** One holder at a time. */
  mutex(name: string): Mutex {
    return this.#mutex('mutex', name);
  }

  /** One holder at a time, first come, first served, across processes. */
  fair(name: string): Mutex {
    return this.#mutex('fair', name);
  }

  #mutex(kind: 'mutex' | 'fair', name: string): Mutex {
    return new Mutex(this.#client, this.#order, { kind, name: checkedName(name), mode: 'write', permits: 1, limit: 1 });
  }

  /** Many readers or one writer. */
  readWrite(name: string): ReadWriteLock {
    return new ReadWriteLock(this.#client, this.#order, checkedName(name));
  }

  /** At most `permits` at a time. */
  semaphore(name: string, options: { permits: number }): Semaphore {
    refuseUnknown(options, SEMAPHORE_OPTIONS, 'semaphore');
    const permits = checkedCount(options.permits, 'permits', 1);
    return new Semaphore(this.#client, this.#order, checkedName(name), permits);
  }

  /** Waits until so many things have happened. */
  latch(name: string, options: LatchOptions = {}): Latch {
    return new Latch(this.#client, checkedName(name), options);
  }

  /** All of several locks, or none: names of mutexes, mutexes, sides of a `readWrite`, also of other `createLocks`. */
  multi(locks: readonly (string | Lock)[]): MultiLock {
    if (!Array.isArray(locks)) {
      throw new TerminalError('invalid_argument', "multi takes one array of names or locks: multi(['a', 'b'])");
    }
    return new MultiLock(
      this.#client,
      locks.map((each: unknown) => {
        if (typeof each === 'string') return this.mutex(each);
        if (each instanceof Lock) return each;
        throw new TerminalError(
          'invalid_argument',
          'multi takes names of mutexes, mutex(…), fair(…), and the read or the write side of a readWrite(…); no other kind',
        );
      }),
    );
  }

  /** Runs `fn` once in the cluster; whoever asks meanwhile or later gets the same result. */
  async once<T>(key: string, fn: (grant: Grant) => Promise<T> | T, options: OnceOptions = {}): Promise<T> {
    return (await once(this.#client, key, fn, options)).value;
  }

  /** Drops the kept result of a `once`: the next call runs it again. True if there was one. */
  async forget(key: string): Promise<boolean> {
    return await this.#client.patiently(() => this.#client.open.forget(checkedName(key)));
  }

  /** One instance of the cluster leads and runs `work`; the others stand in line. */
  leader(job: string, work: LeaderWork, options: LeaderOptions = {}): Leader {
    return this.#start(new Leader(this.#client, job, work, options));
  }

  /** Runs `work` at the times that `cron` names, each time once in the cluster. */
  schedule(name: string, cron: string, work: ScheduleWork, options: ScheduleOptions = {}): Schedule {
    return this.#start(new Schedule(this.#client, name, cron, work, options));
  }

  #start<J extends Job>(job: J): J {
    Job.start(job, () => this.#jobs.delete(job));
    this.#jobs.add(job);
    return job;
  }

  /** Runs `fn` as if no lock were held around it: for work that serves others as well. */
  outside<T>(fn: () => T): T {
    return outside(fn);
  }

  on<E extends keyof LockEvents>(event: E, listener: (...args: LockEvents[E]) => void): () => void {
    return this.#emitter.on(event, listener);
  }

  /** Every lock that is held or waited for, of every process. Walks the whole key space: for people, not for loops. */
  async list(kinds: readonly LockKind[] = KINDS): Promise<Inspection[]> {
    if (!Array.isArray(kinds)) throw new TerminalError('invalid_argument', "list takes an array of kinds: ['mutex']");
    return (await this.#client.open.list(kinds.map(checkedKind))).map(shown);
  }

  async inspect(kind: LockKind, name: string): Promise<Inspection> {
    return shown(await this.#client.open.inspect({ kind: checkedKind(kind), name: checkedName(name) }));
  }

  /** Rejects calls that wait (AbortedError), gives back what is held, ends connections and timers. */
  async close(): Promise<void> {
    // Not awaited: work that ignores its signal must not hold this up.
    for (const job of this.#jobs) void job.stop();
    await this.#client.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

export interface QuorumOptions extends Omit<LocksOptions, 'redis' | 'space'> {
  /** Independent masters, no replicas of each other: an odd number survives most for its size. */
  masters: readonly (RedisTarget | Locks)[];
  /** How long one master may take to answer, in milliseconds: much less than a lease. Default 200. */
  commandMs?: number;
}

/** Locks by the majority of several independent Redis masters. Makes a client for each address, which `close` ends. */
export function createQuorum(quorum: QuorumOptions): Quorum {
  refuseUnknown(quorum, QUORUM_OPTIONS, 'createQuorum');
  const { masters, commandMs = 200, ...options } = quorum;
  if (!Array.isArray(masters) || masters.length === 0 || masters.some((master) => !master)) {
    throw new TerminalError('invalid_argument', 'masters must be a list of addresses or clients, none of them empty');
  }
  const made: Locks[] = [];
  const all = masters.map((master) => {
    if (master instanceof Locks) return master;
    const locks = new Locks({ ...options, redis: master, commandMs, outageMs: options.outageMs ?? commandMs });
    made.push(locks);
    return locks;
  });
  return new Quorum(
    all.map((locks) => Locks.clientOf(locks)),
    () => Promise.all(made.map((locks) => locks.close())),
  );
}

export function createLocks(options: LocksOptions = {}): Locks {
  return new Locks(options);
}
