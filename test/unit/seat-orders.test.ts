import { beforeEach, describe, expect, it } from 'vitest';
import { SaleSeats } from '../../src/model/sale-seats.ts';
import { buildSeatMap } from '../../src/model/seat-map.ts';
import type { PlaceRequest, PlaceResult } from '../../src/orders/place.ts';
import { type OrderRequest, SeatOrders } from '../../src/orders/seat-orders.ts';

const map = (row: string) => buildSeatMap([{ section: 'S', row, from: 1, to: 9 }]);
const seats = new SaleSeats('5', [
  { id: '1', code: 'stalls', map: map('A') },
  { id: '2', code: 'voucher', map: null },
]);

/** What reaches the gate, and what a buyer is told of its answer. */
describe('orders on their way to the gate', () => {
  let placed: Partial<PlaceRequest>[];
  let answer: (request: PlaceRequest) => PlaceResult;
  let known: boolean;
  let looked: number;
  const again: unknown[] = [];
  let orders: SeatOrders;

  beforeEach(() => {
    placed = [];
    known = true;
    looked = 0;
    // As a gate does: units of a seated item are not known to it.
    answer = ({ itemCode, seats: wish }) => {
      const isSeated = itemCode === 'stalls';
      const isKnown = isSeated || itemCode === 'voucher';
      return { ok: false, code: isKnown && isSeated === (wish !== undefined) ? 'sold_out' : 'not_found' };
    };
    orders = new SeatOrders({
      peek: () => (known ? seats : null),
      seatsOf: async (saleId) => {
        looked++;
        return saleId === '5' ? seats : null;
      },
      place: async (request) => {
        const { saleId: _, buyer: __, key: ___, ...rest } = request;
        placed.push(rest);
        return answer(request);
      },
      again: async ({ seats: wish, quantity }) => {
        again.push(wish ?? quantity);
        return null;
      },
    });
  });

  const place = (order: Partial<OrderRequest>) => orders.place({ saleId: '5', buyer: 'b', key: null, ...order });

  it('P5: a repeat is looked for as what it asked for; what was never ordered is none', async () => {
    again.length = 0;
    const repeat = (order: Partial<OrderRequest>) => orders.again({ saleId: '5', buyer: 'b', key: 'k', ...order });
    const [name] = seats.names(seats.items[0]!.id, [1]);
    expect(await repeat({ seats: [name!] })).toBeNull();
    expect(await repeat({ itemCode: 'stalls', quantity: 2, together: true })).toBeNull();
    expect(await repeat({ itemCode: 'stalls', quantity: 2 })).toBeNull();
    expect(await repeat({ itemCode: 'voucher', quantity: 3 })).toBeNull();
    expect(again).toEqual([[1], 'together', 'any', 3]);
    expect(placed).toEqual([]);
  });

  it('a counted item passes, and costs no look at seats', async () => {
    for (const isKnown of [true, false]) {
      known = isKnown;
      expect(await place({ itemCode: 'voucher', quantity: 3 })).toEqual({ ok: false, code: 'sold_out' });
    }
    expect(placed).toEqual([
      { itemCode: 'voucher', quantity: 3 },
      { itemCode: 'voucher', quantity: 3 },
    ]);
    expect(looked).toBe(0);
  });

  it('the best of a seated item: at once if its map is known, else when the gate does not know such units', async () => {
    await place({ itemCode: 'stalls' });
    expect(placed).toEqual([{ itemCode: 'stalls', quantity: 1, seats: 'any' }]);
    known = false;
    placed = [];
    expect(await place({ itemCode: 'stalls', quantity: 2 })).toEqual({ ok: false, code: 'sold_out' });
    expect(placed).toEqual([
      { itemCode: 'stalls', quantity: 2 },
      { itemCode: 'stalls', quantity: 2, seats: 'any' },
    ]);
    expect(await place({ itemCode: 'pit' })).toEqual({ ok: false, code: 'not_found' });
    expect(await place({ itemCode: 'stalls', saleId: '6' })).toEqual({ ok: false, code: 'not_found' });
  });

  it('`together: false` is the same as none', async () => {
    await place({ itemCode: 'stalls', quantity: 2, together: false });
    await place({ itemCode: 'stalls', quantity: 2, together: true });
    expect(placed.map((request) => request.seats)).toEqual(['any', 'together']);
  });

  it('names become numbers, ascending, of the item that they are of', async () => {
    await place({ seats: ['S/A/7', 'S/A/2'] });
    await place({ seats: ['S/A/2'], itemCode: 'stalls', quantity: 1 });
    expect(placed).toEqual([
      { itemCode: 'stalls', quantity: 2, seats: [1, 6] },
      { itemCode: 'stalls', quantity: 1, seats: [1] },
    ]);
  });

  it('taken seats are named', async () => {
    answer = () => ({ ok: false, code: 'seat_taken', seats: [1, 6] });
    expect(await place({ seats: ['S/A/7', 'S/A/2'] })).toEqual({
      ok: false,
      code: 'seat_taken',
      seats: ['S/A/2', 'S/A/7'],
    });
    answer = () => ({ ok: false, code: 'seat_taken', seats: [] });
    expect(await place({ itemCode: 'stalls', together: true })).toEqual({ ok: false, code: 'seat_taken', seats: [] });
  });

  it.each<[string, Partial<OrderRequest>, string]>([
    ['a seat twice', { seats: ['S/A/1', 'S/A/2', 'S/A/1'] }, '/seats/2'],
    ['together with names', { seats: ['S/A/1'], together: true }, '/together'],
    ['together with names, false', { seats: ['S/A/1'], together: false }, '/together'],
    ['another quantity', { seats: ['S/A/1'], quantity: 2 }, '/quantity'],
    ['another item', { seats: ['S/A/1'], itemCode: 'voucher' }, '/item'],
    ['together of a counted item', { itemCode: 'voucher', together: true }, '/together'],
    ['nothing', {}, '/item'],
  ])('%s is refused before the gate', async (_, order, path) => {
    expect(await place(order)).toEqual({
      ok: false,
      code: 'invalid_request',
      errors: [{ path, message: expect.any(String) }],
    });
    expect(placed).toEqual([]);
  });

  it.each<[string, Partial<OrderRequest>]>([
    ['an unknown seat', { seats: ['S/A/1', 'S/A/10'] }],
    ['a seat of an unknown sale', { seats: ['S/A/1'], saleId: '6' }],
    ['an unknown item', { itemCode: 'pit', together: true }],
  ])('%s is not found, before the gate', async (_, order) => {
    expect(await place(order)).toEqual({ ok: false, code: 'not_found' });
    expect(placed).toEqual([]);
  });
});
