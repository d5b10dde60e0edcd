import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import type { Timers } from '../../src/base/timers.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { HTTP_DEFAULTS } from '../../src/http/context.ts';
import { createServer } from '../../src/http/server.ts';
import { CALM, expectProblem, openStream, sleepMs } from '../support/openapi-wire.ts';
import {
  ADMIN_KEY,
  type Answer,
  allOrders,
  type CallOptions,
  cleanUp,
  createSale,
  type SaleInput,
  saleBody,
  startServer,
  type TestServer,
  temporaryFolder,
} from '../support/server.ts';

/** The life of a sale over HTTP, and the system's own routes. */
let server: TestServer;
beforeAll(async () => {
  server = await startServer({ env: CALM });
});
afterAll(cleanUp);

const admin = (method: string, path: string, options: CallOptions = {}) =>
  server.call(method, path, { admin: true, ...options });
const get = async (id: string) => (await server.call('GET', `/v1/sales/${id}`)).body;
const order = (id: string, buyer: string, quantity = 1, options: CallOptions = {}) =>
  server.call('POST', `/v1/sales/${id}/orders`, { buyer, body: { item: 'voucher', quantity }, ...options });
const restock = (id: string, add: number, options: CallOptions = {}) =>
  admin('POST', `/v1/sales/${id}/items/voucher/stock`, { body: { add }, ...options });
const fromNow = (ms: number) => new Date(Date.now() + ms).toISOString();
const codeOf = ({ status, body }: Answer) => [status, body.code];

/** free + queued + reserved + sold + blocked = total (P9). */
function addsUp(sale: { items: Record<string, number>[] }): void {
  for (const { total, free, queued, reserved, sold, blocked } of sale.items) {
    expect(free! + queued! + reserved! + sold! + blocked!).toBe(total);
  }
}

describe('create, get, list', () => {
  it('creates a sale as the contract shows it', async () => {
    const body = {
      ...saleBody({ stock: 100 }),
      name: '双十一 vouchers 🎟',
      payWithin: 60,
      items: [
        { code: 'b', name: 'Second', price: { amount: 0, currency: 'JPY' }, stock: 0 },
        { code: 'a', name: 'First', price: { amount: 8000, currency: 'CNY' }, stock: 100 },
      ],
    };
    const created = await admin('POST', '/v1/sales', { body });
    expect(created.status).toBe(201);
    const counts = { queued: 0, reserved: 0, sold: 0, blocked: 0 };
    expect(created.body).toEqual({
      id: expect.stringMatching(/^[1-9]\d{0,18}$/),
      name: body.name,
      state: 'open',
      opensAt: '2020-01-01T00:00:00.000Z',
      closesAt: '2099-01-01T00:00:00.000Z',
      perBuyer: 1,
      payWithin: 60,
      version: 1,
      createdAt: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      items: [
        {
          code: 'b',
          name: 'Second',
          price: body.items[0]!.price,
          kind: 'counted',
          onSale: true,
          total: 0,
          free: 0,
          ...counts,
        },
        {
          code: 'a',
          name: 'First',
          price: body.items[1]!.price,
          kind: 'counted',
          onSale: true,
          total: 100,
          free: 100,
          ...counts,
        },
      ],
    });
    expect(created.headers.get('location')).toBe(`/v1/sales/${created.body.id}`);
    expect((await server.call('GET', created.headers.get('location')!)).body).toEqual(created.body);
  });

  it('times come back in UTC with milliseconds, however they were written', async () => {
    const { body } = await admin('POST', '/v1/sales', {
      body: saleBody({ opensAt: '2030-01-01T08:00:00+08:00', closesAt: '2030-01-01T00:00:00.5Z' }),
    });
    expect(body).toMatchObject({ opensAt: '2030-01-01T00:00:00.000Z', closesAt: '2030-01-01T00:00:00.500Z' });
  });

  it('lists newest first, and a cursor goes on where the page ended', async () => {
    const made: string[] = [];
    for (let count = 0; count < 5; count++) made.unshift(await createSale(server));
    const first = await server.call('GET', '/v1/sales?limit=2');
    const second = await server.call('GET', `/v1/sales?limit=2&cursor=${first.body.nextCursor}`);
    // Sales created meanwhile do not shift the pages.
    const newest = await createSale(server);
    const third = await server.call('GET', `/v1/sales?limit=2&cursor=${second.body.nextCursor}`);
    const ids = [first, second, third].flatMap(({ body }) => body.data.map(({ id }: { id: string }) => id));
    expect(ids.slice(0, 5)).toEqual(made);
    expect((await server.call('GET', '/v1/sales')).body.data[0].id).toBe(newest);
    const all = await server.call('GET', '/v1/sales?limit=200');
    expect(all.body.nextCursor).toBeNull();
    const last = all.body.data.at(-1).id;
    expect((await server.call('GET', `/v1/sales?cursor=${last}`)).body).toEqual({ data: [], nextCursor: null });
    const exactly = await server.call('GET', `/v1/sales?limit=${all.body.data.length}`);
    expect(exactly.body.nextCursor).toBeNull();
  });

  it('a public read has an ETag, which gives 304, and may be cached for a second', async () => {
    const id = await createSale(server, { stock: 5 });
    for (const path of [`/v1/sales/${id}`, '/v1/sales']) {
      const read = await server.call('GET', path);
      expect(read.headers.get('cache-control')).toBe('public, max-age=1');
      const etag = read.headers.get('etag')!;
      expect(etag).toMatch(/^(W\/)?"[^"]+"$/);
      for (const given of [etag, `W/${etag}`, `"other", ${etag}`, '*']) {
        const again = await server.call('GET', path, { headers: { 'if-none-match': given } });
        expect([given, again.status, again.body]).toEqual([given, 304, '']);
        expect(again.headers.get('etag')).toBe(etag);
        expect(again.headers.get('cache-control')).toBe('public, max-age=1');
      }
      const other = await server.call('GET', path, { headers: { 'if-none-match': '"other"' } });
      expect([other.status, other.body]).toEqual([200, read.body]);
      const head = await server.call('HEAD', path);
      expect([head.status, head.body, head.headers.get('etag')]).toEqual([200, '', etag]);
    }
    const before = (await server.call('GET', `/v1/sales/${id}`)).headers.get('etag')!;
    expect((await order(id, 'etag')).status).toBe(201);
    // Counts may lag by up to a second on public reads.
    await expect
      .poll(async () => {
        const read = await server.call('GET', `/v1/sales/${id}`, { headers: { 'if-none-match': before } });
        return [read.status, read.body.items?.[0].reserved];
      })
      .toEqual([200, 1]);
  });
});

