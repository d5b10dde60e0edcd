import type { Config } from '../base/config.ts';
import { messageInFull, messageOf, RetryableError } from '../base/errors.ts';
import { KeepAlive } from '../base/keep-alive.ts';
import { Layout } from '../base/redis/layout.ts';
import { RedisLink } from '../base/redis/link.ts';
import { type Runtime, systemRuntime } from '../base/runtime.ts';
import { within } from '../base/timers.ts';
import { carrierOf, redisFailure } from '../engine/open.ts';
import type { FormatState } from '../gate/redis/format.ts';
import { RedisGate } from '../gate/redis/gate.ts';
import { examineSqlLedger, type SqlLedgerReport } from '../ledger/drivers/open.ts';
import { SCHEMA_AHEAD, SHARED } from '../model/formats.ts';
import type { Carrier } from '../pipe/brokers/port.ts';
import { LIKES } from '../pipe/likes.ts';
import { ORDERS } from '../pipe/orders.ts';
import type { Check } from './doctor.ts';

/** Sales open by Redis' clock and orders expire by the database's: a buyer would notice a larger difference. */
const SKEW_MS_MAX = 500;
const REDIS_MIN = '6.2';
/** Share of maxmemory. */
const MEMORY_WARN = 0.8;
const COMMAND_MS = 3000;
const BROKER_MS = 5000;

function check(name: string, status: Check['status'], says: string): Check {
  return { name, status, says };
}

/** Checks the servers of a shop that is not embedded. */
export async function examineServers(config: Config): Promise<Check[]> {
  const { redisUrl, databaseUrl, pipeUrl, redisPrefix, likes } = config;
  const runtime = systemRuntime();
  const checks: Check[] = [];
  if (redisUrl !== null) checks.push(...(await examineRedis(redisUrl, redisPrefix, likes, runtime)));
  const redisServes = redisUrl !== null && !checks.some(({ name, status }) => name === 'redis' && status === 'wrong');
  if (databaseUrl !== null && !databaseUrl.startsWith('sqlite:')) {
    const { found, shopId } = await examineDatabase(databaseUrl, runtime);
    checks.push(...found);
    if (redisServes && shopId !== null) checks.push(...(await examineShop(redisUrl, redisPrefix, shopId, runtime)));
  }
  if (pipeUrl !== null) checks.push(...(await examineBroker(pipeUrl, config, runtime)));
  return checks;
}

/**
 * Creates missing queues or topics, as a worker would: those of orders, and those of likes if workers carry them. A user of the
 * broker may have rights on the one and not on the other, and the worker would not start.
 */
async function examineBroker(url: string, { redisPrefix, likes }: Config, runtime: Runtime): Promise<Check[]> {
  const orders = await examineCarrier('broker', url, redisPrefix, ORDERS.kind, runtime);
  // One line is enough for a broker that cannot be reached, and another 5 s would not change it.
  if (likes !== 'counted' || !orders.reached) return [orders.found];
  return [orders.found, (await examineCarrier('broker, likes', url, redisPrefix, LIKES.kind, runtime)).found];
}

async function examineCarrier(
  name: string,
  url: string,
  prefix: string,
  kind: string,
  runtime: Runtime,
): Promise<{ reached: boolean; found: Check }> {
  let carrier: Carrier | null = null;
  try {
    carrier = await carrierOf(url, prefix, runtime, kind);
    const partitions = await within(runtime.timers, carrier.open(), BROKER_MS);
    if (partitions !== null)
      return { reached: true, found: check(name, 'ok', `${carrier.name}, ${partitions} partitions`) };
    const says = `cannot be reached (${carrier.reason ?? 'no answer'}): check PIPE_URL and whether the broker runs`;
    return { reached: false, found: check(name, 'wrong', says) };
  } catch (error) {
    return { reached: true, found: check(name, 'wrong', messageOf(error)) };
  } finally {
    await carrier?.close();
  }
}

