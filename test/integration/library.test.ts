import { createServer, type Server } from 'node:http';
import { join } from 'node:path';
import swagger from '@fastify/swagger';
import express from 'express';
import Fastify, { type FastifyInstance } from 'fastify';
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { NO_PAYMENTS } from '../../src/engine/shop.ts';
import doorbusterPlugin from '../../src/fastify.ts';
import {
  createDoorbuster,
  type Doorbuster,
  DoorbusterError,
  type NewSaleInput,
  type Order,
  type PlaceInput,
  RetryableError,
  type Sale,
  type SaleEvent,
  TerminalError,
} from '../../src/index.ts';
import { checkedOptions } from '../../src/library/options.ts';
import { spawnModule } from '../support/openapi-spawn.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { ADMIN_KEY, AUTH_SECRET, caller, cleanUp, saleBody, temporaryFolder } from '../support/server.ts';

/** The library: refusals and bad input are values, failures are thrown. */
let data: string;
let shop: Doorbuster;
const open: Doorbuster[] = [];

async function openShop(options: Partial<Parameters<typeof createDoorbuster>[0]> = {}): Promise<Doorbuster> {
  const made = await createDoorbuster({ data, ...options });
  open.push(made);
  return made;
}

beforeEach(async () => {
  data = join(temporaryFolder(), 'not', 'there', 'yet');
  shop = await openShop({ adminKey: ADMIN_KEY, authSecret: AUTH_SECRET });
});
afterEach(async () => {
  await Promise.all(open.splice(0).map((one) => one.close()));
});
afterAll(cleanUp);

const input = (more: Partial<NewSaleInput> & { stock?: number } = {}): NewSaleInput => {
  const { stock = 10, ...rest } = more;
  return {
    name: 'Vouchers',
    opensAt: new Date(Date.now() - 1000),
    closesAt: Date.now() + 3_600_000,
    items: [{ code: 'voucher', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock }],
    ...rest,
  };
};

async function newSale(more?: Parameters<typeof input>[0]): Promise<string> {
  const made = await shop.sales.create(input(more));
  if (!made.ok) throw new Error(made.code);
  return made.sale.id;
}

const place = (sale: string, buyer: string, more: Partial<PlaceInput> = {}) =>
  shop.orders.place({ sale, buyer, item: 'voucher', ...more });
const code = (result: { ok: boolean; code?: string }) => (result.ok ? 'ok' : result.code);

