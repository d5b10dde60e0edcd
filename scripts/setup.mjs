// Sets up a fresh clone: installs if node_modules is missing or older than the lock file.
// Runs with the machine's Node (20 or newer); everything after it runs with the Node 24 that it installs.
import { spawnSync } from 'node:child_process';
import { existsSync, lstatSync, statSync, symlinkSync, utimesSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const lock = join(root, 'package-lock.json');
// npm writes this file at the end of every install, so its age is that of the install.
const installed = join(root, 'node_modules', '.package-lock.json');

// An install without the development packages (--omit=dev) lacks Node 24 and the compiler.
const whole = existsSync(installed) && existsSync(join(root, 'node_modules', '.bin', 'tsc'));

if (!whole || statSync(installed).mtimeMs < statSync(lock).mtimeMs) {
  console.error('doorbuster: installing dependencies (once)…');
  // npm install, not npm ci: npm ci refuses a lock file that lacks other platforms' optional binaries.
  // The last three override settings inherited from an outer npm (npm pack --dry-run, npm install -g --omit=dev).
  const flags = ['--no-audit', '--no-fund', '--loglevel=error', '--include=dev', '--no-dry-run', '--no-global'];
  const npm = spawnSync('npm', ['install', ...flags], {
    cwd: root,
    stdio: ['ignore', 'ignore', 'inherit'],
    shell: process.platform === 'win32',
  });
  if (npm.status !== 0) {
    console.error('doorbuster: npm install failed; see the lines above.');
    process.exit(1);
  }
  // npm does not touch the file if nothing changed; without this, every start would install again.
  const now = new Date();
  if (existsSync(installed)) utimesSync(installed, now, now);
}

// For `npx doorbuster` in a clone: npm does not link a package into its own node_modules.
const link = join(root, 'node_modules', '.bin', 'doorbuster');
if (process.platform !== 'win32' && !lstatSync(link, { throwIfNoEntry: false })) {
  symlinkSync('../../bin/doorbuster.js', link);
}
