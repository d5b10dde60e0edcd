import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Block } from './pages.ts';

/**
 * The `js`, `ts` and `sql` blocks of the pages, by name, with the code that a reader would have around them. They run one after
 * the other in one process, in a folder where `doorbuster` is this tree.
 */
export interface Program {
  /** The servers that they need. */
  needs?: 'redis' | 'redis and postgres';
  /** Code before the block, in the same module. */
  before?: string;
  after?: string;
  /** Placeholders in the block, and their values. */
  fill?: Record<string, string>;
}

const SALE = `{ name: 'Sale', opensAt: new Date(), closesAt: new Date(Date.now() + 3600_000), perBuyer: 100,
  items: [{ code: 'voucher-100', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: 100 }] }`;

/** Creates a shop in ./data with an order, and closes it, because the block opens its own. */
const AN_ORDER = `
import { createDoorbuster as create } from 'doorbuster';
const earlier = await create({ data: './data' });
const made = await earlier.sales.create(${SALE});
const { order } = await earlier.orders.place({ sale: made.sale.id, buyer: 'alice', item: 'voucher-100', quantity: 1 });
await earlier.close();
`;

const A_SHOP = `
import { createDoorbuster as create } from 'doorbuster';
const shop = await create({ data: './data', adminKey: 'admin-key', authSecret: 'a-secret-of-at-least-thirty-two-bytes' });
const made = await shop.sales.create(${SALE});
const order = { sale: made.sale.id, buyer: 'alice', item: 'voucher-100', quantity: 1, key: 'click-1' };
`;

const SERVED = `
import { once } from 'node:events';
process.env.DOORBUSTER_ADMIN_KEY = 'admin-key';
process.env.DOORBUSTER_AUTH_SECRET = 'a-secret-of-at-least-thirty-two-bytes';
const ask = async (server) => {
  if (!server.listening) await once(server, 'listening');
  const { status } = await fetch(\`http://127.0.0.1:\${server.address().port}/shop/v1/sales\`);
  if (status !== 200) throw new Error(\`/shop/v1/sales answers \${status}\`);
};
`;

const LOCKS = `
import { createLocks as locksOn } from 'doorbuster/locks';
const locks = locksOn({ redis: 'redis://127.0.0.1:6379' });
`;

const FREE_PORT = { '(3000)': '(0)', 'port: 3000': 'port: 0' };

