import { execFileSync, spawn } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, delimiter, dirname, join } from 'node:path';
import { ROOT, temporaryFolder, track } from './server.ts';

/** The package as users get it: packed, and installed in an empty folder. */

const OWN_PATH = (process.env.PATH ?? '').split(delimiter).filter((entry) => !entry.includes('node_modules'));

/** An installed Node that is too old for us; null if there is none. */
export const OLD_NODE = ((): string | null => {
  for (const folder of OWN_PATH) {
    const node = join(folder, 'node');
    if (!existsSync(node)) continue;
    const version = execFileSync(node, ['--version'], { encoding: 'utf8' });
    if (Number(/^v(\d+)/.exec(version)?.[1]) < 24) return node;
  }
  return null;
})();

/** The environment of a shell outside of this clone and of npm, with `node` first in its PATH. */
function environment(node: string): Record<string, string> {
  const kept = Object.entries(process.env).filter(([name]) => !/^(npm_|INIT_CWD$|PATH$)/i.test(name));
  return {
    ...(Object.fromEntries(kept) as Record<string, string>),
    PATH: [dirname(node), ...OWN_PATH].join(delimiter),
    npm_config_loglevel: 'error',
    npm_config_audit: 'false',
    npm_config_fund: 'false',
    npm_config_update_notifier: 'false',
  };
}

export interface Ran {
  code: number | null;
  stdout: string;
  /** stdout and stderr together, in the order of arrival. */
  output: string;
}

export async function execute(
  command: string,
  args: string[],
  { cwd, node = process.execPath, env = {} }: { cwd: string; node?: string; env?: Record<string, string> },
): Promise<Ran> {
  const child = spawn(command, args, {
    cwd,
    env: { ...environment(node), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  track(child);
  const ran: Ran = { code: null, stdout: '', output: '' };
  child.stdout.on('data', (chunk: Buffer) => {
    ran.stdout += chunk;
    ran.output += chunk;
  });
  child.stderr.on('data', (chunk: Buffer) => {
    ran.output += chunk;
  });
  ran.code = await new Promise<number | null>((resolve) => child.on('close', resolve));
  return ran;
}

/** Like `execute`, but fails unless the exit code is 0; returns what was printed. */
export async function succeed(...call: Parameters<typeof execute>): Promise<string> {
  const { code, stdout, output } = await execute(...call);
  if (code !== 0) throw new Error(`${call[0]} ${call[1].join(' ')} ended with ${code}: ${output}`);
  return stdout;
}

/** Our files as Git has them, without anything installed or built. Leaves the tests out, to be fast. */
export function freshClone(): string {
  const folder = join(temporaryFolder(), 'doorbuster');
  const left = ['.git', 'node_modules', 'dist', 'data', 'test', 'bench'];
  const filter = (path: string): boolean => !left.includes(basename(path)) && !/\.tgz$|\/\.dist-/.test(path);
  cpSync(ROOT, folder, { recursive: true, filter });
  return folder;
}

export interface Installed {
  /** A user's project, with the package in its node_modules. */
  folder: string;
  /** The package and all its dependencies. */
  packages: number;
  megabytes: number;
}

/** Unpacks a tarball like npm, but offline: with links to the dependencies that it names. */
export async function unpacked(tarball: string): Promise<Installed> {
  const folder = emptyProject();
  const modules = join(folder, 'node_modules');
  mkdirSync(join(modules, '.bin'), { recursive: true });
  await succeed('tar', ['xzf', tarball, '-C', modules], { cwd: folder });
  const { name, dependencies, bin } = JSON.parse(readFileSync(join(modules, 'package', 'package.json'), 'utf8')) as {
    name: string;
    dependencies: Record<string, string>;
    bin?: Record<string, string>;
  };
  cpSync(join(modules, 'package'), join(modules, name), { recursive: true });
  for (const dependency of Object.keys(dependencies)) {
    mkdirSync(dirname(join(modules, dependency)), { recursive: true });
    symlinkSync(join(ROOT, 'node_modules', dependency), join(modules, dependency));
  }
  for (const [command, file] of Object.entries(bin ?? {}))
    symlinkSync(join('..', name, file), join(modules, '.bin', command));
  return { folder, packages: 0, megabytes: 0 };
}

/** Runs `npm install` for a tarball, a folder or an address, with the machine's Node. */
export async function installed(...what: string[]): Promise<Installed> {
  const folder = emptyProject();
  await succeed('npm', ['install', ...what], { cwd: folder, ...(OLD_NODE !== null && { node: OLD_NODE }) });
  const lock = JSON.parse(readFileSync(join(folder, 'package-lock.json'), 'utf8')) as { packages: object };
  const bytes = bytesOf(join(folder, 'node_modules'));
  // Without the project itself ('') and packages for other platforms, which are listed but not installed.
  const packages = Object.keys(lock.packages).filter((path) => path !== '' && existsSync(join(folder, path))).length;
  return { folder, packages, megabytes: Math.round((bytes / 2 ** 20) * 10) / 10 };
}

export function emptyProject(): string {
  const folder = temporaryFolder();
  writeFileSync(join(folder, 'package.json'), '{ "name": "stranger", "private": true, "type": "module" }');
  return folder;
}

/** Size on disk, as du counts it. */
function bytesOf(folder: string): number {
  let bytes = 0;
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    bytes += statSync(join(entry.parentPath, entry.name)).blocks * 512;
  }
  return bytes;
}
