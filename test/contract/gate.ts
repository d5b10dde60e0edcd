import { beforeEach, describe, expect, it } from 'vitest';
import type { ManualClock } from '../../src/base/clock.ts';
import type { AdmitRequest, Gate, ItemView, Verdict } from '../../src/gate/port.ts';
import { actor } from '../../src/model/actor.ts';
import { type OrderMessage, orderFingerprint } from '../../src/model/order.ts';
import type { SaleSnapshot, SaleValues } from '../../src/model/snapshot.ts';
import { paged, type WholeSnapshot } from '../support/snapshot.ts';
import { countTests } from './count.ts';
import { T0 } from './manual.ts';

export interface GateUnderTest {
  gate: Gate;
  /** The clock by which the gate checks windows and dates keys. */
  clock: ManualClock;
  /** The messages in the pipe so far, in order. */
  emitted(): Promise<OrderMessage[]>;
}

const HOUR_MS = 3600 * 1000;
const SALE = '7';
const VOUCHER = '11';
const POSTER = '12';

/** An open sale, at most 2 units a buyer: 3 vouchers and 5 posters. */
function snapshot(over: Partial<WholeSnapshot> = {}): SaleSnapshot {
  const all: WholeSnapshot = {
    saleId: SALE,
    epoch: 1,
    version: 1,
    opensAtMs: T0,
    closesAtMs: T0 + HOUR_MS,
    paused: false,
    closed: false,
    perBuyer: 2,
    payWithinSeconds: 900,
    mayAdmit: true,
    items: [
      { id: VOUCHER, code: 'voucher', price: { amount: 8000, currency: 'CNY' }, total: 3, blocked: 0, rev: 1 },
      { id: POSTER, code: 'poster', price: { amount: 500, currency: 'CNY' }, total: 5, blocked: 0, rev: 1 },
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

/** The contract of src/gate/port.ts. Every adapter passes all of it. */
export function gateContract(name: string, make: () => Promise<GateUnderTest>): void {
  describe(`gate contract: ${name}`, () => {
    countTests('gate', name);
    let gate: Gate;
    let clock: ManualClock;
    let emitted: GateUnderTest['emitted'];
    let lastOrderId: number;

    beforeEach(async () => {
      ({ gate, clock, emitted } = await make());
      lastOrderId = 1000;
      await gate.install(snapshot());
    });

    function request(over: Partial<AdmitRequest> & { buyer: string }): AdmitRequest {
      const { itemCode = 'voucher', quantity = 1 } = over;
      const orderId = String(++lastOrderId);
      const fingerprint = orderFingerprint(itemCode, quantity);
      return { saleId: SALE, orderId, itemCode, quantity, key: null, fingerprint, ...over };
    }

    function admit(buyer: string, over: Partial<AdmitRequest> = {}): Promise<Verdict> {
      return gate.admit(request({ buyer, ...over }));
    }

    async function admitted(buyer: string, over: Partial<AdmitRequest> = {}): Promise<OrderMessage> {
      const verdict = await admit(buyer, over);
      if (verdict.outcome !== 'admitted') throw new Error(`${buyer} should be admitted: ${JSON.stringify(verdict)}`);
      return verdict.message;
    }

    async function outcome(buyer: string, over: Partial<AdmitRequest> = {}): Promise<Verdict['outcome']> {
      return (await admit(buyer, over)).outcome;
    }

    async function voucher(): Promise<ItemView> {
      const view = (await gate.view(SALE))!.find(({ code }) => code === 'voucher')!;
      expect(view.free + view.queued + view.held + view.house + view.blocked, 'P9').toBe(view.total);
      return view;
    }

    /** Buys all three vouchers. */
    async function sellOut(): Promise<OrderMessage[]> {
      return [await admitted('x'), await admitted('y'), await admitted('z')];
    }

    async function changesNothing(act: () => Promise<unknown>): Promise<void> {
      const before = { view: await gate.view(SALE), emitted: (await emitted()).length };
      await act();
      expect({ view: await gate.view(SALE), emitted: (await emitted()).length }).toEqual(before);
    }

    describe('admission', () => {
      it('gives an admitted order a message with all that the ledger needs, in the pipe in the same step', async () => {
        const message = await admitted('alice', { quantity: 2, key: 'k1' });
        expect(message).toEqual({
          orderId: '1001',
          saleId: SALE,
          itemId: VOUCHER,
          itemCode: 'voucher',
          buyer: 'alice',
          quantity: 2,
          slots: [1, 2],
          price: { amount: 8000, currency: 'CNY' },
          payWithinSeconds: 900,
          epoch: 1,
          key: 'k1',
          fingerprint: orderFingerprint('voucher', 2),
        });
        expect(await emitted()).toEqual([message]);
        expect(await voucher()).toMatchObject({ total: 3, free: 1, queued: 2, held: 0 });
      });

      it('whoever placed an order for its buyer stands in its message, beside orders that nobody did', async () => {
        const placedBy = { ...actor('admin', 'älice, "a"\n', '192.0.2.7'), auditId: '77' };
        const inside = { ...actor('system', 'sweeper'), auditId: '78' };
        const orders = await Promise.all([
          admitted('a'),
          admitted('b', { placedBy, key: 'k' }),
          admitted('c', { placedBy: inside, itemCode: 'poster' }),
          admit('d', { placedBy, itemCode: 'gone' }),
        ]);
        const messages = await emitted();
        expect(messages).toEqual(orders.slice(0, 3));
        expect(messages.map((message) => message.placedBy)).toEqual([undefined, placedBy, inside]);
        expect(Object.hasOwn(messages[0]!, 'placedBy')).toBe(false);
        // Sent again, it is the same order.
        const { orderId, key, fingerprint } = messages[1]!;
        expect(await admitted('b', { orderId, key, fingerprint, placedBy })).toEqual(messages[1]);
        expect(await emitted()).toHaveLength(3);
      });

      it('P1: admits exactly the total, and never one more', async () => {
        const outcomes = [];
        for (const buyer of ['a', 'b', 'c', 'd', 'e']) outcomes.push(await outcome(buyer));
        expect(outcomes).toEqual(['admitted', 'admitted', 'admitted', 'sold_out', 'sold_out']);
        expect(await emitted()).toHaveLength(3);
        expect(await voucher()).toMatchObject({ free: 0, queued: 3 });
      });

      it('P1: refuses more units than are free and still admits as many as are', async () => {
        await admitted('a', { quantity: 2 });
        expect(await outcome('b', { quantity: 2 })).toBe('sold_out');
        expect(await outcome('b', { quantity: 1 })).toBe('admitted');
        expect(await voucher()).toMatchObject({ free: 0 });
      });

      it('P1: a buyer who holds something is refused a unit that is not there, alone and among others', async () => {
        await admitted('x');
        await admitted('y', { quantity: 2 });
        expect(await outcome('x')).toBe('sold_out');
        const verdicts = await Promise.all([admit('x'), admit('z'), admit('x', { itemCode: 'poster' })]);
        expect(verdicts.map((verdict) => verdict.outcome)).toEqual(['sold_out', 'sold_out', 'admitted']);
        expect(await voucher()).toMatchObject({ free: 0, queued: 3 });
      });

      it('P1: an item with nothing left does not touch its neighbour', async () => {
        await sellOut();
        expect(await outcome('w', { itemCode: 'poster' })).toBe('admitted');
      });

      it('P1: many at once are decided one after the other', async () => {
        const verdicts = await Promise.all(Array.from({ length: 20 }, (_, i) => admit(`buyer-${i}`)));
        expect(verdicts.filter((v) => v.outcome === 'admitted')).toHaveLength(3);
        expect(verdicts.filter((v) => v.outcome === 'sold_out')).toHaveLength(17);
      });

      it('P2: many at once of one buyer stay within the limit', async () => {
        const verdicts = await Promise.all(Array.from({ length: 20 }, () => admit('alice', { itemCode: 'poster' })));
        const slots = verdicts.flatMap((v) => (v.outcome === 'admitted' ? v.message.slots : []));
        expect(slots.toSorted()).toEqual([1, 2]);
      });

      it('P1: an order id sent again is answered the same, takes nothing and is not sent twice', async () => {
        const asked = request({ buyer: 'alice', quantity: 2, key: 'k1' });
        const first = await gate.admit(asked);
        await changesNothing(async () => expect(await gate.admit(asked)).toEqual(first));
        await admitted('bob');
        // Sold out, limit reached, paused, closed: it is still the same admission.
        await changesNothing(async () => expect(await gate.admit(asked)).toEqual(first));
        await gate.applySale(SALE, values({ paused: true }));
        await changesNothing(async () => expect(await gate.admit(asked)).toEqual(first));
        await gate.applySale(SALE, values({ version: 3, closed: true }));
        await changesNothing(async () => expect(await gate.admit(asked)).toEqual(first));
        await gate.settle(SALE, [asked]);
        await changesNothing(async () => expect(await gate.admit(asked)).toEqual(first));
      });

      it('P1: an order id that was refused is decided anew', async () => {
        const sold = await sellOut();
        const asked = request({ buyer: 'late' });
        expect((await gate.admit(asked)).outcome).toBe('sold_out');
        await gate.release(SALE, sold[0]!);
        expect((await gate.admit(asked)).outcome).toBe('admitted');
      });

      it('later orders of the same moment see earlier ones', async () => {
        const [first, second, third, again] = await Promise.all([
          admit('alice', { key: 'k' }),
          admit('alice', { key: 'k' }),
          admit('alice', { quantity: 2 }),
          admit('alice', { itemCode: 'poster' }),
        ]);
        expect(first).toMatchObject({ outcome: 'admitted', message: { slots: [1] } });
        expect(second).toEqual({ outcome: 'replayed', orderId: '1001' });
        expect(third).toEqual({ outcome: 'limit_reached', orderIds: ['1001'], perBuyer: 2 });
        expect(again).toMatchObject({ outcome: 'admitted', message: { slots: [2] } });
        expect((await emitted()).map(({ orderId }) => orderId)).toEqual(['1001', '1004']);
      });

      it('compares codes and buyers bytewise', async () => {
        await admitted('alice', { quantity: 2 });
        expect(await outcome('Alice', { itemCode: 'poster', quantity: 2 })).toBe('admitted');
        expect(await outcome('ren\u00e9', { itemCode: 'poster', quantity: 2 })).toBe('admitted');
        expect(await outcome('rene\u0301', { itemCode: 'poster' })).toBe('admitted');
        expect(await outcome('bob', { itemCode: 'Voucher' })).toBe('not_found');
      });
    });

    describe('which refusal counts when several apply', () => {
      const bound = { key: 'bound' };

      beforeEach(async () => {
        // alice is at her limit, her key is bound, vouchers are sold out.
        await admitted('alice', { quantity: 2, ...bound });
        await admitted('bob');
      });

      const windows = [
        ['closed', values({ closed: true }), 'sale_closed'],
        ['over', values({ closesAtMs: T0 + 1 }), 'sale_closed'],
        ['not open yet', values({ opensAtMs: T0 + HOUR_MS / 2 }), 'sale_not_open'],
        ['paused', values({ paused: true }), 'sale_paused'],
      ] as const;

      for (const [state, window, refusal] of windows) {
        describe(`in a sale that is ${state}`, () => {
          beforeEach(async () => {
            await gate.applySale(SALE, window);
            clock.advance(10);
          });

          it('an unknown item is not_found, before the key', () =>
            changesNothing(async () =>
              expect(await outcome('alice', { itemCode: 'no-such', ...bound })).toBe('not_found'),
            ));

          it('P5: the key comes before window, limit and stock', () =>
            changesNothing(async () => {
              expect(await admit('alice', { quantity: 2, ...bound })).toEqual({ outcome: 'replayed', orderId: '1001' });
              expect(await outcome('alice', { quantity: 1, ...bound })).toBe('idempotency_key_reused');
            }));

          it(`${refusal} comes before limit and stock, and says the window`, () =>
            changesNothing(async () => {
              expect(await admit('alice', { key: 'fresh' })).toEqual({
                outcome: refusal,
                opensAtMs: window.opensAtMs,
                closesAtMs: window.closesAtMs,
              });
            }));
        });
      }

      it('P2: limit_reached comes before sold_out', () =>
        changesNothing(async () => expect(await outcome('alice')).toBe('limit_reached')));

      it('sold_out is last', () => changesNothing(async () => expect(await outcome('carol')).toBe('sold_out')));

      it('a sale that the gate does not hold is stale, whatever else', () =>
        changesNothing(async () => {
          expect(await admit('alice', { saleId: '8', itemCode: 'no-such', ...bound })).toEqual({ outcome: 'stale' });
        }));

      it('a paused sale that has not opened is not open; a closed one is closed', async () => {
        await gate.applySale(SALE, values({ opensAtMs: T0 + 1000, paused: true }));
        expect(await outcome('carol')).toBe('sale_not_open');
        await gate.applySale(SALE, values({ version: 3, opensAtMs: T0 + 1000, closed: true, paused: true }));
        expect(await outcome('carol')).toBe('sale_closed');
        await gate.applySale(SALE, values({ version: 4, closesAtMs: T0, opensAtMs: T0 - 1000, paused: true }));
        expect(await outcome('carol')).toBe('sale_closed');
      });
    });

    describe('the window', () => {
      it('opens at opensAt, inclusive, and ends at closesAt, exclusive', async () => {
        await gate.install(snapshot({ epoch: 2, opensAtMs: T0 + 1000, closesAtMs: T0 + 2000 }));
        clock.advance(999);
        expect(await outcome('a')).toBe('sale_not_open');
        clock.advance(1);
        expect(await outcome('a')).toBe('admitted');
        clock.advance(999);
        expect(await outcome('b')).toBe('admitted');
        clock.advance(1);
        expect(await outcome('c')).toBe('sale_closed');
      });

      it('is judged at admission only: what was admitted is settled and released after its end', async () => {
        const order = await admitted('a');
        clock.advance(2 * HOUR_MS);
        await gate.settle(SALE, [order]);
        expect(await voucher()).toMatchObject({ held: 1, free: 2 });
        await gate.release(SALE, order);
        expect(await voucher()).toMatchObject({ held: 0, free: 3 });
      });
    });

    describe('the limit of a buyer (P2)', () => {
      it('counts units over the whole sale, and limit_reached lists the live orders', async () => {
        const first = await admitted('alice');
        const second = await admitted('alice', { itemCode: 'poster' });
        expect(await admit('alice', { itemCode: 'poster' })).toEqual({
          outcome: 'limit_reached',
          orderIds: [first.orderId, second.orderId],
          perBuyer: 2,
        });
        expect(await outcome('bob', { quantity: 3 })).toBe('limit_reached');
      });

      it('a raised limit lets more in at once', async () => {
        await admitted('alice', { itemCode: 'poster', quantity: 2 });
        await gate.applySale(SALE, values({ perBuyer: 3 }));
        expect((await admitted('alice', { itemCode: 'poster' })).slots).toEqual([3]);
        expect(await outcome('alice')).toBe('limit_reached');
      });

      it('a lowered limit takes nothing away, and admits only what it allows', async () => {
        const order = await admitted('alice', { itemCode: 'poster', quantity: 2 });
        await gate.applySale(SALE, values({ perBuyer: 1 }));
        expect((await gate.view(SALE))![1]).toMatchObject({ queued: 2 });
        expect(await admit('alice')).toEqual({ outcome: 'limit_reached', orderIds: [order.orderId], perBuyer: 1 });
        expect(await outcome('bob', { quantity: 2 })).toBe('limit_reached');
        expect(await outcome('bob')).toBe('admitted');
        await gate.release(SALE, order);
        expect((await admitted('alice')).slots).toEqual([1]);
      });

      it('slots of one buyer are distinct, and a released slot is given again', async () => {
        await gate.applySale(SALE, values({ perBuyer: 4 }));
        const first = await admitted('alice', { itemCode: 'poster', quantity: 2 });
        const second = await admitted('alice', { itemCode: 'poster' });
        expect([first.slots, second.slots]).toEqual([[1, 2], [3]]);
        await gate.release(SALE, first);
        // Counting would give slot 2 and then 3, which is taken.
        expect((await admitted('alice', { itemCode: 'poster' })).slots).toEqual([1]);
        expect((await admitted('alice', { itemCode: 'poster', quantity: 2 })).slots).toEqual([2, 4]);
        expect(await outcome('alice', { itemCode: 'poster' })).toBe('limit_reached');
      });

      it('slots stay within the limit in force, also beside slots of a higher one', async () => {
        await gate.applySale(SALE, values({ perBuyer: 3 }));
        const low = await admitted('alice', { itemCode: 'poster', quantity: 2 });
        const high = await admitted('alice', { itemCode: 'poster' });
        expect(high.slots).toEqual([3]);
        await gate.release(SALE, low);
        await gate.applySale(SALE, values({ version: 3, perBuyer: 2 }));
        expect((await admitted('alice', { itemCode: 'poster' })).slots).toEqual([1]);
        expect(await outcome('alice', { itemCode: 'poster' })).toBe('limit_reached');
      });

      it('a refused order takes no slot', async () => {
        await sellOut();
        expect(await outcome('alice', { quantity: 2 })).toBe('sold_out');
        expect((await admitted('alice', { itemCode: 'poster', quantity: 2 })).slots).toEqual([1, 2]);
      });

      it('repeat clicks at the limit burn no stock', async () => {
        await admitted('alice', { quantity: 2 });
        for (let click = 0; click < 5; click++) expect(await outcome('alice')).toBe('limit_reached');
        expect(await voucher()).toMatchObject({ free: 1 });
        expect(await outcome('bob')).toBe('admitted');
      });
    });

    describe('keys (P5)', () => {
      it('a bound key is answered with its order, also after sell-out, pause and close', async () => {
        const { orderId } = await admitted('alice', { key: 'k' });
        const replayed = { outcome: 'replayed', orderId };
        await changesNothing(async () => expect(await admit('alice', { key: 'k' })).toEqual(replayed));
        await admitted('bob', { quantity: 2 });
        await changesNothing(async () => expect(await admit('alice', { key: 'k' })).toEqual(replayed));
        await gate.applySale(SALE, values({ paused: true }));
        await changesNothing(async () => expect(await admit('alice', { key: 'k' })).toEqual(replayed));
        await gate.applySale(SALE, values({ version: 3, closed: true }));
        await changesNothing(async () => expect(await admit('alice', { key: 'k' })).toEqual(replayed));
      });

      it('the retry of the buyer of the last unit is not told that it is gone', async () => {
        await sellOut();
        const last = await outcome('alice', { itemCode: 'poster', quantity: 2, key: 'k' });
        expect(last).toBe('admitted');
        await admitted('bob', { itemCode: 'poster', quantity: 2 });
        await admitted('carol', { itemCode: 'poster' });
        expect(await outcome('dave', { itemCode: 'poster' })).toBe('sold_out');
        expect(await outcome('alice', { itemCode: 'poster', quantity: 2, key: 'k' })).toBe('replayed');
      });

      it('another body under the same key is refused, also after sell-out and close', async () => {
        await admitted('alice', { key: 'k' });
        const other = { key: 'k', itemCode: 'poster' };
        await changesNothing(async () => expect(await outcome('alice', other)).toBe('idempotency_key_reused'));
        await admitted('bob', { quantity: 2 });
        await gate.applySale(SALE, values({ closed: true }));
        await changesNothing(async () => expect(await outcome('alice', other)).toBe('idempotency_key_reused'));
      });

      it('a key belongs to its buyer, bytewise', async () => {
        await admitted('alice', { key: 'k' });
        expect(await outcome('Alice', { key: 'k' })).toBe('admitted');
        expect(await outcome('alice', { key: 'K', itemCode: 'poster' })).toBe('admitted');
      });

      it('a key belongs to its sale', async () => {
        await gate.install(snapshot({ saleId: '8' }));
        await admitted('alice', { key: 'k' });
        expect(await outcome('alice', { key: 'k', saleId: '8' })).toBe('admitted');
      });

      it('a refused order does not bind its key', async () => {
        const sold = await sellOut();
        expect(await outcome('late', { key: 'k' })).toBe('sold_out');
        await gate.release(SALE, sold[0]!);
        expect(await outcome('late', { key: 'k' })).toBe('admitted');
      });

      it('a key outlives settling and release of its order: it never buys a second time', async () => {
        const order = await admitted('alice', { key: 'k' });
        await gate.settle(SALE, [order]);
        expect(await admit('alice', { key: 'k' })).toEqual({ outcome: 'replayed', orderId: order.orderId });
        await gate.release(SALE, order);
        await changesNothing(async () =>
          expect(await admit('alice', { key: 'k' })).toEqual({ outcome: 'replayed', orderId: order.orderId }),
        );
      });

      it('a withdrawn order frees its key, and only its own', async () => {
        const order = await admitted('alice', { key: 'k' });
        const other = await admitted('alice', { key: 'k2' });
        await gate.withdraw(SALE, order);
        expect((await admitted('alice', { key: 'k' })).orderId).not.toBe(order.orderId);
        expect(await admit('alice', { key: 'k2' })).toEqual({ outcome: 'replayed', orderId: other.orderId });
      });

      it('to withdraw again does not free the key of the order that came after', async () => {
        const first = await admitted('alice', { key: 'k' });
        await gate.withdraw(SALE, first);
        const second = await admitted('alice', { key: 'k' });
        await gate.withdraw(SALE, first);
        expect(await admit('alice', { key: 'k' })).toEqual({ outcome: 'replayed', orderId: second.orderId });
      });

      it('to withdraw an order whose key was forgotten does not free that of the order that came after', async () => {
        const first = await admitted('alice', { key: 'k' });
        await gate.settle(SALE, [first]);
        clock.advance(10);
        await gate.pruneKeys(5);
        const second = await admitted('alice', { key: 'k' });
        await gate.withdraw(SALE, first);
        expect(await gate.holdOf(SALE, first)).toBeNull();
        expect(await admit('alice', { key: 'k' })).toEqual({ outcome: 'replayed', orderId: second.orderId });
      });

      it('pruneKeys forgets keys bound longer ago, and keeps those bound just so long ago or later', async () => {
        const bind = async (key: string) => {
          const order = await admitted(`buyer of ${key}`, { itemCode: 'poster', key });
          await gate.settle(SALE, [order]);
        };
        await bind('old');
        clock.advance(1000);
        await bind('edge');
        clock.advance(1000);
        await bind('young');
        await changesNothing(() => gate.pruneKeys(1000));
        const outcomes = [];
        for (const key of ['old', 'edge', 'young']) {
          outcomes.push(await outcome(`buyer of ${key}`, { itemCode: 'poster', key }));
        }
        expect(outcomes).toEqual(['admitted', 'replayed', 'replayed']);
      });

      it('pruneKeys finds old keys among young ones, in whichever order they came', async () => {
        const ages = [0, 3000, 2000, 1000, 999, 1001];
        const key = { key: 'k', fingerprint: orderFingerprint('poster', 1) };
        const keys = ages.map((ms, at) => {
          return { ...key, buyer: `${ms}`, orderId: String(500 + at), boundAtMs: clock.now() - ms };
        });
        await gate.install(snapshot({ epoch: 2, keys }));
        const left = async (): Promise<string[]> => {
          const bound = await Promise.all(ages.map((ms) => gate.keyOf(SALE, `${ms}`, 'k')));
          return keys.filter((_, at) => bound[at] !== null).map(({ buyer }) => buyer);
        };
        await gate.pruneKeys(1500);
        expect(await left()).toEqual(['0', '1000', '999', '1001']);
        await gate.pruneKeys(1000);
        expect(await left()).toEqual(['0', '1000', '999']);
        clock.advance(1);
        await gate.pruneKeys(1000);
        expect(await left()).toEqual(['0', '999']);
      });

      it('pruneKeys keeps a key that was freed and bound again, by its new age', async () => {
        const first = await admitted('alice', { itemCode: 'poster', key: 'k' });
        await gate.withdraw(SALE, first);
        clock.advance(1000);
        const second = await admitted('alice', { itemCode: 'poster', key: 'k' });
        await gate.settle(SALE, [second]);
        await gate.pruneKeys(500);
        expect(await gate.keyOf(SALE, 'alice', 'k')).toMatchObject({ orderId: second.orderId });
        clock.advance(501);
        await gate.pruneKeys(500);
        expect(await gate.keyOf(SALE, 'alice', 'k')).toBeNull();
      });

      it('pruneKeys keeps the key of an order that the ledger has not decided, however old', async () => {
        const order = await admitted('alice', { key: 'k' });
        const settled = await admitted('bob', { key: 'k' });
        await gate.settle(SALE, [settled]);
        clock.advance(10);
        await gate.pruneKeys(5);
        expect(await admit('alice', { key: 'k' })).toEqual({ outcome: 'replayed', orderId: order.orderId });
        expect(await outcome('bob', { key: 'k' })).toBe('admitted');
        await gate.settle(SALE, [order]);
        await gate.pruneKeys(5);
        expect(await outcome('alice', { key: 'k', itemCode: 'poster' })).toBe('admitted');
      });
    });

    describe('holds (P4)', () => {
      it('settle moves units from queued to held, once', async () => {
        const order = await admitted('alice', { quantity: 2 });
        await gate.settle(SALE, [order]);
        expect(await voucher()).toMatchObject({ free: 1, queued: 0, held: 2 });
        await changesNothing(() => gate.settle(SALE, [order]));
      });

      for (const [end, settledBefore] of [
        ['release', true],
        ['release', false],
        ['withdraw', false],
      ] as const) {
        it(`${end} gives ${settledBefore ? 'settled' : 'queued'} units back, all of them, exactly once`, async () => {
          const order = await admitted('alice', { quantity: 2 });
          await admitted('bob');
          if (settledBefore) await gate.settle(SALE, [order]);
          await gate[end](SALE, order);
          expect(await voucher()).toMatchObject({ free: 2, queued: 1, held: 0 });
          await changesNothing(() => gate[end](SALE, order));
          await changesNothing(() => gate.release(SALE, order));
          await changesNothing(() => gate.withdraw(SALE, order));
          await changesNothing(() => gate.settle(SALE, [order]));
        });
      }

      it('withdraw without a hold leaves the key of a released order bound', async () => {
        const order = await admitted('alice', { key: 'k' });
        await gate.release(SALE, order);
        await gate.withdraw(SALE, order);
        expect(await admit('alice', { key: 'k' })).toEqual({ outcome: 'replayed', orderId: order.orderId });
      });

      it('nothing but an admission creates a hold', async () => {
        const order = await admitted('alice');
        const unknown = { ...order, orderId: '999' };
        const others = { ...order, buyer: 'bob', orderId: '998' };
        for (const act of [
          (saleId: string, hold: OrderMessage) => gate.settle(saleId, [hold]),
          (saleId: string, hold: OrderMessage) => gate.release(saleId, hold),
          (saleId: string, hold: OrderMessage) => gate.withdraw(saleId, hold),
        ]) {
          for (const hold of [unknown, others]) await changesNothing(() => act(SALE, hold));
          await changesNothing(() => act('8', order));
        }
        expect(await gate.view('8')).toBeNull();
      });

      it('one order of a buyer ends and the others stay', async () => {
        await gate.applySale(SALE, values({ perBuyer: 3 }));
        const [a, b, c] = [await admitted('x'), await admitted('x'), await admitted('x')];
        await gate.release(SALE, b);
        expect(await admit('x', { quantity: 2 })).toMatchObject({ orderIds: [a.orderId, c.orderId] });
        await gate.release(SALE, a);
        await gate.release(SALE, c);
        expect(await voucher()).toMatchObject({ free: 3, queued: 0 });
        expect((await admitted('x', { quantity: 3 })).slots).toEqual([1, 2, 3]);
      });
    });

    describe('what the gate knows of an order', () => {
      it('holdOf tells a queued hold, a settled one and none apart', async () => {
        const order = await admitted('alice', { quantity: 2 });
        const held = {
          ...{ itemId: VOUCHER, itemCode: 'voucher', price: { amount: 8000, currency: 'CNY' } },
          ...{ quantity: 2, slots: [1, 2], epoch: 1 },
        };
        expect(await gate.holdOf(SALE, order)).toEqual({ queued: true, ...held });
        await gate.settle(SALE, [order]);
        expect(await gate.holdOf(SALE, order)).toEqual({ queued: false, ...held });
        expect(await gate.holdOf(SALE, { ...order, orderId: '999' })).toBeNull();
        expect(await gate.holdOf('8', order)).toBeNull();
        await gate.release(SALE, order);
        expect(await gate.holdOf(SALE, order)).toBeNull();
      });

      it('an id is not taken for another one that begins or ends with it', async () => {
        await gate.applySale(SALE, values({ perBuyer: 4 }));
        const ids = ['1', '11', '111', '1112'];
        for (const orderId of ids) await admitted('alice', { orderId, itemCode: 'poster' });
        await gate.settle(SALE, [{ orderId: '11', buyer: 'alice' }]);
        const queued = async (orderId: string) => (await gate.holdOf(SALE, { orderId, buyer: 'alice' }))?.queued;
        expect(await Promise.all(ids.map(queued))).toEqual([true, false, true, true]);
        await gate.release(SALE, { orderId: '111', buyer: 'alice' });
        expect(await Promise.all(ids.map(queued))).toEqual([true, false, undefined, true]);
        expect((await admitted('alice', { orderId: '12', itemCode: 'poster' })).slots).toEqual([3]);
      });

      it('settles many at once, known or not', async () => {
        const orders = await sellOut();
        const poster = await admitted('x', { itemCode: 'poster' });
        await gate.settle(SALE, [...orders, { orderId: '999', buyer: 'x' }, poster, orders[0]!]);
        expect(await gate.view(SALE)).toMatchObject([
          { queued: 0, held: 3 },
          { queued: 0, held: 1 },
        ]);
      });
    });

    describe('no sold-out that sticks', () => {
      let sold: OrderMessage[];

      beforeEach(async () => {
        sold = await sellOut();
        expect(await outcome('late')).toBe('sold_out');
      });

      it('a restock is seen at once', async () => {
        await gate.applyTotal(SALE, VOUCHER, 4, 2);
        expect(await outcome('late')).toBe('admitted');
        expect(await outcome('later')).toBe('sold_out');
      });

      it('a release and a withdrawal are seen at once', async () => {
        await gate.settle(SALE, [sold[0]!]);
        await gate.release(SALE, sold[0]!);
        expect(await outcome('late')).toBe('admitted');
        await gate.withdraw(SALE, sold[1]!);
        expect(await outcome('later')).toBe('admitted');
        expect(await outcome('latest')).toBe('sold_out');
      });

      it('a house hold that is dropped is seen at once', async () => {
        await gate.release(SALE, sold[0]!);
        expect(await gate.holdForHouse(SALE, VOUCHER, 1, 'h')).toBe(true);
        expect(await outcome('late')).toBe('sold_out');
        await gate.dropHouseHold(SALE, VOUCHER, 'h');
        expect(await outcome('late')).toBe('admitted');
      });

      it('sold out, paused and resumed: the restock of the pause is there', async () => {
        await gate.applySale(SALE, values({ version: 2, paused: true }));
        expect(await outcome('late')).toBe('sale_paused');
        await gate.applyTotal(SALE, VOUCHER, 4, 2);
        expect(await outcome('late')).toBe('sale_paused');
        await gate.applySale(SALE, values({ version: 3, paused: false }));
        expect(await outcome('late')).toBe('admitted');
      });
    });

    describe('values from the ledger', () => {
      it('an older or equal version changes nothing', async () => {
        await gate.applySale(SALE, values({ version: 5, paused: true }));
        for (const version of [1, 4, 5]) await gate.applySale(SALE, values({ version, paused: false, perBuyer: 9 }));
        expect(await outcome('a')).toBe('sale_paused');
        await gate.applySale(SALE, values({ version: 6 }));
        expect(await outcome('a')).toBe('admitted');
      });

      it('pause, resume and close are in force for the next order', async () => {
        await gate.applySale(SALE, values({ version: 2, paused: true }));
        expect(await outcome('a')).toBe('sale_paused');
        await gate.applySale(SALE, values({ version: 3 }));
        expect(await outcome('a')).toBe('admitted');
        await gate.applySale(SALE, values({ version: 4, closed: true }));
        expect(await outcome('b')).toBe('sale_closed');
      });

      it('a patched payWithin stands in the messages that follow', async () => {
        await gate.applySale(SALE, values({ payWithinSeconds: 60 }));
        expect(await admitted('a')).toMatchObject({ payWithinSeconds: 60 });
      });

      it('P1: an older or equal rev changes nothing', async () => {
        await gate.applyTotal(SALE, VOUCHER, 2, 5);
        for (const rev of [1, 4, 5]) await gate.applyTotal(SALE, VOUCHER, 100, rev);
        expect(await voucher()).toMatchObject({ total: 2, rev: 5 });
        await gate.applyTotal(SALE, VOUCHER, 1, 6);
        expect(await voucher()).toMatchObject({ total: 1, rev: 6 });
      });

      it('P1: a total below what is held admits nobody', async () => {
        await admitted('a', { quantity: 2 });
        await gate.applyTotal(SALE, VOUCHER, 1, 2);
        expect(await outcome('b')).toBe('sold_out');
      });

      it('values for a sale or item that the gate does not hold are ignored', async () => {
        await changesNothing(async () => {
          await gate.applySale('8', values({}));
          await gate.applyTotal('8', VOUCHER, 9, 9);
          await gate.applyTotal(SALE, '99', 9, 9);
        });
        expect(await gate.view('8')).toBeNull();
      });
    });

    describe('holds of the house', () => {
      it('take free units out of the sale', async () => {
        expect(await gate.holdForHouse(SALE, VOUCHER, 2, 'h')).toBe(true);
        expect(await voucher()).toMatchObject({ total: 3, free: 1, house: 2 });
        expect(await outcome('a', { quantity: 2 })).toBe('sold_out');
        expect(await outcome('a')).toBe('admitted');
      });

      it('take all of it or nothing', async () => {
        await admitted('a', { quantity: 2 });
        await changesNothing(async () => expect(await gate.holdForHouse(SALE, VOUCHER, 2, 'h')).toBe(false));
        await changesNothing(async () => expect(await gate.holdForHouse('8', VOUCHER, 1, 'h')).toBe(false));
        await changesNothing(async () => expect(await gate.holdForHouse(SALE, '99', 1, 'h')).toBe(false));
        expect(await gate.holdForHouse(SALE, VOUCHER, 1, 'h')).toBe(true);
      });

      it('the same hold again takes nothing, and is dropped once', async () => {
        expect(await gate.holdForHouse(SALE, VOUCHER, 2, 'h')).toBe(true);
        await changesNothing(async () => expect(await gate.holdForHouse(SALE, VOUCHER, 2, 'h')).toBe(true));
        await gate.dropHouseHold(SALE, VOUCHER, 'h');
        expect(await voucher()).toMatchObject({ total: 3, free: 3, house: 0 });
        await changesNothing(() => gate.dropHouseHold(SALE, VOUCHER, 'h'));
        await changesNothing(() => gate.dropHouseHold(SALE, VOUCHER, 'never held'));
      });

      it('P1: dropped with the lowered total, its units are gone in the same step', async () => {
        await gate.holdForHouse(SALE, VOUCHER, 2, 'h');
        await gate.dropHouseHold(SALE, VOUCHER, 'h', { total: 1, rev: 2 });
        expect(await voucher()).toMatchObject({ total: 1, free: 1, house: 0, rev: 2 });
        expect(await outcome('a')).toBe('admitted');
        expect(await outcome('b')).toBe('sold_out');
      });

      it('a lowered total that a newer rev has overtaken is not applied; the hold ends all the same', async () => {
        await gate.holdForHouse(SALE, VOUCHER, 2, 'h');
        await gate.applyTotal(SALE, VOUCHER, 9, 7);
        await gate.dropHouseHold(SALE, VOUCHER, 'h', { total: 1, rev: 6 });
        expect(await voucher()).toMatchObject({ total: 9, free: 9, house: 0, rev: 7 });
      });

      it('P1: a lowered total is applied also if the gate was rebuilt meanwhile and the hold is gone', async () => {
        await gate.holdForHouse(SALE, VOUCHER, 2, 'h');
        await gate.install(snapshot({ epoch: 2 }));
        await gate.dropHouseHold(SALE, VOUCHER, 'h', { total: 1, rev: 2 });
        expect(await voucher()).toMatchObject({ total: 1, free: 1, house: 0, rev: 2 });
      });

      it('holds of one item are separate', async () => {
        await gate.holdForHouse(SALE, VOUCHER, 1, 'h1');
        await gate.holdForHouse(SALE, VOUCHER, 1, 'h2');
        expect(await gate.holdForHouse(SALE, VOUCHER, 2, 'h3'), 'one is left').toBe(false);
        await gate.dropHouseHold(SALE, VOUCHER, 'h1');
        expect(await voucher()).toMatchObject({ free: 2, house: 1 });
      });
    });

    describe('install and remove', () => {
      const holds = [
        { orderId: '501', itemId: VOUCHER, buyer: 'alice', slots: [2] },
        { orderId: '502', itemId: POSTER, buyer: 'bob', slots: [1, 2] },
      ];

      it('live orders of the snapshot hold their units and slots', async () => {
        await gate.install(snapshot({ epoch: 2, holds }));
        expect(await gate.view(SALE)).toMatchObject([
          { itemId: VOUCHER, code: 'voucher', total: 3, free: 2, queued: 0, held: 1 },
          { itemId: POSTER, code: 'poster', total: 5, free: 3, queued: 0, held: 2 },
        ]);
        expect(await admitted('alice')).toMatchObject({ slots: [1], epoch: 2 });
        expect(await admit('alice')).toMatchObject({ outcome: 'limit_reached', orderIds: ['501', '1001'] });
        expect(await admit('bob')).toMatchObject({ outcome: 'limit_reached', orderIds: ['502'] });
        await gate.release(SALE, { orderId: '502', buyer: 'bob' });
        expect((await gate.view(SALE))![1]).toMatchObject({ free: 5, held: 0 });
      });

      it('an item that is off sale is sold out to everybody, and what was ordered before stays so', async () => {
        const fingerprint = orderFingerprint('voucher', 1);
        const keys = [{ buyer: 'alice', key: 'k', fingerprint, orderId: '501', boundAtMs: T0 - 1000 }];
        const items = snapshot().items.map((item) =>
          item.id === VOUCHER ? { ...item, onSale: false as const } : item,
        );
        await gate.install(snapshot({ epoch: 2, holds, keys, items }));
        // One alone, and in a crowd that wants the same.
        expect(await outcome('carol')).toBe('sold_out');
        const crowd = await Promise.all(Array.from({ length: 5 }, (_, at) => outcome(`b${at}`)));
        expect(new Set(crowd)).toEqual(new Set(['sold_out']));
        // P5: a repeat of its own first try is not refused for it.
        expect(await admit('alice', { key: 'k' })).toEqual({ outcome: 'replayed', orderId: '501' });
        expect(await outcome('carol', { itemCode: 'poster' })).toBe('admitted');
        await gate.applyTotal(SALE, VOUCHER, 9, 2);
        await gate.release(SALE, { orderId: '501', buyer: 'alice' });
        expect(await outcome('carol')).toBe('sold_out');
        expect((await gate.view(SALE))![0]).toMatchObject({ itemId: VOUCHER, total: 9, free: 9, held: 0 });
        await gate.install(snapshot({ epoch: 3 }));
        expect(await outcome('carol')).toBe('admitted');
      });

      it('P5: keys of the snapshot are bound', async () => {
        const fingerprint = orderFingerprint('voucher', 1);
        const keys = [{ buyer: 'alice', key: 'k', fingerprint, orderId: '501', boundAtMs: T0 - 1000 }];
        await gate.install(snapshot({ epoch: 2, keys, closed: true }));
        expect(await admit('alice', { key: 'k' })).toEqual({ outcome: 'replayed', orderId: '501' });
        expect(await outcome('alice', { key: 'k', itemCode: 'poster' })).toBe('idempotency_key_reused');
      });

      it('P2: orders of one buyer come in several pages, and count together', async () => {
        const mine = [
          { orderId: '501', itemId: VOUCHER, buyer: 'alice', slots: [2] },
          { orderId: '502', itemId: POSTER, buyer: 'bob', slots: [1] },
          { orderId: '503', itemId: POSTER, buyer: 'alice', slots: [1] },
        ];
        await gate.install(snapshot({ epoch: 2, holds: mine }));
        expect(await admit('alice')).toMatchObject({ outcome: 'limit_reached', orderIds: ['501', '503'] });
        await gate.release(SALE, { orderId: '501', buyer: 'alice' });
        expect(await gate.holdOf(SALE, { orderId: '503', buyer: 'alice' })).toMatchObject({ slots: [1] });
        expect(await admitted('alice')).toMatchObject({ slots: [2], epoch: 2 });
      });

      it('P10: a ledger that fails between two pages leaves what is in force, and the next try opens', async () => {
        await admitted('alice');
        const content = (async function* () {
          yield { holds: [holds[0]!], keys: [] };
          throw new Error('the ledger is out');
        })();
        await changesNothing(() =>
          expect(gate.install({ ...snapshot({ epoch: 2 }), content })).rejects.toThrow('the ledger is out'),
        );
        expect(await outcome('bob')).toBe('admitted');
        await gate.install(snapshot({ epoch: 3, holds }));
        expect(await voucher()).toMatchObject({ held: 1, queued: 0 });
      });

      it('P5: what a key is bound to can be asked without an order, also of a shut gate', async () => {
        const fingerprint = orderFingerprint('voucher', 1);
        const order = await admitted('alice', { key: 'k 1' });
        expect(await gate.keyOf(SALE, 'alice', 'k 1')).toEqual({ orderId: order.orderId, fingerprint });
        for (const [buyer, key] of [
          ['bob', 'k 1'],
          ['alice', 'k'],
        ] as const) {
          expect(await gate.keyOf(SALE, buyer, key)).toBeNull();
        }
        await gate.shut(SALE);
        expect(await gate.keyOf(SALE, 'alice', 'k 1')).toEqual({ orderId: order.orderId, fingerprint });
        await gate.withdraw(SALE, order);
        expect(await gate.keyOf(SALE, 'alice', 'k 1')).toBeNull();
        expect(await gate.keyOf('8', 'alice', 'k 1')).toBeNull();
      });

      it('P4: a late copy of an admission whose order has ended makes a hold that a release ends, once', async () => {
        const asked = { perBuyer: 2 };
        await gate.install(snapshot({ epoch: 2, ...asked }));
        const first = await admitted('alice');
        await gate.settle(SALE, [first]);
        await gate.release(SALE, first);
        const second = await admitted('alice');
        expect(second.slots).toEqual([1]);
        const late = await admitted('alice', { orderId: first.orderId });
        expect(late.slots, 'another slot than the first time').toEqual([2]);
        expect(await voucher()).toMatchObject({ free: 1, queued: 2 });
        for (let times = 0; times < 2; times++) {
          await gate.release(SALE, late);
          expect(await voucher()).toMatchObject({ free: 2, queued: 1, held: 0 });
        }
        expect(await admitted('alice')).toMatchObject({ slots: [2] });
      });

      it('blocked units are not free', async () => {
        const items = snapshot().items.map((item) => ({ ...item, blocked: 2 }));
        await gate.install(snapshot({ epoch: 2, items }));
        expect(await voucher()).toMatchObject({ total: 3, free: 1, blocked: 2 });
        expect(await outcome('a', { quantity: 2 })).toBe('sold_out');
      });

      it('P1: an older or equal epoch does not replace what is there', async () => {
        await gate.install(snapshot({ epoch: 5 }));
        await sellOut();
        for (const epoch of [1, 4, 5]) await changesNothing(() => gate.install(snapshot({ epoch, perBuyer: 9 })));
        expect(await outcome('late')).toBe('sold_out');
      });

      it('a higher epoch replaces it: holds and keys that the ledger does not know are gone, and stay gone', async () => {
        const order = await admitted('alice', { key: 'k' });
        await gate.install(snapshot({ epoch: 2 }));
        expect(await voucher()).toMatchObject({ free: 3, queued: 0 });
        await changesNothing(() => gate.withdraw(SALE, order));
        await changesNothing(() => gate.release(SALE, order));
        await changesNothing(() => gate.settle(SALE, [order]));
        expect(await outcome('alice', { key: 'k' })).toBe('admitted');
      });

      it('a removed sale is stale until it is installed again', async () => {
        await gate.remove(SALE);
        expect(await outcome('a')).toBe('stale');
        expect(await gate.view(SALE)).toBeNull();
        expect(await gate.holdForHouse(SALE, VOUCHER, 1, 'h')).toBe(false);
        await gate.remove(SALE);
        await gate.install(snapshot({ epoch: 2 }));
        expect(await outcome('a')).toBe('admitted');
      });

      it('a shut gate admits nobody, settles and gives back, and opens with a higher epoch only', async () => {
        const [first, second] = [await admitted('alice'), await admitted('bob', { key: 'k' })];
        expect(await gate.epochOf(SALE)).toBe(1);
        await gate.shut(SALE);
        expect(await gate.epochOf(SALE)).toBeNull();
        await changesNothing(async () => {
          expect(await outcome('carol')).toBe('stale');
          expect(await outcome('bob', { key: 'k' })).toBe('stale');
          await gate.install(snapshot({ epoch: 1 }));
          expect(await outcome('carol')).toBe('stale');
        });
        await gate.settle(SALE, [first]);
        await gate.release(SALE, second);
        expect(await voucher()).toMatchObject({ free: 2, queued: 0, held: 1 });
        const holds = [{ ...first, slots: [1] }];
        await gate.install(snapshot({ epoch: 2, holds }));
        expect(await gate.epochOf(SALE)).toBe(2);
        expect(await admitted('carol')).toMatchObject({ epoch: 2 });
        await gate.shut('8');
        expect(await gate.epochOf('8')).toBeNull();
      });

      it('shuts an epoch, and those below it, but none above', async () => {
        await gate.install(snapshot({ epoch: 3 }));
        await gate.shut(SALE, 2);
        expect(await gate.epochOf(SALE)).toBe(3);
        await gate.shut(SALE, 3);
        expect(await gate.epochOf(SALE)).toBeNull();
        await gate.install(snapshot({ epoch: 4 }));
        await gate.shut(SALE, 9);
        expect(await gate.epochOf(SALE)).toBeNull();
      });

      it('P1: is told what was changed while it was built when it is in place, and before it opens', async () => {
        await gate.install(snapshot({ epoch: 2 }), async () => {
          expect(await gate.epochOf(SALE), 'in place').toBeNull();
          expect(await outcome('early')).toBe('stale');
          return { ...values({ version: 5, perBuyer: 1 }), items: [{ id: VOUCHER, total: 1, rev: 9 }] };
        });
        expect(await gate.epochOf(SALE)).toBe(2);
        expect(await voucher()).toMatchObject({ total: 1, rev: 9 });
        expect(await outcome('alice', { quantity: 2, itemCode: 'poster' })).toBe('limit_reached');
        await gate.install(snapshot({ epoch: 3, version: 6 }), async () => null);
        expect(await outcome('alice', { quantity: 2, itemCode: 'poster' })).toBe('admitted');
      });

      it('P1: values and totals that are newer than the snapshot stay', async () => {
        await gate.applySale(SALE, values({ version: 5, perBuyer: 1 }));
        await gate.applyTotal(SALE, VOUCHER, 1, 9);
        await gate.install(snapshot({ epoch: 2 }));
        expect(await voucher()).toMatchObject({ total: 1, rev: 9 });
        expect(await outcome('alice', { quantity: 2 })).toBe('limit_reached');
        expect((await gate.view(SALE))![1]).toMatchObject({ total: 5, rev: 1 });
        await gate.install(snapshot({ epoch: 3, version: 6 }));
        expect(await outcome('alice', { quantity: 2, itemCode: 'poster' })).toBe('admitted');
      });

      it('sales do not touch each other', async () => {
        await gate.install(snapshot({ saleId: '8' }));
        await sellOut();
        expect(await outcome('x', { saleId: '8', quantity: 2 })).toBe('admitted');
        await gate.remove('8');
        expect(await outcome('x', { itemCode: 'poster' })).toBe('admitted');
      });
    });
  });
}
