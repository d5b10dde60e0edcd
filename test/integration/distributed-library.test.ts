import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import {
  createDoorbuster,
  type Doorbuster,
  type DoorbusterOptions,
  type NewSaleInput,
  type Order,
  type PaymentProvider,
  RetryableError,
  TerminalError,
} from '../../src/index.ts';
import { engineOf } from '../../src/library/doorbuster.ts';
import type { CaptureResult } from '../../src/payments/port.ts';
import { replayed } from '../support/distributed-calls.ts';
import { until } from '../support/fault-wait.ts';
import { spawnModule } from '../support/openapi-spawn.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { ADMIN_KEY, type Answer, AUTH_SECRET, caller, cleanUp, ROOT, temporaryFolder } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { anyPostgres } from '../support/servers/postgres.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** createDoorbuster({ redis, database }): the shop of many processes as a library. */

const SALE: NewSaleInput = {
  name: 'Vouchers',
  opensAt: 0,
  closesAt: Date.now() + 3_600_000,
  perBuyer: 2,
  items: [{ code: 'voucher', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: 5 }],
};

/** Nobody listens there. */
const NO_REDIS = 'redis://127.0.0.1:1';
const NO_DATABASE = 'postgres://doorbuster:hunter2@127.0.0.1:1/doorbuster';

describe('options that describe no deployment give one clear error', () => {
  it.each<[string, DoorbusterOptions, RegExp]>([
    ['nothing', {}, /\{ data \}.*\{ database \}/],
    ['redis alone', { redis: NO_REDIS }, /database/i],
    ['redis with a folder', { redis: NO_REDIS, data: './data' }, /redis.*database/i],
    ['redis with sqlite:', { redis: NO_REDIS, database: 'sqlite:./data' }, /database.*sqlite:/i],
    ['another kind of database', { database: 'mongodb://u:hunter2@localhost/x' }, /database.*postgres:/i],
    ['another kind of Redis', { redis: 'http://:hunter2@localhost', database: NO_DATABASE }, /redis.*rediss:/i],
    ['sentinels without a name', { redis: 'redis+sentinel://localhost', database: NO_DATABASE }, /name of the master/],
    ['a prefix with a brace', { redis: NO_REDIS, database: NO_DATABASE, redisPrefix: 'a{b}' }, /redis-?prefix/i],
    ['no time to answer', { redis: NO_REDIS, database: NO_DATABASE, answerWithinMs: 0 }, /answer-?within-?ms/i],
    ['half a millisecond', { redis: NO_REDIS, database: NO_DATABASE, answerWithinMs: 10.5 }, /answer-?within-?ms/i],
  ])('%s', async (_, options, words) => {
    const error = await createDoorbuster(options).then(
      (shop) => shop.close().then(() => null),
      (thrown: unknown) => thrown,
    );
    expect(error).toBeInstanceOf(TerminalError);
    expect((error as Error).message).toMatch(words);
    expect((error as Error).message).not.toMatch(/hunter2|\n/);
  });

  it('a Redis or a database that is down is a RetryableError', async () => {
    const tries = [{ redis: NO_REDIS, database: NO_DATABASE }, { database: NO_DATABASE }].map((options) =>
      createDoorbuster(options).catch((error: unknown) => error),
    );
    for (const error of await Promise.all(tries)) expect(error).toBeInstanceOf(RetryableError);
  });
});

it('database: sqlite: is the embedded shop in that folder', async () => {
  const folder = temporaryFolder();
  const first = await createDoorbuster({ database: `sqlite:${folder}` });
  const made = await first.sales.create(SALE);
  expect(made).toMatchObject({ ok: true });
  await first.close();
  const second = await createDoorbuster({ data: folder });
  expect((await second.sales.list()).data).toHaveLength(1);
  await second.close();
});

