import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync, realpathSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { ROOT, temporaryFolder } from '../support.ts';

function git(...args: string[]): string {
  return execFileSync('git', args, { cwd: ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

/** The full hash of a revision; fails with git's own message. */
export function commitOf(revision: string): string {
  return git('rev-parse', '--verify', '--quiet', '--end-of-options', `${revision}^{commit}`).trim();
}

/** A checkout of a commit in a temporary folder, with its dependencies. Removed when this process ends. */
export function checkOut(commit: string): string {
  const folder = join(temporaryFolder(), 'checkout');
  // Forget worktrees of killed runs, whose folders are gone.
  git('worktree', 'prune');
  process.on('exit', () => {
    try {
      git('worktree', 'remove', '--force', folder);
    } catch {
      // The folder is removed anyway, and the next run prunes.
    }
  });
  git('worktree', 'add', '--detach', '--quiet', folder, commit);
  if (lockFile(folder) === lockFile(ROOT)) {
    symlinkSync(realpathSync(join(ROOT, 'node_modules')), join(folder, 'node_modules'));
  } else {
    console.error(`${commit.slice(0, 7)} has other dependencies: npm install…`);
    const npm = ['install', '--no-audit', '--no-fund', '--loglevel=error'];
    execFileSync('npm', npm, { cwd: folder, stdio: ['ignore', 'ignore', 'inherit'] });
  }
  return folder;
}

function lockFile(folder: string): string {
  return readFileSync(join(folder, 'package-lock.json'), 'utf8');
}

/**
 * Gives a checkout the adaptor of a part if it has none: the first version that was ever committed, because that is nearest to
 * a commit from before it; without history, the work tree's.
 */
export function provideAdaptor(checkout: string, part: string): void {
  const path = `bench/compare/adaptors/${part}.ts`;
  const file = join(checkout, path);
  if (existsSync(file)) return;
  mkdirSync(dirname(file), { recursive: true });
  const first = git('log', '--diff-filter=A', '--format=%H', 'HEAD', '--', path).trim().split('\n').at(-1)!;
  if (first === '') copyFileSync(join(ROOT, path), file);
  else writeFileSync(file, git('show', `${first}:${path}`));
}
