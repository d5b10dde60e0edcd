// Compares the ledger's batched writer on MariaDB and PostgreSQL with one transaction per order and with bare inserts.

import { systemRuntime } from '../src/base/runtime.ts';
import { openSqlLedger } from '../src/ledger/drivers/open.ts';
import type { SqlLedger } from '../src/ledger/drivers/server/ledger.ts';
import { createLocks } from '../src/locks/index.ts';
import { actor } from '../src/model/actor.ts';
import type { OrderMessage } from '../src/model/order.ts';
import { cleanUpServers } from '../test/support/servers/clean-up.ts';
import { startMariadb } from '../test/support/servers/mariadb.ts';
import { startPostgres } from '../test/support/servers/postgres.ts';
import { median, report } from './support.ts';

export interface Floors {
  /** Inserts the rows of all orders in one transaction, without any check. */
  insertAll(batch: OrderMessage[]): Promise<void>;
  /** One transaction for one order. `counted`: first counts the buyer's orders. */
  placeOne(message: OrderMessage, counted?: boolean): Promise<void>;
  end(): Promise<void>;
}

/** The pipe's batch size; bare inserts may use any. */
const BATCH = 512;
const WRITERS_TRIED = [1, 2, 3, 4];
const WAYS_TRIED: Way[] = [256, 512, 1024].flatMap((size) => WRITERS_TRIED.map((writers) => ({ size, writers })));
const OUR_WAYS: Way[] = WRITERS_TRIED.map((writers) => ({ size: BATCH, writers }));
const PARALLEL_TRIED = [1, 4, 16, 64];
const TARGET_OVER_BASE = 30;
const TARGET_OF_BARE = 0.7;

const PRODUCTS = {
  mariadb: {
    start: () => startMariadb({ args: ['--innodb-buffer-pool-size=1G', '--innodb-log-file-size=512M'] }),
    floors: () => import('./baselines/ledger-mysql.ts'),
    version: 'SELECT version() AS version',
    analyse: 'ANALYZE TABLE orders, claims, items',
  },
  postgres: {
    start: () => startPostgres({ args: ['-c', 'shared_buffers=1GB', '-c', 'max_wal_size=4GB'] }),
    floors: () => import('./baselines/ledger-postgres.ts'),
    version: `SELECT split_part(version(), ' (', 1) AS version`,
    analyse: 'ANALYZE',
  },
};

/** Buyers have random names and order once, so that they do not arrive in the order of any index. */
export class Orders {
  readonly #saleId: string;
  readonly #itemId: string;
  #nextId = 10_000_000;

  constructor(saleId: string, itemId: string) {
    this.#saleId = saleId;
    this.#itemId = itemId;
  }