export const PROGRAMS: Record<string, Program> = {
  'README.md: Use it as a library [js]': {},
  'README.md: In Express or Fastify [js]': {
    before: `${A_SHOP}
import express from 'express';
import Fastify from 'fastify';
const fastify = Fastify();
const app = Object.assign(express(), { register: (...given) => fastify.register(...given) });`,
    after: `
const { statusCode } = await fastify.inject('/shop/v1/sales');
if (statusCode !== 200) throw new Error(\`\${statusCode}\`);
await fastify.close();
await shop.close();`,
  },
  'README.md: Locks [js]': {},
  'docs/guides/embed.md: Sell something [js]': {},
  'docs/guides/embed.md: Sell something [js 2]': {
    before: `${A_SHOP} const retryIn = () => {};`,
    after: 'await shop.close();',
  },
  'docs/guides/embed.md: Pay [js]': {
    before: `import { createDoorbuster } from 'doorbuster'; ${AN_ORDER}
const never = async () => { throw new Error('nobody pays by card here'); };
const cards = { name: 'cards', capture: never, query: never, void: never, refund: never };`,
    after: `
const found = await shop.orders.get(order.id);
if (found.status !== 'refunded') throw new Error(\`the order is \${found.status}\`);
await shop.close();`,
  },
  'docs/guides/embed.md: Events [js]': {
    before: `${A_SHOP} const heard = []; const sendMail = () => heard.push('mail'); const ship = () => heard.push('ship');
const alertSomebody = () => heard.push('alert'); const refresh = () => heard.push('refresh');`,
    after: `await shop.orders.place(order); await shop.close();
if (!heard.includes('mail')) throw new Error(\`heard \${heard}\`);`,
  },
  'docs/guides/embed.md: On several machines [js]': {
    needs: 'redis and postgres',
    before: "import { createDoorbuster } from 'doorbuster';",
    after: `const made = await shop.sales.create(${SALE});
const placed = await shop.orders.place({ sale: made.sale.id, buyer: 'alice', item: 'voucher-100', quantity: 1 });
if (!placed.ok) throw new Error(placed.code);
await shop.close();`,
  },
  'docs/guides/embed.md: All routes in Express or plain node:http [js]': {
    before: SERVED,
    fill: FREE_PORT,
    after: 'await ask(server); server.close(); await shop.close();',
  },
  'docs/guides/embed.md: All routes in Fastify [js]': {
    before: SERVED,
    fill: FREE_PORT,
    after: 'await ask(app.server); await app.close(); await shop.close();',
  },
  'docs/guides/embed.md: All routes in Fastify [js 2]': {
    before: `import { createDoorbuster } from 'doorbuster'; ${SERVED}`,
    after: 'await shop.close();',
  },
  'docs/guides/likes.md: A like button on a product [js]': {
    before: "import { createDoorbuster as create } from 'doorbuster'; const shop = await create({ data: './data' });",
    after: 'await shop.close();',
  },
  'docs/guides/embed.md: Closing [js]': {
    before: `${A_SHOP} import { createServer } from 'node:http';
const server = createServer(shop.handler()); await new Promise((done) => server.listen(0, '127.0.0.1', done));`,
  },
  'docs/guides/seats.md: Show it [js]': {
    before: `
import { createServer } from 'node:http';
import { createDoorbuster } from 'doorbuster';
const shop = await createDoorbuster({ data: './data', adminKey: 'admin-key', authSecret: 'a-secret-of-at-least-thirty-two-bytes' });
const server = createServer(shop.handler());
await new Promise((done) => server.listen(0, '127.0.0.1', done));
const items = [{ code: 'row', name: 'Row', price: { amount: 1, currency: 'CNY' }, seats: [{ section: 'S', row: 'R', from: 1, to: 9 }] }];
const made = await shop.sales.create({ name: 'Sale', opensAt: 0, closesAt: Date.now() + 3600_000, items });
const sale = made.sale.id;
// A browser has these, and knows the shop's address.
const address = 'http://127.0.0.1:' + server.address().port;
const over = globalThis.fetch;
const fetch = (path) => over(address + path);
class EventSource {
  constructor(path) {
    this.read(path).catch(() => undefined);
  }
  async read(path) {
    let text = '';
    for await (const chunk of (await fetch(path)).body) {
      text += new TextDecoder().decode(chunk);
      for (const event of text.split('\\n\\n').slice(0, -1)) {
        const data = /^event: seats\\nid: .*\\ndata: (.*)/.exec(event);
        if (data) this.hear({ data: data[1] });
      }
      text = text.slice(text.lastIndexOf('\\n\\n') + 2);
    }
  }
  addEventListener(_, hear) {
    this.hear = hear;
  }
}
const painted = [];
const paintAll = (_, code, states) => painted.push(code + ' ' + states);
const paint = (seat, state) => painted.push(seat + ' ' + state);`,
    after: `
const until = async (what) => {
  for (let tries = 0; !painted.includes(what); tries++) {
    if (tries > 100) throw new Error('painted ' + painted.join(', ') + ', not ' + what);
    await new Promise((done) => setTimeout(done, 50));
  }
};
await until('row fffffffff');
await shop.orders.place({ sale, buyer: 'ann', seats: ['S/R/2'] });
await until('S/R/2 r');
server.close();
server.closeAllConnections();
await shop.close();`,
  },
  'docs/guides/seats.md: In your program [js]': {
    before: `
import { createDoorbuster } from 'doorbuster';
const shop = await createDoorbuster({ data: './data' });`,
    after: `
if (items[0].rows[0].states !== 'fffrfrrrrb') throw new Error(items[0].rows[0].states);
await shop.close();`,
  },
  'docs/guides/payments.md: A provider of yours [ts]': {
    before: `${AN_ORDER} const orderId = order.id; const charges = new Map();
const api = {
  charge: async ({ key, amount }) => { const charge = { id: 'ch_1', amount }; charges.set(key, charge); return charge; },
  find: async ({ key }) => charges.get(key) ?? null,
  cancel: async () => ({ captured: false }),
  refund: async () => ({ id: 're_1' }),
};`,
    after: `
const found = await shop.orders.get(orderId);
if (found.status !== 'paid') throw new Error(\`the order is \${found.status}\`);
const refunded = await shop.orders.refund(orderId);
if (!refunded.ok) throw new Error(refunded.code);
await shop.close();`,
  },
  'docs/guides/payments.md: What to watch [sql]': {},
  'docs/guides/webhooks.md: Check the signature [js]': {
    before: `process.env.DOORBUSTER_WEBHOOK_SECRET = 'whsec_1';
import http from 'node:http';
// The block does not export its server: intercept its address.
const { promise: address, resolve } = Promise.withResolvers();
const { listen } = http.Server.prototype;
http.Server.prototype.listen = function (port) {
  return listen.call(this, port, '127.0.0.1', () => resolve(this.address()));
};`,
    fill: FREE_PORT,
    after: `
http.Server.prototype.listen = listen;
const { port } = await address;
const body = JSON.stringify({ id: '1-2', type: 'order.paid', order: { id: '1' } });
const t = Math.floor(Date.now() / 1000);
const tell = async (v1) => (await fetch(\`http://127.0.0.1:\${port}/\`, {
  method: 'POST', body, headers: { 'doorbuster-signature': \`t=\${t},v1=\${v1}\` } })).status;
const genuine = createHmac('sha256', 'whsec_1').update(\`\${t}.\${body}\`).digest('hex');
const answers = [await tell(genuine), await tell(genuine.replace(/./g, '0'))];
if (String(answers) !== '204,401') throw new Error(String(answers));`,
  },
  'docs/guides/operate.md: Backup [js]': {
    before: `
import { createDoorbuster as create } from 'doorbuster';
const shop = await create({ data: '/srv/shop/data' });
const made = await shop.sales.create(${SALE});`,
    after: `
const copy = new DatabaseSync('/backups/ledger.sqlite', { readOnly: true });
if (copy.prepare('SELECT count(*) AS n FROM sales').get().n < 1) throw new Error('the copy is empty');
await shop.close();`,
  },
  'docs/guides/locks.md: Locks [ts]': {
    needs: 'redis',
    before: 'const id = 1; const order = {}; const pay = async () => {}; const db = { run: async () => {} };',
    after: 'await locks.close();',
  },
  'docs/guides/locks.md: API [ts]': {
    needs: 'redis',
    before: `import { createLocks } from 'doorbuster/locks';
import pino from 'pino';
const redis = 'redis://127.0.0.1:6379'; const prefix = 'doorbuster:lock'; const lease = 30_000; const handOverMs = 500;
const commandMs = 1_000; const outageMs = 5_000; const attentive = true; const log = pino({ level: 'silent' });
const space = undefined;`,
  },
  'docs/guides/locks.md: Taking and giving back [ts]': {
    needs: 'redis',
    before: `${LOCKS} const { signal } = new AbortController(); {`,
    after: '} await locks.close();',
  },
  'docs/guides/locks.md: Read-write [ts]': {
    needs: 'redis',
    before: `${LOCKS} const load = () => {}; const save = () => {};`,
    after: 'await again.release(); await locks.close();',
  },
  'docs/guides/locks.md: Semaphore [ts]': {
    needs: 'redis',
    before: `${LOCKS} const call = () => {}; {`,
    after: '} await locks.close();',
  },
  'docs/guides/locks.md: Latch [ts]': {
    needs: 'redis',
    before: `${LOCKS} const { signal } = new AbortController();`,
    fill: { 'await ready.countDown();': 'for (const _ of [1, 2, 3]) await ready.countDown();' },
    after: 'await locks.close();',
  },
  'docs/guides/locks.md: Multi [ts]': {
    needs: 'redis',
    before: `${LOCKS} const settings = locks.readWrite('settings'); const otherRedis = locks;`,
    after: 'await locks.close();',
  },
  'docs/guides/locks.md: Quorum [ts]': { needs: 'redis', after: 'await quorum.close();' },
  'docs/guides/locks.md: once [ts]': {
    needs: 'redis',
    before: `${LOCKS} const day = '2026-11-11'; const build = () => ({ sold: 100 });`,
    after: "if (report.sold !== 100) throw new Error('no report'); await locks.close();",
  },
  'docs/guides/locks.md: Double submission [ts]': {
    needs: 'redis',
    before: `${LOCKS} import express from 'express'; import Fastify from 'fastify';
const app = express(); const fastify = Fastify(); const create = (request, response) => response.sendStatus(201);`,
    after: 'await fastify.close(); await locks.close();',
  },
  'docs/guides/locks.md: leader and schedule [ts]': {
    needs: 'redis',
    before: `${LOCKS} import { setTimeout as pause } from 'node:timers/promises';
let stepped = () => {}; const led = new Promise((resolve) => { stepped = resolve; });
const step = async (token) => { stepped(token); await pause(10); }; {`,
    after: 'await led; } await locks.close();',
  },
  'docs/guides/locks.md: Fencing [ts]': {
    needs: 'redis',
    before: `${LOCKS} import { DatabaseSync } from 'node:sqlite'; import { Redis } from 'ioredis';
const redis = new Redis('redis://127.0.0.1:6379'); const id = 1; const json = '{}';
const lua = "return redis.call('SET', KEYS[1], ARGV[1])"; const keys = ['report']; const args = ['x'];
const db = new DatabaseSync(':memory:');
db.exec("CREATE TABLE orders (id INTEGER, status TEXT, fence INTEGER); INSERT INTO orders VALUES (1, 'reserved', 0)");
const grant = await locks.mutex('fenced').acquire();`,
    after: 'await grant.release(); redis.disconnect(); await locks.close();',
  },
  'docs/guides/locks.md: Sight [ts]': {
    needs: 'redis',
    before: `${LOCKS} import { Registry } from 'prom-client'; import { observeLocks } from 'doorbuster/locks';
const registry = new Registry();`,
    after: 'await locks.close();',
  },
};

