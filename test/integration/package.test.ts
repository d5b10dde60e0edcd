import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { basename, dirname, join, relative, sep } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { execute, freshClone, type Installed, installed, OLD_NODE, succeed, unpacked } from '../support/package.ts';
import { ADMIN_KEY, AUTH_SECRET, cleanUp, ROOT, temporaryFolder, track } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startRedis } from '../support/servers/redis.ts';

/**
 * The tarballs of `npm pack`, used as by a new user: the library, the locks alone, the server. Here they are unpacked
 * beside our own node_modules; with DOORBUSTER_TEST_LONG npm installs them, from tarballs, a folder and Git, into empty folders.
 */

const LONG_MS = 600_000;

let packs: string;
/** A clone without dist, with everything needed to build it. */
let clone: string;
let builtByInstall: boolean;
let shop: { tarball: string; files: string[] };
let locks: { tarball: string };

beforeAll(async () => {
  packs = temporaryFolder();
  clone = freshClone();
  symlinkSync(join(ROOT, 'node_modules'), join(clone, 'node_modules'));
  // As npm calls it at the end of `npm install` in a clone, with which `npm start` and `npm test` begin.
  const itself = { npm_command: 'install', INIT_CWD: clone };
  await succeed(process.execPath, ['scripts/prepare.mjs'], { cwd: clone, env: itself });
  builtByInstall = existsSync(join(clone, 'dist'));
  const json = await succeed('npm', ['pack', '--json', '--pack-destination', packs], { cwd: clone });
  const [packed] = JSON.parse(json.slice(json.indexOf('['))) as { filename: string; files: { path: string }[] }[];
  shop = { tarball: join(packs, packed!.filename), files: packed!.files.map(({ path }) => path) };
  const name = await succeed(process.execPath, [join(clone, 'scripts', 'pack-locks.mjs'), packs], { cwd: clone });
  locks = { tarball: join(packs, name.trim()) };
}, 120_000);

afterAll(async () => {
  await cleanUp();
  await cleanUpServers();
}, 120_000);

const SELL = `
import { createDoorbuster } from 'doorbuster';
import 'doorbuster/fastify';
import { createLocks } from 'doorbuster/locks';
import { createServer } from 'node:http';
const shop = await createDoorbuster({ data: './data', adminKey: 'a-key-of-the-admin', authSecret: 'a-secret-of-at-least-32-characters' });
const made = await shop.sales.create({ name: 'One', opensAt: 0, closesAt: Date.now() + 60000,
  items: [{ code: 'unit', name: 'Unit', price: { amount: 100, currency: 'CNY' }, stock: 1 }] });
const first = await shop.orders.place({ sale: made.sale.id, buyer: 'alice', item: 'unit' });
const second = await shop.orders.place({ sale: made.sale.id, buyer: 'bob', item: 'unit' });
const all = await shop.orders.list({ saleId: made.sale.id });
const server = createServer(shop.handler()).listen(0, '127.0.0.1');
await new Promise((resolve) => server.once('listening', resolve));
const page = await fetch('http://127.0.0.1:' + server.address().port + '/');
const api = await fetch('http://127.0.0.1:' + server.address().port + '/openapi.json');
server.close(); server.closeAllConnections();
await shop.close();
const locks = createLocks();
const token = await locks.mutex('one').run(({ token }) => typeof token);
await locks.close();
console.log([first.ok, second.code, all.data.length, page.status, api.status, token].join(' '));
`;

const LOCK = `
import { createLocks, observeLocks, TerminalError } from 'doorbuster-locks';
const wanting = (call) => { try { call(); } catch (error) { return error instanceof TerminalError && error.message; } };
const locks = createLocks(process.env.REDIS_URL ? { redis: process.env.REDIS_URL } : {});
console.log(await locks.mutex('one').run(({ token }) => typeof token));
console.log(await locks.readWrite('two').write.run(() => 'written'));
console.log(wanting(() => observeLocks(locks)));
console.log(wanting(() => locks.schedule('report', '0 3 * * *', () => undefined)));
await locks.close();
`;

/** Runs a program in the project. */
function program({ folder }: Installed, source: string, node = process.execPath, env = {}) {
  writeFileSync(join(folder, 'program.js'), source);
  return execute(node, ['program.js'], { cwd: folder, node, env });
}

/** The three ways to use an installed package, on Node 24 and on an older one. */
async function usable(there: Installed): Promise<void> {
  const sold = await program(there, SELL);
  expect([sold.code, sold.output.trim()]).toEqual([0, 'true sold_out 1 200 200 bigint']);
  expect(await served(there)).toEqual({ status: 200, code: 0 });
}

