import { describe, expect, it } from 'vitest';
import {
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