export interface Ran {
  name: string;
  error: string | null;
  output: string;
}

/** Runs the blocks in one process. A comment `// …` after a console.log must be what it prints. */
export async function runPrograms(
  folder: string,
  blocks: readonly Block[],
  replaced: readonly (readonly [string, string])[],
): Promise<Ran[]> {
  const files = blocks.map((block, index) => {
    const file = join(folder, `.block-${index}.${block.language === 'ts' ? 'ts' : 'mjs'}`);
    writeFileSync(file, moduleOf(block, replaced));
    return file;
  });
  mkdirSync(join(folder, 'srv'), { recursive: true });
  mkdirSync(join(folder, 'backups'), { recursive: true });
  writeFileSync(join(folder, '.run-blocks.mjs'), RUNNER);
  const child = spawn(process.execPath, ['.run-blocks.mjs', ...files], {
    cwd: folder,
    env: { ...process.env, LOG_LEVEL: 'warn' },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (chunk: Buffer) => {
    stdout += chunk;
  });
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk;
  });
  const late = setTimeout(() => child.kill('SIGKILL'), 25_000);
  await new Promise((resolve) => child.on('close', resolve));
  clearTimeout(late);
  const results = stdout
    .split('\n')
    .filter((line) => line.startsWith('@@@'))
    .map((line) => JSON.parse(line.slice(3)) as { error: string | null; output: string });
  return blocks.map((block, index) => {
    const result = results[index] ?? { error: `it did not come to its end: ${stderr}`, output: '' };
    return { name: block.name, output: result.output, error: result.error ?? notPrinted(block, result.output) };
  });
}

