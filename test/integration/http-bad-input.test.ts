import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type HeldShop, startHeldShop } from '../support/held-shop.ts';
import {
  CALM,
  expectProblem,
  type ForgeOptions,
  forge,
  SECURE_HEADERS,
  sendRaw,
  sleepMs,
} from '../support/openapi-wire.ts';
import {
  ADMIN_KEY,
  type Answer,
  AUTH_SECRET,
  allOrders,
  type CallOptions,
  cleanUp,
  createSale,
  saleBody,
  startServer,
  type TestServer,
  token,
} from '../support/server.ts';

/**
 * Bad input: each bound of the contract and one beyond it gets the status and code of docs/reference/errors.md, and changes nothing.
 * One server for all tests, with every secret it can have and its log at `debug`, which is searched at the end.
 */
const OLD_SECRET = 'the-old-secret-that-is-being-rotated-out';
const BOB_KEY = 'the-other-admin-key-of-bob';

let server: TestServer;
/** An open sale with an order of alice in it. */
let sale: string;
let order: string;

beforeAll(async () => {
  server = await startServer({
    env: {
      ...CALM,
      LOG_LEVEL: 'debug',
      TRUST_PROXY: 'on',
      DOORBUSTER_ADMIN_KEY: `alice:${ADMIN_KEY},bob:${BOB_KEY}`,
      DOORBUSTER_AUTH_SECRET: `${AUTH_SECRET},${OLD_SECRET}`,
    },
  });
  sale = await createSale(server, { stock: 1000, perBuyer: 100 });
  order = (await orderOf('alice', { item: 'voucher' })).body.id;
});
afterAll(cleanUp);

function orderOf(buyer: string, body: unknown, options: CallOptions = {}): Promise<Answer> {
  return server.call('POST', `/v1/sales/${sale}/orders`, { buyer, body, ...options });
}

function newSale(body: unknown, options: CallOptions = {}): Promise<Answer> {
  return server.call('POST', '/v1/sales', { admin: true, body, ...options });
}

let unusedCursor = 2n ** 63n - 1n;

/** Everything that a caller could change: every sale with its counts and versions, and every order. */
async function everything(of: Pick<TestServer, 'call'> = server): Promise<unknown> {
  // A page that was never requested is read now; others may be half a second old.
  const sales = await of.call('GET', `/v1/sales?limit=200&cursor=${unusedCursor--}`);
  const orders = await of.call('GET', '/v1/orders?limit=200', { admin: true });
  expect([sales.status, orders.status]).toEqual([200, 200]);
  return { sales: sales.body, orders: orders.body };
}

async function nothingChanges<T>(run: () => Promise<T>): Promise<T> {
  const before = await everything();
  const result = await run();
  expect(await everything()).toEqual(before);
  return result;
}

function refused(status: number, code: string, call: () => Promise<Answer>): Promise<Answer> {
  return nothingChanges(async () => {
    const answer = await call();
    expectProblem(answer, status, code);
    return answer;
  });
}

/** The body of a good sale with one thing replaced: `with('items.0.stock', -1)`. */
function saleWith(path: string, value: unknown): unknown {
  const body = structuredClone(saleBody());
  const steps = path.split('.');
  const last = steps.pop()!;
  // biome-ignore lint/suspicious/noExplicitAny: it walks whatever is there
  const parent = steps.reduce<any>((at, step) => at[step], body);
  if (value === undefined) delete parent[last];
  else parent[last] = value;
  return body;
}

const item = (code: string) => ({ code, name: 'One', price: { amount: 1, currency: 'CNY' }, stock: 1 });
const items = (count: number) => Array.from({ length: count }, (_, index) => item(`i${index}`));

describe('a sale: bounds that hold', () => {
  it.each<[string, string, unknown]>([
    ['a name of 1 character', 'name', 'x'],
    ['a name of 200 characters', 'name', 'x'.repeat(200)],
    ['a name of 200 characters outside the BMP', 'name', '🎟'.repeat(200)],
    ['a code of 1 character', 'items.0.code', 'a'],
    ['a code of 64 characters', 'items.0.code', 'z'.repeat(64)],
    ['a code of every kind of character', 'items.0.code', 'az09._-'],
    ['200 items', 'items', items(200)],
    ['no stock', 'items.0.stock', 0],
    ['a stock of 1 000 000', 'items.0.stock', 1_000_000],
    ['perBuyer 1', 'perBuyer', 1],
    ['perBuyer 100', 'perBuyer', 100],
    ['payWithin 1', 'payWithin', 1],
    ['payWithin 86 400', 'payWithin', 86_400],
    ['an amount of 0', 'items.0.price.amount', 0],
    ['an amount of 10^12', 'items.0.price.amount', 10 ** 12],
    ['a window of one millisecond', 'closesAt', '2020-01-01T00:00:00.001Z'],
    ['a time with an offset', 'closesAt', '2099-01-01T08:00:00+08:00'],
  ])('%s', async (_, path, value) => {
    const answer = await newSale(saleWith(path, value));
    expect([answer.status, answer.body.code]).toEqual([201, undefined]);
    const read = await server.call('GET', `/v1/sales/${answer.body.id}`);
    expect(read.body).toEqual(answer.body);
    if (path === 'items') expect(read.body.items).toHaveLength(200);
    else if (path === 'items.0.stock') expect(read.body.items[0]).toMatchObject({ total: value, free: value });
    else if (path === 'closesAt') expect(Date.parse(read.body.closesAt)).toBe(Date.parse(value as string));
    else expect(path.split('.').reduce((at, step) => at[step], read.body)).toBe(value);
  });

  it('perBuyer is 1 and payWithin 900 if left out', async () => {
    const { perBuyer: _, ...body } = saleBody();
    expect((await newSale(body)).body).toMatchObject({ perBuyer: 1, payWithin: 900 });
  });
});

