import { writeFileSync } from 'node:fs';
import { flushCompileCache } from 'node:module';
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import type { LifeOptions, Shop } from '../../src/engine/shop.ts';
import type { Point } from '../../src/orders/life/points.ts';
import { Bank } from './life-bank.ts';
import { act, LIFE_ITEM, LIFE_PRICE, type Step } from './life-steps.ts';
import { createSaleIn } from './new-sale.ts';

/**
 * A process that does what it is told, and kills itself (SIGKILL) at the named point between two steps of a flow. Its
 * clock can be moved; what it does at the bank stands in a file. Run by test/faults/life-points.test.ts.
 */
export interface LifeOrders {
  readonly data?: string;
  readonly distributed?: { readonly redis: string; readonly database: string; readonly prefix: string };
  readonly bankFile: string;
  /** Written at the end: where it died, when by its own clock, and its orders. */
  readonly deathFile: string;
  readonly point: Point;
  readonly stock: number;
  readonly payWithinSeconds: number;
  readonly steps: readonly Step[];
}

export interface Death {
  readonly point: Point;
  readonly nowMs: number;
  readonly saleId: string;
  readonly orders: readonly string[];
}

const WAIT_MS = 8000;

const given = JSON.parse(process.env.LIFE_ORDERS!) as LifeOrders;
const system = systemRuntime();
let passedMs = 0;
const clock = { now: () => Date.now() + passedMs, monotonic: () => performance.now() };
const runtime = { ...system, clock };
const bank = new Bank({ file: given.bankFile });
const orders: string[] = [];
let armed = false;
let saleId = '';

const life: LifeOptions = {
  payments: { sandbox: false, providers: [bank.provider()], answerWithinMs: 200 },
  reached: (point) => {
    if (!armed || point !== given.point) return;
    const death: Death = { point, nowMs: clock.now(), saleId, orders };
    writeFileSync(given.deathFile, JSON.stringify(death));
    process.kill(process.pid, 'SIGKILL');
  },
};

async function open(): Promise<Shop> {
  const { data, distributed } = given;
  if (!distributed) return await EmbeddedShop.open(data!, runtime, life);
  const { redis, database, prefix } = distributed;
  // Drivers take their time to load; most of these processes need none.
  const { DistributedShop } = await import('../../src/engine/distributed.ts');
  const { openSqlLedger } = await import('../../src/ledger/drivers/open.ts');
  const ledger = await openSqlLedger(database, runtime, { migrate: true, exclusive: false, now: clock.now });
  const options = {
    redis,
    prefix,
    answerWithinMs: 2000,
    pipeMax: 1000,
    worker: true,
    writerLock: 'off' as const,
    life,
  };
  return await DistributedShop.open(ledger, options, runtime);
}

async function until(what: string, ask: () => Promise<boolean>): Promise<void> {
  const lastMs = performance.now() + WAIT_MS;
  while (!(await ask())) {
    if (performance.now() > lastMs) throw new Error(`${given.point}: not within ${WAIT_MS} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// Timers of the shop do not keep a process alive.
setInterval(() => undefined, 1000);
const shop = await open();
const items = [{ code: LIFE_ITEM, name: 'Voucher', price: LIFE_PRICE, stock: given.stock }];
const { payWithinSeconds } = given;
saleId = await createSaleIn(shop, { closesAtMs: clock.now() + 1e9, payWithinSeconds, items });

for (const step of given.steps) {
  if (step.do === 'arm') {
    flushCompileCache();
    armed = true;
  } else if (step.do === 'pass') passedMs += step.ms;
  else if (step.do === 'until') {
    await until(step.status, async () => (await shop.getOrder(orders[step.at]!))?.status === step.status);
  } else if (step.do === 'place') {
    // A unit that has just become free may still be on its way to the gate.
    const before = orders.length;
    await until('it is placed', async () => {
      await act(shop, bank, saleId, orders, step);
      return orders.length > before;
    });
  } else await act(shop, bank, saleId, orders, step).catch(() => undefined);
}
// What it was told to do is done; what follows by itself may still come to the point.
await until('it dies', async () => false);