/** Starts `doorbuster serve` by its bin, checks its health, and stops it. */
async function served({ folder }: Installed): Promise<{ status: number; code: number }> {
  const bin = join('node_modules', '.bin', 'doorbuster');
  const child = spawn(process.execPath, [bin, 'serve', '--port', '0', '--data', 'data-of-serve'], {
    cwd: folder,
    env: { ...process.env, DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET, LOG_LEVEL: 'warn' },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  track(child);
  const exit = once(child, 'exit');
  let output = '';
  const url = await new Promise<string>((resolve, reject) => {
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (chunk: Buffer) => {
        output += chunk;
        const found = /http:\/\/127\.0\.0\.1:\d+/.exec(output);
        if (found) resolve(found[0]);
      });
    }
    void exit.then(([code]) => reject(new Error(`the server ended with ${code}: ${output}`)));
  });
  // On a busy machine its event loop may be late for a moment after the start.
  const status = await until('it is ready', 10_000, async () => {
    const { status } = await fetch(`${url}/readyz`);
    return status === 200 ? status : false;
  });
  child.kill('SIGTERM');
  const [code] = (await exit) as [number];
  return { status, code };
}

async function refusedByOldNode(there: Installed, imports: string[]): Promise<void> {
  const words = new RegExp(`^${imports[0]} needs Node 24 or newer; this is v\\d+\\.\\d+\\.\\d+`);
  const tries = imports.map(
    (name) => `await import(${JSON.stringify(name)}).catch(({ message }) => console.log(message));`,
  );
  const { stdout } = await program(there, tries.join('\n'), OLD_NODE!);
  expect(stdout.trim().split('\n')).toEqual(imports.map(() => expect.stringMatching(words)));
  const bin = join('node_modules', '.bin', 'doorbuster');
  if (!existsSync(join(there.folder, bin))) return;
  const { code, output } = await execute(OLD_NODE!, [bin, 'serve'], { cwd: there.folder });
  expect([code, output]).toEqual([1, expect.stringMatching(words)]);
}

const ENTRIES = ['doorbuster', 'doorbuster/fastify', 'doorbuster/locks'];

/** Relative links of the pages in `folder` that lead nowhere in it. */
function brokenLinks(folder: string): string[] {
  const pages = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.md'));
  return pages.flatMap((page) => {
    const text = readFileSync(join(folder, page), 'utf8').replace(/^```.*?^```$/gms, '');
    return [...text.matchAll(/\]\(([^)\s#]+)(?:#[^)\s]*)?\)/g)]
      .map(([, target]) => target!)
      .filter((target) => !/^[a-z]+:/.test(target) && !existsSync(join(folder, dirname(page), target)))
      .map((target) => `${page}: ${target}`);
  });
}

it('npm install in a clone builds nothing: it runs from its sources', () => {
  expect(builtByInstall).toBe(false);
});

describe('npm pack in a clone that has never been built', () => {
  it('packs all that the package needs, and nothing else', () => {
    const allowed = [
      /^package\.json$/,
      /^LICENSE$/,
      /^(README(\.zh-CN)?|CHANGELOG|CONTRIBUTING)\.md$/,
      /^bin\/doorbuster\.js$/,
      /^dist\/.+\.(js|d\.ts|sql|lua|html|css)$/,
      /^dist\/social\/accounts\/common-passwords\.txt$/,
      /^docs\/.+\.(md|png)$/,
      /^examples\/.+\.(md|ts)$/,
      /^ops\/compose\.yml$/,
    ];
    expect(shop.files.filter((file) => !allowed.some((pattern) => pattern.test(file)))).toEqual([]);
    const sources = readdirSync(join(clone, 'src'), { recursive: true, withFileTypes: true }).filter((one) =>
      one.isFile(),
    );
    const needed = ['README.md', 'LICENSE', 'bin/doorbuster.js', 'docs/guides/locks.md'].concat(
      sources.flatMap(({ parentPath, name }) => {
        const built = join('dist', relative(join(clone, 'src'), parentPath), name).replaceAll(sep, '/');
        return name.endsWith('.ts') ? [built.replace(/ts$/, 'js'), built.replace(/ts$/, 'd.ts')] : built;
      }),
    );
    expect(needed.filter((file) => !shop.files.includes(file))).toEqual([]);
  });

  it('packs what its pages link to', async () => {
    for (const { tarball } of [shop, locks]) {
      const folder = temporaryFolder();
      await succeed('tar', ['xzf', tarball, '-C', folder], { cwd: folder });
      expect(brokenLinks(folder)).toEqual([]);
    }
  });
});

describe('the package', () => {
  let there: Installed;
  beforeAll(async () => {
    there = await unpacked(shop.tarball);
  });

  it('sells as a library, and serves', async () => {
    await usable(there);
  });

  it.skipIf(OLD_NODE === null)('says on an older Node which one it needs', async () => {
    await refusedByOldNode(there, ENTRIES);
  });
});

describeWithRedis('the locks as a package of their own', () => {
  let there: Installed;
  beforeAll(async () => {
    there = await unpacked(locks.tarball);
  });

  it('depends on ioredis alone', () => {
    const file = join(there.folder, 'node_modules', 'doorbuster-locks', 'package.json');
    const { name, dependencies, exports } = JSON.parse(readFileSync(file, 'utf8'));
    expect([name, Object.keys(dependencies), Object.keys(exports)]).toEqual([
      'doorbuster-locks',
      ['ioredis'],
      ['.', './package.json'],
    ]);
  });

  it('lock in the process and on Redis, and name the packages that metrics and schedules need', async () => {
    const { url } = await startRedis();
    for (const env of [{}, { REDIS_URL: url }]) {
      const { code, output } = await program(there, LOCK, process.execPath, env);
      expect([code, output.trim().split('\n')]).toEqual([
        0,
        [
          'bigint',
          'written',
          'observeLocks needs the package prom-client: npm install prom-client',
          'schedule needs the package croner: npm install croner',
        ],
      ]);
    }
  });

  it.skipIf(OLD_NODE === null)('say on an older Node which one they need', async () => {
    await refusedByOldNode(there, ['doorbuster-locks']);
  });

  it.runIf(LONG)('have types that need no other package', async () => {
    const { folder } = there;
    mkdirSync(join(folder, 'node_modules', '@types'), { recursive: true });
    symlinkSync(join(ROOT, 'node_modules', '@types', 'node'), join(folder, 'node_modules', '@types', 'node'));
    writeFileSync(
      join(folder, 'program.ts'),
      `import { createLocks, expressIdempotency, fastifyIdempotency, observeLocks, type Grant } from 'doorbuster-locks';
const locks = createLocks({ log: console, lease: 1000 });
const token: bigint = await locks.mutex('one').run(async (grant: Grant) => grant.token);
// @ts-expect-error: there is no such option
createLocks({ leese: 1000 });
export { expressIdempotency, fastifyIdempotency, observeLocks, token };
`,
    );
    const options = { module: 'nodenext', target: 'es2024', strict: true, noEmit: true, types: ['node'] };
    const compilerOptions = { ...options, lib: ['es2024', 'esnext.disposable'], skipLibCheck: false };
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['program.ts'] }));
    const { output } = await execute(join(ROOT, 'node_modules', '.bin', 'tsc'), [], { cwd: folder });
    expect(output.split('\n').filter((line) => !line.includes('/ioredis/'))).toEqual(['']);
  });
});