describe('the state', () => {
  it('is scheduled, open, sold_out, paused, closed', async () => {
    const state = async (input: SaleInput) => (await get(await createSale(server, input))).state;
    expect(await state({ opensAt: fromNow(60_000) })).toBe('scheduled');
    expect(await state({})).toBe('open');
    expect(await state({ stock: 0 })).toBe('sold_out');
    expect(await state({ closesAt: '2020-01-02T00:00:00.000Z' })).toBe('closed');
    const id = await createSale(server);
    expect((await admin('POST', `/v1/sales/${id}/pause`)).body.state).toBe('paused');
    expect((await admin('POST', `/v1/sales/${id}/close`)).body.state).toBe('closed');
  });

  it('is sold_out only while every item is, and open again after a restock', async () => {
    const body = saleBody({ stock: 1 });
    body.items.push({ ...body.items[0]!, code: 'other' });
    const id = (await admin('POST', '/v1/sales', { body })).body.id;
    await order(id, 'one');
    expect((await admin('GET', `/v1/sales/${id}`)).body.state).toBe('open');
    expect((await admin('POST', `/v1/sales/${id}/items/other/stock`, { body: { add: -1 } })).body.state).toBe(
      'sold_out',
    );
    expect((await restock(id, 1)).body.state).toBe('open');
    expect((await order(id, 'two')).status).toBe(201);
  });

  it('orders before it opens and after it closes are refused with both times', async () => {
    const window = { opensAt: fromNow(60_000), closesAt: fromNow(120_000) };
    const early = await order(await createSale(server, window), 'early');
    expectProblem(early, 409, 'sale_not_open');
    expect(early.body).toMatchObject(window);
    const over = { opensAt: '2020-01-01T00:00:00.000Z', closesAt: '2020-01-02T00:00:00.000Z' };
    const late = await order(await createSale(server, over), 'late');
    expectProblem(late, 409, 'sale_closed');
    expect(late.body).toMatchObject(over);
  });
});

