import { afterAll, beforeAll, expect, it } from 'vitest';
import { encodeEntry } from '../../src/model/stream-entry.ts';
import { startShop, type TestShop } from '../support/distributed.ts';
import { admin, bearer, counts, isWhole, metric, place, replayed } from '../support/distributed-calls.ts';
import { blocksOfSession } from '../support/docs/inventory.ts';
import { runShell, statementsOf } from '../support/docs/shell.ts';
import { until } from '../support/fault-wait.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import {
  ADMIN_KEY,
  type Answer,
  allOrders,
  cleanUp,
  createSale,
  startServer,
  type TestServer,
  temporaryFolder,
} from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import type { AnyDatabase } from '../support/servers/mariadb.ts';
import { anyPostgres } from '../support/servers/postgres.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import { orderMessage } from '../support/streams.ts';

/** Messages that the ledger can never store: put aside, listed, retried, and ended by an admin. */
const PREFIX = 'letters-test';
/** Five tries with 1, 2, 4 and 8 s between them. */
const DIES_WITHIN_MS = 30_000;

let redis: RedisServer;
let database: AnyDatabase;
let shop: TestShop;
/** Carries orders under the locks of their buyers (WRITER_LOCK=buyer). */
let server: TestServer;

interface Letter {
  id: string;
  saleId: string;
  buyer: string;
  item: string;
  quantity: number;
  error: string;
  attempts: number;
  diedAt: string;
}

async function letters(saleId: string): Promise<Letter[]> {
  const { status, body } = await admin(server, 'GET', '/v1/ops/dead-letters');
  expect(status, JSON.stringify(body)).toBe(200);
  return (body.data as Letter[]).filter((letter) => letter.saleId === saleId);
}

/** Sends the request of docs/guides/distributed.md that contains this, as printed there. */
async function asPrinted(part: RegExp, id = ''): Promise<string> {
  const [block] = blocksOfSession('dead letters');
  const code = statementsOf(block!).find((statement) => part.test(statement))!;
  const env = { URL: server.url, ADMIN_KEY, ID: id };
  const [told] = await runShell({ folder: temporaryFolder(), blocks: [{ ...block!, code }], env });
  return told!.output;
}

function placeFor(sale: string, buyer: string): Promise<Answer> {
  const headers = { authorization: `Bearer ${ADMIN_KEY}`, 'doorbuster-buyer': buyer };
  return place(server, sale, buyer, { key: 'k', headers });
}

async function auditOf(orderId: string): Promise<string[][]> {
  const { body } = await admin(server, 'GET', `/v1/ops/audit?subject=order:${orderId}`);
  const rows = body.data as { action: string; actor: string; origin: string; detail: { status?: string } }[];
  return rows.reverse().map(({ action, actor, origin, detail }) => [action, actor, origin, detail.status ?? '']);
}

/** Becomes dead letters while other tests run: two orders, and a message with the id of a third. */
let poisoned: { sale: string; stored: Answer; mended: Answer; given: Answer };

async function poison(): Promise<void> {
  const sale = await createSale(server, { stock: 4 });
  const stored = await place(server, sale, 'owner', { key: 'k' });
  expect(stored.status).toBe(201);
  // A foreign constraint: the ledger can never store these orders, but is not out.
  await database.query(
    "ALTER TABLE orders ADD CONSTRAINT poison CHECK (NOT (buyer LIKE 'poison%' AND status = 'reserved'))",
  );
  const [mended, given] = await Promise.all([placeFor(sale, 'poison-1'), placeFor(sale, 'poison-2')]);
  for (const answer of [mended, given]) expect(answer.status, JSON.stringify(answer.body)).toBe(202);
  const [item] = await database.query('SELECT epoch, id FROM items WHERE sale_id = $1', [sale]);
  const { epoch, id: itemId } = item as { epoch: number; id: string };
  const twin = orderMessage(stored.body.id, { saleId: sale, itemId, itemCode: 'voucher', buyer: 'thief', epoch });
  await forge(sale, encodeEntry(twin));
  poisoned = { sale, stored, mended, given };
}

/** Writes an entry into the sale's stream that no gate would write. */
async function forge(saleId: string, fields: string[]): Promise<void> {
  const epoch = await redis.command('HGET', `${PREFIX}:{${saleId}:0}:gate`, 'epoch');
  await redis.command('XADD', `${PREFIX}:{${saleId}:0}:${epoch}:stream`, '*', ...fields);
}

