import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { until } from '../fault-wait.ts';
import { REDIS, whyMissing } from './install.ts';
import { freePort, HOST, type Launch, type Place, ServerProcess } from './process.ts';
import { redisCommand } from './resp.ts';

/** True if this machine can start a private Redis. */
export const redisAvailable: boolean = REDIS.find() !== null;

export interface RedisOptions {
  /** 'none': empty after a restart. 'aof': keeps every write that it has answered. */
  persistence?: 'none' | 'aof';
  /** Further arguments of redis-server, e.g. ['--maxmemory', '1mb']. */
  args?: string[];
}

/** A private Redis: a single one, a node of a cluster, or a sentinel. */
export class RedisServer extends ServerProcess {
  constructor(launch: Omit<Launch, 'name' | 'command' | 'ready'>) {
    const command = REDIS.find();
    if (command === null) throw new Error(whyMissing(REDIS)!);
    const ready = async ({ port }: Place) => (await redisCommand(HOST, port, ['PING'], 1_000)) === 'PONG';
    super({ ...launch, name: 'redis', command, ready });
  }

  get url(): string {
    return `redis://${this.host}:${this.port}`;
  }

  /** Runs one command on a new connection; no reply within 5 s is an error. */
  command(...args: string[]): Promise<unknown> {
    return redisCommand(this.host, this.port, args);
  }

  /** CLIENT PAUSE: commands of all clients wait for `ms`, and are then executed. */
  async clientPause(ms: number): Promise<void> {
    await this.command('CLIENT', 'PAUSE', String(ms));
  }
}

/** A private Redis on a free port; resolves when it answers PING. */
export async function startRedis(options: RedisOptions = {}): Promise<RedisServer> {
  const server = new RedisServer({ args: (place) => serverArgs(place, options) });
  await server.start();
  return server;
}

function serverArgs({ port, folder }: Place, { persistence = 'none', args = [] }: RedisOptions): string[] {
  const base = ['--port', String(port), '--bind', HOST, '--dir', folder, '--save', ''];
  const aof = persistence === 'aof' ? ['--appendonly', 'yes', '--appendfsync', 'always'] : ['--appendonly', 'no'];
  return [...base, ...aof, ...args];
}

let shared: Promise<RedisServer> | null = null;

/**
 * A Redis for tests that need any and do not break it: TEST_REDIS_URL, or one per test file. It may contain
 * data of others, so keys need a prefix of the test's own.
 */
export async function redisUrl(): Promise<string> {
  if (process.env[REDIS.urlVariable]) return process.env[REDIS.urlVariable]!;
  // cleanUpServers may have ended it between two tests.
  if (shared !== null && !(await shared).running) shared = null;
  shared ??= startRedis();
  return (await shared).url;
}

export interface RedisCluster {
  /** Masters first, at the start; a failover changes their roles. */
  nodes: RedisServer[];
  urls: string[];
  /** The node that serves this key now, according to the running nodes. */
  ownerOf(key: string): Promise<RedisServer>;
}

export interface RedisClusterOptions extends RedisOptions {
  masters?: number;
  /** Of each master. */
  replicas?: 0 | 1;
  nodeTimeoutMs?: number;
}

const SLOTS = 16_384;
const CLUSTER_WITHIN_MS = 20_000;
/** A replica copies its master at once; the default waits 5 s for more replicas. */
const SYNC_AT_ONCE = ['--repl-diskless-sync-delay', '0'];

