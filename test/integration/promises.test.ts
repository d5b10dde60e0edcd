import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Order, Sale } from '../../src/views/present.ts';
import { CrowdClient, type CrowdReply } from '../support/crowd-client.ts';
import {
  countFaults,
  keyFaults,
  ledgerOrders,
  limitFaults,
  lossFaults,
  oversellFaults,
  saleNow,
} from '../support/crowd-judge.ts';
import { below, CrowdRecord, crowdOf, oneOf, seedOf, shuffled, type Try } from '../support/crowd-record.ts';
import { startCalmServer } from '../support/fault-server.ts';
import { sleep } from '../support/fault-wait.ts';
import { cleanUp, createSale, saleBody, type TestServer } from '../support/server.ts';

/**
 * The promises over HTTP, against a server in its own process. A crowd buys once, before the tests; each test then
 * judges one promise on what the buyers were told, what the ledger lists and what the sale counts.
 */

afterAll(cleanUp);

function metric(text: string, name: string): number {
  if (!text.includes(`# HELP ${name} `)) throw new Error(`there is no metric ${name}`);
  const found = [...text.matchAll(new RegExp(`^${name}(?:{[^}]*})? (\\S+)$`, 'gm'))];
  return found.reduce((sum, [, value]) => sum + Number(value), 0);
}

