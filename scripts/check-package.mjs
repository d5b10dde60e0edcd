// Packs the package as it would be published and uses it as a stranger would: what is in it, is it sound, does it sell?
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const run = (command, args, cwd) =>
  execFileSync(command, args, {
    cwd,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
    shell: process.platform === 'win32',
  });
const fail = (message) => {
  console.error(`package check: ${message}`);
  process.exit(1);
};

const folder = mkdtempSync(join(tmpdir(), 'doorbuster-package-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));

const [packed] = JSON.parse(run('npm', ['pack', '--json', '--loglevel=error', '--pack-destination', folder], root));
const files = packed.files.map(({ path }) => path);
const allowed = [
  /^package\.json$/,
  /^LICENSE$/,
  /^(README(\.zh-CN)?|CHANGELOG)\.md$/,
  /^bin\/doorbuster\.js$/,
  /^dist\/.+\.(js|d\.ts|sql|lua|html|css)$/,
];
const superfluous = files.filter((file) => !allowed.some((pattern) => pattern.test(file)));
if (superfluous.length > 0) fail(`superfluous: ${superfluous.join(', ')}`);
const needed = [
  'dist/index.js',
  'dist/index.d.ts',
  'dist/fastify.js',
  'dist/locks/index.js',
  'dist/locks/index.d.ts',
  'dist/locks/redis/lua/mutex-serve.lua',
  'dist/cli/main.js',
  'dist/ledger/sqlite/migrations/0001_ledger.sql',
  'dist/ledger/mysql/migrations/0001_ledger.sql',
  'dist/ledger/postgres/migrations/0001_ledger.sql',
  'dist/ledger/sqlite/reader-thread.js',
  'dist/http/pages/board.html',
  'dist/http/pages/board.js',
  'README.md',
  'LICENSE',
];
const missing = needed.filter((file) => !files.includes(file));
if (missing.length > 0) fail(`missing: ${missing.join(', ')}`);
console.log(`package check: ${files.length} files, ${Math.round(packed.size / 1024)} KiB packed`);

const tarball = join(folder, packed.filename);
run('publint', ['--strict', tarball], root);

writeFileSync(join(folder, 'package.json'), '{ "name": "stranger", "private": true, "type": "module" }');
run('npm', ['install', '--no-audit', '--no-fund', '--loglevel=error', tarball], folder);
writeFileSync(
  join(folder, 'sell.js'),
  `import { createDoorbuster } from 'doorbuster';
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
`,
);
const sold = run(process.execPath, ['sell.js'], folder).trim();
if (sold !== 'true sold_out 1 200 200 bigint') fail(`the installed package did not sell as it should: ${sold}`);
const version = run(process.execPath, ['node_modules/doorbuster/bin/doorbuster.js', '--version'], folder).trim();
console.log(`package check: installed into an empty folder, doorbuster ${version} sold its one unit once`);
