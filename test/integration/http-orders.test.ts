import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CALM, expectProblem, openStream } from '../support/openapi-wire.ts';
import {
  ADMIN_KEY,
  type Answer,
  allOrders,
  type CallOptions,
  cleanUp,
  createSale,
  saleBody,
  startServer,
  type TestServer,
  token,
} from '../support/server.ts';

/** Orders over HTTP: placing, reading, listing, following, and one effect per Idempotency-Key (P5). */
let server: TestServer;
beforeAll(async () => {
  server = await startServer({ env: CALM });
});
afterAll(cleanUp);

const place = (sale: string, buyer: string, options: CallOptions & { quantity?: number; item?: string } = {}) => {
  const { quantity, item = 'voucher', ...rest } = options;
  return server.call('POST', `/v1/sales/${sale}/orders`, {
    buyer,
    body: { item, ...(quantity !== undefined && { quantity }) },
    ...rest,
  });
};
const admin = (method: string, path: string, options: CallOptions = {}) =>
  server.call(method, path, { admin: true, ...options });
const replayed = ({ headers }: Answer) => headers.get('idempotent-replayed');

/** Expects the same answer again: status, body byte for byte, Location, and Idempotent-Replayed. */
function expectReplay(again: Answer, first: Answer): void {
  expect([again.status, again.body, replayed(again)]).toEqual([first.status, first.body, 'true']);
  expect(again.headers.get('location')).toBe(first.headers.get('location'));
}

describe('placing', () => {
  it('201 is the order as the contract shows it, with its Location', async () => {
    const sale = await createSale(server, { stock: 10, perBuyer: 5 });
    const before = Date.now();
    const placed = await place(sale, 'alice', { quantity: 3 });
    expect(placed.status).toBe(201);
    expect(placed.body).toEqual({
      id: expect.stringMatching(/^[1-9]\d{0,18}$/),
      saleId: sale,
      buyer: 'alice',
      item: 'voucher',
      quantity: 3,
      seats: [],
      amount: { amount: 24_000, currency: 'CNY' },
      status: 'reserved',
      reason: null,
      payment: null,
      expiresAt: expect.stringMatching(/Z$/),
      createdAt: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      updatedAt: placed.body.createdAt,
      version: 1,
    });
    expect(Date.parse(placed.body.expiresAt) - Date.parse(placed.body.createdAt)).toBe(900_000);
    expect(Math.abs(Date.parse(placed.body.createdAt) - before)).toBeLessThan(5000);
    expect(placed.headers.get('location')).toBe(`/v1/orders/${placed.body.id}`);
    expect(replayed(placed)).toBeNull();
    const read = await server.call('GET', placed.headers.get('location')!, { buyer: 'alice' });
    expect([read.status, read.body]).toEqual([200, placed.body]);
    expect((await admin('GET', `/v1/orders/${placed.body.id}`)).body).toEqual(placed.body);
  });

  it('the highest price times the largest quantity is exact', async () => {
    const body = saleBody({ stock: 100, perBuyer: 100 });
    body.items[0]!.price.amount = 10 ** 12;
    const { id } = (await admin('POST', '/v1/sales', { body })).body;
    expect((await place(id, 'rich', { quantity: 100 })).body.amount).toEqual({ amount: 10 ** 14, currency: 'CNY' });
  });

  it('sold_out: not enough free units, and what is left can still be had', async () => {
    const sale = await createSale(server, { stock: 3, perBuyer: 5 });
    expectProblem(await place(sale, 'a', { quantity: 4 }), 409, 'sold_out');
    expect((await place(sale, 'a', { quantity: 2 })).status).toBe(201);
    expectProblem(await place(sale, 'b', { quantity: 2 }), 409, 'sold_out');
    expect((await place(sale, 'b')).status).toBe(201);
    expectProblem(await place(sale, 'c'), 409, 'sold_out');
    expect(await allOrders(server, sale)).toHaveLength(2);
  });

  it('P2: limit_reached over the whole sale and all its items, with the buyer’s live orders', async () => {
    const body = saleBody({ stock: 10, perBuyer: 3 });
    body.items.push({ ...body.items[0]!, code: 'other' });
    const sale = (await admin('POST', '/v1/sales', { body })).body.id;
    const first = await place(sale, 'a', { quantity: 2 });
    const tooMany = await place(sale, 'a', { quantity: 2, item: 'other' });
    expectProblem(tooMany, 409, 'limit_reached');
    expect(tooMany.body.orders).toEqual([first.body.id]);
    const second = await place(sale, 'a', { item: 'other' });
    expect(second.status).toBe(201);
    expect([...(await place(sale, 'a')).body.orders].sort()).toEqual([first.body.id, second.body.id].sort());
    // Compared bytewise: A is somebody else.
    expect((await place(sale, 'A', { quantity: 3 })).status).toBe(201);
    // The limit comes before the stock.
    expectProblem(await place(sale, 'a', { quantity: 100 }), 409, 'limit_reached');
  });

  it('the window comes before limit and stock', async () => {
    const sale = await createSale(server, { stock: 1 });
    await place(sale, 'a');
    await admin('POST', `/v1/sales/${sale}/pause`);
    expectProblem(await place(sale, 'a'), 409, 'sale_paused');
    expectProblem(await place(sale, 'b'), 409, 'sale_paused');
    await admin('POST', `/v1/sales/${sale}/close`);
    expectProblem(await place(sale, 'a'), 409, 'sale_closed');
  });

  it('P1, P2: a crowd gets exactly the stock, and each buyer one', async () => {
    const sale = await createSale(server, { stock: 20 });
    const answers = await Promise.all(Array.from({ length: 120 }, (_, index) => place(sale, `crowd${index % 60}`)));
    const placed = answers.filter(({ status }) => status === 201);
    expect(placed).toHaveLength(20);
    expect(new Set(placed.map(({ body }) => body.buyer)).size).toBe(20);
    expect(new Set(placed.map(({ body }) => body.id)).size).toBe(20);
    for (const answer of answers) {
      if (answer.status !== 201)
        expect([409, expect.stringMatching(/^(sold_out|limit_reached)$/)]).toEqual([answer.status, answer.body.code]);
    }
    expect((await allOrders(server, sale)).map(({ id }) => id).sort()).toEqual(
      placed.map(({ body }) => body.id).sort(),
    );
  });
});