describe('5 000 buyers × 3 tries for 100 vouchers, one for each', () => {
  const STOCK = 100;
  const BUYERS = 5000;
  const record = new CrowdRecord();
  let label: string;
  let server: TestServer;
  let saleId: string;
  let sale: Sale;
  let orders: Order[];
  const samples: Sale[] = [];
  /** Retries of every accepted key, by when they were sent. */
  const later: Record<'sold out' | 'restarted' | 'closed', Try[]> = { 'sold out': [], restarted: [], closed: [] };
  let afterKill: { sale: Sale; orders: Order[] };
  let refusedByBackstop: number;

  beforeAll(async () => {
    const { random, label: printed } = seedOf('promises, one each');
    label = printed;
    server = await startCalmServer();
    saleId = await createSale(server, { stock: STOCK, perBuyer: 1 });
    let client = new CrowdClient(server.url, 64);

    let over = false;
    const watching = (async () => {
      while (!over) {
        samples.push(await saleNow(server, saleId));
        await sleep(30);
      }
    })();
    // 256 buyers at a time, so that first attempts, double clicks and retries of different buyers overlap.
    const buyers = shuffled(
      random,
      Array.from({ length: BUYERS }, (_, n) => `buyer-${n}`),
    );
    await crowdOf(buyers, 256, async (buyer) => {
      let key: string | undefined = `${buyer} 1`;
      for (let turn = 1; turn <= 3; turn++) {
        const twice = key !== undefined && random.fraction() < 0.35;
        await Promise.all(Array.from({ length: twice ? 2 : 1 }, () => record.place(client, { saleId, buyer, key })));
        const next = random.fraction();
        // The same key after the answer, another key, or none.
        if (next > 0.45) key = next > 0.85 ? undefined : `${buyer} ${turn + 1}`;
      }
    });
    over = true;
    await watching;
    sale = await saleNow(server, saleId);
    orders = await ledgerOrders(server, saleId);
    const metrics = await server.call('GET', '/metrics', { admin: true });
    refusedByBackstop = metric(metrics.body as string, 'doorbuster_backstop_rejections_total');

    const keyed = [...record.accepted().values()].filter(({ key }) => key !== undefined);
    const retryAll = async (when: keyof typeof later): Promise<void> => {
      await crowdOf(keyed, 64, async ({ buyer, key }) => {
        later[when].push(await record.place(client, { saleId, buyer, key }));
      });
    };
    await retryAll('sold out');
    await server.kill();
    client.close();
    server = await startCalmServer({ data: server.data });
    client = new CrowdClient(server.url, 64);
    afterKill = { sale: await saleNow(server, saleId), orders: await ledgerOrders(server, saleId) };
    await retryAll('restarted');
    expect((await server.call('POST', `/v1/sales/${saleId}/close`, { admin: true })).status).toBe(200);
    await retryAll('closed');
    client.close();
  }, 60_000);

  it('P1: exactly the stock is sold, at no instant more', () => {
    expect(samples.length, label).toBeGreaterThan(1);
    for (const seen of [...samples, sale]) {
      expect(countFaults(seen), label).toEqual([]);
      expect(seen.items[0]!.reserved, label).toBeLessThanOrEqual(STOCK);
    }
    expect(oversellFaults(sale, orders), label).toEqual([]);
    expect(sale, label).toMatchObject({ state: 'sold_out', items: [{ total: STOCK, free: 0, reserved: STOCK }] });
    expect(record.accepted().size, label).toBe(STOCK);
    // The gate itself was always right; the ledger's backstops refused nothing.
    expect(refusedByBackstop, label).toBe(0);
  });

  it('P2: no buyer has more than one', () => {
    expect(limitFaults(orders, 1), label).toEqual([]);
    expect(new Set([...record.accepted().values()].map(({ buyer }) => buyer)).size, label).toBe(STOCK);
    // A buyer who has an order and sends another key is told so, with the order's id.
    const again = record.tries.filter(({ code }) => code === 'limit_reached');
    expect(again.length, label).toBeGreaterThan(0);
    const owners = new Set(orders.map(({ buyer }) => buyer));
    expect(again.filter(({ buyer }) => !owners.has(buyer)).length, label).toBe(0);
  });

  it('P3: every 201 is in the ledger with that content, also after kill -9, and nothing else is', () => {
    expect(record.strange, label).toEqual([]);
    expect(record.tries.filter(({ status }) => status === 0 || status === 503).length, label).toBe(0);
    expect(lossFaults(record.tries, orders), label).toEqual([]);
    expect(lossFaults(record.tries, afterKill.orders), label).toEqual([]);
    expect(afterKill.orders, label).toEqual(orders);
    expect(afterKill.sale.items, label).toEqual(sale.items);
  });

  it('P5: one effect for each key: at once, later, after sell-out, kill -9 and close', () => {
    expect(keyFaults(record.tries, { strict: true }), label).toEqual([]);
    for (const [when, tries] of Object.entries(later)) {
      expect(tries.length, `${label} ${when}`).toBeGreaterThan(0);
      expect(tries.filter(({ status, replayed }) => status !== 201 || !replayed).length, `${label} ${when}`).toBe(0);
    }
  });

  it('P5: the same key for another order is refused and buys nothing', async () => {
    const [one] = [...record.accepted().values()].filter(({ key }) => key !== undefined);
    const reply = await server.call('POST', `/v1/sales/${saleId}/orders`, {
      buyer: one!.buyer,
      key: one!.key!,
      body: { item: 'voucher', quantity: 2 },
    });
    expect([reply.status, reply.body.code]).toEqual([422, 'idempotency_key_reused']);
    // Keys are compared byte by byte per buyer: the same key of another buyer is another key.
    const other = await server.call('POST', `/v1/sales/${saleId}/orders`, {
      buyer: one!.buyer.toUpperCase(),
      key: one!.key!,
      body: { item: 'voucher' },
    });
    expect([other.status, other.body.code]).toEqual([409, 'sale_closed']);
  });
});