describe.runIf(LONG)('installed by npm into an empty folder (only with DOORBUSTER_TEST_LONG)', () => {
  it('publint finds nothing in the tarballs', { timeout: LONG_MS }, async () => {
    for (const { tarball } of [shop, locks]) {
      await succeed(join(ROOT, 'node_modules', '.bin', 'publint'), ['--strict', tarball], { cwd: packs });
    }
  });

  it('the tarball', { timeout: LONG_MS }, async () => {
    const there = await installed(shop.tarball);
    console.log(`doorbuster: ${there.packages} packages, ${there.megabytes} MB`);
    await usable(there);
    if (OLD_NODE !== null) await refusedByOldNode(there, ENTRIES);
  });

  it('the tarball of the locks: as few packages as redis-semaphore', { timeout: LONG_MS }, async () => {
    const [ours, theirs] = [await installed(locks.tarball), await installed('redis-semaphore@5.8.0', 'ioredis@6.0.0')];
    console.log(`doorbuster-locks: ${ours.packages} packages, ${ours.megabytes} MB`);
    console.log(`redis-semaphore with ioredis: ${theirs.packages} packages, ${theirs.megabytes} MB`);
    expect(ours.packages).toBeLessThanOrEqual(theirs.packages);
    expect(ours.megabytes).toBeLessThan(5);
    const { code, output } = await program(ours, LOCK);
    expect([code, output]).toEqual([0, expect.stringContaining('bigint\nwritten\n')]);
    if (OLD_NODE !== null) await refusedByOldNode(ours, ['doorbuster-locks']);
  });

  it('npm pack in a clone without node_modules', { timeout: LONG_MS }, async () => {
    const fresh = freshClone();
    const node = OLD_NODE === null ? {} : { node: OLD_NODE };
    await succeed('npm', ['pack', '--pack-destination', fresh], { cwd: fresh, ...node });
    const { folder } = await unpacked(join(fresh, basename(shop.tarball)));
    expect(existsSync(join(folder, 'node_modules', 'doorbuster', 'dist', 'index.js'))).toBe(true);
  });

  it('the folder of a clone without node_modules', { timeout: LONG_MS }, async () => {
    await usable(await installed(freshClone()));
  });

  it('the Git address of a clone', { timeout: LONG_MS }, async () => {
    const fresh = freshClone();
    const git = (...args: string[]) =>
      succeed('git', ['-c', 'user.name=a', '-c', 'user.email=a@example.com', ...args], { cwd: fresh });
    await git('init', '--quiet');
    await git('add', '.');
    await git('commit', '--quiet', '--message', 'all');
    await usable(await installed(`git+file://${fresh}`));
  });
});
