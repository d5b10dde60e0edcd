// Builds dist when this clone is used as a package: npm pack, npm install <folder>, npm install <Git address>, npm link.
// npm runs it as `prepare` (the last three) and as `prepack` (npm pack and publish; other package managers, from Git).
import { spawnSync } from 'node:child_process';
import { existsSync, realpathSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const { npm_command: command, INIT_CWD: startedIn } = process.env;

// Nothing to build for `npm install` in the clone itself or `npx doorbuster` there: it runs the sources, and packing it runs
// this again. This also keeps setup.mjs, which runs npm install, from being called by its own npm.
const installsItself =
  ['install', 'ci', 'exec'].includes(command) && startedIn && realpathSync(startedIn) === realpathSync(root);
if (installsItself) process.exit(0);

const run = (script, ...args) => {
  const { status } = spawnSync(process.execPath, [join(root, 'scripts', script), ...args], {
    cwd: root,
    stdio: ['ignore', 2, 2],
  });
  if (status !== 0) process.exit(status ?? 1);
};
// A fresh clone has no compiler yet.
if (!existsSync(join(root, 'node_modules', '.bin', 'tsc'))) run('setup.mjs');
run('build.mjs', '--if-stale');