describe('a sale: one beyond a bound is 422 and creates nothing', () => {
  const gone = undefined;
  it.each<[string, string, unknown]>([
    ['no name', 'name', gone],
    ['an empty name', 'name', ''],
    ['a name of 201 characters', 'name', 'x'.repeat(201)],
    ['a name of 201 characters outside the BMP', 'name', '🎟'.repeat(201)],
    ['a name that is a number', 'name', 7],
    ['a name that is null', 'name', null],
    ['a name with a NUL', 'name', 'a\u0000b'],
    ['a name with a line feed', 'name', 'a\nb'],
    ['a name with DEL', 'name', 'a\u007fb'],
    ['a name with a C1 control', 'name', 'a\u0085b'],
    ['a name with a lone surrogate', 'name', 'a\ud800'],
    ['a name that begins with a blank', 'name', ' a'],
    ['a name that ends with a no-break space', 'name', 'a\u00a0'],
    ['an empty code', 'items.0.code', ''],
    ['a code of 65 characters', 'items.0.code', 'z'.repeat(65)],
    ['a code with a capital', 'items.0.code', 'Voucher'],
    ['a code with a blank', 'items.0.code', 'a b'],
    ['a code with a slash', 'items.0.code', 'a/b'],
    ['a code that ends with a line feed', 'items.0.code', 'a\n'],
    ['a code outside ASCII', 'items.0.code', 'é'],
    ['no code', 'items.0.code', gone],
    ['an item without a name', 'items.0.name', gone],
    ['an item with a name of 201 characters', 'items.0.name', 'x'.repeat(201)],
    ['no items', 'items', gone],
    ['0 items', 'items', []],
    ['201 items', 'items', items(201)],
    ['items that are an object', 'items', { 0: item('a') }],
    ['an item that is null', 'items', [null]],
    ['two items with one code', 'items', [item('a'), item('b'), item('a')]],
    ['a negative stock', 'items.0.stock', -1],
    ['a stock of 1 000 001', 'items.0.stock', 1_000_001],
    ['a stock of 2^53', 'items.0.stock', 2 ** 53],
    ['a fractional stock', 'items.0.stock', 1.5],
    ['a stock that is text', 'items.0.stock', '1'],
    ['a stock that is true', 'items.0.stock', true],
    ['no stock', 'items.0.stock', gone],
    ['perBuyer 0', 'perBuyer', 0],
    ['perBuyer 101', 'perBuyer', 101],
    ['perBuyer -1', 'perBuyer', -1],
    ['perBuyer 1.5', 'perBuyer', 1.5],
    ['perBuyer that is text', 'perBuyer', '1'],
    ['perBuyer that is null', 'perBuyer', null],
    ['payWithin 0', 'payWithin', 0],
    ['payWithin 86 401', 'payWithin', 86_401],
    ['payWithin 0.5', 'payWithin', 0.5],
    ['an amount of -1', 'items.0.price.amount', -1],
    ['an amount of 10^12 + 1', 'items.0.price.amount', 10 ** 12 + 1],
    ['a fractional amount', 'items.0.price.amount', 0.5],
    ['an amount of 10^308', 'items.0.price.amount', 1e308],
    ['an amount that is text', 'items.0.price.amount', '1'],
    ['a currency in small letters', 'items.0.price.currency', 'cny'],
    ['a currency of four letters', 'items.0.price.currency', 'CNYY'],
    ['no currency', 'items.0.price.currency', gone],
    ['a price that is a number', 'items.0.price', 8000],
    ['no opensAt', 'opensAt', gone],
    ['opensAt that is nonsense', 'opensAt', 'tomorrow'],
    ['opensAt that is empty', 'opensAt', ''],
    ['opensAt that is a number', 'opensAt', 1_577_836_800_000],
    ['opensAt that is a day only', 'opensAt', '2020-01-01'],
    ['opensAt without a zone', 'opensAt', '2020-01-01T00:00:00'],
    ['a month 13', 'opensAt', '2020-13-01T00:00:00.000Z'],
    ['the 30th of February', 'opensAt', '2020-02-30T00:00:00.000Z'],
    ['an hour 25', 'opensAt', '2020-01-01T25:00:00.000Z'],
    ['a leap second', 'opensAt', '2016-12-31T23:59:60Z'],
    ['closesAt equal to opensAt', 'closesAt', '2020-01-01T00:00:00.000Z'],
    ['closesAt equal to opensAt, in another zone', 'closesAt', '2020-01-01T01:00:00.000+01:00'],
    ['closesAt before opensAt', 'closesAt', '2019-12-31T23:59:59.999Z'],
    ['closesAt that is null', 'closesAt', null],
    // Times of the contract have years of four digits: an answer could not contain the year 10000.
    ['a time whose year in UTC is 10000', 'closesAt', '9999-12-31T23:59:59-23:59'],
    ['a time whose year in UTC is before 0', 'opensAt', '0000-01-01T00:00:00+23:59'],
    ['an unknown field', 'colour', 'red'],
    ['a field the server gives', 'id', '1'],
    ['an unknown field of an item', 'items.0.colour', 'red'],
    ['seats beside the stock', 'items.0.seats', [{ section: 'A', row: 'B', from: 1, to: 2 }]],
    ['an unknown field of a price', 'items.0.price.tax', 1],
  ])('%s', async (_, path, value) => {
    await refused(422, 'invalid_request', () => newSale(saleWith(path, value)));
  });

  it.each(['[]', 'null', 'true', '7', '"sale"', '{}'])('a body that is %s', async (raw) => {
    await refused(422, 'invalid_request', () => newSale(undefined, { raw }));
  });

  it('a number beyond a double', async () => {
    const raw = JSON.stringify(saleBody()).replace('"stock":100', '"stock":1e400');
    await refused(422, 'invalid_request', () => newSale(undefined, { raw }));
  });

  it('says where: a JSON pointer for each fault, and not thousands of them', async () => {
    const { body } = await refused(422, 'invalid_request', () =>
      newSale({ ...(saleWith('items.0.stock', -1) as object), colour: 'red' }),
    );
    expect(body.errors.map(({ path }: { path: string }) => path).sort()).toEqual(['/colour', '/items/0/stock']);
    const many = Object.fromEntries(Array.from({ length: 5000 }, (_, index) => [`f${index}`, 1]));
    const all = await refused(422, 'invalid_request', () => newSale({ ...saleBody(), ...many }));
    expect(all.body.errors.length).toBeLessThanOrEqual(50);
  });
});

describe('an order: the bounds', () => {
  it('takes 1 and 100 units, and 1 if nothing is said', async () => {
    expect((await orderOf('q1', { item: 'voucher', quantity: 1 })).body).toMatchObject({ quantity: 1 });
    expect((await orderOf('q100', { item: 'voucher', quantity: 100 })).body).toMatchObject({ quantity: 100 });
    expect((await orderOf('q', { item: 'voucher' })).body).toMatchObject({ quantity: 1 });
  });

  it.each<[string, unknown]>([
    ['quantity 0', { item: 'voucher', quantity: 0 }],
    ['quantity 101', { item: 'voucher', quantity: 101 }],
    ['quantity -1', { item: 'voucher', quantity: -1 }],
    ['quantity 1.5', { item: 'voucher', quantity: 1.5 }],
    ['quantity 2^63', { item: 'voucher', quantity: 2 ** 63 }],
    ['quantity as text', { item: 'voucher', quantity: '1' }],
    ['quantity null', { item: 'voucher', quantity: null }],
    ['no item', { quantity: 1 }],
    ['an item that is a number', { item: 7 }],
    ['an empty item', { item: '' }],
    ['an item of 65 characters', { item: 'v'.repeat(65) }],
    ['an item with a blank around it', { item: ' voucher' }],
    ['an item in capitals', { item: 'VOUCHER' }],
    ['an item with a line feed after it', { item: 'voucher\n' }],
    ['an unknown field', { item: 'voucher', colour: 'red' }],
    ['a buyer in the body', { item: 'voucher', buyer: 'bob' }],
    ['a seat that is not a text', { seats: [1] }],
    ['an empty object', {}],
    ['an array', [{ item: 'voucher' }]],
    ['null', null],
  ])('%s: 422', async (_, body) => {
    await refused(422, 'invalid_request', () => orderOf('eve', body));
  });

  it('an unknown item or sale: 404', async () => {
    await refused(404, 'not_found', () => orderOf('eve', { item: 'nope' }));
  });

  it.each(['1', '0', '-1', 'abc', 'NaN', '1e3', '%20', '9223372036854775807', '9223372036854775808', '9'.repeat(30)])(
    'the sale %s: 404',
    async (id) => {
      await refused(404, 'not_found', () =>
        server.call('POST', `/v1/sales/${id}/orders`, { buyer: 'eve', body: { item: 'voucher' } }),
      );
      await refused(404, 'not_found', () =>
        server.call('POST', `/v1/sales/${id}/orders`, { buyer: 'eve', body: { item: 'voucher' }, key: 'k' }),
      );
      expectProblem(await server.call('GET', `/v1/sales/${id}`), 404, 'not_found');
      expectProblem(await server.call('GET', `/v1/sales/${id}/events`), 404, 'not_found');
    },
  );

  it('the sale with a zero before its id: 404', async () => {
    await refused(404, 'not_found', () =>
      server.call('POST', `/v1/sales/0${sale}/orders`, { buyer: 'eve', body: { item: 'voucher' } }),
    );
    expectProblem(await server.call('GET', `/v1/sales/0${sale}`), 404, 'not_found');
  });

  it('if several apply, the first counts: the body, then the sale, then the key, then the window', async () => {
    const key = 'first-things-first';
    expect((await orderOf('carol', { item: 'voucher' }, { key })).status).toBe(201);
    const unknown = '/v1/sales/1/orders';
    await refused(422, 'invalid_request', () => server.call('POST', unknown, { buyer: 'carol', key, body: {} }));
    await refused(404, 'not_found', () =>
      server.call('POST', unknown, { buyer: 'carol', key, body: { item: 'voucher' } }),
    );
    await refused(404, 'not_found', () => orderOf('carol', { item: 'nope' }, { key }));
    await refused(422, 'idempotency_key_reused', () => orderOf('carol', { item: 'voucher', quantity: 100 }, { key }));
  });
});