describe('sales', () => {
  it('create, get, list, patch, stock, pause, resume, close', async () => {
    const made = await shop.sales.create(input({ perBuyer: 2, payWithin: 60 }));
    if (!made.ok) throw new Error(made.code);
    const { sale } = made;
    expect(sale).toMatchObject({
      state: 'open',
      perBuyer: 2,
      payWithin: 60,
      version: 1,
      items: [{ total: 10, free: 10 }],
    });
    expect(await shop.sales.get(sale.id)).toEqual(sale);
    expect(await shop.sales.get('1')).toBeNull();
    expect(await shop.sales.get('nonsense')).toBeNull();
    expect(
      await shop.sales.patch(sale.id, { version: 1, name: 'New', closesAt: new Date('2099-01-01') }),
    ).toMatchObject({
      ok: true,
      sale: { name: 'New', version: 2, closesAt: '2099-01-01T00:00:00.000Z' },
    });
    expect(await shop.sales.patch(sale.id, { version: 1 })).toEqual({ ok: false, code: 'version_conflict' });
    expect(await shop.sales.addStock(sale.id, 'voucher', 5)).toMatchObject({
      ok: true,
      sale: { items: [{ total: 15 }] },
    });
    expect(await shop.sales.addStock(sale.id, 'voucher', -16)).toEqual({ ok: false, code: 'insufficient_free' });
    expect(await shop.sales.addStock(sale.id, 'nope', 1)).toEqual({ ok: false, code: 'not_found' });
    expect(await shop.sales.pause(sale.id)).toMatchObject({ ok: true, sale: { state: 'paused' } });
    expect(await shop.sales.resume(sale.id)).toMatchObject({ ok: true, sale: { state: 'open' } });
    expect(await shop.sales.close(sale.id)).toMatchObject({ ok: true, sale: { state: 'closed' } });
    expect(await shop.sales.resume(sale.id)).toEqual({ ok: false, code: 'sale_closed' });
    for (const change of [shop.sales.pause('1'), shop.sales.close('x'), shop.sales.addStock('', 'voucher', 1)]) {
      expect(await change).toEqual({ ok: false, code: 'not_found' });
    }
    const other = await newSale();
    const page = await shop.sales.list({ limit: 1 });
    expect([page.data.map(({ id }) => id), page.nextCursor]).toEqual([[other], other]);
    expect((await shop.sales.list({ cursor: other })).data.map(({ id }) => id)).toEqual([sale.id]);
  });

  it('texts, items and the end of a sale', async () => {
    const said = { description: 'd', image: 'https://shop.example/i.png', metadata: { a: 'b' } };
    const made = await shop.sales.create({
      ...{
        name: 'Concert',
        opensAt: 0,
        closesAt: new Date('2099-01-01'),
        startsAt: new Date('2030-01-01'),
        venue: 'Hall',
      },
      ...{ ...said, items: [{ code: 'a', name: 'A', price: { amount: 1, currency: 'CNY' }, stock: 1, ...said }] },
    });
    expect(made).toMatchObject({ ok: true, sale: { ...said, startsAt: '2030-01-01T00:00:00.000Z', venue: 'Hall' } });
    const { id } = (made as { sale: Sale }).sale;
    const item = { code: 'b', name: 'B', price: { amount: 2, currency: 'CNY' }, stock: 5 };
    expect(await shop.sales.addItem(id, item)).toMatchObject({
      ok: true,
      sale: { version: 2, items: [{}, { code: 'b' }] },
    });
    expect(code(await shop.sales.addItem(id, { ...item, image: 'http://shop.example/' }))).toBe('invalid_request');
    expect(code(await shop.sales.addItem(id, item))).toBe('invalid_request');
    expect(code(await shop.sales.addItem('1', item))).toBe('not_found');
    const price = { amount: 3, currency: 'CNY' };
    expect(await shop.sales.patchItem(id, 'b', { price, version: 2 })).toMatchObject({
      ok: true,
      sale: { version: 3 },
    });
    expect(code(await shop.sales.patchItem(id, 'b', { price, version: 2 }))).toBe('version_conflict');
    expect(code(await shop.sales.patchItem(id, 'nope', { price, version: 3 }))).toBe('not_found');
    expect(code(await shop.sales.patchItem(id, 'b', { metadata: { a: 1 } as never, version: 3 }))).toBe(
      'invalid_request',
    );
    const bare = await shop.sales.patch(id, { startsAt: null, venue: null, description: null, version: 3 });
    for (const field of ['startsAt', 'venue', 'description'])
      expect((bare as { sale: Sale }).sale).not.toHaveProperty(field);
    const other = await shop.sales.create({
      name: 'Mistake',
      opensAt: 0,
      closesAt: '2099-01-01T00:00:00Z',
      items: [item],
    });
    const mistake = (other as { sale: Sale }).sale.id;
    expect(await shop.sales.delete(mistake)).toEqual({ ok: true });
    expect(await shop.sales.get(mistake)).toBeNull();
    expect(await shop.sales.delete(mistake)).toEqual({ ok: false, code: 'not_found' });
    expect(await shop.orders.place({ sale: id, buyer: 'alice', item: 'b' })).toMatchObject({
      order: { amount: price },
    });
    expect(await shop.sales.delete(id)).toEqual({ ok: false, code: 'sale_has_orders' });
    expect(await shop.orders.place({ sale: id, buyer: 'bob', item: 'b' })).toMatchObject({ ok: true });
  });

  it('times are a Date, a number of milliseconds or a text', async () => {
    const at = Date.UTC(2030, 0, 1);
    for (const opensAt of [new Date(at), at, '2030-01-01T00:00:00Z', '2030-01-01T08:00:00+08:00']) {
      const made = await shop.sales.create(input({ opensAt, closesAt: new Date(at + 1) }));
      expect(made).toMatchObject({
        ok: true,
        sale: { state: 'scheduled', opensAt: '2030-01-01T00:00:00.000Z', closesAt: '2030-01-01T00:00:00.001Z' },
      });
    }
  });

  it.each<[string, unknown]>([
    ['nonsense', 'tomorrow'],
    ['an invalid Date', new Date(Number.NaN)],
    ['NaN', Number.NaN],
    ['Infinity', Number.POSITIVE_INFINITY],
    ['a number beyond any date', 1e20],
    ['a date of the year 10000', new Date(Date.UTC(10_000, 0, 1))],
    ['a leap second', '2016-12-31T23:59:60Z'],
    ['null', null],
    ['true', true],
    ['an array', []],
    ['an object', {}],
    ['nothing', undefined],
  ])('a time that is %s is a value, not an exception', async (_, time) => {
    const refused = await shop.sales.create(input({ opensAt: time as Date }));
    expect(refused).toEqual({
      ok: false,
      code: 'invalid_request',
      errors: expect.arrayContaining([expect.anything()]),
    });
    if (!refused.ok && refused.code === 'invalid_request') expect(refused.errors[0]!.path).toBe('/opensAt');
    const sale = await newSale();
    if (time !== undefined) {
      const patched = await shop.sales.patch(sale, { version: 1, closesAt: time as Date });
      expect(code(patched)).toBe('invalid_request');
    }
    expect(await shop.sales.get(sale)).toMatchObject({ version: 1 });
  });

  it.each<[string, unknown]>([
    ['no items', input({ items: [] })],
    ['a name of 201 characters', input({ name: 'x'.repeat(201) })],
    ['a fractional stock', input({ stock: 1.5 })],
    ['two items with one code', input({ items: [...input().items, ...input().items] })],
    ['closesAt before opensAt', input({ closesAt: 0 })],
    ['perBuyer 0', input({ perBuyer: 0 })],
    ['an unknown field', { ...input(), colour: 'red' }],
    ['an empty object', {}],
  ])('%s: invalid_request with where it is', async (_, bad) => {
    const refused = await shop.sales.create(bad as NewSaleInput);
    expect(refused).toMatchObject({ ok: false, code: 'invalid_request' });
    if (!refused.ok && refused.code === 'invalid_request') {
      for (const { path, message } of refused.errors)
        expect([path, message]).toEqual([expect.stringMatching(/^\//), expect.stringMatching(/./)]);
    }
    expect((await shop.sales.list()).data).toEqual([]);
  });

  it('does not change what it is given', async () => {
    const given = Object.freeze(input());
    expect((await shop.sales.create(given)).ok).toBe(true);
    expect(given).not.toHaveProperty('perBuyer');
  });

  it('a bad amount of stock is a refusal, not an error', async () => {
    const sale = await newSale();
    for (const add of [0.5, Number.NaN, 1e9, '1' as unknown as number]) {
      expect(code(await shop.sales.addStock(sale, 'voucher', add))).toBe('invalid_request');
    }
  });
});

describe('orders', () => {
  it('P1, P2, P5: place, its refusals, and a repeat', async () => {
    const sale = await newSale({ stock: 2 });
    const placed = await place(sale, 'alice', { key: 'a1' });
    if (!placed.ok) throw new Error(placed.code);
    expect(placed.order).toMatchObject({
      saleId: sale,
      buyer: 'alice',
      item: 'voucher',
      quantity: 1,
      status: 'reserved',
    });
    expect(placed.replayed).toBe(false);
    expect(await place(sale, 'alice', { key: 'a1' })).toEqual({ ok: true, order: placed.order, replayed: true });
    expect(await place(sale, 'alice', { key: 'a1', item: 'voucher', quantity: 2 })).toEqual({
      ok: false,
      code: 'idempotency_key_reused',
    });
    const limit = await place(sale, 'alice');
    expect(limit).toEqual({ ok: false, code: 'limit_reached', orders: [placed.order.id] });
    if (!limit.ok && limit.code === 'limit_reached') expect(limit.orders).toHaveLength(1);
    await place(sale, 'bob');
    expect(await place(sale, 'carol')).toEqual({ ok: false, code: 'sold_out' });
    expect(await place(sale, 'carol', { item: 'nope' })).toEqual({ ok: false, code: 'not_found' });
    await shop.sales.pause(sale);
    const paused = await place(sale, 'carol');
    expect(paused).toEqual({
      ok: false,
      code: 'sale_paused',
      opensAt: expect.any(String),
      closesAt: expect.any(String),
    });
    await shop.sales.close(sale);
    expect(code(await place(sale, 'carol'))).toBe('sale_closed');
    expect(await place(sale, 'alice', { key: 'a1' })).toEqual({ ok: true, order: placed.order, replayed: true });
    expect(
      code(await place(await newSale({ opensAt: '2098-01-01T00:00:00Z', closesAt: '2099-01-01T00:00:00Z' }), 'a')),
    ).toBe('sale_not_open');
  });

  it.each(['1', '0', '', 'abc', '1e3', '9223372036854775808', '-1'])(
    'an unknown sale (%j) is not_found',
    async (id) => {
      expect(await place(id, 'alice')).toEqual({ ok: false, code: 'not_found' });
      expect(await place(id, 'alice', { key: 'k' })).toEqual({ ok: false, code: 'not_found' });
    },
  );

  it('a sale’s id with a leading zero is not found, and does no harm', async () => {
    const sale = await newSale();
    expect(await place(`0${sale}`, 'mallory')).toEqual({ ok: false, code: 'not_found' });
    expect(code(await place(sale, 'alice'))).toBe('ok');
    expect(shop.readiness().status).toBe('ok');
  });

  it.each<[string, Partial<Record<keyof PlaceInput, unknown>>]>([
    ['quantity 0', { quantity: 0 }],
    ['quantity 101', { quantity: 101 }],
    ['quantity -1', { quantity: -1 }],
    ['quantity 1.5', { quantity: 1.5 }],
    ['quantity NaN', { quantity: Number.NaN }],
    ['quantity as text', { quantity: '1' }],
    ['quantity null', { quantity: null }],
    ['no buyer', { buyer: undefined }],
    ['an empty buyer', { buyer: '' }],
    ['a buyer of 129 characters', { buyer: 'x'.repeat(129) }],
    ['a buyer with a blank around it', { buyer: ' alice' }],
    ['a buyer with a line feed', { buyer: 'al\nice' }],
    ['a buyer with a lone surrogate', { buyer: 'alice\ud800' }],
    ['a buyer that is a number', { buyer: 7 }],
    ['a sale that is a number', { sale: 7 }],
    ['no item', { item: undefined }],
    ['an empty key', { key: '' }],
    ['a key of 256 characters', { key: 'k'.repeat(256) }],
    ['a key outside ASCII', { key: 'ké' }],
    ['a key with a blank around it', { key: ' k' }],
    ['a key that is a number', { key: 7 }],
    ['a key that is null', { key: null }],
  ])('%s: invalid_request, and nothing is sold', async (_, bad) => {
    const sale = await newSale();
    const refused = await shop.orders.place({ sale, buyer: 'alice', item: 'voucher', ...bad } as PlaceInput);
    expect(refused).toEqual({
      ok: false,
      code: 'invalid_request',
      errors: expect.arrayContaining([{ path: expect.stringMatching(/^\//), message: expect.any(String) }]),
    });
    expect((await shop.orders.list({ saleId: sale })).data).toEqual([]);
  });

  it('get and list, with filters and pages', async () => {
    const sale = await newSale({ perBuyer: 10 });
    const placed: Order[] = [];
    for (const buyer of ['a', 'b', 'a']) {
      const result = await place(sale, buyer);
      if (result.ok) placed.unshift(result.order);
    }
    expect(await shop.orders.get(placed[0]!.id)).toEqual(placed[0]);
    expect(await shop.orders.get('1')).toBeNull();
    expect(await shop.orders.get('x')).toBeNull();
    expect((await shop.orders.list()).data).toEqual(placed);
    expect((await shop.orders.list({ saleId: sale, buyer: 'a', status: 'reserved' })).data).toHaveLength(2);
    expect((await shop.orders.list({ status: 'paid' })).data).toEqual([]);
    expect((await shop.orders.list({ saleId: 'x' })).data).toEqual([]);
    for (const filter of [{}, { buyer: 'a' }]) {
      const first = await shop.orders.list({ ...filter, limit: 1 });
      const second = await shop.orders.list({ ...filter, limit: 1, cursor: first.nextCursor! });
      expect(second.data[0]!.id).not.toBe(first.data[0]!.id);
    }
  });

  it.each<[string, object]>([
    ['a cursor that is none', { cursor: 'nonsense' }],
    ['a fractional limit', { limit: 1.5 }],
    ['a limit that is NaN', { limit: Number.NaN }],
  ])('a list with %s is the caller’s mistake, told as such, and not an outage', async (_, page) => {
    for (const list of [
      () => shop.sales.list(page),
      () => shop.orders.list(page),
      () => shop.orders.list({ buyer: 'a', ...page }),
    ]) {
      const error = await list().then(
        () => null,
        (thrown: unknown) => thrown,
      );
      expect(error).toBeInstanceOf(DoorbusterError);
      expect(error).not.toBeInstanceOf(RetryableError);
    }
    expect(shop.readiness().status).toBe('ok');
  });
});

describe('events', () => {
  it('order.reserved after the commit and sale.changed; off ends them', async () => {
    const heard: string[] = [];
    const onOrder = (order: Order): void => void heard.push(`reserved ${order.buyer} ${order.status}`);
    const onSale = (id: string): void => void heard.push(`changed ${id}`);
    shop.on('order.reserved', onOrder);
    shop.on('sale.changed', onSale);
    const sale = await newSale();
    await place(sale, 'alice', { key: 'k' });
    await place(sale, 'alice', { key: 'k' });
    await place(sale, 'alice');
    await shop.sales.pause(sale);
    expect(heard).toEqual([`changed ${sale}`, 'reserved alice reserved', `changed ${sale}`]);
    shop.off('order.reserved', onOrder);
    shop.off('sale.changed', onSale);
    await shop.sales.resume(sale);
    await place(sale, 'bob');
    expect(heard).toHaveLength(3);
  });

  it('a listener that throws harms neither the order nor other listeners', async () => {
    const heard: string[] = [];
    shop.on('order.reserved', () => {
      throw new Error('a bug of the shop’s owner');
    });
    shop.on('order.reserved', (order) => void heard.push(order.buyer));
    const sale = await newSale({ stock: 3 });
    expect(await Promise.all(['a', 'b', 'c'].map(async (buyer) => code(await place(sale, buyer))))).toEqual([
      'ok',
      'ok',
      'ok',
    ]);
    expect(heard).toEqual(['a', 'b', 'c']);
    expect((await shop.orders.list({ saleId: sale })).data).toHaveLength(3);
  });

  it('nor does an async listener that rejects: the process lives', async () => {
    const { code: exit, output } = await spawnModule(`
      import { createDoorbuster } from '${new URL('../../src/index.ts', import.meta.url).href}';
      const shop = await createDoorbuster({ data: ${JSON.stringify(join(temporaryFolder(), 'data'))} });
      shop.on('order.reserved', async () => { throw new Error('a bug of the owner'); });
      const { sale } = await shop.sales.create({ name: 'x', opensAt: 0, closesAt: '2099-01-01T00:00:00Z',
        items: [{ code: 'v', name: 'v', price: { amount: 1, currency: 'CNY' }, stock: 1 }] });
      const placed = await shop.orders.place({ sale: sale.id, buyer: 'a', item: 'v' });
      await new Promise((resolve) => setTimeout(resolve, 50));
      console.log('placed', placed.ok, (await shop.orders.list({ buyer: 'a' })).data.length);
      await shop.close();
    `);
    expect([exit, output]).toEqual([0, expect.stringContaining('placed true 1')]);
  });

  it('watch begins with the state and counts, tells every change, and ends', async () => {
    const sale = await newSale({ stock: 2 });
    const heard: SaleEvent[] = [];
    const stop = await shop.sales.watch(sale, (event) => void heard.push(event));
    expect(heard).toMatchObject([
      { type: 'state', state: 'open' },
      { type: 'stock', item: { code: 'voucher', free: 2 } },
    ]);
    await place(sale, 'a');
    await expect.poll(() => heard.at(-1)).toMatchObject({ type: 'stock', item: { free: 1, reserved: 1 } });
    await shop.sales.pause(sale);
    await expect.poll(() => heard.at(-1)).toMatchObject({ type: 'state', state: 'paused' });
    stop!();
    const { length } = heard;
    await shop.sales.resume(sale);
    await new Promise((resolve) => setTimeout(resolve, 250));
    expect(heard).toHaveLength(length);
    expect(await shop.sales.watch('1', () => {})).toBeNull();
    expect(await shop.sales.watch('x', () => {})).toBeNull();
  });

  it('a watcher that throws takes nothing from the others', async () => {
    const sale = await newSale({ stock: 2 });
    let first = true;
    await shop.sales.watch(sale, () => {
      if (!first) throw new Error('a bug of the owner');
    });
    first = false;
    const heard: SaleEvent[] = [];
    await shop.sales.watch(sale, (event) => void heard.push(event));
    await place(sale, 'a');
    await expect.poll(() => heard.at(-1)).toMatchObject({ type: 'stock', item: { reserved: 1 } });
    await shop.sales.pause(sale);
    await expect.poll(() => heard.at(-1)).toMatchObject({ type: 'state', state: 'paused' });
  });
});

describe('options', () => {
  it.each<[string, object, RegExp]>([
    ['a misspelt option', { sandbx: true }, /no option "sandbx"; is it sandbox\?/],
    ['one that there is none of', { retries: 3 }, /no option "retries"; there are data, database/],
    [
      'a misspelt option of http',
      { http: { rateLimitBuyers: 5 } },
      /http has no option "rateLimitBuyers".*rateLimitBuyer\?/,
    ],
    ['a setting of the server alone', { http: { adminKeys: [] } }, /http has no option "adminKeys"/],
    ['http that is no object', { http: 'on' }, /^http must be an object/],
    ['a word for true', { sandbox: 'on' }, /^sandbox must be true or false/],
    ['a word for false', { http: { requireExp: 'off' } }, /^http\.requireExp must be true or false/],
    ['no orders at all', { http: { rateLimitBuyer: 0 } }, /^http\.rateLimitBuyer must be .* from 1 to/],
    ['a number as text', { http: { rateLimitBuyer: '5' } }, /^http\.rateLimitBuyer must be a whole number/],
    ['half a request', { http: { inFlightMax: 0.5 } }, /^http\.inFlightMax/],
    ['one origin as text', { http: { corsOrigins: 'https://shop.example' } }, /^http\.corsOrigins must be an array/],
    ['one secret as text', { http: { paymentSecrets: 'secret' } }, /^http\.paymentSecrets must be an array/],
    [
      'a provider’s secret as text',
      { http: { providerSecrets: { CARDS: 's' } } },
      /^http\.providerSecrets of CARDS must/,
    ],
    [
      'a provider without secrets',
      { http: { providerSecrets: { CARDS: [] } } },
      /^http\.providerSecrets of CARDS must/,
    ],
    [
      'a provider under two names',
      { http: { providerSecrets: { cards: ['a'], CARDS: ['b'] } } },
      /^http\.providerSecrets names the provider CARDS twice/,
    ],
    ['a proxy that is none', { http: { trustProxy: 'all' } }, /^http\.trustProxy must be/],
    ['an admin key that is no text', { adminKey: 7 }, /^adminKey must be a text/],
    ['three secrets', { authSecret: 'a,b,c' }, /^authSecret must be one secret, or two/],
    ['a log that is none', { log: 'info' }, /^log must be/],
  ])('%s is refused by name', async (_, options, words) => {
    const folder = join(temporaryFolder(), 'options');
    const opened = createDoorbuster({ data: folder, ...options } as never);
    await expect(opened).rejects.toMatchObject({ code: 'bad_config', message: expect.stringMatching(words) });
  });

  it('a provider’s secrets are found however its name is written', () => {
    const { http } = checkedOptions({ data: 'x', http: { providerSecrets: { 'my-bank': ['a'], cards: ['b'] } } });
    expect(http).toEqual({ providerSecrets: { MY_BANK: ['a'], CARDS: ['b'] } });
  });

  it('an option that is undefined is left out', async () => {
    const folder = join(temporaryFolder(), 'undefined');
    const made = await openShop({ data: folder, log: undefined, http: { rateLimitBuyer: undefined } } as never);
    expect(made.readiness().status).toBe('ok');
  });

  it('a listener for an unknown event is refused', () => {
    expect(() => shop.on('order.payed' as never, () => {})).toThrow(
      'there is no event "order.payed"; is it order.paid?',
    );
    expect(() => shop.on('order.paid', undefined as never)).toThrow('must be a function');
  });

  it('handler() says which key is missing', async () => {
    const folder = join(temporaryFolder(), 'keyless');
    const keyless = await openShop({ data: folder, adminKey: '' });
    expect(() => keyless.handler()).toThrow(/adminKey is empty, authSecret is undefined/);
  });
});

describe('opening and closing', () => {
  it('needs a data folder', async () => {
    for (const options of [undefined, {}, { data: '' }, { data: 7 }]) {
      await expect(createDoorbuster(options as never)).rejects.toMatchObject({
        name: 'TerminalError',
        code: 'bad_config',
      });
    }
  });

  it('two shops on one folder: the second fails with data_in_use, and the first goes on', async () => {
    const error = await createDoorbuster({ data }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(TerminalError);
    expect(error).toBeInstanceOf(DoorbusterError);
    expect(error).toMatchObject({ code: 'data_in_use', message: expect.stringContaining(data) });
    expect((error as Error).message).toMatch(/or an earlier createDoorbuster of this one that was not closed/);
    expect(code(await place(await newSale(), 'alice'))).toBe('ok');
    await shop.close();
    const again = await openShop();
    expect((await again.orders.list({ buyer: 'alice' })).data).toHaveLength(1);
  });

  it('a shop that cannot be opened leaves its folder free', async () => {
    const folder = join(temporaryFolder(), 'refused');
    const life = { ...NO_PAYMENTS, payments: { sandbox: false, providers: [null as never] } };
    await expect(EmbeddedShop.open(folder, systemRuntime(), life)).rejects.toThrow(TypeError);
    await openShop({ data: folder });
  });

  it.each([
    ['the first orders ever', false],
    ['orders of a shop that has sold before', true],
  ])('P3: close() finishes what is in flight: %s', async (_, warm) => {
    const sale = await newSale({ stock: 1000 });
    if (warm) await place(sale, 'warm');
    const inFlight = Array.from({ length: 200 }, (_, index) => place(sale, `b${index}`, { key: `k${index}` }));
    await shop.close();
    const results = await Promise.allSettled(inFlight);
    const told = results.map((result) => (result.status === 'fulfilled' ? code(result.value) : String(result.reason)));
    expect(new Set(told)).toEqual(new Set(['ok']));
    const again = await openShop();
    expect((await again.sales.get(sale))!.items[0]!.reserved).toBe(warm ? 201 : 200);
  });

  it('then place() fails with unavailable, from the call of close() on, also for a key that is known', async () => {
    const sale = await newSale();
    await place(sale, 'alice', { key: 'k' });
    const refusal = { name: 'RetryableError', code: 'unavailable' };
    const closed = shop.close();
    const late = place(sale, 'late').catch((error: unknown) => error);
    await closed;
    await expect(place(sale, 'bob')).rejects.toMatchObject(refusal);
    await expect(place(sale, 'alice', { key: 'k' })).rejects.toMatchObject(refusal);
    expect(await late).toMatchObject(refusal);
    const again = await openShop();
    expect((await again.orders.list({ saleId: sale })).data.map(({ buyer }) => buyer)).toEqual(['alice']);
  });

  it('after close() every other call fails too, at once, as a DoorbusterError', async () => {
    const sale = await newSale();
    await place(sale, 'alice');
    await shop.orders.list();
    await shop.close();
    const calls: [string, () => Promise<unknown>][] = [
      ['sales.create', () => shop.sales.create(input())],
      ['sales.pause', () => shop.sales.pause(sale)],
      ['sales.get', () => shop.sales.get(sale)],
      ['sales.list', () => shop.sales.list()],
      ['sales.watch', () => shop.sales.watch(sale, () => {})],
      ['orders.get', () => shop.orders.get('1')],
      ['orders.list', () => shop.orders.list()],
      ['orders.list of a buyer', () => shop.orders.list({ buyer: 'alice' })],
    ];
    const told = await Promise.all(
      calls.map(async ([name, call]) => {
        const late = new Promise((resolve) => setTimeout(resolve, 1000, 'no answer'));
        const error = await Promise.race([call().catch((thrown: unknown) => thrown), late]);
        return [name, error instanceof DoorbusterError ? error.code : error];
      }),
    );
    expect(told).toEqual(calls.map(([name]) => [name, 'unavailable']));
    expect(shop.readiness().status).toBe('unavailable');
  });

  it('close() twice: both wait until the folder is free', async () => {
    const first = shop.close();
    await shop.close();
    await openShop();
    await first;
  });

  it('await using closes it', async () => {
    const folder = join(temporaryFolder(), 'using');
    {
      await using inner = await createDoorbuster({ data: folder });
      expect(inner.readiness().status).toBe('ok');
    }
    await (await createDoorbuster({ data: folder })).close();
  });

  it('a program that leaves the shop open can still end', async () => {
    const { code: exit } = await spawnModule(`
      import { createDoorbuster } from '${new URL('../../src/index.ts', import.meta.url).href}';
      const shop = await createDoorbuster({ data: ${JSON.stringify(join(temporaryFolder(), 'data'))} });
      await shop.orders.list();
    `);
    expect(exit).toBe(0);
  });
});

describe('over HTTP: handler()', () => {
  let server: Server | null = null;
  afterEach(async () => {
    server?.closeAllConnections();
    await new Promise((resolve) => (server === null ? resolve(null) : server.close(resolve)));
    server = null;
  });
  async function listen(handler: ReturnType<Doorbuster['handler']>): Promise<ReturnType<typeof caller>> {
    server = createServer(handler);
    await new Promise<void>((resolve) => server!.listen(0, '127.0.0.1', resolve));
    return caller(`http://127.0.0.1:${(server.address() as { port: number }).port}`);
  }

  it('without adminKey and authSecret it throws bad_config', async () => {
    for (const options of [{}, { adminKey: 'k' }, { authSecret: 's' }, { adminKey: '', authSecret: '' }]) {
      const bare = await createDoorbuster({ data: join(temporaryFolder(), 'bare'), ...options });
      expect(() => bare.handler()).toThrow(TerminalError);
      await bare.close();
    }
  });

  it('is the same shop: what the library sells HTTP sees, and the other way round', async () => {
    const call = await listen(shop.handler());
    const sale = await newSale({ perBuyer: 2 });
    const placed = await call('POST', `/v1/sales/${sale}/orders`, {
      buyer: 'alice',
      key: 'k',
      body: { item: 'voucher' },
    });
    expect(placed.status).toBe(201);
    expect(await shop.orders.get(placed.body.id)).toEqual(placed.body);
    expect(await place(sale, 'alice', { key: 'k' })).toEqual({ ok: true, order: placed.body, replayed: true });
    const made = await call('POST', '/v1/sales', { admin: true, body: saleBody() });
    expect(await shop.sales.get(made.body.id)).toEqual(made.body);
    expectProblem(await call('GET', '/nope'), 404, 'not_found');
    expect((await call('GET', '/openapi.json')).status).toBe(200);
  });

  it('after close() it answers 503 as a problem', async () => {
    const call = await listen(shop.handler());
    const sale = await newSale();
    expect((await call('GET', '/v1/time')).status).toBe(200);
    await shop.close();
    const answer = await call('POST', `/v1/sales/${sale}/orders`, { buyer: 'alice', body: { item: 'voucher' } });
    expectProblem(answer, 503, 'unavailable');
    expect((await call('GET', '/readyz')).body).toMatchObject({ status: 'unavailable' });
  });
});

describe('over HTTP: settings', () => {
  it('http: limits other than the defaults', async () => {
    const data = join(temporaryFolder(), 'settings');
    const limited = await createDoorbuster({
      data,
      adminKey: ADMIN_KEY,
      authSecret: AUTH_SECRET,
      http: { rateLimitBuyer: 1, eventLoopDelayMsMax: 60_000 },
    });
    const server = createServer(limited.handler()).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const call = caller(`http://127.0.0.1:${(server.address() as { port: number }).port}`);
    const statuses = await Promise.all(
      [1, 2, 3].map(async () => (await call('POST', '/v1/sales/1/orders', { buyer: 'b', body: { item: 'v' } })).status),
    );
    expect(statuses.sort()).toEqual([404, 429, 429]);
    server.closeAllConnections();
    server.close();
    await limited.close();
  });

  it('a body that a parser in front has read is answered, and not waited for', async () => {
    const data = join(temporaryFolder(), 'parsed');
    const shop = await createDoorbuster({ data, adminKey: ADMIN_KEY, authSecret: AUTH_SECRET });
    const app = express();
    app.use(express.json());
    app.use(shop.handler());
    const server = app.listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const call = caller(`http://127.0.0.1:${(server.address() as { port: number }).port}`);
    expect((await call('POST', '/v1/sales', { admin: true, body: { name: 'x' } })).status).toBe(500);
    expect((await call('GET', '/v1/sales')).status).toBe(200);
    server.closeAllConnections();
    server.close();
    await shop.close();
  });
});

describe('in a Fastify application of the user’s', () => {
  let app: FastifyInstance;
  beforeEach(() => {
    app = Fastify();
  });
  afterEach(() => app.close());
  const options = () => ({ shop, prefix: '/shop' });
  const admin = { authorization: `Bearer ${ADMIN_KEY}`, 'content-type': 'application/json' };

  it('keeps the user’s 404, error handler, parsers and validation', async () => {
    app.setNotFoundHandler((_, reply) => reply.code(404).send({ mine: 'not found' }));
    app.setErrorHandler((error, _, reply) => reply.code(418).send({ mine: (error as Error).message }));
    app.addContentTypeParser('text/plain', { parseAs: 'string' }, (_, body, done) => done(null, `parsed ${body}`));
    app.get('/fails', () => {
      throw new Error('my own');
    });
    app.post('/echo', (request) => ({ body: request.body }));
    const querystring = { type: 'object', properties: { n: { type: 'integer' } } };
    app.get('/coerced', { schema: { querystring } }, (request) => request.query);
    await app.register(doorbusterPlugin, options());

    const inject = async (method: 'GET' | 'POST', url: string, more: object = {}) => {
      const answer = await app.inject({ method, url, ...more });
      return [answer.statusCode, answer.json()];
    };
    expect(await inject('GET', '/fails')).toEqual([418, { mine: 'my own' }]);
    expect(await inject('GET', '/nope')).toEqual([404, { mine: 'not found' }]);
    expect(await inject('GET', '/shop/nope')).toEqual([404, { mine: 'not found' }]);
    expect(await inject('GET', '/coerced?n=7&more=1')).toEqual([200, { n: 7, more: '1' }]);
    expect(await inject('POST', '/echo', { headers: { 'content-type': 'text/plain' }, payload: 'hi' })).toEqual([
      200,
      { body: 'parsed hi' },
    ]);
    const large = 'x'.repeat(100 * 1024);
    expect(await inject('POST', '/echo', { payload: { large } })).toEqual([200, { body: { large } }]);
    const mine = await app.inject('/fails');
    expect(mine.headers['content-security-policy']).toBeUndefined();
    // Its own routes still answer as the contract says.
    expect(await inject('GET', '/shop/v1/sales/1')).toMatchObject([404, { code: 'not_found' }]);
    expect(await inject('POST', '/shop/v1/sales', { headers: admin, payload: '{' })).toMatchObject([
      400,
      { code: 'malformed_json' },
    ]);
    expect(await inject('POST', '/shop/v1/sales', { headers: admin, payload: {} })).toMatchObject([
      422,
      { code: 'invalid_request' },
    ]);
    expect(await inject('POST', '/shop/v1/time')).toMatchObject([405, { code: 'method_not_allowed' }]);
  });

  it('sells under a prefix, and a Location leads to what it names', async () => {
    await app.register(doorbusterPlugin, options());
    const url = await app.listen({ port: 0, host: '127.0.0.1' });
    const call = caller(url);
    const made = await call('POST', '/shop/v1/sales', { admin: true, body: saleBody() });
    expect(made.status).toBe(201);
    const placed = await call('POST', `/shop/v1/sales/${made.body.id}/orders`, {
      buyer: 'a',
      body: { item: 'voucher' },
    });
    expect(placed.status).toBe(201);
    for (const answer of [made, placed]) {
      const named = await call('GET', answer.headers.get('location')!, { admin: true });
      expect([answer.headers.get('location'), named.status, named.body.id]).toEqual([
        expect.any(String),
        200,
        answer.body.id,
      ]);
    }
  });

  it('what guards the routes guards them under a prefix too', async () => {
    await app.register(doorbusterPlugin, options());
    await app.ready();
    await shop.close();
    const answer = await app.inject('/shop/v1/time');
    expect([answer.statusCode, answer.json().code]).toEqual([503, 'unavailable']);
    expect((await app.inject('/shop/healthz')).statusCode).toBe(200);
  });

  it('lives beside the user’s own OpenAPI document', async () => {
    await app.register(swagger, { openapi: { info: { title: 'mine', version: '1' } } });
    await app.register(doorbusterPlugin, options());
    await app.ready();
    expect((app as unknown as { swagger(): { info: { title: string } } }).swagger().info.title).toBe('mine');
    const theirs = (await app.inject('/shop/openapi.json')).json();
    expect(theirs.info.title).toBe('Doorbuster');
    expect((await app.inject('/shop/docs/json')).json()).toEqual(theirs);
    expect((await app.inject('/shop/docs/yaml')).statusCode).toBe(404);
  });

  it('lives beside the user’s own serializer', async () => {
    app.setSerializerCompiler(() => () => '"mine"');
    app.get('/mine', { schema: { response: { 200: { type: 'object' } } } }, () => ({}));
    await app.register(doorbusterPlugin, options());
    expect((await app.inject('/mine')).body).toBe('"mine"');
    expect((await app.inject('/shop/healthz')).json()).toEqual({ status: 'ok' });
  });

  it('lives beside a decoration of the request that is called `buyer`', async () => {
    app.decorateRequest('buyer', 'theirs');
    await app.register(doorbusterPlugin, options());
    expect((await app.inject('/shop/healthz')).statusCode).toBe(200);
  });

  it('does not close the shop with the application: that stays the user’s', async () => {
    await app.register(doorbusterPlugin, options());
    await app.ready();
    await app.close();
    expect(code(await place(await newSale(), 'alice'))).toBe('ok');
  });

  it('without secrets, or with something else than a shop, it does not start', async () => {
    const bare = await createDoorbuster({ data: join(temporaryFolder(), 'bare') });
    await expect(Fastify().register(doorbusterPlugin, { shop: bare })).rejects.toMatchObject({ code: 'bad_config' });
    await bare.close();
    await expect(Fastify().register(doorbusterPlugin, { shop: {} as Doorbuster })).rejects.toMatchObject({
      code: 'bad_config',
    });
  });
});
