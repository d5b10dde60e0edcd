import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../../src/base/errors.ts';
import { ROOT, temporaryFolder } from './server.ts';

/**
 * The version before: the last commit that knows no seats, with schema 5. Whoever raises a number (docs/internals/formats.md)
 * puts the commit before that change here, so that the two are met side by side. DOORBUSTER_TEST_FORMER names another one.
 */
export const FORMER = process.env.DOORBUSTER_TEST_FORMER ?? 'd0df991bdaa7080d0f81e742ac601e4ccf9b65e4';

/** Why the version before cannot be had here, or null. */
export function whyNoFormer(): string | null {
  try {
    git('cat-file', '-e', `${FORMER}^{commit}`);
    return null;
  } catch (error) {
    const said = messageOf(error).trim().split('\n').at(-1);
    return `commit ${FORMER} is needed, and this is no git clone with its history (${said}); in a shallow clone: git fetch --unshallow`;
  }
}

/** Puts the version before into a folder of its own, on the packages of this one. Returns its command line. */
export function checkOutFormer(): string {
  const folder = temporaryFolder();
  const tar = join(folder, 'former.tar');
  const root = join(folder, 'former');
  mkdirSync(root);
  git('archive', '--format=tar', '-o', tar, FORMER);
  execFileSync('tar', ['-xf', tar, '-C', root]);
  rmSync(tar);
  symlinkSync(join(ROOT, 'node_modules'), join(root, 'node_modules'));
  return join(root, 'bin', 'doorbuster.js');
}

function git(...args: string[]): void {
  execFileSync('git', ['-C', ROOT, ...args], { stdio: ['ignore', 'ignore', 'pipe'], encoding: 'utf8' });
}
