import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createDoorbuster, type Doorbuster } from '../../src/index.ts';
import { engineOf } from '../../src/library/doorbuster.ts';
import { startShop } from '../support/distributed.ts';
import { until } from '../support/fault-wait.ts';
import { type AuditRow, auditOf, order, PAYMENTS, PRICE, pay, tell } from '../support/life-http.ts';
import { LONG } from '../support/long.ts';
import {
  ADMIN_KEY,
  type Answer,
  type CallOptions,
  cleanUp,
  createSale,
  saleBody,
  startServer,
  temporaryFolder,
} from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { mysqlUrl } from '../support/servers/mariadb.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import { type Receiver, startReceiver } from '../support/webhooks.ts';

/**
 * The audit has no gaps: every change by an admin, through any route, is committed together with its row, which names actor and
 * origin in one form. The routes come from the server's own contract: a new one must be added here, with its row.
 */

const ENV = { ...PAYMENTS, DOORBUSTER_ADMIN_KEY: `alice:${ADMIN_KEY}`, WEBHOOKS_PRIVATE: 'on' };
const ALICE = { actor: 'admin:alice', origin: '127.0.0.1' };
const PREFIX = 'audit-test';

type Call = (method: string, path: string, options?: CallOptions) => Promise<Answer>;

/** A shop to change. `letter` creates a dead letter and returns its id; null: this deployment has none. */
interface World {
  call: Call;
  receiver: Receiver;
  letter: ((saleId: string) => Promise<string>) | null;
}

interface Deed {
  /** Prepares the object to be changed, and returns the call that changes it. */
  readonly call: (world: World) => Promise<CallOptions & { path: string }>;
  /** The rows that it leaves. A refund is committed twice: before the provider is asked, and when the money is back. */
  readonly rows: readonly string[];
}

const FOR_BUYER = { 'doorbuster-buyer': 'ann' };

async function paid(world: World): Promise<string> {
  const one = await order(world, await createSale(world), 'ann');
  expect((await pay(world, one)).status).toBe(200);
  return one.id;
}

async function ofSale(world: World, path: string, more: CallOptions = {}): Promise<CallOptions & { path: string }> {
  return { path: path.replace(':id', await createSale(world)), ...more };
}

const ROW = { code: 'row', name: 'Row', price: PRICE, seats: [{ section: 'S', row: 'R', from: 1, to: 5 }] };

/** A sale of one row of seats. */
async function seated({ call }: World): Promise<string> {
  return (await call('POST', '/v1/sales', { admin: true, body: { ...saleBody(), items: [ROW] } })).body.id;
}

async function webhook({ call, receiver }: World): Promise<string> {
  const body = { url: receiver.url, events: ['order.reserved'] };
  return (await call('POST', '/v1/ops/webhooks', { admin: true, body })).body.id;
}

async function post({ call }: World): Promise<string> {
  const { body } = await call('POST', '/v1/posts', { buyer: 'ann', body: { title: 'T', content: 'C' } });
  return body.id;
}

async function comment(world: World): Promise<string> {
  const path = `/v1/posts/${await post(world)}/comments`;
  return (await world.call('POST', path, { buyer: 'ann', body: { content: 'C' } })).body.id;
}

/** What is done to a post or a comment, for its author. */
function ofSocial(make: (world: World) => Promise<string>, path: string, row: string, body?: unknown): Deed {
  return {
    call: async (world) => ({ path: path.replace(':id', await make(world)), headers: FOR_BUYER, body }),
    rows: [row],
  };
}

const EDIT = { content: 'D', version: 1 };

