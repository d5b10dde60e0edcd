import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { type Runtime, systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import { actor } from '../../src/model/actor.ts';
import type { SaleSnapshot, SnapshotPage } from '../../src/model/snapshot.ts';
import type { OrderResult } from '../../src/orders/seat-orders.ts';
import { readLedger } from '../support/fault-ledger.ts';
import { startCalmServer } from '../support/fault-server.ts';
import { until } from '../support/fault-wait.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { type Answer, cleanUp, saleBody, type TestServer, temporaryFolder } from '../support/server.ts';

afterAll(cleanUp);

describe('after kill -9 and a restart the gate is what the ledger says', () => {
  const sales: Record<'soldOut' | 'paused' | 'closed' | 'limited' | 'scheduled' | 'over', string> = {
    soldOut: '',
    paused: '',
    closed: '',
    limited: '',
    scheduled: '',
    over: '',
  };
  let server: TestServer;
  const first: Record<string, Answer> = {};
  let restocked: Answer;

  const order = (saleId: string, buyer: string, key?: string, quantity = 1): Promise<Answer> =>
    server.call('POST', `/v1/sales/${saleId}/orders`, {
      buyer,
      ...(key !== undefined && { key }),
      body: { item: 'voucher', quantity },
    });
  const change = (saleId: string, verb: string, body?: object): Promise<Answer> =>
    server.call('POST', `/v1/sales/${saleId}/${verb}`, { admin: true, ...(body && { body }) });
  const restock = (saleId: string): Promise<Answer> =>
    server.call('POST', `/v1/sales/${saleId}/items/voucher/stock`, { admin: true, key: 'restock', body: { add: 5 } });

  beforeAll(async () => {
    server = await startCalmServer();
    const create = async (input: Parameters<typeof saleBody>[0]): Promise<string> =>
      (await server.call('POST', '/v1/sales', { admin: true, body: saleBody(input) })).body.id;
    sales.soldOut = await create({ stock: 2 });
    sales.paused = await create({ stock: 10 });
    sales.closed = await create({ stock: 10 });
    sales.limited = await create({ stock: 10, perBuyer: 3 });
    sales.scheduled = await create({ stock: 10, opensAt: '2098-01-01T00:00:00.000Z' });
    sales.over = await create({ stock: 10, closesAt: new Date(Date.now() + 1_000).toISOString() });
    for (const name of ['soldOut', 'paused', 'closed', 'limited', 'over'] as const) {
      first[name] = await order(sales[name], 'alice', 'k', name === 'limited' ? 2 : 1);
      expect(first[name]!.status, name).toBe(201);
    }
    expect((await order(sales.soldOut, 'bob')).status).toBe(201);
    expect((await change(sales.paused, 'pause')).status).toBe(200);
    expect((await change(sales.closed, 'close')).status).toBe(200);
    restocked = await restock(sales.limited);
    expect(restocked.body.items[0].total).toBe(15);
    await until(
      'the window is over',
      3_000,
      async () => (await order(sales.over, 'carol')).body.code === 'sale_closed',
    );
    await server.kill();
    server = await startCalmServer({ data: server.data });
  });

  it('P5: every key of an accepted order gets it again, whatever the sale has become', async () => {
    for (const [name, answer] of Object.entries(first)) {
      const saleId = sales[name as keyof typeof sales];
      const again = await order(saleId, 'alice', 'k', name === 'limited' ? 2 : 1);
      expect([again.status, again.headers.get('idempotent-replayed'), again.body], name).toEqual([
        201,
        'true',
        answer.body,
      ]);
    }
    // Also for calls of admins: the stock is not added twice.
    const again = await restock(sales.limited);
    expect([again.status, again.headers.get('idempotent-replayed')]).toEqual([200, 'true']);
    expect(again.body).toEqual(restocked.body);
    expect((await server.call('GET', `/v1/sales/${sales.limited}`)).body.items[0].total).toBe(15);
  });

  it('P1: sold out is sold out, and a restock is seen at once', async () => {
    expect((await order(sales.soldOut, 'carol')).body.code).toBe('sold_out');
    const more = await server.call('POST', `/v1/sales/${sales.soldOut}/items/voucher/stock`, {
      admin: true,
      body: { add: 1 },
    });
    expect(more.status).toBe(200);
    expect((await order(sales.soldOut, 'carol')).status).toBe(201);
    expect((await order(sales.soldOut, 'dave')).body.code).toBe('sold_out');
  });

  it('P2: limits are in force, with the orders that fill them', async () => {
    const soldOut = await order(sales.soldOut, 'alice', 'another');
    expect([soldOut.body.code, soldOut.body.orders]).toEqual(['limit_reached', [first.soldOut!.body.id]]);
    expect((await order(sales.limited, 'alice', undefined, 2)).body.code).toBe('limit_reached');
    expect((await order(sales.limited, 'alice')).status).toBe(201);
    expect((await order(sales.limited, 'alice')).body.code).toBe('limit_reached');
  });

  it('states are in force: paused, closed, not open yet, over', async () => {
    expect((await order(sales.paused, 'bob')).body.code).toBe('sale_paused');
    expect((await order(sales.closed, 'bob')).body.code).toBe('sale_closed');
    expect((await order(sales.scheduled, 'bob')).body.code).toBe('sale_not_open');
    expect((await order(sales.over, 'bob')).body.code).toBe('sale_closed');
    expect((await change(sales.closed, 'resume')).body.code).toBe('sale_closed');
    expect((await change(sales.paused, 'resume')).status).toBe(200);
    expect((await order(sales.paused, 'bob')).status).toBe(201);
    // A window that was over and is extended sells again, under the same limits.
    const over = (await server.call('GET', `/v1/sales/${sales.over}`)).body;
    const patched = await server.call('PATCH', `/v1/sales/${sales.over}`, {
      admin: true,
      body: { version: over.version, closesAt: '2099-01-01T00:00:00.000Z' },
    });
    expect(patched.status).toBe(200);
    expect((await order(sales.over, 'bob')).status).toBe(201);
    expect((await order(sales.over, 'alice')).body.code).toBe('limit_reached');
  });

  it('ids go on: no number is used twice, and newer is larger', async () => {
    const old = BigInt(first.limited!.body.id);
    const next = await order(sales.paused, 'erin');
    expect(BigInt(next.body.id)).toBeGreaterThan(old);
    expect(await server.stop()).toBe(0);
    expect(readLedger(server.data, { folded: false }).faults).toEqual([]);
  });
});

/**
 * The backstops: a real shop with a gate that got a false snapshot. A gate learns of a sale by `install`; the first
 * call is falsified, and then the ledger and the rebuild must put it right.
 */
describe('a gate that is wrong', () => {
  const shops: EmbeddedShop[] = [];

  afterEach(async () => {
    vi.restoreAllMocks();
    for (const shop of shops.splice(0)) await shop.close();
  });

  const CALLER = { by: actor('system', 'test'), keyed: null };

  async function open(folder: string, runtime: Runtime = systemRuntime()): Promise<EmbeddedShop> {
    const shop = await EmbeddedShop.open(folder, runtime);
    shops.push(shop);
    return shop;
  }

  /** Falsifies the next snapshot of a gate. */
  function lieOnce(falsify: (snapshot: SaleSnapshot) => SaleSnapshot): void {
    const install = MemoryGate.prototype.install;
    vi.spyOn(MemoryGate.prototype, 'install').mockImplementationOnce(function (this: MemoryGate, snapshot) {
      return install.call(this, falsify(snapshot));
    });
  }

  async function* forgetting({ content }: SaleSnapshot, what: 'holds' | 'keys'): AsyncGenerator<SnapshotPage> {
    for await (const page of content) yield { ...page, [what]: [] };
  }

  type Outcome = 'ok' | 'replayed' | 'unavailable' | Extract<OrderResult, { ok: false }>['code'];

  async function place(shop: EmbeddedShop, saleId: string, buyer: string, key: string | null = null, quantity = 1) {
    const outcome: Outcome = await shop.place({ saleId, itemCode: 'voucher', buyer, quantity, key }).then(
      (result) => (result.ok ? (result.replayed ? 'replayed' : 'ok') : result.code),
      (error: { code: string }) => {
        if (error.code === 'unavailable') return 'unavailable';
        throw error;
      },
    );
    return outcome;
  }

  function count(outcomes: Outcome[]): Partial<Record<Outcome, number>> {
    const counts: Partial<Record<Outcome, number>> = {};
    for (const outcome of outcomes) counts[outcome] = (counts[outcome] ?? 0) + 1;
    return counts;
  }

  async function rebuilt(shop: EmbeddedShop): Promise<void> {
    await until('the gate is rebuilt', 5_000, () => shop.readiness().status === 'ok');
  }

  it('P1: more stock than there is: the surplus is rejected and not given back; exactly the stock is sold', async () => {
    const data = temporaryFolder();
    const before = await open(data);
    const saleId = await createSaleIn(before, { stock: 100 });
    for (let n = 0; n < 40; n++) expect(await place(before, saleId, `early-${n}`)).toBe('ok');
    await before.close();

    lieOnce((snapshot) => ({
      ...snapshot,
      items: snapshot.items.map((item) => ({ ...item, total: item.total + 10_000 })),
    }));
    const shop = await open(data);
    const rejected: string[] = [];
    shop.on('order.rejected', (order) => rejected.push(`${order.status} ${order.reason}`));
    // 10 000 buyers in waves of 50: if the surplus were given back, wave after wave would be admitted.
    const outcomes: Outcome[] = [];
    for (let wave = 0; wave < 200; wave++) {
      const buyers = Array.from({ length: 50 }, (_, n) => `buyer-${wave}-${n}`);
      outcomes.push(...(await Promise.all(buyers.map((buyer) => place(shop, saleId, buyer)))));
    }
    await rebuilt(shop);
    const counts = count(outcomes);
    expect(counts.ok).toBe(60);
    expect((counts.sold_out ?? 0) + (counts.unavailable ?? 0)).toBe(10_000 - 60);
    // Only the last wave met the backstop: 60 = 50 + 10, so 40 were rejected.
    expect(rejected).toEqual(Array(40).fill('rejected sold_out'));
    expect((await shop.getSaleNow(saleId))!.items[0]).toMatchObject({ total: 100, free: 0, reserved: 100, queued: 0 });
    const text = await shop.metrics.registry.metrics();
    expect(text).toMatch(/doorbuster_backstop_rejections_total\{reason="sold_out"\} 40/);

    // The rebuilt gate counts correctly: a restock of five sells five.
    expect((await shop.addStock(saleId, 'voucher', 5, CALLER)).outcome).toBe('changed');
    const late = await Promise.all(Array.from({ length: 20 }, (_, n) => place(shop, saleId, `late-${n}`)));
    expect(count(late)).toEqual({ ok: 5, sold_out: 15 });
    await shop.close();
    expect(readLedger(data, { folded: false }).faults).toEqual([]);
  });

  it('P1: the surplus of a batch with several units each: what is left is sold afterwards', async () => {
    const data = temporaryFolder();
    const before = await open(data);
    const saleId = await createSaleIn(before, { stock: 10, perBuyer: 3 });
    await before.close();
    lieOnce((snapshot) => ({ ...snapshot, items: snapshot.items.map((item) => ({ ...item, total: 1000 })) }));
    const shop = await open(data);
    const outcomes = await Promise.all(Array.from({ length: 7 }, (_, n) => place(shop, saleId, `b-${n}`, null, 3)));
    expect(count(outcomes)).toEqual({ ok: 3, sold_out: 4 });
    await rebuilt(shop);
    expect(await place(shop, saleId, 'last', null, 2)).toBe('sold_out');
    expect(await place(shop, saleId, 'last', null, 1)).toBe('ok');
    expect(await place(shop, saleId, 'too-late', null, 1)).toBe('sold_out');
  });

  it('P2: forgotten holds: a second order is rejected, and the buyer is told of the first afterwards', async () => {
    const data = temporaryFolder();
    const before = await open(data);
    const saleId = await createSaleIn(before, { stock: 100, perBuyer: 2 });
    expect(await place(before, saleId, 'alice', null, 2)).toBe('ok');
    await before.close();
    lieOnce((snapshot) => ({ ...snapshot, content: forgetting(snapshot, 'holds') }));
    const shop = await open(data);
    expect(await place(shop, saleId, 'alice')).toBe('limit_reached');
    await rebuilt(shop);
    const again = await shop.place({ saleId, itemCode: 'voucher', buyer: 'alice', quantity: 1, key: null });
    expect(again).toMatchObject({ ok: false, code: 'limit_reached', orderIds: [expect.any(String)] });
    expect((await shop.getSaleNow(saleId))!.items[0]).toMatchObject({ free: 98, reserved: 2 });
  });

  it('P5: forgotten keys: the retry is not a second order; told to come back, it gets the first', async () => {
    const data = temporaryFolder();
    const before = await open(data);
    const saleId = await createSaleIn(before, { stock: 100, perBuyer: 5 });
    const one = { saleId, itemCode: 'voucher', buyer: 'alice', quantity: 1, key: 'k' };
    const first = await before.place(one);
    await before.close();
    lieOnce((snapshot) => ({ ...snapshot, content: forgetting(snapshot, 'keys') }));
    const shop = await open(data);
    expect(await place(shop, saleId, 'alice', 'k')).toBe('unavailable');
    await rebuilt(shop);
    const again = await shop.place(one);
    expect(again).toEqual({ ...first, replayed: true });
    expect((await shop.getSaleNow(saleId))!.items[0]).toMatchObject({ free: 99, reserved: 1 });
    // The slot and the units of the refused order are free again.
    expect(await Promise.all([1, 2, 3, 4].map((n) => place(shop, saleId, 'alice', `other-${n}`)))).toEqual(
      Array(4).fill('ok'),
    );
  });

  it('an old epoch: its admissions end rejected, and the sale goes on', async () => {
    const data = temporaryFolder();
    const before = await open(data);
    const saleId = await createSaleIn(before, { stock: 10 });
    await before.close();
    lieOnce((snapshot) => ({ ...snapshot, epoch: snapshot.epoch - 1 }));
    const shop = await open(data);
    const outcomes = await Promise.all(Array.from({ length: 20 }, (_, n) => place(shop, saleId, `b-${n}`)));
    expect(count(outcomes)).toEqual({ unavailable: 10, sold_out: 10 });
    await rebuilt(shop);
    const again = await Promise.all(Array.from({ length: 20 }, (_, n) => place(shop, saleId, `b-${n}`)));
    expect(count(again)).toEqual({ ok: 10, sold_out: 10 });
  });

  /**
   * A rebuild reads the ledger and installs the gate some turns of the microtask queue later. A change that is stored in
   * between must not be forgotten by the new gate: stock that nobody can buy, or a paused sale that sells. The delays
   * try every such instant.
   */
  const DELAYS = Array.from({ length: 40 }, (_, ticks) => ticks);

  it('a restock that meets a rebuild is seen', async () => {
    const data = temporaryFolder();
    const before = await open(data);
    const sales: string[] = [];
    for (const _ of DELAYS) sales.push(await createSaleIn(before, { stock: 1 }));
    await before.close();
    const install = MemoryGate.prototype.install;
    const told = new Set<string>();
    vi.spyOn(MemoryGate.prototype, 'install').mockImplementation(function (this: MemoryGate, snapshot, latest) {
      const lie = !told.has(snapshot.saleId);
      told.add(snapshot.saleId);
      const items = snapshot.items.map((item) => ({ ...item, total: item.total + (lie ? 1 : 0) }));
      return install.call(this, { ...snapshot, items }, latest);
    });
    const shop = await open(data);
    const forgotten: number[] = [];
    for (const ticks of DELAYS) {
      const saleId = sales[ticks]!;
      const changing = Promise.withResolvers<unknown>();
      const hear = async (): Promise<void> => {
        shop.off('order.rejected', hear);
        for (let tick = 0; tick < ticks; tick++) await null;
        changing.resolve(await shop.addStock(saleId, 'voucher', 1, CALLER));
      };
      shop.on('order.rejected', hear);
      // The false snapshot admits the second one: it is rejected, and the gate is rebuilt.
      expect(count([await place(shop, saleId, 'a'), await place(shop, saleId, 'b')])).toEqual({ ok: 1, sold_out: 1 });
      await changing.promise;
      await rebuilt(shop);
      if ((await place(shop, saleId, 'c')) !== 'ok') forgotten.push(ticks);
    }
    expect(forgotten, 'microtasks after the rejection').toEqual([]);
  });

  it.each(['restock', 'pause'] as const)('a %s that meets the return of a sale to the gate is seen', async (what) => {
    const data = temporaryFolder();
    const runtime = systemRuntime();
    let skewMs = 0;
    const clock = { now: () => Date.now() + skewMs, monotonic: () => performance.now() };
    const before = await open(data, { ...runtime, clock });
    const sales: string[] = [];
    const sale = { stock: what === 'restock' ? 0 : 1, closesAtMs: Date.now() + 3_600_000 };
    for (const _ of DELAYS) sales.push(await createSaleIn(before, sale));
    await before.close();
    // The windows are over at the restart, so the gate does not hold these sales; a patch brings them back.
    skewMs = 7_200_000;
    const shop = await open(data, { ...runtime, clock });
    const forgotten: number[] = [];
    for (const ticks of DELAYS) {
      const saleId = sales[ticks]!;
      const back = shop.patchSale(saleId, { closesAtMs: clock.now() + 3_600_000 }, 1, CALLER);
      for (let tick = 0; tick < ticks; tick++) await null;
      const change =
        what === 'restock' ? shop.addStock(saleId, 'voucher', 1, CALLER) : shop.setPaused(saleId, true, CALLER);
      await Promise.all([back, change]);
      const outcome = await place(shop, saleId, 'a');
      if (outcome !== (what === 'restock' ? 'ok' : 'sale_paused')) forgotten.push(ticks);
    }
    expect(forgotten, 'microtasks after the patch').toEqual([]);
  });
});
