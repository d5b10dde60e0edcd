import { beforeEach, describe, expect, it } from 'vitest';
import {
  type AdmitRequest,
  type Gate,
  houseHoldId,
  type ItemView,
  SEAT_CHANGES_MAX,
  type SeatChange,
  type SeatsMove,
  type SeatWish,
  type Verdict,
} from '../../src/gate/port.ts';
import { type OrderMessage, orderFingerprint } from '../../src/model/order.ts';
import { buildSeatMap, encodeSeatMap, type SeatRowDefinition } from '../../src/model/seat-map.ts';
import type { SaleSnapshot, SaleValues } from '../../src/model/snapshot.ts';
import { paged, type WholeSnapshot } from '../support/snapshot.ts';
import { countTests } from './count.ts';
import type { GateUnderTest } from './gate.ts';
import { T0 } from './manual.ts';

const HOUR_MS = 3600 * 1000;
const SALE = '7';
const STALLS = '11';
const STANDING = '12';
const BOX = '13';
const PRICE = { amount: 8000, currency: 'CNY' };

/** Seats 0–7, 8–12 and 13–15. In row B nobody sits beside seat 9 on the right. */
const ROWS: SeatRowDefinition[] = [
  { section: 'Stalls', row: 'A', from: 1, to: 8 },
  { section: 'Stalls', row: 'B', numbers: [1, 2, 4, 5, 6] },
  { section: 'Stalls', row: 'C', from: 1, to: 3 },
];

type Item = WholeSnapshot['items'][number];

function seated(id: string, code: string, rows: SeatRowDefinition[], over: Partial<Item> = {}): Item {
  const map = buildSeatMap(rows);
  const blocked = over.seats?.blocked ?? [];
  const item = { id, code, price: PRICE, total: map.size, blocked: blocked.length, rev: 1, ...over };
  return { ...item, seats: { map: encodeSeatMap(map), blocked } };
}

function snapshot(over: Partial<WholeSnapshot> = {}): SaleSnapshot {
  const all: WholeSnapshot = {
    ...{ saleId: SALE, epoch: 1, version: 1, opensAtMs: T0, closesAtMs: T0 + HOUR_MS, paused: false, closed: false },
    ...{ perBuyer: 100, payWithinSeconds: 900, mayAdmit: true },
    items: [
      seated(STALLS, 'stalls', ROWS),
      { id: STANDING, code: 'standing', price: PRICE, total: 5, blocked: 0, rev: 1 },
      seated(BOX, 'box', [{ section: 'Box', row: '1', from: 1, to: 1 }]),
    ],
    holds: [],
    keys: [],
    ...over,
  };
  // One order per page, so that the gate must join pages.
  return paged(all, 1);
}

function values(over: Partial<SaleValues>): SaleValues {
  const { version, opensAtMs, closesAtMs, paused, closed, perBuyer, payWithinSeconds } = snapshot();
  return { version: version + 1, opensAtMs, closesAtMs, paused, closed, perBuyer, payWithinSeconds, ...over };
}

const range = (from: number, to: number): number[] => Array.from({ length: to - from + 1 }, (_, at) => from + at);

