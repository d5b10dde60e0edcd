import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startShop, type TestShop } from '../support/distributed.ts';
import { admin, bearer, counts, isWhole, metric, place, replayed } from '../support/distributed-calls.ts';
import { until } from '../support/fault-wait.ts';
import { Contract, operationsOf, send, valid } from '../support/openapi-fuzz.ts';
import { expectProblem, openStream } from '../support/openapi-wire.ts';
import {
  ADMIN_KEY,
  type Answer,
  allOrders,
  cleanUp,
  createSale,
  saleBody,
  type TestServer,
} from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** Two API processes without a worker of their own, and a worker that comes and goes. */
let redis: RedisServer;
let shop: TestShop;
let a: TestServer;
let b: TestServer;

/** Long enough for a commit on a busy machine, short enough to wait for a 202. */
const ANSWER_WITHIN_MS = 700;

async function withoutWorker<T>(run: () => Promise<T>): Promise<T> {
  for (const worker of shop.workers.splice(0)) expect(await worker.stop()).toBe(0);
  try {
    return await run();
  } finally {
    if (shop.workers.length === 0) await shop.startWorker();
  }
}

const both = <T>(run: (server: TestServer) => Promise<T>): Promise<[T, T]> => Promise.all([run(a), run(b)]);

describeWithRedis('a shop of several processes', () => {
  describeWithPostgres('on PostgreSQL', () => {
    beforeAll(async () => {
      redis = await startRedis({ persistence: 'aof' });
      shop = await startShop({
        redisUrl: redis.url,
        databaseUrl: await postgresUrl(),
        servers: 2,
        workers: 1,
        env: { ANSWER_WITHIN_MS: String(ANSWER_WITHIN_MS), REDIS_PREFIX: 'shop-test', PIPE_MAX: '8' },
      });
      [a, b] = shop.servers as [TestServer, TestServer];
    }, 60_000);
    afterAll(async () => {
      await cleanUp();
      await cleanUpServers();
    });

    // PostgreSQL's text cannot contain it.
    it('U+0000 in any parameter of any route, with and without a key, is no failure', async () => {
      const sale = await createSale(a);
      const failed: string[] = [];
      const ask = async (method: string, path: string, body: unknown): Promise<void> => {
        for (const key of [{}, { 'idempotency-key': 'nul' }]) {
          const own = {
            authorization: `Bearer ${ADMIN_KEY}`,
            ...(path.endsWith('/pay') && { 'doorbuster-buyer': 'x' }),
          };
          const headers = { ...own, ...key, 'content-type': 'application/json' };
          const { status, text } = await send(a.url, {
            method,
            path,
            headers,
            body: body ? JSON.stringify(body) : null,
          });
          if (status >= 500) failed.push(`${method} ${path} ${JSON.stringify(key)}: ${text}`);
        }
      };
      for (const operation of operationsOf((await a.call('GET', '/openapi.json')).body)) {
        const { method, path, parameters, body } = operation;
        // Bodies that the schema allows, so that only the parameter is wrong; several, because each takes another path.
        const bodies = body === null ? [null] : fc.sample(valid(body.schema), { numRuns: 9, seed: 7 });
        const of = (where: string): string[] => parameters.filter((one) => one.in === where).map(({ name }) => name);
        const filled = (odd: string): string =>
          path.replace(/\{(\w+)\}/g, (_, name) => (name === odd ? '%00' : name === 'id' ? sale : 'voucher'));
        for (const name of of('path')) for (const json of bodies) await ask(method, filled(name), json);
        for (const name of of('query')) {
          for (const odd of ['%00', 'a%00b']) await ask(method, `${filled('')}?${name}=${odd}`, null);
        }
      }
      expect(failed).toEqual([]);
      expect(a.output()).not.toContain('a request failed');
    });

    describe('changes to a sale', () => {
      it('a sale made at one process sells at the other, to its last unit and up to the limit', async () => {
        const sale = await createSale(a, { stock: 3, perBuyer: 2 });
        const first = await place(b, sale, 'alice', { quantity: 2 });
        expect(first).toMatchObject({ status: 201, body: { status: 'reserved', quantity: 2, buyer: 'alice' } });
        const limit = await place(a, sale, 'alice');
        expectProblem(limit, 409, 'limit_reached');
        expect(limit.body.orders).toEqual([first.body.id]);
        expectProblem(await place(a, sale, 'bob', { quantity: 2 }), 409, 'sold_out');
        expect((await place(a, sale, 'bob')).status).toBe(201);
        expectProblem(await place(b, sale, 'carol'), 409, 'sold_out');
        for (const item of await both((server) => counts(server, sale))) {
          expect(item).toMatchObject({ total: 3, free: 0, queued: 0, reserved: 3 });
        }
        expect((await a.call('GET', `/v1/sales/${sale}`)).body.state).toBe('sold_out');
        expect((await b.call('GET', `/v1/orders/${first.body.id}`, { buyer: 'alice' })).body).toEqual(first.body);
        expect((await a.call('GET', `/v1/orders/${first.body.id}`, { buyer: 'bob' })).status).toBe(404);
      });

      it('pause, resume and close are in force at the other process at once', async () => {
        const sale = await createSale(a, { stock: 10 });
        expect((await place(b, sale, 'before')).status).toBe(201);
        const paused = await admin(a, 'POST', `/v1/sales/${sale}/pause`);
        expect(paused).toMatchObject({ status: 200, body: { state: 'paused' } });
        expectProblem(await place(b, sale, 'during'), 409, 'sale_paused');
        await until('the other shows it', 1_000, async () => {
          return (await b.call('GET', `/v1/sales/${sale}`)).body.state === 'paused';
        });
        await admin(b, 'POST', `/v1/sales/${sale}/resume`);
        expect((await place(a, sale, 'after')).status).toBe(201);
        await admin(b, 'POST', `/v1/sales/${sale}/close`);
        const closed = await place(a, sale, 'late');
        expectProblem(closed, 409, 'sale_closed');
        expect(closed.body.closesAt).toMatch(/Z$/);
        expectProblem(await admin(a, 'POST', `/v1/sales/${sale}/resume`), 409, 'sale_closed');
      });

      it('patch: of two at the same version one is told version_conflict; the limit holds everywhere', async () => {
        const sale = await createSale(a, { stock: 10, perBuyer: 1 });
        expect((await place(a, sale, 'alice')).status).toBe(201);
        expectProblem(await place(b, sale, 'alice'), 409, 'limit_reached');
        const answers = await both((server) =>
          admin(server, 'PATCH', `/v1/sales/${sale}`, { body: { perBuyer: 3, version: 1 } }),
        );
        expect(answers.map(({ status }) => status).sort()).toEqual([200, 409]);
        expectProblem(answers.find(({ status }) => status === 409)!, 409, 'version_conflict');
        expect((await place(b, sale, 'alice', { quantity: 2 })).status).toBe(201);
        const lower = await admin(b, 'PATCH', `/v1/sales/${sale}`, { body: { perBuyer: 1, version: 2 } });
        expect(lower).toMatchObject({ status: 200, body: { perBuyer: 1, version: 3 } });
        // Lowering the limit takes no order away.
        expect((await counts(a, sale)).reserved).toBe(3);
        expectProblem(await place(a, sale, 'alice'), 409, 'limit_reached');
      });

      it('more stock sells at the other process; less goes down to what is free', async () => {
        const sale = await createSale(a, { stock: 1, perBuyer: 5 });
        const stock = (server: TestServer, add: number) =>
          admin(server, 'POST', `/v1/sales/${sale}/items/voucher/stock`, { body: { add } });
        expect((await place(a, sale, 'alice')).status).toBe(201);
        expectProblem(await place(a, sale, 'bob'), 409, 'sold_out');
        expect(await stock(b, 4)).toMatchObject({ status: 200, body: { items: [{ total: 5, free: 4 }] } });
        expect((await place(a, sale, 'bob', { quantity: 2 })).status).toBe(201);
        expectProblem(await stock(a, -3), 409, 'insufficient_free');
        expect((await stock(b, -2)).body.items[0]).toMatchObject({ total: 3, free: 0, reserved: 3 });
        expectProblem(await place(a, sale, 'carol'), 409, 'sold_out');
        // The refused change holds no units: a new unit can be bought.
        expect((await stock(a, 1)).status).toBe(200);
        expect((await place(b, sale, 'carol')).status).toBe(201);
      });

      it('the window opens, closes and is extended at every process', async () => {
        const soon = (ms: number): string => new Date(Date.now() + ms).toISOString();
        const sale = await createSale(a, { stock: 5, opensAt: soon(1_000), closesAt: soon(2_500) });
        const early = await place(b, sale, 'alice', { key: 'k' });
        expectProblem(early, 409, 'sale_not_open');
        expect(Date.parse(early.body.opensAt)).toBeGreaterThan(Date.now() - 1_000);
        // A refused order does not bind its key.
        const first = await until('it opens', 3_000, async () => {
          const one = await place(b, sale, 'alice', { key: 'k' });
          return one.status === 201 ? one : null;
        });
        await until('it closes', 4_000, async () => (await place(a, sale, 'alice')).body.code === 'sale_closed');
        const again = await place(a, sale, 'alice', { key: 'k' });
        expect([again.status, again.body]).toEqual([201, first.body]);
        const extended = await admin(b, 'PATCH', `/v1/sales/${sale}`, {
          body: { closesAt: soon(3_600_000), version: 1 },
        });
        expect(extended.status, JSON.stringify(extended.body)).toBe(200);
        expect((await place(a, sale, 'bob')).status).toBe(201);
        expectProblem(await place(b, sale, 'alice'), 409, 'limit_reached');
      });

      it('a key of an admin works at every process', async () => {
        const body = saleBody({ stock: 1 });
        const answers = await both((server) => admin(server, 'POST', '/v1/sales', { key: 'one-sale', body }));
        expect(answers.map(({ status }) => status)).toEqual([201, 201]);
        expect(answers[0]!.body).toEqual(answers[1]!.body);
        expect(answers.filter(replayed)).toHaveLength(1);
      });
    });

    describe('P5: one effect per Idempotency-Key', () => {
      it('the same key at two processes at the same time is one order', async () => {
        const sale = await createSale(a, { stock: 50, perBuyer: 5 });
        for (let round = 0; round < 5; round++) {
          const answers = await both((server) => place(server, sale, `twin-${round}`, { key: 'click' }));
          expect(answers.map(({ status }) => status)).toEqual([201, 201]);
          expect(answers[0]!.body).toEqual(answers[1]!.body);
          expect(answers.filter(replayed)).toHaveLength(1);
          expect(new Set(answers.map(({ headers }) => headers.get('location'))).size).toBe(1);
        }
        expect(await allOrders(a, sale)).toHaveLength(5);
        const other = await place(b, sale, 'twin-0', { key: 'click', quantity: 2 });
        expectProblem(other, 422, 'idempotency_key_reused');
        // Another buyer's key of the same name is another key.
        expect(replayed(await place(b, sale, 'somebody', { key: 'click' }))).toBe(false);
      });

      it('a replay is right after sell-out, close, FLUSHALL and with another body', async () => {
        const sale = await createSale(a, { stock: 1 });
        const first = await place(a, sale, 'alice', { key: 'k' });
        expect(first.status).toBe(201);
        const again = async (server: TestServer): Promise<void> => {
          const answer = await until('a replay', 5_000, async () => {
            const one = await place(server, sale, 'alice', { key: 'k' });
            return one.status === 503 ? null : one;
          });
          expect([answer.status, answer.body, replayed(answer)]).toEqual([201, first.body, true]);
        };
        await both(again);
        await redis.command('FLUSHALL');
        await both(again);
        expectProblem(await place(b, sale, 'alice', { key: 'k', quantity: 2 }), 422, 'idempotency_key_reused');
        await until('the gate is back', 5_000, async () => (await place(b, sale, 'bob')).body.code === 'sold_out');
        await admin(a, 'POST', `/v1/sales/${sale}/close`);
        await both(again);
        expect(await allOrders(a, sale)).toHaveLength(1);
      });

      it('the key of a buyer and that of an admin who acts for the buyer are two, at every process and after FLUSHALL', async () => {
        const sale = await createSale(a, { stock: 5, perBuyer: 2 });
        const by = [{}, { bearer: ADMIN_KEY, headers: { 'doorbuster-buyer': 'alice' } }];
        const first = [
          await place(a, sale, 'alice', { key: 'k' }),
          await place(a, sale, 'alice', { key: 'k', ...by[1] }),
        ];
        expect(first.map(({ status }) => status)).toEqual([201, 201]);
        expect(first[0]!.body.id).not.toBe(first[1]!.body.id);
        const again = (server: TestServer): Promise<unknown> =>
          Promise.all(
            by.map(async (who, at) => {
              const answer = await until('a replay', 5_000, async () => {
                const one = await place(server, sale, 'alice', { key: 'k', ...who });
                return one.status === 503 ? null : one;
              });
              expect([answer.status, answer.body, replayed(answer)]).toEqual([201, first[at]!.body, true]);
            }),
          );
        await both(again);
        await redis.command('FLUSHALL');
        await both(again);
        await until(
          'the gate is back',
          5_000,
          async () => (await place(b, sale, 'alice')).body.code === 'limit_reached',
        );
        await both(again);
        expect(await allOrders(a, sale)).toHaveLength(2);
      });

      it('… and after all processes have been killed and started anew; what was queued goes on, closed sale or not', async () => {
        const [sale, other] = await Promise.all([createSale(a, { stock: 5 }), createSale(a, { stock: 5 })]);
        const first = await place(a, sale, 'alice', { key: 'k' });
        expect(first.status).toBe(201);
        await Promise.all(shop.workers.splice(0).map((worker) => worker.kill()));
        const queued = await place(b, other, 'alice', { key: 'k' });
        expect(queued.status).toBe(202);
        expect((await admin(a, 'POST', `/v1/sales/${other}/close`)).status).toBe(200);
        await Promise.all([a.kill(), b.kill()]);
        shop.servers.splice(0);
        await Promise.all([shop.startServer(), shop.startServer(), shop.startWorker()]);
        [a, b] = shop.servers as [TestServer, TestServer];
        const again = await place(b, sale, 'alice', { key: 'k' });
        expect([again.status, again.body, replayed(again)]).toEqual([201, first.body, true]);
        expectProblem(await place(a, sale, 'alice'), 409, 'limit_reached');
        expect((await place(a, sale, 'bob')).status).toBe(201);
        // No process that knows it is alive, but the pipe contains it. The window was checked at admission.
        await until('it is reserved', 10_000, async () => {
          const { body } = await a.call('GET', `/v1/orders/${queued.body.id}`, { buyer: 'alice' });
          return body.status === 'reserved';
        });
        expect((await allOrders(b, other)).map(({ id }) => id)).toEqual([queued.body.id]);
      });
    });

    describe('202', () => {
      it('without a worker: queued, seen everywhere, and reserved when one comes', async () => {
        const sale = await createSale(a, { stock: 10, perBuyer: 5 });
        await withoutWorker(async () => {
          const begunMs = performance.now();
          const queued = await place(a, sale, 'alice', { quantity: 2, key: 'k' });
          expect(performance.now() - begunMs).toBeGreaterThan(ANSWER_WITHIN_MS - 50);
          expect(queued.status, JSON.stringify(queued.body)).toBe(202);
          expect(queued.body).toMatchObject({
            saleId: sale,
            buyer: 'alice',
            item: 'voucher',
            quantity: 2,
            amount: { amount: 16_000, currency: 'CNY' },
            status: 'queued',
            reason: null,
            expiresAt: null,
          });
          const { id } = queued.body;
          expect(queued.headers.get('location')).toBe(`/v1/orders/${id}`);
          expect(await contractFault(a, 'POST', '/v1/sales/{id}/orders', queued)).toBeNull();

          const [here, there] = await both((server) => server.call('GET', `/v1/orders/${id}`, { buyer: 'alice' }));
          for (const seen of [here, there]) {
            expect(seen).toMatchObject({ status: 200, body: { id, status: 'queued', quantity: 2, item: 'voucher' } });
            expect(seen.body.amount).toEqual(queued.body.amount);
          }
          expect((await b.call('GET', `/v1/orders/${id}`, { buyer: 'bob' })).status).toBe(404);
          const again = await place(b, sale, 'alice', { quantity: 2, key: 'k' });
          expect(again).toMatchObject({ status: 202, body: { id, status: 'queued' } });
          expect(replayed(again)).toBe(true);

          const item = await until('the queue shows', 1_000, async () => {
            const now = await counts(b, sale);
            return now.queued === 2 ? now : null;
          });
          expect(item).toMatchObject({ total: 10, free: 8, reserved: 0 });
          expect(isWhole(item)).toBe(true);
          expect(await metric(a, 'doorbuster_owed_orders')).toBe(1);
          // It answered a repeat with 202, so it now owes the decision, too.
          expect(await metric(b, 'doorbuster_owed_orders')).toBe(1);

          const stream = await openStream(`${b.url}/v1/orders/${id}/events`, bearer('alice'));
          await stream.until(({ data }) => data.status === 'queued');
          await shop.startWorker();
          const reserved = await stream.until(({ data }) => data.status === 'reserved');
          expect(reserved.data).toMatchObject({ id, quantity: 2, reason: null });
          expect(reserved.data.expiresAt).toMatch(/Z$/);
          stream.close();
          const decided = await place(a, sale, 'alice', { quantity: 2, key: 'k' });
          expect([decided.status, replayed(decided), decided.body]).toEqual([201, true, reserved.data]);
          await until('nothing is owed', 3_000, async () => (await metric(a, 'doorbuster_owed_orders')) === 0);
          expect(await counts(a, sale)).toMatchObject({ free: 8, queued: 0, reserved: 2 });
        });
      });

      it('PIPE_MAX: beyond it 503 overloaded with Retry-After, and no unit is lost or held', async () => {
        const sale = await createSale(a, { stock: 20, perBuyer: 20 });
        await withoutWorker(async () => {
          const answers = await Promise.all(
            Array.from({ length: 12 }, (_, n) => place(n % 2 ? a : b, sale, `buyer-${n}`, { key: 'k' })),
          );
          const queued = answers.filter(({ status }) => status === 202);
          const refused = answers.filter(({ status }) => status !== 202);
          expect(queued).toHaveLength(8);
          for (const answer of refused) {
            expectProblem(answer, 503, 'overloaded');
            expect(answer.headers.get('retry-after')).toMatch(/^\d+$/);
          }
          // The key of an order that is in the pipe is found, full or not.
          const one = queued[0]!.body;
          expect((await place(a, sale, one.buyer, { key: 'k' })).body).toMatchObject({ id: one.id });
          // The metric estimates the depth by the first entries.
          await until('the pipe shows', 5_000, async () => ((await metric(a, 'doorbuster_pipe_orders')) ?? 0) >= 4);
          await shop.startWorker();
          await until('all are reserved', 5_000, async () => {
            const item = await counts(a, sale);
            return item.reserved === 8 && item.queued === 0;
          });
          const ids = (await allOrders(b, sale)).map(({ id }) => id).sort();
          expect(ids).toEqual(queued.map(({ body }) => body.id).sort());
          await until('the pipe is empty', 5_000, async () => (await metric(a, 'doorbuster_pipe_orders')) === 0);
          // A refused buyer retries with the same key and is served.
          const buyer = answers.findIndex(({ status }) => status === 503);
          expect((await place(a, sale, `buyer-${buyer}`, { key: 'k' })).status).toBe(201);
        });
      });
    });

    it('P3: 202, then Redis loses everything while no worker runs: admission_lost, and its units sell again', async () => {
      const sale = await createSale(a, { stock: 1 });
      await withoutWorker(async () => {
        const queued = await place(a, sale, 'alice', { key: 'k' });
        expect(queued.status, JSON.stringify(queued.body)).toBe(202);
        const rebuilds = (await metric(a, 'doorbuster_gate_rebuilds_total'))!;
        await redis.command('FLUSHALL');
        // The process that answered 202 remembers it, even while the gate is gone.
        const { id } = queued.body;
        const seen = await a.call('GET', `/v1/orders/${id}`, { buyer: 'alice' });
        expect(seen).toMatchObject({ status: 200, body: { id, status: 'queued' } });
        const end = await until('it ends', 15_000, async () => {
          const { body } = await a.call('GET', `/v1/orders/${id}`, { buyer: 'alice' });
          return body.status === 'queued' ? null : body;
        });
        expect(end).toMatchObject({ id, status: 'rejected', reason: 'admission_lost' });
        const elsewhere = await b.call('GET', `/v1/orders/${id}`, { buyer: 'alice' });
        expect(elsewhere.body).toMatchObject({ status: 'rejected', reason: 'admission_lost' });
        expect(await metric(a, 'doorbuster_owed_orders')).toBe(0);
        expect(await metric(a, 'doorbuster_gate_rebuilds_total')).toBeGreaterThan(rebuilds);
        expect(await metric(a, 'doorbuster_gate_rebuild_seconds_count')).toBeGreaterThan(0);
        await shop.startWorker();
        // Its key is free again, and so is its unit.
        const next = await place(b, sale, 'alice', { key: 'k' });
        expect(next).toMatchObject({ status: 201, body: { status: 'reserved' } });
        expect(next.body.id).not.toBe(id);
        expect(await counts(a, sale)).toMatchObject({ free: 0, reserved: 1, queued: 0 });
      });
    });

    it('the stream of a sale at one process tells what is sold and changed at the other', async () => {
      const sale = await createSale(a, { stock: 5 });
      const stream = await openStream(`${b.url}/v1/sales/${sale}/events`);
      await stream.until(({ event }) => event === 'stock');
      expect((await place(a, sale, 'alice')).status).toBe(201);
      await stream.until(({ event, data }) => event === 'stock' && data.reserved === 1 && data.free === 4);
      await admin(a, 'POST', `/v1/sales/${sale}/pause`);
      await stream.until(({ event, data }) => event === 'state' && data.state === 'paused');
      stream.close();
    });

    it('the metrics of the guide are there', async () => {
      const { body } = await admin(a, 'GET', '/metrics');
      for (const name of [
        'doorbuster_pipe_orders',
        'doorbuster_owed_orders',
        'doorbuster_gate_rebuilds_total',
        'doorbuster_gate_rebuild_seconds_bucket',
        'doorbuster_backstop_rejections_total',
        'doorbuster_dead_letters',
      ]) {
        expect(body, name).toMatch(new RegExp(`^(# TYPE )?${name}\\b`, 'm'));
      }
      expect(body).toMatch(/doorbuster_admissions_total\{outcome="queued"\} [1-9]/);
    });

    it('SIGTERM of a server and of the worker while a crowd buys: both end with 0, and nothing is lost', async () => {
      const stock = 300;
      const sale = await createSale(a, { stock });
      const ended: Answer[] = [];
      const buy = async (n: number): Promise<void> => {
        // A buyer who loses the connection or gets a 503 retries at the server that stays.
        for (let server = n % 2 ? a : b; ; server = a) {
          const one = await place(server, sale, `crowd-${n}`, { key: 'k' }).catch(() => null);
          if (one !== null && one.status !== 503) return void ended.push(one);
        }
      };
      const crowd = Promise.all(
        Array.from({ length: 8 }, async (_, lane) => {
          for (let n = lane; n < stock; n += 8) await buy(n);
        }),
      );
      await until('the crowd is in the middle', 20_000, () => ended.length > 60);
      const [worker] = shop.workers.splice(0);
      const starting = shop.startWorker();
      expect(await Promise.all([b.stop(), worker!.stop()])).toEqual([0, 0]);
      await starting;
      await crowd;
      shop.servers.splice(shop.servers.indexOf(b), 1);
      expect(ended.filter(({ status }) => status !== 201 && status !== 202)).toEqual([]);
      await until('all are decided', 10_000, async () => (await counts(a, sale)).queued === 0);
      const orders = await allOrders(a, sale);
      expect(orders.filter(({ status }) => status === 'reserved')).toHaveLength(stock);
      const known = new Set(orders.map(({ id }) => id));
      expect(ended.filter(({ body }) => !known.has(body.id))).toEqual([]);
    });
  });
});

/** What is wrong with an answer by the server's own OpenAPI document; null if nothing is. */
async function contractFault(server: TestServer, method: string, path: string, answer: Answer): Promise<string | null> {
  const { body: document } = await server.call('GET', '/openapi.json');
  const operation = operationsOf(document).find((one) => one.method === method && one.path === path);
  if (operation === undefined) throw new Error(`the document has no ${method} ${path}`);
  const headers = Object.fromEntries(answer.headers);
  return new Contract().fault(operation, {
    status: answer.status,
    headers,
    text: JSON.stringify(answer.body),
  } as never);
}
