import { describe, expect, it } from 'vitest';
import {
  BOUNDS,
  type DescribedPatch,
  describedFaults,
  isSoldAs,
  ledgerFree,
  newSaleFaults,
  nextWindowChangeMs,
  type SaleWindow,
  saleState,
  windowFaults,
  windowRefusal,
} from '../../src/model/sale.ts';

const OPENS = 1000;
const CLOSES = 2000;

function window(flags: string): SaleWindow {
  return {
    opensAtMs: OPENS,
    closesAtMs: CLOSES,
    paused: flags.includes('paused'),
    closed: flags.includes('closed'),
  };
}

/** Every combination of flags, instant and stock: the gate's refusal, and the state that is shown. */
const TABLE = [
  // flags, now, refusal, state with stock, state without
  ['', OPENS - 1, 'sale_not_open', 'scheduled', 'scheduled'],
  ['', OPENS, null, 'open', 'sold_out'],
  ['', CLOSES - 1, null, 'open', 'sold_out'],
  ['', CLOSES, 'sale_closed', 'closed', 'closed'],
  ['', CLOSES + 1, 'sale_closed', 'closed', 'closed'],
  ['paused', OPENS - 1, 'sale_not_open', 'paused', 'paused'],
  ['paused', OPENS, 'sale_paused', 'paused', 'paused'],
  ['paused', CLOSES - 1, 'sale_paused', 'paused', 'paused'],
  ['paused', CLOSES, 'sale_closed', 'closed', 'closed'],
  ['closed', OPENS - 1, 'sale_closed', 'closed', 'closed'],
  ['closed', OPENS, 'sale_closed', 'closed', 'closed'],
  ['closed', CLOSES, 'sale_closed', 'closed', 'closed'],
  ['closed paused', OPENS - 1, 'sale_closed', 'closed', 'closed'],
  ['closed paused', OPENS, 'sale_closed', 'closed', 'closed'],
] as const;

describe('the window of a sale', () => {
  it.each(TABLE)('%j at %i: %s, %s, sold out: %s', (flags, nowMs, refusal, withStock, without) => {
    expect(windowRefusal(window(flags), nowMs)).toBe(refusal);
    expect(saleState(window(flags), 1, nowMs)).toBe(withStock);
    expect(saleState(window(flags), 0, nowMs)).toBe(without);
    expect(saleState(window(flags), -1, nowMs)).toBe(without);
  });

  it('a sale that a person is shown as open sells, and only such a one', () => {
    for (const [flags, nowMs] of TABLE) {
      const sells = windowRefusal(window(flags), nowMs) === null;
      expect(saleState(window(flags), 1, nowMs) === 'open').toBe(sells);
    }
  });

  it.each([
    ['', OPENS - 1, OPENS],
    ['', OPENS, CLOSES],
    ['', CLOSES - 1, CLOSES],
    ['', CLOSES, null],
    ['paused', OPENS - 1, OPENS],
    ['closed', OPENS - 1, null],
  ])('%j at %i changes by time alone at %s', (flags, nowMs, next) => {
    expect(nextWindowChangeMs(window(flags), nowMs)).toBe(next);
  });

  it('ends after it begins', () => {
    expect(windowFaults(1, 2)).toEqual([]);
    expect(windowFaults(2, 2)).toMatchObject([{ path: '/closesAt' }]);
    expect(windowFaults(3, 2)).toMatchObject([{ path: '/closesAt' }]);
  });
});

describe('a new sale', () => {
  const item = (code: string) => ({ code, name: code, price: { amount: 1, currency: 'CNY' }, stock: 1 });

  it('names every code that stands twice, and a window that is turned around', () => {
    const items = ['a', 'b', 'a', 'A', 'b'].map(item);
    expect(newSaleFaults({ opensAtMs: 1, closesAtMs: 2, items }).map(({ path }) => path)).toEqual([
      '/items/2/code',
      '/items/4/code',
    ]);
    expect(newSaleFaults({ opensAtMs: 2, closesAtMs: 1, items: [item('a')] }).map(({ path }) => path)).toEqual([
      '/closesAt',
    ]);
    expect(newSaleFaults({ opensAtMs: 1, closesAtMs: 2, items: [item('a')] })).toEqual([]);
  });
});

it('P9: what is free in the ledger is what is not reserved, sold or blocked', () => {
  expect(ledgerFree({ total: 10, reserved: 1, sold: 2, blocked: 3 })).toBe(4);
});

describe('what a sale and an item say', () => {
  const pathsOf = (described: DescribedPatch) => describedFaults(described, '/items/3').map(({ path }) => path);

  it('metadata: 4096 bytes as JSON, and not one more', () => {
    // {"a":"…"} is 8 characters around the value, and each of these letters is three bytes.
    const full = { a: `${'双'.repeat(1362)}xx` };
    expect(Buffer.byteLength(JSON.stringify(full))).toBe(BOUNDS.metadataBytesMax);
    expect(pathsOf({ metadata: full })).toEqual([]);
    expect(pathsOf({ metadata: { a: `${full.a}x` } })).toEqual(['/items/3/metadata']);
    expect(pathsOf({ metadata: {} })).toEqual([]);
  });

  it('an image is a URL; nothing is wrong with none, or with one that is taken away', () => {
    expect(pathsOf({ image: 'https://shop.example/a.png?x=1#y' })).toEqual([]);
    for (const image of ['https://', 'https://[', 'https://a:99999/', 'https://:80/']) {
      expect([image, pathsOf({ image })]).toEqual([image, ['/items/3/image']]);
    }
    expect(pathsOf({})).toEqual([]);
    expect(pathsOf({ description: null, image: null, metadata: null })).toEqual([]);
  });

  it('a new sale names the item whose texts are off', () => {
    const item = { code: 'a', name: 'A', price: { amount: 1, currency: 'CNY' }, stock: 1 };
    const items = [item, { ...item, code: 'b', image: 'https://[' }];
    const sale = { opensAtMs: 0, closesAtMs: 1, items, metadata: { a: 'x'.repeat(4089) } };
    expect(newSaleFaults(sale).map(({ path }) => path)).toEqual(['/metadata', '/items/1/image']);
  });
});

it('an item is sold as before unless its price changes, or whether it is on sale', () => {
  const item = { price: { amount: 100, currency: 'CNY' }, onSale: true };
  expect(isSoldAs(item, { ...item, price: { ...item.price } })).toBe(true);
  expect(isSoldAs(item, { ...item, price: { amount: 101, currency: 'CNY' } })).toBe(false);
  expect(isSoldAs(item, { ...item, price: { amount: 100, currency: 'EUR' } })).toBe(false);
  expect(isSoldAs(item, { ...item, onSale: false })).toBe(false);
});