describe('P5: Idempotency-Key', () => {
  it('a repeat gets the first answer, takes nothing, and is not refused because of its own first try', async () => {
    const sale = await createSale(server, { stock: 1 });
    const first = await place(sale, 'a', { key: 'k1' });
    expect([first.status, replayed(first)]).toEqual([201, null]);
    // Sold out, and the buyer is at the limit: both because of the first attempt.
    expectReplay(await place(sale, 'a', { key: 'k1' }), first);
    expectProblem(await place(sale, 'b', { key: 'k1' }), 409, 'sold_out');
    expectReplay(await place(sale, 'a', { key: 'k1', quantity: 1 }), first);
    await admin('POST', `/v1/sales/${sale}/pause`);
    expectReplay(await place(sale, 'a', { key: 'k1' }), first);
    await admin('POST', `/v1/sales/${sale}/close`);
    expectReplay(await place(sale, 'a', { key: 'k1' }), first);
    expect(await allOrders(server, sale)).toHaveLength(1);
  });

  it('another body is 422, before and after the sale is closed', async () => {
    const sale = await createSale(server, { stock: 10, perBuyer: 10 });
    const first = await place(sale, 'a', { key: 'k' });
    expectProblem(await place(sale, 'a', { key: 'k', quantity: 2 }), 422, 'idempotency_key_reused');
    await admin('POST', `/v1/sales/${sale}/close`);
    expectProblem(await place(sale, 'a', { key: 'k', quantity: 2 }), 422, 'idempotency_key_reused');
    expectReplay(await place(sale, 'a', { key: 'k' }), first);
    expect(await allOrders(server, sale)).toHaveLength(1);
  });

  it('the same key of another buyer, or in another sale, is another key', async () => {
    const [one, two] = [await createSale(server), await createSale(server)];
    const answers = [
      await place(one, 'a', { key: 'shared' }),
      await place(one, 'b', { key: 'shared', quantity: 1 }),
      await place(two, 'a', { key: 'shared' }),
      // Case counts.
      await place(two, 'b', { key: 'Shared' }),
    ];
    expect(answers.map((answer) => [answer.status, replayed(answer)])).toEqual(answers.map(() => [201, null]));
    expect(new Set(answers.map(({ body }) => body.id)).size).toBe(4);
  });

  it('is the buyer’s own, or that of the shop’s own backend that acts for the buyer', async () => {
    const sale = await createSale(server, { perBuyer: 2 });
    const first = await place(sale, 'a', { key: 'k' });
    const through = { bearer: ADMIN_KEY, headers: { 'doorbuster-buyer': 'a' }, key: 'k' };
    const second = await place(sale, '', through);
    expect([second.status, replayed(second)]).toEqual([201, null]);
    expectReplay(await place(sale, '', through), second);
    expectReplay(await place(sale, 'a', { key: 'k' }), first);
  });

  it('the key of a refused order is not kept', async () => {
    const sale = await createSale(server, { stock: 0, perBuyer: 5 });
    expectProblem(await place(sale, 'a', { key: 'k', quantity: 3 }), 409, 'sold_out');
    await admin('POST', `/v1/sales/${sale}/items/voucher/stock`, { body: { add: 2 } });
    const first = await place(sale, 'a', { key: 'k', quantity: 2 });
    expect([first.status, replayed(first)]).toEqual([201, null]);
    expectReplay(await place(sale, 'a', { key: 'k', quantity: 2 }), first);
    await admin('POST', `/v1/sales/${sale}/pause`);
    expectProblem(await place(sale, 'b', { key: 'p' }), 409, 'sale_paused');
    await admin('POST', `/v1/sales/${sale}/resume`);
    await admin('POST', `/v1/sales/${sale}/items/voucher/stock`, { body: { add: 1 } });
    expect((await place(sale, 'b', { key: 'p' })).status).toBe(201);
  });

  it('concurrent repeats buy once, and all get that order', async () => {
    const sale = await createSale(server, { stock: 100, perBuyer: 100 });
    const answers = await Promise.all(Array.from({ length: 40 }, () => place(sale, 'a', { key: 'double-click' })));
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 201));
    expect(answers.filter((answer) => replayed(answer) === null)).toHaveLength(1);
    for (const { body } of answers) expect(body).toEqual(answers[0]!.body);
    expect(await allOrders(server, sale)).toHaveLength(1);
  });

  it('concurrent tries with one key and different bodies buy once', async () => {
    const sale = await createSale(server, { stock: 100, perBuyer: 100 });
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) => place(sale, 'a', { key: 'k', quantity: 1 + (index % 4) })),
    );
    const won = answers.filter(({ status }) => status === 201);
    expect(new Set(won.map(({ body }) => body.id)).size).toBe(1);
    for (const answer of answers) if (answer.status !== 201) expectProblem(answer, 422, 'idempotency_key_reused');
    expect(await allOrders(server, sale)).toHaveLength(1);
  });

  it('without a key each try is an order', async () => {
    const sale = await createSale(server, { stock: 10, perBuyer: 2 });
    const ids = [(await place(sale, 'a')).body.id, (await place(sale, 'a')).body.id];
    expect(new Set(ids).size).toBe(2);
  });
});

