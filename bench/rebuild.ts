// How long building a gate from the ledger takes, how much memory it needs beyond the gate itself, and how long it blocks the
// event loop: embedded on SQLite, and with Redis and PostgreSQL.
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { systemRuntime } from '../src/base/runtime.ts';
import { MemoryGate } from '../src/gate/memory.ts';
import type { Gate } from '../src/gate/port.ts';
import { RedisGate } from '../src/gate/redis/gate.ts';
import { openSqlLedger } from '../src/ledger/drivers/open.ts';
import { SqliteLedger } from '../src/ledger/drivers/sqlite/ledger.ts';
import type { Ledger } from '../src/ledger/port.ts';
import { actor } from '../src/model/actor.ts';
import { cleanUpServers } from '../test/support/servers/clean-up.ts';
import { startPostgres } from '../test/support/servers/postgres.ts';
import { startRedis } from '../test/support/servers/redis.ts';
import { report, temporaryFolder } from './support.ts';

const ITEMS = 4;
/** Every fifth order has a key. */
const KEYED = 5;
const CHUNK = 20_000;
const WARM_UP = 50_000;
const MB = 1024 * 1024;

setFlagsFromString('--expose_gc');
const collect = runInNewContext('gc') as () => void;

async function createSale(ledger: Ledger, stock: number): Promise<void> {
  const nowMs = Date.now();
  const items = Array.from({ length: ITEMS }, (_, at) => {
    return { code: `item ${at}`, name: `Item ${at}`, price: { amount: 100, currency: 'CNY' }, stock };
  });
  const sale = {
    name: 'S',
    opensAtMs: nowMs - 1000,
    closesAtMs: nowMs + 3_600_000,
    perBuyer: 1,
    payWithinSeconds: 900,
  };
  const call = { by: actor('system', 'bench'), auditId: '9', keyed: null, answer: () => '' };
  await ledger.createSale({ ...sale, items, id: '1', itemIds: items.map((_, at) => String(11 + at)) }, call);
}

const COLUMNS = `id, sale_id, item_id, buyer, quantity, slots, amount, currency, status, epoch, idem_key, fingerprint,
  created_at, updated_at, expires_at`;
const row = (
  n: string,
  text: (value: string) => string,
): string => `1000000000000000000 + ${n}, 1, 11 + ${n} % ${ITEMS},
  'buyer-' || ${text(`(${n} * 7919) % 99999989`)} || '-' || ${text(n)}, 1, '1', 100, 'CNY', 'reserved', 1,
  CASE WHEN ${n} % ${KEYED} = 0 THEN 'key-' || ${text(n)} END, 'item x1', ${Date.now()}, ${Date.now()}, ${Date.now() + 900_000}`;

function fillSqlite(folder: string, orders: number): void {
  const db = new DatabaseSync(join(folder, 'ledger.sqlite'));
  db.exec('PRAGMA synchronous = OFF');
  for (let from = 1; from <= orders; from += CHUNK) {
    const to = Math.min(from + CHUNK - 1, orders);
    db.exec(`WITH RECURSIVE s (n) AS (SELECT ${from} UNION ALL SELECT n + 1 FROM s WHERE n < ${to})
      INSERT INTO orders (seq, ${COLUMNS}) SELECT n, ${row('n', (value) => `CAST(${value} AS TEXT)`)} FROM s`);
  }
  // As if the tail were folded: it is not measured here.
  db.exec(
    `UPDATE folded SET seq = ${orders}; UPDATE items SET reserved = (SELECT count(*) FROM orders WHERE item_id = items.id)`,
  );
  db.close();
}

type Figures = {
  ms: number;
  /** Growth of the whole process, including uncollected garbage. */
  peakMb: number;
  /** The growth that is left at the end. */
  keptMb: number;
  longestStallMs: number;
};

/** Samples memory at every tick of a timer; a late tick shows a stall of the event loop. */
async function measured(run: () => Promise<unknown>): Promise<Figures> {
  collect();
  const before = process.memoryUsage().rss;
  let [peak, stallMs, lastMs] = [before, 0, performance.now()];
  const timer = setInterval(() => {
    const nowMs = performance.now();
    stallMs = Math.max(stallMs, nowMs - lastMs - 2);
    lastMs = nowMs;
    peak = Math.max(peak, process.memoryUsage.rss());
  }, 2);
  const startedMs = performance.now();
  const result = await run();
  const ms = performance.now() - startedMs;
  clearInterval(timer);
  const heapBefore = process.memoryUsage().heapUsed;
  collect();
  const kept = process.memoryUsage().heapUsed;
  // Keeps them alive until here.
  void [result, heapBefore];
  return {
    ms: Math.round(ms),
    peakMb: Math.round((peak - before) / MB),
    keptMb: Math.round(kept / MB),
    longestStallMs: Math.round(stallMs),
  };
}

