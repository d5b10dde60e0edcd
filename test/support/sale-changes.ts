import { expect, it, vi } from 'vitest';
import { admin, place } from './distributed-calls.ts';
import { until } from './fault-wait.ts';
import { expectProblem, openStream } from './openapi-wire.ts';
import { type Answer, allOrders, createSale, saleBody, type TestServer } from './server.ts';

/**
 * What a sale says, its items, and its end, over HTTP: the same tests for both deployments. `a` and `b` are two processes of the shop,
 * or the only one.
 */
export function saleChangesOver(processes: () => { a: TestServer; b: TestServer }): void {
  const PRICE = { amount: 8000, currency: 'CNY' };
  const TEXTS = {
    description: '第一行\nSecond line\twith a tab',
    image: 'https://cdn.example/a/b.png?w=1&h=2#x',
    metadata: { artist: 'Zoë', sku: '4711', empty: '' },
  };
  const EVENT = { startsAt: '2030-05-01T20:00:00.000Z', venue: 'Großer Saal' };
  const item = (code: string, over: object = {}) => ({ code, name: code, price: PRICE, stock: 5, ...over });
  const post = (server: TestServer, saleId: string, body: unknown, key?: string): Promise<Answer> =>
    admin(server, 'POST', `/v1/sales/${saleId}/items`, { body, ...(key !== undefined && { key }) });
  const patchItem = (server: TestServer, saleId: string, code: string, body: unknown): Promise<Answer> =>
    admin(server, 'PATCH', `/v1/sales/${saleId}/items/${code}`, { body });
  const get = async (server: TestServer, saleId: string) => (await server.call('GET', `/v1/sales/${saleId}`)).body;
  const remove = (server: TestServer, saleId: string) => admin(server, 'DELETE', `/v1/sales/${saleId}`);

  it('a sale and its items say what they were given, until it is taken away', async () => {
    const { a, b } = processes();
    const body = { ...saleBody(), ...TEXTS, ...EVENT, items: [item('x', TEXTS), item('y')] };
    const made = await admin(a, 'POST', '/v1/sales', { body });
    expect(made).toMatchObject({ status: 201, body: { ...TEXTS, ...EVENT, items: [TEXTS, { onSale: true }] } });
    for (const field of Object.keys(TEXTS)) expect(made.body.items[1]).not.toHaveProperty(field);
    const { id } = made.body;
    expect(await get(b, id)).toEqual(made.body);
    const { data } = (await b.call('GET', '/v1/sales?limit=1')).body;
    expect(data).toEqual([made.body]);

    const other = { description: 'o', metadata: { o: 'o' }, venue: 'O', startsAt: '2031-01-01T00:00:00+01:00' };
    const patched = await admin(b, 'PATCH', `/v1/sales/${id}`, { body: { ...other, version: 1 } });
    expect(patched).toMatchObject({
      status: 200,
      body: { ...other, startsAt: '2030-12-31T23:00:00.000Z', image: TEXTS.image, version: 2 },
    });
    const none = { description: null, image: null, metadata: null, venue: null, startsAt: null };
    const bare = await admin(a, 'PATCH', `/v1/sales/${id}`, { body: { ...none, version: 2 } });
    expect(bare.status).toBe(200);
    for (const field of Object.keys(none)) expect(bare.body).not.toHaveProperty(field);
    expect(bare.body.items[0]).toMatchObject(TEXTS);
    const cleared = await patchItem(b, id, 'x', { description: null, image: null, metadata: null, version: 3 });
    expect(cleared.status).toBe(200);
    for (const field of Object.keys(TEXTS)) expect(cleared.body.items[0]).not.toHaveProperty(field);
    expect(cleared.body.version).toBe(4);
  });

  it('texts of the greatest length are taken, and one character more is not', async () => {
    const { a } = processes();
    const id = await createSale(a);
    const full = {
      description: '双'.repeat(4000),
      image: `https://cdn.example/${'x'.repeat(2048 - 20)}`,
      metadata: { a: 'x'.repeat(4096 - 8) },
      venue: '双'.repeat(200),
    };
    const patched = await admin(a, 'PATCH', `/v1/sales/${id}`, { body: { ...full, version: 1 } });
    expect(patched).toMatchObject({ status: 200, body: full });
    const { venue: _, ...texts } = full;
    expect(await post(a, id, item('full', texts))).toMatchObject({ status: 201, body: { items: [{}, texts] } });

    const bad: Record<string, unknown> = {
      description: `${full.description}x`,
      image: `${full.image}x`,
      metadata: { a: `${full.metadata.a}x` },
      venue: `${full.venue}x`,
    };
    const wrong: [string, unknown][] = [
      ...Object.entries(bad),
      ['description', ''],
      ['description', ' \n '],
      ['description', 'a\u0000b'],
      ['description', 'a\u0007b'],
      ['description', 'half \ud800'],
      ['description', 7],
      ['image', 'http://cdn.example/a.png'],
      ['image', 'javascript:alert(1)'],
      ['image', '//cdn.example/a.png'],
      ['image', 'https://'],
      ['image', 'https://['],
      ['image', 'https://user:word@cdn.example/'],
      ['image', 'https://cdn.example/"onerror="alert(1)'],
      ['image', 'https://cdn.example/a b'],
      ['metadata', { a: 1 }],
      ['metadata', { a: null }],
      ['metadata', { a: { b: 'c' } }],
      ['metadata', ['a']],
      ['metadata', 'a'],
      ['metadata', { a: 'line\nfeed' }],
      ['metadata', { '': 'a' }],
      ['metadata', { ' a': 'a' }],
      ['metadata', { ['n'.repeat(65)]: 'a' }],
      ['metadata', { a: '双'.repeat(1363) }],
      ['venue', ' a'],
      ['venue', 'a\nb'],
      ['startsAt', 'tomorrow'],
      ['subtitle', 'x'],
    ];
    for (const [field, value] of wrong) {
      const what = `${field} ${JSON.stringify(value).slice(0, 60)}`;
      const given = { [field]: value };
      const answers = [
        await admin(a, 'POST', '/v1/sales', { body: { ...saleBody(), ...given } }),
        await admin(a, 'PATCH', `/v1/sales/${id}`, { body: { ...given, version: 3 } }),
        ...(field === 'startsAt' || field === 'venue'
          ? []
          : [await post(a, id, item('bad', given)), await patchItem(a, id, 'full', { ...given, version: 3 })]),
      ];
      for (const answer of answers) {
        expect([what, answer.status, answer.body.code]).toEqual([what, 422, 'invalid_request']);
        expect([what, answer.body.errors[0].path]).toEqual([what, expect.stringContaining(`/${field}`)]);
      }
    }
    expect((await get(a, id)).version).toBe(3);
  });

  it('an item is added while the sale sells, and sells at once at every process; what was ordered stays', async () => {
    const { a, b } = processes();
    const id = await createSale(a, { stock: 10, perBuyer: 5 });
    const before = await place(a, id, 'alice', { key: 'first' });
    const added = await post(a, id, item('new', TEXTS), 'add');
    expect(added).toMatchObject({ status: 201, body: { version: 2, items: [{ code: 'voucher' }, { code: 'new' }] } });
    const there = await place(b, id, 'alice', { item: 'new', quantity: 2 });
    expect(there).toMatchObject({ status: 201, body: { item: 'new', amount: { amount: 16_000, currency: 'CNY' } } });
    // P5, P2: the rebuilt gate knows keys and what buyers have.
    const again = await place(b, id, 'alice', { key: 'first' });
    expect([again.status, again.body]).toEqual([201, before.body]);
    expectProblem(await place(a, id, 'alice', { quantity: 3 }), 409, 'limit_reached');
    const repeated = await post(b, id, item('new', TEXTS), 'add');
    expect([repeated.status, repeated.body]).toEqual([201, added.body]);
    expect(repeated.headers.get('idempotent-replayed')).toBe('true');
    expectProblem(await post(a, id, item('other'), 'add'), 422, 'idempotency_key_reused');
    const twice = await post(a, id, item('new'));
    expectProblem(twice, 422, 'invalid_request');
    expect(twice.body.errors[0].path).toBe('/code');
    const { body: audit } = await admin(a, 'GET', `/v1/ops/audit?subject=sale:${id}`);
    const actions = audit.data.map(({ action }: { action: string }) => action);
    expect(actions).toContain('sale.add_item');
    expect(actions.filter((action: string) => action === 'sale.add_item')).toHaveLength(1);
  });

  it('an item with seats is added while the sale sells; its seats are its own, and no other item’s', async () => {
    const { a, b } = processes();
    const row = (name: string, from = 1) => ({ section: 'Stalls', row: name, from, to: from + 3 });
    const { stock: _, ...stalls } = item('stalls', { seats: [row('A')] });
    const { id } = (
      await admin(a, 'POST', '/v1/sales', { body: { ...saleBody(), perBuyer: 4, items: [item('standing'), stalls] } })
    ).body;
    const order = (server: TestServer, seats: string[]) =>
      server.call('POST', `/v1/sales/${id}/orders`, { buyer: 'ann', body: { seats } });
    expect((await order(a, ['Stalls/A/1'])).status).toBe(201);

    const { stock: __, ...circle } = item('circle', { seats: [row('B'), row('A', 5)] });
    expect(await post(b, id, circle)).toMatchObject({
      status: 201,
      body: { items: [{}, {}, { kind: 'seated', total: 8 }] },
    });
    expect(await order(b, ['Stalls/B/1'])).toMatchObject({ status: 201, body: { item: 'circle' } });
    expect(await order(a, ['Stalls/A/1'])).toMatchObject({ status: 409, body: { code: 'seat_taken' } });
    const shown = async (server: TestServer) => {
      const { items } = (await server.call('GET', `/v1/sales/${id}/seats`)).body;
      return items.map(({ rows }: { rows: { states: string }[] }) => rows.map(({ states }) => states));
    };
    for (const server of [a, b]) {
      await vi.waitFor(async () => expect(await shown(server)).toEqual([['rfff'], ['rfff', 'ffff']]), {
        timeout: 3000,
      });
    }
    const { stock: ___, ...twice } = item('twice', { seats: [row('A', 4)] });
    for (const [bad, path] of [
      [twice, '/seats/0'],
      [{ ...twice, stock: 1 }, ''],
      [{ ...twice, seats: [row('C'), row('C')] }, '/seats/1'],
    ] as const) {
      const answer = await post(a, id, bad);
      expect(answer).toMatchObject({ status: 422, body: { code: 'invalid_request', errors: [{ path }] } });
    }
  });

  it('a new price is that of new orders only, and is in force everywhere when it is answered', async () => {
    const { a, b } = processes();
    const id = await createSale(a, { stock: 10, perBuyer: 5 });
    const first = await place(a, id, 'alice');
    expect(first.body.amount.amount).toBe(8000);
    const price = { amount: 1, currency: 'CNY' };
    const patched = await patchItem(a, id, 'voucher', { price, name: 'Cheap', version: 1 });
    expect(patched).toMatchObject({
      status: 200,
      body: { version: 2, items: [{ price, name: 'Cheap', reserved: 1 }] },
    });
    for (const server of [a, b]) {
      expect((await place(server, id, 'bob')).body.amount).toEqual(price);
    }
    expect((await b.call('GET', `/v1/orders/${first.body.id}`, { buyer: 'alice' })).body).toEqual(first.body);
    expectProblem(await patchItem(b, id, 'voucher', { price, version: 1 }), 409, 'version_conflict');
    expectProblem(await patchItem(b, id, 'nothing', { price, version: 2 }), 404, 'not_found');
    expectProblem(await patchItem(b, '424242', 'voucher', { price, version: 2 }), 404, 'not_found');
    expectProblem(await patchItem(b, id, 'voucher', { price }), 422, 'invalid_request');
    expectProblem(await patchItem(b, id, 'voucher', { stock: 3, version: 2 }), 422, 'invalid_request');
  });

  it('an item off sale is sold out to everybody, and so is a sale that has no other', async () => {
    const { a, b } = processes();
    const id = await createSale(a, { stock: 10, perBuyer: 5 });
    const first = await place(b, id, 'alice', { key: 'k' });
    const off = await patchItem(a, id, 'voucher', { onSale: false, version: 1 });
    expect(off).toMatchObject({ status: 200, body: { state: 'sold_out', items: [{ onSale: false, free: 9 }] } });
    for (const server of [a, b]) expectProblem(await place(server, id, 'bob'), 409, 'sold_out');
    expect((await place(b, id, 'alice', { key: 'k' })).body).toEqual(first.body);
    expect((await patchItem(b, id, 'voucher', { onSale: true, version: 2 })).body.state).toBe('open');
    for (const server of [a, b]) expect((await place(server, id, 'bob')).status).toBe(201);
  });

  it('a sale has at most 200 items, and a closed one gets no more', async () => {
    const { a } = processes();
    const items = Array.from({ length: 199 }, (_, at) => item(`c${at}`));
    const id = await createSale(a, { items });
    expect((await post(a, id, item('last'))).status).toBe(201);
    expectProblem(await post(a, id, item('more')), 422, 'invalid_request');
    await admin(a, 'POST', `/v1/sales/${id}/close`);
    expectProblem(await post(a, id, item('late')), 409, 'sale_closed');
    expectProblem(await patchItem(a, id, 'last', { name: 'x', version: 3 }), 409, 'sale_closed');
  });

  it('P1 P2 P3: items are added and repriced under a crowd; every order stands at a price that there was', async () => {
    const { a, b } = processes();
    const id = await createSale(a, { stock: 150, perBuyer: 1 });
    const prices = new Set([8000]);
    let selling = true;
    const answers: Answer[] = [];
    const crowd = Array.from({ length: 12 }, async (_, lane) => {
      for (let n = 0; selling || n < 10; n++) {
        const buyer = `buyer-${lane}-${n}`;
        let answer = await place(n % 2 === 0 ? a : b, id, buyer, { key: buyer });
        // The gate is shut for a moment: the same key tries again.
        for (let tries = 0; answer.status === 503 && tries < 200; tries++) {
          await new Promise((resolve) => setTimeout(resolve, 20));
          answer = await place(n % 2 === 0 ? b : a, id, buyer, { key: buyer });
        }
        answers.push(answer);
      }
    });
    for (let n = 1; n <= 4; n++) {
      prices.add(8000 + n);
      const price = { amount: 8000 + n, currency: 'CNY' };
      const changed = await patchItem(a, id, 'voucher', { price, version: 2 * n - 1 });
      expect([n, changed.status]).toEqual([n, 200]);
      expect((await post(b, id, item(`extra-${n}`))).status).toBe(201);
    }
    selling = false;
    await Promise.all(crowd);
    const sold = answers.filter(({ status }) => status === 201 || status === 202);
    for (const { status, body } of answers) {
      if (status > 202) expect([status, body.code]).toEqual([409, 'sold_out']);
    }
    await until('all are decided', 10_000, async () => {
      return (await allOrders(a, id)).filter(({ status }) => status === 'reserved').length === sold.length;
    });
    const orders = (await allOrders(a, id)) as unknown as { id: string; amount: { amount: number }; buyer: string }[];
    expect(new Set(orders.map((order) => order.id))).toEqual(new Set(sold.map(({ body }) => body.id)));
    expect(new Set(orders.map(({ buyer }) => buyer)).size).toBe(orders.length);
    expect(orders.length).toBeLessThanOrEqual(150);
    for (const { amount } of orders) expect(prices.has(amount.amount)).toBe(true);
    const { items } = await get(a, id);
    expect(items[0]).toMatchObject({ reserved: orders.length, queued: 0, free: 150 - orders.length });
    expect(items).toHaveLength(5);
  });

  it('who watches a sale hears of new items and prices, and is not sent texts with every count', async () => {
    const { a, b } = processes();
    const made = await admin(a, 'POST', '/v1/sales', { body: { ...saleBody(), items: [item('x', TEXTS)] } });
    const { id } = made.body;
    const stream = await openStream(`${b.url}/v1/sales/${id}/events`);
    const first = await stream.until(({ event }) => event === 'stock');
    const { description: _, image: __, metadata: ___, ...counts } = made.body.items[0];
    expect(first.data).toEqual(counts);
    await post(a, id, item('new', TEXTS));
    const added = await stream.until(
      ({ event, data }) => event === 'stock' && (data as { code: string }).code === 'new',
    );
    expect(Object.keys(added.data as object)).toEqual(Object.keys(counts));
    await patchItem(a, id, 'x', { price: { amount: 1, currency: 'CNY' }, description: 'o', version: 2 });
    await stream.until(({ data }) => (data as { price?: { amount: number } }).price?.amount === 1);
    stream.close();
  });

  it('a sale without orders is deleted: gone for buyers, lists and those who watch it', async () => {
    const { a, b } = processes();
    const id = await createSale(a, { stock: 5 });
    const streams = await Promise.all([a, b].map((server) => openStream(`${server.url}/v1/sales/${id}/events`)));
    expect(await get(b, id)).toMatchObject({ id });
    const gone = await remove(a, id);
    expect([gone.status, gone.body]).toEqual([204, '']);
    for (const server of [a, b]) expectProblem(await place(server, id, 'alice'), 404, 'not_found');
    // A reader that connects again is told 404, and stops.
    for (const stream of streams) await stream.ended;
    for (const server of [a, b]) {
      await until('it is not shown', 3_000, async () => {
        const { status } = await server.call('GET', `/v1/sales/${id}`);
        const { data } = (await server.call('GET', '/v1/sales')).body;
        return status === 404 && data.every((sale: { id: string }) => sale.id !== id);
      });
      expectProblem(await remove(server, id), 404, 'not_found');
      expectProblem(await server.call('GET', `/v1/sales/${id}/events`), 404, 'not_found');
    }
    expectProblem(await post(a, id, item('x')), 404, 'not_found');
    expectProblem(await admin(a, 'PATCH', `/v1/sales/${id}`, { body: { name: 'x', version: 1 } }), 404, 'not_found');
    const { body: audit } = await admin(a, 'GET', `/v1/ops/audit?subject=sale:${id}`);
    expect(audit.data[0]).toMatchObject({ action: 'sale.delete', actor: 'admin:admin' });
  });

  it('a sale that ever had an order is not deleted, and goes on selling', async () => {
    const { a, b } = processes();
    const id = await createSale(a, { stock: 5 });
    const order = await place(b, id, 'alice');
    expectProblem(await remove(a, id), 409, 'sale_has_orders');
    await b.call('POST', `/v1/orders/${order.body.id}/cancel`, { buyer: 'alice' });
    expectProblem(await remove(b, id), 409, 'sale_has_orders');
    for (const [at, server] of [a, b].entries()) expect((await place(server, id, `next-${at}`)).status).toBe(201);
    expectProblem(await remove(a, '424242'), 404, 'not_found');
    expectProblem(await remove(a, 'x'), 404, 'not_found');
    expectProblem(await a.call('DELETE', `/v1/sales/${id}`, { buyer: 'alice' }), 403, 'forbidden');
    expectProblem(await a.call('DELETE', `/v1/sales/${id}`), 401, 'unauthenticated');
  });

  it('a closed or finished sale without orders is deleted, too', async () => {
    const { a, b } = processes();
    const closed = await createSale(a);
    await admin(a, 'POST', `/v1/sales/${closed}/close`);
    expect((await remove(b, closed)).status).toBe(204);
    const over = await createSale(a, { closesAt: '2020-01-02T00:00:00.000Z' });
    expect((await remove(a, over)).status).toBe(204);
    expectProblem(await place(b, over, 'alice'), 404, 'not_found');
  });

  it('P3: a sale is deleted while its first order comes: either stands, never both', async () => {
    const { a, b } = processes();
    const seen = new Set<string>();
    for (let n = 0; n < 8; n++) {
      const id = await createSale(a, { stock: 5 });
      const late = async () => {
        await new Promise((resolve) => setTimeout(resolve, n % 4));
        return place(b, id, 'alice', { key: 'k' });
      };
      const [deleted, ordered] = await Promise.all([remove(a, id), late()]);
      let answer = ordered;
      for (let tries = 0; answer.status === 503 && tries < 200; tries++) {
        await new Promise((resolve) => setTimeout(resolve, 20));
        answer = await place(b, id, 'alice', { key: 'k' });
      }
      let end = deleted;
      for (let tries = 0; end.status === 503 && tries < 200; tries++) {
        await new Promise((resolve) => setTimeout(resolve, 20));
        end = await remove(a, id);
      }
      if (end.status === 204) {
        expectProblem(answer, 404, 'not_found');
        expect(await allOrders(a, id)).toEqual([]);
        seen.add('deleted');
      } else {
        expectProblem(end, 409, 'sale_has_orders');
        expect([201, 202]).toContain(answer.status);
        await until('the order stands', 5_000, async () => {
          return (await b.call('GET', `/v1/orders/${answer.body.id}`, { buyer: 'alice' })).body.status === 'reserved';
        });
        await until('it sells on', 5_000, async () => (await place(a, id, 'bob')).status === 201);
        seen.add('ordered');
      }
    }
    expect(seen.size).toBeGreaterThan(0);
  });

  it('orders as CSV say what they are for, in columns behind those that there were', async () => {
    const { a } = processes();
    const made = await admin(a, 'POST', '/v1/sales', { body: { ...saleBody(), name: 'A, B', ...EVENT } });
    const plain = await createSale(a);
    const buyer = `csv-${made.body.id}`;
    await place(a, made.body.id, buyer);
    await place(a, plain, buyer);
    const { body } = await a.call('GET', '/v1/orders', { buyer, headers: { accept: 'text/csv' } });
    const [head, ...rows] = String(body).split('\r\n');
    const rowOf = (saleId: string) => rows.find((row) => row.split(',')[1] === saleId);
    expect(head).toMatch(/,paymentReference,refunded,saleName,itemName,startsAt,venue$/);
    expect(rowOf(made.body.id)).toMatch(/,,,,,"A, B",100 off,2030-05-01T20:00:00\.000Z,Großer Saal$/);
    expect(rowOf(plain)).toMatch(/,,,,,Vouchers,100 off,,$/);
  });
}