const DEEDS: Record<string, Deed> = {
  'POST /v1/sales': { call: async () => ({ path: '/v1/sales', body: saleBody() }), rows: ['sale.create'] },
  'PATCH /v1/sales/{id}': {
    call: (world) => ofSale(world, '/v1/sales/:id', { body: { perBuyer: 2, version: 1 } }),
    rows: ['sale.patch'],
  },
  'DELETE /v1/sales/{id}': { call: (world) => ofSale(world, '/v1/sales/:id'), rows: ['sale.delete'] },
  'POST /v1/sales/{id}/items': {
    call: (world) => ofSale(world, '/v1/sales/:id/items', { body: { ...saleBody().items[0]!, code: 'other' } }),
    rows: ['sale.add_item'],
  },
  'PATCH /v1/sales/{id}/items/{code}': {
    call: (world) => ofSale(world, '/v1/sales/:id/items/voucher', { body: { onSale: false, version: 1 } }),
    rows: ['sale.patch_item'],
  },
  'POST /v1/sales/{id}/items/{code}/stock': {
    call: (world) => ofSale(world, '/v1/sales/:id/items/voucher/stock', { body: { add: -1 } }),
    rows: ['sale.stock'],
  },
  'POST /v1/sales/{id}/pause': { call: (world) => ofSale(world, '/v1/sales/:id/pause'), rows: ['sale.pause'] },
  'POST /v1/sales/{id}/resume': {
    call: async (world) => {
      const sale = await ofSale(world, '/v1/sales/:id/resume');
      await world.call('POST', sale.path.replace('resume', 'pause'), { admin: true });
      return sale;
    },
    rows: ['sale.resume'],
  },
  'POST /v1/sales/{id}/close': { call: (world) => ofSale(world, '/v1/sales/:id/close'), rows: ['sale.close'] },
  'POST /v1/sales/{id}/orders': {
    call: (world) => ofSale(world, '/v1/sales/:id/orders', { body: { item: 'voucher' }, headers: FOR_BUYER }),
    rows: ['order.place'],
  },
  'POST /v1/sales/{id}/seats/block': {
    call: async (world) => ({ path: `/v1/sales/${await seated(world)}/seats/block`, body: { seats: ['S/R/1'] } }),
    rows: ['sale.block_seats'],
  },
  'POST /v1/sales/{id}/seats/unblock': {
    call: async (world) => ({ path: `/v1/sales/${await seated(world)}/seats/unblock`, body: { seats: ['S/R/1'] } }),
    rows: ['sale.unblock_seats'],
  },
  'POST /v1/orders/{id}/move': {
    call: async (world) => {
      const sale = await seated(world);
      const body = { seats: ['S/R/1'] };
      const { id } = (await world.call('POST', `/v1/sales/${sale}/orders`, { buyer: 'ann', body })).body;
      return { path: `/v1/orders/${id}/move`, body: { seats: ['S/R/2'] } };
    },
    rows: ['order.move'],
  },
  'POST /v1/orders/{id}/pay': {
    call: async (world) => {
      const { id } = await order(world, await createSale(world), 'ann');
      return { path: `/v1/orders/${id}/pay`, body: { method: 'sandbox' }, headers: FOR_BUYER };
    },
    rows: ['order.pay'],
  },
  'POST /v1/orders/{id}/confirm': {
    call: async (world) => {
      const { id } = await order(world, await createSale(world), 'ann');
      return { path: `/v1/orders/${id}/confirm`, body: { reference: `till-${id}`, amount: PRICE } };
    },
    rows: ['order.pay'],
  },
  'POST /v1/orders/{id}/cancel': {
    call: async (world) => {
      return { path: `/v1/orders/${(await order(world, await createSale(world), 'ann')).id}/cancel` };
    },
    rows: ['order.cancel'],
  },
  'POST /v1/orders/{id}/pay/unblock': {
    call: async (world) => {
      const one = await order(world, await createSale(world), 'ann');
      for (let n = 0; n < 10; n++) expect((await pay(world, one, 'declined')).status).toBe(402);
      return { path: `/v1/orders/${one.id}/pay/unblock` };
    },
    rows: ['payment.unblock'],
  },
  'POST /v1/orders/{id}/refund': {
    call: async (world) => ({ path: `/v1/orders/${await paid(world)}/refund` }),
    rows: ['payment.refund', 'order.refund'],
  },
  'POST /v1/ops/webhooks': {
    call: async ({ receiver }) => ({
      path: '/v1/ops/webhooks',
      body: { url: receiver.url, events: ['order.reserved'] },
    }),
    rows: ['webhook.create'],
  },
  'DELETE /v1/ops/webhooks/{id}': {
    call: async (world) => ({ path: `/v1/ops/webhooks/${await webhook(world)}` }),
    rows: ['webhook.delete'],
  },
  'POST /v1/ops/webhooks/deliveries/{id}/redeliver': {
    call: async (world) => {
      const endpoint = await webhook(world);
      const sale = await createSale(world);
      await order(world, sale, 'ann');
      const id = await until('a delivery', 10_000, async () => {
        const { body } = await world.call('GET', `/v1/ops/webhooks/${endpoint}/deliveries`, { admin: true });
        return body.data[0]?.state === 'delivered' && (body.data[0].id as string);
      });
      return { path: `/v1/ops/webhooks/deliveries/${id}/redeliver` };
    },
    rows: ['webhook.redeliver'],
  },
  'POST /v1/ops/dead-letters/{id}/retry': {
    call: async (world) => ({ path: `/v1/ops/dead-letters/${await world.letter!(await createSale(world))}/retry` }),
    rows: ['dead_letter.retry'],
  },
  'DELETE /v1/ops/dead-letters/{id}': {
    call: async (world) => ({ path: `/v1/ops/dead-letters/${await world.letter!(await createSale(world))}` }),
    rows: ['dead_letter.delete'],
  },
  'POST /v1/posts': {
    call: async () => ({ path: '/v1/posts', headers: FOR_BUYER, body: { title: 'T', content: 'C' } }),
    rows: ['post.create'],
  },
  'PATCH /v1/posts/{id}': ofSocial(post, '/v1/posts/:id', 'post.edit', EDIT),
  'DELETE /v1/posts/{id}': ofSocial(post, '/v1/posts/:id', 'post.delete'),
  'PUT /v1/posts/{id}/like': ofSocial(post, '/v1/posts/:id/like', 'like.set'),
  'DELETE /v1/posts/{id}/like': ofSocial(post, '/v1/posts/:id/like', 'like.take_back'),
  'POST /v1/posts/{id}/comments': ofSocial(post, '/v1/posts/:id/comments', 'comment.create', { content: 'C' }),
  'PATCH /v1/comments/{id}': ofSocial(comment, '/v1/comments/:id', 'comment.edit', EDIT),
  'DELETE /v1/comments/{id}': ofSocial(comment, '/v1/comments/:id', 'comment.delete'),
  'PUT /v1/comments/{id}/like': ofSocial(comment, '/v1/comments/:id/like', 'like.set'),
  'DELETE /v1/comments/{id}/like': ofSocial(comment, '/v1/comments/:id/like', 'like.take_back'),
  // Read-only.
  'POST /v1/ops/consistency/check': { call: async () => ({ path: '/v1/ops/consistency/check' }), rows: [] },
};

