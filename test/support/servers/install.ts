import { spawnSync } from 'node:child_process';
import { accessSync, constants, rmSync, statSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';

/** A server that tests run for real. A further one needs a line here, a file beside redis.ts, and its describeWith… */
export interface Product {
  /** The name of its program, and its name in messages. */
  binary: string;
  /** Where its package puts the program if not into PATH. */
  folders?: string[];
  /** Debian packages that bring it. */
  packages: string[];
  /** The environment variable that names one that runs already. */
  urlVariable: string;
}

export const REDIS: Product = { binary: 'redis-server', packages: ['redis-server'], urlVariable: 'TEST_REDIS_URL' };

/** All that the set-up of a test run provides. */
export const PRODUCTS: readonly Product[] = [REDIS];

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
  return programPath(binary, folders);
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
  let failure: string | null = null;
  if (wanted.length > 0) {
    const packages = wanted.flatMap((product) => product.packages);
    print(`doorbuster tests: installing ${packages.join(', ')} with apt-get (DOORBUSTER_TEST_INSTALL=0 skips it)`);
    failure = aptInstall(packages);
    if (failure !== null) print(`doorbuster tests: that failed: ${failure}`);
  }
  const missing: Record<string, string> = {};
  for (const product of products) {
    const why = whyMissing(product);
    if (why === null) continue;
    const failed = failure !== null && wanted.includes(product);
    missing[product.binary] = failed ? `${why} and could not be installed: ${failure}` : why;
  }
  return missing;
}

const POLICY = '/usr/sbin/policy-rc.d';
const APT_WITHIN_MS = 5 * 60_000;

/** Null if all went well, the reason otherwise. */
function aptInstall(packages: string[]): string | null {
  // A package starts its service unless a policy says no. A policy that is there already is the machine's own.
  let ours = false;
  try {
    writeFileSync(POLICY, '#!/bin/sh\nexit 101\n', { mode: 0o755, flag: 'wx' });
    ours = true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') return String(error);
  }
  try {
    // Old package lists may do: what counts is whether the install succeeds.
    const update = apt(['update']);
    const install = apt(['install', '-y', '--no-install-recommends', ...packages]);
    return install === null || update === null ? install : `${update}; ${install}`;
  } finally {
    if (ours) rmSync(POLICY, { force: true });
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
