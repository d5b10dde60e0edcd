import { randomBytes } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import type { Rebuilder } from '../../src/gate/rebuild.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import { until } from '../support/fault-wait.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** Items that are changed and sales that are deleted, by a process that dies, meets an outage, or is overtaken. */
const CALLER = { by: actor('admin', 'admin'), keyed: null };
const PRICE = { amount: 7, currency: 'EUR' };
const ITEM = { code: 'new', name: 'New', price: PRICE, stock: 1000 };
/** Far longer than any of these takes when it works. */
const SOON_MS = 15_000;

let redis: RedisServer;
let url: string;
let prefix: string;
const ends: (() => unknown)[] = [];

async function openLedger(): Promise<Ledger> {
  const ledger = await openSqlLedger(url, systemRuntime(), { migrate: true, exclusive: false });
  ends.push(() => ledger.close());
  return ledger;
}

async function start(
  options: { worker?: boolean; redisUrl?: string; ledger?: Ledger; answerWithinMs?: number } = {},
): Promise<DistributedShop> {
  const { worker = true, redisUrl = redis.url, answerWithinMs = 5000 } = options;
  const ledger = options.ledger ?? (await openSqlLedger(url, systemRuntime(), { migrate: true, exclusive: false }));
  const shop = await DistributedShop.open(
    ledger,
    { redis: redisUrl, prefix, answerWithinMs, pipeMax: 10_000, worker, carrier: null, writerLock: 'off' },
    systemRuntime(),
  );
  ends.push(() => shop.close());
  return shop;
}

function openGate(): RedisGate {
  const gate = new RedisGate({ target: redis.url, prefix }, systemRuntime());
  ends.push(() => gate.close());
  return gate;
}

let buyers = 0;
const buy = (shop: DistributedShop, saleId: string, itemCode = 'voucher', key: string | null = null, buyer?: string) =>
  shop.place({ saleId, itemCode, buyer: buyer ?? `buyer-${++buyers}`, quantity: 1, key });
const said = (placed: ReturnType<typeof buy>): Promise<string> =>
  placed.then(
    (result) => (result.ok ? `${result.order.status} ${result.order.amount.amount}` : result.code),
    (error: { code: string }) => error.code,
  );
const keysOf = async (saleId: string) => (await redis.command('KEYS', `${prefix}:{${saleId}*`)) as string[];
const call = (auditId: string) => ({ ...CALLER, auditId, answer: () => '{}' });
let lastAuditId = 0;
const auditId = () => String(++lastAuditId);