/** A real cluster; resolves when every node knows all others and serves. */
export async function startRedisCluster(options: RedisClusterOptions = {}): Promise<RedisCluster> {
  const { masters = 3, replicas = 0, nodeTimeoutMs = 1_000, args = [], ...rest } = options;
  const clusterArgs = ['--cluster-enabled', 'yes', '--cluster-node-timeout', String(nodeTimeoutMs), ...SYNC_AT_ONCE];
  const nodes = Array.from({ length: masters * (1 + replicas) }, () => {
    const nodeOptions = { ...rest, args: [...clusterArgs, ...args] };
    // The cluster bus uses the port 10000 above.
    return new RedisServer({ args: (place) => serverArgs(place, nodeOptions), portsAbove: [10_000] });
  });
  await Promise.all(nodes.map((node) => node.start()));

  await Promise.all(
    nodes.map(async (node, index) => {
      await node.command('CLUSTER', 'SET-CONFIG-EPOCH', String(index + 1));
      if (index >= masters) return;
      // Redis 6 has no ADDSLOTSRANGE.
      const from = Math.floor((index * SLOTS) / masters);
      const to = Math.floor(((index + 1) * SLOTS) / masters);
      const slots = Array.from({ length: to - from }, (_, slot) => String(from + slot));
      await node.command('CLUSTER', 'ADDSLOTS', ...slots);
    }),
  );
  // Introduce every node to every other: gossip would take longer.
  for (const [index, node] of nodes.entries()) {
    const others = nodes.slice(index + 1);
    await Promise.all(others.map(({ host, port }) => node.command('CLUSTER', 'MEET', host, String(port))));
  }
  const knowAll = async (node: RedisServer) =>
    (await clusterNodes(node)).filter(({ flags }) => !flags.includes('handshake')).length === nodes.length;
  await Promise.all(nodes.map((node) => until('the nodes meet', CLUSTER_WITHIN_MS, () => knowAll(node))));

  await Promise.all(
    nodes.slice(masters).map(async (replica, index) => {
      const master = String(await nodes[index % masters]!.command('CLUSTER', 'MYID'));
      await replica.command('CLUSTER', 'REPLICATE', master);
      await until('the replica is in step', CLUSTER_WITHIN_MS, () => isInStep(replica));
    }),
  );
  const serves = async (node: RedisServer) => {
    if (infoField(await node.command('CLUSTER', 'INFO'), 'cluster_state') !== 'ok') return false;
    const known = await clusterNodes(node);
    return known.filter(({ flags }) => flags.includes('slave')).length === masters * replicas;
  };
  await Promise.all(nodes.map((node) => until('the cluster serves', CLUSTER_WITHIN_MS, () => serves(node))));

  const ownerOf = async (key: string): Promise<RedisServer> => {
    const asked = nodes.find(({ running }) => running);
    if (!asked) throw new Error('no node of the cluster runs');
    const slot = Number(await asked.command('CLUSTER', 'KEYSLOT', key));
    const ranges = (await asked.command('CLUSTER', 'SLOTS')) as [number, number, [string, number]][];
    const range = ranges.find(([from, to]) => from <= slot && slot <= to);
    const owner = nodes.find(({ port }) => port === range?.[2][1]);
    if (!owner) throw new Error(`nobody serves slot ${slot}`);
    return owner;
  };
  return { nodes, urls: nodes.map(({ url }) => url), ownerOf };
}

async function clusterNodes(node: RedisServer): Promise<{ id: string; flags: string[] }[]> {
  const text = String(await node.command('CLUSTER', 'NODES'));
  const lines = text.split('\n').filter((line) => line !== '');
  return lines.map((line) => {
    const [id, , flags] = line.split(' ');
    return { id: id!, flags: flags!.split(',') };
  });
}

export interface RedisSentinel {
  /** The master's name at the sentinels. */
  name: string;
  /** As of the start, or of the last failover() here. */
  master: RedisServer;
  replicas: RedisServer[];
  sentinels: RedisServer[];
  sentinelAddresses: { host: string; port: number }[];
  /**
   * Removes the master (SIGKILL, or SIGSTOP so that it can return without knowing of the failover) and waits until all
   * running sentinels name the same new one, which it returns. The old one is one of the replicas from then on.
   */
  failover(by?: 'kill' | 'pause'): Promise<RedisServer>;
}

export interface RedisSentinelOptions extends RedisOptions {
  replicas?: number;
  /** A master that is silent for this long counts as down. */
  downAfterMs?: number;
  failoverTimeoutMs?: number;
}

const SENTINELS = 3;
const QUORUM = 2;
const SENTINEL_WITHIN_MS = 30_000;