describe('lists', () => {
  let sale: string;
  let other: string;
  const mine: string[] = [];
  beforeAll(async () => {
    sale = await createSale(server, { stock: 100, perBuyer: 100 });
    other = await createSale(server, { stock: 100, perBuyer: 100 });
    for (let count = 0; count < 7; count++) {
      mine.unshift((await place(count % 3 === 0 ? other : sale, 'lister')).body.id);
    }
    await place(sale, 'somebody');
  });
  const ids = ({ body }: Answer) => body.data.map(({ id }: { id: string }) => id);

  it('a buyer sees their own, newest first, in pages', async () => {
    const all = await server.call('GET', '/v1/orders', { buyer: 'lister' });
    expect([ids(all), all.body.nextCursor]).toEqual([mine, null]);
    const walked: string[] = [];
    let cursor: string | null = null;
    let pages = 0;
    do {
      const page: Answer = await server.call('GET', `/v1/orders?limit=3${cursor ? `&cursor=${cursor}` : ''}`, {
        buyer: 'lister',
      });
      walked.push(...ids(page));
      cursor = page.body.nextCursor;
      pages++;
    } while (cursor !== null);
    expect([walked, pages]).toEqual([mine, 3]);
    const exactly = await server.call('GET', '/v1/orders?limit=7', { buyer: 'lister' });
    expect(exactly.body.nextCursor).toBeNull();
    expect(ids(await server.call('GET', '/v1/orders?buyer=lister', { buyer: 'lister' }))).toEqual(mine);
    expectProblem(await server.call('GET', '/v1/orders?buyer=somebody', { buyer: 'lister' }), 403, 'forbidden');
  });

  it('filters by sale, status and, for an admin, buyer', async () => {
    const ofSale = (saleId: string) => mine.filter((_, index) => ((6 - index) % 3 === 0) === (saleId === other));
    for (const saleId of [sale, other]) {
      expect(ids(await server.call('GET', `/v1/orders?saleId=${saleId}`, { buyer: 'lister' }))).toEqual(ofSale(saleId));
      expect(ids(await admin('GET', `/v1/orders?saleId=${saleId}&buyer=lister`))).toEqual(ofSale(saleId));
    }
    expect(ids(await admin('GET', `/v1/orders?saleId=${sale}`))).toHaveLength(5);
    expect(ids(await admin('GET', '/v1/orders?buyer=lister&status=reserved'))).toEqual(mine);
    for (const status of ['queued', 'paid', 'cancelled', 'expired', 'rejected', 'refunded']) {
      expect(ids(await admin('GET', `/v1/orders?saleId=${sale}&status=${status}`))).toEqual([]);
    }
    expect(ids(await admin('GET', '/v1/orders?saleId=1'))).toEqual([]);
    const everything = await admin('GET', '/v1/orders?limit=200');
    expect(ids(everything)).toEqual(expect.arrayContaining(mine));
    const sorted = [...ids(everything)].sort((a: string, b: string) => (BigInt(a) < BigInt(b) ? 1 : -1));
    expect(ids(everything)).toEqual(sorted);
  });

  it('for an admin in pages too, and 50 if nothing is said', async () => {
    const big = await createSale(server, { stock: 60, perBuyer: 1 });
    await Promise.all(Array.from({ length: 60 }, (_, index) => place(big, `page${index}`)));
    const first = await admin('GET', `/v1/orders?saleId=${big}`);
    expect(first.body.data).toHaveLength(50);
    const rest = await admin('GET', `/v1/orders?saleId=${big}&cursor=${first.body.nextCursor}`);
    expect([rest.body.data.length, rest.body.nextCursor]).toEqual([10, null]);
    expect(new Set([...ids(first), ...ids(rest)]).size).toBe(60);
  });

  it('as CSV: RFC 4180, a page with its cursor in a header, and no formula for a spreadsheet', async () => {
    const csv = (path: string, options: CallOptions) =>
      server.call('GET', path, { ...options, headers: { accept: 'text/csv' } });
    const page = await csv('/v1/orders?limit=3', { buyer: 'lister' });
    expect(page.headers.get('content-type')).toMatch(/^text\/csv/);
    const lines = page.body.split('\r\n');
    expect(lines[0]).toBe(
      'id,saleId,buyer,item,quantity,seats,amount,currency,status,reason,expiresAt,createdAt,updatedAt,version,' +
        'paymentState,paymentProvider,paymentReference,refunded,saleName,itemName,startsAt,venue',
    );
    expect(lines.slice(1, -1).map((line: string) => line.split(',')[0])).toEqual(mine.slice(0, 3));
    expect(lines.at(-1)).toBe('');
    expect(page.headers.get('doorbuster-next-cursor')).toBe(mine[2]);
    const { body: json } = await server.call('GET', `/v1/orders/${mine[0]}`, { buyer: 'lister' });
    expect(lines[1]).toBe(
      `${json.id},${json.saleId},lister,voucher,1,,8000,CNY,reserved,,${json.expiresAt},${json.createdAt},${json.updatedAt},1,,,,,Vouchers,100 off,,`,
    );
    const last = await csv(`/v1/orders?cursor=${mine[5]}`, { buyer: 'lister' });
    expect([last.body.split('\r\n').length, last.headers.get('doorbuster-next-cursor')]).toEqual([3, null]);
    for (const [buyer, written] of [
      ['=cmd()', "'=cmd()"],
      ['a,b', '"a,b"'],
      ['say "hi"', '"say ""hi"""'],
      ['+1', "'+1"],
      ['-1', "'-1"],
      ['@x', "'@x"],
      ['＝cmd()', "'＝cmd()"],
      ['＋1', "'＋1"],
      ['－1', "'－1"],
      ['＠x', "'＠x"],
      ['a;=b', '"a;=b"'],
    ] as const) {
      await place(sale, buyer);
      const { body } = await csv('/v1/orders', { buyer });
      expect(body.split('\r\n')[1]).toContain(`,${sale},${written},voucher,`);
    }
    expect((await csv(`/v1/orders?saleId=${sale}`, { admin: true })).body).toContain('"say ""hi"""');
    expectProblem(await csv('/v1/orders?limit=0', { admin: true }), 422, 'invalid_request');
    // Accountants compare by the reference, which is a text of the provider or of the shop.
    const taken = { reference: '=till "7"', amount: { amount: 8000, currency: 'CNY' } };
    const { status } = await server.call('POST', `/v1/orders/${mine[0]}/confirm`, { admin: true, body: taken });
    expect(status).toBe(200);
    const paid = (await csv('/v1/orders?limit=1', { buyer: 'lister' })).body.split('\r\n')[1];
    expect(paid).toMatch(/,paid,.*,2,captured,confirm,"'=till ""7""",,Vouchers,100 off,,$/);
    const part = { amount: { amount: 3000, currency: 'CNY' } };
    const refund = await server.call('POST', `/v1/orders/${mine[0]}/refund`, { admin: true, body: part });
    expect(refund.status).toBe(200);
    const partly = (await csv('/v1/orders?limit=1', { buyer: 'lister' })).body.split('\r\n')[1];
    expect(partly).toMatch(/,paid,.*,3000,Vouchers,100 off,,$/);
  });

  it('as CSV only if the client prefers it', async () => {
    const preferred = { accept: 'application/json, text/csv;q=0.1' };
    const asked = await server.call('GET', '/v1/orders?limit=1', { buyer: 'lister', headers: preferred });
    expect(asked.headers.get('content-type')).toMatch(/^application\/json/);
  });
});