/** The contract of seats in src/gate/port.ts. Every adapter passes all of it. */
export function gateSeatsContract(name: string, make: () => Promise<GateUnderTest>): void {
  describe(`gate contract, seats: ${name}`, () => {
    countTests('gate, seats', name);
    let gate: Gate;
    let emitted: GateUnderTest['emitted'];
    let lastOrderId: number;

    beforeEach(async () => {
      ({ gate, emitted } = await make());
      lastOrderId = 1000;
      await gate.install(snapshot());
    });

    function request(buyer: string, seats: SeatWish | undefined, over: Partial<AdmitRequest> = {}): AdmitRequest {
      const { itemCode = 'stalls', quantity = Array.isArray(seats) ? seats.length : 1 } = over;
      const fingerprint =
        typeof seats === 'string'
          ? orderFingerprint(itemCode, quantity, { together: seats === 'together' })
          : orderFingerprint(itemCode, quantity, { seats });
      const orderId = String(++lastOrderId);
      return { saleId: SALE, orderId, buyer, itemCode, quantity, seats, key: null, fingerprint, ...over };
    }

    function admit(buyer: string, seats: SeatWish | undefined, over: Partial<AdmitRequest> = {}): Promise<Verdict> {
      return gate.admit(request(buyer, seats, over));
    }

    async function admitted(buyer: string, seats: SeatWish, over: Partial<AdmitRequest> = {}): Promise<OrderMessage> {
      const verdict = await admit(buyer, seats, over);
      if (verdict.outcome !== 'admitted') throw new Error(`${buyer} should be admitted: ${JSON.stringify(verdict)}`);
      return verdict.message;
    }

    async function best(quantity: number, how: 'together' | 'any', buyer = 'b'): Promise<number[] | string> {
      const verdict = await admit(buyer, how, { quantity });
      return verdict.outcome === 'admitted' ? verdict.message.seats! : verdict.outcome;
    }

    async function states(itemId = STALLS): Promise<string> {
      const seen = await gate.seats(SALE);
      if (seen === null || !('items' in seen)) throw new Error('the gate shows no seats');
      return seen.items.find((item) => item.itemId === itemId)!.states;
    }

    async function n(): Promise<number> {
      return (await gate.seats(SALE))!.revision.n;
    }

    async function changesSince(since: number, epoch = 1): Promise<readonly SeatChange[] | null> {
      const seen = await gate.seats(SALE, { epoch, n: since });
      return seen && 'changes' in seen ? seen.changes : null;
    }

    async function stalls(): Promise<ItemView> {
      const view = (await gate.view(SALE))!.find(({ code }) => code === 'stalls')!;
      expect(view.free + view.queued + view.held + view.house + view.blocked, 'P9').toBe(view.total);
      return view;
    }

    async function changesNothing(act: () => Promise<unknown>): Promise<void> {
      const look = async () => ({
        seats: await gate.seats(SALE),
        view: await gate.view(SALE),
        emitted: (await emitted()).length,
      });
      const before = await look();
      await act();
      expect(await look()).toEqual(before);
    }

    function moved(order: OrderMessage, to: number[], rev: number, over: Partial<SeatsMove> = {}): SeatsMove {
      const { orderId, buyer } = order;
      return { orderId, buyer, itemId: STALLS, to, auditId: String(9000 + rev), rev, ...over };
    }

    /** As the rebuild gets it from the ledger. */
    function held(order: OrderMessage, over: Partial<WholeSnapshot['holds'][number]> = {}): WholeSnapshot['holds'][0] {
      const { orderId, itemId, buyer, slots, seats } = order;
      return { orderId, itemId, buyer, slots, ...(seats && { seats }), ...over };
    }

    describe('seats by number', () => {
      it('stand in the message, in the pipe in the same step, and in the hold', async () => {
        const message = await admitted('alice', [3, 4], { key: 'k1' });
        expect(message).toEqual({
          ...{ orderId: '1001', saleId: SALE, itemId: STALLS, itemCode: 'stalls', buyer: 'alice', quantity: 2 },
          ...{ slots: [1, 2], seats: [3, 4], price: PRICE, payWithinSeconds: 900, epoch: 1, key: 'k1' },
          fingerprint: 'stalls s3.4',
        });
        expect(await emitted()).toEqual([message]);
        expect(await states()).toBe('fffrrfffffffffff');
        expect(await stalls()).toMatchObject({ total: 16, free: 14, queued: 2, held: 0 });
        expect(await gate.holdOf(SALE, message)).toMatchObject({ queued: true, quantity: 2, seats: [3, 4] });
      });

      it('P1: all or none: those that are taken are named, and nothing is changed', async () => {
        await admitted('alice', [3, 4]);
        await gate.holdSeats(SALE, STALLS, [9], { holdId: 'h' });
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 2, seats: [15] });
        await changesNothing(async () => {
          expect(await admit('bob', [2, 3])).toEqual({ outcome: 'seat_taken', seats: [3] });
          expect(await admit('bob', [0, 4, 9, 15])).toEqual({ outcome: 'seat_taken', seats: [4, 9, 15] });
        });
      });

      it('P1: a seat has one order, also of orders that arrive at the same moment', async () => {
        const verdicts = await Promise.all(['a', 'b', 'c'].map((buyer) => admit(buyer, [7, 8])));
        expect(verdicts.map(({ outcome }) => outcome).toSorted()).toEqual(['admitted', 'seat_taken', 'seat_taken']);
        expect(await emitted()).toHaveLength(1);
      });

      it('may be in several rows, and in any number up to 100', async () => {
        await gate.install(
          snapshot({
            epoch: 2,
            items: [
              seated(STALLS, 'stalls', [
                { ...ROWS[0]!, to: 60 },
                { ...ROWS[2]!, to: 60 },
              ]),
            ],
          }),
        );
        const seats = range(10, 109);
        expect(await admitted('alice', seats)).toMatchObject({ quantity: 100, seats });
        expect(await states()).toBe(`${'f'.repeat(10)}${'r'.repeat(100)}${'f'.repeat(10)}`);
      });

      it('P1: an order id sent again gets the same seats, takes nothing and is not sent twice', async () => {
        for (const [seats, quantity] of [
          [[3, 4], 2],
          ['together', 3],
          ['any', 5],
        ] as const) {
          const asked = request('alice', seats, { quantity });
          const first = await gate.admit(asked);
          await changesNothing(async () => expect(await gate.admit(asked)).toEqual(first));
          await gate.settle(SALE, [asked]);
          await changesNothing(async () => expect(await gate.admit(asked)).toEqual(first));
        }
      });

      it('orders of several items in one moment', async () => {
        const wanted = [admitted('a', [3, 4]), admitted('b', [0], { itemCode: 'box', key: 'k' }), admitted('c', [9])];
        const counted = gate.admit(request('d', undefined, { itemCode: 'standing' }));
        const orders = await Promise.all(wanted);
        expect(orders.map(({ itemCode, seats }) => [itemCode, seats])).toEqual([
          ['stalls', [3, 4]],
          ['box', [0]],
          ['stalls', [9]],
        ]);
        const { message } = (await counted) as { message: OrderMessage };
        const byId = (a: OrderMessage, b: OrderMessage): number => Number(a.orderId) - Number(b.orderId);
        expect((await emitted()).toSorted(byId)).toEqual([...orders, message].toSorted(byId));
        expect([await states(), await states(BOX)]).toEqual(['fffrrffffrffffff', 'r']);
      });

      it('P10: an order for nothing fails alone', async () => {
        const bad: [SeatWish, number][] = [
          [[], 0],
          [[3, 3], 2],
          [[4, 3], 2],
          [[-1], 1],
          [[1.5], 1],
          [[1, 2], 3],
          ['together', 0],
          ['any', 1.5],
        ];
        const [good, ...others] = await Promise.allSettled([
          admit('a', [3]),
          ...bad.map(([seats, quantity]) => admit('b', seats, { quantity })),
        ]);
        expect(good).toMatchObject({ status: 'fulfilled', value: { outcome: 'admitted' } });
        for (const one of others) expect(one).toMatchObject({ status: 'rejected', reason: { code: 'internal' } });
        expect(await states()).toBe('fffrffffffffffff');
      });

      it('whoever placed an order for its buyer stands in its message', async () => {
        const placedBy = { auditId: '77', kind: 'admin', name: 'Eve', origin: null } as const;
        const [one, two] = await Promise.all([admitted('a', [0]), admitted('b', [1], { placedBy, key: 'k' })]);
        expect(await emitted()).toEqual([one, two]);
        expect(two.placedBy).toEqual(placedBy);
      });
    });

    describe('which refusal counts when several apply', () => {
      beforeEach(async () => {
        await gate.applySale(SALE, values({ perBuyer: 2 }));
        await admitted('alice', [0, 1], { key: 'bound' });
      });

      it('an item of the other kind, an unknown item and a seat that the map does not have are not_found, before the key', () =>
        changesNothing(async () => {
          const key = 'bound';
          expect(await admit('alice', [0], { itemCode: 'standing', key })).toEqual({ outcome: 'not_found' });
          expect(await admit('alice', 'any', { itemCode: 'standing', key })).toEqual({ outcome: 'not_found' });
          expect(await admit('alice', undefined, { key })).toEqual({ outcome: 'not_found' });
          expect(await admit('alice', [0], { itemCode: 'no-such', key })).toEqual({ outcome: 'not_found' });
          expect(await admit('alice', [0, 16], { key })).toEqual({ outcome: 'not_found' });
          expect(await admit('alice', [1], { itemCode: 'box', key })).toEqual({ outcome: 'not_found' });
        }));

      it('P5: then the key', () =>
        changesNothing(async () => {
          expect(await admit('alice', [0, 1], { key: 'bound' })).toEqual({ outcome: 'replayed', orderId: '1001' });
          expect(await admit('alice', [0, 2], { key: 'bound' })).toEqual({ outcome: 'idempotency_key_reused' });
          expect(await admit('alice', 'any', { quantity: 2, key: 'bound' })).toMatchObject({
            outcome: 'idempotency_key_reused',
          });
        }));

      it('then the window', async () => {
        await gate.applySale(SALE, values({ version: 3, perBuyer: 2, paused: true }));
        await changesNothing(async () => expect((await admit('alice', [0])).outcome).toBe('sale_paused'));
      });

      it('P2: then the limit, over all items of the sale', async () => {
        await changesNothing(async () => {
          expect(await admit('alice', [0])).toEqual({ outcome: 'limit_reached', orderIds: ['1001'], perBuyer: 2 });
          expect((await admit('bob', 'together', { quantity: 3 })).outcome).toBe('limit_reached');
        });
        await admitted('bob', [5]);
        expect((await admit('bob', undefined, { itemCode: 'standing' })).outcome).toBe('admitted');
        expect((await admit('bob', undefined, { itemCode: 'standing' })).outcome).toBe('limit_reached');
        expect((await admit('bob', [6])).outcome).toBe('limit_reached');
      });

      it('then seats that are taken, then sold_out, then not_together', async () => {
        await gate.applySale(SALE, values({ version: 3 }));
        await admitted('bob', [3, 5, 7, 9, 11, 14]);
        await changesNothing(async () => {
          expect((await admit('carol', [0, 2])).outcome).toBe('seat_taken');
          expect((await admit('carol', 'together', { quantity: 9 })).outcome).toBe('sold_out');
          expect((await admit('carol', 'any', { quantity: 9 })).outcome).toBe('sold_out');
          expect((await admit('carol', 'together', { quantity: 2 })).outcome).toBe('not_together');
        });
        expect(await best(8, 'any')).toEqual([2, 4, 6, 8, 10, 12, 13, 15]);
        expect(await best(1, 'together')).toBe('sold_out');
      });

      it('an item that is off sale has nothing free, and its seats are known', async () => {
        const items = [seated(STALLS, 'stalls', ROWS, { onSale: false })];
        await gate.install(snapshot({ epoch: 2, items }));
        await changesNothing(async () => {
          expect((await admit('b', [0])).outcome).toBe('sold_out');
          expect((await admit('b', [99])).outcome).toBe('not_found');
          expect((await admit('b', 'together')).outcome).toBe('sold_out');
          expect((await admit('b', 'any')).outcome).toBe('sold_out');
        });
      });
    });

    describe('best available', () => {
      it('together: the first row that has such a run, nearest to its centre, leaving no single seat', async () => {
        expect(await best(4, 'together')).toEqual([2, 3, 4, 5]);
        // Two seats are left on each side.
        expect(await best(3, 'together')).toEqual([10, 11, 12]);
        expect(await best(2, 'together')).toEqual([0, 1]);
        expect(await best(2, 'together')).toEqual([6, 7]);
        expect(await best(3, 'together')).toEqual([13, 14, 15]);
        expect(await best(2, 'together')).toEqual([8, 9]);
        expect(await best(1, 'together')).toBe('sold_out');
      });

      it('together: two seats with a gap between them are no neighbours', async () => {
        await admitted('x', range(0, 7));
        await admitted('x', [8, 11, 13, 14, 15]);
        expect(await best(2, 'together')).toBe('not_together');
        expect(await best(1, 'together')).toEqual([10]);
      });

      it('any: a row that has enough, from the centre outwards; else the emptiest rows', async () => {
        expect(await best(3, 'any')).toEqual([2, 3, 4]);
        expect(await best(5, 'any')).toEqual([0, 1, 5, 6, 7]);
        // No row has six: row B with five, then the centre of row C.
        expect(await best(6, 'any')).toEqual([8, 9, 10, 11, 12, 14]);
        expect(await best(2, 'any')).toEqual([13, 15]);
      });

      it('orders of one moment get seats one after the other', async () => {
        const orders = await Promise.all(range(1, 4).map((at) => best(2, 'together', `b${at}`)));
        // Whichever two are taken of a run of three, one is left alone: then the nearest to the centre.
        expect(orders.toSorted()).toEqual([
          [1, 2],
          [3, 4],
          [5, 6],
          [8, 9],
        ]);
      });

      it('P1: 65 orders of one moment, one more than a call has, and one more seat than there is', async () => {
        const items = [seated(STALLS, 'stalls', [{ section: 'S', row: 'A', from: 1, to: 64 }])];
        await gate.install(snapshot({ epoch: 2, items }));
        const verdicts = await Promise.all(range(1, 65).map((at) => admit(`b${at}`, at % 2 ? 'together' : 'any')));
        const seats = verdicts.flatMap((verdict) => (verdict.outcome === 'admitted' ? verdict.message.seats! : []));
        expect(seats.toSorted((a, b) => a - b)).toEqual(range(0, 63));
        expect(verdicts.map(({ outcome }) => outcome).filter((outcome) => outcome !== 'admitted')).toEqual([
          'sold_out',
        ]);
        expect((await emitted()).length).toBe(64);
        expect(await states()).toBe('r'.repeat(64));
      });

      it('P1: hundreds of orders of one moment, small and large, get a seat each', async () => {
        const rows = range(1, 4).map((row) => ({ section: 'S', row: String(row), from: 1, to: 500 }));
        await gate.install(snapshot({ epoch: 2, items: [seated(STALLS, 'stalls', rows)] }));
        const quantities = range(1, 600).map((at) => (at % 50 === 0 ? 100 : 1));
        const verdicts = await Promise.all(quantities.map((quantity, at) => admit(`b${at}`, 'any', { quantity })));
        const seats = verdicts.flatMap((verdict) => (verdict.outcome === 'admitted' ? verdict.message.seats! : []));
        expect(new Set(seats).size).toBe(588 + 12 * 100);
        expect(new Set((await emitted()).map(({ buyer }) => buyer)).size).toBe(600);
        expect(await stalls()).toMatchObject({ free: 2000 - 588 - 1200 });
      });

      it('a row of 500 and 500 rows of 1', async () => {
        const wide = seated(STALLS, 'wide', [{ section: 'S', row: 'A', from: 1, to: 500 }]);
        const rows = range(1, 500).map((row) => ({ section: 'T', row: String(row), from: 1, to: 1 }));
        await gate.install(snapshot({ epoch: 2, items: [wide, seated(BOX, 'deep', rows)] }));
        expect(await admitted('a', 'together', { itemCode: 'wide', quantity: 100 })).toMatchObject({
          seats: range(200, 299),
        });
        expect(await admitted('b', 'any', { itemCode: 'wide', quantity: 100 })).toMatchObject({
          seats: [...range(150, 199), ...range(300, 349)],
        });
        expect(await admitted('a', 'any', { itemCode: 'deep', quantity: 100, buyer: 'c' })).toMatchObject({
          seats: range(0, 99),
        });
        expect((await admit('d', 'together', { itemCode: 'deep', quantity: 2 })).outcome).toBe('not_together');
        // The 300th row is in the second block of rows.
        await admitted('d', range(100, 199), { itemCode: 'deep' });
        await admitted('e', range(200, 299), { itemCode: 'deep' });
        expect(await admitted('f', 'together', { itemCode: 'deep' })).toMatchObject({ seats: [300] });
      });
    });

    describe('an order that ends', () => {
      it('P4: frees exactly its seats, once, whoever has them next', async () => {
        const first = await admitted('alice', [3, 4]);
        await admitted('bob', [5]);
        await gate.release(SALE, first);
        expect(await states()).toBe('fffffrffffffffff');
        expect(await stalls()).toMatchObject({ free: 15, queued: 1 });
        await admitted('carol', [4]);
        await changesNothing(async () => {
          await gate.release(SALE, first);
          await gate.withdraw(SALE, { ...first, key: null });
        });
      });

      it('P5: one that never came into being frees its key, too', async () => {
        const first = await admitted('alice', [3, 4], { key: 'k' });
        await gate.withdraw(SALE, first);
        expect(await states()).toBe('f'.repeat(16));
        expect(await admitted('alice', [4, 5], { key: 'k' })).toMatchObject({ seats: [4, 5] });
      });

      it('makes its row one that has neighbours again', async () => {
        const first = await admitted('alice', range(0, 7));
        expect(await best(3, 'together')).toEqual([10, 11, 12]);
        await gate.release(SALE, first);
        expect(await best(3, 'together')).toEqual([2, 3, 4]);
      });

      it('one of several of a buyer, whatever their order', async () => {
        const orders = [];
        for (const seats of [[0], [1], [2]]) orders.push(await admitted('alice', seats));
        await gate.settle(SALE, orders);
        await gate.release(SALE, orders[1]!);
        expect(await states()).toBe(`rfr${'f'.repeat(13)}`);
        expect(await gate.holdOf(SALE, orders[2]!)).toMatchObject({ queued: false, seats: [2] });
        expect(await gate.holdOf(SALE, orders[1]!)).toBeNull();
        await gate.release(SALE, orders[0]!);
        await gate.release(SALE, orders[2]!);
        expect(await states()).toBe('f'.repeat(16));
      });
    });

    describe('a paid order', () => {
      it('its seats are sold; settling changes nothing that is shown', async () => {
        const order = await admitted('alice', [3, 4]);
        await changesNothing(async () => {
          await gate.settle(SALE, [{ orderId: '999', buyer: 'alice' }]);
          await gate.paid(SALE, [{ orderId: '999', buyer: 'alice' }]);
        });
        const before = await states();
        await gate.settle(SALE, [order]);
        expect(await states()).toBe(before);
        await gate.paid(SALE, [order]);
        expect(await states()).toBe('fffssfffffffffff');
        await changesNothing(() => gate.paid(SALE, [order, order]));
        await gate.release(SALE, order);
        expect(await states()).toBe('f'.repeat(16));
        await changesNothing(() => gate.paid(SALE, [order]));
      });

      it('is heard of before it is settled, too', async () => {
        const order = await admitted('alice', [3]);
        await gate.paid(SALE, [order]);
        await gate.settle(SALE, [order]);
        expect(await states()).toBe('fffsffffffffffff');
      });

      it('of a counted item has no seats', async () => {
        const counted = await gate.admit(request('alice', undefined, { itemCode: 'standing' }));
        await changesNothing(() => gate.paid(SALE, [(counted as { message: OrderMessage }).message]));
      });
    });

    describe('seats of the house', () => {
      it('are held all or none; those in the way are named', async () => {
        await admitted('alice', [3]);
        await changesNothing(async () => {
          const wanted = await gate.holdSeats(SALE, STALLS, [2, 3], { holdId: 'h1' });
          expect(wanted).toEqual({ outcome: 'seat_taken', seats: [3] });
        });
        expect(await gate.holdSeats(SALE, STALLS, [4, 9], { holdId: 'h1' })).toEqual({ outcome: 'held' });
        expect(await states()).toBe('fffrhffffhffffff');
        expect(await stalls()).toMatchObject({ house: 2, free: 13 });
        await changesNothing(async () => {
          expect(await gate.holdSeats(SALE, STALLS, [4, 9], { holdId: 'h1' })).toEqual({ outcome: 'held' });
          const other = await gate.holdSeats(SALE, STALLS, [9, 10], { holdId: 'h2' });
          expect(other).toEqual({ outcome: 'seat_taken', seats: [9] });
        });
        await gate.dropHouseHold(SALE, STALLS, 'h1');
        expect(await states()).toBe('fffrffffffffffff');
        await changesNothing(() => gate.dropHouseHold(SALE, STALLS, 'h1'));
      });

      it('P4: dropped late, they do not free the next buyer’s seat', async () => {
        await gate.holdSeats(SALE, STALLS, [4], { holdId: 'h1' });
        await gate.dropHouseHold(SALE, STALLS, 'h1');
        await admitted('alice', [4]);
        await changesNothing(() => gate.dropHouseHold(SALE, STALLS, 'h1'));
      });

      it('a gate that has not the sale, or the item, is stale', async () => {
        for (const [saleId, itemId] of [
          ['8', STALLS],
          [SALE, '99'],
          [SALE, STANDING],
        ] as const) {
          expect(await gate.holdSeats(saleId, itemId, [1], { holdId: 'h' })).toEqual({ outcome: 'stale' });
        }
      });

      it('that an order has already are left to it; an order that is not there has none', async () => {
        const order = await admitted('alice', [3, 4]);
        expect(await gate.holdSeats(SALE, STALLS, [4, 5], { holdId: 'h1', order })).toEqual({ outcome: 'held' });
        expect(await states()).toBe('fffrrhffffffffff');
        const nobody = { orderId: '999', buyer: 'alice' };
        const taken = await gate.holdSeats(SALE, STALLS, [4, 6], { holdId: 'h2', order: nobody });
        expect(taken).toEqual({ outcome: 'seat_taken', seats: [4] });
        // Nothing is left to hold, and still it is a hold.
        expect(await gate.holdSeats(SALE, STALLS, [3, 4], { holdId: 'h3', order })).toEqual({ outcome: 'held' });
        await changesNothing(() => gate.dropHouseHold(SALE, STALLS, 'h3'));
      });
    });

    describe('blocked seats', () => {
      it('are those of the latest rev, all of them; the hold of the house ends with it', async () => {
        await gate.holdSeats(SALE, STALLS, [4, 9], { holdId: 'h1' });
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 5, seats: [4, 9] }, 'h1');
        expect(await states()).toBe('ffffbffffbffffff');
        expect(await stalls()).toMatchObject({ blocked: 2, house: 0, free: 14 });
        await changesNothing(async () => {
          await gate.applyBlocked(SALE, { itemId: STALLS, rev: 5, seats: [] });
          await gate.applyBlocked(SALE, { itemId: STALLS, rev: 4, seats: [1, 2] }, 'h1');
        });
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 6, seats: [9, 10] });
        expect(await states()).toBe('fffffffffbbfffff');
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 7, seats: [] });
        expect(await states()).toBe('f'.repeat(16));
        expect(await stalls()).toMatchObject({ blocked: 0, free: 16 });
      });

      it('the hold of the house ends also if a later change was heard of before', async () => {
        await gate.holdSeats(SALE, STALLS, [4], { holdId: 'h1' });
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 6, seats: [] });
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 5, seats: [4] }, 'h1');
        expect(await states()).toBe('f'.repeat(16));
      });

      it('are not sold, neither by number nor as the best', async () => {
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 2, seats: range(1, 15) });
        expect(await admit('a', [1])).toEqual({ outcome: 'seat_taken', seats: [1] });
        expect(await best(2, 'any')).toBe('sold_out');
        expect(await best(1, 'together')).toEqual([0]);
      });

      it('may be asked for again by the house: not in the way of a block, but of a move', async () => {
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 2, seats: [4] });
        expect(await gate.holdSeats(SALE, STALLS, [4, 5], { holdId: 'h' })).toEqual({
          outcome: 'seat_taken',
          seats: [4],
        });
        expect(await gate.holdSeats(SALE, STALLS, [4, 5], { holdId: 'h', blocked: true })).toEqual({ outcome: 'held' });
        expect(await states()).toBe('ffffbhffffffffff');
        await gate.dropHouseHold(SALE, STALLS, 'h');
        expect(await states()).toBe('ffffbfffffffffff');
      });

      it('P1: one that somebody still has is blocked when it is left, and free if it was unblocked before', async () => {
        const order = await admitted('alice', [3, 4]);
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 5, seats: [3, 4] });
        expect(await states()).toBe('fffrrfffffffffff');
        await gate.paid(SALE, [order]);
        expect(await states()).toBe('fffssfffffffffff');
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 6, seats: [4] });
        await gate.release(SALE, order);
        expect(await states()).toBe('ffffbfffffffffff');
        expect(await stalls()).toMatchObject({ blocked: 1, free: 15 });
      });
    });

    describe('an order that is moved', () => {
      it('has the new seats, which the house held for it, and leaves the old ones', async () => {
        const order = await admitted('alice', [3, 4]);
        await gate.settle(SALE, [order]);
        await gate.holdSeats(SALE, STALLS, [4, 5], { holdId: houseHoldId('9005'), order });
        await gate.moveSeats(SALE, moved(order, [4, 5], 5));
        expect(await states()).toBe('ffffrrffffffffff');
        expect(await stalls()).toMatchObject({ house: 0, held: 2, free: 14 });
        expect(await gate.holdOf(SALE, order)).toMatchObject({ seats: [4, 5], slots: [1, 2], queued: false });
        await changesNothing(() => gate.moveSeats(SALE, moved(order, [4, 5], 5)));
        await gate.release(SALE, order);
        expect(await states()).toBe('f'.repeat(16));
      });

      it('stays paid', async () => {
        const order = await admitted('alice', [3]);
        await gate.paid(SALE, [order]);
        await gate.moveSeats(SALE, moved(order, [12], 5));
        expect(await states()).toBe('ffffffffffffsfff');
        await gate.moveSeats(SALE, moved(order, [3], 6));
        expect(await states()).toBe('fffsffffffffffff');
      });

      it('P1: an older move, or a copy of one, changes nothing but the hold of the house', async () => {
        const order = await admitted('alice', [3]);
        await gate.holdSeats(SALE, STALLS, [5], { holdId: houseHoldId('9006') });
        await gate.holdSeats(SALE, STALLS, [6], { holdId: houseHoldId('9008') });
        // 3 → 5 → 6, heard of in the wrong order.
        await gate.moveSeats(SALE, moved(order, [6], 8));
        expect(await states()).toBe('fffffhrfffffffff');
        await gate.moveSeats(SALE, moved(order, [5], 6));
        expect(await states()).toBe('ffffffrfffffffff');
        await admitted('bob', [5]);
        await changesNothing(() => gate.moveSeats(SALE, moved(order, [5], 6)));
        // 6 → 5 → 6 would be the same seats: only the rev tells them apart.
        await gate.moveSeats(SALE, moved(order, [3], 9));
        await changesNothing(() => gate.moveSeats(SALE, moved(order, [6], 8)));
      });

      it('P4: one that has ended, or has another item, only loses the hold of the house', async () => {
        const order = await admitted('alice', [3]);
        const standing = await gate.admit(request('bob', undefined, { itemCode: 'standing' }));
        await gate.release(SALE, order);
        for (const one of [order, (standing as { message: OrderMessage }).message]) {
          await gate.holdSeats(SALE, STALLS, [5], { holdId: houseHoldId('9005') });
          await gate.moveSeats(SALE, moved(one, [5], 5));
          expect(await states()).toBe('f'.repeat(16));
        }
      });

      it('and admitted again by a copy of its request, says where it sits now', async () => {
        const asked = request('alice', [3]);
        await gate.admit(asked);
        await gate.moveSeats(SALE, moved(asked as unknown as OrderMessage, [5], 5));
        await changesNothing(async () => expect(await gate.admit(asked)).toMatchObject({ message: { seats: [5] } }));
      });

      it('frees and takes seats for the next orders', async () => {
        const order = await admitted('alice', range(0, 7));
        expect(await best(3, 'together')).toEqual([10, 11, 12]);
        await gate.moveSeats(SALE, moved(order, [0, 1, 2, 3, 4, 13, 14, 15], 5));
        expect(await best(3, 'together')).toEqual([5, 6, 7]);
        expect(await best(3, 'together')).toBe('sold_out');
      });
    });

    describe('a rebuild', () => {
      it('restores every held, sold and blocked seat', async () => {
        const [a, b] = [await admitted('alice', [3, 4]), await admitted('alice', [10, 11, 12])];
        const seats = { blocked: [0, 15] };
        await gate.install(
          snapshot({
            epoch: 2,
            items: [
              seated(BOX, 'box', [{ section: 'Box', row: '1', from: 1, to: 1 }], { seats: { map: '', blocked: [0] } }),
              seated(STALLS, 'stalls', ROWS, { seats: { map: '', ...seats }, rev: 20 }),
            ],
            holds: [held(a), held(b, { paid: true })],
          }),
        );
        expect(await states()).toBe('bffrrfffffsssffb');
        expect(await states(BOX)).toBe('b');
        expect(await stalls()).toMatchObject({ total: 16, blocked: 2, held: 5, queued: 0, free: 9, rev: 20 });
        expect(await gate.holdOf(SALE, a)).toMatchObject({ seats: [3, 4], queued: false, epoch: 2 });
        await gate.release(SALE, b);
        expect(await best(3, 'together')).toEqual([5, 6, 7]);
        expect(await best(3, 'together')).toEqual([10, 11, 12]);
        expect(await changesSince(0)).toBeNull();
        expect(await n()).toBe(3);
      });

      it('P1: a move that the snapshot contains is old, also if it comes afterwards', async () => {
        const order = await admitted('alice', [3]);
        const items = [seated(STALLS, 'stalls', ROWS, { rev: 20 })];
        await gate.install(snapshot({ epoch: 2, items, holds: [held(order, { seats: [7] })] }));
        await changesNothing(() => gate.moveSeats(SALE, moved(order, [5], 20)));
        await gate.moveSeats(SALE, moved(order, [5], 21));
        expect(await states()).toBe('fffffrffffffffff');
      });

      it('P1: pages of different instants: a seat that two orders have is free when both have left it', async () => {
        const [a, b] = [await admitted('alice', [3]), await admitted('bob', [5])];
        // The page of bob was read before he moved 5 → 6, that of alice after she had moved 3 → 5.
        const items = [seated(STALLS, 'stalls', ROWS, { rev: 20 })];
        await gate.install(snapshot({ epoch: 2, items, holds: [held(b), held(a, { seats: [5] })] }), async () => {
          expect((await stalls()).free).toBe(14);
          await gate.moveSeats(SALE, moved(b, [6], 21));
          await gate.moveSeats(SALE, moved(a, [5], 22));
          return null;
        });
        expect(await states()).toBe('fffffrrfffffffff');
        await gate.release(SALE, b);
        expect(await states()).toBe('fffffrffffffffff');
        await gate.release(SALE, a);
        expect(await states()).toBe('f'.repeat(16));
        expect(await stalls()).toMatchObject({ free: 16, held: 0 });
      });

      it('P1: the same, when the order that leaves it ends', async () => {
        const [a, b] = [await admitted('alice', [3]), await admitted('bob', [5])];
        const items = [seated(STALLS, 'stalls', ROWS, { rev: 20 })];
        const holds = [held(b), held(a, { seats: [5] })];
        await gate.install(snapshot({ epoch: 2, items, holds }), async () => {
          await gate.release(SALE, b);
          return null;
        });
        expect(await states()).toBe('fffffrffffffffff');
        expect(await admit('carol', [5])).toEqual({ outcome: 'seat_taken', seats: [5] });
      });

      it('P1: is told what is blocked by now, before it opens', async () => {
        const latest = { ...values({}), items: [], blockedSeats: [{ itemId: STALLS, rev: 3, seats: [2] }] };
        await gate.install(snapshot({ epoch: 2 }), async () => latest);
        expect(await states()).toBe('ffbfffffffffffff');
        expect(await gate.epochOf(SALE)).toBe(2);
        // Of the same seats a later rev says nothing new, but an older one says nothing at all.
        await changesNothing(() => gate.applyBlocked(SALE, { itemId: STALLS, rev: 9, seats: [2] }));
        await changesNothing(() => gate.applyBlocked(SALE, { itemId: STALLS, rev: 8, seats: [] }));
      });

      it('holds of the house are gone, and what they were taken for is told to the new gate', async () => {
        const order = await admitted('alice', [3]);
        await gate.holdSeats(SALE, STALLS, [5, 6], { holdId: houseHoldId('9030') });
        await gate.install(snapshot({ epoch: 2, holds: [held(order)] }));
        expect(await states()).toBe('fffrffffffffffff');
        await gate.moveSeats(SALE, moved(order, [5], 30));
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 31, seats: [6] }, houseHoldId('9030'));
        expect(await states()).toBe('fffffrbfffffffff');
      });

      it('of 100 000 seats with many held, sold and blocked', async () => {
        const rows = range(1, 2000).map((row) => ({ section: 'S', row: String(row), from: 1, to: 50 }));
        const holds = range(0, 999).map((at) => ({
          ...{ orderId: String(5000 + at), itemId: STALLS, buyer: `b${at}`, slots: range(1, 50), paid: at % 2 === 1 },
          seats: range(50 * at, 50 * at + 49),
        }));
        const blocked = range(99_000, 99_999);
        await gate.install(
          paged({
            ...{ saleId: SALE, epoch: 2, version: 1, opensAtMs: T0, closesAtMs: T0 + HOUR_MS, mayAdmit: true },
            ...{ paused: false, closed: false, perBuyer: 100, payWithinSeconds: 900, keys: [], holds },
            items: [seated(STALLS, 'stalls', rows, { seats: { map: '', blocked } })],
          }),
        );
        const shown = `${'r'.repeat(50)}${'s'.repeat(50)}`.repeat(500) + 'f'.repeat(49_000) + 'b'.repeat(1000);
        expect((await states()) === shown).toBe(true);
        expect(await stalls()).toMatchObject({ free: 49_000, held: 50_000, blocked: 1000 });
        expect(await best(50, 'together')).toEqual(range(50_000, 50_049));
        expect(await admit('x', [98_999, 99_000])).toEqual({ outcome: 'seat_taken', seats: [99_000] });
      });
    });

    describe('what is shown', () => {
      it('every change has a number; what came since one is told, oldest first', async () => {
        expect(await gate.seats(SALE)).toEqual({
          revision: { epoch: 1, n: 0 },
          items: [
            { itemId: STALLS, states: 'f'.repeat(16) },
            { itemId: BOX, states: 'f' },
          ],
        });
        const order = await admitted('alice', [3, 4]);
        await admitted('bob', [0], { itemCode: 'box' });
        await gate.paid(SALE, [order]);
        await gate.holdSeats(SALE, STALLS, [5], { holdId: houseHoldId('9005') });
        await gate.moveSeats(SALE, moved(order, [4, 5], 5));
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 6, seats: [9, 10] });
        await gate.release(SALE, order);
        const all: SeatChange[] = [
          { itemId: STALLS, seats: [3, 4], state: 'r' },
          { itemId: BOX, seats: [0], state: 'r' },
          { itemId: STALLS, seats: [3, 4], state: 's' },
          { itemId: STALLS, seats: [5], state: 'h' },
          { itemId: STALLS, seats: [3], state: 'f' },
          { itemId: STALLS, seats: [5], state: 's' },
          { itemId: STALLS, seats: [9, 10], state: 'b' },
          { itemId: STALLS, seats: [4, 5], state: 'f' },
        ];
        for (const since of [0, 3, 8]) expect(await changesSince(since)).toEqual(all.slice(since));
        expect(await n()).toBe(8);
        // A revision of another gate, or of the future.
        expect([await changesSince(9), await changesSince(3, 2)]).toEqual([null, null]);
      });

      it('refusals, settling and repeats are no changes', async () => {
        const order = await admitted('alice', [3]);
        await gate.settle(SALE, [order]);
        await admit('bob', [3]);
        await gate.applyBlocked(SALE, { itemId: STALLS, rev: 5, seats: [] });
        expect(await n()).toBe(1);
      });

      it(`the last ${SEAT_CHANGES_MAX} changes are kept, and not one more`, async () => {
        const item = [seated(STALLS, 'stalls', [{ section: 'S', row: 'A', from: 1, to: 2 }])];
        await gate.install(snapshot({ epoch: 2, items: item }));
        for (let at = 0; at < SEAT_CHANGES_MAX / 2; at++) {
          const order = request('alice', [0]);
          await gate.admit(order);
          await gate.release(SALE, order);
        }
        expect(await n()).toBe(SEAT_CHANGES_MAX);
        expect(await changesSince(0, 2)).toHaveLength(SEAT_CHANGES_MAX);
        await admitted('bob', [1]);
        expect(await changesSince(0, 2)).toBeNull();
        const kept = (await changesSince(1, 2))!;
        expect(kept).toHaveLength(SEAT_CHANGES_MAX);
        expect(kept.at(-1)).toEqual({ itemId: STALLS, seats: [1], state: 'r' });
        expect(kept[0]).toEqual({ itemId: STALLS, seats: [0], state: 'f' });
      });

      it('a gate that is shut shows its seats; one without the sale or without seats shows none', async () => {
        await gate.shut(SALE);
        expect(await states()).toBe('f'.repeat(16));
        expect(await gate.seats('8')).toBeNull();
        const items = [{ id: STANDING, code: 'standing', price: PRICE, total: 5, blocked: 0, rev: 1 }];
        await gate.install(snapshot({ epoch: 2, items }));
        expect(await gate.seats(SALE)).toBeNull();
        await gate.remove(SALE);
        expect(await gate.seats(SALE)).toBeNull();
      });
    });
  });
}
