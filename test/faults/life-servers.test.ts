import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { actor } from '../../src/model/actor.ts';
import type { Order } from '../../src/views/present.ts';
import { below, crowdOf, oneOf, seedOf } from '../support/crowd-record.ts';
import { startShop, type TestShop } from '../support/distributed.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { Bank, type Plan } from '../support/life-bank.ts';
import {
  cancel,
  confirm,
  counts,
  now,
  openSale,
  order,
  PAYMENTS,
  PRICE,
  pay,
  place,
  refund,
  tell,
  untilStatus,
} from '../support/life-http.ts';
import { freshTables } from '../support/life-tables.ts';
import { LONG } from '../support/long.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { cleanUp, type TestServer, temporaryFolder } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import type { Product } from '../support/sql-databases.ts';

/** The life of orders in a shop of several processes: on Redis, and on MariaDB and PostgreSQL. */

const BY = actor('system', 'test');
const SETTLED_MS = 45_000;

let redis: RedisServer;

// Concurrent, since most of it is waiting: each has a database and names in Redis of its own.
describeWithRedis('a shop of several processes', () => {
  beforeAll(async () => {
    redis = await startRedis({ persistence: 'aof' });
  });
  afterAll(async () => {
    await cleanUp();
    await cleanUpServers();
  });

  describe.concurrent('at once', () => {
    describeWithMysql('on MariaDB', () => suite('mysql'));
    describeWithPostgres('on PostgreSQL', () => suite('postgres'));
  });
});

