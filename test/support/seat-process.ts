import { writeFileSync } from 'node:fs';
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import type { LifeOptions, Shop } from '../../src/engine/shop.ts';
import { actor } from '../../src/model/actor.ts';
import { buildSeatMap } from '../../src/model/seat-map.ts';
import type { MovePoint } from '../../src/orders/life/points.ts';
import { createSaleIn } from './new-sale.ts';

/**
 * A process that sells seats 1 and 2 of a row of six, moves the order to 2 and 5, and kills itself (SIGKILL) at a point between two
 * steps of that. Run by test/faults/seat-moves.test.ts.
 */
export interface SeatOrders {
  readonly data?: string;
  readonly distributed?: { readonly redis: string; readonly database: string; readonly prefix: string };
  /** Written before it moves the order. */
  readonly deathFile: string;
  readonly point: MovePoint;
}

export interface SeatDeath {
  readonly saleId: string;
  readonly orderId: string;
}

export const BY = actor('system', 'test');
export const distributedOptions = (redis: string, prefix: string) => ({
  ...{ redis, prefix, answerWithinMs: 5000, pipeMax: 1000, worker: true, writerLock: 'off' as const },
});

async function open({ data, distributed }: SeatOrders, life: LifeOptions): Promise<Shop> {
  const runtime = systemRuntime();
  if (!distributed) return await EmbeddedShop.open(data!, runtime, life);
  const { redis, database, prefix } = distributed;
  const { DistributedShop } = await import('../../src/engine/distributed.ts');
  const { openSqlLedger } = await import('../../src/ledger/drivers/open.ts');
  const ledger = await openSqlLedger(database, runtime, { migrate: true, exclusive: false });
  return await DistributedShop.open(ledger, { ...distributedOptions(redis, prefix), life }, runtime);
}

if (process.env.SEAT_ORDERS !== undefined) {
  const given = JSON.parse(process.env.SEAT_ORDERS) as SeatOrders;
  const reached: LifeOptions['reached'] = (point) => {
    if (point === given.point) process.kill(process.pid, 'SIGKILL');
  };
  // Timers of the shop do not keep a process alive.
  setInterval(() => undefined, 1000);
  const shop = await open(given, { payments: { sandbox: false }, reached });
  const seats = buildSeatMap([{ section: 'S', row: 'R', from: 1, to: 6 }]);
  const items = [{ code: 'row', name: 'Row', price: { amount: 1, currency: 'CNY' }, stock: seats.size, seats }];
  const saleId = await createSaleIn(shop, { perBuyer: 10, items });
  const placed = await shop.place({ saleId, buyer: 'alice', seats: ['S/R/1', 'S/R/2'], key: null });
  if (!placed.ok) throw new Error(placed.code);
  const death: SeatDeath = { saleId, orderId: placed.order.id };
  writeFileSync(given.deathFile, JSON.stringify(death));
  await shop.moveOrder(placed.order.id, ['S/R/2', 'S/R/5'], BY);
}