/** `aliveMb`: growth after a garbage collection in the middle. */
async function pagesAlone(ledger: Ledger, upTo = Infinity): Promise<{ orders: number; aliveMb: number }> {
  collect();
  const before = process.memoryUsage().heapUsed;
  let [orders, pages, alive] = [0, 0, before];
  for await (const { holds } of (await ledger.rebuildSnapshot('1'))!.content) {
    orders += holds.length;
    if (orders >= upTo) break;
    if (++pages % 20 > 0) continue;
    collect();
    alive = Math.max(alive, process.memoryUsage().heapUsed);
  }
  return { orders, aliveMb: Math.ceil((alive - before) / MB) };
}

async function figuresOf(name: string, ledger: Ledger, gate: Gate, orders: number) {
  // Warm up: a running shop already has the reader's thread, a connection and a grown heap.
  await pagesAlone(ledger, WARM_UP);
  let read = { orders: 0, aliveMb: 0 };
  const alone = await measured(async () => {
    read = await pagesAlone(ledger);
  });
  if (read.orders !== orders) throw new Error(`${read.orders} of ${orders} were read`);
  const built = await measured(async () => gate.install((await ledger.rebuildSnapshot('1'))!));
  const held = (await gate.view('1'))!.reduce((sum, item) => sum + item.held, 0);
  if (held !== orders) throw new Error(`${held} of ${orders} are held`);
  return [
    { what: `${name}: pages read and dropped`, orders, ...alone, aliveMb: read.aliveMb },
    { what: `${name}: gate built`, orders, ...built },
  ];
}

export async function run(args: string[]): Promise<void> {
  const orders = Number(args.find((arg) => arg.startsWith('--orders='))?.slice('--orders='.length) ?? 100_000);
  const only = args.find((arg) => arg.startsWith('--only='))?.slice('--only='.length);
  const runtime = systemRuntime();
  const rows: (Figures & { what: string; orders: number; aliveMb?: number })[] = [];
  if (only !== 'postgres') {
    const folder = temporaryFolder();
    const first = SqliteLedger.open(folder, runtime);
    await createSale(first, orders);
    await first.close();
    fillSqlite(folder, orders);
    const ledger = SqliteLedger.open(folder, runtime);
    rows.push(...(await figuresOf('SQLite, in process', ledger, new MemoryGate(runtime, () => undefined), orders)));
    await ledger.close();
  }
  if (only !== 'sqlite') {
    const [server, redis] = await Promise.all([
      startPostgres({ args: ['-c', 'fsync=off', '-c', 'max_wal_size=4GB'] }),
      startRedis(),
    ]);
    const ledger = await openSqlLedger(server.url, runtime, { migrate: true, exclusive: false });
    await createSale(ledger, orders);
    for (let from = 1; from <= orders; from += CHUNK) {
      await server.query(`INSERT INTO orders (${COLUMNS}) SELECT ${row('n', (value) => `(${value})::text`)}
        FROM generate_series(${from}::bigint, ${Math.min(from + CHUNK - 1, orders)}) AS n`);
    }
    const gate = new RedisGate({ target: redis.url, commandMs: 10_000 }, runtime);
    rows.push(...(await figuresOf('PostgreSQL, Redis', ledger, gate, orders)));
    gate.close();
    await ledger.close();
  }
  const beyond = rows.flatMap(({ what, aliveMb }) => (aliveMb === undefined ? [] : [{ what, aliveMb }]));
  report(
    'rebuild',
    {
      rebuild: rows,
      targets: beyond.map(({ what, aliveMb }) => ({ target: `${what}: at most 64 MB`, aliveMb, met: aliveMb <= 64 })),
    },
    ['a network', 'orders of other sales meanwhile', 'the drain of the pipe before it'],
  );
  await cleanUpServers();
  process.exit(0);
}