describe('three for each, several items, while the operator restocks, pauses and patches', () => {
  const ITEMS = { stalls: 700, balcony: 400, standing: 1200 };
  const BUYERS = 2500;
  type Code = keyof typeof ITEMS;
  const CODES = Object.keys(ITEMS) as Code[];
  const record = new CrowdRecord();
  let label: string;
  let sale: Sale;
  let orders: Order[];
  const samples: Sale[] = [];
  const totals: Record<Code, number> = { ...ITEMS };
  /** Spans in which a state was certainly in force: from the answer that set it to the request that ended it. */
  const spans: { paused: boolean; perBuyer: number; fromMs: number; toMs: number }[] = [];
  const operator = { restocked: 0, lowered: 0, notFree: 0, paused: 0, patched: 0 };
  const badChanges: string[] = [];
  let refusedByBackstop: number;
  let afterKill: { sale: Sale; orders: Order[] };

  beforeAll(async () => {
    const { random, label: printed } = seedOf('promises, three each');
    label = printed;
    let server = await startCalmServer();
    const made = await server.call('POST', '/v1/sales', {
      admin: true,
      body: saleBody({
        perBuyer: 3,
        items: CODES.map((code) => ({
          code,
          name: code,
          price: { amount: 100, currency: 'CNY' },
          stock: ITEMS[code],
        })),
      }),
    });
    const saleId: string = made.body.id;
    const client = new CrowdClient(server.url, 64);
    const office = new CrowdClient(server.url, 3);
    const base = `/v1/sales/${saleId}`;

    let over = false;
    let [paused, perBuyer, version] = [false, 3, 1];
    let fromMs = performance.now();
    const change = async (what: { paused?: boolean; perBuyer?: number }, send: () => Promise<CrowdReply>) => {
      const reply = await send();
      if (reply.status !== 200)
        badChanges.push(`${JSON.stringify(what)}: ${reply.status} ${JSON.stringify(reply.body)}`);
      spans.push({ paused, perBuyer, fromMs, toMs: reply.sentAtMs });
      ({ paused = paused, perBuyer = perBuyer } = what);
      version = reply.body.version;
      fromMs = reply.answeredAtMs;
    };
    const flip = (): Promise<void> =>
      change({ paused: !paused }, () => office.send({ path: `${base}/${paused ? 'resume' : 'pause'}`, admin: true }));
    const limit = (to: number): Promise<void> =>
      change({ perBuyer: to }, () =>
        office.send({ method: 'PATCH', path: base, admin: true, body: { version, perBuyer: to } }),
      );
    const stock = async (): Promise<void> => {
      const code = oneOf(random, CODES);
      const add = below(random, 41) - 20 || 1;
      const reply = await office.send({ path: `${base}/items/${code}/stock`, admin: true, body: { add } });
      if (reply.status === 200) {
        totals[code] += add;
        if (add > 0) operator.restocked++;
        else operator.lowered++;
      } else if (reply.status === 409 && reply.body.code === 'insufficient_free' && add < 0) operator.notFree++;
      else badChanges.push(`add ${add}: ${reply.status} ${JSON.stringify(reply.body)}`);
    };
    // Two clerks change stock, so that changes of one item overlap; one operator changes the sale itself.
    const clerk = async (): Promise<void> => {
      while (!over) {
        await sleep(below(random, 20));
        await stock();
      }
    };
    const operating = (async () => {
      while (!over) {
        await sleep(20 + below(random, 60));
        if (random.fraction() < 0.5) {
          await flip();
          await sleep(5 + below(random, 25));
          await flip();
          operator.paused++;
        } else {
          await limit(oneOf(random, [1, 2]));
          await sleep(5 + below(random, 25));
          await limit(3);
          operator.patched++;
        }
      }
    })();
    const clerks = [clerk(), clerk()];
    const watching = (async () => {
      while (!over) {
        samples.push(await saleNow(server, saleId));
        await sleep(20);
      }
    })();

    const buyers = shuffled(
      random,
      Array.from({ length: BUYERS }, (_, n) => `buyer-${n}`),
    );
    await crowdOf(buyers, 96, async (buyer) => {
      let wish = { saleId, buyer, item: oneOf(random, CODES), quantity: 1 + below(random, 3), key: `${buyer} 1` };
      for (let turn = 1; turn <= 4; turn++) {
        const twice = random.fraction() < 0.35;
        await Promise.all(Array.from({ length: twice ? 2 : 1 }, () => record.place(client, wish)));
        if (random.fraction() > 0.4) {
          wish = {
            ...wish,
            item: oneOf(random, CODES),
            quantity: 1 + below(random, 3),
            key: `${buyer} ${turn + 1}`,
          };
        }
      }
    });
    over = true;
    await Promise.all([operating, watching, ...clerks]);
    spans.push({ paused, perBuyer, fromMs, toMs: performance.now() });

    // Latecomers buy the rest one by one: a unit that the gate forgot would stay unsold.
    for (const item of CODES) {
      const latecomers = Array.from({ length: 3000 }, (_, n) => `late-${item}-${n}`);
      await crowdOf(
        latecomers,
        32,
        async (buyer) => (await record.place(client, { saleId, buyer, item })).status === 201,
      );
    }
    sale = await saleNow(server, saleId);
    orders = await ledgerOrders(server, saleId);
    const metrics = await server.call('GET', '/metrics', { admin: true });
    refusedByBackstop = metric(metrics.body as string, 'doorbuster_backstop_rejections_total');
    client.close();
    office.close();
    await server.kill();
    server = await startCalmServer({ data: server.data });
    afterKill = { sale: await saleNow(server, saleId), orders: await ledgerOrders(server, saleId) };
    expect(await server.stop()).toBe(0);
    console.log(`${label}: ${record.tries.length} requests, ${orders.length} orders, ${JSON.stringify(operator)}`);
  }, 60_000);

  it('the operator was heard', () => {
    expect(badChanges, label).toEqual([]);
    for (const [what, times] of Object.entries(operator)) {
      if (what !== 'notFree') expect(times, `${label} ${what}`).toBeGreaterThan(0);
    }
  });

  it('P1: exactly the stock of each item is sold, at no instant more', () => {
    for (const seen of [...samples, sale]) expect(countFaults(seen), label).toEqual([]);
    expect(oversellFaults(sale, orders), label).toEqual([]);
    for (const { code, total, free, reserved } of sale.items) {
      expect({ code, total, free, reserved }, label).toEqual({
        code,
        total: totals[code as Code],
        free: 0,
        reserved: totals[code as Code],
      });
    }
    expect(refusedByBackstop, label).toBe(0);
  });

  it('P2: no order lifts a buyer above the limit then in force', () => {
    expect(limitFaults(orders, 3), label).toEqual([]);
    const accepted = record.accepted();
    const units = new Map<string, number>();
    const faults: string[] = [];
    // Ids are given at admission and grow: this is the order in which the buyer's units came.
    for (const order of live().sort((a, b) => (BigInt(a.id) < BigInt(b.id) ? -1 : 1))) {
      const now = (units.get(order.buyer) ?? 0) + order.quantity;
      units.set(order.buyer, now);
      const span = spanOf(firstTry(accepted, order));
      if (span !== undefined && now > span.perBuyer) faults.push(`${order.buyer}: ${now} units under ${span.perBuyer}`);
    }
    expect(faults, label).toEqual([]);
  });

  it('a paused sale sells nothing', () => {
    const accepted = record.accepted();
    const sold = live().filter((order) => spanOf(firstTry(accepted, order))?.paused);
    expect(sold, label).toEqual([]);
    expect(record.tries.filter(({ code }) => code === 'sale_paused').length, label).toBeGreaterThan(0);
  });

  it('P3: every 201 is in the ledger with that content, also after kill -9, and nothing else is', () => {
    expect(record.strange, label).toEqual([]);
    expect(record.tries.filter(({ status }) => status === 0 || status === 503).length, label).toBe(0);
    expect(lossFaults(record.tries, orders), label).toEqual([]);
    expect(afterKill.orders, label).toEqual(orders);
    expect(afterKill.sale.items, label).toEqual(sale.items);
  });

  it('P5: one effect for each key', () => {
    expect(keyFaults(record.tries, { strict: false }), label).toEqual([]);
    const replayed = record.tries.filter((one) => one.replayed);
    expect(replayed.length, label).toBeGreaterThan(0);
  });

  it('P9: the counts add up to the total at every look, also after kill -9', () => {
    expect(samples.length, label).toBeGreaterThan(5);
    for (const seen of [...samples, sale, afterKill.sale]) expect(countFaults(seen), label).toEqual([]);
  });

  function live(): Order[] {
    return orders.filter(({ status }) => status === 'reserved');
  }

  function firstTry(accepted: Map<string, Try>, order: Order): Try {
    const told = record.tries.find((one) => one.order?.id === order.id && !one.replayed);
    return told ?? accepted.get(order.id)!;
  }

  /** The span that contains the whole request, if any: only then it is known what was in force at its admission. */
  function spanOf({ sentAtMs, answeredAtMs }: Try) {
    return spans.find(({ fromMs, toMs }) => fromMs <= sentAtMs && answeredAtMs <= toMs);
  }
});
