import { isIP } from 'node:net';
import { parseDatabaseUrl } from './database-url.ts';
import { TerminalError } from './errors.ts';

/**
 * Configuration: one table of settings, read from flags and then from the environment. A wrong value ends the start with
 * one line that names the setting. A test compares docs/reference/config.md with this table.
 */
export interface Setting<T> {
  env: string;
  /** The flag without dashes, or null if it has none. */
  flag: string | null;
  fallback: string | null;
  doc: string;
  parse: (text: string) => T;
}

function setting<T>(
  env: string,
  flag: string | null,
  fallback: string | null,
  doc: string,
  parse: (text: string) => T,
): Setting<T> {
  return { env, flag, fallback, doc, parse };
}

function whole(min: number, max: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (!/^\d{1,10}$/.test(text) || value < min || value > max)
      throw new Error(`must be a whole number from ${min} to ${max}`);
    return value;
  };
}

function word<const W extends string>(...words: W[]): (text: string) => W {
  return (text) => {
    if (!(words as string[]).includes(text)) throw new Error(`must be one of ${words.join(', ')}`);
    return text as W;
  };
}

function text(value: string): string {
  if (value.trim() === '') throw new Error('must not be empty');
  return value;
}

function list(value: string): string[] {
  return value
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '');
}

/** `key` or `alice:key1,bob:key2`. */
export function parseAdminKeys(value: string): { name: string; key: string }[] {
  const keys = list(value).map((part) => {
    const colon = part.indexOf(':');
    return colon < 0 ? { name: 'admin', key: part } : { name: part.slice(0, colon), key: part.slice(colon + 1) };
  });
  if (keys.length === 0) throw new Error('must contain at least one key');
  if (keys.some(({ name, key }) => name === '' || key === '')) throw new Error('must be a key, or name:key,name:key');
  if (new Set(keys.map(({ name }) => name)).size !== keys.length) throw new Error('uses a name twice');
  if (keys.some(({ name }) => name.length > 64)) throw new Error('has a name longer than 64 characters');
  // A key is also accepted as `name:key` (http/auth.ts), so no other key may look like that.
  const named = new Set(keys.map(({ name, key }) => `${name}:${key}`));
  if (keys.some(({ key }) => named.has(key)))
    throw new Error('has a key that equals another key with its name in front');
  return keys;
}

/** A provider's name as its variable spells it: `MY_BANK` in `PAYMENT_WEBHOOK_SECRET_MY_BANK` for `my-bank`. */
export function providerName(provider: string): string {
  return provider.toUpperCase().replaceAll(/[^A-Z0-9]/g, '_');
}

function parseSecrets(value: string): string[] {
  const secrets = list(value);
  if (secrets.length === 0 || secrets.length > 2) throw new Error('must be one secret, or two separated by a comma');
  return secrets;
}

function parseTrust(value: string): boolean | string {
  if (value === 'on') return true;
  if (value === 'off') return false;
  for (const part of list(value)) {
    const [address, bits, ...more] = part.split('/');
    const version = isIP(address!);
    const named = ['loopback', 'linklocal', 'uniquelocal'].includes(part);
    const masked = bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= (version === 6 ? 128 : 32));
    if (!named && (version === 0 || !masked || more.length > 0)) {
      throw new Error(`must be on, off, or addresses of proxies; ${part} is not an address`);
    }
  }
  return text(value);
}

/** The empty text is null: not set. */
function address(...schemes: string[]): (text: string) => string | null {
  return (value) => {
    if (value === '') return null;
    const scheme = /^([a-z][a-z0-9+]*):/.exec(value)?.[1];
    // The message does not repeat the value, which may contain a password.
    if (scheme === undefined || !schemes.includes(scheme)) {
      throw new Error(`must begin with ${schemes.map((each) => `${each}:`).join(', ')}`);
    }
    return value;
  };
}