describe('stock, patch, pause', () => {
  const stock = (body: unknown, options: CallOptions = {}) =>
    server.call('POST', `/v1/sales/${sale}/items/voucher/stock`, { admin: true, body, ...options });
  const patch = (body: unknown) => server.call('PATCH', `/v1/sales/${sale}`, { admin: true, body });

  it.each<[string, unknown]>([
    ['no add', {}],
    ['add 1 000 001', { add: 1_000_001 }],
    ['add -1 000 001', { add: -1_000_001 }],
    ['add 0.5', { add: 0.5 }],
    ['add as text', { add: '5' }],
    ['add that lifts the total above 1 000 000', { add: 999_001 }],
    ['an unknown field', { add: 1, why: 'more' }],
  ])('stock: %s is 422', async (_, body) => {
    await refused(422, 'invalid_request', () => stock(body));
  });

  it('stock: an unknown item or sale is 404', async () => {
    const body = { add: 1 };
    for (const path of [`${sale}/items/nope`, `${sale}/items/VOUCHER`, '1/items/voucher', 'x/items/voucher']) {
      await refused(404, 'not_found', () => server.call('POST', `/v1/sales/${path}/stock`, { admin: true, body }));
    }
  });

  it.each<[string, unknown]>([
    ['no version', { name: 'x' }],
    ['version 0', { version: 0 }],
    ['version as text', { version: '1' }],
    ['an empty name', { version: 1, name: '' }],
    ['perBuyer 0', { version: 1, perBuyer: 0 }],
    ['perBuyer 101', { version: 1, perBuyer: 101 }],
    ['payWithin 86 401', { version: 1, payWithin: 86_401 }],
    ['a leap second', { version: 1, opensAt: '2016-12-31T23:59:60Z' }],
    ['opensAt after the closesAt it has', { version: 1, opensAt: '2099-06-01T00:00:00.000Z' }],
    ['closesAt equal to the opensAt it has', { version: 1, closesAt: '2020-01-01T00:00:00.000Z' }],
    ['items', { version: 1, items: [] }],
    ['the state', { version: 1, state: 'closed' }],
    ['an unknown field', { version: 1, colour: 'red' }],
  ])('patch: %s is 422', async (_, body) => {
    await refused(422, 'invalid_request', () => patch(body));
  });

  it('pause takes no body, an empty body and {}', async () => {
    const path = (verb: string) => `/v1/sales/${sale}/${verb}`;
    expect((await server.call('POST', path('pause'), { admin: true })).body.state).toBe('paused');
    expect((await server.call('POST', path('resume'), { admin: true, raw: '' })).body.state).toBe('open');
    expect((await server.call('POST', path('pause'), { admin: true, body: {} })).body.state).toBe('paused');
    expect((await server.call('POST', path('resume'), { admin: true, raw: '  {\n}  ' })).body.state).toBe('open');
    await refused(400, 'malformed_json', () => server.call('POST', path('pause'), { admin: true, raw: '{' }));
    await refused(404, 'not_found', () => server.call('POST', '/v1/sales/1/pause', { admin: true }));
  });

  it.each(['{"why":"lunch"}', '[]', '"now"', '0', 'false', 'null'])('pause with %s is 422', async (raw) => {
    const other = await createSale(server);
    await refused(422, 'invalid_request', () => server.call('POST', `/v1/sales/${other}/pause`, { admin: true, raw }));
  });
});

describe('Idempotency-Key', () => {
  it('255 printable characters are a key', async () => {
    const key = `!${' '.repeat(253)}~`;
    const first = await orderOf('kay', { item: 'voucher' }, { key });
    const again = await orderOf('kay', { item: 'voucher' }, { key });
    expect([first.status, again.status, again.body.id]).toEqual([201, 201, first.body.id]);
    expect(again.headers.get('idempotent-replayed')).toBe('true');
  });

  it.each<[string, string]>([
    ['of 256 characters', 'k'.repeat(256)],
    ['that is empty', ''],
    ['of blanks', '   '],
    ['with a tab', 'a\tb'],
    ['outside ASCII', 'ké'],
  ])('%s: 422, on an order and on an administrative call', async (_, key) => {
    await refused(422, 'invalid_request', () => orderOf('kay', { item: 'voucher' }, { key }));
    await refused(422, 'invalid_request', () => newSale(saleBody(), { key }));
    await refused(422, 'invalid_request', () =>
      server.call('POST', `/v1/sales/${sale}/pause`, { admin: true, headers: { 'idempotency-key': key } }),
    );
  });

  it.each(['\u0001', '\u0000', '\u007f', '\u001b'])('with the control character %j: refused', async (control) => {
    const before = await everything();
    const answer = await sendRaw(
      server.url,
      [
        `POST /v1/sales/${sale}/orders HTTP/1.1`,
        'host: x',
        'connection: close',
        `authorization: Bearer ${token('kay')}`,
        `idempotency-key: a${control}b`,
        'content-type: application/json',
        'content-length: 18',
        '',
        '{"item":"voucher"}',
      ].join('\r\n'),
    );
    // Node's parser refuses most of them before there is a request.
    if (answer.status === 400) expectProblem(answer, 400, 'malformed_json');
    else expectProblem(answer, 422, 'invalid_request');
    expect(await everything()).toEqual(before);
  });
});

describe('lists', () => {
  it('limit 1 and 200 are good', async () => {
    for (const path of ['/v1/sales', '/v1/orders']) {
      expect((await server.call('GET', `${path}?limit=1`, { admin: true })).body.data).toHaveLength(1);
      expect((await server.call('GET', `${path}?limit=200`, { admin: true })).status).toBe(200);
    }
  });

  const bad = [
    ...['limit=0', 'limit=201', 'limit=-1', 'limit=abc', 'limit=1.5', 'limit=', 'limit=1e2', 'limit=999999999999'],
    ...['cursor=abc', 'cursor=', 'cursor=0', 'cursor=-1', 'cursor=1.5', 'cursor=9223372036854775808', 'cursor=%00'],
    ...['limit=1&limit=2', 'colour=red', '__proto__=1', 'limit[]=1'],
  ];
  it.each(bad)('?%s is 422', async (query) => {
    await refused(422, 'invalid_request', () => server.call('GET', `/v1/sales?${query}`));
    await refused(422, 'invalid_request', () => server.call('GET', `/v1/orders?${query}`, { admin: true }));
    await refused(422, 'invalid_request', () => server.call('GET', `/v1/orders?${query}`, { buyer: 'alice' }));
  });

  it.each(['status=open', 'status=', 'saleId=abc', 'saleId=', `buyer=${'x'.repeat(129)}`, 'buyer=', 'buyer=%20a'])(
    'of orders: ?%s is 422',
    async (query) => {
      await refused(422, 'invalid_request', () => server.call('GET', `/v1/orders?${query}`, { admin: true }));
    },
  );

  it('an unknown query is 422 on a single thing too', async () => {
    for (const path of [`/v1/sales/${sale}`, `/v1/orders/${order}`, '/v1/time', `/v1/sales/${sale}/events`]) {
      await refused(422, 'invalid_request', () => server.call('GET', `${path}?colour=red`, { admin: true }));
    }
  });
});

