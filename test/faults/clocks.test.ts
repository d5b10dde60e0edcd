import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Runtime } from '../../src/base/runtime.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import { GateUpkeep } from '../../src/gate/upkeep.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { actor } from '../../src/model/actor.ts';
import type { PaymentProvider } from '../../src/payments/port.ts';
import { sleep } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { newSale } from '../support/new-sale.ts';
import { cleanUp } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import { freshDatabase, type Product, queryDatabase } from '../support/sql-databases.ts';

/** A process whose clock is wrong: what is old, over or due is judged by the clock of the store that has it. */

const HOUR_MS = 3600_000;
const OFF_MS = 25 * HOUR_MS;
const BY = actor('system', 'test');
const ADMIN = { by: actor('admin', 'admin'), keyed: null };

const right = systemRuntime();
const off = (ms: number): Runtime => ({ ...right, clock: { ...right.clock, now: () => Date.now() + ms } });

let redis: RedisServer;
let prefixes = 0;
const closing: (() => unknown)[] = [];

describeWithRedis('a process whose clock is a day off', () => {
  beforeAll(async () => {
    redis = await startRedis({ persistence: 'aof' });
  });
  afterAll(async () => {
    for (const close of closing.splice(0).reverse()) await close();
    await cleanUp();
    await cleanUpServers();
  });
  describe.concurrent('at once', () => {
    describeWithMysql('on MariaDB', () => suite('mysql'));
    describeWithPostgres('on PostgreSQL', () => suite('postgres'));
  });
});

