import { describe, expect, it } from 'vitest';
import { until } from '../support/fault-wait.ts';
import { expectProblem, type OpenStream, openStream, type StreamEvent } from '../support/openapi-wire.ts';
import { type Answer, type CallOptions, type TestServer, token } from '../support/server.ts';
import { startReceiver } from '../support/webhooks.ts';

/**
 * Numbered seats over HTTP, in each deployment. `a` and `b` are two processes of one shop, or the same one: what one of them does,
 * the other shows.
 */
export interface SeatShop {
  a: TestServer;
  b: TestServer;
}

const PRICE = { amount: 68_000, currency: 'CNY' };

/** Stalls: rows A and B of 10, and C of 1–3 and 5–7. Balcony: a row of 4. Standing is counted. */
export function concert(over: object = {}) {
  return {
    name: 'A concert',
    opensAt: '2020-01-01T00:00:00.000Z',
    closesAt: '2099-01-01T00:00:00.000Z',
    perBuyer: 10,
    items: [
      {
        code: 'stalls',
        name: 'Stalls',
        price: PRICE,
        seats: [
          { section: 'Stalls', row: 'A', from: 1, to: 10 },
          { section: 'Stalls', row: 'B', from: 1, to: 10, x: 0, y: 1.5 },
          { section: 'Stalls', row: 'C', numbers: [7, 6, 5, 1, 2, 3] },
        ],
      },
      { code: 'balcony', name: 'Balcony', price: PRICE, seats: [{ section: 'Rang É', row: '甲', from: 0, to: 3 }] },
      { code: 'standing', name: 'Standing', price: PRICE, stock: 5 },
    ],
    ...over,
  };
}

/** A sale of one row of `seats`. */
function row(seats: number, over: object = {}) {
  const items = [{ code: 'row', name: 'Row', price: PRICE, seats: [{ section: 'S', row: 'R', from: 1, to: seats }] }];
  return concert({ perBuyer: 100, items, ...over });
}

