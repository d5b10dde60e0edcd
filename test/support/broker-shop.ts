import { inspect } from 'node:util';
import { expect } from 'vitest';
import { createLocks } from '../../src/locks/locks.ts';
import { saleChannel } from '../../src/model/channel.ts';
import { partitionOf } from '../../src/pipe/parcel.ts';
import { type Broker, type BrokerKind, type BrokerServer, carrierAt, PARTITIONS, prepare } from './broker-kinds.ts';
import { undecided } from './crowd-judge.ts';
import { startShop, type TestShop, type TestWorker } from './distributed.ts';
import { type DistributedCrowd, NO_SHOP_FAULTS } from './distributed-crowd.ts';
import { until } from './fault-wait.ts';
import { startServer, type TestServer } from './server.ts';
import { mysqlQuery, mysqlUrl, startMariadb } from './servers/mariadb.ts';
import { postgresQuery, postgresUrl, startPostgres } from './servers/postgres.ts';
import type { ServerProcess } from './servers/process.ts';
import { type RedisServer, startRedis } from './servers/redis.ts';
import { judgeTables } from './sql-judge.ts';

/** How long an answer waits for the commit, in the shops of these tests. */
export const ANSWER_WITHIN_MS = 500;

interface DatabaseServer {
  readonly url: string;
  createDatabase(): Promise<string>;
}

export interface DatabaseKind {
  name: string;
  /** A fresh database on a server that all test files share. */
  fresh(): Promise<string>;
  start(): Promise<ServerProcess & DatabaseServer>;
  query(url: string, sql: string): Promise<Record<string, unknown>[]>;
}

export const MARIADB_KIND: DatabaseKind = {
  name: 'MariaDB',
  fresh: mysqlUrl,
  start: startMariadb,
  query: mysqlQuery,
};
export const POSTGRES_KIND: DatabaseKind = {
  name: 'PostgreSQL',
  fresh: postgresUrl,
  start: startPostgres,
  query: postgresQuery,
};

/** The servers that the shops of one test file use, one after the other. */
export interface Ground {
  kind: BrokerKind;
  broker: Broker;
  redis: RedisServer;
  database: DatabaseServer;
  databaseKind: DatabaseKind;
  /** Prefixes for later shops, whose queues or topics were created at `preparedMs`. */
  prefixes: string[];
  preparedMs: number;
}

/** Private servers: they may be killed and stopped. */
export interface OwnGround extends Ground {
  broker: BrokerServer;
  database: Awaited<ReturnType<DatabaseKind['start']>>;
}

/** A prefix belongs to one shop: grounds that share a Redis use different ones. */
let prefixesGiven = 0;

/** `shops`: how many shops the file will start. */
export async function startGround(kind: BrokerKind, databaseKind: DatabaseKind, shops: number): Promise<OwnGround> {
  const [broker, redis, database] = await Promise.all([kind.start(), startRedis(), databaseKind.start()]);
  const prepared = await preparePrefixes(kind, broker, shops);
  return { kind, broker, redis, database, databaseKind, ...prepared };
}

/** On the broker and the database server that all test files share, and on this Redis. */
export async function sharedGround(
  kind: BrokerKind,
  databaseKind: DatabaseKind,
  shops: number,
  redis: RedisServer,
): Promise<Ground> {
  const [broker, url] = await Promise.all([kind.shared(), databaseKind.fresh()]);
  const prepared = await preparePrefixes(kind, broker, shops);
  return { kind, broker, redis, database: { url, createDatabase: databaseKind.fresh }, databaseKind, ...prepared };
}

async function preparePrefixes(
  kind: BrokerKind,
  broker: Broker,
  shops: number,
): Promise<Pick<Ground, 'prefixes' | 'preparedMs'>> {
  const prefixes = Array.from({ length: shops }, () => `shop-${process.pid}-${prefixesGiven++}`);
  for (const prefix of prefixes) await prepare(kind, broker, prefix);
  return { prefixes, preparedMs: performance.now() };
}

function lives({ process: { exitCode, signalCode } }: TestServer | TestWorker): boolean {
  return exitCode === null && signalCode === null;
}

/** A shop whose orders go through the broker. */
export class BrokerShop {
  readonly ground: Ground;
  readonly prefix: string;
  readonly databaseUrl: string;
  readonly shop: TestShop;
  readonly #env: Record<string, string>;

  private constructor(ground: Ground, shop: TestShop, env: { REDIS_PREFIX: string }) {
    this.ground = ground;
    this.prefix = env.REDIS_PREFIX;
    this.databaseUrl = shop.addresses.databaseUrl;
    this.shop = shop;
    this.#env = env;
  }

  static async start(ground: Ground, servers = 2, workers = 2): Promise<BrokerShop> {
    const { kind, broker, redis, database } = ground;
    const prefix = ground.prefixes.shift()!;
    const databaseUrl = await database.createDatabase();
    const env = {
      REDIS_PREFIX: prefix,
      PIPE_URL: kind.pipeUrl(broker, prefix),
      ANSWER_WITHIN_MS: String(ANSWER_WITHIN_MS),
    };
    const shop = await startShop({ redisUrl: redis.url, databaseUrl, servers, workers, env });
    return new BrokerShop(ground, shop, env);
  }