function database(value: string): string | null {
  const url = address('sqlite', 'mysql', 'mariadb', 'postgres', 'postgresql')(value);
  if (url !== null && !url.startsWith('sqlite:')) parseDatabaseUrl(url);
  return url;
}

function prefix(value: string): string {
  if (!/^[\w.:-]{1,64}$/.test(value)) throw new Error('must be 1 to 64 letters, digits and . : - _');
  return value;
}

export const SETTINGS = {
  port: setting('PORT', 'port', '8080', 'Port to listen on; 0 picks a free one', whole(0, 65_535)),
  host: setting('HOST', 'host', '127.0.0.1', 'Address to listen on', text),
  data: setting('DOORBUSTER_DATA', 'data', './data', 'Data folder of the embedded ledger', text),
  redisUrl: setting(
    'REDIS_URL',
    'redis-url',
    '',
    'Redis, for a shop of many processes: `redis:`, `rediss:`, `redis+sentinel:`, `redis+cluster:`',
    address('redis', 'rediss', 'redis+sentinel', 'rediss+sentinel', 'redis+cluster', 'rediss+cluster'),
  ),
  databaseUrl: setting(
    'DATABASE_URL',
    'database-url',
    '',
    'Database of the ledger: `sqlite:`, `mysql:`, `mariadb:`, `postgres:`',
    database,
  ),
  pipeUrl: setting(
    'PIPE_URL',
    'pipe-url',
    '',
    'Broker between Redis and the workers: `amqp:`, `amqps:` (RabbitMQ), `kafka:`, `kafka+ssl:`; unset: Redis Streams',
    address('amqp', 'amqps', 'kafka', 'kafka+ssl'),
  ),
  redisPrefix: setting('REDIS_PREFIX', 'redis-prefix', 'doorbuster', 'Prefix of every key in Redis', prefix),
  answerWithinMs: setting(
    'ANSWER_WITHIN_MS',
    'answer-within-ms',
    '2000',
    'How long an order waits for its commit before it is answered 202 (with Redis)',
    whole(10, 60_000),
  ),
  pipeMax: setting(
    'PIPE_MAX',
    'pipe-max',
    '100000',
    'How many orders of a sale may wait for the ledger before new ones get 503 (with Redis)',
    whole(1, 10_000_000),
  ),
  rebuildDrainMs: setting(
    'REBUILD_DRAIN_MS',
    'rebuild-drain-ms',
    '60000',
    'How long the rebuild of a gate waits for the orders in the pipe to be decided (with Redis)',
    whole(100, 3_600_000),
  ),
  writerLock: setting(
    'WRITER_LOCK',
    'writer-lock',
    'off',
    '`buyer`: write orders under their buyers’ locks; no promise needs it (with Redis)',
    word('off', 'buyer'),
  ),
  likes: setting(
    'LIKES',
    'likes',
    'counted',
    '`counted`: Redis decides likes and the workers store them; `direct`: the database decides each (with Redis)',
    word('counted', 'direct'),
  ),
  adminKeys: setting('DOORBUSTER_ADMIN_KEY', 'admin-key', null, 'Admin key, or `alice:key1,bob:key2`', parseAdminKeys),
  authSecrets: setting(
    'DOORBUSTER_AUTH_SECRET',
    'auth-secret',
    null,
    'Secret that signs buyers’ tokens (HS256); two, separated by a comma, for rotation',
    parseSecrets,
  ),
  authIssuer: setting('AUTH_ISSUER', 'auth-issuer', '', 'Required `iss` of buyers’ tokens', (value) =>
    value === '' ? null : text(value),
  ),
  authAudience: setting('AUTH_AUDIENCE', 'auth-audience', '', 'Required `aud` of buyers’ tokens', (value) =>
    value === '' ? null : text(value),
  ),
  authRequireExp: setting(
    'AUTH_REQUIRE_EXP',
    'auth-require-exp',
    'auto',
    '`on`: refuse buyers’ tokens without `exp`; `auto`: on, unless HOST is a loopback address',
    word('on', 'off', 'auto'),
  ),
  accounts: setting(
    'ACCOUNTS',
    'accounts',
    'off',
    '`on`: people may register and sign in with a password (demo: on)',
    (value) => word('on', 'off')(value) === 'on',
  ),
  demoHosts: setting(
    'DEMO_HOSTS',
    'demo-hosts',
    '',
    'With --demo: further `Host` names to accept besides loopback ones, separated by commas',
    list,
  ),
  paymentsSandbox: setting(
    'PAYMENTS_SANDBOX',
    'payments-sandbox',
    'off',
    '`on`: enable the sandbox payment provider, which takes no money (demo: on)',
    (value) => word('on', 'off')(value) === 'on',
  ),
  paymentSecrets: setting(
    'PAYMENT_WEBHOOK_SECRET',
    'payment-webhook-secret',
    '',
    'Secret that signs payment providers’ webhooks; two, separated by a comma, for rotation; unset: all are refused. `PAYMENT_WEBHOOK_SECRET_<PROVIDER>` is for one provider alone',
    (value) => (value === '' ? [] : parseSecrets(value)),
  ),
  webhooksPrivate: setting(
    'WEBHOOKS_PRIVATE',
    'webhooks-private',
    'off',
    '`on`: webhooks may be sent to private addresses: this machine, its network (demo: on)',
    (value) => word('on', 'off')(value) === 'on',
  ),
  rateLimitBuyer: setting(
    'RATE_LIMIT_BUYER',
    'rate-limit-buyer',
    '20',
    'Orders per second and buyer',
    whole(1, 100_000),
  ),
  rateLimitBuyerWrites: setting(
    'RATE_LIMIT_BUYER_WRITES',
    'rate-limit-buyer-writes',
    '10',
    'Payments and cancellations per second and buyer; as many posts, comments and likes',
    whole(1, 100_000),
  ),
  rateLimitBuyerReads: setting(
    'RATE_LIMIT_BUYER_READS',
    'rate-limit-buyer-reads',
    '50',
    'Reads of orders, posts and comments per second and buyer',
    whole(1, 100_000),
  ),
  ordersPerDay: setting(
    'ORDERS_PER_DAY',
    'orders-per-day',
    '2000',
    'Orders that a buyer may place in 24 hours, whatever becomes of them',
    whole(1, 10_000_000),
  ),
  postsPerDay: setting(
    'POSTS_PER_DAY',
    'posts-per-day',
    '1000',
    'Posts, comments and edits in 24 hours and buyer',
    whole(1, 10_000_000),
  ),
  writingCharsPerDay: setting(
    'WRITING_CHARS_PER_DAY',
    'writing-chars-per-day',
    '1000000',
    'Characters of posts, comments and edits in 24 hours and buyer',
    whole(20_000, 1_000_000_000),
  ),
  rateLimitAddress: setting(
    'RATE_LIMIT_ADDRESS',
    'rate-limit-address',
    'off',
    'Requests per second and address, or `off`',
    (value) => (value === 'off' ? null : whole(1, 1_000_000)(value)),
  ),
  trustProxy: setting(
    'TRUST_PROXY',
    'trust-proxy',
    'off',
    '`on`: every client is a proxy, and the address that it adds to X-Forwarded-For counts; or the proxies’ addresses',
    parseTrust,
  ),
  corsOrigins: setting(
    'CORS_ORIGINS',
    'cors-origins',
    '',
    'Origins whose pages may call the API from a browser, separated by commas',
    list,
  ),
  sseMax: setting(
    'SSE_MAX',
    'sse-max',
    '1000',
    'Open event streams: this many of sales, and as many of orders',
    whole(0, 1_000_000),
  ),
  ssePerAddressMax: setting(
    'SSE_MAX_PER_ADDRESS',
    'sse-max-per-address',
    '100',
    'Open event streams per address; local addresses only with TRUST_PROXY',
    whole(1, 1_000_000),
  ),
  connectionsMax: setting(
    'CONNECTIONS_MAX',
    'connections-max',
    '10000',
    'Open connections; further ones are closed',
    whole(1, 1_000_000),
  ),
  connectionsPerAddressMax: setting(
    'CONNECTIONS_PER_ADDRESS',
    'connections-per-address',
    '1000',
    'Open connections per public address; not with TRUST_PROXY',
    whole(1, 1_000_000),
  ),
  requestWithinMs: setting(
    'REQUEST_WITHIN_MS',
    'request-within-ms',
    '15000',
    'How long a request may take to arrive in full before it is answered 408',
    whole(100, 600_000),
  ),
  closeAfterMs: setting(
    'CLOSE_AFTER_MS',
    'close-after-ms',
    '0',
    'After SIGTERM, how long requests are still served, with /readyz at 503, before the port closes',
    whole(0, 300_000),
  ),
  metricsPublic: setting(
    'METRICS_PUBLIC',
    'metrics-public',
    'off',
    '`on`: /metrics needs no admin key',
    (value) => word('on', 'off')(value) === 'on',
  ),
  inFlightMax: setting(
    'IN_FLIGHT_MAX',
    'in-flight-max',
    '5000',
    'Requests in flight before new ones get 503',
    whole(1, 1_000_000),
  ),
  eventLoopDelayMsMax: setting(
    'EVENT_LOOP_DELAY_MAX_MS',
    'event-loop-delay-max-ms',
    '250',
    'Delay of the event loop, without commits, above which new requests get 503',
    whole(10, 60_000),
  ),
  logLevel: setting(
    'LOG_LEVEL',
    'log-level',
    'info',
    'trace, debug, info, warn, error, fatal or silent',
    word('trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'),
  ),
} as const satisfies Record<string, Setting<unknown>>;