describe('patch', () => {
  it('changes what is named, raises the version, and refuses an old one', async () => {
    const id = await createSale(server);
    const before = await get(id);
    const patched = await admin('PATCH', `/v1/sales/${id}`, {
      body: { version: 1, name: 'New', perBuyer: 3, payWithin: 10, closesAt: '2098-01-01T00:00:00Z' },
    });
    expect(patched.status).toBe(200);
    expect(patched.body).toEqual({
      ...before,
      name: 'New',
      perBuyer: 3,
      payWithin: 10,
      closesAt: '2098-01-01T00:00:00.000Z',
      version: 2,
    });
    const conflict = await admin('PATCH', `/v1/sales/${id}`, { body: { version: 1, name: 'Old' } });
    expectProblem(conflict, 409, 'version_conflict');
    expectProblem(await admin('PATCH', `/v1/sales/${id}`, { body: { version: 3 } }), 409, 'version_conflict');
    expect(await get(id)).toEqual(patched.body);
    const placed = await order(id, 'payer');
    expect(Date.parse(placed.body.expiresAt) - Date.parse(placed.body.createdAt)).toBe(10_000);
  });

  it('of two at once on one version, one wins', async () => {
    const id = await createSale(server);
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, index) =>
        admin('PATCH', `/v1/sales/${id}`, { body: { version: 1, name: `n${index}` } }),
      ),
    );
    const won = answers.filter(({ status }) => status === 200);
    expect(won).toHaveLength(1);
    expect(await get(id)).toMatchObject({ version: 2, name: won[0]!.body.name });
    expect(answers.filter(({ body }) => body.code === 'version_conflict')).toHaveLength(7);
  });

  it('raising perBuyer counts at once; lowering it takes nothing away', async () => {
    const id = await createSale(server);
    expect((await order(id, 'greedy')).status).toBe(201);
    expect(codeOf(await order(id, 'greedy'))).toEqual([409, 'limit_reached']);
    await admin('PATCH', `/v1/sales/${id}`, { body: { version: 1, perBuyer: 3 } });
    expect((await order(id, 'greedy', 2)).status).toBe(201);
    await admin('PATCH', `/v1/sales/${id}`, { body: { version: 2, perBuyer: 1 } });
    expect(codeOf(await order(id, 'greedy'))).toEqual([409, 'limit_reached']);
    expect((await allOrders(server, id)).map(({ status, quantity }) => [status, quantity])).toEqual([
      ['reserved', 2],
      ['reserved', 1],
    ]);
  });

  it('moves the window of a running sale, and one that was over sells again', async () => {
    const id = await createSale(server, { closesAt: '2020-01-02T00:00:00.000Z' });
    expect(codeOf(await order(id, 'a'))).toEqual([409, 'sale_closed']);
    const open = { version: 1, closesAt: '2099-01-01T00:00:00.000Z' };
    expect((await admin('PATCH', `/v1/sales/${id}`, { body: open })).body.state).toBe('open');
    expect((await order(id, 'a')).status).toBe(201);
    const later = { version: 2, opensAt: '2098-01-01T00:00:00.000Z' };
    expect((await admin('PATCH', `/v1/sales/${id}`, { body: later })).body.state).toBe('scheduled');
    expect(codeOf(await order(id, 'b'))).toEqual([409, 'sale_not_open']);
  });
});

describe('stock', () => {
  it('adds and removes down to what is free, else 409 insufficient_free', async () => {
    const id = await createSale(server, { stock: 3 });
    await order(id, 'one');
    expect((await restock(id, 2)).body.items[0]).toMatchObject({ total: 5, free: 4, reserved: 1 });
    expectProblem(await restock(id, -5), 409, 'insufficient_free');
    expect((await get(id)).items[0]).toMatchObject({ total: 5, free: 4, reserved: 1 });
    const emptied = await restock(id, -4);
    expect(emptied.body).toMatchObject({ state: 'sold_out', items: [{ total: 1, free: 0, reserved: 1 }] });
    expectProblem(await restock(id, -1), 409, 'insufficient_free');
    expect(codeOf(await order(id, 'two'))).toEqual([409, 'sold_out']);
    expect((await restock(id, 0)).body.items[0]).toMatchObject({ total: 1, free: 0 });
    // sold_out does not stick: the very next order sees the new unit.
    await restock(id, 1);
    expect((await order(id, 'two')).status).toBe(201);
    addsUp((await admin('GET', `/v1/sales/${id}`)).body);
  });

  it('P1: while orders run, the total and what is sold always agree', async () => {
    const id = await createSale(server, { stock: 50 });
    const orders = Array.from({ length: 150 }, (_, index) => order(id, `b${index}`));
    const changes = Array.from({ length: 20 }, (_, index) => restock(id, index % 2 === 0 ? 7 : -9));
    const [placed, changed] = await Promise.all([Promise.all(orders), Promise.all(changes)]);
    for (const change of changed) {
      if (change.status !== 200) expectProblem(change, 409, 'insufficient_free');
      else addsUp(change.body);
    }
    const sold = placed.filter(({ status }) => status === 201).length;
    for (const answer of placed) if (answer.status !== 201) expectProblem(answer, 409, 'sold_out');
    const added = changed.reduce(
      (sum, { status }, index) => (status === 200 ? sum + (index % 2 === 0 ? 7 : -9) : sum),
      0,
    );
    const [item] = (await admin('PATCH', `/v1/sales/${id}`, { body: { version: 1 } })).body.items;
    expect(item).toMatchObject({ total: 50 + added, reserved: sold, free: 50 + added - sold });
    expect(await allOrders(server, id)).toHaveLength(sold);
  });

  it('of many that take the last units away, as many win as there are units', async () => {
    const id = await createSale(server, { stock: 5 });
    const answers = await Promise.all(Array.from({ length: 12 }, () => restock(id, -1)));
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(5);
    expect((await get(id)).items[0]).toMatchObject({ total: 0, free: 0 });
  });
});