describe('events', () => {
  const follow = (id: string, bearer: string, headers: Record<string, string> = {}) =>
    openStream(`${server.url}/v1/orders/${id}/events`, { authorization: `Bearer ${bearer}`, ...headers });

  it('begins with the order as it is, for its owner and for admins', async () => {
    const sale = await createSale(server);
    const { body: order } = await place(sale, 'follower');
    for (const bearer of [token('follower'), ADMIN_KEY]) {
      const events = await follow(order.id, bearer);
      expect(events.headers.get('content-type')).toMatch(/^text\/event-stream/);
      expect(await events.until(() => true)).toEqual({ event: 'order', id: '1', data: order });
      expect(events.comments.length).toBeGreaterThan(0);
      events.close();
    }
  });

  it('Last-Event-ID of this version gives nothing again; an id that cannot be served gives the order', async () => {
    const sale = await createSale(server);
    const { body: order } = await place(sale, 'follower');
    const known = await follow(order.id, token('follower'), { 'last-event-id': '1' });
    await expect.poll(() => known.comments.length).toBeGreaterThan(0);
    expect(known.events).toEqual([]);
    known.close();
    for (const id of ['0', 'nonsense', '-1', '999', 'Infinity']) {
      const again = await follow(order.id, token('follower'), { 'last-event-id': id });
      expect([id, (await again.until(() => true, 1000)).data]).toEqual([id, order]);
      again.close();
    }
  });
});