describe('the body as bytes', () => {
  const KIB = 1024;
  const padded = (body: unknown, bytes: number): string => {
    const text = JSON.stringify(body);
    return text.slice(0, -1) + ' '.repeat(bytes - Buffer.byteLength(text)) + text.slice(-1);
  };
  /** Chunked: the server cannot know the size beforehand. */
  const chunked = (path: string, bearer: string, body: string | Buffer) => {
    const head = `POST ${path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer ${bearer}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n`;
    const size = Buffer.byteLength(body).toString(16);
    return sendRaw(
      server.url,
      Buffer.concat([Buffer.from(`${head}${size}\r\n`), Buffer.from(body), Buffer.from('\r\n0\r\n\r\n')]),
    );
  };

  it.each([
    ['truncated', '{"item":"vou'],
    ['cut after the value', '{"item":"voucher"'],
    ['with a comma too many', '{"item":"voucher",}'],
    ['in single quotes', "{'item':'voucher'}"],
    ['followed by more', '{"item":"voucher"} {}'],
    ['that is a word', 'voucher'],
    ['of blanks', '   '],
    ['with __proto__', '{"item":"voucher","__proto__":{"admin":true}}'],
    ['with __proto__ written as escapes', '{"item":"voucher","\\u005f_proto__":{"admin":true}}'],
    ['with constructor.prototype', '{"item":"voucher","constructor":{"prototype":{"admin":true}}}'],
    ['with NaN', '{"item":"voucher","quantity":NaN}'],
  ])('JSON %s: 400', async (_, raw) => {
    await refused(400, 'malformed_json', () => orderOf('eve', undefined, { raw }));
    await refused(400, 'malformed_json', () => newSale(undefined, { raw }));
  });

  it('bytes that are not UTF-8: 400, and not silently another name', async () => {
    const text = JSON.stringify(saleBody());
    const bytes = Buffer.from(text.replace('Vouchers', 'Vou\u0001hers'));
    bytes[bytes.indexOf(1)] = 0xff;
    await refused(400, 'malformed_json', () => newSale(undefined, { raw: bytes }));
    await refused(400, 'malformed_json', () => chunked('/v1/sales', ADMIN_KEY, bytes));
  });

  it('no body where one is needed: 422', async () => {
    await refused(422, 'invalid_request', () => orderOf('eve', undefined));
    await refused(422, 'invalid_request', () => orderOf('eve', undefined, { raw: '' }));
    await refused(422, 'invalid_request', () => newSale(undefined));
    await refused(422, 'invalid_request', () => server.call('PATCH', `/v1/sales/${sale}`, { admin: true }));
  });

  it.each(['text/plain', 'application/x-www-form-urlencoded', 'application/xml', 'nonsense', 'application/jsonp'])(
    'content type %s: 415',
    async (type) => {
      const headers = { 'content-type': type };
      await refused(415, 'unsupported_media_type', () => orderOf('eve', { item: 'voucher' }, { headers }));
      await refused(415, 'unsupported_media_type', () => newSale(saleBody(), { headers }));
    },
  );

  it('a body without a content type: 415; JSON with a charset is JSON', async () => {
    await refused(415, 'unsupported_media_type', () =>
      sendRaw(
        server.url,
        `POST /v1/sales/${sale}/orders HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer ${token('eve')}\r\ncontent-length: 18\r\n\r\n{"item":"voucher"}`,
      ),
    );
    const headers = { 'content-type': 'Application/JSON; charset=utf-8' };
    expect((await orderOf('utf', { item: 'voucher' }, { headers })).status).toBe(201);
  });

  it('of an order, which may name a hundred seats, 64 KiB are taken, of a cancellation 4 KiB; one byte more is 413 (P10)', async () => {
    const path = `/v1/sales/${sale}/orders`;
    const body = { item: 'voucher' };
    const placed = await orderOf('big', undefined, { raw: padded(body, 64 * KIB) });
    expect(placed.status).toBe(201);
    expect((await chunked(path, token('big'), padded(body, 64 * KIB))).status).toBe(201);
    const cancel = (bytes: number) =>
      server.call('POST', `/v1/orders/${placed.body.id}/cancel`, { buyer: 'big', raw: padded({}, bytes) });
    await refused(413, 'body_too_large', () => orderOf('big', undefined, { raw: padded(body, 64 * KIB + 1) }));
    await refused(413, 'body_too_large', () => chunked(path, token('big'), padded(body, 64 * KIB + 1)));
    await refused(413, 'body_too_large', () => cancel(4 * KIB + 1));
    expect((await cancel(4 * KIB)).status).toBe(200);
  });

  it('of other calls 64 KiB are taken, and one byte more is 413', async () => {
    const post = (bytes: number) =>
      server.call('POST', '/v1/posts', { buyer: 'big', raw: padded({ title: 'a', content: 'b' }, bytes) });
    expect((await post(64 * KIB)).status).toBe(201);
    await refused(413, 'body_too_large', () => post(64 * KIB + 1));
    await refused(413, 'body_too_large', () =>
      server.call('PATCH', `/v1/sales/${sale}`, { admin: true, raw: padded({ version: 1 }, 64 * KIB + 1) }),
    );
  });

  it('a sale definition of 4 MiB is taken, one byte more is 413', async () => {
    const body = { ...saleBody(), items: items(200) };
    const taken = await newSale(undefined, { raw: padded(body, 4096 * KIB) });
    expect([taken.status, taken.body.items?.length]).toEqual([201, 200]);
    // Refused by its length alone: a client that sent all of it would be disconnected in the middle.
    await refused(413, 'body_too_large', () =>
      sendRaw(
        server.url,
        `POST /v1/sales HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ADMIN_KEY}\r\ncontent-type: application/json\r\ncontent-length: ${4096 * KIB + 1}\r\n\r\n`,
      ),
    );
  });

  it('what is not HTTP: 400 as a problem', async () => {
    expectProblem(await sendRaw(server.url, 'HELLO\r\n\r\n'), 400, 'malformed_json');
    expectProblem(await sendRaw(server.url, 'GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n'), 400, 'malformed_json');
  });
});

