import { spawn } from 'node:child_process';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { OrderStatus } from '../../src/model/order.ts';
import { POINTS, type Point } from '../../src/orders/life/points.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { Bank } from '../support/life-bank.ts';
import type { Death, LifeOrders } from '../support/life-process.ts';
import { act, LIFE_ITEM, type Step } from '../support/life-steps.ts';
import { freshTables } from '../support/life-tables.ts';
import { LifeWorld } from '../support/life-world.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, temporaryFolder, track } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import type { Product } from '../support/sql-databases.ts';
import { temporary } from '../support/sqlite-ledger.ts';

/**
 * kill -9 between any two steps of each flow: at every named point a process dies, and another one goes on with what it
 * has left. The flow is then completed or undone; there is one capture at most, nothing is doubled, every unit is back
 * once (P1, P4, P6, P9).
 */
afterAll(cleanUp);

interface Flow {
  readonly name: string;
  /** From `arm` on it dies when it comes to the point. */
  readonly steps: readonly Step[];
  /** What whoever was not answered does again, at once and some time later. */
  readonly again: readonly Step[];
  /** How the orders end, in the order in which they were placed; those that revive them last. */
  readonly ends: readonly OrderStatus[];
  /** One unit for all. */
  readonly stock?: number;
}

const PAY_WITHIN_S = 60;
const over: Step = { do: 'pass', ms: PAY_WITHIN_S * 1000 + 1 };
const place: Step = { do: 'place', buyer: 'alice' };
const arm: Step = { do: 'arm' };
const pays = (plan: Extract<Step, { do: 'pay' }>['plan']): Step => ({ do: 'pay', at: 0, plan });
const cancels: Step = { do: 'cancel', at: 0 };
const refunds: Step = { do: 'refund', at: 0 };
const confirms: Step = { do: 'confirm', at: 0 };
const news: Step = { do: 'news' };
const captured: Step = { do: 'finish', at: 0, as: 'captured' };
const expired: Step = { do: 'until', at: 0, status: 'expired' };

const PAY: Flow = { name: 'pay', steps: [place, arm, pays('captured')], again: [pays('captured')], ends: ['paid'] };
const DECLINED: Flow = {
  name: 'pay, declined',
  steps: [place, arm, pays('declined')],
  again: [pays('captured')],
  ends: ['paid'],
};
const CONFIRM: Flow = { name: 'confirm', steps: [place, arm, confirms], again: [confirms], ends: ['paid'] };
const CANCEL: Flow = { name: 'cancel', steps: [place, arm, cancels], again: [cancels], ends: ['cancelled'] };
const EXPIRE: Flow = { name: 'expire', steps: [place, arm, over], again: [], ends: ['expired'] };
const REFUND: Flow = {
  name: 'refund',
  steps: [place, pays('captured'), arm, refunds],
  again: [refunds],
  ends: ['refunded'],
};
const GIVE_UP: Flow = {
  name: 'cancel, pending',
  steps: [place, pays('pending'), arm, cancels],
  again: [cancels],
  ends: ['cancelled'],
};
const FOUND: Flow = {
  name: 'cancel, captured',
  steps: [place, pays('lost'), arm, cancels],
  again: [cancels],
  ends: ['paid'],
};
const SWEPT: Flow = {
  name: 'expire, pending',
  steps: [place, pays('pending'), arm, over],
  again: [],
  ends: ['expired'],
};
const TOLD: Flow = {
  name: 'webhook',
  steps: [place, pays('pending'), captured, arm, news],
  again: [news],
  ends: ['paid'],
};
const LATE: Flow = {
  name: 'late money, with goods',
  steps: [place, pays('declined'), over, expired, captured, arm, news],
  again: [news],
  ends: ['expired', 'paid'],
};
const TOO_LATE: Flow = {
  name: 'late money, without goods',
  steps: [place, pays('declined'), over, expired, { do: 'place', buyer: 'bob' }, captured, arm, news],
  again: [news],
  ends: ['expired', 'expired'],
  stock: 1,
};

