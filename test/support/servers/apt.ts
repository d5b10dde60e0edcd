import { spawnSync } from 'node:child_process';
import { mkdirSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Source } from './install.ts';
import { entriesOf, programPath } from './program.ts';

/** Debian packages. */
export interface AptPackages {
  packages: string[];
  /** A file that exists only during the installation, and configures it. */
  whileInstalling?: { path: string; text: string };
}

export function fromApt({ packages, whileInstalling }: AptPackages): Source {
  return {
    words: `${packages.join(', ')} with apt-get`,
    whyNot: whyNoApt,
    install: () => {
      // Old package lists may be enough: only the install must succeed.
      updated ??= { failure: apt(['update']) };
      const failure = installOne(packages, whileInstalling);
      if (failure === null) return null;
      return updated.failure === null ? failure : `${updated.failure}; ${failure}`;
    },
  };
}

export function whyNoApt(): string | null {
  if (programPath('apt-get', ['/usr/bin']) === null) return 'this system has no apt-get';
  if (process.getuid?.() !== 0) return 'we are not root';
  return null;
}

/** Package lists are updated once per run. */
let updated: { failure: string | null } | null = null;

const POLICY = '/usr/sbin/policy-rc.d';
const APT_WITHIN_MS = 5 * 60_000;

/** Null if all went well, the reason otherwise. */
function installOne(packages: string[], whileInstalling: AptPackages['whileInstalling']): string | null {
  const undo: (() => void)[] = [];
  try {
    // A package starts its service unless a policy forbids it. An existing policy belongs to the machine.
    putMeanwhile(POLICY, '#!/bin/sh\nexit 101\n', 0o755, undo);
    if (whileInstalling) putMeanwhile(whileInstalling.path, whileInstalling.text, 0o644, undo);
    return apt(['install', '-y', '--no-install-recommends', ...packages]);
  } catch (error) {
    return String(error);
  } finally {
    for (const step of undo.reverse()) step();
  }
}

/** Writes a file that does not exist yet; `undo` removes it and the folders created for it. */
function putMeanwhile(path: string, text: string, mode: number, undo: (() => void)[]): void {
  const folder = dirname(path);
  const first = mkdirSync(folder, { recursive: true });
  undo.push(() => {
    // The package may have added files of its own: keep such folders.
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
    // Run level 1 also keeps services from starting.
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive', RUNLEVEL: '1' },
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: APT_WITHIN_MS,
    encoding: 'utf8',
  });
  if (status === 0) return null;
  const lines = (stderr ?? '').split('\n').filter((line) => line.startsWith('E:'));
  return `apt-get ${args[0]}: ${lines[0] ?? error?.message ?? `ended with ${status}`}`;
}
