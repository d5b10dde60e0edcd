import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startShop, type TestShop } from '../support/distributed.ts';
import { admin, counts, isWhole, place, replayed } from '../support/distributed-calls.ts';
import { until } from '../support/fault-wait.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { type Answer, allOrders, cleanUp, createSale, saleBody, type TestServer } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithRedis } from '../support/servers/describe.ts';
import { anyMysql } from '../support/servers/mariadb.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { startRedis } from '../support/servers/redis.ts';

/** The ledger or Redis is out, and comes back, while the processes of the shop stay. */
let shop: TestShop;
let toRedis: FaultProxy;
let toDatabase: FaultProxy;
/** Carries orders itself; the other one does not. */
let a: TestServer;
let b: TestServer;

const ANSWER_WITHIN_MS = 500;

async function without<T>(proxy: FaultProxy, run: () => Promise<T>): Promise<T> {
  await proxy.refuse(true);
  proxy.cut();
  try {
    return await run();
  } finally {
    await proxy.refuse(false);
  }
}

async function timed(call: Promise<Answer>): Promise<Answer & { ms: number }> {
  const begunMs = performance.now();
  const answer = await call;
  return { ...answer, ms: performance.now() - begunMs };
}

const ready = (server: TestServer): Promise<Answer> => server.call('GET', '/readyz');
const orderAt = (server: TestServer, id: string): Promise<Answer> =>
  server.call('GET', `/v1/orders/${id}`, { admin: true });

function expectRetryable(answer: Answer): void {
  expectProblem(answer, 503, 'unavailable');
  expect(answer.headers.get('retry-after')).toMatch(/^\d+$/);
}