const FLOWS: Record<Point, readonly Flow[]> = {
  'pay:locked': [PAY, CONFIRM],
  'pay:attempt-open': [PAY],
  'pay:provider-answered': [PAY, DECLINED],
  'pay:committed': [PAY, CONFIRM],
  'cancel:locked': [CANCEL],
  'cancel:committed': [CANCEL],
  'expire:found': [EXPIRE],
  'expire:committed': [EXPIRE],
  'refund:locked': [REFUND],
  'refund:started': [REFUND],
  'refund:provider-answered': [REFUND],
  'refund:committed': [REFUND],
  'late:found': [LATE, TOO_LATE],
  'late:placed': [LATE],
  'late:committed': [LATE],
  'late:refund-started': [TOO_LATE],
  'late:refunded': [TOO_LATE],
  'settle:asked': [GIVE_UP, FOUND, SWEPT],
  'settle:committed': [GIVE_UP, FOUND, SWEPT],
  'webhook:locked': [TOLD],
  'webhook:committed': [TOLD],
  'release:committed': [CANCEL, EXPIRE, REFUND],
  'release:in-gate': [CANCEL],
};

/** Each point is tried every time; with LONG by every flow that comes to it. */
const some = (flows: readonly Flow[]): readonly Flow[] => (LONG ? flows : flows.slice(0, 1));

const PROCESS = fileURLToPath(new URL('../support/life-process.ts', import.meta.url));

/** Whoever dies first leaves here what it has compiled: the others start in half the time. */
const compiled = temporaryFolder();