async function examineRedis(url: string, prefix: string, likes: Config['likes'], runtime: Runtime): Promise<Check[]> {
  const keepAlive = new KeepAlive(runtime.timers);
  const ignore = { message: () => undefined, interrupted: () => undefined };
  const link = new RedisLink(url, { commandMs: COMMAND_MS }, runtime, keepAlive, ignore);
  const checks: Check[] = [];
  let listening = 0;
  try {
    await link.eachNode(async (node) => {
      const info = await node.info();
      const field = (name: string): string => new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(info)?.[1] ?? '';
      const place = `${node.options.host ?? 'Redis'}:${field('tcp_port')}`;
      const sentMs = runtime.clock.monotonic();
      const [seconds, micros] = await node.time();
      const tookMs = runtime.clock.monotonic() - sentMs;
      const nowMs = Number(seconds) * 1000 + Number(micros) / 1000;
      checks.push(
        redisVersion(place, field('redis_version')),
        eviction(place, field('maxmemory_policy'), Number(field('maxmemory'))),
        memory(place, Number(field('used_memory')), Number(field('maxmemory'))),
        await persistence(place, likes, field('aof_enabled') === '1', async () =>
          String(((await node.config('GET', 'appendfsync')) as string[])[1]),
        ),
        skew(`clock of ${place}`, nowMs, tookMs, runtime),
      );
      const [, count] = (await node.call('PUBSUB', 'NUMSUB', new Layout(prefix).wake)) as [string, number];
      listening += count;
    });
    checks.push(
      listening > 0
        ? check('workers', 'ok', `${listening} running`)
        : check(
            'workers',
            'warn',
            'none is running, so orders would wait: start `doorbuster worker`, or `serve` without --no-worker',
          ),
    );
  } catch (error) {
    const failure = redisFailure(error);
    const ask = failure instanceof RetryableError ? ': check REDIS_URL and whether Redis runs' : '';
    checks.push(check('redis', 'wrong', messageOf(failure) + ask));
  } finally {
    link.close();
    keepAlive.close();
  }
  return checks;
}

function redisVersion(place: string, version: string): Check {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const [majorMin = 0, minorMin = 0] = REDIS_MIN.split('.').map(Number);
  const recent = major > majorMin || (major === majorMin && minor >= minorMin);
  if (recent) return check('redis', 'ok', `${version} at ${place}`);
  return check('redis', 'wrong', `${version} at ${place} is too old: ${REDIS_MIN} is needed`);
}

function eviction(place: string, policy: string, maxmemory: number): Check {
  const name = 'eviction';
  if (policy !== 'noeviction') {
    return check(
      name,
      'wrong',
      `${place} has maxmemory-policy ${policy}: when it is full it would evict holds. Set noeviction`,
    );
  }
  const bound = maxmemory === 0 ? 'no maxmemory' : `maxmemory ${megabytes(maxmemory)}: when full it refuses orders`;
  return check(name, 'ok', `noeviction, ${bound}`);
}

function megabytes(bytes: number): string {
  return `${Math.round(bytes / 1e6)} MB`;
}

/** A full Redis refuses orders. Without maxmemory, only its machine knows how full it is. */
function memory(place: string, used: number, max: number): Check {
  if (max === 0) return check('memory', 'ok', `${megabytes(used)} used`);
  const of = `${megabytes(used)} of ${megabytes(max)}`;
  if (used >= max) return check('memory', 'wrong', `${place} is full (${of}): orders are refused. Raise maxmemory`);
  const percent = Math.round((100 * used) / max);
  if (used < MEMORY_WARN * max) return check('memory', 'ok', `${of} used`);
  return check('memory', 'warn', `${place} uses ${of} (${percent} %): when full it refuses orders. Raise maxmemory`);
}

async function persistence(
  place: string,
  likes: Config['likes'],
  aof: boolean,
  fsync: () => Promise<string>,
): Promise<Check> {
  const name = 'persistence';
  const unstored = likes === 'counted' ? ', and likes that are not stored yet (LIKES=counted)' : '';
  if (!aof) {
    return check(
      name,
      'warn',
      `${place} has appendonly no: a restart of Redis loses orders answered 202 (never a 201)${unstored}`,
    );
  }
  // A managed Redis may forbid CONFIG.
  const policy = await fsync().catch(() => 'unknown');
  if (policy === 'always') return check(name, 'ok', 'append-only file, synced at every write');
  return check(
    name,
    'warn',
    `${place} has appendfsync ${policy}: a power cut may lose the last 202s (never a 201)${unstored}`,
  );
}

function skew(name: string, nowMs: number, tookMs: number, runtime: Runtime): Check {
  const offMs = nowMs + tookMs / 2 - runtime.clock.now();
  const off = `${Math.abs(Math.round(offMs))} ms ${offMs >= 0 ? 'ahead of' : 'behind'} this machine`;
  if (Math.abs(offMs) - tookMs <= SKEW_MS_MAX) return check(name, 'ok', off);
  return check(
    name,
    'warn',
    `${off}: synchronise the clocks of all machines (NTP), because sales open by Redis’ clock`,
  );
}

