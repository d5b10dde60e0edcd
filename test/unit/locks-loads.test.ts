import { execFileSync } from 'node:child_process';
import { join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));

/** Runs `code` in a process of its own: the packages, and the files of ours, that it loads. */
function loadedBy(code: string): { packages: string[]; files: string[] } {
  const script = `
    import { registerHooks } from 'node:module';
    const loaded = [];
    registerHooks({ load: (url, context, next) => { loaded.push(url); return next(url, context); } });
    ${code}
    console.log(JSON.stringify(loaded));`;
  const output = execFileSync(process.execPath, ['--input-type=module', '-e', script], { cwd: ROOT, encoding: 'utf8' });
  const urls = (JSON.parse(output) as string[]).filter((url) => url.startsWith('file:'));
  const packages = urls.map((url) => /.*\/node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(url)?.[1]).filter((name) => name);
  const files = urls
    .filter((url) => !url.includes('/node_modules/'))
    .map((url) => relative(ROOT, fileURLToPath(url)).split(sep).join('/'));
  return { packages: [...new Set(packages as string[])].sort(), files: [...new Set(files)].sort() };
}

const MODULE = JSON.stringify(join(ROOT, 'src', 'locks', 'index.ts'));
const IOREDIS = [
  '@ioredis/commands',
  'cluster-key-slot',
  'debug',
  'denque',
  'ioredis',
  'ms',
  'redis-errors',
  'standard-as-callback',
];
const BASE = [
  'src/base/anchor.ts',
  'src/base/bounded-log.ts',
  'src/base/clock.ts',
  'src/base/errors.ts',
  'src/base/idempotency.ts',
  'src/base/logger.ts',
  'src/base/node-version.ts',
  'src/base/random.ts',
  'src/base/redis/address.ts',
  'src/base/redis/link.ts',
  'src/base/redis/scripts.ts',
  'src/base/redis/sent-script.ts',
  'src/base/redis/spin-wait.ts',
  'src/base/redis/under-way.ts',
  'src/base/runtime.ts',
  'src/base/seldom.ts',
  'src/base/timers.ts',
];

it('doorbuster/locks loads ioredis and nothing that only the shop needs', () => {
  const { packages, files } = loadedBy(`
    const { createLocks } = await import(${MODULE});
    const locks = createLocks();
    await locks.mutex('one').run(() => undefined);
    await locks.close();`);
  expect(packages).toEqual(IOREDIS);
  expect(files.filter((file) => !file.startsWith('src/locks/'))).toEqual(BASE);
});

it('croner and prom-client are loaded by whoever calls schedule and observeLocks', () => {
  const { packages } = loadedBy(`
    const { createLocks, observeLocks } = await import(${MODULE});
    const locks = createLocks();
    observeLocks(locks);
    locks.schedule('report', '0 3 * * *', () => undefined);
    await locks.close();`);
  expect(packages).toEqual(expect.arrayContaining([...IOREDIS, 'croner', 'prom-client']));
});
