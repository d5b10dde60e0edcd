import { providerName, SETTINGS } from '../base/config.ts';
import { messageOf, TerminalError } from '../base/errors.ts';
import { nearest } from '../base/nearest.ts';
import type { ShopEvents } from '../views/events.ts';
import type { DoorbusterOptions, HttpSettings } from './doorbuster.ts';

/**
 * Checks the options of createDoorbuster, within the bounds of the server's settings (base/config.ts). A misspelt option, or one
 * of the wrong type, is refused by name: if it were ignored, a limit or a secret would silently keep its default.
 */
export function checkedOptions(given: DoorbusterOptions): DoorbusterOptions {
  const options = checked<DoorbusterOptions>('createDoorbuster', '', OPTIONS, given);
  if (options.http === undefined) return options;
  return { ...options, http: checked<Partial<HttpSettings>>('http', 'http.', HTTP, options.http) };
}

const EVENTS: Record<keyof ShopEvents, true> = {
  'order.reserved': true,
  'order.rejected': true,
  'order.paid': true,
  'order.moved': true,
  'order.cancelled': true,
  'order.expired': true,
  'order.partly_refunded': true,
  'order.refunded': true,
  'sale.changed': true,
};

/** Refuses an unknown event, because its listener would never be called. */
export function checkEvent(event: string, listener: unknown): void {
  if (!Object.hasOwn(EVENTS, event)) {
    throw new TerminalError('bad_config', `there is no event "${event}"${meant(event, Object.keys(EVENTS))}`);
  }
  if (typeof listener !== 'function') throw new TerminalError('bad_config', 'a listener must be a function');
}

/** Returns the checked value, or throws an Error whose message follows the option's name. */
type Check = (value: unknown) => unknown;

const flag: Check = (value) => {
  if (typeof value !== 'boolean') throw new Error('must be true or false');
  return value;
};

const string: Check = (value) => {
  if (typeof value !== 'string') throw new Error('must be a text');
  return value;
};

const object: Check = (value) => {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error('must be an object');
  return value;
};

/** A text in the form of the setting with that name. */
function written(setting: keyof typeof SETTINGS): Check {
  return (value) => {
    SETTINGS[setting].parse(string(value) as string);
    return value;
  };
}

/** The empty text passes: `handler()` reports it, and a shop without HTTP needs no key. */
function key(setting: 'adminKeys' | 'authSecrets'): Check {
  return (value) => (value === '' ? value : written(setting)(value));
}

function number(setting: keyof typeof SETTINGS): Check {
  return (value) => {
    // The setting's own message says what it must be; that of a text, too.
    SETTINGS[setting].parse(typeof value === 'number' ? String(value) : 'not a number');
    return value;
  };
}

function orNull(check: Check): Check {
  return (value) => (value === null ? null : check(value));
}

function texts(value: unknown): string[] {
  if (!Array.isArray(value) || value.some((one) => typeof one !== 'string' || one.trim() === '')) {
    throw new Error('must be an array of non-empty texts');
  }
  return value as string[];
}

const secrets: Check = (value) => {
  if (texts(value).length > 2) throw new Error('must be one secret, or two for rotation');
  return value;
};

/** `cards` and `CARDS` are one provider, as in the server's variables. */
const secretsByProvider: Check = (value) => {
  const named: Record<string, unknown> = {};
  for (const [provider, given] of Object.entries(object(value) as object)) {
    const name = providerName(provider);
    if (Object.hasOwn(named, name)) throw new Error(`names the provider ${name} twice`);
    try {
      if (texts(secrets(given)).length === 0) throw new Error('must be one secret, or two for rotation');
    } catch (error) {
      throw new Error(`of ${provider} ${messageOf(error)}`);
    }
    named[name] = given;
  }
  return named;
};

const logger: Check = (value) => {
  const log = object(value) as Record<string, unknown>;
  const methods = ['debug', 'info', 'warn', 'error', 'child', 'isLevelEnabled'];
  const missing = methods.find((method) => typeof log[method] !== 'function');
  if (missing !== undefined) throw new Error(`must be a pino logger: it has no ${missing}()`);
  return value;
};

const OPTIONS: Record<keyof DoorbusterOptions, Check> = {
  data: written('data'),
  database: written('databaseUrl'),
  redis: written('redisUrl'),
  pipe: written('pipeUrl'),
  redisPrefix: written('redisPrefix'),
  answerWithinMs: number('answerWithinMs'),
  likes: written('likes'),
  worker: flag,
  migrate: flag,
  // Checked when the shop opens.
  providers: (value) => value,
  webhooksPrivate: flag,
  sandbox: flag,
  adminKey: key('adminKeys'),
  authSecret: key('authSecrets'),
  http: object,
  log: logger,
};

const HTTP: Record<keyof HttpSettings, Check> = {
  issuer: orNull(string),
  audience: orNull(string),
  requireExp: flag,
  accounts: flag,
  rateLimitBuyer: number('rateLimitBuyer'),
  rateLimitBuyerWrites: number('rateLimitBuyerWrites'),
  rateLimitBuyerReads: number('rateLimitBuyerReads'),
  ordersPerDay: number('ordersPerDay'),
  postsPerDay: number('postsPerDay'),
  writingCharsPerDay: number('writingCharsPerDay'),
  rateLimitAddress: orNull(number('rateLimitAddress')),
  corsOrigins: texts,
  sseMax: number('sseMax'),
  ssePerAddressMax: number('ssePerAddressMax'),
  connectionsMax: number('connectionsMax'),
  connectionsPerAddressMax: number('connectionsPerAddressMax'),
  requestWithinMs: number('requestWithinMs'),
  metricsPublic: flag,
  inFlightMax: number('inFlightMax'),
  eventLoopDelayMsMax: number('eventLoopDelayMsMax'),
  paymentSecrets: secrets,
  providerSecrets: secretsByProvider,
  trustProxy: (value) => (typeof value === 'boolean' ? value : written('trustProxy')(value)),
};

/** The checked options, without those that are undefined. */
function checked<T extends object>(whose: string, path: string, checks: Record<string, Check>, given: T): T {
  const result: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(given)) {
    if (!Object.hasOwn(checks, name)) {
      throw new TerminalError(
        'bad_config',
        `${whose} has no option ${JSON.stringify(name)}${meant(name, Object.keys(checks))}`,
      );
    }
    if (value === undefined) continue;
    try {
      result[name] = checks[name]!(value);
    } catch (error) {
      throw new TerminalError('bad_config', `${path}${name} ${messageOf(error)}`);
    }
  }
  return result as T;
}

function meant(given: string, known: readonly string[]): string {
  const near = nearest(given, known);
  return near === null ? `; there are ${known.join(', ')}` : `; is it ${near}?`;
}