describe('who is asking', () => {
  const nowSeconds = Math.floor(Date.now() / 1000);
  const bad: [string, object | string, ForgeOptions?][] = [
    ['an expired token', { sub: 'alice', exp: nowSeconds - 10 }],
    ['a token that is not valid yet', { sub: 'alice', nbf: nowSeconds + 600 }],
    ['an exp that is text', { sub: 'alice', exp: 'never' }],
    ['a token of another secret', { sub: 'alice' }, { secret: 'guessed' }],
    ['a token with another signature', { sub: 'alice' }, { signature: 'AAAA' }],
    ['alg none with a signature', { sub: 'alice' }, { alg: 'none' }],
    ['alg none without a signature', { sub: 'alice' }, { alg: 'none', signature: '' }],
    ['alg None', { sub: 'alice' }, { alg: 'None', signature: '' }],
    ['alg HS512', { sub: 'alice' }, { alg: 'HS512', hash: 'sha512' }],
    ['alg HS384', { sub: 'alice' }, { alg: 'HS384', hash: 'sha384' }],
    ['alg HS512 signed as HS256', { sub: 'alice' }, { alg: 'HS512' }],
    ['no sub', {}],
    ['a sub that is a number', { sub: 7 }],
    ['a sub that is null', { sub: null }],
    ['a sub that is an array', { sub: ['alice'] }],
    ['an empty sub', { sub: '' }],
    ['a sub of 129 characters', { sub: 'x'.repeat(129) }],
    ['a sub of 129 characters outside the BMP', { sub: '🎟'.repeat(129) }],
    ['a sub with a NUL', { sub: 'al\u0000ice' }],
    ['a sub with a line feed', { sub: 'al\nice' }],
    ['a sub with a lone surrogate', '{"sub":"alice\\ud800"}'],
    ['a sub that begins with a blank', { sub: ' alice' }],
    ['a sub that ends with a blank', { sub: 'alice ' }],
    ['a payload that is not JSON', 'alice'],
    ['a payload that is null', 'null'],
    ['a payload that is an array', '[]'],
  ];
  it.each(bad)('%s: 401 everywhere', async (_, payload, options) => {
    const bearer = forge(payload, options);
    await nothingChanges(async () => {
      expectProblem(await orderOf('', { item: 'voucher' }, { bearer }), 401, 'unauthenticated');
      expectProblem(await server.call('GET', `/v1/orders/${order}`, { bearer }), 401, 'unauthenticated');
      expectProblem(await server.call('GET', '/v1/orders', { bearer }), 401, 'unauthenticated');
      expectProblem(await newSale(saleBody(), { bearer }), 401, 'unauthenticated');
    });
  });

  const headers: [string, Record<string, string>][] = [
    ['no Authorization', {}],
    ['an empty Authorization', { authorization: '' }],
    ['Bearer and nothing', { authorization: 'Bearer ' }],
    ['Basic', { authorization: `Basic ${Buffer.from('alice:x').toString('base64')}` }],
    ['the key without Bearer', { authorization: ADMIN_KEY }],
    ['a wrong key', { authorization: 'Bearer wrong' }],
    ['the key and more', { authorization: `Bearer ${ADMIN_KEY}x` }],
    ['a key with somebody else’s name', { authorization: `Bearer bob:${ADMIN_KEY}` }],
    ['all keys of the configuration at once', { authorization: `Bearer alice:${ADMIN_KEY},bob:${BOB_KEY}` }],
    ['the key as Basic', { authorization: `Basic ${Buffer.from(`alice:${ADMIN_KEY}`).toString('base64')}` }],
    ['the auth secret as a key', { authorization: `Bearer ${AUTH_SECRET}` }],
    ['dots', { authorization: 'Bearer ..' }],
    ['two tokens', { authorization: `Bearer ${token('alice')}, Bearer ${token('bob')}` }],
    ['a buyer named and nobody asking', { 'doorbuster-buyer': 'alice' }],
  ];
  let lastAddress = 0;
  it.each(headers)('%s: 401', async (_, extra) => {
    // Each from another address, because wrong keys of one address are delayed (sign-ins.test.ts).
    const call = (method: string, path: string, body?: unknown) =>
      server.call(method, path, {
        headers: { ...extra, 'x-forwarded-for': `192.0.2.${++lastAddress}` },
        ...(body !== undefined && { body }),
      });
    const calls: [string, string, unknown?][] = [
      ['POST', `/v1/sales/${sale}/orders`, { item: 'voucher' }],
      ['GET', `/v1/orders/${order}`],
      ['GET', `/v1/orders/${order}/events`],
      ['GET', '/v1/orders'],
      ['POST', '/v1/sales', saleBody()],
      ['PATCH', `/v1/sales/${sale}`, { version: 1 }],
      ['POST', `/v1/sales/${sale}/items/voucher/stock`, { add: 1 }],
      ['POST', `/v1/sales/${sale}/pause`],
      ['POST', `/v1/sales/${sale}/resume`],
      ['POST', `/v1/sales/${sale}/close`],
      ['GET', '/metrics'],
    ];
    await nothingChanges(async () => {
      for (const [method, path, body] of calls) {
        const answer = await call(method, path, body);
        expectProblem(answer, 401, 'unauthenticated');
        expect(answer.headers.get('www-authenticate')).toMatch(/^Bearer/);
      }
    });
  });

  it('an admin’s key may be sent as the setting has it, with its name: it is the same admin', async () => {
    const sales: string[] = [];
    for (const bearer of [ADMIN_KEY, `alice:${ADMIN_KEY}`, BOB_KEY, `bob:${BOB_KEY}`]) {
      const made = await newSale(saleBody(), { bearer });
      expect([bearer, made.status]).toEqual([bearer, 201]);
      sales.push(made.body.id);
    }
    const actors = sales.map(async (id) => {
      const { body } = await server.call('GET', `/v1/ops/audit?subject=sale:${id}`, { bearer: ADMIN_KEY });
      return body.data.at(-1).actor;
    });
    const [alice, aliceNamed, bob, bobNamed] = await Promise.all(actors);
    expect(aliceNamed).toBe(alice);
    expect(bobNamed).toBe(bob);
    expect(bob).not.toBe(alice);
  });

  it('the caller is checked first: 401 and 403 also for a bad body, an unknown sale, a huge body', async () => {
    const raw = `{${' '.repeat(70_000)}`;
    expectProblem(await server.call('POST', '/v1/sales/1/orders', { raw: '{' }), 401, 'unauthenticated');
    expectProblem(await server.call('POST', '/v1/sales/1/pause', { buyer: 'alice', raw }), 403, 'forbidden');
  });

  it('buyers of 1 and 128 characters, outside the BMP too, and case makes another buyer', async () => {
    for (const buyer of ['a', 'x'.repeat(128), '🎟'.repeat(128), 'é', 'Alice', '{"a":1}', "'; drop table orders"]) {
      const answer = await orderOf(buyer, { item: 'voucher' });
      expect([answer.status, answer.body.buyer]).toEqual([201, buyer]);
      const own = await server.call('GET', '/v1/orders', { buyer });
      expect(own.body.data).toEqual([answer.body]);
    }
    // Composed and decomposed look the same and are two buyers: compared bytewise.
    const decomposed = await server.call('GET', '/v1/orders', { buyer: 'e\u0301' });
    expect(decomposed.body.data).toEqual([]);
  });

  it('a token of each of two rotating secrets is good', async () => {
    for (const secret of [AUTH_SECRET, OLD_SECRET]) {
      const bearer = forge({ sub: 'rotator', exp: nowSeconds + 60, nbf: nowSeconds - 60 }, { secret });
      expect((await orderOf('', { item: 'voucher' }, { bearer })).body.buyer).toBe('rotator');
    }
  });

  it('each named admin key is good, has its own keys, and its name stands in the audit', async () => {
    const key = 'shared-by-two-admins';
    const alices = await newSale(saleBody(), { key, bearer: ADMIN_KEY });
    const bobs = await newSale(saleBody(), { key, bearer: BOB_KEY });
    expect([alices.status, bobs.status]).toEqual([201, 201]);
    expect(bobs.body.id).not.toBe(alices.body.id);
    const ledger = new DatabaseSync(join(server.data, 'ledger.sqlite'), { readOnly: true });
    const actor = (id: string) => ledger.prepare('SELECT actor FROM audit WHERE subject = ?').all(`sale:${id}`);
    expect([actor(alices.body.id), actor(bobs.body.id)]).toEqual([
      [{ actor: 'admin:alice' }],
      [{ actor: 'admin:bob' }],
    ]);
    ledger.close();
  });

  it('a buyer may not do what an admin may: 403', async () => {
    const buyer = 'alice';
    const calls: [string, string, unknown?][] = [
      ['POST', '/v1/sales', saleBody()],
      ['PATCH', `/v1/sales/${sale}`, { version: 1, name: 'mine' }],
      ['POST', `/v1/sales/${sale}/items/voucher/stock`, { add: 1 }],
      ['POST', `/v1/sales/${sale}/pause`],
      ['POST', `/v1/sales/${sale}/resume`],
      ['POST', `/v1/sales/${sale}/close`],
      ['GET', '/metrics'],
      ['GET', '/v1/orders?buyer=bob'],
    ];
    for (const [method, path, body] of calls) {
      await refused(403, 'forbidden', () =>
        server.call(method, path, { buyer, ...(body !== undefined && { body }), headers: { 'doorbuster-buyer': 'b' } }),
      );
    }
  });

  it('somebody else’s order is 404, to read and to follow', async () => {
    for (const path of [`/v1/orders/${order}`, `/v1/orders/${order}/events`]) {
      const theirs = await refused(404, 'not_found', () => server.call('GET', path, { buyer: 'bob' }));
      const nobodys = await refused(404, 'not_found', () =>
        server.call('GET', path.replace(order, '7'), { buyer: 'bob' }),
      );
      expect(theirs.body).toEqual(nobodys.body);
      for (const id of ['0', 'abc', '-1', '99999999999999999999', `0${order}`]) {
        expectProblem(await server.call('GET', path.replace(order, id), { admin: true }), 404, 'not_found');
      }
    }
    expect((await server.call('GET', '/v1/orders', { buyer: 'nobody-yet' })).body.data).toEqual([]);
  });

  it('Doorbuster-Buyer does not let a buyer act as another', async () => {
    const headers = { 'doorbuster-buyer': 'alice' };
    const placed = await orderOf('mallory', { item: 'voucher' }, { headers });
    // Refused or ignored, but never an order of alice.
    if (placed.status === 201) expect(placed.body.buyer).toBe('mallory');
    else expect([403, 422]).toContain(placed.status);
    for (const path of [`/v1/orders/${order}`, `/v1/orders/${order}/events`]) {
      expectProblem(await server.call('GET', path, { buyer: 'mallory', headers }), 404, 'not_found');
    }
    const list = await server.call('GET', '/v1/orders', { buyer: 'mallory', headers });
    for (const { buyer } of list.body.data) expect(buyer).toBe('mallory');
  });

  it('an admin acts for a buyer by Doorbuster-Buyer, in UTF-8', async () => {
    const bytes = (text: string) => Buffer.from(text).toString('latin1');
    const acting = (buyer: string) => ({ admin: true, headers: { 'doorbuster-buyer': bytes(buyer) } });
    for (const buyer of ['dora', '张三', '🎫'.repeat(128)]) {
      const placed = await orderOf('', { item: 'voucher' }, { ...acting(buyer), bearer: ADMIN_KEY });
      expect([placed.status, placed.body.buyer]).toEqual([201, buyer]);
      expect((await server.call('GET', '/v1/orders', acting(buyer))).body.data).toEqual([placed.body]);
      expect((await server.call('GET', `/v1/orders/${placed.body.id}`, { buyer })).body).toEqual(placed.body);
    }
    expectProblem(await server.call('GET', `/v1/orders/${order}`, acting('dora')), 404, 'not_found');
  });

  it.each<[string, string]>([
    ['empty', ''],
    ['of 129 characters', 'x'.repeat(129)],
    ['with a tab', 'a\tb'],
    ['with a C1 control', Buffer.from('a\u0085b').toString('latin1')],
    ['that is not UTF-8', 'caf\u00e9'],
    ['with a no-break space around it', Buffer.from('a\u00a0').toString('latin1')],
  ])('Doorbuster-Buyer %s: 422', async (_, buyer) => {
    const headers = { 'doorbuster-buyer': buyer };
    await refused(422, 'invalid_request', () => orderOf('', { item: 'voucher' }, { bearer: ADMIN_KEY, headers }));
    await refused(422, 'invalid_request', () => server.call('GET', '/v1/orders', { admin: true, headers }));
  });

  it.each(['doorbuster-buyer', 'idempotency-key'])('%s twice: 422, and the two are not joined', async (name) => {
    const body = '{"item":"voucher"}';
    await refused(422, 'invalid_request', () =>
      sendRaw(
        server.url,
        `POST /v1/sales/${sale}/orders HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ADMIN_KEY}\r\n` +
          `${name === 'idempotency-key' ? 'doorbuster-buyer: zoe\r\n' : ''}${name}: alice\r\n${name}: bob\r\n` +
          `content-type: application/json\r\ncontent-length: ${body.length}\r\nconnection: close\r\n\r\n${body}`,
      ),
    );
  });

  it('an unknown query parameter: 422, on a POST too', async () => {
    await refused(422, 'invalid_request', () =>
      server.call('POST', `/v1/sales/${sale}/orders?colour=red`, { buyer: 'query', body: { item: 'voucher' } }),
    );
  });

  it('an admin without Doorbuster-Buyer cannot order: 403', async () => {
    await refused(403, 'forbidden', () => orderOf('', { item: 'voucher' }, { bearer: ADMIN_KEY }));
  });
});