describeWithRedis('the library on Redis and a database', () => {
  describeWithPostgres('on PostgreSQL', () => {
    let redis: RedisServer;
    let toDatabase: FaultProxy;
    let options: DoorbusterOptions & { redis: string; database: string };
    const open: Doorbuster[] = [];

    async function openShop(more: Partial<DoorbusterOptions> = {}): Promise<Doorbuster> {
      const shop = await createDoorbuster({ ...options, ...more });
      open.push(shop);
      return shop;
    }

    async function newSale(shop: Doorbuster, more: Partial<NewSaleInput> = {}): Promise<string> {
      const made = await shop.sales.create({ ...SALE, ...more });
      if (!made.ok) throw new Error(made.code);
      return made.sale.id;
    }

    beforeAll(async () => {
      const [server, database] = await Promise.all([startRedis(), anyPostgres()]);
      redis = server;
      toDatabase = await startProxy(database.port);
      const url = new URL(database.url);
      url.port = String(toDatabase.port);
      options = { redis: redis.url, database: url.href, redisPrefix: 'library-test' };
    }, 60_000);
    afterEach(async () => {
      await Promise.all(open.splice(0).map((shop) => shop.close()));
    });
    afterAll(async () => {
      await cleanUp();
      await cleanUpServers();
    });

    it('an empty database is refused and named; migrate: true fills it', async () => {
      await expect(createDoorbuster(options)).rejects.toMatchObject({
        name: 'TerminalError',
        message: expect.stringMatching(/doorbuster migrate/),
      });
      const shop = await openShop({ migrate: true });
      expect(shop.readiness()).toEqual({ status: 'ok', parts: { gate: 'ok', pipe: 'ok', ledger: 'ok' } });
    });

    it('a wrong password for Redis is a TerminalError', async () => {
      await using locked = await startRedis();
      await locked.command('CONFIG', 'SET', 'requirepass', 'sesame');
      const wrong = `redis://:hunter2@127.0.0.1:${locked.port}`;
      const error = await createDoorbuster({ ...options, redis: wrong }).catch((thrown: unknown) => thrown);
      expect(error).toBeInstanceOf(TerminalError);
      expect((error as Error).message).toMatch(/password/);
      expect((error as Error).message).not.toMatch(/hunter2|sesame/);
    });

    it('places, replays, refuses, lists, changes and closes, in two shops of one process', async () => {
      const taker = await openShop({ worker: false });
      const carrier = await openShop();
      const sale = await newSale(taker);
      const placed = await taker.orders.place({ sale, buyer: 'alice', item: 'voucher', quantity: 2, key: 'k' });
      expect(placed).toMatchObject({ ok: true, replayed: false, order: { status: 'reserved', quantity: 2 } });
      if (!placed.ok) return;
      const again = await carrier.orders.place({ sale, buyer: 'alice', item: 'voucher', quantity: 2, key: 'k' });
      expect(again).toEqual({ ...placed, replayed: true });
      const limit = await carrier.orders.place({ sale, buyer: 'alice', item: 'voucher' });
      expect(limit).toEqual({ ok: false, code: 'limit_reached', orders: [placed.order.id] });
      expect(await taker.orders.place({ sale, buyer: 'bob', item: 'nothing' })).toEqual({
        ok: false,
        code: 'not_found',
      });
      expect(await carrier.orders.get(placed.order.id)).toEqual(placed.order);
      expect((await taker.orders.list({ saleId: sale })).data).toEqual([placed.order]);
      expect(await carrier.sales.addStock(sale, 'voucher', -3)).toMatchObject({ ok: true });
      expect(await taker.orders.place({ sale, buyer: 'bob', item: 'voucher' })).toEqual({
        ok: false,
        code: 'sold_out',
      });
      expect(await taker.sales.close(sale)).toMatchObject({ ok: true, sale: { state: 'closed' } });
      expect(await carrier.orders.place({ sale, buyer: 'bob', item: 'voucher' })).toMatchObject({
        code: 'sale_closed',
      });
      await carrier.close();
      await expect(carrier.orders.place({ sale, buyer: 'bob', item: 'voucher' })).rejects.toBeInstanceOf(
        RetryableError,
      );
      await carrier.close();
    });

    it('without a worker an order is queued and can be found; it is reserved once there is one', async () => {
      const taker = await openShop({ worker: false, answerWithinMs: 100 });
      const sale = await newSale(taker);
      const placed = await taker.orders.place({ sale, buyer: 'alice', item: 'voucher', key: 'k' });
      expect(placed).toMatchObject({ ok: true, order: { status: 'queued', expiresAt: null } });
      if (!placed.ok) return;
      expect(await taker.orders.get(placed.order.id)).toMatchObject({ status: 'queued' });
      await openShop();
      await until('it is reserved', 5_000, async () => {
        return (await taker.orders.get(placed.order.id))?.status === 'reserved';
      });
    });

    it('order.reserved comes once for each order, queued or not', async () => {
      const shop = await openShop({ answerWithinMs: 100 });
      const heard: Order[] = [];
      shop.on('order.reserved', (order) => void heard.push(order));
      const sale = await newSale(shop);
      const first = await shop.orders.place({ sale, buyer: 'alice', item: 'voucher' });
      expect(first).toMatchObject({ ok: true });
      await toDatabase.refuse(true);
      toDatabase.cut();
      const queued = await shop.orders
        .place({ sale, buyer: 'bob', item: 'voucher' })
        .finally(() => toDatabase.refuse(false));
      expect(queued).toMatchObject({ ok: true, order: { status: 'queued' } });
      if (!first.ok || !queued.ok) return;
      await until('it is reserved', 10_000, async () => {
        return (await shop.orders.get(queued.order.id).catch(() => null))?.status === 'reserved';
      });
      // Undecided 202s are checked every second, and when the shop closes.
      await shop.close();
      expect(heard.map(({ id }) => id)).toEqual([first.order.id, queued.order.id]);
    });

    describe('P5: a payment is sent again with its key to another process while the first still waits for the provider', () => {
      const REFERENCE = { reference: null };
      const pending: CaptureResult = { state: 'pending', ...REFERENCE, redirectUrl: 'https://bank.example/3ds' };
      const declined: CaptureResult = { state: 'declined', ...REFERENCE, reason: 'no funds' };

      async function payTwice(first: CaptureResult): Promise<{ answers: Answer[]; captures: number; status: string }> {
        const asked = Promise.withResolvers<void>();
        const answers = Promise.withResolvers<void>();
        let captures = 0;
        const bank: PaymentProvider = {
          name: 'bank',
          capture: async ({ attemptId, amount }) => {
            if (++captures > 1) return { state: 'captured', reference: attemptId, amount };
            asked.resolve();
            await answers.promise;
            return first;
          },
          query: async () => first,
          void: async () => ({ state: 'voided' }),
          refund: async () => REFERENCE,
        };
        const more = { migrate: true, providers: [bank], adminKey: ADMIN_KEY, authSecret: AUTH_SECRET };
        const a = await openShop(more);
        const b = await openShop(more);
        const placed = await a.orders.place({ sale: await newSale(a), buyer: 'ann', item: 'voucher' });
        if (!placed.ok) throw new Error(placed.code);
        const path = `/v1/orders/${placed.order.id}/pay`;
        const servers = await Promise.all(
          [a, b].map(async (shop) => {
            const server = createServer(shop.handler());
            await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
            const call = caller(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
            return { server, pay: () => call('POST', path, { buyer: 'ann', body: { method: 'bank' }, key: 'k' }) };
          }),
        );
        const [atA, atB] = servers.map(({ pay }) => pay);
        const one = atA!();
        await asked.promise;
        // The second call has looked up its key and found nothing.
        const engine = engineOf(b).shop;
        const { boundAnswer } = engine;
        const looked = Promise.withResolvers<void>();
        engine.boundAnswer = async (scope) => {
          const found = await boundAnswer.call(engine, scope);
          looked.resolve();
          return found;
        };
        const two = atB!();
        await looked.promise;
        answers.resolve();
        const told = [await one, await two, await atA!()];
        const { status } = (await a.orders.get(placed.order.id))!;
        for (const { server } of servers) {
          server.closeAllConnections();
          server.close();
        }
        return { answers: told, captures, status };
      }

      it('declined: all are told so, and the provider is called once', async () => {
        const { answers, captures, status } = await payTwice(declined);
        for (const answer of answers) expectProblem(answer, 402, 'payment_failed');
        expect(answers.map(replayed)).toEqual([false, true, true]);
        expect(answers.map(({ body }) => body)).toEqual(Array(3).fill(answers[0]!.body));
        expect([captures, status]).toEqual([1, 'reserved']);
      });

      it('pending: nobody is refused because of the first try', async () => {
        const { answers, captures, status } = await payTwice(pending);
        expect(answers.map(({ status }) => status)).toEqual([202, 202, 202]);
        expect(answers.map(replayed)).toEqual([false, true, true]);
        expect([captures, status]).toEqual([1, 'reserved']);
      });
    });

    it('lets the process end after close(), and prints nothing', async () => {
      const source = `
        import { createDoorbuster } from ${JSON.stringify(pathToFileURL(`${ROOT}src/index.ts`).href)};
        const shop = await createDoorbuster(${JSON.stringify(options)});
        const made = await shop.sales.create(${JSON.stringify(SALE)});
        const placed = await shop.orders.place({ sale: made.sale.id, buyer: 'alice', item: 'voucher' });
        console.log(placed.order.status);
        await shop.close();
      `;
      expect(await spawnModule(source)).toEqual({ code: 0, output: 'reserved\n' });
    });
  });
});