export function seatsOverHttp(world: () => SeatShop): void {
  const call = (method: string, path: string, options: CallOptions = {}) => world().a.call(method, path, options);
  const admin = (method: string, path: string, options: CallOptions = {}) =>
    call(method, path, { admin: true, ...options });

  async function create(body: object = concert()): Promise<string> {
    const made = await admin('POST', '/v1/sales', { body });
    expect([made.status, made.body.detail]).toEqual([201, undefined]);
    return made.body.id;
  }

  const place = (sale: string, buyer: string, body: object, options: CallOptions = {}): Promise<Answer> =>
    call('POST', `/v1/sales/${sale}/orders`, { buyer, body, ...options });

  async function ordered(
    sale: string,
    buyer: string,
    body: object,
    options: CallOptions = {},
  ): Promise<Answer['body']> {
    const placed = await place(sale, buyer, body, options);
    expect([placed.status, placed.body.detail]).toEqual([201, undefined]);
    return placed.body;
  }

  /** The states of all rows, as `b` shows them by now. */
  async function shown(sale: string): Promise<string[]> {
    const { status, body } = await world().b.call('GET', `/v1/sales/${sale}/seats`);
    expect(status).toBe(200);
    return body.items.flatMap(({ rows }: { rows: { states: string }[] }) => rows.map(({ states }) => states));
  }

  const untilShown = (sale: string, states: string[]): Promise<unknown> =>
    until(`the seats are ${states.join(' ')}`, 5000, async () => (await shown(sale)).join() === states.join());

  async function untouched(sale: string): Promise<void> {
    await untilShown(sale, ['ffffffffff', 'ffffffffff', 'ffffff', 'ffff']);
    expect((await world().b.call('GET', `/v1/orders?saleId=${sale}`, { admin: true })).body.data).toEqual([]);
  }

  describe('a sale with seats', () => {
    it('shows its kinds, its seats and where its rows are', async () => {
      const made = await admin('POST', '/v1/sales', { body: concert() });
      expect(made.status).toBe(201);
      expect(
        made.body.items.map(({ code, kind, total, free }: Record<string, unknown>) => [code, kind, total, free]),
      ).toEqual([
        ['stalls', 'seated', 26, 26],
        ['balcony', 'seated', 4, 4],
        ['standing', 'counted', 5, 5],
      ]);
      const { id } = made.body;
      const read = await world().b.call('GET', `/v1/sales/${id}/seats`);
      expect(read.status).toBe(200);
      expect(read.body).toEqual({
        revision: expect.stringMatching(/^[0-9]+\.[0-9]+$/),
        items: [
          {
            code: 'stalls',
            rows: [
              { section: 'Stalls', row: 'A', numbers: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], states: 'ffffffffff' },
              {
                ...{ section: 'Stalls', row: 'B', numbers: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], states: 'ffffffffff' },
                ...{ x: 0, y: 1.5, angle: 0 },
              },
              { section: 'Stalls', row: 'C', numbers: [1, 2, 3, 5, 6, 7], states: 'ffffff' },
            ],
          },
          { code: 'balcony', rows: [{ section: 'Rang É', row: '甲', numbers: [0, 1, 2, 3], states: 'ffff' }] },
        ],
      });
      expect(read.headers.get('cache-control')).toBe('public, max-age=1');
      const etag = read.headers.get('etag')!;
      const again = await world().b.call('GET', `/v1/sales/${id}/seats`, { headers: { 'if-none-match': etag } });
      expect(again.status).toBe(304);
      expectProblem(await call('GET', '/v1/sales/1/seats'), 404, 'not_found');
      expectProblem(await call('GET', `/v1/sales/${id}/seats?x=1`), 422, 'invalid_request');
    });

    it('without seats, none are shown', async () => {
      const sale = await create(concert({ items: [concert().items[2]] }));
      expect((await call('GET', `/v1/sales/${sale}/seats`)).body.items).toEqual([]);
    });

    it('has a seat stock that nobody changes', async () => {
      const sale = await create();
      for (const add of [1, -1]) {
        expectProblem(
          await admin('POST', `/v1/sales/${sale}/items/stalls/stock`, { body: { add } }),
          422,
          'invalid_request',
        );
      }
      expect((await admin('POST', `/v1/sales/${sale}/items/standing/stock`, { body: { add: 1 } })).status).toBe(200);
      await untouched(sale);
    });

    const seats = (...rows: object[]) => concert({ items: [{ code: 'x', name: 'X', price: PRICE, seats: rows }] });
    const ROW = { section: 'S', row: 'R' };
    it.each([
      ['neither stock nor seats', concert({ items: [{ code: 'x', name: 'X', price: PRICE }] }), '/items/0/stock'],
      [
        'both stock and seats',
        concert({ items: [{ code: 'x', name: 'X', price: PRICE, stock: 1, seats: [{ ...ROW, from: 1, to: 2 }] }] }),
        '/items/0',
      ],
      ['no row', seats(), '/items/0/seats'],
      ['a row without numbers', seats(ROW), '/items/0/seats/0'],
      ['a range that ends before it begins', seats({ ...ROW, from: 3, to: 2 }), '/items/0/seats/0/to'],
      ['a row of 501 seats', seats({ ...ROW, from: 1, to: 501 }), '/items/0/seats/0/to'],
      ['both a range and numbers', seats({ ...ROW, from: 1, to: 2, numbers: [3] }), '/items/0/seats/0'],
      ['a number twice', seats({ ...ROW, numbers: [1, 2, 1] }), '/items/0/seats/0/numbers/2'],
      ['overlapping ranges', seats({ ...ROW, from: 1, to: 5 }, { ...ROW, from: 5, to: 9 }), '/items/0/seats/1'],
      ['a slash in a row', seats({ section: 'S', row: 'A/B', from: 1, to: 2 }), '/items/0/seats/0/row'],
      [
        'a section of 65 characters',
        seats({ ...ROW, section: 'S'.repeat(65), from: 1, to: 2 }),
        '/items/0/seats/0/section',
      ],
      ['a control character', seats({ ...ROW, row: 'A\n', from: 1, to: 2 }), '/items/0/seats/0/row'],
      ['a fraction', seats({ ...ROW, from: 1.5, to: 2 }), '/items/0/seats/0/from'],
      ['a place without y', seats({ ...ROW, from: 1, to: 2, x: 1 }), '/items/0/seats/0'],
      ['an unknown field', seats({ ...ROW, from: 1, to: 2, colour: 'red' }), '/items/0/seats/0/colour'],
      [
        'a seat of two items',
        concert({
          items: ['x', 'y'].map((code) => ({ code, name: 'X', price: PRICE, seats: [{ ...ROW, from: 1, to: 2 }] })),
        }),
        '/items/1/seats/0',
      ],
    ])('with %s is refused: 422, and where', async (_, body, path) => {
      const answer = await admin('POST', '/v1/sales', { body });
      expectProblem(answer, 422, 'invalid_request');
      expect(answer.body.errors[0].path).toBe(path);
    });
  });

  describe('orders', () => {
    it('by name: all of them, whatever their order; a taken one is named, and nothing is reserved', async () => {
      const sale = await create();
      const order = await ordered(sale, 'alice', { seats: ['Stalls/A/3', 'Stalls/A/1'] });
      expect(order).toMatchObject({
        item: 'stalls',
        quantity: 2,
        seats: ['Stalls/A/1', 'Stalls/A/3'],
        amount: { amount: 136_000, currency: 'CNY' },
        status: 'reserved',
      });
      const taken = await place(sale, 'bob', { seats: ['Stalls/A/2', 'Stalls/A/3', 'Stalls/A/1'] });
      expectProblem(taken, 409, 'seat_taken');
      expect(taken.body.seats).toEqual(['Stalls/A/1', 'Stalls/A/3']);
      await untilShown(sale, ['rfrfffffff', 'ffffffffff', 'ffffff', 'ffff']);
      expect((await ordered(sale, 'bob', { seats: ['Rang É/甲/0'] })).seats).toEqual(['Rang É/甲/0']);
      const read = await world().b.call('GET', `/v1/orders/${order.id}`, { buyer: 'alice' });
      expect(read.body).toEqual(order);
      const list = await world().b.call('GET', `/v1/orders?saleId=${sale}`, { admin: true });
      expect(list.body.data.map((one: { seats: string[] }) => one.seats)).toEqual([['Rang É/甲/0'], order.seats]);
      const csv = await world().b.call('GET', `/v1/orders?saleId=${sale}`, {
        admin: true,
        headers: { accept: 'text/csv' },
      });
      expect(csv.body).toContain(`,stalls,2,Stalls/A/1 Stalls/A/3,`);
    });

    it('the best together: in the first row that has them, near its middle', async () => {
      const sale = await create();
      const order = await ordered(sale, 'alice', { item: 'stalls', quantity: 4, together: true });
      expect(order.seats).toEqual(['Stalls/A/4', 'Stalls/A/5', 'Stalls/A/6', 'Stalls/A/7']);
      expect((await ordered(sale, 'bob', { item: 'stalls', quantity: 4, together: true })).seats[0]).toBe('Stalls/B/4');
      expectProblem(await place(sale, 'carol', { item: 'stalls', quantity: 4, together: true }), 409, 'not_together');
      expect((await ordered(sale, 'carol', { item: 'stalls', quantity: 3, together: true })).quantity).toBe(3);
    });

    it('the best wherever they are; sold_out if there are not that many', async () => {
      const sale = await create();
      expect((await ordered(sale, 'alice', { item: 'balcony' })).seats).toEqual(['Rang É/甲/1']);
      expect((await ordered(sale, 'bob', { item: 'balcony', quantity: 2 })).seats).toHaveLength(2);
      expectProblem(await place(sale, 'carol', { item: 'balcony', quantity: 2 }), 409, 'sold_out');
      expectProblem(await place(sale, 'carol', { item: 'balcony', quantity: 2, together: true }), 409, 'sold_out');
      expect((await ordered(sale, 'carol', { item: 'standing' })).seats).toEqual([]);
    });

    const REFUSED: [string, object, number, string][] = [
      ['an unknown seat', { seats: ['Stalls/A/11'] }, 404, 'not_found'],
      ['one unknown seat among known ones', { seats: ['Stalls/A/1', 'Stalls/Z/1'] }, 404, 'not_found'],
      ['a number with a leading zero', { seats: ['Stalls/A/01'] }, 404, 'not_found'],
      ['an unknown item', { item: 'pit', quantity: 1 }, 404, 'not_found'],
      ['an unknown item, together', { item: 'pit', quantity: 1, together: true }, 404, 'not_found'],
      ['a seat twice', { seats: ['Stalls/A/1', 'Stalls/A/1'] }, 422, '/seats/1'],
      ['seats of two items', { seats: ['Stalls/A/1', 'Rang É/甲/1'] }, 422, '/seats'],
      ['seats of two items, one of them unknown', { seats: ['x/y/1', 'Stalls/A/1', 'Rang É/甲/1'] }, 422, '/seats'],
      ['together with named seats', { seats: ['Stalls/A/1'], together: true }, 422, '/together'],
      ['another quantity', { seats: ['Stalls/A/1'], quantity: 2 }, 422, '/quantity'],
      ['another item', { seats: ['Stalls/A/1'], item: 'balcony' }, 422, '/item'],
      ['together of a counted item', { item: 'standing', quantity: 2, together: true }, 422, '/together'],
      ['no seat', { seats: [] }, 422, '/seats'],
      ['neither item nor seats', { quantity: 1 }, 422, '/item'],
      ['a name of 300 characters', { seats: [`${'S'.repeat(290)}/A/1`] }, 422, '/seats/0'],
      ['a control character in a name', { seats: ['Stalls/A/1\n'] }, 422, '/seats/0'],
      [
        'more than perBuyer',
        { seats: Array.from({ length: 10 }, (_, at) => `Stalls/A/${at + 1}`) },
        409,
        'limit_reached',
      ],
    ];

    it('bad input: the answer of the contract, and nothing changed', async () => {
      const sale = await create(concert({ perBuyer: 9 }));
      for (const [name, body, status, word] of REFUSED) {
        const answer = await place(sale, 'alice', body, { key: 'bad' });
        const said = status === 422 ? [answer.body.code, answer.body.errors?.[0].path] : [answer.body.code, undefined];
        expect([answer.status, ...said], name).toEqual([
          status,
          ...(status === 422 ? ['invalid_request', word] : [word, undefined]),
        ]);
        expectProblem(answer, status, said[0]);
      }
      await untouched(sale);
      // The key is free: nothing was bound to it.
      expect((await place(sale, 'alice', { seats: ['Stalls/A/1'] }, { key: 'bad' })).status).toBe(201);
    });

    it('100 seats at once, and not 101', async () => {
      const sale = await create(row(120));
      const names = (n: number) => Array.from({ length: n }, (_, at) => `S/R/${at + 1}`);
      const answer = await place(sale, 'alice', { seats: names(101) });
      expectProblem(answer, 422, 'invalid_request');
      expect(answer.body.errors[0].path).toBe('/seats');
      const order = await ordered(sale, 'alice', { seats: names(100) });
      expect(order.seats).toEqual(names(100));
      await untilShown(sale, ['r'.repeat(100) + 'f'.repeat(20)]);
    });

    it('P5: a key is bound to the seats and to `together`; a repeat gets the first order, also when nothing is free', async () => {
      const sale = await create(row(4));
      const named = { seats: ['S/R/2', 'S/R/1'] };
      const first = await place(sale, 'alice', named, { key: 'k' });
      expect(first.status).toBe(201);
      const again = await world().b.call('POST', `/v1/sales/${sale}/orders`, {
        ...{ buyer: 'alice', key: 'k', body: { seats: ['S/R/1', 'S/R/2'], quantity: 2 } },
      });
      expect([again.status, again.body, again.headers.get('idempotent-replayed')]).toEqual([201, first.body, 'true']);
      for (const other of [{ seats: ['S/R/1', 'S/R/3'] }, { item: 'row', quantity: 2 }, { seats: ['S/R/1'] }]) {
        expectProblem(await place(sale, 'alice', other, { key: 'k' }), 422, 'idempotency_key_reused');
      }
      const best = { item: 'row', quantity: 2, together: true };
      const second = await ordered(sale, 'bob', best, { key: 'k' });
      expect(second.seats).toEqual(['S/R/3', 'S/R/4']);
      expect((await place(sale, 'bob', best, { key: 'k' })).body).toEqual(second);
      expectProblem(
        await place(sale, 'bob', { item: 'row', quantity: 2 }, { key: 'k' }),
        422,
        'idempotency_key_reused',
      );
      expectProblem(await place(sale, 'carol', best), 409, 'sold_out');
    });

    it('P4: a cancelled order frees its seats and no others', async () => {
      const sale = await create(row(4));
      const first = await ordered(sale, 'alice', { seats: ['S/R/1', 'S/R/2'] });
      await ordered(sale, 'bob', { seats: ['S/R/3'] });
      expect((await call('POST', `/v1/orders/${first.id}/cancel`, { buyer: 'alice' })).body.seats).toEqual(first.seats);
      await untilShown(sale, ['ffrf']);
      await ordered(sale, 'carol', { seats: ['S/R/2', 'S/R/4'] });
      await untilShown(sale, ['frrr']);
    });

    it('P1: of many who want the same seats each seat has one order', async () => {
      const sale = await create(row(20));
      const wish = (n: number) => ({ seats: [`S/R/${(n % 20) + 1}`, `S/R/${((n * 7) % 20) + 1}`] });
      const answers = await Promise.all(
        Array.from({ length: 60 }, (_, n) => {
          const { seats } = wish(n + 1);
          return place(sale, `buyer-${n}`, { seats: [...new Set(seats)] });
        }),
      );
      expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([201, 409]));
      const sold = answers.filter(({ status }) => status === 201).flatMap(({ body }) => body.seats as string[]);
      expect(new Set(sold).size).toBe(sold.length);
      for (const { status, body } of answers)
        if (status === 409) expect(sold).toEqual(expect.arrayContaining(body.seats));
      await until(
        'all are shown',
        5000,
        async () => (await shown(sale))[0]!.replaceAll('f', '').length === sold.length,
      );
    });

    it('a paid order is shown as sold', async () => {
      const sale = await create(row(3));
      const { id, amount } = await ordered(sale, 'alice', { seats: ['S/R/2'] });
      const paid = await admin('POST', `/v1/orders/${id}/confirm`, { body: { reference: `till-${id}`, amount } });
      expect([paid.status, paid.body.seats]).toEqual([200, ['S/R/2']]);
      await untilShown(sale, ['fsf']);
    });
  });

  describe('blocking', () => {
    const block = (sale: string, seats: string[], options: CallOptions = {}, verb = 'block'): Promise<Answer> =>
      admin('POST', `/v1/sales/${sale}/seats/${verb}`, { body: { seats }, ...options });

    it('keeps seats back and makes them free again, of any items, all or none', async () => {
      const sale = await create();
      const blocked = await block(sale, ['Stalls/A/1', 'Rang É/甲/3', 'Stalls/A/2']);
      expect([blocked.status, blocked.body.detail]).toEqual([200, undefined]);
      expect(blocked.body.items.map((item: { blocked: number }) => item.blocked)).toEqual([2, 1, 0]);
      await untilShown(sale, ['bbffffffff', 'ffffffffff', 'ffffff', 'fffb']);
      const taken = await place(sale, 'alice', { seats: ['Stalls/A/2', 'Stalls/A/3'] });
      expectProblem(taken, 409, 'seat_taken');
      expect(taken.body.seats).toEqual(['Stalls/A/2']);
      await ordered(sale, 'alice', { seats: ['Stalls/A/3'] });
      const refused = await block(sale, ['Rang É/甲/1', 'Stalls/A/3', 'Stalls/A/4']);
      expectProblem(refused, 409, 'seat_taken');
      expect(refused.body.seats).toEqual(['Stalls/A/3']);
      // What is so already may be named again.
      expect((await block(sale, ['Stalls/A/2', 'Stalls/A/4'])).status).toBe(200);
      const free = await block(sale, ['Stalls/A/1', 'Stalls/A/2', 'Stalls/A/5'], {}, 'unblock');
      expect(free.status).toBe(200);
      await untilShown(sale, ['ffrbffffff', 'ffffffffff', 'ffffff', 'fffb']);
      await ordered(sale, 'bob', { seats: ['Stalls/A/1'] });
      expectProblem(await block(sale, ['Stalls/A/1'], {}, 'unblock'), 409, 'seat_taken');
    });

    it('is keyed and audited', async () => {
      const sale = await create(row(4));
      const first = await block(sale, ['S/R/1', 'S/R/2'], { key: 'b' });
      expect(first.status).toBe(200);
      const again = await block(sale, ['S/R/2', 'S/R/1'], { key: 'b' });
      expect([again.status, again.body, again.headers.get('idempotent-replayed')]).toEqual([200, first.body, 'true']);
      expectProblem(await block(sale, ['S/R/1'], { key: 'b' }), 422, 'idempotency_key_reused');
      expect((await block(sale, ['S/R/1', 'S/R/2'], {}, 'unblock')).status).toBe(200);
      await ordered(sale, 'alice', { seats: ['S/R/1'] });
      // The first answer, although somebody sits there by now.
      expect((await block(sale, ['S/R/1', 'S/R/2'], { key: 'b' })).headers.get('idempotent-replayed')).toBe('true');
      const { body } = await admin('GET', `/v1/ops/audit?subject=sale:${sale}`);
      expect(body.data.slice(0, 2).map((entry: Record<string, unknown>) => [entry.action, entry.detail])).toEqual([
        ['sale.unblock_seats', { items: [{ item: 'row', seats: ['S/R/1', 'S/R/2'] }] }],
        ['sale.block_seats', { items: [{ item: 'row', seats: ['S/R/1', 'S/R/2'] }] }],
      ]);
    });

    it('1 000 seats a call, and not 1 001', async () => {
      const rows = Array.from({ length: 3 }, (_, at) => ({ section: 'S', row: `${at}`, from: 1, to: 500 }));
      const sale = await create(concert({ items: [{ code: 'x', name: 'X', price: PRICE, seats: rows }] }));
      const names = (n: number) => Array.from({ length: n }, (_, at) => `S/${Math.floor(at / 500)}/${(at % 500) + 1}`);
      expectProblem(await block(sale, names(1001)), 422, 'invalid_request');
      expect((await block(sale, names(1000))).body.items[0].blocked).toBe(1000);
      await untilShown(sale, ['b'.repeat(500), 'b'.repeat(500), 'f'.repeat(500)]);
    });

    it('bad input and strangers', async () => {
      const sale = await create(row(4));
      expectProblem(await block(sale, ['S/R/9', 'S/R/1']), 404, 'not_found');
      expectProblem(await block(sale, ['S/R/1', 'S/R/1']), 422, 'invalid_request');
      expectProblem(await block(sale, []), 422, 'invalid_request');
      expectProblem(await block('1', ['S/R/1']), 404, 'not_found');
      const path = `/v1/sales/${sale}/seats/block`;
      expectProblem(await call('POST', path, { body: { seats: ['S/R/1'] } }), 401, 'unauthenticated');
      expectProblem(await call('POST', path, { buyer: 'x', body: { seats: ['S/R/1'] } }), 403, 'forbidden');
      expect((await admin('POST', `/v1/sales/${sale}/close`)).status).toBe(200);
      expectProblem(await block(sale, ['S/R/1']), 409, 'sale_closed');
    });
  });

  describe('moving an order', () => {
    const move = (id: string, seats: string[], options: CallOptions = {}): Promise<Answer> =>
      admin('POST', `/v1/orders/${id}/move`, { body: { seats }, ...options });

    it('to free seats of its item, all or none; it may keep some; its old ones are free', async () => {
      const sale = await create(row(6));
      const order = await ordered(sale, 'alice', { seats: ['S/R/1', 'S/R/2'] });
      await ordered(sale, 'bob', { seats: ['S/R/4'] });
      const refused = await move(order.id, ['S/R/3', 'S/R/4']);
      expectProblem(refused, 409, 'seat_taken');
      expect(refused.body).toMatchObject({ seats: ['S/R/4'], order: { seats: ['S/R/1', 'S/R/2'] } });
      const moved = await move(order.id, ['S/R/5', 'S/R/2'], { key: 'm' });
      expect(moved.status).toBe(200);
      expect(moved.body).toMatchObject({ seats: ['S/R/2', 'S/R/5'], version: 2, status: 'reserved' });
      const again = await move(order.id, ['S/R/5', 'S/R/2'], { key: 'm' });
      expect([again.status, again.body, again.headers.get('idempotent-replayed')]).toEqual([200, moved.body, 'true']);
      await untilShown(sale, ['frfrrf']);
      await ordered(sale, 'carol', { seats: ['S/R/1'] });
      const { amount } = order;
      await admin('POST', `/v1/orders/${order.id}/confirm`, { body: { reference: `till-${order.id}`, amount } });
      expect((await move(order.id, ['S/R/6', 'S/R/5'])).body).toMatchObject({ status: 'paid', version: 4 });
      await untilShown(sale, ['rffrss']);
      const { body } = await admin('GET', `/v1/ops/audit?subject=order:${order.id}`);
      const moves = body.data.filter(({ action }: { action: string }) => action === 'order.move');
      expect(moves.map(({ detail }: { detail: unknown }) => detail)).toEqual([
        { item: 'row', from: ['S/R/2', 'S/R/5'], to: ['S/R/5', 'S/R/6'] },
        { item: 'row', from: ['S/R/1', 'S/R/2'], to: ['S/R/2', 'S/R/5'] },
      ]);
      // P4: its end frees the seats that it has now.
      expect((await admin('POST', `/v1/orders/${order.id}/refund`)).status).toBe(200);
      await untilShown(sale, ['rffrff']);
    });

    it('refusals', async () => {
      const sale = await create();
      const order = await ordered(sale, 'alice', { seats: ['Stalls/A/1'] });
      const standing = await ordered(sale, 'alice', { item: 'standing' });
      expectProblem(await move(order.id, ['Rang É/甲/1']), 422, 'invalid_request');
      expectProblem(await move(order.id, ['Stalls/A/2', 'Stalls/A/3']), 422, 'invalid_request');
      expectProblem(await move(order.id, ['Stalls/A/99']), 404, 'not_found');
      expectProblem(await move('1', ['Stalls/A/2']), 404, 'not_found');
      expectProblem(await move(standing.id, ['Stalls/A/2']), 409, 'order_not_movable');
      const path = `/v1/orders/${order.id}/move`;
      expectProblem(await call('POST', path, { buyer: 'alice', body: { seats: ['Stalls/A/2'] } }), 403, 'forbidden');
      await call('POST', `/v1/orders/${order.id}/cancel`, { buyer: 'alice' });
      expectProblem(await move(order.id, ['Stalls/A/2']), 409, 'order_not_movable');
      await untouchedSeats(sale);
    });

    const untouchedSeats = (sale: string) => untilShown(sale, ['ffffffffff', 'ffffffffff', 'ffffff', 'ffff']);

    it('its stream tells it', async () => {
      const sale = await create(row(6));
      const order = await ordered(sale, 'alice', { seats: ['S/R/1'] });
      const headers = { authorization: `Bearer ${token('alice')}` };
      const stream = await openStream(`${world().b.url}/v1/orders/${order.id}/events`, headers);
      await move(order.id, ['S/R/2']);
      const event = await stream.until(({ data }) => data.version === 2);
      expect(event.data.seats).toEqual(['S/R/2']);
      stream.close();
    });
  });

  describe('the stream of a sale', () => {
    const open = (sale: string, from?: string): Promise<OpenStream> =>
      openStream(`${world().b.url}/v1/sales/${sale}/events`, from === undefined ? {} : { 'last-event-id': from });
    const isSeats = ({ event }: StreamEvent) => event === 'seats';
    const counts = ({ id }: StreamEvent) => id.split('/')[0];

    it('begins with all seats and goes on with changes; a client that comes back gets what it missed', async () => {
      const sale = await create();
      const stream = await open(sale);
      const first = await stream.until(isSeats);
      expect(first.data.items).toEqual([
        { code: 'stalls', states: 'f'.repeat(26) },
        { code: 'balcony', states: 'ffff' },
      ]);
      expect(first.id).toMatch(/^[0-9]+\.[0-9]+\/[0-9]+\.[0-9]+$/);
      expect(first.id.split('/')[1]).toBe(first.data.revision);
      await ordered(sale, 'alice', { seats: ['Stalls/A/1', 'Stalls/A/2'] });
      const change = await stream.until(isSeats);
      expect(change.data).toEqual({
        revision: expect.stringMatching(/^[0-9]+\.[0-9]+$/),
        changes: { r: ['Stalls/A/1', 'Stalls/A/2'] },
      });
      // Counts carry the revision of the seats, too: whichever event is the last, its id says all.
      const isCounted = ({ event, id }: StreamEvent) => event === 'stock' && id.endsWith(`/${change.data.revision}`);
      await until('its counts are told', 5000, async () => stream.events.some(isCounted));
      const stock = stream.events.find(isCounted)!;
      stream.close();

      await ordered(sale, 'bob', { seats: ['Stalls/A/3'] });
      await call('POST', `/v1/orders/${(await ordered(sale, 'bob', { seats: ['Stalls/A/4'] })).id}/cancel`, {
        buyer: 'bob',
      });
      await untilShown(sale, ['rrrfffffff', 'ffffffffff', 'ffffff', 'ffff']);
      const later = await open(sale, stock.id);
      const missed = await later.until(isSeats);
      expect(missed.data.changes.r).toContain('Stalls/A/3');
      expect(missed.data.items).toBeUndefined();
      await until('all is told', 5000, async () => later.events.some(({ event }) => event === 'stock'));
      const last = later.events.at(-1)!;
      later.close();
      // Nothing has happened since: no seats are told.
      const still = await open(sale, last.id);
      await new Promise((resolve) => setTimeout(resolve, 300));
      expect(still.events.filter(isSeats)).toEqual([]);
      still.close();
    });

    it('with an id that says nothing of seats, of another epoch, or made up, all seats are told', async () => {
      const sale = await create(row(4));
      const stream = await open(sale);
      const { id } = await stream.until(isSeats);
      stream.close();
      for (const from of [
        id.split('/')[0]!,
        `${id.split('/')[0]}/999.1`,
        `${id.split('/')[0]}/x`,
        '/',
        'made up',
        `${id}9`,
      ]) {
        const again = await open(sale, from);
        expect((await again.until(isSeats)).data.items, from).toEqual([{ code: 'row', states: 'ffff' }]);
        if (from.startsWith(counts({ id } as StreamEvent)!)) {
          expect(
            again.events.filter(({ event }) => event === 'stock'),
            from,
          ).toEqual([]);
        }
        again.close();
      }
    });

    it('of a sale without seats tells none, and its ids are as before', async () => {
      const sale = await create(concert({ items: [concert().items[2]] }));
      const stream = await open(sale);
      const { id } = await stream.until(({ event }) => event === 'stock');
      expect(id).toMatch(/^[0-9]+\.[0-9]+$/);
      stream.close();
    });
  });

  it('webhooks have the names of seats', async () => {
    const receiver = await startReceiver();
    try {
      const body = { url: receiver.url, events: ['order.reserved', 'order.moved'] };
      const endpoint = await admin('POST', '/v1/ops/webhooks', { body });
      expect(endpoint.status).toBe(201);
      // The other process looks for endpoints twice a second.
      await new Promise((resolve) => setTimeout(resolve, 700));
      const sale = await create(row(4));
      const order = await ordered(sale, 'alice', { seats: ['S/R/1', 'S/R/2'] });
      await admin('POST', `/v1/orders/${order.id}/move`, { body: { seats: ['S/R/2', 'S/R/3'] } });
      const told = await until('both are told', 10_000, async () => {
        const events = receiver.received
          .map(({ text }) => JSON.parse(text))
          .filter((event) => event.order.id === order.id);
        return events.length === 2 && events;
      });
      expect(
        told.map((event: { type: string; order: { seats: string[] } }) => [event.type, event.order.seats]),
      ).toEqual([
        ['order.reserved', ['S/R/1', 'S/R/2']],
        ['order.moved', ['S/R/2', 'S/R/3']],
      ]);
      await admin('DELETE', `/v1/ops/webhooks/${endpoint.body.id}`);
    } finally {
      await receiver.close();
    }
  });

  it('after its end a sale still shows its seats', async () => {
    const sale = await create(row(5));
    const { id, amount } = await ordered(sale, 'alice', { seats: ['S/R/1'] });
    await admin('POST', `/v1/orders/${id}/confirm`, { body: { reference: `till-${id}`, amount } });
    await ordered(sale, 'bob', { seats: ['S/R/2'] });
    await admin('POST', `/v1/sales/${sale}/seats/block`, { body: { seats: ['S/R/5'] } });
    expect((await admin('POST', `/v1/sales/${sale}/close`)).status).toBe(200);
    await untilShown(sale, ['srffb']);
    expectProblem(await place(sale, 'carol', { seats: ['S/R/3'] }), 409, 'sale_closed');
    const moved = await admin('POST', `/v1/orders/${id}/move`, { body: { seats: ['S/R/3'] } });
    expect([moved.status, moved.body.seats]).toEqual([200, ['S/R/3']]);
    await untilShown(sale, ['frsfb']);
  });
}