describe('routes and methods', () => {
  it.each([
    ...['/nope', '/v1', '/v1/', '/v2/sales', '/V1/sales', '/v1/likes', '/v1/ops/locks'],
    ...[
      '/v1/sales/1/seats/a',
      '/v1/sales/1/items/a/price',
      '/..%2f..%2fetc/passwd',
      '/%ff',
      '/v1/sales/%ff',
      '/docs/nope',
    ],
    `/v1/sales/${'1'.repeat(200)}`,
    '/v1/demo/tokens',
  ])('%s is 404', async (path) => {
    expectProblem(await server.call('GET', path), 404, 'not_found');
    expectProblem(await server.call('POST', path, { admin: true, body: { user: 'a' } }), 404, 'not_found');
  });

  const known: [string, string][] = [
    ['/healthz', 'GET, HEAD'],
    ['/readyz', 'GET, HEAD'],
    ['/metrics', 'GET, HEAD'],
    ['/openapi.json', 'GET, HEAD'],
    ['/', 'GET, HEAD'],
    ['/v1/time', 'GET, HEAD'],
    ['/v1/sales', 'GET, HEAD, POST'],
    ['/v1/sales/1', 'DELETE, GET, HEAD, PATCH'],
    ['/v1/sales/1/items', 'POST'],
    ['/v1/sales/1/items/a', 'PATCH'],
    ['/v1/sales/1/items/a/stock', 'POST'],
    ['/v1/sales/1/pause', 'POST'],
    ['/v1/sales/1/resume', 'POST'],
    ['/v1/sales/1/close', 'POST'],
    ['/v1/sales/1/events', 'GET'],
    ['/v1/sales/1/orders', 'POST'],
    ['/v1/orders', 'GET, HEAD'],
    ['/v1/orders/1', 'GET, HEAD'],
    ['/v1/orders/1/events', 'GET'],
  ];
  it.each(known)('%s takes %s; others are 405 with Allow', async (path, allow) => {
    for (const method of ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'].filter((one) => !allow.includes(one))) {
      const body = method === 'GET' ? {} : { raw: '{ not json' };
      const answer = await server.call(method, path, { admin: true, ...body });
      expectProblem(answer, 405, 'method_not_allowed');
      expect(answer.headers.get('allow')).toBe(allow);
    }
  });

  it('a known path with HEAD or OPTIONS: answered, or 405 with Allow', async () => {
    const asked = known.flatMap(([path, allow]) =>
      ['OPTIONS', 'HEAD'].filter((one) => !allow.includes(one)).map((method) => ({ method, path, allow })),
    );
    const answered = await Promise.all(
      asked.map(async ({ method, path }) => {
        const { status, headers } = await server.call(method, path, { admin: true });
        return `${method} ${path}: ${status}, Allow: ${headers.get('allow')}`;
      }),
    );
    expect(answered).toEqual(asked.map(({ method, path, allow }) => `${method} ${path}: 405, Allow: ${allow}`));
  });
});

describe('headers of every answer', () => {
  it('has the security headers on answers and errors of the API', async () => {
    const paths = ['/healthz', '/readyz', '/openapi.json', '/v1/time', '/v1/sales', `/v1/sales/${sale}`, '/', '/docs'];
    const answers = await Promise.all([
      ...paths.map((path) => server.call('GET', path)),
      server.call('GET', '/v1/sales/1'),
      server.call('GET', '/v1/orders'),
      server.call('DELETE', '/v1/orders'),
      server.call('GET', '/v1/sales?limit=0'),
      newSale(undefined, { raw: '{' }),
      orderOf('sec', { item: 'voucher' }),
    ]);
    for (const { headers, status } of answers) {
      for (const name of SECURE_HEADERS)
        expect([status, name, headers.get(name)]).toEqual([status, name, expect.any(String)]);
      expect(headers.get('x-content-type-options')).toBe('nosniff');
      expect(headers.get('x-powered-by')).toBeNull();
    }
  });

  it('has them on an unknown route and an undecodable path too', async () => {
    for (const path of ['/nope', '/%ff']) {
      const { headers } = await server.call('GET', path);
      for (const name of SECURE_HEADERS)
        expect([path, name, headers.get(name)]).toEqual([path, name, expect.any(String)]);
    }
  });

  it('CORS is off', async () => {
    const headers = { origin: 'https://shop.example', 'access-control-request-method': 'POST' };
    for (const method of ['GET', 'OPTIONS']) {
      const answer = await server.call(method, '/v1/sales', { headers });
      expect([...answer.headers.keys()].filter((name) => name.startsWith('access-control'))).toEqual([]);
    }
  });
});

