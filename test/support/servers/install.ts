import { spawnSync } from 'node:child_process';
import { accessSync, constants, mkdirSync, readdirSync, rmdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';

/** A server that tests run for real. A further one needs a line here, a file beside redis.ts, and its describeWith… */
export interface Product {
  /** The name of its program, and its name in messages. */
  binary: string;
  /** Where its package puts the program if not into PATH, the best first. */
  folders?(): string[];
  /** Debian packages that bring it. */
  packages: string[];
  /** A file that is there only while the packages are installed, and tells them what not to do. */
  whileInstalling?: { path: string; text: string };
  /** The environment variable that names one that runs already. */
  urlVariable: string;
}

export const REDIS: Product = { binary: 'redis-server', packages: ['redis-server'], urlVariable: 'TEST_REDIS_URL' };

export const MARIADB: Product = {
  binary: 'mariadbd',
  folders: () => ['/usr/sbin'],
  // Not mariadb-server: these bring the same programs without a service, a user and a database of the machine's own.
  // The client is there for my_print_defaults, without which mariadb-install-db does nothing.
  packages: ['mariadb-server-core', 'mariadb-client-core'],
  urlVariable: 'TEST_MYSQL_URL',
};

/** Each version has a folder of its own, and Debian puts none of them into PATH. */
const POSTGRES_VERSIONS = '/usr/lib/postgresql';

export const POSTGRES: Product = {
  binary: 'postgres',
  folders: () =>
    entriesOf(POSTGRES_VERSIONS)
      .sort((one, other) => Number(other) - Number(one))
      .map((version) => join(POSTGRES_VERSIONS, version, 'bin')),
  packages: ['postgresql'],
  // Otherwise the package makes a database of the machine's own, which starts whenever the machine does.
  whileInstalling: {
    path: '/etc/postgresql-common/createcluster.d/doorbuster-tests.conf',
    text: 'create_main_cluster = false\n',
  },
  urlVariable: 'TEST_POSTGRES_URL',
};

/** All that the set-up of a test run provides. */
export const PRODUCTS: readonly Product[] = [REDIS, MARIADB, POSTGRES];

function entriesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

/** The path of a program, or null. */
export function programPath(binary: string, folders: readonly string[] = []): string | null {
  for (const folder of [...(process.env.PATH ?? '').split(delimiter), ...folders]) {
    if (folder === '') continue;
    const path = join(folder, binary);
    try {
      accessSync(path, constants.X_OK);
      if (statSync(path).isFile()) return path;
    } catch {
      // Not in this folder.
    }
  }
  return null;
}

export function binaryOf({ binary, folders }: Product): string | null {
  return programPath(binary, folders?.());
}

/** Why a missing product may not be installed by us, or null if it may. */
function whyNotInstalled({ urlVariable }: Product): string | null {
  if (process.env[urlVariable]) return `${urlVariable} names one that runs elsewhere`;
  if (process.env.DOORBUSTER_TEST_INSTALL === '0') return 'DOORBUSTER_TEST_INSTALL=0';
  if (programPath('apt-get', ['/usr/bin']) === null) return 'this system has no apt-get';
  if (process.getuid?.() !== 0) return 'we are not root';
  return null;
}

/** Why there is no such program here, as a whole sentence without its full stop; null if there is one. */
export function whyMissing(product: Product): string | null {
  if (binaryOf(product) !== null) return null;
  const why = whyNotInstalled(product);
  const missing = `${product.binary} is not on this machine`;
  return why === null ? missing : `${missing} and may not be installed: ${why}`;
}

/** Installs what is missing and may be installed. Returns why a product is still missing, by its binary's name. */
export function installMissing(products: readonly Product[], print: (line: string) => void): Record<string, string> {
  const wanted = products.filter((product) => binaryOf(product) === null && whyNotInstalled(product) === null);
  const failures = wanted.length === 0 ? new Map<Product, string>() : aptInstall(wanted, print);
  const missing: Record<string, string> = {};
  for (const product of products) {
    const why = whyMissing(product);
    if (why === null) continue;
    const failure = failures.get(product);
    missing[product.binary] = failure === undefined ? why : `${why} and could not be installed: ${failure}`;
  }
  return missing;
}

const POLICY = '/usr/sbin/policy-rc.d';
const APT_WITHIN_MS = 5 * 60_000;

/** Returns what went wrong, for those it went wrong with. */
function aptInstall(products: readonly Product[], print: (line: string) => void): Map<Product, string> {
  const failures = new Map<Product, string>();
  const names = products.flatMap(({ packages }) => packages).join(', ');
  print(`doorbuster tests: installing ${names} with apt-get (DOORBUSTER_TEST_INSTALL=0 skips it)`);
  // Old package lists may do: what counts is whether the install succeeds.
  const update = apt(['update']);
  // One by one: a release of Debian that does not know one of them still brings the others.
  for (const product of products) {
    const failure = aptInstallOne(product);
    if (failure === null) continue;
    failures.set(product, update === null ? failure : `${update}; ${failure}`);
    print(`doorbuster tests: no ${product.binary}: ${failures.get(product)}`);
  }
  return failures;
}

/** Null if all went well, the reason otherwise. */
function aptInstallOne({ packages, whileInstalling }: Product): string | null {
  const undo: (() => void)[] = [];
  try {
    // A package starts its service unless a policy says no. A policy that is there already is the machine's own.
    putMeanwhile(POLICY, '#!/bin/sh\nexit 101\n', 0o755, undo);
    if (whileInstalling) putMeanwhile(whileInstalling.path, whileInstalling.text, 0o644, undo);
    return apt(['install', '-y', '--no-install-recommends', ...packages]);
  } catch (error) {
    return String(error);
  } finally {
    for (const step of undo.reverse()) step();
  }
}

/** Writes a file that is not there yet; `undo` then removes it, and the folders that it needed. */
function putMeanwhile(path: string, text: string, mode: number, undo: (() => void)[]): void {
  const folder = dirname(path);
  const first = mkdirSync(folder, { recursive: true });
  undo.push(() => {
    // The package may have put something of its own beside it: those folders are no longer ours.
    for (let made = folder; first !== undefined && made.length >= first.length; made = dirname(made)) {
      if (entriesOf(made).length > 0) return;
      rmdirSync(made);
    }
  });
  try {
    writeFileSync(path, text, { mode, flag: 'wx' });
    undo.push(() => rmSync(path, { force: true }));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}

function apt(args: string[]): string | null {
  // Another run of the tests may be installing, too: wait for its lock.
  const { status, stderr, error } = spawnSync('apt-get', ['-qq', '-o', 'DPkg::Lock::Timeout=120', ...args], {
    // A run level of 1 keeps services from starting where no policy does.
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive', RUNLEVEL: '1' },
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: APT_WITHIN_MS,
    encoding: 'utf8',
  });
  if (status === 0) return null;
  const lines = (stderr ?? '').split('\n').filter((line) => line.startsWith('E:'));
  return `apt-get ${args[0]}: ${lines[0] ?? error?.message ?? `ended with ${status}`}`;
}