function suite(product: Product): void {
  // One database is enough for what is not about databases; all of it with LONG.
  it.runIf(LONG || product === 'postgres')(
    'P1, P4, P6, P9: several processes pay, cancel and refund the same orders, and all agrees in the end',
    async () => {
      const { random, label } = seedOf(`life on ${product}`);
      const { url, query, text, ...tables } = await freshTables(product);
      const shop: TestShop = await startShop({
        redisUrl: redis.url,
        databaseUrl: url,
        servers: 2,
        workers: 1,
        env: { ...PAYMENTS, REDIS_PREFIX: `life-${product}`, EVENT_LOOP_DELAY_MAX_MS: '60000' },
      });
      const servers = (): TestServer => oneOf(random, shop.servers);
      const stock = 40;
      const sale = await openSale(shop.servers[0]!, { stock, perBuyer: 2, payWithin: 2 });
      const orders: Order[] = [];
      const answers = new Map<string, number>();
      const strange: string[] = [];
      const endMs = performance.now() + (LONG ? 30_000 : 3000);
      let buyers = 0;

      async function client(): Promise<void> {
        while (performance.now() < endMs) {
          const fraction = random.fraction();
          const one = orders.length === 0 || fraction < 0.25 ? null : oneOf(random, orders.slice(-30));
          const calls =
            one === null
              ? [() => place(servers(), sale, `buyer-${buyers++}`)]
              : fraction < 0.55
                ? [() => pay(servers(), one, oneOf(random, ['ok', 'ok', 'declined']))]
                : fraction < 0.7
                  ? [() => cancel(servers(), one)]
                  : fraction < 0.8
                    ? [() => refund(servers(), one)]
                    : fraction < 0.85
                      ? [() => confirm(servers(), one, `till-${one.id}`)]
                      : // At once, at two processes.
                        [() => pay(shop.servers[0]!, one), () => oneOf(random, [pay, cancel])(shop.servers[1]!, one)];
          await Promise.all(
            calls.map(async (send) => {
              // A server that is killed answers nobody.
              const answer = await send().catch(() => null);
              if (answer === null) return;
              const what = `${answer.status} ${answer.body?.code ?? answer.body?.status}`;
              answers.set(what, (answers.get(what) ?? 0) + 1);
              if (answer.status === 201) orders.push(answer.body);
              if (answer.status >= 500 && answer.status !== 503) strange.push(JSON.stringify(answer.body));
            }),
          );
        }
      }
      const crowd = Promise.all(Array.from({ length: 12 }, client));
      if (LONG) {
        // Its locks stand until their leases are over: that is why it takes long.
        await sleep((endMs - performance.now()) / 2);
        const [, victim] = shop.servers;
        await victim!.kill();
        await shop.startServer();
        shop.servers.splice(1, 1);
      }
      await crowd;
      expect(strange, label).toEqual([]);
      await tables.settled();
      console.log(`${label}: ${orders.length} orders, ${JSON.stringify(Object.fromEntries(answers))}`);
      // On a busy machine some seconds are few calls.
      for (const needed of LONG ? ['200 paid', '200 cancelled', '200 refunded', '402 payment_failed'] : ['200 paid']) {
        expect(answers.get(needed) ?? 0, `${label} ${needed}`).toBeGreaterThan(0);
      }
      await tables.judge();
      // The sandbox's own book: what it has is what paid orders were paid with.
      expect(
        await query(
          `SELECT CAST(p.id AS ${text}) AS id, p.state, i.state AS there FROM payments p LEFT JOIN sandbox_intents i ON i.id = p.id
         WHERE p.provider = 'sandbox' AND (p.state = 'captured') <> (coalesce(i.state, 'none') = 'captured')`,
        ),
        label,
      ).toEqual([]);
      const [first] = shop.servers;
      const { sold, free, reserved } = await counts(first!, sale);
      expect({ sold: sold + free, reserved }, label).toEqual({ sold: stock, reserved: 0 });
      // The gate has what is free, and not a unit more.
      await until('every unit is back in the gate', 10_000, async () => {
        const placed = await place(first!, sale, `last-${buyers++}`);
        return placed.status === 409 && placed.body.code === 'sold_out';
      });
      expect(await counts(first!, sale), label).toMatchObject({ free: 0, queued: 0, reserved: free, sold });
    },
    120_000,
  );

  it('P6: pay against expiry at the same instant: exactly one wins, late money ends in goods or goes back', async () => {
    const { random, label } = seedOf(`race on ${product}`);
    const { url, query, ...tables } = await freshTables(product);
    const total = LONG ? 1000 : 80;
    const liars = new Set<string>();
    const bank = new Bank({
      file: join(temporaryFolder(), 'bank'),
      takesItsTime: () => sleep(below(random, 40)),
      liesOnVoid: (attemptId) => liars.has(attemptId),
    });
    const shops = await Promise.all([shopOf(), shopOf()]);
    try {
      const items = [{ code: 'voucher', name: 'V', price: PRICE, stock: total }];
      const saleId = await createSaleIn(shops[0]!, { payWithinSeconds: 2, items });
      const placed: { id: string; expiresAtMs: number }[] = [];
      await crowdOf(
        Array.from({ length: total }, (_, n) => `buyer-${n}`),
        32,
        async (buyer) => {
          const request = { saleId, itemCode: 'voucher', buyer, quantity: 1, key: null };
          const answer = await oneOf(random, shops).place(request);
          if (answer.ok && answer.order.expiresAtMs !== null) placed.push(answer.order as never);
        },
      );
      expect(placed.length, label).toBe(total);
      const plans: Plan[] = ['captured', 'captured', 'pending', 'nameless', 'silent', 'lost', 'declined'];
      const won = new Set<string>();
      await Promise.all(
        placed.map(async ({ id, expiresAtMs }) => {
          const at = async (ms: number): Promise<void> => sleep(Math.max(expiresAtMs + ms - Date.now(), 0));
          await at(below(random, 500) - 490);
          const paying = oneOf(random, shops).payOrder(id, { method: 'bank', token: oneOf(random, plans) }, BY);
          await at(below(random, 600));
          for (const intent of bank.of(id)) {
            if (random.fraction() < 0.5) liars.add(intent.id);
            if (random.fraction() < 0.5) bank.finish(intent.id, 'captured');
          }
          for (const news of bank.newsOf(id)) await oneOf(random, shops).paymentNews(news);
          const answer = await paying;
          if (answer.ok && answer.state === 'paid') won.add(id);
        }),
      );
      const told = new Set<string>();
      await until('all is told and settled', SETTLED_MS, async () => {
        for (const news of bank.news.filter(({ id }) => !told.has(id))) {
          await oneOf(random, shops).paymentNews(news);
          told.add(news.id);
        }
        await sleep(200);
        return told.size === bank.news.length && (await tables.unfinished()).length === 0;
      });
      await tables.judge();
      await tables.judgeMoney(bank);
      const ends = new Map<string, number>();
      for (const { id } of placed) {
        const { status } = (await shops[0]!.getOrder(id))!;
        ends.set(status, (ends.get(status) ?? 0) + 1);
        expect(['paid', 'expired'], `${label} ${id}`).toContain(status);
        if (won.has(id)) expect([id, status], label).toEqual([id, 'paid']);
      }
      const revived = await query('SELECT status FROM orders WHERE revives IS NOT NULL');
      console.log(`${label}: ${JSON.stringify(Object.fromEntries(ends))}, revived ${revived.length}`);
      // On a busy machine one side may win every time: that there was a winner each time is what counts.
      expect((ends.get('paid') ?? 0) + (ends.get('expired') ?? 0), label).toBeGreaterThan(0);
      const [item] = (await shops[0]!.getSaleNow(saleId))!.items;
      expect(item, label).toMatchObject({ reserved: 0, queued: 0, free: total - item!.sold });
    } finally {
      await Promise.all(shops.map((shop) => shop.close()));
    }

    async function shopOf(): Promise<DistributedShop> {
      const runtime = systemRuntime();
      const ledger = await openSqlLedger(url, runtime, { migrate: true, exclusive: false });
      const payments = { sandbox: false, providers: [bank.provider()], answerWithinMs: 500 };
      return await DistributedShop.open(
        ledger,
        {
          redis: redis.url,
          prefix: `race-${product}`,
          answerWithinMs: 2000,
          pipeMax: 5000,
          worker: true,
          writerLock: 'off',
          life: { payments },
        },
        runtime,
      );
    }
  }, 120_000);

  /** There is nothing to cancel or to pay before its commit. */
  async function queued(shop: TestShop, server: TestServer): Promise<void> {
    const sale = await openSale(server, { stock: 1 });
    for (const worker of shop.workers.splice(0)) await worker.stop();
    const waiting = await place(server, sale, 'queued');
    expect(waiting).toMatchObject({ status: 202, body: { status: 'queued' } });
    const refused = await cancel(server, waiting.body);
    expectProblem(refused, 409, 'order_not_cancellable');
    expect(refused.headers.get('retry-after')).toBe('1');
    expect(refused.body.order).toMatchObject({ status: 'queued' });
    const unpaid = await pay(server, waiting.body);
    expect([unpaid.status, unpaid.body.code]).toEqual([409, 'order_not_payable']);
    const cancelling = cancel(server, waiting.body);
    await shop.startWorker();
    // Whether it was committed in time is the worker's business.
    if ((await cancelling).status !== 200) {
      await untilStatus(server, waiting.body, 'reserved');
      expect((await cancel(server, waiting.body)).status).toBe(200);
    }
    expect(await counts(server, sale)).toMatchObject({ free: 1, reserved: 0, queued: 0 });
    expect((await place(server, sale, 'next')).status).toBe(201);
  }

  it.runIf(LONG || product === 'mysql')(
    'an order that is queued is not cancelled; with Redis out pay, cancel, refund and news go on, and units come back once',
    async () => {
      const { url, query, text, ...tables } = await freshTables(product);
      // Its own: it is stopped.
      const own = await startRedis({ persistence: 'aof' });
      const shop = await startShop({
        redisUrl: own.url,
        databaseUrl: url,
        servers: 1,
        workers: 1,
        env: { ...PAYMENTS, REDIS_PREFIX: `out-${product}`, ANSWER_WITHIN_MS: '700' },
      });
      const [server] = shop.servers as [TestServer];
      await queued(shop, server);
      const sale = await openSale(server, { stock: 5 });
      const [a, b, c, d, e] = await Promise.all(['a', 'b', 'c', 'd', 'e'].map((buyer) => order(server, sale, buyer)));
      expect((await pay(server, c!)).status).toBe(200);
      const pending = pay(server, d!, 'timeout');
      await until('it has begun', 5000, async () => (await now(server, d!)).payment?.state === 'pending');
      await own.pause();
      let outMs = 0;
      try {
        const startedMs = performance.now();
        const [paid, cancelled, refunded] = await Promise.all([
          pay(server, a!),
          cancel(server, b!),
          refund(server, c!),
        ]);
        outMs = performance.now() - startedMs;
        expect(paid).toMatchObject({ status: 200, body: { status: 'paid' } });
        expect(cancelled).toMatchObject({ status: 200, body: { status: 'cancelled' } });
        expect(refunded).toMatchObject({ status: 200, body: { status: 'refunded' } });
        const [attempt] = await query(`SELECT CAST(id AS ${text}) AS id FROM payments WHERE order_id = ${d!.id}`);
        const reference = `sandbox-${attempt!.id}`;
        const news = { type: 'payment.captured', orderId: d!.id, reference, amount: PRICE } as const;
        expect((await tell(server, news)).status).toBe(200);
        expect(await now(server, d!)).toMatchObject({ status: 'paid' });
        const waiting = await query(`SELECT CAST(order_id AS ${text}) AS id FROM release_outbox WHERE done_at IS NULL`);
        expect(waiting.map(({ id }) => id).sort()).toEqual([b!.id, c!.id].sort());

        // Five minutes later they are a finding.
        const check = (body: object) => server.call('POST', '/v1/ops/consistency/check', { admin: true, body });
        expect((await check({})).body).toMatchObject({ status: 'consistent', findings: [] });
        await query('UPDATE release_outbox SET created_at = created_at - 300001 WHERE done_at IS NULL');
        const { body: report } = await check({});
        expect(report.findings.map(({ id }: { id: string }) => id).sort()).toEqual(
          [`release-${b!.id}`, `release-${c!.id}`].sort(),
        );
        expect(report.findings[0]).toMatchObject({
          check: 'releases',
          saleId: sale,
          expected: "1 unit back in the gate within 300 s of the order's end",
        });
        expect((await check({ saleId: sale })).body).toMatchObject({ status: 'inconsistent' });
      } finally {
        await own.resume();
      }
      console.log(`with Redis out, on ${product}: pay, cancel and refund took ${Math.round(outMs)} ms`);
      await pending;
      expect((await cancel(server, e!)).status).toBe(200);
      await until('nothing waits', 15_000, async () => {
        return (await query('SELECT order_id FROM release_outbox WHERE done_at IS NULL')).length === 0;
      });
      const { body: healed } = await server.call('POST', '/v1/ops/consistency/check', { admin: true });
      expect(healed).toMatchObject({ status: 'consistent', findings: [] });
      await tables.judge();
      expect(await counts(server, sale)).toMatchObject({ free: 3, reserved: 0, sold: 2 });
      for (const [buyer, status] of [
        ['b', 201],
        ['c', 201],
        ['e', 201],
        ['f', 409],
      ] as const) {
        expect([buyer, (await place(server, sale, buyer)).status]).toEqual([buyer, status]);
      }
      await untilStatus(server, a!, 'paid');
    },
    60_000,
  );
}