/** Checks that the prefix in Redis belongs to this ledger and that this version reads its format, without changing it. */
async function examineShop(url: string, prefix: string, shopId: string, runtime: Runtime): Promise<Check[]> {
  const gate = new RedisGate({ target: url, prefix, shopId, commandMs: COMMAND_MS }, runtime);
  const checks: Check[] = [];
  try {
    const owner = await gate.owner();
    const says =
      owner === null
        ? `; no shop owns the prefix ${prefix} in Redis yet`
        : `, which owns the prefix ${prefix} in Redis`;
    checks.push(check('shop', 'ok', shopId + says));
  } catch (error) {
    checks.push(check('shop', 'wrong', messageOf(error)));
  }
  try {
    checks.push(check('format', 'ok', formatSays(await gate.format())));
  } catch (error) {
    checks.push(check('format', 'wrong', messageOf(error)));
  } finally {
    gate.close();
  }
  return checks;
}

function formatSays({ inForce, processes }: FormatState): string {
  if (processes.length === 0) return `${inForce ?? 'none yet'}; no process was heard of in the last 30 s`;
  const older = processes.filter((reads) => reads < SHARED.newest).length;
  const heard = `${processes.length} process(es) heard of in the last 30 s`;
  return older === 0 ? `${inForce}; ${heard}` : `${inForce}; ${heard}, ${older} of them of an older version`;
}

async function examineDatabase(url: string, runtime: Runtime): Promise<{ found: Check[]; shopId: string | null }> {
  let report: SqlLedgerReport;
  try {
    report = await examineSqlLedger(url, runtime);
  } catch (error) {
    const says = `${messageInFull(error)}: check DATABASE_URL and whether the database runs`;
    return { found: [check('database', 'wrong', says)], shopId: null };
  }
  const { product, settings, schema, newest, shopId, nowMs, tookMs } = report;
  const version = settings.get('version') ?? settings.get('server_version') ?? 'unknown version';
  const found = [
    check('database', 'ok', `${product} ${version}`),
    schemaCheck(schema, newest),
    ...weaknesses(settings),
    skew('clock of the database', nowMs, tookMs, runtime),
  ];
  return { found, shopId };
}

function schemaCheck(schema: number, newest: number): Check {
  if (schema === newest) return check('schema', 'ok', `version ${schema}`);
  if (schema > newest && schema <= newest + SCHEMA_AHEAD) {
    const says = `version ${schema}, this program has ${newest}: it can run beside the newer version, until you upgrade it`;
    return check('schema', 'warn', says);
  }
  if (schema > newest) {
    return check('schema', 'wrong', `version ${schema} is newer than this program's ${newest}: use a newer doorbuster`);
  }
  return check('schema', 'wrong', `version ${schema} is older than this program's ${newest}: run doorbuster migrate`);
}

/** Settings that may lose a commit that was already answered (P3). */
const DURABLE: { name: string; safe: string[]; lost: string; unless?: [name: string, value: string] }[] = [
  { name: 'innodb_flush_log_at_trx_commit', safe: ['1'], lost: 'a power cut loses the last second of 201s' },
  {
    name: 'sync_binlog',
    safe: ['1'],
    lost: 'after a power cut replicas may miss the last 201s',
    unless: ['log_bin', 'OFF'],
  },
  {
    name: 'innodb_doublewrite',
    safe: ['ON', '1'],
    lost: 'a page that a power cut leaves half written cannot be recovered',
  },
  { name: 'fsync', safe: ['on'], lost: 'a power cut may damage the whole database' },
  {
    name: 'synchronous_commit',
    safe: ['on', 'remote_apply', 'remote_write'],
    lost: 'a power cut loses the last 201s',
  },
  { name: 'full_page_writes', safe: ['on'], lost: 'a page that a power cut leaves half written cannot be recovered' },
];

function weaknesses(settings: ReadonlyMap<string, string>): Check[] {
  const found = DURABLE.filter(({ name, safe, unless }) => {
    const value = settings.get(name);
    if (value === undefined || (unless && settings.get(unless[0]) === unless[1])) return false;
    return !safe.includes(value);
  });
  const checks = found.map(({ name, safe, lost }) =>
    check('durability', 'warn', `${name} is ${settings.get(name)}: ${lost}. Set it to ${safe[0]}`),
  );
  const readOnly = settings.get('read_only') === 'ON' || settings.get('default_transaction_read_only') === 'on';
  if (readOnly)
    checks.push(check('database', 'wrong', 'is read-only, perhaps a replica: point DATABASE_URL at the primary'));
  return checks.length > 0 ? checks : [check('durability', 'ok', 'every commit is on disk before it is answered')];
}
