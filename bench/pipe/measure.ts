// One measurement: a fresh database, an empty Redis, a fresh load and worker, and a warm-up.
import { type Connection, createConnection } from 'mysql2/promise';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { actor } from '../../src/model/actor.ts';
import { cpuMs } from '../support.ts';
import { Child, nowMs } from './child.ts';
import type { SaleOf } from './crowd.ts';
import type { FloorAsk, FloorJob } from './floor.ts';
import { FIRST_ID, ITEM, type Stage, type Times } from './pace.ts';
import { PREFIX, type Target, type World } from './targets.ts';
import type { Counts } from './worker.ts';

export interface Size {
  readonly warmUp: number;
  readonly orders: number;
  /** How long to measure latency; null: not at all. */
  readonly latencyMs: number | null;
}

export interface Figure {
  readonly perSecond: number;
  /** Per order, by process. */
  readonly cpuUs: Record<string, number>;
  /** Orders per transaction, and per message of a broker. */
  readonly batch: number | null;
  readonly parcel: number | null;
  /** Concurrent commits on average: below 1 the ledger waits for the pipe. */
  readonly commits: number | null;
  readonly latency: Record<string, number> | null;
}

/** Concurrent buyers: as many as one process may have at the gate. */
const PARALLEL = 1024;
/** Concurrent buyers if each order is a separate call. */
const PARALLEL_ONE_BY_ONE = 64;
/** Latency is measured at this share of the maximum rate. */
export const MODERATE = 0.3;
const LOOK_MS = 5;
/** After this time, the rate is computed from what is done. */
const WITHIN_MS = 20_000;
const DRAINED_WITHIN_MS = 60_000;

export async function measure(world: World, target: Target, size: Size): Promise<Figure> {
  return onFreshDatabase(world, target.gates, async (database, sales) => {
    const { crowd, worker } = await target.start(world, database, sales);
    const eye = await createConnection(database);
    try {
      return await measureStarted(world, target, size, { crowd, worker, eye });
    } finally {
      await eye.end();
      await crowd.end();
      if (worker !== crowd) await worker.end();
    }
  });
}

interface Parts {
  readonly crowd: Child;
  readonly worker: Child;
  readonly eye: Connection;
}

async function measureStarted(world: World, target: Target, size: Size, parts: Parts): Promise<Figure> {
  const { crowd, worker, eye } = parts;
  const { warmUp, orders } = size;
  const parallel = target.oneByOne ? PARALLEL_ONE_BY_ONE : PARALLEL;
  await crowd.ask('meet', { from: 0, count: warmUp + orders });
  await crowd.ask('flood', { from: 0, count: warmUp, parallel });
  await committed(eye, warmUp, DRAINED_WITHIN_MS);
  // Without this the planner assumes empty tables and scans them for every buyer.
  await eye.query('ANALYZE TABLE orders, claims, items');

  const { redis, mariadb } = world;
  const pids = {
    load: crowd.pid,
    redis: redis.pid,
    broker: target.broker?.pid,
    worker: worker.pid,
    database: mariadb.pid,
  };
  const counts = async () => (target.oneByOne ? null : worker.ask<Counts>('counts'));
  const countsBefore = await counts();
  const cpuBefore = cpuOf(pids);
  const flooded = crowd.ask<number>('flood', { from: warmUp, count: orders, parallel });
  const [startedMs, reached] = await Promise.all([flooded, committed(eye, warmUp + orders, WITHIN_MS)]);
  const cpuAfter = cpuOf(pids);
  const count = reached.count - warmUp;
  const tookMs = reached.atMs - startedMs;
  const perSecond = (count * 1000) / tookMs;
  await drained(target, parts, warmUp + orders);
  const countsAfter = await counts();

  const per = (what: 'batches' | 'parcels'): number | null => {
    if (countsBefore === null || countsAfter === null) return null;
    const times = countsAfter[what] - countsBefore[what];
    return times === 0 ? null : Math.round(orders / times);
  };
  const cpuUs = Object.entries(cpuAfter).map(([name, ms]) => [name, ((ms - cpuBefore[name]!) * 1000) / count]);
  return {
    perSecond,
    cpuUs: Object.fromEntries(cpuUs),
    batch: per('batches'),
    parcel: per('parcels'),
    commits: countsBefore && countsAfter && (countsAfter.commitMs - countsBefore.commitMs) / tookMs,
    latency:
      size.latencyMs === null
        ? null
        : await latency(target, parts, warmUp + orders, perSecond * MODERATE, size.latencyMs),
  };
}

/** The time from admission to commit at a moderate rate, and its parts. */
async function latency(target: Target, parts: Parts, from: number, perSecond: number, durationMs: number) {
  const { crowd, worker } = parts;
  const range = { from, count: Math.ceil((perSecond * durationMs) / 1000) };
  await crowd.ask('meet', range);
  if (worker !== crowd) await worker.ask('record', range);
  await crowd.ask('drip', { ...range, perSecond });
  await drained(target, parts, from + range.count);
  const times = await crowd.ask<Times>('times');
  if (worker !== crowd) Object.assign(times, await worker.ask<Times>('times'));
  return { 'orders/s': Math.round(perSecond), ...partsOf(times) };
}

const LATENCIES: readonly [name: string, from: Stage, to: Stage, part: number][] = [
  ['p50 ms', 'sent', 'committed', 0.5],
  ['p99 ms', 'sent', 'committed', 0.99],
  ['gate p50', 'sent', 'verdict', 0.5],
  ['pipe p50', 'verdict', 'handed', 0.5],
  ['pipe p99', 'verdict', 'handed', 0.99],
  ['ledger p50', 'handed', 'committed', 0.5],
  ['told p50', 'committed', 'told', 0.5],
  ['of the pipe: until relayed', 'verdict', 'relayed', 0.5],
  ['in the broker', 'relayed', 'arrived', 0.5],
  ['in the worker', 'arrived', 'handed', 0.5],
];