async function rowsOf({ call }: Pick<World, 'call'>): Promise<AuditRow[]> {
  const { status, body } = await call('GET', '/v1/ops/audit?limit=200', { admin: true });
  expect(status, JSON.stringify(body)).toBe(200);
  // Rows of the server's own work may come in between.
  return (body.data as AuditRow[]).filter(({ actor }) => !actor.startsWith('system:'));
}

/** The newest row of an order. */
async function lastOf(world: World, orderId: string): Promise<AuditRow | undefined> {
  return (await auditOf(world, { id: orderId })).at(-1);
}

function auditSuite(start: () => Promise<World>): void {
  let world: World;
  beforeAll(async () => {
    world = await start();
  }, 60_000);
  afterAll(async () => {
    await cleanUp();
    await world?.receiver.close();
    await cleanUpServers();
  });

  it('every route that changes something for an admin is in this table', async () => {
    const { body } = await world.call('GET', '/openapi.json');
    const routes = Object.entries(body.paths as Record<string, Record<string, { security?: object[] }>>).flatMap(
      ([path, methods]) =>
        Object.entries(methods)
          .filter(([method, { security }]) => method !== 'get' && security?.some((one) => 'admin' in one))
          .map(([method]) => `${method.toUpperCase()} ${path}`),
    );
    expect(routes.sort()).toEqual(Object.keys(DEEDS).sort());
  });

  it.each(Object.entries(DEEDS))('%s: one row per commit, with actor and origin', async (route, { call, rows }) => {
    if (route.includes('dead-letters') && world.letter === null) return;
    const { path, ...options } = await call(world);
    const seen = new Set((await rowsOf(world)).map(({ id }) => id));
    const answer = await world.call(route.split(' ')[0]!, path, { admin: true, ...options });
    expect(answer.status, JSON.stringify(answer.body)).toBeLessThan(300);
    const fresh = (await rowsOf(world)).filter(({ id }) => !seen.has(id)).reverse();
    expect(fresh.map(({ action }) => action)).toEqual(rows);
    for (const row of fresh) expect(row).toMatchObject(ALICE);
  });

  it('a buyer and a provider are recorded in the same form, with their addresses', async () => {
    const sale = await createSale(world);
    const [cancelled, told] = [await order(world, sale, 'ben'), await order(world, sale, 'cem')];
    await world.call('POST', `/v1/orders/${cancelled.id}/cancel`, { buyer: 'ben' });
    expect(await lastOf(world, cancelled.id)).toMatchObject({ actor: 'buyer:ben', origin: '127.0.0.1' });
    const { reference } = (await pay(world, told)).body.payment;
    const { status } = await tell(world, { type: 'payment.refunded', orderId: told.id, reference, amount: PRICE });
    expect(status).toBe(200);
    const by = { actor: 'provider:sandbox', origin: '127.0.0.1' };
    expect(await lastOf(world, told.id)).toMatchObject({ action: 'order.refund', ...by });
  });

  it('an order that an admin places for a buyer: one row with the order, however often it is sent', async () => {
    const sale = await createSale(world, { stock: 2, perBuyer: 2 });
    const place = (buyer: string, key: string, quantity = 1): Promise<Answer> =>
      world.call('POST', `/v1/sales/${sale}/orders`, {
        admin: true,
        body: { item: 'voucher', quantity },
        key,
        headers: { 'doorbuster-buyer': Buffer.from(buyer).toString('latin1') },
      });
    const seen = new Set((await rowsOf(world)).map(({ id }) => id));
    const first = await place('Zoë', 'k');
    expect(first.status).toBe(201);
    expect((await place('Zoë', 'k')).headers.get('idempotent-replayed')).toBe('true');
    expect((await place('Zoë', 'other', 2)).body.code).toBe('limit_reached');
    // An order that a buyer places has no row: the order itself is the record.
    await order(world, sale, 'ann');
    expect((await place('ben', 'ben')).body.code).toBe('sold_out');
    const fresh = (await rowsOf(world)).filter(({ id }) => !seen.has(id));
    expect(fresh).toEqual([
      {
        id: expect.any(String),
        at: expect.any(String),
        ...ALICE,
        action: 'order.place',
        subject: `order:${first.body.id}`,
        detail: { saleId: sale, buyer: 'Zoë', item: 'voucher', quantity: 1, status: 'reserved' },
      },
    ]);
  });
}

