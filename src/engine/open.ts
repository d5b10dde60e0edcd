import { fileURLToPath } from 'node:url';
import type { Config } from '../base/config.ts';
import { messageOf, TerminalError } from '../base/errors.ts';
import { KeepAlive } from '../base/keep-alive.ts';
import { RedisLink, RedisUnavailableError } from '../base/redis/link.ts';
import type { Runtime } from '../base/runtime.ts';
import { openSqlLedger } from '../ledger/drivers/open.ts';
import type { ExclusiveState } from '../ledger/drivers/server/exclusive.ts';
import type { Reached } from '../orders/life/points.ts';
import type { PaymentProvider } from '../payments/port.ts';
import { providersFault } from '../payments/providers.ts';
import type { Carrier } from '../pipe/brokers/port.ts';
import { LIKES } from '../pipe/likes.ts';
import { ORDERS } from '../pipe/orders.ts';
import { DistributedShop } from './distributed.ts';
import { EmbeddedShop } from './embedded.ts';
import type { LifeOptions, Shop } from './shop.ts';

export type Deployment = Pick<
  Config,
  | 'data'
  | 'redisUrl'
  | 'databaseUrl'
  | 'pipeUrl'
  | 'redisPrefix'
  | 'answerWithinMs'
  | 'pipeMax'
  | 'rebuildDrainMs'
  | 'writerLock'
  | 'likes'
  | 'paymentsSandbox'
  | 'webhooksPrivate'
>;

export interface OpenOptions {
  /** Whether this process carries orders to the ledger; the embedded shop always does. */
  readonly worker: boolean;
  /** Brings the schema of a shared database up to date; else an old one is refused. */
  readonly migrate: boolean;
  /** Payment providers of the shop's own. */
  readonly providers?: readonly PaymentProvider[];
  /** For tests that end the process between two steps. */
  readonly reached?: Reached;
}

/** The deployment that the settings describe. Fails where they contradict each other. */
export function deploymentOf({
  redisUrl,
  databaseUrl,
  pipeUrl,
}: Pick<Deployment, 'redisUrl' | 'databaseUrl' | 'pipeUrl'>) {
  const shared = databaseUrl !== null && !databaseUrl.startsWith('sqlite:');
  if (pipeUrl !== null && redisUrl === null) {
    throw new TerminalError(
      'bad_config',
      'PIPE_URL is set and REDIS_URL is not: a broker only carries what the gate in Redis admits; set REDIS_URL as well',
    );
  }
  if (redisUrl === null) return shared ? 'alone' : 'embedded';
  if (databaseUrl === null) {
    throw new TerminalError(
      'bad_config',
      'REDIS_URL is set and DATABASE_URL is not: the ledger needs a database; set DATABASE_URL as well',
    );
  }
  if (!shared) {
    throw new TerminalError(
      'bad_config',
      'DATABASE_URL is sqlite:, which only one process can use: with REDIS_URL it must name a database that processes share',
    );
  }
  return 'distributed';
}

/** The folder of a SQLite ledger: `sqlite:./data` or `sqlite:///var/lib/doorbuster`, else the setting of its own. */
export function ledgerFolder({ databaseUrl, data }: Pick<Deployment, 'databaseUrl' | 'data'>): string {
  if (databaseUrl === null) return data;
  const path = databaseUrl.slice('sqlite:'.length);
  return path.startsWith('//') ? fileURLToPath(`file:${path}`) : path || data;
}