function partsOf(times: Times): Record<string, number> {
  const parts: Record<string, number> = {};
  for (const [name, from, to, part] of LATENCIES) {
    const [begin, end] = [times[from], times[to]];
    if (!begin || !end) continue;
    const spans = end.map((ms, at) => ms - begin[at]!).sort();
    parts[name] = Number(spans[Math.floor((spans.length - 1) * part)]!.toFixed(2));
  }
  return parts;
}

/** Polls the items' rows until they count `wanted` orders, or the time is over. */
async function committed(eye: Connection, wanted: number, withinMs: number): Promise<{ count: number; atMs: number }> {
  const untilMs = nowMs() + withinMs;
  for (;;) {
    const [rows] = await eye.query('SELECT sum(reserved) AS n FROM items');
    const count = Number((rows as { n: string }[])[0]!.n);
    const atMs = nowMs();
    if (count >= wanted || atMs > untilMs) return { count, atMs };
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

/** Checks that every order is stored once and its caller was told. Otherwise the measurement is void. */
async function drained({ name, oneByOne, gates }: Target, { eye, crowd }: Parts, total: number): Promise<void> {
  await committed(eye, total, DRAINED_WITHIN_MS);
  const [rows] = await eye.query(
    `SELECT count(*) AS orders, sum(status = 'reserved') AS reserved, count(DISTINCT buyer) AS buyers, min(id) AS first,
       max(id) AS last, (SELECT count(*) FROM claims) AS claims, (SELECT sum(reserved) FROM items) AS units FROM orders`,
  );
  const found = (rows as Record<string, string | number>[])[0]!;
  const wanted: Record<string, number> & { claims?: number } = {
    orders: total,
    reserved: total,
    buyers: total,
    units: total,
  };
  // Ids are consecutive, except in the shop of one process, which uses its own.
  if (oneByOne || gates > 0) Object.assign(wanted, { first: FIRST_ID, last: FIRST_ID + total - 1 });
  if (!oneByOne) wanted.claims = total;
  const told = oneByOne ? total : await crowd.ask<number>('told', total);
  const right = told === total && Object.entries(wanted).every(([key, value]) => Number(found[key]) === value);
  if (!right) throw new Error(`${name} is void: ${total} orders, ${told} told, and there are ${JSON.stringify(found)}`);
}

function cpuOf(pids: Record<string, number | undefined>): Record<string, number> {
  const seen = new Set<number>();
  const known = Object.entries(pids).filter(([, pid]) => pid !== undefined && !seen.has(pid) && seen.add(pid));
  return Object.fromEntries(known.map(([name, pid]) => [name, cpuMs(pid!) ?? Number.NaN]));
}

/** The ledger's own throughput, without gate and pipe. */
export async function floor(world: World, ask: FloorAsk): Promise<number> {
  return onFreshDatabase(world, 0, async (database, [sale]) => {
    const child = await Child.start('floor.ts', { database, sale: sale! } satisfies FloorJob);
    await child.ask('write', { ...ask, durationMs: ask.durationMs / 2 });
    const perSecond = await child.ask<number>('write', ask);
    await child.end();
    return perSecond;
  });
}

type Run<T> = (database: string, sales: readonly SaleOf[]) => Promise<T>;

async function onFreshDatabase<T>({ redis, mariadb }: World, gates: number, run: Run<T>): Promise<T> {
  await redis.command('FLUSHALL');
  const database = await mariadb.createDatabase();
  const sales = gates === 0 ? await saleWithoutGate(database) : await salesWithGates(database, redis.url, gates);
  try {
    return await run(database, sales);
  } finally {
    await mariadb.query(`DROP DATABASE ${new URL(database).pathname.slice(1)}`);
  }
}

const SALE = { name: 'bench', opensAtMs: 0, closesAtMs: Date.UTC(2099, 0), perBuyer: 1, payWithinSeconds: 900 };
const ITEMS = [{ code: ITEM, name: 'Voucher', price: { amount: 8000, currency: 'CNY' }, stock: 100_000_000 }];

async function saleWithoutGate(database: string): Promise<SaleOf[]> {
  const ledger = await openSqlLedger(database, systemRuntime(), { migrate: true, exclusive: false });
  const call = { by: actor('system', 'bench'), auditId: '3', keyed: null, answer: () => '' };
  await ledger.createSale({ ...SALE, items: ITEMS, id: '1', itemIds: ['2'] }, call);
  await ledger.close();
  return [{ saleId: '1', itemId: '2' }];
}

async function salesWithGates(database: string, redis: string, count: number): Promise<SaleOf[]> {
  const runtime = systemRuntime();
  const ledger = await openSqlLedger(database, runtime, { migrate: true, exclusive: false });
  const common = { redis, prefix: PREFIX, answerWithinMs: 2000, pipeMax: 100_000 };
  const shop = await DistributedShop.open(
    ledger,
    { ...common, worker: false, carrier: null, writerLock: 'off' },
    runtime,
  );
  const sales: SaleOf[] = [];
  while (sales.length < count) {
    const change = await shop.createSale({ ...SALE, items: ITEMS }, { by: actor('system', 'bench'), keyed: null });
    if (change.outcome !== 'changed') throw new Error(change.outcome);
    sales.push({ saleId: change.sale.id, itemId: change.sale.items[0]!.id });
  }
  await shop.close();
  return sales;
}