describe('the audit of an embedded shop', () => {
  auditSuite(async () => {
    const [server, receiver] = await Promise.all([startServer({ env: ENV }), startReceiver()]);
    return { call: server.call, receiver, letter: null };
  });
});

describe('the audit of a shop in the application’s own process', () => {
  const PAGE = { limit: 100, before: null };
  const soon = (): { opensAt: number; closesAt: number } => ({ opensAt: 0, closesAt: Date.now() + 3_600_000 });
  const items = [{ code: 'voucher', name: '100 off', price: PRICE, stock: 5 }, ROW];
  type Act = (shop: Doorbuster, saleId: string, orderId: string) => Promise<unknown>;

  const paidFirst: Act = (shop, _, orderId) => shop.orders.pay(orderId, { method: 'sandbox' });
  const declinedFirst: Act = async (shop, _, orderId) => {
    for (let n = 0; n < 10; n++) await shop.orders.pay(orderId, { method: 'sandbox', token: 'declined' });
  };
  /** Every call that changes something, what must be before it, and the rows that it leaves. */
  const CALLS: Record<string, [act: Act, rows: string[], first?: Act]> = {
    'sales.create': [(shop) => shop.sales.create({ name: 'S', ...soon(), items }), ['sale.create']],
    'sales.patch': [(shop, id) => shop.sales.patch(id, { version: 1, perBuyer: 2 }), ['sale.patch']],
    'sales.addItem': [(shop, id) => shop.sales.addItem(id, { ...items[0]!, code: 'other' }), ['sale.add_item']],
    'sales.patchItem': [
      (shop, id) => shop.sales.patchItem(id, 'voucher', { onSale: false, version: 1 }),
      ['sale.patch_item'],
    ],
    'sales.delete': [
      async (shop) => {
        const made = await shop.sales.create({ name: 'S', ...soon(), items });
        return shop.sales.delete(made.ok ? made.sale.id : '');
      },
      ['sale.create', 'sale.delete'],
    ],
    'sales.addStock': [(shop, id) => shop.sales.addStock(id, 'voucher', 1), ['sale.stock']],
    'sales.pause': [(shop, id) => shop.sales.pause(id), ['sale.pause']],
    'sales.resume': [(shop, id) => shop.sales.resume(id), ['sale.resume'], (shop, id) => shop.sales.pause(id)],
    'sales.blockSeats': [(shop, id) => shop.sales.blockSeats(id, ['S/R/1']), ['sale.block_seats']],
    'sales.unblockSeats': [(shop, id) => shop.sales.unblockSeats(id, ['S/R/1']), ['sale.unblock_seats']],
    'sales.close': [(shop, id) => shop.sales.close(id), ['sale.close']],
    // The application places it as the buyer: the order itself is the record, as over HTTP.
    'orders.place': [(shop, sale) => shop.orders.place({ sale, buyer: 'ben', item: 'voucher' }), []],
    'orders.pay': [(shop, _, id) => shop.orders.pay(id, { method: 'sandbox' }), ['order.pay']],
    'orders.confirm': [(shop, _, id) => shop.orders.confirm(id, { reference: 'till', amount: PRICE }), ['order.pay']],
    'orders.cancel': [(shop, _, id) => shop.orders.cancel(id), ['order.cancel']],
    'orders.refund': [(shop, _, id) => shop.orders.refund(id), ['payment.refund', 'order.refund'], paidFirst],
    'orders.move': [
      async (shop, sale) => {
        const placed = await shop.orders.place({ sale, buyer: 'cem', seats: ['S/R/1'] });
        return await shop.orders.move(placed.ok ? placed.order.id : '', ['S/R/2']);
      },
      ['order.move'],
    ],
    'orders.unblockPayments': [(shop, _, id) => shop.orders.unblockPayments(id), ['payment.unblock'], declinedFirst],
  };
  const READS = ['sales.get', 'sales.list', 'sales.seats', 'sales.watch', 'orders.get', 'orders.list'];

  it('every call that changes something leaves its rows', async () => {
    const shop = await createDoorbuster({ data: temporaryFolder(), sandbox: true });
    try {
      const all = (['sales', 'orders'] as const).flatMap((part) =>
        Object.keys(shop[part]).map((name) => `${part}.${name}`),
      );
      expect(all.sort()).toEqual([...Object.keys(CALLS), ...READS].sort());
      // Rebuilds of gates have rows of their own.
      const rows = async () =>
        (await engineOf(shop).shop.audit({}, PAGE)).filter(({ actor }) => !actor.startsWith('system:'));
      for (const [name, [act, expected, first]] of Object.entries(CALLS)) {
        const made = await shop.sales.create({ name: 'S', ...soon(), items });
        const saleId = made.ok ? made.sale.id : '';
        const placed = await shop.orders.place({ sale: saleId, buyer: 'ann', item: 'voucher' });
        const orderId = placed.ok ? placed.order.id : '';
        await first?.(shop, saleId, orderId);
        const seen = new Set((await rows()).map(({ id }) => id));
        expect(await act(shop, saleId, orderId), name).toMatchObject(name.endsWith('Payments') ? {} : { ok: true });
        const fresh = (await rows()).filter(({ id }) => !seen.has(id)).reverse();
        expect([name, fresh.map(({ action }) => action)]).toEqual([name, expected]);
        for (const row of fresh) expect(row).toMatchObject({ actor: 'library:app', origin: null });
      }
    } finally {
      await shop.close();
    }
  });

  it('a gate that is rebuilt at a start is recorded as done by the shop itself', async () => {
    const data = temporaryFolder();
    const before = await createDoorbuster({ data });
    const made = await before.sales.create({ name: 'S', ...soon(), items });
    await before.close();
    const shop = await createDoorbuster({ data });
    try {
      const [row] = await engineOf(shop).shop.audit({}, PAGE);
      expect(row).toMatchObject({
        ...{ action: 'gate.rebuild', actor: 'system:gate', origin: null },
        subject: `sale:${made.ok && made.sale.id}`,
      });
    } finally {
      await shop.close();
    }
  });
});