  next(): OrderMessage {
    const orderId = String(this.#nextId++);
    const buyer = `buyer-${Math.random().toString(36).slice(2, 14)}${orderId}`;
    return {
      orderId,
      saleId: this.#saleId,
      itemId: this.#itemId,
      itemCode: 'voucher',
      buyer,
      quantity: 1,
      slots: [1],
      price: { amount: 8000, currency: 'CNY' },
      payWithinSeconds: 900,
      epoch: 1,
      key: `key-${orderId}`,
      fingerprint: 'voucher x1',
    };
  }

  batch(size: number): OrderMessage[] {
    return Array.from({ length: size }, () => this.next());
  }
}

/** Orders per second of several concurrent writers. */
export async function inBatches(
  orders: Orders,
  { size, writers }: Way,
  durationMs: number,
  write: (batch: OrderMessage[]) => Promise<unknown>,
): Promise<number> {
  let written = 0;
  const startedMs = performance.now();
  const writer = async (): Promise<void> => {
    while (performance.now() - startedMs < durationMs) {
      await write(orders.batch(size));
      written += size;
    }
  };
  await Promise.all(Array.from({ length: writers }, writer));
  return (written * 1000) / (performance.now() - startedMs);
}

/** The settings with which a side writes batches: each uses its best. */
export interface Way {
  size: number;
  writers: number;
}

async function oneByOne(orders: Orders, parallel: number, durationMs: number, floors: Floors): Promise<number> {
  const locks = createLocks();
  const untilMs = performance.now() + durationMs;
  const startedMs = performance.now();
  let written = 0;
  const buyer = async (): Promise<void> => {
    while (performance.now() < untilMs) {
      const message = orders.next();
      await locks.mutex(`order:${message.buyer}`).run(() => floors.placeOne(message));
      written++;
    }
  };
  await Promise.all(Array.from({ length: parallel }, buyer));
  await locks.close();
  return (written * 1000) / (performance.now() - startedMs);
}

function words({ size, writers }: Way): string {
  return `batches of ${size}, ${writers} at a time`;
}

async function best<T>(tried: readonly T[], measure: (one: T) => Promise<number>): Promise<T> {
  const figures: [T, number][] = [];
  for (const one of tried) figures.push([one, await measure(one)]);
  return figures.reduce((a, b) => (b[1] > a[1] ? b : a))[0];
}

async function newSale(ledger: SqlLedger): Promise<Orders> {
  const sale = { name: 'Bench', opensAtMs: 0, closesAtMs: Date.now() + 86_400_000, perBuyer: 1, payWithinSeconds: 900 };
  const items = [{ code: 'voucher', name: 'V', price: { amount: 8000, currency: 'CNY' }, stock: 1_000_000_000 }];
  const call = { by: actor('system', 'bench'), auditId: '3', keyed: null, answer: () => '' };
  await ledger.createSale({ ...sale, items, id: '1', itemIds: ['2'] }, call);
  return new Orders('1', '2');
}

/** Reads everything that a gate is built from, page by page. */
async function rebuildMs(ledger: SqlLedger): Promise<{ liveOrders: number; rebuildMs: number }> {
  const startedMs = performance.now();
  const snapshot = await ledger.rebuildSnapshot('1');
  let liveOrders = 0;
  for await (const { holds } of snapshot!.content) liveOrders += holds.length;
  return { liveOrders, rebuildMs: Math.round(performance.now() - startedMs) };
}

export async function run(args: string[]): Promise<void> {
  const quick = args.includes('--quick');
  const only = args.find((arg) => arg.startsWith('--only='))?.slice('--only='.length);
  const [rounds, tryMs, roundMs] = quick ? [3, 500, 1000] : [5, 1500, 3000];
  const rows: Record<string, unknown>[] = [];
  const verdicts: Record<string, unknown>[] = [];
  const all: Record<string, unknown>[] = [];
  for (const [name, product] of Object.entries(PRODUCTS)) {
    if (only !== undefined && only !== name) continue;
    const server = await product.start();
    const { version } = (await server.query(product.version))[0]!;
    const ledger = await openSqlLedger(server.url, systemRuntime(), { migrate: true, exclusive: false });
    const floors = await (await product.floors()).open(server.url);
    const orders = await newSale(ledger);

    console.error(`${name} ${version}: trying settings…`);
    // Warm up everything that is measured.
    const ours = (way: Way, durationMs: number): Promise<number> =>
      inBatches(orders, way, durationMs, (batch) => ledger.commitOrders(batch));
    const bare = (way: Way, durationMs: number): Promise<number> =>
      inBatches(orders, way, durationMs, (batch) => floors.insertAll(batch));
    await ours(OUR_WAYS[0]!, tryMs);
    const bareWay = await best(WAYS_TRIED, (way) => bare(way, tryMs));
    const ourWay = await best(OUR_WAYS, (way) => ours(way, tryMs));
    // Without this the planner assumes empty tables and scans them for every buyer.
    await server.query(product.analyse);
    const parallel = await best(PARALLEL_TRIED, (one) => oneByOne(orders, one, tryMs, floors));
    const rebuild = await rebuildMs(ledger);
    // A rebuild raises the epoch, but the orders of this benchmark carry the first one.
    await server.query('UPDATE items SET epoch = 1');

    const figures: { base: number; bare: number; ours: number }[] = [];
    for (let round = 1; round <= rounds; round++) {
      console.error(`${name}: round ${round} of ${rounds}`);
      const targets: ['base' | 'bare' | 'ours', () => Promise<number>][] = [
        ['base', () => oneByOne(orders, parallel, roundMs, floors)],
        ['bare', () => bare(bareWay, roundMs)],
        ['ours', () => ours(ourWay, roundMs)],
      ];
      // Rotate the order, so that growing tables affect all sides alike.
      const figure = { base: 0, bare: 0, ours: 0 };
      for (let at = 0; at < targets.length; at++) {
        const [target, measure] = targets[(at + round) % targets.length]!;
        figure[target] = await measure();
      }
      figures.push(figure);
      all.push({ database: name, round, ...figure });
    }
    const overBase = median(figures.map(({ ours, base }) => ours / base));
    const ofBare = median(figures.map(({ ours, bare }) => ours / bare));
    const per = (pick: (figure: (typeof figures)[number]) => number): number => Math.round(median(figures.map(pick)));
    rows.push(
      { database: version, what: `one transaction per order, ${parallel} in parallel`, 'orders/s': per((f) => f.base) },
      { database: version, what: `bare inserts, ${words(bareWay)}`, 'orders/s': per((f) => f.bare) },
      { database: version, what: `commitOrders, ${words(ourWay)}`, 'orders/s': per((f) => f.ours) },
    );
    const judge = (target: string, figure: number, atLeast: number): void => {
      const verdict = figure >= atLeast ? 'reached' : 'missed';
      verdicts.push({ target: `${name}: ${target}`, figure: figure.toFixed(2), verdict });
    };
    judge(`at least ${TARGET_OVER_BASE} × one transaction per order`, overBase, TARGET_OVER_BASE);
    judge(`at least ${TARGET_OF_BARE} of the bare inserts`, ofBare, TARGET_OF_BARE);
    verdicts.push({
      target: `${name}: reading ${rebuild.liveOrders} live orders for a gate`,
      figure: `${rebuild.rebuildMs} ms`,
      verdict: 'no target',
    });
    await floors.end();
    await ledger.close();
    await cleanUpServers();
  }
  report(
    'ledger',
    { ledger: rows, targets: verdicts },
    [
      'a network: the database is on the same machine and takes one of its two cores',
      'tables larger than memory, replication, a binary log',
      'a lock in Redis for the orders placed one by one: theirs is in process, and costs next to nothing',
    ],
    { rounds: all },
  );
  process.exit(0);
}
