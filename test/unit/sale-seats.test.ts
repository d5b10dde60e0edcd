import { describe, expect, it } from 'vitest';
import { newSaleOf } from '../../src/contract/convert.ts';
import * as S from '../../src/contract/schemas.ts';
import { BlockSeats, MoveOrder, withSeats } from '../../src/contract/seats.ts';
import { faults } from '../../src/contract/validate.ts';
import { namedTwice, SaleSeats } from '../../src/model/sale-seats.ts';
import { buildSeatMap, type SeatRowDefinition } from '../../src/model/seat-map.ts';

const map = (...rows: SeatRowDefinition[]) => buildSeatMap(rows);

const sale = new SaleSeats('5', [
  {
    id: '1',
    code: 'stalls',
    map: map({ section: 'S', row: 'A', from: 1, to: 4 }, { section: 'S', row: 'B', from: 1, to: 2 }),
  },
  { id: '2', code: 'standing', map: null },
  // Shares row A with the stalls.
  { id: '3', code: 'aisle', map: map({ section: 'S', row: 'A', numbers: [9, 8] }) },
]);

describe('the seats of a sale', () => {
  it('knows its items by code and by id, and which of them are counted', () => {
    expect(sale.size).toBe(8);
    expect(sale.coded('aisle')?.id).toBe('3');
    expect(sale.item('1')?.code).toBe('stalls');
    expect([sale.coded('standing'), sale.item('2'), sale.coded('x')]).toEqual([null, null, null]);
    expect([sale.isCounted('standing'), sale.isCounted('stalls'), sale.isCounted('x')]).toEqual([true, false, false]);
  });

  it('finds seats by name, also where two items share a row', () => {
    expect(sale.find('S/A/4')).toMatchObject({ item: { code: 'stalls' }, seat: 3 });
    expect(sale.find('S/A/8')).toMatchObject({ item: { code: 'aisle' }, seat: 0 });
    for (const name of ['S/A/5', 'S/A/04', 'S/C/1', 'A/1', '', '/', 's/A/1', 'S/A/1/1'])
      expect(sale.find(name)).toBeNull();
  });

  it('sorts named seats by item and number, and says which are unknown', () => {
    const { found, unknown } = sale.findAll(['S/B/1', 'x', 'S/A/9', 'S/A/1']);
    expect(found.map(({ item, seats }) => [item.code, seats])).toEqual([
      ['stalls', [0, 4]],
      ['aisle', [1]],
    ]);
    expect(unknown).toEqual(['x']);
    expect(sale.names('1', [0, 4])).toEqual(['S/A/1', 'S/B/1']);
    expect(() => sale.names('2', [0])).toThrow(RangeError);
  });

  it('a name that is given twice', () => {
    expect([namedTwice(['a', 'b', 'a', 'b']), namedTwice(['a', 'b']), namedTwice([])]).toEqual([2, null, null]);
  });
});

describe('a definition', () => {
  const price = { amount: 1, currency: 'CNY' };
  const rows = (count: number, seats = 500): SeatRowDefinition[] =>
    Array.from({ length: count }, (_, at) => ({ section: 'S', row: `${at}`, from: 1, to: seats }));
  const body = (seats: SeatRowDefinition[], more: object[] = []): S.NewSaleBody => ({
    ...{ name: 'x', opensAt: '2026-01-01T00:00:00Z', closesAt: '2027-01-01T00:00:00Z' },
    items: [{ code: 'a', name: 'A', price, seats }, ...more] as S.NewSaleBody['items'],
  });

  it('of 100 000 seats is good, and of 100 001 not; the sale counts and not the item', () => {
    const full = body(rows(200));
    expect(faults(S.NewSale, full)).toEqual([]);
    const made = newSaleOf(full);
    expect(Array.isArray(made)).toBe(false);
    expect(made).toMatchObject({ items: [{ code: 'a', stock: 100_000, seats: { size: 100_000 } }] });
    const one = { code: 'b', name: 'B', price, seats: [{ section: 'T', row: '1', from: 1, to: 1 }] };
    expect(newSaleOf(body(rows(200), [one]))).toEqual([
      { path: '/items/1/seats', message: 'a sale has at most 100000 seats' },
    ]);
    // Its JSON fits into the limit of a body, also as numbers.
    const longest = body(
      rows(200).map(({ from: _, to, ...row }) => ({
        ...row,
        numbers: Array.from({ length: to! }, (_n, at) => 100_000 + at),
      })),
    );
    expect(JSON.stringify(longest).length).toBeLessThan(4 * 1024 * 1024);
  });

  it('of 20 000 rows is good, and of 20 001 not', () => {
    expect(faults(S.NewSale, body(rows(20_000, 5)))).toEqual([]);
    expect(Array.isArray(newSaleOf(body(rows(20_000, 5))))).toBe(false);
    expect(faults(S.NewSale, body(rows(20_001, 4)))[0]?.path).toBe('/items/0/seats');
  });

  it('with thousands of faults names the first twenty', () => {
    const bad = rows(5000).map((row) => ({ ...row, to: 0 }));
    const found = withSeats([{ seats: bad }]) as { path: string }[];
    expect(found).toHaveLength(20);
    expect(found[0]).toEqual({ path: '/items/0/seats/0/to', message: 'must not be less than "from"' });
  });

  it('a counted item stays as it was', () => {
    expect(withSeats([{ ...{ code: 'a' }, stock: 3 }])).toEqual([{ code: 'a', stock: 3 }]);
    expect(withSeats([{}])).toEqual([
      { path: '/items/0/stock', message: 'is missing: an item has either "stock" or "seats"' },
    ]);
  });
});

describe('lists of seats', () => {
  const names = (count: number) => Array.from({ length: count }, (_, at) => `S/A/${at}`);

  it('an order and a move have up to 100, a block up to 1 000', () => {
    for (const [schema, most] of [
      [S.NewOrder, 100],
      [MoveOrder, 100],
      [BlockSeats, 1000],
    ] as const) {
      expect(faults(schema, { seats: names(most) })).toEqual([]);
      expect(faults(schema, { seats: names(most + 1) })[0]?.path).toBe('/seats');
      expect(faults(schema, { seats: [] })[0]?.path).toBe('/seats');
    }
  });

  it('a name has as many characters as the longest seat of a map', () => {
    const longest = `${'S'.repeat(64)}/${'R'.repeat(64)}/999999`;
    expect(faults(S.NewOrder, { seats: [longest] })).toEqual([]);
    expect(faults(S.NewOrder, { seats: [`${longest}0`] })[0]?.path).toBe('/seats/0');
    for (const bad of ['', ' S/A/1', 'S/A/1 ', 'S/\u0000/1', 'S/\ud800/1']) {
      expect(faults(S.NewOrder, { seats: [bad] })[0]?.path, JSON.stringify(bad)).toBe('/seats/0');
    }
  });
});
