import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DoorbusterError } from '../../src/base/errors.ts';
import { BLOCKED_AT_ONCE_MAX, RELEASES_KEPT_MS, type SeatMove } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { BOUNDS, type ItemPatch } from '../../src/model/sale.ts';
import { buildSeatMap, encodeSeatMap, SEAT_BOUNDS, type SeatRowDefinition } from '../../src/model/seat-map.ts';
import { wholeSnapshot } from '../support/snapshot.ts';
import { countTests } from './count.ts';
import { STATES, type State } from './ledger.ts';
import { type LifeUnderTest, PAY_WITHIN_MS, PRICE, SALE } from './ledger-life-kit.ts';
import { BALCONY, mapOf, SeatKit, STALLS, STANDING, seatedItem } from './ledger-seats-kit.ts';
import { T0 } from './manual.ts';

/**
 * The contract of src/ledger/port/seats.ts, and of the calls of sales.ts that came with it. After every change the tables are judged:
 * no seat twice, all or none of an order's seats, blocked seats as they are counted.
 */
export function seatContract(name: string, make: () => Promise<LifeUnderTest>, states: State[] = STATES): void {
  describe(`contract of seats: ${name}`, () => {
    countTests('seats', name);
    let kit: SeatKit;

    beforeEach(async () => {
      kit = new SeatKit(await make());
      await kit.createHall();
    });

    afterEach(() => kit.world.close());

    const codeOf = async (promise: Promise<unknown>): Promise<string> => {
      const error = await promise.then(
        () => null,
        (thrown: unknown) => thrown,
      );
      expect(error).toBeInstanceOf(Error);
      return error instanceof DoorbusterError ? error.code : 'error';
    };

    const movesSince = async (revs: [string, number][]): Promise<SeatMove[]> => {
      const all: SeatMove[] = [];
      for await (const page of kit.ledger.seatMovesSince(SALE, new Map(revs))) all.push(...page);
      return all;
    };

    describe('a sale with seats', () => {
      it('has as many units as its maps have seats, and gives the maps back', async () => {
        const sale = (await kit.ledger.getSale(SALE))!;
        expect(sale.items.map(({ id, kind, total, onSale }) => [id, kind, total, onSale])).toEqual([
          [STALLS, 'seated', 40, true],
          [STANDING, 'counted', 100, true],
          [BALCONY, 'seated', 12, true],
        ]);
        await kit.world.crash();
        expect(await kit.ledger.seatMaps(SALE)).toEqual(
          new Map([
            [STALLS, mapOf(40)],
            [BALCONY, mapOf(12, 'Balcony')],
          ]),
        );
        expect(await kit.ledger.seatMaps('424242')).toEqual(new Map());
        await kit.createSale('600');
        expect(await kit.ledger.seatMaps('600')).toEqual(new Map());
        expect(await kit.ledger.blockedSeats('600')).toEqual([]);
      });

      it('with a stock that its map has not is a mistake of ours, and is not stored', async () => {
        const items = [{ ...seatedItem('stalls', mapOf(3)), stock: 4 }];
        expect(await codeOf(kit.createHall('600', { items }))).toBe('internal');
        expect(await kit.ledger.getSale('600')).toBeNull();
      });

      const LARGEST: [string, SeatRowDefinition[]][] = [
        [
          'of 200 rows with 500 seats each',
          Array.from({ length: 200 }, (_, at) => ({ section: 'Arena', row: `${at}`, from: 1, to: 500 })),
        ],
        [
          // Longer than one row of the table, and than one packet of some servers.
          'of 20 000 rows with gaps, places and names of many bytes',
          Array.from({ length: SEAT_BOUNDS.saleRowsMax }, (_, at) => ({
            section: `看台 ${'東'.repeat(40)} ${at % 7}`,
            row: `第${at}排 🎉'"\\`,
            numbers: [1, 2, 4, 9, 999_999],
            ...(at % 2 === 0 && { x: at / 8, y: -at, angle: 0.5 }),
          })),
        ],
      ];

      it.each(LARGEST)('of 100 000 seats, %s, comes back as it was', async (_, rows) => {
        const map = buildSeatMap(rows);
        expect(map.size).toBe(SEAT_BOUNDS.saleSeatsMax);
        await kit.createHall('600', { items: [seatedItem('arena', map)] });
        expect((await kit.ledger.seatMaps('600')).get('601')).toEqual(map);
        const [item] = (await wholeSnapshot(kit.ledger, '600'))!.items;
        expect(item!.seats).toEqual({ map: encodeSeatMap(map), blocked: [] });
        const last = map.size - 1;
        const taken = kit.seated('alice', [0, last], { saleId: '600', itemId: '601', epoch: 2 });
        expect(await kit.verdict(taken)).toBe('reserved');
        const again = kit.seated('bob', [last], { saleId: '600', itemId: '601', epoch: 2 });
        expect(await kit.verdict(again)).toBe('seat_taken');
        const beyond = kit.seated('bob', [map.size], { saleId: '600', itemId: '601', epoch: 2 });
        expect(await codeOf(kit.commit(beyond))).toBe('order_malformed');
      });

      it('says about itself what it was given, and nothing that it was not', async () => {
        const description = `${'語'.repeat(BOUNDS.nameLengthMax * 20 - 20)}\n"quoted" \\ 🎉`;
        const said = { description, image: 'https://example.com/ü.png?a=1&b=%20' };
        const metadata = { artist: 'Zoë', '': 'x'.repeat(4000), __proto__x: "o'hara" };
        const items = [
          { ...seatedItem('a', mapOf(3)), ...said, metadata },
          { code: 'b', name: 'b', price: PRICE, stock: 1, metadata: {} },
          { code: 'c', name: 'c', price: PRICE, stock: 1 },
        ];
        const venue = { startsAtMs: T0 + 5, venue: 'Großer Saal' };
        const created = await kit.createHall('600', { ...said, metadata, ...venue, items });
        expect(created).toMatchObject({ ...said, metadata, ...venue, items: [{ ...said, metadata }, {}, {}] });
        expect(created.items[1]!.metadata).toEqual({});
        for (const field of ['description', 'image', 'metadata']) expect(created.items[2]).not.toHaveProperty(field);
        await kit.world.crash();
        expect(await kit.ledger.getSale('600')).toEqual(created);
        const plain = (await kit.ledger.getSale(SALE))!;
        for (const field of ['description', 'image', 'metadata', 'startsAtMs', 'venue']) {
          expect(plain).not.toHaveProperty(field);
        }
        expect(await kit.ledger.listSales({ limit: 9, before: null })).toEqual([created, plain]);
        const patched = await kit.ledger.patchSale('600', { name: 'new' }, 1, kit.call());
        expect(patched).toMatchObject({ outcome: 'changed', sale: { ...said, metadata, ...venue, name: 'new' } });
        const other = { description: 'o', image: 'https://o', metadata: { o: 'o' }, startsAtMs: T0, venue: 'O' };
        expect(await kit.ledger.patchSale('600', other, 2, kit.call())).toMatchObject({ sale: other });
        const some = { description: null, metadata: null, startsAtMs: null };
        expect((await kit.ledger.patchSale('600', some, 3, kit.call())).outcome).toBe('changed');
        const left = (await kit.ledger.getSale('600'))!;
        for (const field of Object.keys(some)) expect(left).not.toHaveProperty(field);
        expect(left).toMatchObject({ image: 'https://o', venue: 'O', version: 4 });
        await kit.ledger.patchSale('600', { image: null, venue: null }, 4, kit.call());
        await kit.ledger.setPaused('600', true, kit.call());
        const bare = (await kit.ledger.getSale('600'))!;
        for (const field of Object.keys(other)) expect(bare).not.toHaveProperty(field);
        expect(bare.items).toEqual(created.items);
      });
    });

    describe('orders', () => {
      it('have their seats wherever they are read, and counted ones have none', async () => {
        const order = await kit.sits('alice', [3, 4]);
        const [counted] = await kit.commit(kit.standing('alice', { slots: [3] }));
        expect(counted!.order).not.toHaveProperty('seats');
        const page = { limit: 9, before: null };
        for (const read of [kit.ledger.listOrders({ buyer: 'alice' }, page), kit.ledger.listOrders({}, page)]) {
          expect(await read).toEqual([counted!.order, order]);
        }
        expect(await kit.ledger.storedAmong([order.id])).toEqual(new Map([[order.id, order]]));
        expect(await kit.ledger.storedAtRest([kit.seated('alice', [3, 4], { orderId: order.id })])).toEqual(
          new Map([[order.id, order]]),
        );
        expect(await kit.item()).toMatchObject({ reserved: 2, sold: 0, rev: 1 });
      });

      it('whoever placed it for the buyer: the audit has the seats', async () => {
        const placedBy = { ...actor('admin', 'alice'), auditId: kit.id() };
        const message = kit.seated('bob', [7, 9], { placedBy });
        await kit.commit(message);
        const [note] = await kit.ledger.audit({ subject: `order:${message.orderId}` }, { limit: 9, before: null });
        expect(JSON.parse(note!.detail)).toMatchObject({ item: 'stalls', quantity: 2, seats: [7, 9] });
      });

      describe.each(states)('$name', (state) => {
        it('P1: a seat that is taken is not given again, and none of the order’s others', async () => {
          const order = await kit.sits('alice', [5, 6]);
          await kit.reach(state);
          expect(await kit.verdicts(kit.seated('bob', [6, 7]), kit.seated('carol', [4, 5]))).toEqual([
            'seat_taken',
            'seat_taken',
          ]);
          expect(await kit.item()).toMatchObject({ reserved: 2, rev: 1 });
          expect(
            await kit.verdicts(kit.seated('bob', [4, 7]), kit.seated('bob', [6], { itemId: BALCONY, slots: [9] })),
          ).toEqual(['reserved', 'reserved']);
          expect(await kit.stored(order.id)).toEqual(order);
        });

        it('P4: cancel, expiry and refund free exactly its own seats, once', async () => {
          const [a, b, c] = [await kit.sits('ann', [1, 2]), await kit.sits('bob', [3]), await kit.sits('cat', [4, 5])];
          const stays = await kit.sits('dan', [6, 7]);
          await kit.paidFor(c);
          await kit.reach(state);
          expect(await kit.outcome(kit.move('cancel', a))).toBe('moved');
          expect(await kit.outcome(kit.move('refund', c))).toBe('moved');
          kit.world.clock.advance(PAY_WITHIN_MS);
          expect(await kit.outcome(kit.move('expire', b))).toBe('moved');
          expect(await kit.stored(a.id), 'it says where it sat').toMatchObject({ status: 'cancelled', seats: [1, 2] });
          // The next buyers sit where those sat. What happens to those again touches nobody.
          expect(await kit.verdicts(kit.seated('eve', [1, 2, 3]), kit.seated('fay', [4, 5]))).toEqual([
            'reserved',
            'reserved',
          ]);
          await kit.reach(state.crash ? { name: '', crash: true } : { name: '' });
          for (const [event, order] of [
            ['cancel', a],
            ['expire', b],
            ['refund', c],
          ] as const) {
            expect(await kit.unmoved(kit.move(event, order))).toBe('repeat');
          }
          for (const seat of [1, 3, 5, 7]) expect(await kit.verdict(kit.seated('gus', [seat]))).toBe('seat_taken');
          expect(await kit.stored(stays.id)).toEqual(stays);
          expect(await kit.item()).toMatchObject({ reserved: 7, sold: 0 });
          while (await kit.ledger.maintain(1000));
          await kit.judge(true);
        });

        it('P3: sent again it is known; with other seats it is a fault, unless it has ended', async () => {
          const message = kit.seated('alice', [5, 6]);
          const [first] = await kit.commit(message);
          await kit.reach(state);
          const again = await kit.unchanged(() => kit.commit(message));
          expect(again).toEqual([{ order: first!.order, inserted: false }]);
          expect(await codeOf(kit.commit({ ...message, seats: [5, 7] }))).toBe('order_id_reused');
          const { seats: _, ...without } = message;
          expect(['order_id_reused', 'order_malformed']).toContain(await codeOf(kit.commit(without)));
          expect(await kit.outcome(kit.move('cancel', first!.order))).toBe('moved');
          // A copy of its admission that the gate executed late may have been given others.
          const late = await kit.commit({ ...message, seats: [8, 9] }, kit.seated('bob', [5, 8]));
          expect(late.map(({ order, inserted }) => [order.status, inserted])).toEqual([
            ['cancelled', false],
            ['reserved', true],
          ]);
        });
      });

      it('P1: of a batch the first has the seat, and what the others asked for beside it is free', async () => {
        const batch = [
          kit.seated('ann', [1, 2]),
          kit.seated('bob', [2, 3]),
          kit.seated('cat', [3, 4]),
          kit.seated('ann', [4], { slots: [3] }),
          kit.seated('dan', [1], { itemId: BALCONY }),
          kit.seated('eve', [5]),
        ];
        const expected = ['reserved', 'seat_taken', 'reserved', 'seat_taken', 'reserved', 'reserved'];
        expect(await kit.verdicts(...batch)).toEqual(expected);
        expect(await kit.verdicts(...batch), 'and again').toEqual(expected);
        expect(await kit.item()).toMatchObject({ reserved: 5, rev: 1 });
      });

      it('P2 P5: limit and key are judged before the seats, and a rejected order takes none of them', async () => {
        await kit.commit(kit.seated('ann', [1], { key: 'k' }));
        const key = 'k';
        const batch = [
          kit.seated('ann', [1, 2]),
          kit.seated('ann', [1, 3], { slots: [2, 3], key }),
          kit.seated('bob', [2, 3], { epoch: 7 }),
          kit.seated('cat', [2, 3]),
        ];
        expect(await kit.verdicts(...batch)).toEqual(['limit_reached', 'gate_rebuilt', 'gate_rebuilt', 'reserved']);
      });

      it('may take all seats, one by one or together: then every seat is taken, and the units are, too', async () => {
        const half = Array.from({ length: 20 }, (_, at) => at);
        const others = half.map((seat) => kit.seated(`b${seat}`, [20 + seat]));
        expect(new Set(await kit.verdicts(kit.seated('ann', half), ...others))).toEqual(new Set(['reserved']));
        expect(await kit.item()).toMatchObject({ total: 40, reserved: 40 });
        expect(await kit.verdict(kit.seated('zoe', [39]))).toBe('seat_taken');
      });

      const FAULTS: [string, (message: OrderMessage) => Partial<OrderMessage>][] = [
        ['a seat behind the last', () => ({ seats: [38, 40] })],
        ['a seat before the first', () => ({ seats: [-1, 3] })],
        ['no whole number', () => ({ seats: [3, 3.5] })],
        ['a seat twice', () => ({ seats: [3, 3] })],
        ['not ascending', () => ({ seats: [4, 3] })],
        ['fewer seats than units', () => ({ seats: [4] })],
        ['more seats than units', () => ({ seats: [3, 4, 5] })],
        ['no seat', () => ({ seats: [], quantity: 0, slots: [] })],
        ['a seat of an item that has fewer', () => ({ itemId: BALCONY, seats: [3, 12] })],
        ['seats of a counted item', () => ({ itemId: STANDING, itemCode: 'standing' })],
      ];

      it.each(FAULTS)('%s: that is a fault, and nothing of the batch is stored', async (_, wrong) => {
        const right = kit.seated('alice', [3, 4]);
        const batch = [kit.seated('bob', [10]), { ...right, ...wrong(right) }];
        expect(await kit.unchanged(() => codeOf(kit.commit(...batch)))).toBe('order_malformed');
        expect(await kit.verdict(right)).toBe('reserved');
      });

      it('a seated item without seats: that is a fault, too; of an older epoch it is `gate_rebuilt`', async () => {
        const { seats: _, ...without } = kit.seated('alice', [3]);
        expect(await kit.unchanged(() => codeOf(kit.commit(without)))).toBe('order_malformed');
        expect(await kit.verdict({ ...without, epoch: 0 })).toBe('gate_rebuilt');
      });

      it('100 seats are an order, and 101 are none', async () => {
        await kit.createHall('600', { items: [seatedItem('arena', mapOf(SEAT_BOUNDS.saleSeatsMax))] });
        const seats = (from: number, count: number) => Array.from({ length: count }, (_, at) => from + at);
        const at = { saleId: '600', itemId: '601' };
        const most = kit.seated('alice', seats(SEAT_BOUNDS.saleSeatsMax - 100, 100), at);
        expect(await kit.verdict(most)).toBe('reserved');
        expect(await kit.stored(most.orderId)).toMatchObject({ seats: most.seats });
        expect(await codeOf(kit.commit(kit.seated('bob', seats(0, 101), at)))).toBe('order_malformed');
        const order = (await kit.stored(most.orderId))!;
        expect((await kit.moveTo(order, seats(0, 100))).outcome).toBe('moved');
        expect((await kit.commit(most))[0]).toMatchObject({ inserted: false, order: { seats: seats(0, 100) } });
      });

      it.each([
        ['256 orders of one seat', 256, 1],
        ['512 orders of one seat', 512, 1],
        // More rows than MySQL gets in one packet.
        ['64 orders of 100 seats', 64, 100],
      ])('%s in a batch: stored, sent again, half taken, ended', async (_, count, each) => {
        const map = mapOf(count * each);
        await kit.createHall('600', { items: [seatedItem('arena', map)] });
        const at = { saleId: '600', itemId: '601' };
        const seatsOf = (n: number) => Array.from({ length: each }, (__, seat) => n * each + seat);
        const batch = (prefix: string, from: number) =>
          Array.from({ length: count - from }, (__, n) => kit.seated(`${prefix}${n}`, seatsOf(from + n), at));
        const first = batch('a', 0).filter((__, n) => n % 2 === 0);
        const statuses = async (messages: OrderMessage[]) =>
          (await kit.commit(...messages)).map(({ order, inserted }) => `${order.reason ?? order.status} ${inserted}`);
        expect(new Set(await statuses(first))).toEqual(new Set(['reserved true']));
        expect(new Set(await statuses(first))).toEqual(new Set(['reserved false']));
        const rest = batch('b', 0);
        expect(await statuses(rest)).toEqual(rest.map((__, n) => (n % 2 === 0 ? 'seat_taken true' : 'reserved true')));
        const item = () => kit.ledger.getSale('600').then((sale) => sale!.items[0]!);
        expect(await item()).toMatchObject({ total: map.size, reserved: map.size });
        await kit.judge();
        const moves = first.map(({ orderId }) => kit.move('cancel', { id: orderId }));
        const ended = await kit.ledger.moveOrders(moves);
        expect(new Set(ended.map(({ outcome }) => outcome))).toEqual(new Set(['moved']));
        expect(await item()).toMatchObject({ reserved: map.size / 2 });
        await kit.judge();
        const once = rest.filter((__, n) => n % 2 === 0).map((message) => ({ ...message, orderId: kit.id() }));
        expect(new Set(await statuses(once))).toEqual(new Set(['reserved true']));
        await kit.judge();
      });

      it('rejected ones have their seats in the row and nowhere else', async () => {
        const message = kit.seated('alice', [3, 4]);
        const [stored] = await kit.ledger.rejectOrders([message], 'undeliverable');
        expect(stored!.order).toMatchObject({ status: 'rejected', seats: [3, 4] });
        expect(await kit.stored(message.orderId)).toEqual(stored!.order);
        expect((await kit.commit(message))[0]).toMatchObject({ inserted: false, order: { reason: 'undeliverable' } });
        expect(await kit.verdict(kit.seated('bob', [3, 4]))).toBe('reserved');
        // One that never fitted its item can be put away all the same.
        const odd = kit.standing('carol', { seats: [3] });
        expect((await kit.ledger.rejectOrders([odd], 'undeliverable'))[0]!.order.status).toBe('rejected');
        await kit.judge();
      });

      it('events of an order have its seats', async () => {
        kit.world.ledger.keepEvents = true;
        const order = await kit.sits('alice', [3, 4]);
        await kit.all(kit.move('cancel', order));
        const events = await kit.ledger.outgoingEvents(9);
        expect(events.map(({ type, body }) => [type, JSON.parse(body).seats])).toEqual([
          ['order.reserved', [3, 4]],
          ['order.cancelled', [3, 4]],
        ]);
      });
    });

    describe('blocking', () => {
      describe.each(states)('$name', (state) => {
        it('P1: takes free seats for the house, or names those that orders have and takes none', async () => {
          await kit.sits('alice', [5, 6]);
          const gone = await kit.sits('bob', [7]);
          await kit.all(kit.move('cancel', gone));
          await kit.reach(state);
          const before = await kit.item();
          expect(await kit.unchanged(() => kit.setBlocked(true, [4, 5, 6, 7]))).toEqual({
            outcome: 'seat_taken',
            taken: [{ itemId: STALLS, seats: [5, 6] }],
          });
          expect(await kit.block(4, 7)).toBe('changed');
          expect(await kit.item()).toEqual({ ...before, blocked: 2, rev: before.rev + 1 });
          expect(await kit.verdicts(kit.seated('carol', [3, 4]), kit.seated('dan', [7]))).toEqual([
            'seat_taken',
            'seat_taken',
          ]);
          expect(await kit.unchanged(() => kit.setBlocked(false, [4, 5]))).toMatchObject({
            taken: [{ itemId: STALLS, seats: [5] }],
          });
          expect(await kit.unblock(4)).toBe('changed');
          expect(await kit.item()).toMatchObject({ blocked: 1, rev: before.rev + 2 });
          expect(await kit.verdict(kit.seated('carol', [3, 4]))).toBe('reserved');
          expect(await kit.blocked()).toEqual([7]);
          while (await kit.ledger.maintain(1000));
          await kit.judge(true);
        });
      });

      it('what is so already stays so, and is not counted twice', async () => {
        expect(await kit.block(1, 2)).toBe('changed');
        const before = await kit.item();
        expect(await kit.block(1, 2)).toBe('changed');
        expect(await kit.unblock(3)).toBe('changed');
        expect(await kit.item()).toEqual(before);
        expect(await kit.block(1, 2, 3)).toBe('changed');
        expect(await kit.item()).toMatchObject({ blocked: 3, rev: before.rev + 1 });
        expect(await kit.unblock(0, 1, 2, 3)).toBe('changed');
        expect(await kit.item()).toMatchObject({ blocked: 0, rev: before.rev + 2 });
      });

      it('of several items in one step: all or none', async () => {
        await kit.sits('alice', [2], { itemId: BALCONY });
        const both = (seats: number[]) => [
          { itemId: BALCONY, seats },
          { itemId: STALLS, seats: [1] },
        ];
        expect(await kit.unchanged(() => kit.setBlocked(true, both([1, 2])))).toMatchObject({
          taken: [{ itemId: BALCONY, seats: [2] }],
        });
        expect(await kit.setBlocked(true, both([1, 3]))).toMatchObject({ outcome: 'changed' });
        const revOf = async (code: string) => (await kit.item(code)).rev;
        expect(await kit.ledger.blockedSeats(SALE)).toEqual([
          { itemId: STALLS, rev: await revOf('stalls'), seats: [1] },
          { itemId: BALCONY, rev: await revOf('balcony'), seats: [1, 3] },
        ]);
      });

      it('1 000 seats in one call, and neither none nor one more', async () => {
        const items = [seatedItem('arena', mapOf(BLOCKED_AT_ONCE_MAX + 1))];
        await kit.createHall('600', { items });
        const seats = (count: number) => [{ itemId: '601', seats: Array.from({ length: count }, (_, at) => at) }];
        const block = (count: number) => kit.ledger.setBlocked('600', seats(count), true, kit.call());
        for (const wrong of [0, BLOCKED_AT_ONCE_MAX + 1]) {
          expect(await kit.unchanged(() => codeOf(block(wrong)))).toBe('internal');
        }
        const twice = [...seats(1), ...seats(2)];
        expect(await codeOf(kit.ledger.setBlocked('600', twice, true, kit.call()))).toBe('internal');
        expect((await block(BLOCKED_AT_ONCE_MAX)).outcome).toBe('changed');
        await kit.judge();
        const free = await kit.ledger.setBlocked('600', seats(BLOCKED_AT_ONCE_MAX), false, kit.call());
        expect(free).toMatchObject({ outcome: 'changed', sale: { items: [{ blocked: 0, rev: 2 }] } });
        await kit.judge();
      });

      it('seats that are not there, of another sale, of a counted item, of a closed sale', async () => {
        const wrong: [string, number[]][] = [
          [STALLS, [40]],
          [STALLS, [-1]],
          [STALLS, [2, 1]],
          [STALLS, [1, 1]],
          [STANDING, [1]],
        ];
        for (const [itemId, seats] of wrong) {
          const promise = kit.unchanged(() => codeOf(kit.setBlocked(true, [{ itemId, seats }])));
          expect(await promise).toBe('seats_malformed');
        }
        expect(await kit.unchanged(() => kit.setBlocked(true, [{ itemId: '601', seats: [1] }]))).toEqual({
          outcome: 'not_found',
        });
        expect(await kit.ledger.setBlocked('424242', [{ itemId: STALLS, seats: [1] }], true, kit.call())).toEqual({
          outcome: 'not_found',
        });
        await kit.ledger.closeSale(SALE, kit.call());
        expect(await kit.unchanged(() => kit.setBlocked(true, [1]))).toEqual({ outcome: 'sale_closed' });
      });

      it('P5: has one effect for each key, an audit row, and a task for a gate that outlives us', async () => {
        const keyed = {
          ...{ caller: 'admin:a', actingFor: null, operation: 'sale.block_seats', subject: SALE, key: 'k' },
          fingerprint: 'f',
        };
        const call = () => ({ ...kit.call(), keyed, answer: () => 'first' });
        expect(await kit.setBlocked(true, [1, 2], call())).toMatchObject({ outcome: 'changed', answer: 'first' });
        await kit.unblock(1);
        expect(await kit.unchanged(() => kit.setBlocked(true, [1, 2], call()))).toEqual({
          outcome: 'replayed',
          answer: 'first',
        });
        const other = { ...call(), keyed: { ...keyed, fingerprint: 'g' } };
        expect(await kit.unchanged(() => kit.setBlocked(true, [1], other))).toEqual({
          outcome: 'idempotency_key_reused',
        });
        const notes = await kit.ledger.audit({ subject: `sale:${SALE}` }, { limit: 9, before: null });
        expect(notes.map(({ action, detail }) => [action, JSON.parse(detail)]).slice(0, 2)).toEqual([
          ['sale.unblock_seats', { items: [{ item: 'stalls', seats: [1] }] }],
          ['sale.block_seats', { items: [{ item: 'stalls', seats: [1, 2] }] }],
        ]);
        const tasks = await kit.ledger.unfinishedTasks(-1);
        expect(tasks).toHaveLength(kit.world.dialect.gateTasks ? 3 : 0);
      });
    });

    describe('a gate is built with', () => {
      it('the maps, the blocked seats, and the seats of live orders, paid or not', async () => {
        const [a, b, gone] = [await kit.sits('ann', [1, 2]), await kit.sits('bob', [3]), await kit.sits('cat', [4])];
        await kit.paidFor(b);
        await kit.all(kit.move('cancel', gone));
        const [standing] = await kit.commit(kit.standing('dan'));
        await kit.moveTo(a, [2, 9]);
        await kit.block(30, 31);
        const { items, holds, epoch } = (await wholeSnapshot(kit.ledger, SALE))!;
        expect(items.map(({ id, blocked, seats }) => ({ id, blocked, seats }))).toEqual([
          { id: STALLS, blocked: 2, seats: { map: encodeSeatMap(mapOf(40)), blocked: [30, 31] } },
          { id: STANDING, blocked: 0, seats: undefined },
          { id: BALCONY, blocked: 0, seats: { map: encodeSeatMap(mapOf(12, 'Balcony')), blocked: [] } },
        ]);
        expect(items[0]).not.toHaveProperty('onSale');
        expect(holds).toEqual([
          { orderId: a.id, itemId: STALLS, buyer: 'ann', slots: [1, 2], seats: [2, 9], paid: false },
          { orderId: b.id, itemId: STALLS, buyer: 'bob', slots: [1], seats: [3], paid: true },
          { orderId: standing!.order.id, itemId: STANDING, buyer: 'dan', slots: [1] },
        ]);
        kit.epoch = epoch;
        expect(await kit.verdicts(kit.seated('eve', [1, 4]), kit.seated('fay', [9]))).toEqual([
          'reserved',
          'seat_taken',
        ]);
      });
    });

    describe('moving an order', () => {
      describe.each(states)('$name', (state) => {
        it('P1 P4: it sits there and no longer here, in one step; others are where they were', async () => {
          const order = await kit.sits('alice', [5, 6]);
          const other = await kit.sits('bob', [7]);
          const ended = await kit.sits('carol', [10]);
          await kit.all(kit.move('cancel', ended));
          await kit.reach(state);
          const before = await kit.item();
          kit.world.clock.advance(3);
          const moved = await kit.moveTo(order, [8, 10]);
          const now = { ...order, seats: [8, 10], version: 2, updatedAtMs: kit.nowMs };
          expect(moved).toMatchObject({
            outcome: 'moved',
            order: now,
            from: [5, 6],
            told: { from: [5, 6], version: 2 },
          });
          expect(await kit.item()).toEqual({ ...before, rev: before.rev + 1 });
          expect(await kit.verdict(kit.seated('dan', [5, 8]))).toBe('seat_taken');
          expect(await kit.verdict(kit.seated('dan', [5, 6]))).toBe('reserved');
          // Back to where somebody else sits now: refused. Where it kept a seat: that one is its own.
          expect(await kit.unchanged(() => kit.moveTo(order, [6, 8]))).toMatchObject({
            outcome: 'seat_taken',
            taken: [6],
          });
          expect(await kit.moveTo(order, [10, 11])).toMatchObject({ outcome: 'moved', from: [8, 10] });
          await kit.reach(state.crash ? { name: '', crash: true } : { name: '' });
          expect(await kit.outcome(kit.move('cancel', order))).toBe('moved');
          expect(await kit.verdicts(kit.seated('eve', [8, 10, 11]), kit.seated('fay', [5]))).toEqual([
            'reserved',
            'seat_taken',
          ]);
          expect(await kit.unmoved(kit.move('cancel', order))).toBe('repeat');
          expect(await kit.stored(other.id)).toEqual(other);
          while (await kit.ledger.maintain(1000));
          await kit.judge(true);
        });

        it('P3: a moved order that is sent again is a duplicate: its seats as admitted count', async () => {
          const message = kit.seated('alice', [5, 6]);
          await kit.commit(message);
          await kit.moveTo({ id: message.orderId }, [1, 2]);
          await kit.moveTo({ id: message.orderId }, [6, 7]);
          await kit.reach(state);
          const other = kit.seated('bob', [5]);
          const stored = await kit.commit(message, other, message);
          expect(stored.map(({ order, inserted }) => [order.seats, inserted])).toEqual([
            [[6, 7], false],
            [[5], true],
            [[6, 7], false],
          ]);
          expect(await codeOf(kit.commit({ ...message, seats: [6, 7] }))).toBe('order_id_reused');
          expect(await kit.stored(message.orderId)).toMatchObject({ seats: [6, 7], version: 3 });
        });
      });

      it('a paid one, too; then its refund frees where it sits now', async () => {
        const order = await kit.paidFor(await kit.sits('alice', [5]));
        expect(await kit.moveTo(order, [6])).toMatchObject({ outcome: 'moved', order: { status: 'paid', version: 3 } });
        expect(await kit.outcome(kit.move('refund', order))).toBe('moved');
        expect(await kit.verdict(kit.seated('bob', [5, 6]))).toBe('reserved');
      });

      it('to where it is: nothing happens', async () => {
        const order = await kit.sits('alice', [5, 6]);
        expect(await kit.unchanged(() => kit.moveTo(order, [5, 6]))).toEqual({ outcome: 'repeat', order });
      });

      it('not to seats of the house, and then none of them', async () => {
        const order = await kit.sits('alice', [5, 6]);
        await kit.block(8);
        expect(await kit.unchanged(() => kit.moveTo(order, [7, 8]))).toMatchObject({
          outcome: 'seat_taken',
          taken: [8],
        });
        await kit.unblock(8);
        expect((await kit.moveTo(order, [7, 8])).outcome).toBe('moved');
      });

      it('not one that has ended or was rejected, nor one without seats, nor one that nobody knows', async () => {
        const [a, b, c] = [await kit.sits('ann', [1]), await kit.sits('bob', [2]), await kit.sits('cat', [3])];
        await kit.paidFor(c);
        await kit.all(kit.move('cancel', a), kit.move('refund', c));
        kit.world.clock.advance(PAY_WITHIN_MS);
        await kit.all(kit.move('expire', b));
        const [rejected] = await kit.ledger.rejectOrders([kit.seated('dan', [4])], 'admission_lost');
        const [counted] = await kit.commit(kit.standing('eve'));
        for (const { id } of [a, b, c, rejected!.order, counted!.order]) {
          expect(await kit.unchanged(() => kit.moveTo({ id }, [9]))).toMatchObject({ outcome: 'not_movable' });
        }
        expect(await kit.unchanged(() => kit.moveTo({ id: '424242' }, [9]))).toEqual({ outcome: 'unknown' });
      });

      it('to as many seats of its item as it has, and no others', async () => {
        const order = await kit.sits('alice', [5, 6]);
        for (const seats of [
          [40, 41],
          [-1, 5],
          [7, 7],
          [8, 7],
          [0.5, 1],
        ]) {
          expect(await kit.unchanged(() => codeOf(kit.moveTo(order, seats)))).toBe('seats_malformed');
        }
        for (const seats of [[7], [7, 8, 9]]) {
          expect(await kit.unchanged(() => codeOf(kit.moveTo(order, seats)))).toBe('internal');
        }
      });

      it('under the lock of the order: an older token is too late, and a newer one counts for pay, too', async () => {
        const order = await kit.sits('alice', [5]);
        expect((await kit.moveTo(order, [6], { fence: '9' })).outcome).toBe('moved');
        expect(await kit.unchanged(() => kit.moveTo(order, [7], { fence: '8' }))).toMatchObject({ outcome: 'fenced' });
        expect(await kit.outcome(kit.move('cancel', order, { fence: '8' }))).toBe('fenced');
        expect((await kit.moveTo(order, [7], { fence: null })).outcome).toBe('moved');
        expect(await kit.outcome(kit.move('cancel', order, { fence: '9' }))).toBe('moved');
      });

      it('P6: while its payment is on its way: the money arrives, whatever it believed', async () => {
        const order = await kit.sits('alice', [5]);
        const attemptId = await kit.opened(order);
        await kit.moveTo(order, [6]);
        const paid = await kit.one(kit.capture(order, attemptId));
        expect(paid).toMatchObject({ outcome: 'moved', order: { status: 'paid', seats: [6], version: 3 } });
      });

      it('has an audit row, and an event for those who subscribed', async () => {
        kit.world.ledger.keepEvents = true;
        const order = await kit.sits('alice', [5, 6]);
        await kit.moveTo(order, [6, 7]);
        const [note] = await kit.ledger.audit({ subject: `order:${order.id}` }, { limit: 9, before: null });
        expect(note).toMatchObject({ action: 'order.move', actor: 'admin:alice' });
        expect(JSON.parse(note!.detail)).toEqual({ item: 'stalls', from: [5, 6], to: [6, 7] });
        const events = await kit.ledger.outgoingEvents(9);
        expect(events.map(({ type, version, body }) => [type, version, JSON.parse(body).seats])).toEqual([
          ['order.reserved', 1, [5, 6]],
          ['order.moved', 2, [6, 7]],
        ]);
      });

      it('the gate can be told, until it has heard of it; and a gate that is built meanwhile, again', async () => {
        const order = await kit.sits('alice', [5, 6]);
        const { rev } = await kit.item();
        const auditId = kit.id();
        await kit.moveTo(order, [7, 8], { auditId });
        const waiting = async (limit: number, olderMs: number, after?: SeatMove): Promise<SeatMove[]> =>
          (await kit.ledger.seatMoves(limit, olderMs, after)).map(({ waitedMs, ...move }) => {
            expect(waitedMs).toBe(kit.nowMs - move.createdAtMs);
            return move;
          });
        const first: SeatMove = {
          ...{ orderId: order.id, version: 2, saleId: SALE, itemId: STALLS, buyer: 'alice' },
          ...{ from: [5, 6], to: [7, 8], auditId, rev: rev + 1, createdAtMs: kit.nowMs },
        };
        expect(await waiting(9, 0)).toEqual([first]);
        kit.world.clock.advance(1);
        await kit.moveTo(order, [5, 8]);
        const [, second] = await waiting(9, 0);
        expect(second).toMatchObject({ version: 3, from: [7, 8], to: [5, 8], rev: rev + 2 });
        expect(await waiting(9, 1)).toEqual([first]);
        expect(await waiting(1, 0)).toEqual([first]);
        expect(await waiting(9, 0, first)).toEqual([second]);
        await kit.ledger.seatMovesTold([first]);
        await kit.ledger.seatMovesTold([]);
        expect(await waiting(9, 0)).toEqual([second]);
        expect(await movesSince([[STALLS, rev]])).toEqual([first, second]);
        expect(await movesSince([[STALLS, rev + 1]])).toEqual([second]);
        expect(await movesSince([[STALLS, rev + 2]])).toEqual([]);
        // It leaves when the gate has had it for so long, and not before.
        kit.world.clock.advance(RELEASES_KEPT_MS);
        expect(await kit.ledger.pruneReleases(RELEASES_KEPT_MS)).toBe(0);
        kit.world.clock.advance(1);
        expect(await kit.ledger.pruneReleases(RELEASES_KEPT_MS)).toBe(1);
        expect(await kit.ledger.pruneReleases(RELEASES_KEPT_MS)).toBe(0);
        expect(await movesSince([[STALLS, rev]])).toEqual([second]);
        await kit.ledger.seatMovesTold([second!]);
        kit.world.clock.advance(RELEASES_KEPT_MS + 1);
        expect(await kit.ledger.pruneReleases(RELEASES_KEPT_MS)).toBe(1);
      });

      it('moves are told in pages: a full one, and one more', async () => {
        const order = await kit.sits('alice', [0]);
        const { rev } = await kit.item();
        const count = 501;
        for (let n = 1; n <= count; n++) {
          const wanted = {
            orderId: order.id,
            seats: [n % 2],
            by: actor('system', 'x'),
            auditId: kit.id(),
            fence: null,
          };
          expect((await kit.ledger.moveSeats(wanted)).outcome).toBe('moved');
        }
        expect((await movesSince([[STALLS, rev]])).map((one) => one.rev - rev)).toEqual(
          Array.from({ length: count }, (_, n) => n + 1),
        );
        const seen: number[] = [];
        for (let after: SeatMove | undefined; ; ) {
          const page: SeatMove[] = await kit.ledger.seatMoves(200, 0, after);
          seen.push(...page.map(({ version }) => version));
          after = page.at(-1);
          if (page.length < 200) break;
        }
        expect(seen).toEqual(Array.from({ length: count }, (_, n) => n + 2));
      });
    });

    describe('items', () => {
      const add = (id: string, code: string, over = {}) =>
        kit.ledger.addItem(SALE, { id, code, name: code, price: PRICE, stock: 5, ...over }, kit.call());

      it('are added to a sale, counted or seated, at its end and at its epoch', async () => {
        await wholeSnapshot(kit.ledger, SALE);
        const { version, items } = (await kit.ledger.getSale(SALE))!;
        const said = { description: 'd', metadata: { a: 'b' } };
        const change = await add('604', 'box', { ...said, stock: 3, seats: mapOf(3, 'Box') });
        expect(change).toMatchObject({ outcome: 'changed', sale: { version: version + 1 } });
        expect((await add('605', 'lawn')).outcome).toBe('changed');
        const sale = (await kit.ledger.getSale(SALE))!;
        const fresh = { reserved: 0, sold: 0, blocked: 0, rev: 0, epoch: items[0]!.epoch, price: PRICE, onSale: true };
        expect(sale.items).toEqual([
          ...items,
          { ...fresh, id: '604', code: 'box', name: 'box', kind: 'seated', total: 3, ...said },
          { ...fresh, id: '605', code: 'lawn', name: 'lawn', kind: 'counted', total: 5 },
        ]);
        expect((await kit.ledger.seatMaps(SALE)).get('604')).toEqual(mapOf(3, 'Box'));
        kit.epoch = items[0]!.epoch;
        const box = { itemId: '604', itemCode: 'box' };
        expect(await kit.verdicts(kit.seated('ann', [2], box), kit.seated('bob', [2], box))).toEqual([
          'reserved',
          'seat_taken',
        ]);
        const snapshot = (await wholeSnapshot(kit.ledger, SALE))!;
        expect(snapshot.items.map(({ id }) => id)).toEqual([STALLS, STANDING, BALCONY, '604', '605']);
        const epochs = (await kit.ledger.getSale(SALE))!.items.map(({ epoch }) => epoch);
        expect(new Set(epochs)).toEqual(new Set([snapshot.epoch]));
      });

      it('are refused with a code or a seat that the sale has, in a closed sale, and beyond 200', async () => {
        expect(await kit.unchanged(() => add('604', 'stalls'))).toMatchObject({
          outcome: 'invalid_request',
          path: '/code',
        });
        const same = buildSeatMap([{ section: 'Balcony', row: 'R0', from: 12, to: 13 }]);
        expect(await kit.unchanged(() => add('604', 'box', { stock: 2, seats: same }))).toMatchObject({
          outcome: 'invalid_request',
          path: '/seats/0',
        });
        const many = mapOf(SEAT_BOUNDS.saleSeatsMax - 51, 'Arena');
        const tooMany = await kit.unchanged(() => add('604', 'arena', { stock: many.size, seats: many }));
        expect(tooMany).toMatchObject({ outcome: 'invalid_request', path: '/seats' });
        const most = mapOf(SEAT_BOUNDS.saleSeatsMax - 52, 'Arena');
        expect((await add('604', 'arena', { stock: most.size, seats: most })).outcome).toBe('changed');

        const items = Array.from({ length: BOUNDS.itemsMax - 1 }, (_, at) => ({
          ...{ code: `c${at}`, name: 'n', price: PRICE, stock: 1 },
        }));
        await kit.createHall('1000', { items });
        const addTo = (id: string, code: string) =>
          kit.ledger.addItem('1000', { id, code, name: code, price: PRICE, stock: 5 }, kit.call());
        expect((await addTo('1500', 'last')).outcome).toBe('changed');
        expect(await addTo('1501', 'more')).toMatchObject({ outcome: 'invalid_request' });
        await kit.ledger.closeSale(SALE, kit.call());
        expect(await kit.unchanged(() => add('605', 'late'))).toEqual({ outcome: 'sale_closed' });
        expect(await kit.ledger.addItem('424242', { ...items[0]!, id: '9' }, kit.call())).toEqual({
          outcome: 'not_found',
        });
      });

      it('are patched at the version of their sale; orders keep their price, and texts may be taken away', async () => {
        const order = await kit.sits('alice', [1]);
        const before = (await kit.ledger.getSale(SALE))!;
        const patch = {
          ...{
            name: 'Best',
            price: { amount: 9, currency: 'EUR' },
            description: 'd',
            image: 'https://i',
            onSale: false,
          },
        };
        const change = await kit.ledger.patchItem(SALE, 'stalls', patch, before.version, kit.call());
        expect(change).toMatchObject({ outcome: 'changed', sale: { version: before.version + 1 } });
        const [first, ...others] = before.items;
        const sale = (await kit.ledger.getSale(SALE))!;
        expect(sale.items).toEqual([{ ...first, ...patch }, ...others]);
        expect(await kit.stored(order.id)).toEqual(order);
        expect((await wholeSnapshot(kit.ledger, SALE))!.items[0]).toMatchObject({ price: patch.price, onSale: false });
        expect(
          await kit.unchanged(() => kit.ledger.patchItem(SALE, 'stalls', patch, before.version, kit.call())),
        ).toEqual({ outcome: 'version_conflict' });
        expect(await kit.ledger.patchItem(SALE, 'nothing', patch, sale.version, kit.call())).toEqual({
          outcome: 'not_found',
        });
        // Only a text: the item's own row stays as it is.
        const less = { description: null, onSale: true };
        const cleared = await kit.ledger.patchItem(SALE, 'stalls', less, sale.version, kit.call());
        expect(cleared.outcome).toBe('changed');
        const item = await kit.item();
        expect(item).not.toHaveProperty('description');
        expect(item).toMatchObject({ image: 'https://i', name: 'Best', onSale: true });
        const textOnly = await kit.ledger.patchItem(
          SALE,
          'stalls',
          { image: 'https://j' },
          sale.version + 1,
          kit.call(),
        );
        expect(textOnly).toMatchObject({ outcome: 'changed', sale: { items: [{ image: 'https://j' }, {}, {}] } });
        await kit.ledger.closeSale(SALE, kit.call());
        expect(await kit.ledger.patchItem(SALE, 'stalls', patch, sale.version + 3, kit.call())).toEqual({
          outcome: 'sale_closed',
        });
      });

      it('P5: both have one effect for each key, and an audit row', async () => {
        const keyed = (key: string) => ({
          ...kit.call(),
          answer: () => 'first',
          keyed: {
            ...{ caller: 'admin:a', actingFor: null, operation: 'sale.add_item', subject: SALE, key },
            fingerprint: 'f',
          },
        });
        const item = { id: '604', code: 'box', name: 'box', price: PRICE, stock: 5 };
        expect((await kit.ledger.addItem(SALE, item, keyed('a'))).outcome).toBe('changed');
        const again = { ...item, id: '605' };
        expect(await kit.unchanged(() => kit.ledger.addItem(SALE, again, keyed('a')))).toEqual({
          outcome: 'replayed',
          answer: 'first',
        });
        await kit.ledger.patchItem(SALE, 'box', { name: 'Box' }, 2, kit.call());
        const notes = await kit.ledger.audit({ subject: `sale:${SALE}` }, { limit: 2, before: null });
        expect(notes.map(({ action, detail }) => [action, JSON.parse(detail)])).toEqual([
          ['sale.patch_item', { item: 'box', name: 'Box' }],
          ['sale.add_item', { item: 'box', name: 'box', price: PRICE, stock: 5 }],
        ]);
      });

      it('a change that a gate must know names the epoch of the gates that do not; a text does not', async () => {
        const { epoch } = (await wholeSnapshot(kit.ledger, SALE))!;
        const known = async () => (await kit.ledger.getSale(SALE))!.itemsEpoch;
        let version = 1;
        const patch = async (change: ItemPatch) =>
          expect((await kit.ledger.patchItem(SALE, 'stalls', change, version++, kit.call())).outcome).toBe('changed');
        await patch({
          name: 'n',
          description: 'd',
          image: 'https://i',
          metadata: { a: 'b' },
          price: PRICE,
          onSale: true,
        });
        expect(await known()).toBe(0);
        await patch({ price: { ...PRICE, amount: PRICE.amount + 1 } });
        expect(await known()).toBe(epoch);
        const { epoch: next } = (await wholeSnapshot(kit.ledger, SALE))!;
        await kit.ledger.patchSale(SALE, { name: 'new' }, version++, kit.call());
        await patch({ metadata: null });
        expect(await known()).toBe(epoch);
        await patch({ onSale: false });
        expect(await known()).toBe(next);
        const { epoch: last } = (await wholeSnapshot(kit.ledger, SALE))!;
        await add('604', 'box');
        expect(await known()).toBe(last);
        expect((await kit.ledger.getSale(SALE))!.items[0]).toMatchObject({ description: 'd', image: 'https://i' });
        expect((await kit.ledger.getSale(SALE))!.items[0]).not.toHaveProperty('metadata');
      });
    });

    describe('a sale is deleted', () => {
      const note = () => ({ auditId: kit.id(), by: actor('admin', 'alice') });

      it('before its first order, with all that is its own and nothing else', async () => {
        await kit.createHall('600', { items: [{ ...seatedItem('arena', mapOf(3)), description: 'd' }] });
        await kit.ledger.setBlocked('600', [{ itemId: '601', seats: [1] }], true, kit.call());
        await kit.block(1);
        const keyed = {
          ...{ caller: 'admin:a', actingFor: null, operation: 'x', subject: '600', key: 'k' },
          fingerprint: 'f',
        };
        await kit.ledger.setPaused('600', true, { ...kit.call(), keyed, answer: () => 'first' });
        const before = (await kit.ledger.getSale(SALE))!;
        expect(await kit.unchanged(() => kit.ledger.deleteSale('600', 2, note()))).toEqual({ outcome: 'rebuilt' });
        expect(await kit.ledger.deleteSale('600', 1, note())).toEqual({ outcome: 'deleted' });
        for (const table of ['item_texts', 'seat_maps', 'seat_claims']) {
          expect(await kit.count(table, 'item_id = 601'), table).toBe(0);
        }
        expect(await kit.ledger.getSale('600')).toBeNull();
        expect(await kit.ledger.saleStamps(['600'])).toEqual(new Map());
        expect((await kit.ledger.listSales({ limit: 9, before: null })).map(({ id }) => id)).toEqual([SALE]);
        expect(await kit.ledger.rebuildSnapshot('600')).toBeNull();
        expect(await kit.ledger.getSale(SALE)).toEqual(before);
        expect(await kit.blocked()).toEqual([1]);
        expect(await kit.ledger.seatMaps(SALE)).toHaveProperty('size', 2);
        expect(await kit.ledger.deleteSale('600', 1, note())).toEqual({ outcome: 'not_found' });
        // P5: what a key of it was answered stays so.
        expect(await kit.ledger.findKey(keyed)).toMatchObject({ answer: 'first' });
        const [deleted] = await kit.ledger.audit({ subject: 'sale:600' }, { limit: 1, before: null });
        expect(deleted).toMatchObject({ action: 'sale.delete', actor: 'admin:alice' });
        const tasks = await kit.ledger.unfinishedTasks(-1);
        expect(tasks.filter(({ saleId }) => saleId === '600').length > 0).toBe(kit.world.dialect.gateTasks);
        await kit.world.crash();
        expect(await kit.ledger.getSale('600')).toBeNull();
      });

      it.each(['reserved', 'cancelled', 'rejected'])('not with an order that is %s', async (status) => {
        const message = kit.seated('alice', [1]);
        if (status === 'rejected') await kit.ledger.rejectOrders([message], 'undeliverable');
        else await kit.commit(message);
        if (status === 'cancelled') await kit.all(kit.move('cancel', { id: message.orderId }));
        expect(await kit.unchanged(() => kit.ledger.deleteSale(SALE, 1, note()))).toEqual({
          outcome: 'sale_has_orders',
        });
      });

      it('only at the epoch that was given: a gate that was built since may have admitted orders', async () => {
        const { epoch } = (await wholeSnapshot(kit.ledger, SALE))!;
        const { epoch: since } = (await wholeSnapshot(kit.ledger, SALE))!;
        for (const other of [1, epoch, since + 1]) {
          expect(await kit.unchanged(() => kit.ledger.deleteSale(SALE, other, note()))).toEqual({ outcome: 'rebuilt' });
        }
        expect(await kit.ledger.deleteSale(SALE, since, note())).toEqual({ outcome: 'deleted' });
      });

      it('an order of it that comes late is a fault, and stores nothing', async () => {
        const late = kit.seated('alice', [1]);
        await kit.ledger.deleteSale(SALE, 1, note());
        expect(await codeOf(kit.commit(late))).toBe('item_unknown');
        expect(await codeOf(kit.ledger.rejectOrders([late], 'undeliverable'))).toBe('item_unknown');
        expect(await kit.count('orders')).toBe(0);
      });
    });
  });
}
