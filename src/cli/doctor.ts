import { accessSync, closeSync, constants, existsSync, openSync, readSync, statfsSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { pathToFileURL } from 'node:url';
import { systemClock } from '../base/clock.ts';
import { type Config, readConfig, SETTINGS } from '../base/config.ts';
import { messageOf } from '../base/errors.ts';
import { ID_EPOCH_MS } from '../base/ids.ts';
import { VERSION } from '../base/version.ts';
import { deploymentOf, ledgerFolder } from '../engine/open.ts';
import { isBusy, isDamaged, ledgerError } from '../ledger/drivers/sqlite/errors.ts';
import { LEDGER_FILE, LOCK_FILE } from '../ledger/drivers/sqlite/folder.ts';
import { FOLDER, schemaVersion } from '../ledger/drivers/sqlite/migrate.ts';
import { migrations } from '../ledger/schema/migrations.ts';
import { type Command, parseFlags, settingFlags, settingHelp } from './command.ts';
import { examineServers } from './doctor-distributed.ts';
import { weakSecret } from './strong.ts';

const FLAGS = ['data', 'host', 'redisUrl', 'databaseUrl', 'pipeUrl', 'redisPrefix', 'likes'] as const;

/**
 * The doctor is read-only: it creates, changes and removes nothing in the data folder, not even the files that SQLite creates
 * for a reader. A server may run meanwhile.
 */
export interface Check {
  name: string;
  /** `warn`: works, but the operator should know. `wrong`: must be fixed first. */
  status: 'ok' | 'warn' | 'wrong';
  /** What was found and, unless it is ok, what to do. */
  says: string;
}

const NODE_MAJOR_MIN = 24;
const SQLITE_MIN = '3.45';
const FREE_BYTES_MIN = 1e9;
/** quick_check reads about 300 MB a second: above this size, say what takes so long. */
const NOTED_BYTES = 1e9;
const SECRET_BYTES_MIN = 32;
const ADMIN_KEY_LENGTH_MIN = 16;

export const doctor: Command = {
  help: `Usage: doorbuster doctor [options]

Checks versions, configuration, data folder, ledger and disk, and prints a line for each: ok, or what to do. With REDIS_URL
or DATABASE_URL it also checks Redis, the database, their clocks, settings that weaken a promise, and whether workers run. It
changes nothing, and may run beside a server. One exception: with PIPE_URL it also checks the broker, and creates missing
queues or topics there, as a worker would.

${settingHelp(FLAGS, [['--json', 'print the checks as JSON']])}

Exit code: 0 no errors (there may be warnings); 1 something must be fixed; 2 wrong usage.`,
  async run(args) {
    const flags = parseFlags(args, { ...settingFlags(FLAGS), json: { type: 'boolean' } });
    const texts = Object.entries(flags).filter((entry): entry is [string, string] => typeof entry[1] === 'string');
    const checks = await examine(Object.fromEntries(texts), process.env, systemClock.now());
    const ok = checks.every(({ status }) => status !== 'wrong');
    if (flags.json === true) {
      console.log(JSON.stringify({ ok, version: VERSION, checks }));
    } else {
      const width = Math.max(...checks.map(({ name }) => name.length)) + 2;
      const marks = { ok: '✓', warn: '!', wrong: '✗' };
      for (const { name, status, says } of checks) {
        console.log(`${marks[status]} ${name.padEnd(width)}${status === 'ok' ? `ok: ${says}` : says}`);
      }
      console.log(conclusion(checks));
    }
    return ok ? 0 : 1;
  },
};

function conclusion(checks: readonly Check[]): string {
  const count = (status: Check['status']): number => checks.filter((check) => check.status === status).length;
  const counted = (count: number, what: string): string => `${count} ${what}${count === 1 ? '' : 's'}`;
  const warnings = count('warn') === 0 ? '' : ` (${counted(count('warn'), 'warning')}: !)`;
  return count('wrong') === 0 ? `no errors${warnings}` : `${counted(count('wrong'), 'error')}: ✗${warnings}`;
}

type Flags = Record<string, string | undefined>;

export async function examine(flags: Flags, env: NodeJS.ProcessEnv, nowMs: number): Promise<Check[]> {
  const { config, checks: settings } = checkConfig(flags, env);
  const common = [checkNode(), checkClock(nowMs), ...settings, checkDeployment(config)];
  const keys = [checkKey(config.adminKeys), checkSecret(config.authSecrets), ...checkStrength(config)];
  const { databaseUrl } = config;
  if (databaseUrl !== null && !databaseUrl.startsWith('sqlite:')) {
    return [...common, ...keys, ...(await examineServers(config))];
  }
  const folder = resolve(ledgerFolder(config));
  const inUse = isInUse(folder);
  return [
    ...common,
    checkSqlite(),
    ...keys,
    checkFolder(folder),
    checkLock(folder, inUse),
    ...checkLedger(join(folder, LEDGER_FILE), inUse === true),
    checkDisk(folder),
  ];
}

function ok(name: string, says: string): Check {
  return { name, status: 'ok', says };
}

function warn(name: string, says: string): Check {
  return { name, status: 'warn', says };
}

function wrong(name: string, says: string): Check {
  return { name, status: 'wrong', says };
}

function checkDeployment(config: Config): Check {
  const name = 'deployment';
  const words = {
    embedded: 'embedded: one process on SQLite',
    alone: 'alone: one process on the database in DATABASE_URL',
    distributed: 'distributed: many processes on Redis and the database in DATABASE_URL',
  };
  try {
    return ok(name, words[deploymentOf(config)]);
  } catch (error) {
    return wrong(name, messageOf(error));
  }
}

function checkNode(): Check {
  const version = process.versions.node;
  if (Number(version.split('.')[0]) >= NODE_MAJOR_MIN) return ok('node', version);
  return wrong('node', `${version} is too old: install Node ${NODE_MAJOR_MIN} or newer`);
}

function checkSqlite(): Check {
  const version = process.versions.sqlite ?? '0';
  const [major, minor] = version.split('.').map(Number);
  const [majorMin, minorMin] = SQLITE_MIN.split('.').map(Number);
  if (major! > majorMin! || (major === majorMin && minor! >= minorMin!)) return ok('sqlite', version);
  return wrong('sqlite', `${version} is too old, ${SQLITE_MIN} is needed: install a newer Node, which contains it`);
}

/** Ids count seconds from 2025 in 31 bits. */
function checkClock(nowMs: number): Check {
  const now = new Date(nowMs).toISOString();
  const sane = nowMs >= ID_EPOCH_MS && nowMs < ID_EPOCH_MS + 2 ** 31 * 1000;
  return sane ? ok('clock', now) : wrong('clock', `${now} cannot be right: set the clock, because sales open by it`);
}

/** Reports every wrong value, not only the first: it drops each one that is reported and reads the rest again. */
function checkConfig(given: Flags, env: NodeJS.ProcessEnv): { config: Config; checks: Check[] } {
  const left: Record<string, string | undefined> = { ...env };
  const flags: Flags = { ...given };
  const checks: Check[] = [];
  for (;;) {
    try {
      const config = readConfig(flags, left);
      const set = Object.values(SETTINGS).filter(({ env: name }) => env[name] !== undefined);
      if (checks.length === 0) checks.push(ok('config', `${set.length} settings in the environment`));
      return { config, checks };
    } catch (error) {
      const says = messageOf(error);
      const source = says.split(' ')[0]!;
      checks.push(wrong('config', says));
      const flag = source.slice(2);
      if (source.startsWith('--') && flags[flag] !== undefined) flags[flag] = undefined;
      else if (left[source] !== undefined) delete left[source];
      else throw error;
    }
  }
}

function checkKey(keys: Config['adminKeys']): Check {
  const name = 'admin key';
  if (keys === null) return warn(name, 'DOORBUSTER_ADMIN_KEY is not set: serve needs it (serve --demo generates one)');
  const short = keys.filter(({ key }) => key.length < ADMIN_KEY_LENGTH_MIN);
  if (short.length === 0) return ok(name, `${keys.length} in DOORBUSTER_ADMIN_KEY`);
  const whose = short.map((key) => key.name).join(', ');
  return warn(name, `the key of ${whose} is shorter than ${ADMIN_KEY_LENGTH_MIN} characters: use a long random one`);
}

/** Secrets with which serve would refuse to start. */
function checkStrength(config: Config): Check[] {
  const weak = weakSecret(config);
  return weak === null ? [] : [wrong('secrets', weak)];
}

function checkSecret(secrets: Config['authSecrets']): Check {
  const name = 'auth secret';
  if (secrets === null)
    return warn(name, 'DOORBUSTER_AUTH_SECRET is not set: serve needs it (serve --demo generates one)');
  if (secrets.every((secret) => Buffer.byteLength(secret) >= SECRET_BYTES_MIN))
    return ok(name, `${secrets.length} in DOORBUSTER_AUTH_SECRET`);
  return warn(
    name,
    `DOORBUSTER_AUTH_SECRET is shorter than ${SECRET_BYTES_MIN} bytes and can be guessed: use ${SECRET_BYTES_MIN} random bytes`,
  );
}

function checkFolder(folder: string): Check {
  const name = 'data folder';
  const there = nearest(folder);
  try {
    if (!statSync(there).isDirectory()) return wrong(name, `${there} is not a folder: choose another with --data`);
    accessSync(there, constants.W_OK | constants.X_OK);
  } catch (error) {
    return wrong(
      name,
      `${there} is not writable (${messageOf(error)}): change its owner, or choose another with --data`,
    );
  }
  return ok(name, there === folder ? folder : `${folder} does not exist yet; serve will create it`);
}

/** The path, or its nearest ancestor that exists. */
function nearest(path: string): string {
  let there = path;
  while (!existsSync(there) && dirname(there) !== there) there = dirname(there);
  return there;
}

/**
 * Whether a server holds the folder's lock; null if that cannot be found out. Reading the lock file fails while a server holds
 * it exclusively. A server that starts during the microseconds of this read would refuse to start, and must be started again.
 */
function isInUse(folder: string): boolean | null {
  const file = join(folder, LOCK_FILE);
  if (!existsSync(file)) return false;
  let lock: DatabaseSync | null = null;
  try {
    lock = new DatabaseSync(file, { readOnly: true, timeout: 0 });
    lock.prepare('SELECT count(*) FROM sqlite_schema').get();
    return false;
  } catch (error) {
    return isBusy(error) ? true : null;
  } finally {
    lock?.close();
  }
}

function checkLock(folder: string, inUse: boolean | null): Check {
  const name = 'in use';
  if (inUse === null) return wrong(name, `${join(folder, LOCK_FILE)} cannot be read: check its owner and mode`);
  return ok(name, inUse ? 'a server is using the data folder now' : 'no server is using the data folder');
}

function checkLedger(file: string, inUse: boolean): Check[] {
  if (!existsSync(file)) return [ok('ledger', 'does not exist yet; serve will create it')];
  let db: DatabaseSync | null = null;
  try {
    const { size } = statSync(file);
    if (size === 0) return [warn('ledger', `${file} is empty: serve (or doorbuster migrate) will fill it`)];
    const journal = checkJournal(file);
    const address = untouchedAddress(file, inUse);
    if (address === null) {
      const says = `${file} was not closed cleanly and its -shm file is missing: doorbuster migrate (or serve) recovers it`;
      return [journal, warn('ledger', says)];
    }
    db = new DatabaseSync(address, { readOnly: true, timeout: 5000 });
    const schema = checkSchema(db);
    if (size > NOTED_BYTES) console.error(`checking the ledger (${gigabytes(size)}), this takes a while…`);
    return [schema, journal, checkIntegrity(db, file)];
  } catch (error) {
    return [isDamaged(error) ? damaged(file, [messageOf(error)]) : wrong('ledger', messageOf(ledgerError(error)))];
  } finally {
    db?.close();
  }
}

/**
 * How to open the ledger so that SQLite creates and changes nothing. Beside a server: as any reader, because the shared files
 * exist. After a killed server, which left a -wal: with its -shm, read-only. Closed cleanly: immutable, because there is only
 * the file itself and nobody writes to it. Null: none of these.
 */
function untouchedAddress(file: string, inUse: boolean): URL | null {
  const url = pathToFileURL(file);
  if (inUse) return url;
  const wal = statSync(`${file}-wal`, { throwIfNoEntry: false });
  if (wal === undefined || wal.size === 0) url.search = 'immutable=1';
  else if (existsSync(`${file}-shm`)) url.search = 'readonly_shm=1';
  else return null;
  return url;
}

function checkSchema(db: DatabaseSync): Check {
  const version = schemaVersion(db);
  const known = migrations(FOLDER).at(-1)!.version;
  if (version === known) return ok('schema', `version ${version}`);
  if (version < known)
    return warn(
      'schema',
      `version ${version} is older than this program's ${known}: doorbuster migrate (or serve) brings it up to date`,
    );
  return wrong('schema', `version ${version} is newer than this program's ${known}: use a newer doorbuster`);
}

/** Read from the file's header (bytes 18 and 19: 2 is WAL), because an immutable connection may not report it. */
function checkJournal(file: string): Check {
  const header = Buffer.alloc(20);
  const handle = openSync(file, 'r');
  try {
    readSync(handle, header, 0, header.length, 0);
  } finally {
    closeSync(handle);
  }
  if (header[18] === 2 && header[19] === 2) return ok('journal', 'WAL; every commit is synchronous=FULL');
  return warn('journal', 'not WAL: serve sets it when it opens the ledger');
}

function checkIntegrity(db: DatabaseSync, file: string): Check {
  const { bytes } = db
    .prepare('SELECT page_count * page_size AS bytes FROM pragma_page_count(), pragma_page_size()')
    .get() as { bytes: number };
  const found = (db.prepare('PRAGMA quick_check').all() as { quick_check: string }[]).map((row) => row.quick_check);
  return found[0] === 'ok' ? ok('integrity', `all ${gigabytes(bytes)} of the ledger checked`) : damaged(file, found);
}

function damaged(file: string, found: string[]): Check {
  const more = found.length > 1 ? `, and ${found.length - 1} more` : '';
  return wrong('integrity', `${file} is damaged (${found[0]}${more}): restore it from a backup, or move it away`);
}

function checkDisk(folder: string): Check {
  const name = 'disk';
  try {
    const { bavail, bsize } = statfsSync(nearest(folder));
    const free = bavail * bsize;
    if (free >= FREE_BYTES_MIN) return ok(name, `${gigabytes(free)} free`);
    return warn(name, `only ${gigabytes(free)} free: make room, because with a full disk the shop answers 503`);
  } catch (error) {
    return warn(name, `the free space cannot be read (${messageOf(error)})`);
  }
}

function gigabytes(bytes: number): string {
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(1)} GB`;
  return bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} kB`;
}