function suite(product: Product): void {
  async function world() {
    const url = await freshDatabase(product);
    const prefix = `clocks-${prefixes++}`;
    const ledgerOf = (runtime: Runtime) => openSqlLedger(url, runtime, { migrate: true, exclusive: false });
    const shopOf = async (runtime: Runtime, worker: boolean) => {
      const common = { redis: redis.url, prefix, answerWithinMs: 10_000, pipeMax: 1000 };
      const options = { ...common, worker, writerLock: 'off' as const };
      const shop = await DistributedShop.open(await ledgerOf(runtime), options as never, runtime);
      closing.push(() => shop.close());
      return shop;
    };
    const gateOf = (runtime: Runtime) => {
      const gate = new RedisGate({ target: redis.url, prefix } as never, runtime);
      closing.push(() => gate.close());
      return gate;
    };
    return { url, ledgerOf, shopOf, gateOf };
  }

  async function made(
    shop: EmbeddedShop | DistributedShop,
    closesInMs: number,
  ): Promise<{ id: string; itemId: string }> {
    const window = { opensAtMs: Date.now() - 2 * OFF_MS, closesAtMs: Date.now() + closesInMs };
    const change = await shop.createSale(newSale({ ...window, perBuyer: 5, stock: 50 }), ADMIN);
    if (change.outcome !== 'changed') throw new Error(change.outcome);
    return { id: change.sale.id, itemId: change.sale.items[0]!.id };
  }

  it.each(LONG || product === 'postgres' ? [OFF_MS, -OFF_MS] : [OFF_MS])(
    'P5: as the process that looks after gates, %i ms off, forgets no key, no release and no unit of the house that is young',
    async (ms) => {
      const { url, ledgerOf, shopOf, gateOf } = await world();
      const shop = await shopOf(right, true);
      const { id: saleId, itemId } = await made(shop, HOUR_MS);
      const place = (buyer: string, key: string) =>
        shop.place({ saleId, itemCode: 'voucher', buyer, quantity: 1, key });
      const first = await place('alice', 'k1');
      if (!first.ok) throw new Error(first.code);
      const scope2 = { caller: 'admin:admin', actingFor: null, operation: 'sale.resume', subject: saleId, key: 'k2' };
      const keyed = { by: actor('admin', 'admin'), keyed: { ...scope2, fingerprint: 'f' } };
      await shop.setPaused(saleId, false, keyed);
      const second = await place('bob', 'k3');
      if (!second.ok) throw new Error(second.code);
      await shop.cancelOrder(second.order.id, BY);
      const gate = gateOf(off(ms));
      expect(await gate.holdForHouse(saleId, itemId, 3, 'house:1')).toBe(true);

      const ledger = await ledgerOf(off(ms));
      closing.push(() => ledger.close());
      // The rebuilder is not asked: its gate is there.
      const unused = {} as never;
      await new GateUpkeep({ runtime: off(ms), gate, ledger, lead: unused, rebuilder: unused }).round();

      const again = await place('alice', 'k1');
      expect(again).toMatchObject({ ok: true, replayed: true, order: { id: first.order.id } });
      expect(await shop.setPaused(saleId, false, keyed)).toMatchObject({ outcome: 'replayed' });
      const scope = { saleId, buyer: 'alice', key: 'k1' };
      expect(await ledger.findOrderKey(scope), 'in the ledger, too').toMatchObject({ orderId: first.order.id });
      const rows = await queryDatabase(url, 'SELECT count(*) AS n FROM release_outbox');
      expect(Number(rows[0]!.n)).toBe(1);
      const [hold] = await gate.houseHolds(saleId);
      expect(hold).toMatchObject({ holdId: 'house:1', itemId });
      expect(hold!.ageMs).toBeGreaterThanOrEqual(0);
      expect(hold!.ageMs).toBeLessThan(60_000);
    },
  );

  it.runIf(LONG || product === 'postgres')(
    'does not take an open sale without a gate for one that is over',
    async () => {
      const { shopOf, gateOf } = await world();
      const shop = await shopOf(off(OFF_MS), false);
      const ahead = gateOf(right);
      const { id: saleId } = await made(shop, HOUR_MS).catch(async () => {
        // Its gate may not have been built in time: the sale is stored.
        const [sale] = await shop.listSales({ limit: 1, before: null });
        return { id: sale!.id };
      });
      await ahead.remove(saleId);
      const lowered = shop.addStock(saleId, 'voucher', -1, ADMIN);
      await expect(lowered, 'its units may be in the pipe').rejects.toThrow('is being rebuilt');
      await ahead.remove(saleId);
      const placed = shop.place({ saleId, itemCode: 'voucher', buyer: 'alice', quantity: 1, key: null });
      await expect(placed).rejects.toThrow('is being rebuilt');
    },
  );

  it.runIf(LONG || product === 'postgres')(
    'waits for a payment as long as its order may be paid, and does not give up one that has just begun',
    async () => {
      const { url } = await world();
      const calls: string[] = [];
      const provider: PaymentProvider = {
        name: 'bank',
        capture: async ({ attemptId, token, amount }) => {
          await sleep(800);
          if (token === 'pending') return { state: 'pending', reference: attemptId, redirectUrl: null };
          return { state: 'captured', reference: attemptId, amount };
        },
        query: async (attemptId) => ({ state: 'pending', reference: attemptId, redirectUrl: null }),
        void: async (attemptId) => {
          calls.push(`void ${attemptId}`);
          return { state: 'voided' };
        },
        refund: async () => ({ reference: null }),
      };
      // The database's clock is behind this process'.
      const now = () => Date.now() - OFF_MS;
      const ledger = await openSqlLedger(url, right, { migrate: true, exclusive: false, now });
      const life = { payments: { sandbox: false, providers: [provider] } };
      const shop = await EmbeddedShop.on(ledger, right, life as never);
      closing.push(() => shop.close());
      const { id: saleId } = await made(shop, HOUR_MS);
      const pay = async (buyer: string, token: string) => {
        const placed = await shop.place({ saleId, itemCode: 'voucher', buyer, quantity: 1, key: null });
        if (!placed.ok) throw new Error(placed.code);
        const by = () => shop.payOrder(placed.order.id, { method: 'bank', token }, BY);
        return { first: await by(), by };
      };
      const [{ first: quick }, slow] = await Promise.all([pay('alice', 'captured'), pay('bob', 'pending')]);
      expect(quick).toMatchObject({ ok: true, state: 'paid' });
      expect(slow.first).toMatchObject({ ok: true, state: 'pending' });
      expect(await slow.by()).toMatchObject({ ok: false, code: 'payment_in_progress' });
      expect(calls).toEqual([]);
    },
  );
}