/** Makes waiting letters due at once instead of after up to 8 s; the pipe's contract tests the delay. */
async function makeDue(saleId: string): Promise<void> {
  const key = `${PREFIX}:{${saleId}:0}:retry`;
  const waiting = (await redis.command('ZRANGE', key, '0', '-1')) as string[];
  // XX: a letter that has just been taken is not put back.
  for (const member of waiting) await redis.command('ZADD', key, 'XX', '1', member);
}

describeWithRedis('dead letters', () => {
  describeWithPostgres('on PostgreSQL', () => {
    beforeAll(async () => {
      [redis, database] = await Promise.all([startRedis(), anyPostgres()]);
      shop = await startShop({
        redisUrl: redis.url,
        databaseUrl: database.url,
        servers: 0,
        workers: 0,
        env: { REDIS_PREFIX: PREFIX, ANSWER_WITHIN_MS: '400', WRITER_LOCK: 'buyer', LOG_LEVEL: 'fatal' },
      });
      server = await shop.startServer([]);
      await poison();
    }, 60_000);
    afterAll(async () => {
      await cleanUp();
      await cleanUpServers();
    });

    it('WRITER_LOCK=buyer: a crowd buys to the last unit, nobody above the limit', async () => {
      const second = await shop.startServer([]);
      const sale = await createSale(server, { stock: 60, perBuyer: 2 });
      const answers = await Promise.all(
        Array.from({ length: 120 }, (_, n) => {
          const buyer = `buyer-${n % 40}`;
          return place(n % 3 ? server : second, sale, buyer, { key: String(n) });
        }),
      );
      const odd = answers.filter(({ status, body }) => {
        return ![201, 202].includes(status) && !['sold_out', 'limit_reached'].includes(body.code);
      });
      expect(odd.map(({ status, body }) => ({ status, body }))).toEqual([]);
      await until('nothing is queued', 10_000, async () => (await counts(second, sale)).queued === 0);
      expect(await counts(server, sale)).toMatchObject({ free: 0, reserved: 60 });
      const bought = Map.groupBy(await allOrders(server, sale), ({ buyer }) => buyer);
      expect(Math.max(...[...bought.values()].map((orders) => orders.length))).toBe(2);
      expect(await second.stop()).toBe(0);
    });

    it('are for admins only, and an embedded shop has none', async () => {
      for (const [method, path] of [
        ['GET', '/v1/ops/dead-letters'],
        ['POST', '/v1/ops/dead-letters/1/retry'],
        ['DELETE', '/v1/ops/dead-letters/1'],
      ] as const) {
        expectProblem(await server.call(method, path), 401, 'unauthenticated');
        expectProblem(await server.call(method, path, { headers: bearer('alice') }), 403, 'forbidden');
      }
      const embedded = await startServer();
      expect((await admin(embedded, 'GET', '/v1/ops/dead-letters')).body).toEqual({ data: [], nextCursor: null });
      for (const one of [server, embedded]) {
        for (const id of ['1', 'entry-1-0', 'x']) {
          expectProblem(await admin(one, 'POST', `/v1/ops/dead-letters/${id}/retry`), 404, 'not_found');
          expectProblem(await admin(one, 'DELETE', `/v1/ops/dead-letters/${id}`), 404, 'not_found');
        }
      }
      expect(await embedded.stop()).toBe(0);
    });

    it('an unreadable entry is listed at once, and can be dropped', async () => {
      const sale = await createSale(server, { stock: 5 });
      await forge(sale, ['what', 'is this']);
      const [letter] = await until('a letter', 5_000, async () => {
        const all = await letters(sale);
        return all.length > 0 ? all : null;
      });
      expect(letter).toMatchObject({ saleId: sale, attempts: 1, error: expect.stringMatching(/./) });
      // Others are not held up by it.
      expect((await place(server, sale, 'alice')).status).toBe(201);
      await until('the gauge', 5_000, async () => (await metric(server, 'doorbuster_dead_letters'))! > 0);
      const dropped = await admin(server, 'DELETE', `/v1/ops/dead-letters/${letter!.id}`);
      expect(dropped.status, JSON.stringify(dropped.body)).toBe(204);
      expect(await letters(sale)).toEqual([]);
    });

    it('an order of which only the id can be read is listed, and can be dropped', async () => {
      const sale = await createSale(server, { stock: 5 });
      await forge(sale, ['', '1\n900\n', 'o1', '1\n1\nf\n77\nno item']);
      await until('a letter', 5_000, async () => (await letters(sale)).some(({ id }) => id === '77'));
      const dropped = await admin(server, 'DELETE', '/v1/ops/dead-letters/77');
      expect(dropped.status, JSON.stringify(dropped.body)).toBe(204);
      expect(await letters(sale)).toEqual([]);
    });

    it(
      'five tries, then a letter: retry brings it to the ledger, deleting rejects it and frees its units',
      async () => {
        const { sale, stored, mended, given } = poisoned;
        // They wait apart: others are served meanwhile.
        const begunMs = performance.now();
        expect((await place(server, sale, 'alice')).status).toBe(201);
        expect(performance.now() - begunMs).toBeLessThan(2_000);
        const all = await until('three letters', DIES_WITHIN_MS, async () => {
          await makeDue(sale);
          const now = await letters(sale);
          return now.length === 3 ? now : null;
        });
        expect(await asPrinted(/dead-letters -H/)).toContain(`"id":"${mended.body.id}"`);
        expect(all.map(({ id }) => id)).toEqual([...all.map(({ id }) => id)].sort().reverse());
        expect(all.find(({ id }) => id === mended.body.id)).toEqual({
          kind: 'order',
          id: mended.body.id,
          saleId: sale,
          buyer: 'poison-1',
          item: 'voucher',
          quantity: 1,
          error: expect.stringMatching(/poison/),
          attempts: 5,
          diedAt: expect.stringMatching(/Z$/),
        });
        const page = await admin(server, 'GET', '/v1/ops/dead-letters?limit=1');
        expect(page.body).toEqual({ data: [all[0]], nextCursor: all[0]!.id });
        const rest = await admin(server, 'GET', `/v1/ops/dead-letters?cursor=${all[0]!.id}`);
        expect(rest.body.data.slice(0, 2)).toEqual(all.slice(1));
        // They hold their units meanwhile.
        expect(await counts(server, sale)).toMatchObject({ total: 4, free: 0, queued: 2, reserved: 2 });
        expectProblem(await place(server, sale, 'bob'), 409, 'sold_out');
        await until('the gauge', 5_000, async () => (await metric(server, 'doorbuster_dead_letters'))! >= 3);

        await database.query('ALTER TABLE orders DROP CONSTRAINT poison');
        await asPrinted(/\/retry/, mended.body.id);
        await until('the mended one is reserved', 5_000, async () => {
          const { body } = await admin(server, 'GET', `/v1/orders/${mended.body.id}`);
          return body.status === 'reserved';
        });
        const replay = await placeFor(sale, 'poison-1');
        expect([replay.status, replay.body.id, replayed(replay)]).toEqual([201, mended.body.id, true]);

        await asPrinted(/-X DELETE/, given.body.id);
        expect((await admin(server, 'GET', `/v1/orders/${given.body.id}`)).body).toMatchObject({
          status: 'rejected',
          reason: 'undeliverable',
        });
        // Its key and its unit are free again.
        const next = await placeFor(sale, 'poison-2');
        expect(next).toMatchObject({ status: 201 });
        expect(next.body.id).not.toBe(given.body.id);

        // The actor stayed with the order through five attempts, the dead letter, and the retry.
        const by = ['admin:admin', '127.0.0.1'];
        // In the order of their ids: the order's was taken when it was placed.
        expect(await auditOf(mended.body.id)).toEqual([
          ['order.place', ...by, 'reserved'],
          ['dead_letter.retry', ...by, ''],
        ]);
        expect(await auditOf(given.body.id)).toEqual([
          ['order.place', ...by, 'rejected'],
          ['dead_letter.delete', ...by, ''],
        ]);

        // The twin is deleted; the order with that id stays.
        expect((await admin(server, 'DELETE', `/v1/ops/dead-letters/${stored.body.id}`)).status).toBe(204);
        expect((await admin(server, 'GET', `/v1/orders/${stored.body.id}`)).body).toEqual(stored.body);
        expect(await auditOf(stored.body.id)).toEqual([['dead_letter.delete', ...by, '']]);
        expect(await letters(sale)).toEqual([]);
        await until('the gauge', 5_000, async () => (await metric(server, 'doorbuster_dead_letters')) === 0);
        const item = await counts(server, sale);
        expect(item).toMatchObject({ total: 4, free: 0, queued: 0, reserved: 4 });
        expect(isWhole(item)).toBe(true);
        expectProblem(await admin(server, 'DELETE', `/v1/ops/dead-letters/${stored.body.id}`), 404, 'not_found');
      },
      DIES_WITHIN_MS + 20_000,
    );
  });
});
