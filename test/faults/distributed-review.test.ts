import { randomBytes } from 'node:crypto';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { unavailable } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { Rebuilder } from '../../src/gate/rebuild.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import { GateUpkeep } from '../../src/gate/upkeep.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { createLocks, type Locks } from '../../src/locks/locks.ts';
import { actor } from '../../src/model/actor.ts';
import { orderFingerprint } from '../../src/model/order.ts';
import type { OrderResult } from '../../src/orders/seat-orders.ts';
import { ORDERS } from '../../src/pipe/orders.ts';
import { RedisStreamsPipe } from '../../src/pipe/redis-streams/pipe.ts';
import { streamed } from '../contract/gate-redis-world.ts';
import { until } from '../support/fault-wait.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/**
 * Interleavings that a review of the distributed shop found, one test each. Every process is an object here, and
 * is stopped at the await that matters: at a call to its ledger, or on its connection to Redis.
 */

const CALLER = { by: actor('admin', 'admin'), keyed: null };
let lastAuditId = 0;
/** Far longer than any of these takes when it works. */
const SOON_MS = 15_000;

let redis: RedisServer;
let database: { readonly url: string };
let prefix: string;
const ends: (() => Promise<unknown> | unknown)[] = [];

/** A private method that a shop calls when it finds a stale gate. */
interface Rebuilds {
  rebuilder: Rebuilder;
}

type Calls<T> = {
  [M in keyof T]?: T[M] extends (...args: infer A) => infer R ? (real: T, ...args: A) => R | Promise<never> : never;
};

/** The same object with some calls replaced. */
function withCalls<T extends object>(real: T, calls: Calls<T>): T {
  return new Proxy(real, {
    get(target, name) {
      const own = (calls as Record<string | symbol, unknown>)[name];
      if (typeof own === 'function') return (...args: unknown[]) => own(target, ...args);
      const value = Reflect.get(target, name, target) as unknown;
      return typeof value === 'function' ? value.bind(target) : value;
    },
    set: (target, name, value) => Reflect.set(target, name, value, target),
  });
}

async function openLedger(): Promise<Ledger> {
  const ledger = await openSqlLedger(database.url, systemRuntime(), { migrate: true, exclusive: false });
  ends.push(() => ledger.close());
  return ledger;
}

interface Process {
  worker?: boolean;
  writerLock?: 'off' | 'buyer';
  redisUrl?: string;
  answerWithinMs?: number;
  calls?: Calls<Ledger>;
}

async function start(options: Process = {}): Promise<DistributedShop> {
  const { worker = false, writerLock = 'off', redisUrl = redis.url, answerWithinMs = 200, calls = {} } = options;
  const ledger = await openSqlLedger(database.url, systemRuntime(), { migrate: true, exclusive: false });
  const shop = await DistributedShop.open(
    withCalls(ledger, calls),
    { redis: redisUrl, prefix, answerWithinMs, pipeMax: 10_000, worker, carrier: null, writerLock },
    systemRuntime(),
  );
  ends.push(() => shop.close());
  return shop;
}

function openGate(redisUrl = redis.url): RedisGate {
  const gate = new RedisGate({ target: redisUrl, prefix }, systemRuntime());
  ends.push(() => gate.close());
  return gate;
}

function openLocks(): Locks {
  const locks = createLocks({ redis: redis.url, prefix: `${prefix}:lock` });
  ends.push(() => locks.close());
  return locks;
}

function createSale(shop: DistributedShop, { stock = 100, perBuyer = 5 } = {}): Promise<string> {
  return createSaleIn(shop, { stock, perBuyer });
}

let buyers = 0;

function buy(shop: DistributedShop, saleId: string, over: { buyer?: string; quantity?: number; key?: string } = {}) {
  const { buyer = `buyer-${++buyers}`, quantity = 1, key = null } = over;
  return shop.place({ saleId, itemCode: 'voucher', buyer, quantity, key });
}

function orderIdOf(result: OrderResult): string {
  if (!result.ok) throw new Error(result.code);
  return result.order.id;
}