describe('pause, resume, close', () => {
  it('are in force with their answer', async () => {
    const id = await createSale(server);
    const paused = await admin('POST', `/v1/sales/${id}/pause`);
    expect([paused.status, paused.body.state, paused.body.version]).toEqual([200, 'paused', 2]);
    const refused = await order(id, 'a');
    expectProblem(refused, 409, 'sale_paused');
    expect(refused.body).toMatchObject({ opensAt: paused.body.opensAt, closesAt: paused.body.closesAt });
    // Pausing again changes nothing: no new version.
    expect((await admin('POST', `/v1/sales/${id}/pause`)).body).toEqual(paused.body);
    expect((await admin('POST', `/v1/sales/${id}/resume`)).body).toMatchObject({ state: 'open', version: 3 });
    expect((await order(id, 'a')).status).toBe(201);
    expect((await admin('POST', `/v1/sales/${id}/close`)).body).toMatchObject({ state: 'closed', version: 4 });
    expect(codeOf(await order(id, 'b'))).toEqual([409, 'sale_closed']);
  });

  it('what is in flight when it is paused is decided one way, and nothing after', async () => {
    const id = await createSale(server, { stock: 1000 });
    const orders = Array.from({ length: 60 }, (_, index) => order(id, `p${index}`));
    const pause = admin('POST', `/v1/sales/${id}/pause`);
    const after = pause.then(() => Promise.all(Array.from({ length: 20 }, (_, index) => order(id, `late${index}`))));
    const answers = await Promise.all(orders);
    for (const answer of await after) expectProblem(answer, 409, 'sale_paused');
    for (const answer of answers) if (answer.status !== 201) expectProblem(answer, 409, 'sale_paused');
    const placed = answers.filter(({ status }) => status === 201).length;
    expect(await allOrders(server, id)).toHaveLength(placed);
  });

  it('closed is final; its orders stay', async () => {
    const id = await createSale(server, { stock: 10 });
    const placed = await order(id, 'keeper');
    const closed = await admin('POST', `/v1/sales/${id}/close`);
    for (const verb of ['pause', 'resume']) {
      expectProblem(await admin('POST', `/v1/sales/${id}/${verb}`), 409, 'sale_closed');
    }
    expectProblem(await restock(id, 1), 409, 'sale_closed');
    expectProblem(await restock(id, -1), 409, 'sale_closed');
    const patch = { version: closed.body.version, closesAt: '2098-01-01T00:00:00.000Z' };
    expectProblem(await admin('PATCH', `/v1/sales/${id}`, { body: patch }), 409, 'sale_closed');
    const again = await admin('POST', `/v1/sales/${id}/close`);
    expect([again.status, again.body]).toEqual([200, closed.body]);
    expect(await get(id)).toEqual(closed.body);
    expect((await server.call('GET', `/v1/orders/${placed.body.id}`, { buyer: 'keeper' })).body).toEqual(placed.body);
  });
});