it('a body with any Content-Encoding except identity is 415', async () => {
  const sent = (encoding: string) =>
    server.call('POST', '/v1/sales', { admin: true, body: saleBody(), headers: { 'content-encoding': encoding } });
  for (const encoding of ['gzip', 'br', 'GZIP', 'gzip, identity']) {
    expectProblem(await sent(encoding), 415, 'unsupported_media_type');
  }
  for (const encoding of ['identity', 'Identity']) expect((await sent(encoding)).status).toBe(201);
});

describe('faults are described in words', () => {
  const said = async (path: string, options: CallOptions) => (await server.call('POST', path, options)).body.detail;

  it('a missing body, an invalid time, an empty list', async () => {
    const needed = '/: the body must be a JSON object';
    for (const body of [undefined, [], null, 'text']) {
      expect(await said('/v1/orders/1/pay', { buyer: 'a', ...(body !== undefined && { body }) })).toBe(needed);
    }
    const sale = { name: 'S', opensAt: '2026-01-01T00:00:00Z', closesAt: '2026-01-02T00:00:00Z', items: [] };
    expect(await said('/v1/sales', { admin: true, body: sale })).toBe('/items: needs at least one');
    const late = { ...saleBody(), opensAt: 'tomorrow' };
    expect(await said('/v1/sales', { admin: true, body: late })).toBe(
      '/opensAt: must be a time like 2026-01-01T00:00:00Z',
    );
  });
});