/** `reserved`, `rejected: …`, `queued`; null: there is no such order. */
async function ended(shop: DistributedShop, orderId: string): Promise<string | null> {
  const order = await shop.getOrder(orderId);
  if (order === null || order.status === 'queued') return null;
  return order.reason === null ? order.status : `${order.status}: ${order.reason}`;
}

function sells(shop: DistributedShop, saleId: string): Promise<boolean> {
  return buy(shop, saleId).then(
    ({ ok }) => ok,
    () => false,
  );
}

async function keysOf(pattern: string): Promise<string[]> {
  return (await redis.command('KEYS', `${prefix}:${pattern}`)) as string[];
}

describeWithRedis('the distributed shop, reviewed', () => {
  describeWithPostgres('on PostgreSQL', () => {
    beforeAll(async () => {
      redis = await startRedis();
      database = { url: await postgresUrl() };
    }, 60_000);
    afterAll(cleanUpServers);
    beforeEach(() => {
      prefix = `review-${randomBytes(4).toString('hex')}`;
    });
    afterEach(async () => {
      for (const end of ends.splice(0).reverse()) await end();
    }, 60_000);

    it('rule 7: a sale paused while its gate is built stays paused, though the builder dies before it tells the gate', async () => {
      const snapshot = Promise.withResolvers<void>();
      const taken = Promise.withResolvers<void>();
      const died = Promise.withResolvers<void>();
      let builds = false;
      const builder = await start({
        calls: {
          async rebuildSnapshot(real, saleId) {
            const read = await real.rebuildSnapshot(saleId);
            if (builds) {
              taken.resolve();
              await snapshot.promise;
            }
            return read;
          },
          // Dead from here on: the last update of the gate is never sent.
          getSale(real, saleId) {
            if (!builds) return real.getSale(saleId);
            died.resolve();
            return new Promise(() => {});
          },
        },
      });
      const admin = await start();
      const saleId = await createSale(admin);
      await until('the gate is open', SOON_MS, () => sells(admin, saleId));
      builds = true;
      for (const key of await keysOf(`{${saleId}*`)) await redis.command('DEL', key);
      // The builder rebuilds the missing gate.
      void (builder as unknown as Rebuilds).rebuilder.rebuild(saleId);
      await taken.promise;
      const paused = admin.setPaused(saleId, true, CALLER);
      await until('the ledger has it', SOON_MS, async () => (await admin.getSaleNow(saleId))?.state === 'paused');
      snapshot.resolve();
      await died.promise;
      // A dead process would lose its locks.
      await builder.locks.close();
      expect(
        await paused.then(
          ({ outcome }) => outcome,
          () => 'unavailable',
        ),
      ).toMatch(/^(changed|unavailable)$/);
      const gate = openGate();
      await until('the gate is in force', SOON_MS * 2, () => gate.epochOf(saleId));
      const late = await buy(admin, saleId).then(
        (result) => (result.ok ? result.order.status : result.code),
        () => 'unavailable',
      );
      expect(late).toBe('sale_paused');
    }, 60_000);

    it('rule 3: a refusal is not acknowledged before the gate is known to be wrong, though the worker ends at once', async () => {
      const api = await start({ answerWithinMs: 3_000 });
      const worker = await start({ worker: true });
      const saleId = await createSale(api, { stock: 4 });
      await until('it sells', SOON_MS, () => sells(api, saleId));
      const locks = openLocks();
      // The lock keeps others from rebuilding, so that the worker is waiting for it when it ends.
      const grant = await locks.mutex(`rebuild:${saleId}`).acquire();
      const [items] = await keysOf(`{${saleId}:0}:*:items`);
      // The gate has lost sold units, and sells more than there are.
      await redis.command('HINCRBY', items!, 'h:1', '-4');
      const results = await Promise.all(Array.from({ length: 6 }, () => buy(api, saleId).catch(() => null)));
      expect(results.filter((result) => result?.ok).length).toBeLessThanOrEqual(3);
      await worker.close();
      await grant.release();
      await start({ worker: true });
      const gate = openGate();
      await until('the gate holds what the ledger has, and no more', SOON_MS, async () => {
        const [view] = (await gate.view(saleId)) ?? [];
        const sale = await api.getSaleNow(saleId);
        return view?.queued === 0 && view.held === sale?.items[0]?.reserved;
      });
    }, 60_000);

    it('P3: a dead letter of a sale that is over is not thrown away with it', async () => {
      const ledger = await openLedger();
      const api = await start();
      const saleId = await createSale(api);
      await until('the gate is open', SOON_MS, () => sells(api, saleId));
      const letter = { attempts: 5, error: 'a fault', epoch: '2', fields: [], diedAtMs: Date.now() };
      await redis.command('HSET', `${prefix}:{${saleId}:0}:dead`, '4711', JSON.stringify(letter));
      await drained(saleId);
      await api.closeSale(saleId, CALLER);
      await upkeepOf(ledger).round();
      expect(await redis.command('HLEN', `${prefix}:{${saleId}:0}:dead`)).toBe(1);
    }, 60_000);

    describe('the retry of a 202 whose sale has ended meanwhile (P5)', () => {
      const wish = { buyer: 'alice', key: 'k' };
      const fate = (api: DistributedShop, saleId: string, over = wish): Promise<string> =>
        buy(api, saleId, over).then(
          (result) => (result.ok ? `${result.order.status} ${result.order.id}` : result.code),
          (error: { code: string }) => error.code,
        );

      async function queuedThenClosed(api: DistributedShop): Promise<{ saleId: string; orderId: string }> {
        const saleId = await createSale(api);
        await until('the gate is open', SOON_MS, () => sells(api, saleId));
        const orderId = orderIdOf(await buy(api, saleId, wish));
        await api.closeSale(saleId, CALLER);
        return { saleId, orderId };
      }

      it('gets its order while that is in the pipe, and after it, whenever the upkeep comes by', async () => {
        const ledger = await openLedger();
        const api = await start();
        const { saleId, orderId } = await queuedThenClosed(api);
        await upkeepOf(ledger).round();
        expect(await fate(api, saleId)).toBe(`queued ${orderId}`);
        expect(await fate(api, saleId, { buyer: 'bob', key: 'k' })).toBe('sale_closed');
        await drained(saleId);
        await upkeepOf(ledger).round();
        expect(await keysOf(`{${saleId}:0}:*`), 'the gate is gone').toEqual([`${prefix}:{${saleId}:0}:emptied`]);
        expect(await fate(api, saleId)).toBe(`reserved ${orderId}`);
        expect(await fate(api, saleId, { buyer: 'bob', key: 'k' })).toBe('sale_closed');
      }, 60_000);

      it('waits while its gate is shut: nobody can tell', async () => {
        const ledger = await openLedger();
        const api = await start();
        const { saleId, orderId } = await queuedThenClosed(api);
        // The process that was rebuilding it has died.
        await openGate().shut(saleId);
        expect(await fate(api, saleId)).toBe('unavailable');
        await upkeepOf(ledger).round();
        expect(await fate(api, saleId)).toBe('unavailable');
        expect((await ledger.getSale(saleId))!.items[0]!.epoch, 'what is in the pipe is not rejected').toBe(2);
        await drained(saleId);
        expect(await fate(api, saleId)).toBe(`reserved ${orderId}`);
        expect(await fate(api, saleId, { buyer: 'bob', key: 'k' })).toBe('sale_closed');
        await upkeepOf(ledger).round();
        expect(await keysOf(`{${saleId}:0}:*`)).toEqual([`${prefix}:{${saleId}:0}:emptied`]);
      }, 60_000);

      it('is refused only if the first try cannot become an order any more: Redis has forgotten, a broker has not', async () => {
        const ledger = await openLedger();
        const api = await start();
        const { saleId, orderId } = await queuedThenClosed(api);
        const eye = new Redis(redis.url);
        const carried = (await streamed(eye, prefix, saleId)).filter((message) => message.orderId === orderId);
        eye.disconnect();
        expect(carried).toHaveLength(1);
        for (const key of await keysOf('*')) await redis.command('DEL', key);
        const said = await until('it is answered', SOON_MS, async () => {
          const code = await fate(api, saleId);
          return code === 'unavailable' ? null : code;
        });
        const [stored] = await ledger.commitOrders(carried);
        expect([said, stored!.order.status]).toEqual(['sale_closed', 'rejected']);
      }, 60_000);
    });

    describe('a copy of an admission that Redis executes late (P4)', () => {
      const viewOf = async (gate: RedisGate, saleId: string) => (await gate.view(saleId))?.[0];

      it.each([
        { what: 'the last unit', stock: 1, perBuyer: 1, again: false },
        { what: 'another slot of a buyer who has bought again', stock: 3, perBuyer: 2, again: true },
      ])('after the cancel, for $what: it is free again, and sold', async ({ stock, perBuyer, again }) => {
        const api = await start({ worker: true, answerWithinMs: 5000 });
        const saleId = await createSale(api, { stock, perBuyer });
        const orderId = orderIdOf(await buy(api, saleId, { buyer: 'alice' }));
        expect(await api.cancelOrder(orderId, actor('admin', 'alice'))).toMatchObject({ ok: true });
        const gate = openGate();
        await until('it is released', SOON_MS, async () => (await viewOf(gate, saleId))?.free === stock);
        if (again) expect(await buy(api, saleId, { buyer: 'alice' })).toMatchObject({ ok: true });
        const left = again ? stock - 1 : stock;
        const late = { saleId, orderId, itemCode: 'voucher', buyer: 'alice', quantity: 1, key: null };
        const fingerprint = orderFingerprint('voucher', 1);
        expect((await gate.admit({ ...late, fingerprint })).outcome).toBe('admitted');
        await until('it is free', SOON_MS, async () => {
          const view = await viewOf(gate, saleId);
          return view?.free === left && view.queued === 0;
        });
        expect((await api.deadLetters.page(10, null)).data).toEqual([]);
        for (let units = 0; units < left; units++) expect(await buy(api, saleId)).toMatchObject({ ok: true });
        expect(await buy(api, saleId)).toMatchObject({ code: 'sold_out' });
        if (!again) expect(await buy(api, saleId, { buyer: 'alice' })).toMatchObject({ code: 'sold_out' });
      });

      it('with its key it is the order itself, and takes nothing', async () => {
        const api = await start({ worker: true, answerWithinMs: 5000 });
        const saleId = await createSale(api, { stock: 1 });
        const orderId = orderIdOf(await buy(api, saleId, { buyer: 'alice', key: 'k' }));
        await api.cancelOrder(orderId, actor('admin', 'alice'));
        const gate = openGate();
        await until('it is released', SOON_MS, async () => (await viewOf(gate, saleId))?.free === 1);
        const late = { saleId, orderId, itemCode: 'voucher', buyer: 'alice', quantity: 1, key: 'k' };
        const fingerprint = orderFingerprint('voucher', 1);
        expect(await gate.admit({ ...late, fingerprint })).toEqual({ outcome: 'replayed', orderId });
        expect(await viewOf(gate, saleId)).toMatchObject({ free: 1 });
      });

      it('a message that is redelivered after its order was cancelled gives nothing back twice', async () => {
        const api = await start();
        const saleId = await createSale(api, { stock: 2 });
        const bought = await until('the gate is open', SOON_MS, () => buy(api, saleId).catch(() => null));
        const eye = new Redis(redis.url);
        // A worker that dies between its commit and the update of the gate.
        await (await openLedger()).commitOrders(await streamed(eye, prefix, saleId));
        eye.disconnect();
        await api.cancelOrder(orderIdOf(bought), actor('admin', 'alice'));
        const gate = openGate();
        await until('it is released', SOON_MS, async () => (await viewOf(gate, saleId))?.free === 2);
        const other = await buy(api, saleId);
        await start({ worker: true });
        expect(await until('it ends', SOON_MS, () => ended(api, orderIdOf(other)))).toBe('reserved');
        await until('nothing is in the pipe', SOON_MS, async () => {
          const [stream] = await keysOf(`{${saleId}:0}:*:stream`);
          return (await redis.command('XLEN', stream!)) === 0;
        });
        expect(await viewOf(gate, saleId)).toMatchObject({ total: 2, free: 1, queued: 0, held: 1 });
      });
    });

    it('P5, P10: with no ids left refusals go on, buyers wait no longer than for an answer, and repeats get theirs', async () => {
      let blocks = 0;
      const api = await start({
        answerWithinMs: 300,
        calls: {
          takeIdBlock(real, kind, size) {
            if (kind !== 'order') return real.takeIdBlock(kind, size);
            // Three ids, and then a database that does not answer.
            return blocks++ === 0 ? real.takeIdBlock(kind, 3) : new Promise<never>(() => {});
          },
        },
      });
      const saleId = await createSale(api, { stock: 2 });
      const wish = { buyer: 'alice', key: 'k' };
      const orderId = orderIdOf(
        await until('the gate is open', SOON_MS, () => buy(api, saleId, wish).catch(() => null)),
      );
      await buy(api, saleId);
      for (let times = 0; times < 20; times++) expect(await buy(api, saleId)).toMatchObject({ code: 'sold_out' });
      await api.addStock(saleId, 'voucher', 5, CALLER);
      expect(await buy(api, saleId), 'the third number is left').toMatchObject({ ok: true });
      const startMs = performance.now();
      await expect(buy(api, saleId)).rejects.toMatchObject({ code: 'unavailable' });
      expect(performance.now() - startMs).toBeLessThan(2000);
      expect(await buy(api, saleId, wish)).toMatchObject({ ok: true, replayed: true, order: { id: orderId } });
    });

    it('P3: a sale that is extended while the upkeep sleeps keeps what it admits', async () => {
      const ledger = await openLedger();
      const api = await start();
      const saleId = await createSale(api);
      await until('the gate is open', SOON_MS, () => sells(api, saleId));
      await drained(saleId);
      let orderId = '';
      const gate = openGate();
      // The upkeep is stopped between reading the sale and acting on it, while the sale goes on.
      const sleepy = withCalls(gate, {
        async retire(real: RedisGate, id: string) {
          if (id === saleId && orderId === '') {
            void (api as unknown as Rebuilds).rebuilder.rebuild(saleId);
            const bought = await until('it sells again', SOON_MS, async () => {
              const result = await buy(api, saleId).catch(() => null);
              return result?.ok ? result : null;
            });
            orderId = orderIdOf(bought);
          }
          return real.retire(id);
        },
      });
      // The upkeep read the sale when its window was over.
      await upkeepOf(withCalls(ledger, { openSaleIds: async () => [] }), sleepy).round();
      expect(orderId).not.toBe('');
      // The order was answered 202, so it is in the pipe, whichever process has died since.
      const streams = await keysOf(`{${saleId}:0}:*:stream`);
      const lengths = await Promise.all(streams.map((key) => redis.command('XLEN', key)));
      expect(lengths.reduce<number>((sum, length) => sum + Number(length), 0)).toBe(1);
    }, 60_000);

    it('P9: units taken for the house come back, though Redis is out at the moment they are given back', async () => {
      await using proxy: FaultProxy = await startProxy(redis.port);
      const admin = await start({
        redisUrl: `redis://127.0.0.1:${proxy.port}`,
        calls: {
          async addStock(real, ...args) {
            const change = await real.addStock(...args);
            await proxy.refuse(true);
            proxy.cut();
            return change;
          },
        },
      });
      const saleId = await createSale(admin, { stock: 10 });
      const gate = openGate();
      await until('the gate is open', SOON_MS, () => gate.epochOf(saleId));
      await admin.addStock(saleId, 'voucher', -3, CALLER).catch(() => null);
      const view = async () => (await gate.view(saleId))?.[0];
      expect(await view()).toMatchObject({ house: 3 });
      // It never comes back: the upkeep drops the hold once it is old by Redis' clock.
      const [house] = await keysOf(`{${saleId}:0}:*:house`);
      const [holdId, hold] = (await redis.command('HGETALL', house!)) as [string, string];
      const upkeep = upkeepOf(await openLedger(), openGate());
      await upkeep.round();
      expect(await view(), 'young').toMatchObject({ house: 3 });
      const aged = hold.replace(/\d+$/, (takenAt) => String(Number(takenAt) - 10 * 60_000));
      await redis.command('HSET', house!, holdId, aged);
      await upkeepOf(await openLedger(), openGate()).round();
      expect(await view()).toMatchObject({ total: 7, house: 0, free: 7 });
    }, 60_000);

    it.each(['stream', 'items'])(
      'a gate whose %s is gone is built anew',
      async (part) => {
        const api = await start();
        await start({ worker: true });
        const saleId = await createSale(api);
        await until('it sells', SOON_MS, () => sells(api, saleId));
        for (const key of await keysOf(`{${saleId}:0}:*:${part}`)) await redis.command('DEL', key);
        await until('it sells again', SOON_MS, () => sells(api, saleId));
      },
      60_000,
    );

    it('P3: a 202 ends whose hold and message are gone from a gate that looks healthy', async () => {
      // As after a failover to a replica that lagged and back: the same server, the same run_id, an older copy.
      const api = await start();
      const saleId = await createSale(api);
      await until('the gate is open', SOON_MS, () => sells(api, saleId));
      const orderId = orderIdOf(await buy(api, saleId, { buyer: 'alice' }));
      for (const key of await keysOf(`{${saleId}:0}:*:stream`)) await redis.command('XTRIM', key, 'MAXLEN', '0');
      for (const key of await keysOf(`{${saleId}:0}:*:holds`)) await redis.command('HDEL', key, 'alice');
      expect(await until('it ends', SOON_MS, () => ended(api, orderId))).toMatch(/^rejected: /);
    }, 60_000);

    it('P3: a 202 ends although the list of sales was lost (in a cluster it is on a server of its own)', async () => {
      const api = await start();
      const saleId = await createSale(api);
      const bought = await until('the gate is open', SOON_MS, () => buy(api, saleId).catch(() => null));
      await redis.command('DEL', `${prefix}:sales`);
      // No worker was listening for the wake-up.
      await start({ worker: true });
      expect(await until('it ends', SOON_MS, () => ended(api, orderIdOf(bought)))).toBe('reserved');
    }, 60_000);

    it('P3: a 202 that a repeat was given is owed by the process that gave it', async () => {
      const first = await start();
      const second = await start();
      const saleId = await createSale(first);
      await until('the gate is open', SOON_MS, () => sells(first, saleId));
      const wish = { buyer: 'alice', key: 'k' };
      const orderId = orderIdOf(await buy(first, saleId, wish));
      expect(await buy(second, saleId, wish)).toMatchObject({ ok: true, replayed: true, order: { status: 'queued' } });
      await first.close();
      for (const key of await keysOf('*')) await redis.command('DEL', key);
      expect(await until('it ends', SOON_MS, () => ended(second, orderId).catch(() => null))).toBe(
        'rejected: admission_lost',
      );
    }, 60_000);

    it('P3: a worker that alone cannot reach the database does not keep orders from the others', async () => {
      const api = await start();
      await start({
        worker: true,
        calls: { commitOrders: () => Promise.reject(unavailable('no way to the database')) },
      });
      const saleId = await createSale(api);
      // It is working on this order.
      const bought = await until('the gate is open', SOON_MS, () => buy(api, saleId).catch(() => null));
      await until('it was read', SOON_MS, async () => {
        const [stream] = await keysOf(`{${saleId}:0}:*:stream`);
        const [pending] = (await redis.command('XPENDING', stream!, 'ledger')) as [number];
        return pending > 0;
      });
      await start({ worker: true });
      expect(await until('it ends', 2 * SOON_MS, () => ended(api, orderIdOf(bought)))).toBe('reserved');
    }, 90_000);

    it('WRITER_LOCK=buyer: a batch of many buyers is written, too', async () => {
      const api = await start();
      const saleId = await createSale(api, { stock: 1000 });
      await until('the gate is open', SOON_MS, () => sells(api, saleId));
      const results = await Promise.all(Array.from({ length: 150 }, () => buy(api, saleId)));
      await start({ worker: true, writerLock: 'buyer' });
      for (const result of [results[0]!, results.at(-1)!]) {
        expect(await until('it ends', SOON_MS, () => ended(api, orderIdOf(result)))).toBe('reserved');
      }
    }, 60_000);

    it('GET of a 202 at another process is never 404 while nobody has decided it', async () => {
      const api = await start();
      const other = await start();
      const saleId = await createSale(api);
      const bought = await until('the gate is open', SOON_MS, () => buy(api, saleId).catch(() => null));
      const orderId = orderIdOf(bought);
      expect((await other.getOrder(orderId))?.status).toBe('queued');
      // A rebuild removes the holds of the old epoch, but the message is still in the pipe.
      const gate = openGate();
      const before = await gate.epochOf(saleId);
      await gate.shut(saleId);
      void (api as unknown as Rebuilds).rebuilder.rebuild(saleId);
      await until('the gate was built anew', SOON_MS, async () => ((await gate.epochOf(saleId)) ?? 0) > before!);
      const seen = await other.getOrder(orderId).then(
        (order) => order?.status ?? 'not found',
        () => 'unavailable',
      );
      expect(seen).not.toBe('not found');
    }, 60_000);

    it('a watcher that could not be served is not kept', async () => {
      let out = false;
      const api = await start({
        calls: {
          storedAmong: (real, ids) => (out ? Promise.reject(new Error('out')) : real.storedAmong(ids)),
          getOrder: (real, id) => (out ? Promise.reject(new Error('out')) : real.getOrder(id)),
        },
      });
      out = true;
      await expect(api.watchOrder('4711', () => {})).rejects.toThrow();
      expect((api as unknown as { events: { watched: string[] } }).events.watched).toEqual([]);
    });

    /** The upkeep of another process; `laterMs`: its clock is ahead, for work that it does only after a while. */
    function upkeepOf(ledger: Ledger, gate = openGate(), laterMs = 0): GateUpkeep {
      const clock = { now: () => Date.now() + laterMs, monotonic: () => performance.now() };
      const runtime = { ...systemRuntime(), clock };
      const pipe = new RedisStreamsPipe({ channels: ORDERS, redis: redis.url, prefix }, runtime);
      const locks = openLocks();
      const rebuilder = new Rebuilder({
        runtime,
        gate,
        pipe,
        ledger,
        lock: (saleId) => locks.mutex(`rebuild:${saleId}`).tryAcquire(),
        drainMsMax: 5000,
        drainIdleMsMax: 3000,
        rebuilding: async () => ({ auditId: String(++lastAuditId), by: CALLER.by }),
        rebuilt: () => {},
      });
      ends.push(
        () => pipe.close(),
        () => rebuilder.close(),
      );
      const lead = () => ({ stop: async () => undefined });
      return new GateUpkeep({ runtime, gate, ledger, lead, rebuilder });
    }

    /** A worker writes all orders so far to the ledger, and is then closed. */
    async function drained(saleId: string): Promise<void> {
      const worker = await start({ worker: true });
      // Not by the gate's counts: the worker may remove a finished sale from Redis as soon as it is empty.
      await until('nothing is in the streams', SOON_MS, async () => {
        const streams = await keysOf(`{${saleId}:0}:*:stream`);
        const lengths = await Promise.all(streams.map((key) => redis.command('XLEN', key)));
        return lengths.every((length) => Number(length) === 0);
      });
      await worker.close();
    }
  });
});
