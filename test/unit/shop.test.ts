import { rmSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import type { Gate } from '../../src/gate/port.ts';
import type { Rebuilder } from '../../src/gate/rebuild.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import { actor } from '../../src/model/actor.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { temporary } from '../support/sqlite-ledger.ts';

/** The whole embedded shop in this process, with the system's own clock and timers. */
describe('the embedded shop', () => {
  const admin = { by: actor('admin', 'admin'), keyed: null };
  let folder: string;
  let shop: EmbeddedShop;

  beforeEach(async () => {
    folder = temporary();
    shop = await EmbeddedShop.open(folder, systemRuntime());
  });

  afterEach(async () => {
    await shop.close();
    rmSync(folder, { recursive: true, force: true });
  });

  const place = (saleId: string, buyer: string, key: string | null = null) =>
    shop.place({ saleId, itemCode: 'voucher', buyer, quantity: 1, key });

  it.each(['abc', '', '-1', '0', '1.5', '9'.repeat(19), '9'.repeat(40), '0x10'])(
    'an order in the sale %j, which cannot be, is not_found',
    async (saleId) => {
      expect(await place(saleId, 'alice')).toEqual({ ok: false, code: 'not_found' });
    },
  );

  it('P1 P2 P9: a crowd at once gets exactly the stock, one each, and the counts add up', async () => {
    const saleId = await createSaleIn(shop, { stock: 50 });
    const results = await Promise.all(
      Array.from({ length: 1000 }, (_, i) => place(saleId, `b${i % 300}`, i % 3 === 0 ? `k${i % 300}` : null)),
    );
    const bought = results.flatMap((result) => (result.ok && !result.replayed ? [result.order] : []));
    expect(bought).toHaveLength(50);
    expect(new Set(bought.map(({ buyer }) => buyer)).size).toBe(50);
    const { items } = (await shop.getSaleNow(saleId))!;
    expect(items).toMatchObject([{ total: 50, free: 0, queued: 0, reserved: 50, sold: 0, blocked: 0 }]);
  });

  it('P10: the lists of one buyer are read one at a time, and too many are refused; others are not held up', async () => {
    const end = Promise.withResolvers<never[]>();
    const asked: (string | undefined)[] = [];
    const spy = vi.spyOn(SqliteLedger.prototype, 'listOrders').mockImplementation(({ buyer }) => {
      asked.push(buyer);
      return buyer === 'mallory' ? end.promise : Promise.resolve([]);
    });
    onTestFinished(() => spy.mockRestore());
    const page = { limit: 1, before: null };
    const lists = Array.from({ length: 18 }, () => shop.listOrders({ buyer: 'mallory', status: 'refunded' }, page));
    await expect(lists[17]).rejects.toMatchObject({ code: 'overloaded' });
    expect(await shop.listOrders({ buyer: 'ann' }, page)).toEqual([]);
    expect(await shop.listOrders({}, page), 'nor is an operator').toEqual([]);
    expect(asked).toEqual(['mallory', 'ann', undefined]);
    end.resolve([]);
    await Promise.all(lists.slice(0, 17));
    expect(asked).toHaveLength(3 + 16);
  });

  it('P5: a key is answered with its order after sell-out, close and restart', async () => {
    const saleId = await createSaleIn(shop, { stock: 1 });
    const first = await place(saleId, 'alice', 'k');
    if (!first.ok) throw new Error(first.code);
    const replayed = { ok: true, order: first.order, replayed: true };
    expect(await place(saleId, 'bob')).toEqual({ ok: false, code: 'sold_out' });
    expect(await place(saleId, 'alice', 'k')).toEqual(replayed);
    await shop.setPaused(saleId, true, admin);
    expect(await place(saleId, 'alice', 'k')).toEqual(replayed);
    await shop.close();
    shop = await EmbeddedShop.open(folder, systemRuntime());
    expect(await place(saleId, 'alice', 'k')).toEqual(replayed);
    await shop.closeSale(saleId, admin);
    expect(await place(saleId, 'alice', 'k')).toEqual(replayed);
    expect(await place(saleId, 'alice', 'k2')).toMatchObject({ ok: false, code: 'sale_closed' });
  });

  describe('on a ledger that is held up', () => {
    let held: PromiseWithResolvers<void> | null = null;
    let slow: EmbeddedShop;
    let slowFolder: string;
    let ledger: SqliteLedger;

    beforeEach(async () => {
      slowFolder = temporary();
      ledger = SqliteLedger.open(slowFolder, systemRuntime());
      const commit = ledger.commitOrders.bind(ledger);
      ledger.commitOrders = async (batch) => {
        await held?.promise;
        return commit(batch);
      };
      slow = await EmbeddedShop.on(ledger, systemRuntime());
    });

    afterEach(async () => {
      held?.resolve();
      held = null;
      await slow.close();
      rmSync(slowFolder, { recursive: true, force: true });
    });

    const bought = (saleId: string, key: string): Promise<string> =>
      slow.place({ saleId, itemCode: 'voucher', buyer: 'alice', quantity: 1, key }).then(
        (result) => (result.ok ? `${result.order.status} ${result.replayed}` : result.code),
        (error: { code: string }) => error.code,
      );

    it('P5: the retry of an order in the pipe is not refused because its sale has ended and its gate is rebuilt', async () => {
      const saleId = await createSaleIn(slow, { stock: 1 });
      held = Promise.withResolvers<void>();
      const first = bought(saleId, 'k');
      await new Promise((resolve) => setImmediate(resolve));
      const closing = slow.closeSale(saleId, admin);
      const { gate, rebuilder } = slow as unknown as { gate: Gate; rebuilder: Rebuilder };
      await gate.shut(saleId);
      void rebuilder.rebuild(saleId);
      expect(await bought(saleId, 'k')).toBe('unavailable');
      const retry = bought(saleId, 'k');
      held.resolve();
      expect(await first).toBe('reserved false');
      expect(await retry).toBe('reserved true');
      await closing;
      expect(await bought(saleId, 'k')).toBe('reserved true');
      expect(await bought(saleId, 'k2')).toBe('sale_closed');
    });

    it('P4: what is stored as ended by the time the writer hears of it is released', async () => {
      const saleId = await createSaleIn(slow, { stock: 1 });
      const commit = ledger.commitOrders.bind(ledger);
      ledger.commitOrders = async (batch) => {
        // The commit's reply is late: the order is cancelled, by whoever read it, and the gate never hears of that.
        await commit(batch);
        for (const { orderId } of batch) {
          const by = actor('admin', 'admin');
          await ledger.moveOrders([{ orderId, event: 'cancel', by, auditId: '7', fence: null }]);
          await ledger.released([orderId]);
        }
        ledger.commitOrders = commit;
        return commit(batch);
      };
      expect(await bought(saleId, 'k'), 'the first answer').toBe('reserved false');
      expect(await bought(saleId, 'k2'), 'the unit is free again').toBe('reserved false');
    });
  });

  it('P1 P9: stock taken away and given while a crowd buys stays consistent', async () => {
    const saleId = await createSaleIn(shop, { stock: 40, perBuyer: 100 });
    let placed = 0;
    const crowd = Array.from({ length: 40 }, async (_, i) => {
      for (let j = 0; j < 10; j++) if ((await place(saleId, `b${i}`)).ok) placed++;
    });
    const changes = [-10, 5, -3, 20, -40, 7].map(async (add) => {
      const change = await shop.addStock(saleId, 'voucher', add, admin);
      return change.outcome === 'changed' ? add : 0;
    });
    await Promise.all(crowd);
    const added = (await Promise.all(changes)).reduce((sum, add) => sum + add, 0);
    const [item] = (await shop.getSaleNow(saleId))!.items;
    expect(item).toMatchObject({ total: 40 + added, reserved: placed, queued: 0 });
    expect(item!.free + placed).toBe(item!.total);
    // The gate agrees: it sells what is left and not one more.
    const left = await Promise.all(Array.from({ length: item!.free + 5 }, (_, i) => place(saleId, `late${i}`)));
    expect(left.filter(({ ok }) => ok)).toHaveLength(item!.free);
  });

  it('closing one sale does not wait for the crowd of another', async () => {
    const hot = await createSaleIn(shop, { stock: 1_000_000 });
    const other = await createSaleIn(shop, { stock: 1 });
    let stop = false;
    // More at once than a batch holds, as in any flash sale: the pipe is never empty while they go on.
    const crowd = Array.from({ length: 1200 }, async (_, i) => {
      for (let j = 0; !stop; j++) await place(hot, `b${i}-${j}`);
    });
    await new Promise((resolve) => setTimeout(resolve, 50));
    const closed = shop.closeSale(other, admin).then(() => 'closed');
    const late = new Promise((resolve) => setTimeout(() => resolve('still waiting after a second'), 1000));
    expect(await Promise.race([closed, late]).finally(() => (stop = true))).toBe('closed');
    await Promise.all(crowd);
  });
});