describeWithRedis('changes of items and deleted sales', () => {
  describeWithPostgres('on PostgreSQL', () => {
    beforeAll(async () => {
      redis = await startRedis();
      url = await postgresUrl();
    }, 60_000);
    afterAll(cleanUpServers);
    beforeEach(() => {
      prefix = `changes-${randomBytes(4).toString('hex')}`;
    });
    afterEach(async () => {
      for (const end of ends.splice(0).reverse()) await end();
    }, 60_000);

    it('whoever changes items dies after the commit: the upkeep has the gate rebuilt', async () => {
      const shop = await start();
      const saleId = await createSaleIn(shop);
      expect(await said(buy(shop, saleId))).toBe('reserved 100');
      const maker = await openLedger();
      await maker.addItem(saleId, { ...ITEM, id: '990001' }, call(auditId()));
      await maker.patchItem(saleId, 'voucher', { price: PRICE }, 2, call(auditId()));
      // Until then the gate sells what it knows.
      await until('the new item sells', SOON_MS, async () => (await said(buy(shop, saleId, 'new'))) === 'reserved 7');
      expect(await said(buy(shop, saleId))).toBe('reserved 7');
      await until('nothing is left to do', SOON_MS, async () => (await maker.unfinishedTasks(-1000)).length === 0);
    });

    it('whoever deletes a sale dies after the commit: the upkeep takes its gate away', async () => {
      const shop = await start();
      const saleId = await createSaleIn(shop);
      const gate = openGate();
      const maker = await openLedger();
      await gate.shut(saleId);
      const { epoch } = (await maker.rebuildSnapshot(saleId))!;
      expect(await maker.deleteSale(saleId, epoch, { auditId: auditId(), by: CALLER.by })).toEqual({
        outcome: 'deleted',
      });
      expect((await keysOf(saleId)).length).toBeGreaterThan(0);
      expect(await said(buy(shop, saleId))).toBe('not_found');
      await until('its keys are gone', SOON_MS, async () => (await keysOf(saleId)).length === 0);
      await until('nothing is left to do', SOON_MS, async () => (await maker.unfinishedTasks(-1000)).length === 0);
      expect(await gate.saleIds()).not.toContain(saleId);
    });

    it('whoever deletes a sale dies before the commit: its gate opens again', async () => {
      const shop = await start();
      const saleId = await createSaleIn(shop);
      await openGate().shut(saleId);
      await until('it sells', SOON_MS, async () => (await said(buy(shop, saleId))) === 'reserved 100');
    });

    it('P3: a rebuild that was overtaken by the deletion opens no gate: nothing is accepted that no ledger takes', async () => {
      const reading = Promise.withResolvers<void>();
      const resume = Promise.withResolvers<void>();
      const slow = await openLedger();
      const real = slow.rebuildSnapshot.bind(slow);
      let held = false;
      slow.rebuildSnapshot = async (...args) => {
        const snapshot = await real(...args);
        if (held) {
          reading.resolve();
          await resume.promise;
        }
        return snapshot;
      };
      ends.pop();
      const builder = await start({ worker: false, ledger: slow });
      const shop = await start();
      const saleId = await createSaleIn(shop);
      held = true;
      const building = (builder as unknown as { rebuilder: Rebuilder }).rebuilder.build(saleId);
      await reading.promise;
      // It has no lock, as after a long stop.
      await until('it is deleted', SOON_MS, async () => {
        return (await shop.deleteSale(saleId, CALLER).catch(() => null)) === 'deleted';
      });
      resume.resolve();
      await building;
      expect(await said(buy(shop, saleId))).toBe('not_found');
      expect(await said(buy(builder, saleId))).toBe('not_found');
      expect(await keysOf(saleId)).toEqual([]);
    });

    it('P3: a sale is not deleted on the word of an epoch that is over', async () => {
      const shop = await start();
      const saleId = await createSaleIn(shop);
      const other = await openLedger();
      const { rebuilder } = shop as unknown as { rebuilder: Rebuilder };
      // Another process rebuilds the gate at the very moment.
      const taken = await rebuilder.takeAway(saleId, async (epoch) => {
        await other.rebuildSnapshot(saleId);
        return (await other.deleteSale(saleId, epoch, { auditId: auditId(), by: CALLER.by })).outcome === 'deleted';
      });
      expect(taken).toBe(false);
      await until('it sells', SOON_MS, async () => (await said(buy(shop, saleId))) === 'reserved 100');
    });

    it('P3: a price that is changed while nobody carries orders rejects none of them, and stops no sale', async () => {
      const api = await start({ worker: false, answerWithinMs: 100 });
      const saleId = await createSaleIn(api, { perBuyer: 5 });
      const first = await buy(api, saleId);
      expect(first).toMatchObject({ ok: true, order: { status: 'queued' } });
      const patched = api.patchItem(saleId, 'voucher', { price: PRICE }, 1, CALLER).then(
        ({ outcome }) => outcome,
        (error: { code: string }) => error.code,
      );
      // Longer than a rebuild waits for orders that nobody decides.
      await new Promise((resolve) => setTimeout(resolve, 3500));
      expect(await said(buy(api, saleId))).toBe('queued 100');
      expect(await patched).toBe('unavailable');
      await start();
      await until('the price is in force', SOON_MS, async () => (await said(buy(api, saleId))) === 'reserved 7');
      const orders = await api.listOrders({ saleId }, { limit: 50, before: null });
      expect(orders.filter(({ status }) => status === 'rejected')).toEqual([]);
      expect(orders.filter(({ amount }) => amount.amount === 100).length).toBeGreaterThanOrEqual(2);
      expect(orders.some(({ id }) => first.ok && id === first.order.id)).toBe(true);
    }, 40_000);

    it('Redis is out: 503, and the change is in force when it is back; no sale is deleted half', async () => {
      const proxy: FaultProxy = await startProxy(Number(new URL(redis.url).port));
      ends.push(() => proxy.close());
      const shop = await start({ redisUrl: `redis://127.0.0.1:${proxy.port}` });
      const saleId = await createSaleIn(shop);
      const other = await createSaleIn(shop);
      await proxy.refuse(true);
      proxy.cut();
      const [patched, deleted] = await Promise.all([
        shop.patchItem(saleId, 'voucher', { price: PRICE }, 1, CALLER).then(
          ({ outcome }) => outcome,
          (error: { code: string }) => error.code,
        ),
        shop.deleteSale(other, CALLER).catch((error: { code: string }) => error.code),
      ]);
      expect([patched, deleted]).toEqual(['unavailable', 'unavailable']);
      await proxy.refuse(false);
      await until('the price is in force', SOON_MS, async () => (await said(buy(shop, saleId))) === 'reserved 7');
      await until('the other sells', SOON_MS, async () => (await said(buy(shop, other))) === 'reserved 100');
    }, 40_000);

    it('P3: a dead letter is an order that somebody has yet to decide: its sale is not deleted', async () => {
      const shop = await start();
      const saleId = await createSaleIn(shop);
      const letter = { attempts: 5, error: 'a fault', epoch: '2', fields: [], diedAtMs: Date.now() };
      await redis.command('HSET', `${prefix}:{${saleId}:0}:dead`, '4711', JSON.stringify(letter));
      expect(await shop.deleteSale(saleId, CALLER)).toBe('sale_has_orders');
      expect(await said(buy(shop, saleId))).toBe('reserved 100');
    });
  });
});