function notPrinted({ code }: Block, output: string): string | null {
  const lines = output.split('\n');
  const missing = [...code.matchAll(/^ *console\.log\(.*\);? \/\/ (.+)$/gm)].filter(
    ([, said]) => !lines.includes(said!),
  );
  return missing.length === 0 ? null : `it does not print what it says: ${missing.map(([line]) => line).join('; ')}`;
}

function moduleOf(block: Block, replaced: readonly (readonly [string, string])[]): string {
  const { before = '', after = '', fill = {} } = PROGRAMS[block.name]!;
  const code = Object.entries(fill).reduce((text, [from, to]) => text.replaceAll(from, to), withoutBlanks(block));
  const whole = block.language === 'sql' ? queries(code) : `${before}\n${code}\n${after}\n`;
  return replaced.reduce((text, [from, to]) => text.replaceAll(from, to), whole);
}

/** Removes `{ … }` and `=> …)`, which stand for the reader's own code. */
function withoutBlanks({ code }: Block): string {
  return code.replaceAll('{ … }', '{}').replaceAll(/=> …(?=\))/g, '=> {}');
}

/** Checks that the tables and columns of a query exist in the ledger. */
function queries(sql: string): string {
  return `${A_SHOP}
import { DatabaseSync } from 'node:sqlite';
const ledger = new DatabaseSync('./data/ledger.sqlite', { readOnly: true });
for (const statement of ${JSON.stringify(sql.split(';').filter((one) => one.trim() !== ''))}) ledger.prepare(statement).all();
ledger.close();
await shop.close();`;
}

const RUNNER = `
import { format } from 'node:util';
const print = console.log;
for (const file of process.argv.slice(2)) {
  const lines = [];
  console.log = (...given) => lines.push(format(...given));
  let error = null;
  try {
    await import(file);
  } catch (caught) {
    error = String(caught?.stack ?? caught);
  }
  print('@@@' + JSON.stringify({ error, output: lines.join('\\n') }));
}
// A block may leave something open.
process.exit(0);
`;
