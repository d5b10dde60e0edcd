// The targets to measure, and how their processes are started.
import type { MariadbServer } from '../../test/support/servers/mariadb.ts';
import type { RedisServer } from '../../test/support/servers/redis.ts';
import type { AloneJob } from './alone.ts';
import { Child } from './child.ts';
import type { CrowdJob, SaleOf } from './crowd.ts';
import type { OneByOneJob } from './one-by-one.ts';
import type { WorkerJob } from './worker.ts';

export const PREFIX = 'bench';

export interface Broker {
  readonly name: 'rabbitmq' | 'kafka';
  readonly url: string;
  readonly pid: number;
}

export interface World {
  readonly redis: RedisServer;
  readonly mariadb: MariadbServer;
  /** The folder for profiles of our workers; null: none. */
  readonly profiles: string | null;
}

export interface Started {
  readonly crowd: Child;
  /** In the shop of one process it is the same as `crowd`. */
  readonly worker: Child;
}

export interface Target {
  readonly name: string;
  readonly oneByOne: boolean;
  /** Sales with a gate in Redis; 0: one sale, in the ledger only. */
  readonly gates: number;
  readonly broker: Broker | null;
  /** Share of the usual number of orders, for slow targets. */
  readonly part: number;
  start(world: World, database: string, sales: readonly SaleOf[]): Promise<Started>;
}

export function ours(name: string, broker: Broker | null, gates = 1): Target {
  return {
    name,
    broker,
    gates,
    oneByOne: false,
    part: 1,
    async start({ redis, profiles }, database, sales) {
      const folder = `${profiles}/${broker?.name ?? 'redis-streams'}`;
      const profile = profiles === null ? [] : ['--cpu-prof', '--cpu-prof-dir', folder];
      const common = { redis: redis.url, prefix: PREFIX };
      const job: WorkerJob = { ...common, database, pipeUrl: broker?.url ?? null };
      const worker = await Child.start('worker.ts', job, profile);
      const crowd = await Child.start('crowd.ts', { ...common, sales, naive: null } satisfies CrowdJob);
      return { worker, crowd };
    },
  };
}

export function alone(): Target {
  return {
    name: 'memory: gate, pipe, worker and load in one process',
    broker: null,
    gates: 0,
    oneByOne: false,
    part: 1,
    async start(_, database, sales) {
      const crowd = await Child.start('alone.ts', { database, sales } satisfies AloneJob);
      return { crowd, worker: crowd };
    },
  };
}

export interface Ways extends Partial<Pick<OneByOneJob, 'prefetch' | 'consumers' | 'autoAck' | 'counted'>> {
  readonly confirm?: boolean;
}

let queues = 0;

/** By default as in the sources, but without their lock and without counting the buyer's orders. */
export function oneByOne(name: string, broker: Broker, ways: Ways = {}, part = 1): Target {
  const { confirm = false, prefetch = 250, consumers = 1, autoAck = false, counted = false } = ways;
  return {
    name,
    broker,
    gates: 0,
    oneByOne: true,
    part,
    async start({ redis }, database, sales) {
      const at = { broker: broker.name, url: broker.url, queue: `one-by-one-${++queues}` };
      const job: OneByOneJob = { ...at, database, prefetch, consumers, autoAck, counted };
      // First, because the listener creates the queue.
      const worker = await Child.start('one-by-one.ts', job);
      const crowdJob: CrowdJob = { redis: redis.url, prefix: PREFIX, sales, naive: { ...at, confirm } };
      return { worker, crowd: await Child.start('crowd.ts', crowdJob) };
    },
  };
}