/** A master, its replicas and three sentinels; resolves when the sentinels know all and could agree on a failover. */
export async function startRedisSentinel(options: RedisSentinelOptions = {}): Promise<RedisSentinel> {
  const { replicas: count = 1, downAfterMs = 1_000, failoverTimeoutMs = 3_000, args = [], ...rest } = options;
  const name = 'doorbuster';
  const dataOptions = { ...rest, args: [...SYNC_AT_ONCE, '--repl-ping-replica-period', '1', ...args] };
  const master = await startRedis(dataOptions);
  const replicaOptions = { ...dataOptions, args: [...dataOptions.args, '--replicaof', HOST, String(master.port)] };
  const replicas = await Promise.all(Array.from({ length: count }, () => startRedis(replicaOptions)));
  await Promise.all(
    replicas.map((replica) => until('the replica is in step', SENTINEL_WITHIN_MS, () => isInStep(replica))),
  );

  // Configured to know each other, because discovery takes them seconds.
  const ids: { id: string; port: number }[] = [];
  while (ids.length < SENTINELS) ids.push({ id: randomBytes(20).toString('hex'), port: await freePort() });
  const sentinels = ids.map(
    ({ id, port }) =>
      new RedisServer({
        port,
        args: ({ folder }) => [join(folder, 'sentinel.conf'), '--sentinel'],
        prepare: ({ folder }) => {
          const others = ids.filter((other) => other.id !== id);
          const lines = [
            `port ${port}`,
            `bind ${HOST}`,
            `dir ${folder}`,
            `sentinel myid ${id}`,
            `sentinel monitor ${name} ${HOST} ${master.port} ${QUORUM}`,
            `sentinel down-after-milliseconds ${name} ${downAfterMs}`,
            `sentinel failover-timeout ${name} ${failoverTimeoutMs}`,
            ...replicas.map((replica) => `sentinel known-replica ${name} ${HOST} ${replica.port}`),
            ...others.map((other) => `sentinel known-sentinel ${name} ${HOST} ${other.port} ${other.id}`),
          ];
          writeFileSync(join(folder, 'sentinel.conf'), `${lines.join('\n')}\n`);
        },
      }),
  );
  await Promise.all(sentinels.map((sentinel) => sentinel.start()));
  const isReady = async (sentinel: RedisServer) => {
    const known = (await sentinel.command('SENTINEL', 'replicas', name)) as string[][];
    const seen = known.filter((fields) => fields[fields.indexOf('master-link-status') + 1] === 'ok');
    // An error until enough of them see each other.
    const agreed = await sentinel.command('SENTINEL', 'CKQUORUM', name).catch(() => null);
    return agreed !== null && seen.length === count;
  };
  await Promise.all(sentinels.map((one) => until('the sentinels see all', SENTINEL_WITHIN_MS, () => isReady(one))));

  const result: RedisSentinel = {
    name,
    master,
    replicas,
    sentinels,
    sentinelAddresses: sentinels.map(({ host, port }) => ({ host, port })),
    failover: async (by = 'kill') => {
      const old = result.master;
      const all = [old, ...result.replicas];
      await (by === 'kill' ? old.kill() : old.pause());
      const agreed = async () => {
        const asked = sentinels.filter(({ running }) => running);
        const said = await Promise.all(
          asked.map((sentinel) => sentinel.command('SENTINEL', 'get-master-addr-by-name', name)),
        );
        const ports = new Set(said.map((address) => Number((address as string[])[1])));
        const found = all.find(({ port }) => ports.has(port));
        if (ports.size !== 1 || !found || found === old) return null;
        return ((await found.command('ROLE')) as unknown[])[0] === 'master' ? found : null;
      };
      const next = await until('the sentinels agree on a new master', SENTINEL_WITHIN_MS, agreed);
      result.master = next;
      result.replicas = all.filter((server) => server !== next);
      return next;
    },
  };
  return result;
}

async function isInStep(replica: RedisServer): Promise<boolean> {
  return infoField(await replica.command('INFO', 'replication'), 'master_link_status') === 'up';
}

/** One field of an answer of INFO. */
function infoField(info: unknown, field: string): string | null {
  return new RegExp(`^${field}:(.*?)\r?$`, 'm').exec(String(info))?.[1] ?? null;
}