/** Opens the shop that the settings describe. A RetryableError: not now, try again. */
export async function openShop(settings: Deployment, options: OpenOptions, runtime: Runtime): Promise<Shop> {
  const {
    redisUrl,
    databaseUrl,
    pipeUrl,
    redisPrefix: prefix,
    answerWithinMs,
    pipeMax,
    rebuildDrainMs,
    writerLock,
    likes,
  } = settings;
  const { providers = [] } = options;
  const fault = providersFault(providers, settings.paymentsSandbox);
  if (fault !== null) throw new TerminalError('bad_config', fault);
  const life: LifeOptions = {
    payments: { sandbox: settings.paymentsSandbox, providers },
    webhooks: { allowPrivate: settings.webhooksPrivate },
    ...(options.reached && { reached: options.reached }),
  };
  switch (deploymentOf(settings)) {
    case 'embedded':
      return EmbeddedShop.open(ledgerFolder(settings), runtime, life);
    case 'alone':
      // Nobody else writes to this database, so that it may be migrated at once.
      return openAlone(databaseUrl!, runtime, life);
    case 'distributed': {
      await checkRedis(redisUrl!, runtime);
      const ledger = await openSqlLedger(databaseUrl!, runtime, { migrate: options.migrate, exclusive: false });
      const { worker } = options;
      try {
        // A process that only takes orders has no business with the broker.
        const carriers = async (kind: string): Promise<Carrier | null> =>
          worker && pipeUrl !== null ? await carrierOf(pipeUrl, prefix, runtime, kind) : null;
        const carrier = await carriers(ORDERS.kind);
        const likesCarrier = likes === 'counted' ? await carriers(LIKES.kind) : null;
        const pipes = { pipeMax, rebuildDrainMs, carrier, likes, likesCarrier };
        return await DistributedShop.open(
          ledger,
          { redis: redisUrl!, prefix, answerWithinMs, worker, writerLock, life, ...pipes },
          runtime,
        );
      } catch (error) {
        await ledger.close();
        throw error;
      }
    }
  }
}

/** The broker that the address names, for one kind of message. Loaded only where it is used: its client is not small. */
export async function carrierOf(url: string, prefix: string, runtime: Runtime, kind = ORDERS.kind): Promise<Carrier> {
  if (url.startsWith('kafka')) {
    const { KafkaCarrier } = await import('../pipe/kafka/carrier.ts');
    return new KafkaCarrier({ url, prefix, kind }, runtime);
  }
  const { RabbitCarrier } = await import('../pipe/rabbitmq/carrier.ts');
  return new RabbitCarrier({ url, prefix, kind }, runtime);
}

/** The gate is in this process: it is right as long as nobody else writes to the database. */
async function openAlone(databaseUrl: string, runtime: Runtime, life: LifeOptions): Promise<EmbeddedShop> {
  let shop: EmbeddedShop | null = null;
  const onExclusive = (state: ExclusiveState): void => {
    // The ledger refuses every write while it is not sure, and for good if another has it.
    if (state === 'held') void shop?.rebuildAll();
    else runtime.log.error({ state }, 'the lock that keeps the database to this process was lost');
  };
  const ledger = await openSqlLedger(databaseUrl, runtime, { migrate: true, exclusive: true, onExclusive });
  shop = await EmbeddedShop.on(ledger, runtime, life);
  return shop;
}

const CHECK_MS = 2000;

/** Why Redis does not serve us, in its own words where it has some. */
export function redisFailure(error: unknown): TerminalError | RedisUnavailableError {
  const reason = messageOf((error as { cause?: unknown }).cause ?? error);
  const word = /\b(NOAUTH|WRONGPASS|NOPERM)\b/.exec(reason)?.[0];
  if (word === 'NOPERM') {
    return new TerminalError('bad_config', `the user of REDIS_URL lacks a right: ${reason.replaceAll('\n', ' ')}`);
  }
  if (word !== undefined) {
    return new TerminalError('bad_config', `Redis refuses the user or password of REDIS_URL (${word})`);
  }
  return new RedisUnavailableError(`Redis cannot be reached: ${reason}`, error);
}

/** What each server says of itself (INFO), by section. */
export async function redisInfo(redisUrl: string, sections: readonly string[], runtime: Runtime): Promise<string[]> {
  const keepAlive = new KeepAlive(runtime.timers);
  const link = new RedisLink(redisUrl, { commandMs: CHECK_MS }, runtime, keepAlive, {
    message: () => undefined,
    interrupted: () => undefined,
  });
  const infos: string[] = [];
  try {
    await link.eachNode(async (node) => {
      const parts: string[] = [];
      for (const section of sections) parts.push(await node.info(section));
      infos.push(parts.join('\n'));
    });
  } catch (error) {
    throw redisFailure(error);
  } finally {
    link.close();
    keepAlive.close();
  }
  return infos;
}

/** A Redis that evicts keys when it is full would evict holds. */
async function checkRedis(redisUrl: string, runtime: Runtime): Promise<void> {
  for (const info of await redisInfo(redisUrl, ['memory'], runtime)) {
    const policy = /^maxmemory_policy:(\S+)/m.exec(info)?.[1];
    if (policy !== undefined && policy !== 'noeviction') {
      throw new TerminalError(
        'bad_config',
        `Redis has maxmemory-policy ${policy}: it would forget holds when it is full; set it to noeviction`,
      );
    }
  }
}
