import { randomBytes } from 'node:crypto';
import { afterAll, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import type { OrderRecord } from '../../src/model/order.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { temporaryFolder } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startRedis } from '../support/servers/redis.ts';

/** Orders of one batch of the pipe. */
const BATCH = 512;

describeWithRedis('a rebuild and what is in the pipe', () => {
  afterAll(cleanUpServers);

  /** A Redis with persistence, and a shop whose ledger can be slowed down. */
  async function world() {
    const redis = await startRedis({ persistence: 'aof' });
    const ledger = SqliteLedger.open(temporaryFolder(), systemRuntime());
    const prefix = `rebuild-${randomBytes(4).toString('hex')}`;
    let commit = async (): Promise<void> => undefined;
    const slow = new Proxy(ledger, {
      get(target, name) {
        const value = Reflect.get(target, name, target) as unknown;
        // Two shops share it: each closes its own.
        if (name === 'close') return async () => undefined;
        if (name !== 'commitOrders') return typeof value === 'function' ? value.bind(target) : value;
        return async (batch: Parameters<SqliteLedger['commitOrders']>[0]) => {
          await commit();
          return target.commitOrders(batch);
        };
      },
    });
    const open = (worker: boolean): Promise<DistributedShop> =>
      DistributedShop.open(
        slow,
        { redis: redis.url, prefix, answerWithinMs: 50, pipeMax: 10_000, worker, carrier: null, writerLock: 'off' },
        systemRuntime(),
      );
    const commits = (run: () => Promise<void>): void => {
      commit = run;
    };
    return { redis, ledger, open, commits };
  }

  function place(shop: DistributedShop, saleId: string, buyer: string) {
    return shop.place({ saleId, itemCode: 'voucher', buyer, quantity: 1, key: null });
  }

  /** All are answered 202. */
  async function queue(shop: DistributedShop, saleId: string, count: number): Promise<string[]> {
    const ids: string[] = [];
    while (ids.length < count) {
      const some = Array.from({ length: Math.min(count - ids.length, BATCH) }, (_, at) => `buyer ${ids.length + at}`);
      for (const result of await Promise.all(some.map((buyer) => place(shop, saleId, buyer)))) {
        if (!result.ok || result.order.status !== 'queued') throw new Error(JSON.stringify(result));
        ids.push(result.order.id);
      }
    }
    return ids;
  }

  function fates(orders: Iterable<OrderRecord>): Record<string, number> {
    const counts: Record<string, number> = {};
    for (const { status, reason } of orders) {
      const fate = reason === null ? status : `${status}: ${reason}`;
      counts[fate] = (counts[fate] ?? 0) + 1;
    }
    return counts;
  }

  async function counted(shop: DistributedShop, metric: string): Promise<number> {
    const line = (await shop.metrics.registry.metrics()).split('\n').find((each) => each.startsWith(`${metric} `));
    return Number(line?.split(' ')[1]);
  }

  it.concurrent('P3: thousands of 202s survive a restart of Redis that lost nothing, however slow the ledger', async () => {
    const { redis, ledger, open, commits } = await world();
    const shop = await open(true);
    try {
      const saleId = await createSaleIn(shop, { stock: 100_000 });
      await until('it sells', 15_000, async () => (await place(shop, saleId, 'first')).ok);
      const back = Promise.withResolvers<void>();
      commits(() => back.promise);
      const ids = await queue(shop, saleId, 6 * BATCH);
      await redis.restart();
      // Six batches take far longer than a rebuild waits for a pipe in which nothing moves.
      commits(() => sleep(750));
      back.resolve();
      await until('it sells again', 30_000, () =>
        place(shop, saleId, 'next').then(
          ({ ok }) => ok,
          () => false,
        ),
      );
      const stored = await until('all are decided', 15_000, async () => {
        const found = await ledger.storedAmong(ids);
        return found.size === ids.length ? found : null;
      });
      expect(fates(stored.values())).toEqual({ reserved: ids.length });
      expect((await ledger.getSale(saleId))!.items[0]!.epoch, 'it was rebuilt').toBeGreaterThan(1);
      expect(await counted(shop, 'doorbuster_orders_gate_rebuilt_total')).toBe(0);
    } finally {
      commits(async () => undefined);
      await shop.close();
      await ledger.close();
    }
  }, 90_000);

  it.concurrent('P3, P10: where nobody decides a rebuild waits for 3 s; the rest ends gate_rebuilt, and is counted', async () => {
    const { redis, ledger, open } = await world();
    const api = await open(false);
    let worker: DistributedShop | null = null;
    try {
      const saleId = await createSaleIn(api, { stock: 100_000 });
      const ids = await until('the gate is open', 15_000, () => queue(api, saleId, 40).catch(() => null));
      await redis.restart();
      const startedMs = performance.now();
      await until('it takes orders', 15_000, () =>
        place(api, saleId, 'next').then(
          ({ ok }) => ok,
          () => false,
        ),
      );
      expect(performance.now() - startedMs).toBeGreaterThan(2900);
      expect(performance.now() - startedMs).toBeLessThan(8000);
      // It remembers its 202s, and would end them itself.
      await api.close();
      worker = await open(true);
      const stored = await until('all are decided', 15_000, async () => {
        const found = await ledger.storedAmong(ids);
        return found.size === ids.length ? found : null;
      });
      expect(fates(stored.values())).toEqual({ 'rejected: gate_rebuilt': ids.length });
      expect(await counted(worker, 'doorbuster_orders_gate_rebuilt_total')).toBe(ids.length);
    } finally {
      await worker?.close();
      await api.close();
      await ledger.close();
    }
  }, 90_000);
});