describeWithRedis('a part of the shop is out', () => {
  describeWithMysql('with MariaDB', () => {
    beforeAll(async () => {
      const [redis, database] = await Promise.all([startRedis(), anyMysql()]);
      [toRedis, toDatabase] = await Promise.all([startProxy(redis.port), startProxy(database.port)]);
      const databaseUrl = new URL(database.url);
      databaseUrl.port = String(toDatabase.port);
      shop = await startShop({
        redisUrl: `redis://127.0.0.1:${toRedis.port}`,
        databaseUrl: databaseUrl.href,
        servers: 0,
        workers: 0,
        env: { ANSWER_WITHIN_MS: String(ANSWER_WITHIN_MS), REDIS_PREFIX: 'outage-test', LOG_LEVEL: 'fatal' },
      });
      [a, b] = await Promise.all([shop.startServer([]), shop.startServer()]);
    }, 60_000);
    afterAll(async () => {
      await cleanUp();
      await cleanUpServers();
    });

    describe('the ledger', () => {
      it('orders are queued, reads go on as far as they can, changes wait; then all are decided', async () => {
        const sale = await createSale(a, { stock: 10, perBuyer: 8 });
        const early = await place(b, sale, 'early', { key: 'k' });
        expect(early.status).toBe(201);
        await Promise.all([counts(a, sale), counts(b, sale)]);

        const queued = await without(toDatabase, async () => {
          const answers = await Promise.all([
            place(a, sale, 'alice', { key: 'k' }),
            place(b, sale, 'bob', { key: 'k' }),
          ]);
          for (const answer of answers) {
            expect(answer, JSON.stringify(answer.body)).toMatchObject({ status: 202, body: { status: 'queued' } });
          }
          const orders = answers.map(({ body }) => body);
          for (const { id } of orders) {
            const seen = await Promise.all([orderAt(a, id), orderAt(b, id)]);
            for (const answer of seen) expect(answer).toMatchObject({ status: 200, body: { id, status: 'queued' } });
          }
          const again = await place(b, sale, 'alice', { key: 'k' });
          expect(again).toMatchObject({ status: 202, body: { id: orders[0].id, status: 'queued' } });
          expect(replayed(again)).toBe(true);
          // The gate decides as always.
          expectProblem(await place(a, sale, 'early', { quantity: 8 }), 409, 'limit_reached');
          expectProblem(await place(b, sale, 'carol', { quantity: 8 }), 409, 'sold_out');

          for (const server of [a, b]) {
            const seen = await server.call('GET', `/v1/sales/${sale}`);
            expect(seen).toMatchObject({ status: 200, body: { id: sale, items: [{ total: 10 }] } });
            expect(isWhole(seen.body.items[0])).toBe(true);
            const { status, body } = await until('the outage is noticed', 4_000, async () => {
              const now = await ready(server);
              return now.body.parts.ledger === 'ok' ? null : now;
            });
            expect({ status, body }).toMatchObject({ status: 200, body: { status: 'ok', parts: { gate: 'ok' } } });
          }
          expectRetryable(await admin(a, 'POST', '/v1/sales', { body: saleBody() }));
          expectRetryable(await admin(b, 'POST', `/v1/sales/${sale}/pause`));
          expectRetryable(await admin(a, 'POST', `/v1/sales/${sale}/items/voucher/stock`, { body: { add: -1 } }));
          expectRetryable(await admin(a, 'GET', '/v1/orders'));
          return orders;
        });

        await until('all are decided', 10_000, async () => {
          const now = await Promise.all(queued.map(({ id }) => orderAt(b, id)));
          return now.every(({ body }) => body.status === 'reserved');
        });
        await until('the ledger is ready', 5_000, async () => {
          const now = await Promise.all([ready(a), ready(b)]);
          return now.every(({ body }) => body.parts.ledger === 'ok');
        });
        await until('the counts have come', 2_000, async () => (await counts(a, sale)).reserved === 3);
        expect(await counts(a, sale)).toMatchObject({ total: 10, free: 7, queued: 0 });
        // The stock change that failed holds no units, and the sale was not paused.
        expect((await place(b, sale, 'dora')).status).toBe(201);
        expect(await allOrders(a, sale)).toHaveLength(4);
        const replay = await place(a, sale, 'early', { key: 'k' });
        expect([replay.status, replay.body, replayed(replay)]).toEqual([201, early.body, true]);
      });

      it('what was committed before is not shown as queued', async () => {
        const sale = await createSale(a, { stock: 10 });
        const first = await place(a, sale, 'alice', { key: 'k' });
        expect(first.status).toBe(201);
        await without(toDatabase, async () => {
          // Its answer cannot be repeated now, and a different one must not be given.
          const again = await place(b, sale, 'alice', { key: 'k' });
          expect({ status: again.status, order: again.body.status }).not.toEqual({ status: 202, order: 'queued' });
          const seen = await orderAt(b, first.body.id);
          expect(seen.body.status).not.toBe('queued');
        });
        const again = await until('the first answer', 5_000, async () => {
          const one = await place(b, sale, 'alice', { key: 'k' });
          return one.status === 503 ? null : one;
        });
        expect([again.status, again.body]).toEqual([201, first.body]);
      });
    });

    it('a ledger that does not answer: orders are queued as with one that refuses, and nothing waits for it for long', async () => {
      const sale = await createSale(a, { stock: 10, perBuyer: 8 });
      expect((await place(b, sale, 'early')).status).toBe(201);
      await Promise.all([counts(a, sale), counts(b, sale)]);
      toDatabase.freeze();
      try {
        const answers = await Promise.all([timed(place(a, sale, 'alice')), timed(place(b, sale, 'bob'))]);
        for (const { status, body, ms } of answers) {
          expect({ status, order: body.status }, JSON.stringify(body)).toEqual({ status: 202, order: 'queued' });
          expect(ms).toBeLessThan(4_000);
        }
        const { id } = answers[0].body;
        const reads = await Promise.all([
          timed(orderAt(a, id)),
          timed(orderAt(b, id)),
          timed(a.call('GET', `/v1/sales/${sale}`)),
          timed(b.call('GET', `/v1/sales/${sale}`)),
        ]);
        const told = reads.map(({ status, ms }) => ({ status, late: ms > 3_000 }));
        expect(told, `${reads.map(({ ms }) => Math.round(ms))} ms`).toEqual(
          reads.map(() => ({ status: 200, late: false })),
        );
      } finally {
        toDatabase.thaw();
      }
      await until('all are decided', 10_000, async () => (await counts(a, sale)).reserved === 3);
    });

    describe('Redis', () => {
      it.each(['refuses', 'is silent'])(
        '%s: orders get 503 at once, reads go on, and it comes back by itself',
        async (how) => {
          const sale = await createSale(a, { stock: 50, perBuyer: 5 });
          const before = await place(b, sale, 'before', { key: 'k' });
          expect(before.status).toBe(201);
          const paused = await createSale(a, { stock: 5 });
          let making: Promise<Answer> | null = null;
          const during = async (): Promise<void> => {
            // A sale that is created meanwhile is stored; its gate is built when Redis is back.
            making = admin(a, 'POST', '/v1/sales', { key: how, body: saleBody({ stock: 1 }) });
            // The first requests may have been in flight; later ones do not wait for a Redis that is out.
            for (const server of [a, b]) {
              await until('the outage is noticed', 5_000, async () => {
                expectRetryable(await place(server, sale, 'first'));
                const { status, body } = await ready(server);
                return status === 503 && body.parts.gate !== 'ok';
              });
              const answers: (Answer & { ms: number })[] = [];
              for (let n = 0; n < 10; n++) answers.push(await timed(place(server, sale, `out-${n}`, { key: 'k' })));
              for (const answer of answers) expectRetryable(answer);
              // One of them may be the probe that checks whether Redis is back.
              const slow = answers.map(({ ms }) => Math.round(ms)).filter((ms) => ms >= 300);
              expect(slow.length, `${server === a ? 'a' : 'b'}: ${slow}`).toBeLessThanOrEqual(
                how === 'refuses' ? 0 : 1,
              );

              const order = await timed(orderAt(server, before.body.id));
              expect(order).toMatchObject({ status: 200, body: before.body });
              const one = await timed(server.call('GET', `/v1/sales/${sale}`));
              expect(one).toMatchObject({ status: 200, body: { items: [{ total: 50, reserved: 1 }] } });
              const list = await timed(admin(server, 'GET', `/v1/orders?saleId=${sale}`));
              expect(list).toMatchObject({ status: 200, body: { data: [{ id: before.body.id }] } });
              const sales = await timed(server.call('GET', '/v1/sales?limit=2'));
              expect(sales.status).toBe(200);
              const slowReads = [order, one, list, sales].map(({ ms }) => Math.round(ms));
              expect(Math.max(...slowReads), `order, sale, orders, sales: ${slowReads} ms`).toBeLessThan(500);
            }
            // The ledger has stored it, and the answer says that the gate does not know it yet.
            expectRetryable(await admin(b, 'POST', `/v1/sales/${paused}/pause`));
          };
          if (how === 'refuses') await without(toRedis, during);
          else {
            toRedis.freeze();
            try {
              await during();
            } finally {
              toRedis.thaw();
            }
          }
          for (const server of [a, b]) {
            const after = await until('it sells again', 8_000, async () => {
              const one = await place(server, sale, 'after', { key: server.url });
              return one.status === 503 ? null : one;
            });
            expect([201, 202]).toContain(after.status);
            await until('ready', 5_000, async () => (await ready(server)).status === 200);
          }
          const replay = await place(a, sale, 'before', { key: 'k' });
          expect([replay.status, replay.body, replayed(replay)]).toEqual([201, before.body, true]);
          await until('nothing is queued', 5_000, async () => (await counts(a, sale)).queued === 0);
          const item = await counts(a, sale);
          expect(isWhole(item)).toBe(true);
          // An order in flight that got 503 may have bought: its key tells. None was bought twice.
          const orders = await allOrders(a, sale);
          const keyed = orders.filter(({ buyer }) => buyer.startsWith('out-')).map(({ buyer }) => buyer);
          expect(keyed.length).toBe(new Set(keyed).size);
          expect(item.reserved).toBe(orders.filter(({ status }) => status === 'reserved').length);
          // 201 if Redis was back in time, otherwise 503: retry with the same key.
          expect([201, 503]).toContain((await making!).status);
          const made = await admin(b, 'POST', '/v1/sales', { key: how, body: saleBody({ stock: 1 }) });
          expect([made.status, replayed(made)]).toEqual([201, true]);
          await until(
            'it sells, too',
            5_000,
            async () => (await place(b, made.body.id, 'x', { key: 'k' })).status === 201,
          );
          // The gate gets the changes that it had missed.
          await until(
            'the pause is in force',
            8_000,
            async () => (await place(a, paused, 'x')).body.code === 'sale_paused',
          );
        },
      );

      it('SIGTERM of processes with undecided 202s that reach no server: they exit with 0, and the order is decided later', async () => {
        const sale = await createSale(a, { stock: 5 });
        const queued = await without(toDatabase, async () => {
          const one = await place(b, sale, 'alice', { key: 'k' });
          expect(one.status).toBe(202);
          return without(toRedis, async () => {
            const begunMs = performance.now();
            expect(await Promise.all([a.stop(), b.stop()])).toEqual([0, 0]);
            expect(performance.now() - begunMs).toBeLessThan(9_500);
            return one.body;
          });
        });
        a = await shop.startServer([]);
        await until('it is reserved', 15_000, async () => (await orderAt(a, queued.id)).body.status === 'reserved');
      });
    });
  });
});