describe('limits', () => {
  let limited: TestServer;
  let theirs: string;
  beforeAll(async () => {
    limited = await startServer({
      env: {
        ...CALM,
        RATE_LIMIT_BUYER: '5',
        RATE_LIMIT_BUYER_WRITES: '3',
        RATE_LIMIT_BUYER_READS: '25',
        SSE_MAX: '1',
        METRICS_PUBLIC: 'on',
        CORS_ORIGINS: 'https://shop.example, https://other.example',
      },
    });
    theirs = await createSale(limited, { stock: 100, perBuyer: 100 });
  });
  const place = (buyer: string) =>
    limited.call('POST', `/v1/sales/${theirs}/orders`, { buyer, body: { item: 'voucher' } });

  it('RATE_LIMIT_BUYER: 5 orders a second, then 429 with Retry-After, for that buyer only', async () => {
    const answers = await Promise.all(Array.from({ length: 12 }, () => place('fast')));
    const late = answers.filter(({ status }) => status === 429);
    const placed = answers.filter(({ status }) => status === 201);
    // A busy machine may take a while to send twelve: one more is allowed for each fifth of a second.
    expect(placed.length).toBeGreaterThanOrEqual(5);
    expect(placed.length).toBeLessThan(10);
    expect(placed.length + late.length).toBe(12);
    for (const answer of late) {
      expectProblem(answer, 429, 'rate_limited');
      expect(Number(answer.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    }
    expect((await place('slow')).status).toBe(201);
    expect(await allOrders(limited, theirs)).toHaveLength(placed.length + 1);
    await sleepMs(1000 * Number(late[0]!.headers.get('retry-after')));
    expect((await place('fast')).status).toBe(201);
  });

  it('P10: reads, payments and cancellations of a buyer have limits of their own, before anything is looked up', async () => {
    const many = (calls: number, method: string, path: string, who: object, body?: object) =>
      Promise.all(
        Array.from({ length: calls }, () => limited.call(method, path, { ...who, ...(body && { body }) })),
      ).then((answers) => answers.filter(({ status }) => status === 429));
    const placed = (await place('poller')).body.id;
    const paths = ['/v1/orders', `/v1/orders/${placed}`, `/v1/orders/${placed}/events`];
    for (const [at, path] of paths.entries()) {
      // All reads share one limit, which the first path uses up.
      const late = await many(at === 0 ? 40 : 12, 'GET', path, { buyer: 'poller' });
      expect(late.length, path).toBeGreaterThanOrEqual(10);
      expectProblem(late[0]!, 429, 'rate_limited');
      expect(Number(late[0]!.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    }
    const pays = { method: 'sandbox' };
    expect((await many(9, 'POST', `/v1/orders/${placed}/pay`, { buyer: 'poller' }, pays)).length).toBeGreaterThan(3);
    expect((await many(9, 'POST', `/v1/orders/${placed}/cancel`, { buyer: 'poller' })).length).toBeGreaterThan(3);
    expect((await place('poller')).status, 'whoever polls and pays too fast can still order').toBe(201);
    const acting = { admin: true, headers: { 'doorbuster-buyer': 'poller-2' } };
    expect((await many(40, 'GET', '/v1/orders', acting)).length, 'in a buyer’s name').toBeGreaterThanOrEqual(10);
    expect(await many(40, 'GET', '/v1/orders', { admin: true }), 'the shop itself').toEqual([]);
  });

  it('P10: a list counts by its length, ten orders as one read; what cannot be a limit as one', async () => {
    const read = async (path: string, buyer: string) => (await limited.call('GET', path, { buyer })).status;
    const sent = (buyer: string, paths: string[]) => Promise.all(paths.map((path) => read(path, buyer)));
    const [long, usual, short] = ['/v1/orders?limit=200', '/v1/orders', '/v1/orders?limit=1'];
    // Of 25 a second: 20; 5; and then one more, or ten.
    expect(await sent('long', [long, usual, short])).toEqual([200, 200, 429]);
    expect(await sent('usual', [...Array(6).fill(usual)])).toEqual([200, 200, 200, 200, 200, 429]);
    const wrong = [
      '/v1/orders?limit=1000000',
      '/v1/orders?limit=-5',
      '/v1/orders?limit=x',
      '/v1/orders?limit=1&limit=2',
    ];
    expect(await sent('wrong', [...wrong, long])).toEqual([422, 422, 422, 422, 200]);
  });

  it('a refused order counts too, and reading does not', async () => {
    const reads = await Promise.all(
      Array.from({ length: 20 }, () => limited.call('GET', '/v1/orders?limit=10', { buyer: 'reader' })),
    );
    expect(reads.every(({ status }) => status === 200)).toBe(true);
    const answers = await Promise.all(
      Array.from({ length: 10 }, () =>
        limited.call('POST', `/v1/sales/${theirs}/orders`, { buyer: 'prober', body: { item: 'nope' } }),
      ),
    );
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([404, 429]));
  });

  it('SSE_MAX: the second stream gets 503, and a place that is left is free again', async () => {
    const open = (abort: AbortController) =>
      fetch(`${limited.url}/v1/sales/${theirs}/events`, { signal: abort.signal });
    const first = new AbortController();
    expect((await open(first)).status).toBe(200);
    const second = await limited.call('GET', `/v1/sales/${theirs}/events`);
    expectProblem(second, 503, 'overloaded');
    expect(Number(second.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    const ordered = await place('streamer');
    const watch = (abort: AbortController) =>
      fetch(`${limited.url}/v1/orders/${ordered.body.id}/events`, {
        headers: { authorization: `Bearer ${token('streamer')}` },
        signal: abort.signal,
      });
    // Streams of orders are counted separately.
    const own = new AbortController();
    expect((await watch(own)).status).toBe(200);
    expect((await watch(own)).status).toBe(503);
    own.abort();
    first.abort();
    await expect
      .poll(async () => {
        const again = new AbortController();
        const { status } = await open(again);
        again.abort();
        return status;
      })
      .toBe(200);
  });

  it('METRICS_PUBLIC=on: no key is needed', async () => {
    const answer = await limited.call('GET', '/metrics');
    expect(answer.status).toBe(200);
    expect(answer.headers.get('content-type')).toMatch(/^text\/plain/);
    expect(answer.body).toContain('doorbuster_admissions_total');
  });

  it('CORS_ORIGINS: those origins and no other, also for a stream', async () => {
    const from = (origin: string, method = 'GET', headers = {}) =>
      limited.call(method, '/v1/sales', { headers: { origin, ...headers } });
    const allowed = await from('https://shop.example');
    expect(allowed.headers.get('access-control-allow-origin')).toBe('https://shop.example');
    expect(allowed.headers.get('vary')?.toLowerCase()).toContain('origin');
    const posts = await limited.call('GET', '/v1/posts', { headers: { origin: 'https://shop.example' } });
    expect(posts.headers.get('vary')?.toLowerCase(), 'also where the answer depends on the caller').toBe(
      'origin, authorization, doorbuster-buyer',
    );
    expect(allowed.headers.get('access-control-expose-headers')?.toLowerCase()).toContain('idempotent-replayed');
    expect((await from('https://other.example')).headers.get('access-control-allow-origin')).toBe(
      'https://other.example',
    );
    for (const origin of ['https://evil.example', 'https://shop.example.evil.example', 'http://shop.example', 'null']) {
      expect((await from(origin)).headers.get('access-control-allow-origin')).toBeNull();
    }
    const failed = await limited.call('GET', '/v1/orders', { headers: { origin: 'https://shop.example' } });
    expectProblem(failed, 401, 'unauthenticated');
    expect(failed.headers.get('access-control-allow-origin')).toBe('https://shop.example');
    const abort = new AbortController();
    const stream = await fetch(`${limited.url}/v1/sales/${theirs}/events`, {
      headers: { origin: 'https://shop.example' },
      signal: abort.signal,
    });
    expect(stream.headers.get('access-control-allow-origin')).toBe('https://shop.example');
    abort.abort();
  });

  it.each(['POST', 'PATCH'])('CORS_ORIGINS: a browser may %s with a token and a key', async (method) => {
    const preflight = await limited.call('OPTIONS', `/v1/sales/${theirs}`, {
      headers: {
        origin: 'https://shop.example',
        'access-control-request-method': method,
        'access-control-request-headers': 'authorization,content-type,idempotency-key',
      },
    });
    expect([200, 204]).toContain(preflight.status);
    expect(preflight.headers.get('access-control-allow-origin')).toBe('https://shop.example');
    expect(preflight.headers.get('access-control-allow-methods')).toContain(method);
    const allowed = preflight.headers.get('access-control-allow-headers')?.toLowerCase() ?? '';
    for (const name of ['authorization', 'content-type', 'idempotency-key']) expect(allowed).toContain(name);
  });
});

describe('RATE_LIMIT_ADDRESS', () => {
  let limited: TestServer;
  beforeAll(async () => {
    limited = await startServer({ env: { ...CALM, RATE_LIMIT_ADDRESS: '3', TRUST_PROXY: 'on' } });
  });
  const burst = async (address: string, path = '/v1/time') => {
    const answers = await Promise.all(
      Array.from({ length: 10 }, () => limited.call('GET', path, { headers: { 'x-forwarded-for': address } })),
    );
    return { answers, late: answers.filter(({ status }) => status === 429) };
  };

  it('3 a second for each address, then 429 with Retry-After; health always answers', async () => {
    const { late } = await burst('10.0.0.1');
    expect(late.length).toBeGreaterThanOrEqual(4);
    expectProblem(late[0]!, 429, 'rate_limited');
    expect(Number(late[0]!.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    const other = await limited.call('GET', '/v1/time', { headers: { 'x-forwarded-for': '10.0.0.2' } });
    expect(other.status).toBe(200);
    for (const path of ['/healthz', '/readyz']) expect((await burst('10.0.0.1', path)).late).toEqual([]);
  });

  it('pages and documents count as well (P10)', async () => {
    const paths = ['/', '/docs', '/docs/json', '/docs/static/index.css', '/openapi.json'];
    for (const [n, path] of paths.entries()) {
      expect((await burst(`10.0.1.${n}`, path)).late.length, path).toBeGreaterThanOrEqual(4);
    }
  });

  it('another spelling of the path does not get around it', async () => {
    expect((await burst('10.0.0.3', '/%761/time')).late.length).toBeGreaterThanOrEqual(4);
  });

  it('the document says that every /v1 route may answer 429', async () => {
    const { body } = await limited.call('GET', '/openapi.json');
    const silent = Object.entries(body.paths as Record<string, Record<string, { responses: object }>>).flatMap(
      ([path, methods]) =>
        Object.entries(methods)
          .filter(([, { responses }]) => path.startsWith('/v1/') && !('429' in responses))
          .map(([method]) => `${method} ${path}`),
    );
    expect(silent).toEqual([]);
  });
});

describe('IN_FLIGHT_MAX=1', () => {
  let narrow: HeldShop;
  let theirs: string;
  beforeAll(async () => {
    narrow = await startHeldShop({ inFlightMax: 1, corsOrigins: ['https://shop.example'] });
    theirs = await createSale(narrow);
  });
  afterAll(() => narrow.close());

  async function oneMoreIsRefused(): Promise<void> {
    const first = await narrow.hold();
    const refused = await narrow.call('POST', `/v1/sales/${theirs}/orders`, { buyer: 'b', body: { item: 'voucher' } });
    expectProblem(refused, 503, 'overloaded');
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    expect((await narrow.call('GET', '/healthz')).status).toBe(200);
    // A load balancer must send nothing here now.
    const ready = await narrow.call('GET', '/readyz');
    expect([ready.status, ready.body.parts.http]).toEqual([503, 'more than 1 requests are in flight']);
    expect((await narrow.call('GET', '/metrics', { admin: true })).status).toBe(200);
    expect(await first.finish()).toBe(200);
    await expect.poll(async () => (await narrow.call('GET', '/v1/time')).status).toBe(200);
  }

  it('one more is 503 overloaded at once, health and metrics answer, and the one in flight ends well', async () => {
    await oneMoreIsRefused();
    await oneMoreIsRefused();
  });

  it('preflight requests do not raise the limit', async () => {
    for (let count = 0; count < 5; count++) {
      await narrow.call('OPTIONS', '/v1/sales', {
        headers: { origin: 'https://shop.example', 'access-control-request-method': 'POST' },
      });
    }
    await oneMoreIsRefused();
  });

  it('an open event stream has its own bound and is no request in flight', async () => {
    const abort = new AbortController();
    const stream = await fetch(`${narrow.url}/v1/sales/${theirs}/events`, { signal: abort.signal });
    expect(stream.status).toBe(200);
    const answers = [await narrow.call('GET', '/v1/time'), await narrow.call('GET', '/v1/time')];
    abort.abort();
    expect(answers.map(({ status }) => status)).toEqual([200, 200]);
  });
});

it('the log, at debug, has the requests and no secret', async () => {
  const { output } = server;
  expect(output()).toContain(`/v1/sales/${sale}/orders`);
  for (const secret of [ADMIN_KEY, BOB_KEY, AUTH_SECRET, OLD_SECRET]) expect(output()).not.toContain(secret);
  // Every JWT begins with {"alg" in base64; no request line may contain one.
  expect(output()).not.toMatch(/eyJ[\w-]{10,}\./);
  // Everything that went wrong was the callers' fault, and so nothing is logged as an error.
  expect(output()).not.toMatch(/"level":(50|60)/);
  expect(await server.stop()).toBe(0);
});