describeWithRedis('the audit of a shop of several processes', () => {
  const start = async (databaseUrl: string): Promise<World> => {
    const [redis, receiver] = await Promise.all([startRedis(), startReceiver()]);
    const env = { ...ENV, REDIS_PREFIX: PREFIX, ANSWER_WITHIN_MS: '5000', LOG_LEVEL: 'fatal' };
    const shop = await startShop({ redisUrl: redis.url, databaseUrl, servers: 0, workers: 0, env });
    const { call } = await shop.startServer([]);
    return { call, receiver, letter: (saleId) => forgedLetter(redis, call, saleId) };
  };
  describeWithPostgres('on PostgreSQL', () => auditSuite(async () => start(await postgresUrl())));
  // The ledger's contract suite checks the rows on all three databases.
  if (LONG) describeWithMysql('on MariaDB', () => auditSuite(async () => start(await mysqlUrl())));
});

/** Writes an entry that no gate would write, which becomes a dead letter at once. */
async function forgedLetter(redis: RedisServer, call: Call, saleId: string): Promise<string> {
  const epoch = await redis.command('HGET', `${PREFIX}:{${saleId}:0}:gate`, 'epoch');
  await redis.command('XADD', `${PREFIX}:{${saleId}:0}:${epoch}:stream`, '*', 'what', 'is this');
  return await until('a letter', 10_000, async () => {
    const { body } = await call('GET', '/v1/ops/dead-letters', { admin: true });
    return (body.data as { id: string; saleId: string }[]).find((letter) => letter.saleId === saleId)?.id;
  });
}
