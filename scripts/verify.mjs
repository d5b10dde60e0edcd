// Runs every check that a change must pass: format, lint, types, tests, build, package.
import { spawnSync } from 'node:child_process';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const steps = [
  ['set-up', 'node', ['scripts/setup.mjs']],
  ['format and lint', 'npm', ['run', '--silent', 'lint']],
  ['types', 'npm', ['run', '--silent', 'types']],
  ['tests', 'npm', ['test', '--silent']],
  ['build', 'npm', ['run', '--silent', 'build']],
  ['package', 'npm', ['run', '--silent', 'test:package']],
];
for (const [name, command, args] of steps) {
  console.log(`\n── ${name}`);
  const { status } = spawnSync(command, args, { cwd: root, stdio: 'inherit', shell: process.platform === 'win32' });
  if (status !== 0) {
    console.error(`verify: ${name} failed`);
    process.exit(1);
  }
}
console.log('\nverify: all good');