describe('Idempotency-Key of administrative calls', () => {
  const letters = async (path: string, key: string, body?: unknown) => {
    const response = await fetch(server.url + path, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${ADMIN_KEY}`,
        'idempotency-key': key,
        ...(body !== undefined && { 'content-type': 'application/json' }),
      },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const replayed = response.headers.get('idempotent-replayed');
    return {
      status: response.status,
      text: await response.text(),
      replayed,
      location: response.headers.get('location'),
    };
  };

  it('P5: each POST has one effect, and a repeat gets the first answer to the letter', async () => {
    const created = await letters('/v1/sales', 'c1', saleBody({ stock: 5 }));
    const { id } = JSON.parse(created.text);
    const calls: [string, string, unknown?][] = [
      ['/v1/sales', 'c1', saleBody({ stock: 5 })],
      [`/v1/sales/${id}/items/voucher/stock`, 's1', { add: 2 }],
      [`/v1/sales/${id}/items/voucher/stock`, 's2', { add: -3 }],
      [`/v1/sales/${id}/pause`, 'p1'],
      [`/v1/sales/${id}/resume`, 'r1'],
      [`/v1/sales/${id}/close`, 'x1'],
    ];
    const firsts = [created];
    for (const [path, key, body] of calls.slice(1)) firsts.push(await letters(path, key, body));
    expect(firsts.map(({ status, replayed }) => [status, replayed])).toEqual([
      [201, null],
      ...Array.from({ length: 5 }, () => [200, null]),
    ]);
    const end = await get(id);
    expect(end).toMatchObject({ state: 'closed', items: [{ total: 4 }] });
    for (const [index, [path, key, body]] of calls.entries()) {
      const again = await letters(path, key, body);
      expect({ path, ...again }).toEqual({
        path,
        status: firsts[index]!.status,
        text: firsts[index]!.text,
        location: again.location,
        replayed: 'true',
      });
    }
    expect(await get(id)).toEqual(end);
  });

  it('the repeat of a creation has the Location too', async () => {
    const first = await letters('/v1/sales', 'located', saleBody());
    expect((await letters('/v1/sales', 'located', saleBody())).location).toBe(first.location);
  });

  it('to the letter also while orders run', async () => {
    const id = await createSale(server, { stock: 500 });
    const orders = Array.from({ length: 120 }, (_, index) => order(id, `k${index}`));
    const firsts = await Promise.all(
      Array.from({ length: 20 }, (_, index) => letters(`/v1/sales/${id}/items/voucher/stock`, `k${index}`, { add: 1 })),
    );
    await Promise.all(orders);
    for (const [index, first] of firsts.entries()) {
      const again = await letters(`/v1/sales/${id}/items/voucher/stock`, `k${index}`, { add: 1 });
      expect(again.replayed).toBe('true');
      expect(JSON.parse(again.text)).toEqual(JSON.parse(first.text));
    }
    expect((await restock(id, 0)).body.items[0].total).toBe(520);
  });

  it('another body is 422; spacing and the order of fields do not make one; a default that is written out neither', async () => {
    const key = 'same-body';
    const body = saleBody();
    const first = await admin('POST', '/v1/sales', { key, body });
    const backwards = Object.fromEntries(Object.entries(body).reverse());
    const again = await admin('POST', '/v1/sales', { key, raw: JSON.stringify(backwards, null, 3) });
    expect([again.body.id, again.headers.get('idempotent-replayed')]).toEqual([first.body.id, 'true']);
    const spelled = await admin('POST', '/v1/sales', { key, body: { ...body, payWithin: 900 } });
    expect(spelled.body.id).toBe(first.body.id);
    const other = await admin('POST', '/v1/sales', { key, body: { ...body, name: 'Other' } });
    expectProblem(other, 422, 'idempotency_key_reused');
    const stock = `/v1/sales/${first.body.id}/items/voucher/stock`;
    await admin('POST', stock, { key, body: { add: 1 } });
    expectProblem(await admin('POST', stock, { key, body: { add: 2 } }), 422, 'idempotency_key_reused');
    expectProblem(await admin('POST', stock, { key, body: { add: -2 } }), 422, 'idempotency_key_reused');
    expect((await get(first.body.id)).items[0].total).toBe(101);
  });

  it('the key belongs to the path: the same key elsewhere is another', async () => {
    const key = 'everywhere';
    const id = await createSale(server);
    for (const verb of ['pause', 'resume', 'close']) {
      const answer = await admin('POST', `/v1/sales/${id}/${verb}`, { key });
      expect([verb, answer.status, answer.headers.get('idempotent-replayed')]).toEqual([verb, 200, null]);
    }
    const other = await createSale(server);
    expect((await admin('POST', `/v1/sales/${other}/pause`, { key })).body).toMatchObject({
      id: other,
      state: 'paused',
    });
  });

  it('a refused call is not kept', async () => {
    const id = await createSale(server, { stock: 1 });
    expectProblem(await restock(id, -2, { key: 'later' }), 409, 'insufficient_free');
    await restock(id, 1);
    expect((await restock(id, -2, { key: 'later' })).body.items[0].total).toBe(0);
    expectProblem(await admin('POST', '/v1/sales', { key: 'fixed', body: {} }), 422, 'invalid_request');
    expect((await admin('POST', '/v1/sales', { key: 'fixed', body: saleBody() })).status).toBe(201);
  });

  it('P5: concurrent repeats of one creation make one sale', async () => {
    const before = (await server.call('GET', '/v1/sales?limit=200')).body.data.length;
    const answers = await Promise.all(Array.from({ length: 25 }, () => letters('/v1/sales', 'crowd', saleBody())));
    expect(new Set(answers.map(({ text }) => text)).size).toBe(1);
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 201));
    expect(answers.filter(({ replayed }) => replayed === null)).toHaveLength(1);
    expect((await server.call('GET', '/v1/sales?limit=200')).body.data).toHaveLength(before + 1);
    const mixed = await Promise.all(
      Array.from({ length: 10 }, (_, index) => letters('/v1/sales', 'mixed', saleBody({ stock: index % 2 }))),
    );
    expect(mixed.filter(({ status, replayed }) => status === 201 && replayed === null)).toHaveLength(1);
    expect((await server.call('GET', '/v1/sales?limit=200')).body.data).toHaveLength(before + 2);
  });
});

describe('events', () => {
  const stream = (id: string, lastEventId?: string) =>
    openStream(
      `${server.url}/v1/sales/${id}/events`,
      lastEventId === undefined ? {} : { 'last-event-id': lastEventId },
    );

  it('begins with a snapshot, then stock after an order, state on pause, resume and close', async () => {
    const id = await createSale(server, { stock: 3 });
    const events = await stream(id);
    expect(events.status).toBe(200);
    expect(events.headers.get('content-type')).toMatch(/^text\/event-stream/);
    expect(events.headers.get('cache-control')).toMatch(/no-store|no-cache/);
    const state = await events.until(({ event }) => event === 'state');
    const stock = await events.until(({ event }) => event === 'stock');
    expect(state.data).toEqual({ state: 'open' });
    expect(stock.data).toEqual((await get(id)).items[0]);
    expect([state.id, stock.id]).toEqual([expect.stringMatching(/^\d+\.\d+$/), state.id]);
    expect(events.comments.length).toBeGreaterThan(0);

    await order(id, 'a');
    const sold = await events.until(({ event, data }) => event === 'stock' && data.reserved === 1);
    expect(sold.data).toMatchObject({ code: 'voucher', total: 3, free: 2, reserved: 1 });
    const rev = (eventId: string) => Number(eventId.split('.')[1]);
    expect(rev(sold.id)).toBeGreaterThan(rev(stock.id));

    for (const [verb, word] of [
      ['pause', 'paused'],
      ['resume', 'open'],
    ] as const) {
      await admin('POST', `/v1/sales/${id}/${verb}`);
      expect((await events.until(({ event }) => event === 'state', 2000)).data).toEqual({ state: word });
    }
    await restock(id, 4);
    await events.until(({ event, data }) => event === 'stock' && data.total === 7);
    await restock(id, -6);
    await events.until(({ event, data }) => event === 'state' && data.state === 'sold_out');
    await admin('POST', `/v1/sales/${id}/close`);
    await events.until(({ event, data }) => event === 'state' && data.state === 'closed');
    const ids = events.events.map((event) => rev(event.id));
    expect(ids).toEqual([...ids].sort((a, b) => a - b));
    events.close();
  });

  it('says when the window opens and closes by itself', async () => {
    const id = await createSale(server, { opensAt: fromNow(700), closesAt: fromNow(1600) });
    const events = await stream(id);
    await events.until(({ event, data }) => event === 'state' && data.state === 'scheduled');
    await events.until(({ event, data }) => event === 'state' && data.state === 'open');
    expect(Date.now()).toBeGreaterThanOrEqual(Date.parse((await get(id)).opensAt));
    await events.until(({ event, data }) => event === 'state' && data.state === 'closed');
    events.close();
  });

  it('Last-Event-ID: what is current gives no snapshot, anything else does', async () => {
    const id = await createSale(server, { stock: 3 });
    const first = await stream(id);
    const { id: at } = await first.until(({ event }) => event === 'stock');
    first.close();
    const resumed = await stream(id, at);
    await order(id, 'a');
    const next = await resumed.until(() => true);
    expect([next.event, next.data.reserved, resumed.events]).toEqual(['stock', 1, [next]]);
    resumed.close();
    for (const old of [at, '0.0', 'nonsense', '999999.999999', ' ']) {
      const again = await stream(id, old);
      await again.until(({ event }) => event === 'state');
      expect((await again.until(({ event }) => event === 'stock')).data.reserved).toBe(1);
      again.close();
    }
  });

  it('Last-Event-ID from before the window opened does not hide that it is open', async () => {
    const id = await createSale(server, { opensAt: fromNow(500) });
    const first = await stream(id);
    const scheduled = await first.until(({ event }) => event === 'state');
    expect(scheduled.data.state).toBe('scheduled');
    first.close();
    await sleepMs(Math.max(0, Date.parse((await get(id)).opensAt) - Date.now()) + 50);
    const again = await stream(id, scheduled.id);
    const state = await again.until(({ event }) => event === 'state', 2000);
    expect(state.data.state).toBe('open');
    again.close();
  });

  it('an unknown sale is 404', async () => {
    expectProblem(await server.call('GET', '/v1/sales/1/events'), 404, 'not_found');
    expectProblem(await server.call('GET', '/v1/sales/abc/events'), 404, 'not_found');
  });

  it('many watch one sale, and each hears the end state', async () => {
    const id = await createSale(server, { stock: 40 });
    const watching = await Promise.all(Array.from({ length: 20 }, () => stream(id)));
    await Promise.all(Array.from({ length: 40 }, (_, index) => order(id, `w${index}`)));
    await Promise.all(
      watching.map(({ until }) => until(({ event, data }) => event === 'state' && data.state === 'sold_out')),
    );
    for (const each of watching) {
      const last = each.events.findLast(({ event }) => event === 'stock');
      expect(last!.data).toMatchObject({ free: 0, reserved: 40 });
      each.close();
    }
  });

  it('a comment line every 15 s keeps it open', async () => {
    const repeating: { ms: number; run: () => void }[] = [];
    const runtime = systemRuntime();
    const timers: Timers = {
      ...runtime.timers,
      every: (ms, run) => {
        repeating.push({ ms, run });
        return () => {};
      },
    };
    const data = join(temporaryFolder(), 'data');
    mkdirSync(data);
    const shop = await EmbeddedShop.open(data, runtime);
    const http = { ...HTTP_DEFAULTS, authSecrets: ['s'], adminKeys: [{ name: 'a', key: 'k' }] };
    const source = { get: () => shop, readiness: () => shop.readiness(), closing: () => false, blockedMs: () => 0 };
    const app = await createServer({ shop: source, http, runtime: { ...runtime, timers }, trustProxy: false });
    const url = await app.listen({ port: 0, host: '127.0.0.1' });
    const created = await fetch(`${url}/v1/sales`, {
      method: 'POST',
      headers: { authorization: 'Bearer k', 'content-type': 'application/json' },
      body: JSON.stringify(saleBody()),
    });
    const { id } = (await created.json()) as { id: string };
    const events = await openStream(`${url}/v1/sales/${id}/events`);
    await expect.poll(() => events.comments.length).toBe(1);
    const comment = repeating.find(({ ms }) => ms === 15_000);
    comment!.run();
    comment!.run();
    await expect.poll(() => events.comments.length).toBe(3);
    await app.close();
    await events.ended;
    await shop.close();
  });
});

describe('the system’s own routes', () => {
  it('/v1/time is the clock that opens sales', async () => {
    const before = Date.now();
    const { body, headers } = await server.call('GET', '/v1/time');
    expect(Object.keys(body)).toEqual(['now']);
    expect(body.now).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    expect(Date.parse(body.now)).toBeGreaterThanOrEqual(before - 1);
    expect(Date.parse(body.now)).toBeLessThanOrEqual(Date.now() + 1);
    expect(headers.get('cache-control')).toBe('no-store');
  });

  it('/healthz and /readyz', async () => {
    expect((await server.call('GET', '/healthz')).status).toBe(200);
    const ready = await server.call('GET', '/readyz');
    expect([ready.status, ready.body]).toEqual([
      200,
      { status: 'ok', parts: { gate: 'ok', pipe: 'ok', ledger: 'ok' } },
    ]);
  });

  it('/metrics has what an operator needs, for admins', async () => {
    expectProblem(await server.call('GET', '/metrics'), 401, 'unauthenticated');
    const { status, body, headers } = await admin('GET', '/metrics');
    expect([status, headers.get('content-type')]).toEqual([200, expect.stringMatching(/^text\/plain/)]);
    for (const name of [
      'doorbuster_admissions_total{outcome="reserved"}',
      'doorbuster_admissions_total{outcome="sold_out"}',
      'doorbuster_commit_batch_orders_bucket',
      'doorbuster_commit_seconds_bucket',
      'doorbuster_http_request_seconds_bucket{',
      'doorbuster_event_loop_delay_seconds',
      'doorbuster_gate_rebuilds_total',
      'doorbuster_pipe_orders 0',
      'doorbuster_ready 1',
    ]) {
      expect(body).toContain(name);
    }
    // The route, not the URL: ids in labels would create a series per order.
    expect(body).toContain('route="/v1/sales/:id/orders"');
    expect(body).not.toMatch(/route="[^"]*\d{6}/);
    const again = await admin('GET', '/metrics');
    expect(again.status).toBe(200);
  });

  it('/openapi.json lists exactly the routes that exist', async () => {
    const { body, headers, status } = await server.call('GET', '/openapi.json');
    expect([status, headers.get('content-type')]).toEqual([200, expect.stringMatching(/^application\/json/)]);
    expect(body.openapi).toMatch(/^3\.1/);
    const listed = Object.entries(body.paths as Record<string, object>).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
    );
    expect(listed.sort()).toEqual(
      [
        'GET /healthz',
        'GET /readyz',
        'GET /metrics',
        'GET /v1/time',
        'GET /v1/sales',
        'POST /v1/sales',
        'GET /v1/sales/{id}',
        'PATCH /v1/sales/{id}',
        'POST /v1/sales/{id}/items/{code}/stock',
        'POST /v1/sales/{id}/items',
        'PATCH /v1/sales/{id}/items/{code}',
        'DELETE /v1/sales/{id}',
        'POST /v1/sales/{id}/pause',
        'POST /v1/sales/{id}/resume',
        'POST /v1/sales/{id}/close',
        'GET /v1/sales/{id}/seats',
        'POST /v1/sales/{id}/seats/block',
        'POST /v1/sales/{id}/seats/unblock',
        'GET /v1/sales/{id}/events',
        'POST /v1/sales/{id}/orders',
        'GET /v1/orders',
        'GET /v1/orders/{id}',
        'GET /v1/orders/{id}/events',
        'GET /v1/ops/dead-letters',
        'POST /v1/ops/dead-letters/{id}/retry',
        'DELETE /v1/ops/dead-letters/{id}',
        'POST /v1/orders/{id}/pay',
        'POST /v1/orders/{id}/pay/unblock',
        'POST /v1/orders/{id}/confirm',
        'POST /v1/orders/{id}/cancel',
        'POST /v1/orders/{id}/refund',
        'POST /v1/orders/{id}/move',
        'POST /v1/webhooks/payments/{provider}',
        'GET /v1/ops/audit',
        'GET /v1/ops/consistency',
        'POST /v1/ops/consistency/check',
        'GET /v1/ops/webhooks',
        'POST /v1/ops/webhooks',
        'DELETE /v1/ops/webhooks/{id}',
        'GET /v1/ops/webhooks/{id}/deliveries',
        'POST /v1/ops/webhooks/deliveries/{id}/redeliver',
        'GET /v1/posts',
        'POST /v1/posts',
        'GET /v1/posts/{id}',
        'PATCH /v1/posts/{id}',
        'DELETE /v1/posts/{id}',
        'GET /v1/posts/{id}/comments',
        'POST /v1/posts/{id}/comments',
        'GET /v1/comments/{id}',
        'PATCH /v1/comments/{id}',
        'DELETE /v1/comments/{id}',
        ...['posts', 'comments'].flatMap((path) => [
          `GET /v1/${path}/{id}/likes`,
          `PUT /v1/${path}/{id}/like`,
          `DELETE /v1/${path}/{id}/like`,
        ]),
        'GET /v1/me/likes',
        'GET /v1/me/comments',
      ].sort(),
    );
    for (const route of listed) {
      const [method, path] = route.split(' ') as [string, string];
      const answer = await server.call(method, path.replaceAll(/\{\w+\}/g, '1'));
      expect([route, answer.status === 405, answer.body.detail]).not.toEqual([route, false, 'there is no such route']);
      expect([route, answer.status]).not.toEqual([route, 405]);
    }
  });

  it('the document is written once, in one place, and small: /docs/json is the same bytes, /docs/yaml is not there (P10)', async () => {
    const text = async (path: string): Promise<string> => (await fetch(`${server.url}${path}`)).text();
    const document = await text('/openapi.json');
    expect(await text('/docs/json')).toBe(document);
    expect(document.length).toBeLessThan(200_000);
    for (const method of ['GET', 'HEAD']) expect((await server.call(method, '/docs/yaml')).status).toBe(404);
    expect((await server.call('GET', '/docs/yaml')).body.code).toBe('not_found');
  });

  it('/docs and / are HTML under a content security policy, and so is what they load', async () => {
    for (const path of ['/docs', '/docs/', '/']) {
      const { status, headers, body } = await server.call('GET', path);
      expect([path, status]).toEqual([path, 200]);
      expect(headers.get('content-type')).toMatch(/^text\/html/);
      const policy = headers.get('content-security-policy')!;
      expect(policy).toMatch(/default-src '(none|self)'/);
      expect(policy).not.toMatch(/script-src[^;]*'unsafe-(inline|eval)'/);
      // Without the slash it redirects to the path with one.
      const base = new URL(path === '/docs' ? '/docs/' : path, server.url);
      const loaded = [...String(body).matchAll(/(?:src|href)="([^"]+\.(?:js|css))"/g)].map(([, file]) => file!);
      expect(loaded.length).toBeGreaterThan(0);
      for (const file of loaded) {
        const { status: found, headers: its } = await server.call('GET', new URL(file, base).pathname);
        expect([file, found]).toEqual([file, 200]);
        expect(its.get('x-content-type-options')).toBe('nosniff');
      }
    }
  });
});

it('after a restart on the same folder: the same sales, counts and keys, new event ids', async () => {
  const stock = { key: 'restart-stock', body: { add: 3 } };
  const created = await admin('POST', '/v1/sales', { key: 'restart', body: saleBody({ stock: 5 }) });
  const { id } = created.body;
  const restocked = await admin('POST', `/v1/sales/${id}/items/voucher/stock`, stock);
  await order(id, 'a');
  const pausedId = await createSale(server);
  await admin('POST', `/v1/sales/${pausedId}/pause`);
  const events = await openStream(`${server.url}/v1/sales/${id}/events`);
  const { id: at } = await events.until(({ event, data }) => event === 'stock' && data.reserved === 1);
  const before = (await server.call('GET', '/v1/sales?limit=200')).body;

  expect(await server.stop()).toBe(0);
  await events.ended;
  server = await startServer({ data: server.data, env: CALM });

  const after = (await server.call('GET', '/v1/sales?limit=200')).body;
  const names = ({ data }: { data: { id: string; name: string; version: number }[] }) =>
    data.map(({ id, name, version }) => [id, name, version]);
  expect(names(after)).toEqual(names(before));
  // Orders of other sales may expire meanwhile.
  const own = ({ data }: { data: { id: string }[] }) => data.filter((one) => [id, pausedId].includes(one.id));
  expect(own(after)).toEqual(own(before));
  const again = await admin('POST', '/v1/sales', { key: 'restart', body: saleBody({ stock: 5 }) });
  expect([again.body, again.headers.get('idempotent-replayed')]).toEqual([created.body, 'true']);
  const stockAgain = await admin('POST', `/v1/sales/${id}/items/voucher/stock`, stock);
  expect([stockAgain.body, stockAgain.headers.get('idempotent-replayed')]).toEqual([restocked.body, 'true']);
  expectProblem(
    await admin('POST', '/v1/sales', { key: 'restart', body: saleBody({ stock: 6 }) }),
    422,
    'idempotency_key_reused',
  );
  expect(codeOf(await order(pausedId, 'a'))).toEqual([409, 'sale_paused']);
  // An event id of the old epoch is unknown: the stream starts with a full snapshot.
  const resumed = await openStream(`${server.url}/v1/sales/${id}/events`, { 'last-event-id': at });
  const snapshot = await resumed.until(({ event }) => event === 'stock');
  expect(Number(snapshot.id.split('.')[0])).toBeGreaterThan(Number(at.split('.')[0]));
  resumed.close();
  const newer = await createSale(server);
  expect(BigInt(newer)).toBeGreaterThan(BigInt(pausedId));
  expect(await server.stop()).toBe(0);
});