export type SettingName = keyof typeof SETTINGS;
export type Config = {
  [N in SettingName]:
    | ReturnType<(typeof SETTINGS)[N]['parse']>
    | (N extends 'adminKeys' | 'authSecrets' ? null : never);
} & { providerSecrets: Record<string, string[]> };

const PROVIDER_SECRET = /^PAYMENT_WEBHOOK_SECRET_([A-Z0-9_]+)$/;

/** One variable per provider. They have no flags, because providers' names are not known beforehand. */
function providerSecrets(env: Record<string, string | undefined>): Record<string, string[]> {
  const secrets: Record<string, string[]> = {};
  for (const [variable, value] of Object.entries(env)) {
    const name = PROVIDER_SECRET.exec(variable)?.[1];
    if (name === undefined || value === undefined) continue;
    try {
      secrets[name] = parseSecrets(value);
    } catch (error) {
      throw new TerminalError('bad_config', `${variable} ${(error as Error).message}`);
    }
  }
  return secrets;
}

/** The name of a setting's variable, for messages. */
export function variableOf(name: SettingName): string {
  return SETTINGS[name].env;
}

export function readConfig(flags: Record<string, string | undefined>, env: Record<string, string | undefined>): Config {
  const config: Record<string, unknown> = { providerSecrets: providerSecrets(env) };
  for (const [name, { env: variable, flag, fallback, parse }] of Object.entries(SETTINGS) as [
    string,
    Setting<unknown>,
  ][]) {
    const fromFlag = flag === null ? undefined : flags[flag];
    const value = fromFlag ?? env[variable] ?? fallback;
    if (value === null) {
      config[name] = null;
      continue;
    }
    try {
      config[name] = parse(value);
    } catch (error) {
      const source = fromFlag === undefined ? variable : `--${flag}`;
      throw new TerminalError('bad_config', `${source} ${(error as Error).message}`);
    }
  }
  return config as unknown as Config;
}