  /** Starts an API process of this shop with other settings, which is not one of its `servers`. */
  startServer(env: Record<string, string>): Promise<TestServer> {
    const { redisUrl: REDIS_URL, databaseUrl: DATABASE_URL } = this.shop.addresses;
    return startServer({ args: ['--no-worker'], env: { REDIS_URL, DATABASE_URL, ...this.#env, ...env } });
  }

  /** The workers that are alive. */
  get workers(): TestWorker[] {
    return this.shop.workers.filter(lives);
  }

  /** Prepares the shop for the next test: replaces dead processes. */
  async mended(servers: number, workers: number): Promise<this> {
    const { shop } = this;
    shop.servers = shop.servers.filter(lives);
    shop.workers = shop.workers.filter(lives);
    while (shop.servers.length < servers) await shop.startServer();
    while (shop.workers.length < workers) await shop.startWorker();
    return this;
  }

  /** The worker that carries the sale's orders to the broker. */
  async relaying(saleId: string): Promise<TestWorker> {
    const { redis, kind, broker } = this.ground;
    const carrier = await carrierAt(kind, broker, this.prefix);
    await using locks = createLocks({ redis: redis.url, prefix: `${this.prefix}:lock` });
    const leadership = `leader:relay:${carrier.name}:${partitionOf(saleChannel(saleId), PARTITIONS)}`;
    await carrier.close();
    return await until(
      'somebody relays',
      20_000,
      async () => {
        const { holders } = await locks.inspect('fair', leadership);
        // A new holder names itself with its next renewal.
        const pid = Number(/\/(\d+)/.exec(holders[0]?.info ?? '')?.[1]);
        return this.workers.find((worker) => worker.process.pid === pid) ?? null;
      },
      async () => {
        const workers = this.workers.map((worker) => `${worker.process.pid} says ${worker.output()}`);
        return `${leadership} ${inspect(await locks.inspect('fair', leadership), { depth: 4 })}; ${workers.join('; ')}`;
      },
    );
  }

  query(sql: string): Promise<Record<string, unknown>[]> {
    return this.ground.databaseKind.query(this.databaseUrl, sql);
  }

  key(saleId: string, part: string): string {
    return `${this.prefix}:{${saleId}:0}:${part}`;
  }

  /** Entries of the sale in the streams of all epochs. */
  async entries(saleId: string): Promise<number> {
    const { redis } = this.ground;
    const epochs = (await redis.command('SMEMBERS', this.key(saleId, 'epochs'))) as string[];
    const lengths = await Promise.all(epochs.map((one) => redis.command('XLEN', this.key(saleId, `${one}:stream`))));
    return lengths.reduce<number>((sum, length) => sum + Number(length), 0);
  }

  /** True if the broker has confirmed every entry of the sale's stream, and none is decided. */
  async allSent(saleId: string): Promise<boolean> {
    const { redis } = this.ground;
    const epoch = await redis.command('HGET', this.key(saleId, 'gate'), 'epoch');
    const stream = this.key(saleId, `${epoch}:stream`);
    const asMap = (reply: unknown): Map<string, unknown> => {
      const flat = reply as unknown[];
      return new Map(flat.flatMap((name, at) => (at % 2 === 0 ? [[String(name), flat[at + 1]]] : [])));
    };
    const last = asMap(await redis.command('XINFO', 'STREAM', stream)).get('last-generated-id');
    const groups = ((await redis.command('XINFO', 'GROUPS', stream)) as unknown[]).map(asMap);
    return groups.some(
      (group) =>
        String(group.get('name')).startsWith('relay:') &&
        Number(group.get('pending')) === 0 &&
        group.get('last-delivered-id') === last,
    );
  }

  /**
   * Waits until the shop is at rest and checks the promises: every 201 and 202 is in the ledger; nothing is oversold, above a
   * limit, doubled or missing (P1, P2, P3, P5, P9, by the API and by the tables); the pipe is empty, and there are no dead
   * letters.
   */
  async expectWhole(crowd: DistributedCrowd, saleId: string, perBuyer: number, label: string) {
    const { faults, orders, sale } = await crowd.verdict(saleId, perBuyer);
    expect(faults, label).toEqual(NO_SHOP_FAULTS);
    expect(undecided(crowd.record.tries, orders), `${label}: a 202 that never ended`).toEqual([]);
    await judgeTables((sql) => this.query(sql));
    await until(`${label}: the pipe is empty`, 10_000, async () => (await this.entries(saleId)) === 0);
    const { redis } = this.ground;
    for (const part of ['retry', 'dead']) expect(await redis.command('EXISTS', this.key(saleId, part)), part).toBe(0);
    return { orders, sale };
  }
}