/** Has a process die at the point, and says what it knew then. */
async function die(orders: LifeOrders): Promise<Death> {
  const child = spawn(process.execPath, [PROCESS], {
    env: { ...process.env, LIFE_ORDERS: JSON.stringify(orders), NODE_COMPILE_CACHE: compiled },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  track(child);
  let output = '';
  child.stderr.on('data', (chunk: Buffer) => {
    output += chunk;
  });
  const signal = await new Promise((resolve) => child.on('close', (_, how) => resolve(how)));
  expect(signal, `it did not come to ${orders.point}: ${output}`).toBe('SIGKILL');
  expect(existsSync(orders.deathFile), output).toBe(true);
  return JSON.parse(readFileSync(orders.deathFile, 'utf8')) as Death;
}

const tried = new Set<Point>();

async function tryFlow(point: Point, { steps, again, ends, stock = 2 }: Flow): Promise<void> {
  const [data, aside] = [temporary(), temporary()];
  const [bankFile, deathFile] = [join(aside, 'bank'), join(aside, 'death')];
  let world: LifeWorld | null = null;
  try {
    const death = await die({ data, bankFile, deathFile, point, stock, payWithinSeconds: PAY_WITHIN_S, steps });
    expect(death.point).toBe(point);
    tried.add(point);
    world = await LifeWorld.on(data, death.nowMs + 500, { file: bankFile });
    const { shop, bank } = world;
    await world.judge();
    const orders = [...death.orders];
    for (const waitMs of [0, 31_000]) {
      await world.jump(waitMs);
      for (const step of again) {
        world.begin(step.do, act(shop, bank, world.saleId, orders, step as never));
        await world.advance(1000);
      }
    }
    await world.settle();
    await world.judgeSettled();
    const now = world.rows('SELECT status, CAST(revives AS TEXT) AS revives FROM orders ORDER BY id');
    expect(now.map(({ status }) => status)).toEqual(ends);
    const taken = [...bank.book.values()].reduce((sum, { captures }) => sum + captures, 0);
    expect(taken, 'captures').toBeLessThanOrEqual(1);
    expect(await sellOut(world), 'units that can be sold now').toBe(
      stock - ends.filter((end) => end === 'paid').length,
    );
  } finally {
    await world?.close();
    for (const folder of [data, aside]) rmSync(folder, { recursive: true, force: true });
  }
}

async function sellOut(world: LifeWorld): Promise<number> {
  for (let sold = 0; ; sold++) {
    const placed = await world.until(world.shop.place(wish(world.saleId, sold)));
    if (!placed.ok) return sold;
  }
}

function wish(saleId: string, n: number) {
  return { saleId, itemCode: LIFE_ITEM, buyer: `new-${n}`, quantity: 1, key: null };
}

/** The same on Redis and a database, where the next process finds the gate and the locks as the dead one has left them. */
async function tryFlowOnServers(
  product: Product,
  redis: RedisServer,
  point: Point,
  { name, steps, again, ends, stock = 2 }: Flow,
): Promise<void> {
  const folder = temporaryFolder();
  const [bankFile, deathFile] = [join(folder, 'bank'), join(folder, 'death')];
  const { url: database, query, ...tables } = await freshTables(product);
  const prefix = `${product}-${point}-${name}`.replace(/[^a-z-]/g, '-');
  const distributed = { redis: redis.url, database, prefix };
  const death = await die({ distributed, bankFile, deathFile, point, stock, payWithinSeconds: PAY_WITHIN_S, steps });
  expect(death.point).toBe(point);
  await tables.judge();
  // The leases of the dead are over.
  for (const key of (await redis.command('KEYS', `${prefix}:lock*`)) as string[]) await redis.command('DEL', key);

  let passedMs = death.nowMs - Date.now();
  const clock = { now: () => Date.now() + passedMs, monotonic: () => performance.now() };
  const runtime = { ...systemRuntime(), clock };
  const bank = new Bank({ file: bankFile });
  const ledger = await openSqlLedger(database, runtime, { migrate: false, exclusive: false, now: clock.now });
  const life = { payments: { sandbox: false, providers: [bank.provider()], answerWithinMs: 200 } };
  const options = {
    redis: redis.url,
    prefix,
    answerWithinMs: 2000,
    pipeMax: 1000,
    worker: true,
    writerLock: 'off' as const,
    life,
  };
  const shop = await DistributedShop.open(ledger, options, runtime);
  try {
    const orders = [...death.orders];
    for (const waitMs of [0, 31_000]) {
      passedMs += waitMs;
      for (const step of again) await act(shop, bank, death.saleId, orders, step as never).catch(() => undefined);
    }
    await until('all is settled', 20_000, async () => {
      passedMs += 20_000;
      for (const news of [...bank.news]) await shop.paymentNews(news).catch(() => undefined);
      await sleep(300);
      return (await tables.unfinished()).length === 0;
    });
    await tables.judge();
    await tables.judgeMoney(bank);
    const now = await query('SELECT status FROM orders ORDER BY id');
    expect(now.map(({ status }) => status)).toEqual(ends);
    let sold = 0;
    while ((await shop.place(wish(death.saleId, sold))).ok) sold++;
    expect(sold, 'units that can be sold now').toBe(stock - ends.filter((end) => end === 'paid').length);
  } finally {
    await shop.close();
  }
}

// As many at once as there are cores, and one: a process that starts waits for the disk now and then.
describe('on SQLite', () => {
  const tries = POINTS.flatMap((point) => some(FLOWS[point]).map((flow) => ({ point, flow })));

  describe.concurrent('a process that dies', () => {
    it.each(tries.map(({ point, flow }) => [point, flow.name, flow] as const))('at %s (%s)', async (point, _, flow) => {
      await tryFlow(point, flow);
    });
  });

  it('all points were tried', () => {
    expect([...tried].sort()).toEqual([...POINTS].sort());
  });
});

describeWithRedis('on servers', () => {
  /** Where the next process finds something else than on SQLite: a gate that stands, a unit on its way to it. */
  const FEW: readonly Point[] = [
    'pay:provider-answered',
    'refund:provider-answered',
    'release:committed',
    'late:placed',
  ];
  const points = LONG ? POINTS : FEW;
  const tries = points.flatMap((point) => some(FLOWS[point]).map((flow) => ({ point, flow })));
  let redis: RedisServer;

  beforeAll(async () => {
    redis = await startRedis();
  });
  afterAll(cleanUpServers);

  const suite = (product: Product): void => {
    describe.concurrent('a process that dies', () => {
      it.each(tries.map(({ point, flow }) => [point, flow.name, flow] as const))(
        'at %s (%s)',
        (point, _, flow) => tryFlowOnServers(product, redis, point, flow),
        60_000,
      );
    });
  };
  describeWithMysql('Redis and MariaDB', () => suite('mysql'));
  if (LONG) describeWithPostgres('Redis and PostgreSQL', () => suite('postgres'));
});