it('P3, P5: after a restart on the same folder the orders and their keys are there', async () => {
  const open = await createSale(server, { stock: 10, perBuyer: 10 });
  const soldOut = await createSale(server, { stock: 1 });
  const closed = await createSale(server, { stock: 10 });
  const firsts = new Map<string, Answer>();
  for (const sale of [open, soldOut, closed]) firsts.set(sale, await place(sale, 'r', { key: 'restart' }));
  await admin('POST', `/v1/sales/${closed}/close`);
  const before = await Promise.all([...firsts.keys()].map((sale) => allOrders(server, sale)));

  expect(await server.stop()).toBe(0);
  server = await startServer({ data: server.data, env: CALM });

  expect(await Promise.all([...firsts.keys()].map((sale) => allOrders(server, sale)))).toEqual(before);
  for (const [sale, first] of firsts) {
    expectReplay(await place(sale, 'r', { key: 'restart' }), first);
    expectProblem(await place(sale, 'r', { key: 'restart', quantity: 2 }), 422, 'idempotency_key_reused');
    expect((await server.call('GET', `/v1/orders/${first.body.id}`, { buyer: 'r' })).body).toEqual(first.body);
  }
  expectProblem(await place(soldOut, 'x'), 409, 'sold_out');
  expectProblem(await place(soldOut, 'r'), 409, 'limit_reached');
  expectProblem(await place(closed, 'x', { key: 'restart' }), 409, 'sale_closed');
  const next = await place(open, 'r', { key: 'next' });
  expect(next.status).toBe(201);
  expect(BigInt(next.body.id)).toBeGreaterThan(BigInt(firsts.get(closed)!.body.id));
  expect(await server.stop()).toBe(0);
});
