import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { ManualClock } from '../../src/base/clock.ts';
import { DoorbusterError } from '../../src/base/errors.ts';
import { orderKey } from '../../src/base/idempotency.ts';
import {
  type AdminCall,
  KEY_KEPT_MS,
  type KeyScope,
  type Ledger,
  type SaleChange,
  type StoredOrder,
} from '../../src/ledger/port.ts';
import { Unresolved, type UnresolvedEffects } from '../../src/ledger/unresolved.ts';
import { PAGE_ORDERS } from '../../src/ledger/works/gate-pages.ts';
import { Writer } from '../../src/ledger/writer.ts';
import { actor } from '../../src/model/actor.ts';
import { type OrderMessage, type OrderRecord, orderFingerprint, type PlacedBy } from '../../src/model/order.ts';
import { BOUNDS, type ItemRecord, type NewSale, type SaleRecord, stampOf } from '../../src/model/sale.ts';
import type { SnapshotPage } from '../../src/model/snapshot.ts';
import { newSale } from '../support/new-sale.ts';
import { whole, wholeSnapshot } from '../support/snapshot.ts';
import { countTests } from './count.ts';
import { accountContract } from './ledger-accounts.ts';
import { webhookContract } from './ledger-webhooks.ts';
import { type ManualRuntime, T0 } from './manual.ts';

export interface LedgerUnderTest {
  ledger: Ledger;
  clock: ManualClock;
  runtime: ManualRuntime;
  /** Reopens with what is durable at this instant, as after kill -9: nothing that waited was done. */
  crash(): Promise<void>;
  /** Closed in order and opened again. */
  reopen(): Promise<void>;
  close(): Promise<void>;
}

/**
 * A ledger may keep what it committed in more than one place (the tail and the tables it is folded into). Its answers must
 * not depend on where an order is, so the tests below run in each of these states.
 */
export interface State {
  name: string;
  /** Orders of another sale that are folded before (`ahead`) or after those of the test. */
  filler?: { ahead: boolean; orders: number };
  fold?: 'part' | 'all';
  crash?: boolean;
}

export const STATES: State[] = [
  { name: 'just committed' },
  { name: 'after a crash', crash: true },
  { name: 'folded', fold: 'all' },
  { name: 'folded, then a crash', fold: 'all', crash: true },
  { name: 'while folding, not its turn yet', filler: { ahead: true, orders: 130 }, fold: 'part' },
  { name: 'while folding, the first of it written', filler: { ahead: true, orders: 62 }, fold: 'part' },
  { name: 'while folding, all of it written', filler: { ahead: false, orders: 130 }, fold: 'part' },
  { name: 'after a crash while folding', filler: { ahead: true, orders: 62 }, fold: 'part', crash: true },
];

const SALE = '500';
const OTHER_SALE = '600';
const FILLER_AHEAD = '100';
const FILLER_BEHIND = '900';
const HOUR_MS = 3600 * 1000;
const SCOPE: KeyScope = {
  caller: 'admin:alice',
  actingFor: null,
  operation: 'sale.stock',
  subject: `${SALE}/voucher`,
  key: 'k',
};

/** The contract of src/ledger/port.ts. Every adapter passes all of it. */
export function ledgerContract(name: string, make: () => Promise<LedgerUnderTest>, states: State[] = STATES): void {
  describe(`ledger contract: ${name}`, () => {
    countTests('ledger', name);
    let world: LedgerUnderTest;
    let lastId: number;

    beforeEach(async () => {
      world = await make();
      lastId = 1000;
      await createSale(SALE);
    });

    afterEach(() => world.close());

    const id = (): string => String(++lastId);

    function call(over: Partial<AdminCall> = {}): AdminCall {
      return { by: actor('admin', 'admin'), auditId: id(), keyed: null, answer: (sale) => `v${sale.version}`, ...over };
    }

    function keyed(over: Partial<KeyScope> = {}, fingerprint = 'f'): AdminCall {
      return call({ keyed: { ...SCOPE, ...over, fingerprint } });
    }

    function saleOfTwo(over: Partial<NewSale> = {}): NewSale {
      return newSale({
        opensAtMs: T0,
        closesAtMs: T0 + 72 * HOUR_MS,
        perBuyer: 3,
        payWithinSeconds: 900,
        items: [
          { code: 'voucher', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: 5 },
          { code: 'poster', name: 'Poster', price: { amount: 500, currency: 'CNY' }, stock: 400 },
        ],
        ...over,
      });
    }

    /** Items of sale 500 are 501 and 502. */
    async function createSale(saleId: string, over: Partial<NewSale> = {}): Promise<SaleRecord> {
      const sale = saleOfTwo(over);
      const itemIds = sale.items.map((_, at) => String(Number(saleId) + 1 + at));
      return changed(await world.ledger.createSale({ ...sale, id: saleId, itemIds }, call()));
    }

    function changed(change: SaleChange): SaleRecord {
      if (change.outcome !== 'changed') throw new Error(`should be changed: ${JSON.stringify(change)}`);
      return change.sale;
    }

    /** An honest message for a voucher (or `itemCode`) of the sale. */
    function message(over: Partial<OrderMessage> & { buyer: string }): OrderMessage {
      const { saleId = SALE, itemCode = 'voucher', slots = [1] } = over;
      const quantity = over.quantity ?? slots.length;
      return {
        orderId: id(),
        saleId,
        itemId: String(Number(saleId) + (itemCode === 'voucher' ? 1 : 2)),
        itemCode,
        quantity,
        slots,
        price: itemCode === 'voucher' ? { amount: 8000, currency: 'CNY' } : { amount: 500, currency: 'CNY' },
        payWithinSeconds: 900,
        epoch: 1,
        key: null,
        fingerprint: orderFingerprint(itemCode, quantity),
        ...over,
      };
    }

    function placedBy(): PlacedBy {
      return { ...actor('admin', 'alice', '192.0.2.7'), auditId: id() };
    }

    /** Rows of the audit, oldest first. */
    async function notes(action: string) {
      const rows = await world.ledger.audit({}, { limit: 5000, before: null });
      const ours = rows.filter((row) => row.action === action).reverse();
      return ours.map((row) => ({ ...row, detail: JSON.parse(row.detail) as unknown }));
    }

    function commit(...batch: OrderMessage[]): Promise<StoredOrder[]> {
      return world.ledger.commitOrders(batch);
    }

    accountContract({ world: () => world });

    webhookContract({
      world: () => world,
      reserve: async (buyer) => (await commit(message({ buyer, itemCode: 'poster' })))[0]!.order,
    });

    /** `reserved`, or why it was rejected. */
    async function verdicts(...batch: OrderMessage[]): Promise<string[]> {
      const stored = await commit(...batch);
      // What is answered is what is stored, in the order of the batch.
      for (const [at, { order }] of stored.entries()) {
        expect(order.id).toBe(batch[at]!.orderId);
        expect(await world.ledger.getOrder(order.id)).toEqual(order);
      }
      return stored.map(({ order }) => order.reason ?? order.status);
    }

    async function item(code = 'voucher', saleId = SALE): Promise<ItemRecord> {
      return (await world.ledger.getSale(saleId))!.items.find((one) => one.code === code)!;
    }

    async function faultOf(promise: Promise<unknown>): Promise<string> {
      const error = await promise.then(
        () => null,
        (thrown: unknown) => thrown,
      );
      expect(error).toBeInstanceOf(Error);
      return error instanceof DoorbusterError ? error.code : 'error';
    }

    async function reach({ filler, fold, crash }: State): Promise<void> {
      if (filler) {
        const saleId = filler.ahead ? FILLER_AHEAD : FILLER_BEHIND;
        await createSale(saleId);
        await commit(
          ...Array.from({ length: filler.orders }, (_, i) =>
            message({ saleId, itemCode: 'poster', buyer: `filler-${String(i).padStart(3, '0')}` }),
          ),
        );
      }
      // A budget of 0 is the smallest slice: the first gathers what waits, the second writes some of it.
      if (fold === 'part') for (let slice = 0; slice < 2; slice++) await world.ledger.maintain(0);
      if (fold === 'all') while (await world.ledger.maintain(1000));
      if (crash) await world.crash();
    }

    describe('a batch', () => {
      it('is stored whole: each order reserved, with the amount and the time to pay by the clock of its commit', async () => {
        const batch = [message({ buyer: 'alice', slots: [1, 2], key: 'k' }), message({ buyer: 'bob' })];
        world.clock.advance(5000);
        const stored = await commit(...batch);
        expect(stored).toEqual([
          {
            inserted: true,
            order: {
              id: batch[0]!.orderId,
              saleId: SALE,
              itemId: '501',
              itemCode: 'voucher',
              buyer: 'alice',
              quantity: 2,
              amount: { amount: 16_000, currency: 'CNY' },
              status: 'reserved',
              reason: null,
              createdAtMs: T0 + 5000,
              updatedAtMs: T0 + 5000,
              expiresAtMs: T0 + 5000 + 900_000,
              version: 1,
              revives: null,
            },
          },
          { inserted: true, order: expect.objectContaining({ id: batch[1]!.orderId, buyer: 'bob', quantity: 1 }) },
        ]);
        for (const { order } of stored) expect(await world.ledger.getOrder(order.id)).toEqual(order);
      });

      it('raises rev by one for each item whose units it moved, and for no other', async () => {
        const before = [await item('voucher'), await item('poster')];
        await commit(...['a', 'b', 'c'].map((buyer) => message({ buyer })));
        expect(await item('voucher')).toEqual({ ...before[0], reserved: 3, rev: before[0]!.rev + 1 });
        expect(await item('poster')).toEqual(before[1]);
      });

      it('may hold orders of several items and sales', async () => {
        await createSale(OTHER_SALE, { perBuyer: 1 });
        const batch = [
          message({ buyer: 'a', itemCode: 'poster' }),
          message({ buyer: 'a', saleId: OTHER_SALE }),
          message({ buyer: 'a', slots: [2] }),
          message({ buyer: 'b', itemCode: 'poster', slots: [1, 2, 3] }),
        ];
        expect(await verdicts(...batch)).toEqual(['reserved', 'reserved', 'reserved', 'reserved']);
        expect(await item('poster')).toMatchObject({ reserved: 4, rev: 1 });
        expect(await item('voucher')).toMatchObject({ reserved: 1, rev: 1 });
        expect(await item('voucher', OTHER_SALE)).toMatchObject({ reserved: 1, rev: 1 });
        expect(await item('poster', OTHER_SALE)).toMatchObject({ reserved: 0, rev: 0 });
      });

      it('may be empty', async () => {
        expect(await commit()).toEqual([]);
      });

      it('that fails stores nothing and leaves nothing behind (P1, P2, P5)', async () => {
        const good = message({ buyer: 'alice', slots: [1, 2], key: 'k' });
        const nonsense = message({ buyer: 'mallory', quantity: 0, slots: [] });
        await faultOf(commit(good, nonsense));
        expect(await world.ledger.storedAmong([good.orderId, nonsense.orderId])).toEqual(new Map());
        expect(await world.ledger.findOrderKey({ saleId: SALE, buyer: 'alice', key: 'k' })).toBeNull();
        expect(await world.ledger.listOrders({ buyer: 'alice' }, { limit: 10, before: null })).toEqual([]);
        expect(await item()).toMatchObject({ reserved: 0, rev: 0 });
        expect(await verdicts(good), 'its neighbour is right and must be taken').toEqual(['reserved']);
      });

      for (const [what, wrong] of [
        ['a quantity of 0', { quantity: 0, slots: [] }],
        ['a negative quantity', { quantity: -1, slots: [] }],
        ['half a unit', { quantity: 0.5, slots: [1] }],
        ['an item that does not exist', { itemId: '99999' }],
      ] as const) {
        it(`with ${what} is a fault or a rejection, never an order`, async () => {
          const wrongOne = { ...message({ buyer: 'mallory' }), ...wrong } as OrderMessage;
          const stored = await commit(wrongOne).catch(() => []);
          expect(stored.filter(({ order }) => order.status !== 'rejected')).toEqual([]);
          expect(await item()).toMatchObject({ reserved: 0 });
        });
      }

      it('an order of a sale that does not exist is never reserved', async () => {
        const lost = { ...message({ buyer: 'a' }), saleId: '77777' };
        const stored = await commit(lost).catch(() => []);
        expect(stored.filter(({ order }) => order.status !== 'rejected')).toEqual([]);
        expect(await item()).toMatchObject({ reserved: 0 });
      });

      it('P2: an item of another sale is never reserved: its limit would not be that of the sale', async () => {
        await createSale(OTHER_SALE, { perBuyer: 1 });
        const crossed = { ...message({ buyer: 'a' }), saleId: OTHER_SALE };
        const stored = await commit(crossed).catch(() => []);
        expect(stored.filter(({ order }) => order.status !== 'rejected')).toEqual([]);
        expect(await item()).toMatchObject({ reserved: 0 });
      });

      // A worker that dies between its commit and its acknowledgement leaves the whole batch to the next one. The bounds are
      // those of a batch of the pipe (512), of a statement (500) and of a packet (1 000).
      it.each([1, 2, 499, 500, 501, 511, 512, 513, 1000, 1001])(
        'P3: %i orders sent again, with events kept: all and some of them are known, and each has one event',
        async (size) => {
          await createSale(OTHER_SALE, { perBuyer: 3, items: [{ ...saleOfTwo().items[0]!, stock: 5000 }] });
          world.ledger.keepEvents = true;
          const batch = Array.from({ length: size }, (_, at) =>
            message({ saleId: OTHER_SALE, buyer: `buyer-${at}`, slots: at % 3 === 0 ? [1, 2] : [1], key: `k${at}` }),
          );
          const units = batch.reduce((sum, { quantity }) => sum + quantity, 0);
          const first = await commit(...batch);
          expect(first.every(({ order, inserted }) => inserted && order.status === 'reserved')).toBe(true);

          const again = await commit(...batch);
          expect(again).toEqual(first.map(({ order }) => ({ order, inserted: false })));
          const others = batch.map((_, at) => message({ saleId: OTHER_SALE, buyer: `other-${at}` }));
          const some = batch.map((old, at) => (at % 2 === 0 ? old : others[at]!));
          const mixed = await commit(...some);
          expect(mixed.map(({ inserted }) => inserted)).toEqual(some.map((_, at) => at % 2 === 1));
          expect(mixed.every(({ order }) => order.status === 'reserved')).toBe(true);

          const news = Math.floor(size / 2);
          expect(await item('voucher', OTHER_SALE)).toMatchObject({ reserved: units + news });
          const events = await world.ledger.outgoingEvents(5000);
          const told = events.map(({ orderId }) => orderId).toSorted();
          const stored = [...batch, ...others.filter((_, at) => at % 2 === 1)].map(({ orderId }) => orderId);
          expect(told).toEqual(stored.toSorted());
          world.ledger.keepEvents = false;
        },
      );

      it('P3: sent again after their events were taken over, or before there were any, they are known all the same', async () => {
        const batch = ['alice', 'bob'].map((buyer) => message({ buyer }));
        const first = await commit(...batch);
        world.ledger.keepEvents = true;
        const known = first.map(({ order }) => ({ order, inserted: false }));
        expect(await commit(...batch)).toEqual(known);
        expect(await world.ledger.outgoingEvents(10), 'of orders that were stored before somebody listened').toEqual(
          [],
        );
        const next = message({ buyer: 'carol' });
        await commit(next);
        const [event] = await world.ledger.outgoingEvents(10);
        await world.ledger.forgetEvents([event!.id]);
        expect((await commit(next, ...batch)).map(({ inserted }) => inserted)).toEqual([false, false, false]);
        expect(await world.ledger.outgoingEvents(10), 'none is told twice').toEqual([]);
        world.ledger.keepEvents = false;
      });

      // A batch of the pipe has at most 512, a statement 500 rows, a packet 1 000 orders.
      it.each([
        [1, false],
        [501, true],
        [513, false],
        [1001, false],
      ])(
        'of %i orders, some of them placed for their buyers (events kept: %s): these have one audit row each, however often it is sent',
        async (size, keepEvents) => {
          await createSale(OTHER_SALE, { items: [{ ...saleOfTwo().items[0]!, stock: 5000 }] });
          world.ledger.keepEvents = keepEvents;
          const batch = Array.from({ length: size }, (_, at) => {
            const order = message({ saleId: OTHER_SALE, buyer: `buyer-${at}`, key: at % 2 === 0 ? `k${at}` : null });
            return at % 3 === 0 ? { ...order, placedBy: placedBy() } : order;
          });
          const stored = await commit(...batch);
          expect(stored.every(({ order, inserted }) => inserted && order.status === 'reserved')).toBe(true);
          await commit(...batch);
          // Some are known, others are not.
          const later = message({ saleId: OTHER_SALE, buyer: 'later', placedBy: placedBy() });
          await commit(...batch.slice(-2), later);
          const placed = [...batch, later].filter((order) => order.placedBy !== undefined);
          expect(await notes('order.place')).toEqual(
            placed.map(({ orderId, buyer, placedBy: by }) => ({
              id: by!.auditId,
              atMs: T0,
              actor: 'admin:alice',
              origin: '192.0.2.7',
              action: 'order.place',
              subject: `order:${orderId}`,
              detail: { saleId: OTHER_SALE, buyer, item: 'voucher', quantity: 1, status: 'reserved' },
            })),
          );
          world.ledger.keepEvents = false;
        },
      );

      it('an order that was placed for its buyer and is refused: its row says so, and is not written twice', async () => {
        const refused = message({ buyer: 'alice', slots: [9], placedBy: placedBy() });
        for (const _ of [1, 2]) expect((await commit(refused))[0]!.order.reason).toBe('limit_reached');
        const lost = message({ buyer: 'bob', placedBy: placedBy() });
        for (const _ of [1, 2]) await world.ledger.rejectOrders([lost], 'admission_lost');
        const detail = { saleId: SALE, item: 'voucher', quantity: 1, status: 'rejected' };
        expect((await notes('order.place')).map((row) => row.detail)).toEqual([
          { ...detail, buyer: 'alice', reason: 'limit_reached' },
          { ...detail, buyer: 'bob', reason: 'admission_lost' },
        ]);
      });

      it('a batch that fails leaves no audit row', async () => {
        const good = message({ buyer: 'alice', placedBy: placedBy() });
        await commit(good);
        const fresh = message({ buyer: 'bob', placedBy: placedBy() });
        expect(await faultOf(commit(fresh, { ...good, buyer: 'mallory' }))).toBe('order_id_reused');
        expect(await notes('order.place')).toHaveLength(1);
      });

      it('of an order twice is one order, and both are told what is stored', async () => {
        const order = message({ buyer: 'a' });
        const stored = await commit(order, order);
        expect(stored.map(({ inserted }) => inserted)).toEqual([true, false]);
        expect(stored[1]!.order).toEqual(stored[0]!.order);
        expect(await item()).toMatchObject({ reserved: 1, rev: 1 });
      });

      const refused: [string, Partial<OrderMessage>][] = [
        ['sold_out', { slots: [1, 2, 3] }],
        ['limit_reached', { slots: [4] }],
        ['gate_rebuilt', { epoch: 0 }],
      ];
      for (const [why, wrong] of refused) {
        it(`of an order twice that is ${why}: both are told so`, async () => {
          await commit(message({ buyer: 'early', slots: [1, 2, 3] }));
          const order = message({ buyer: 'late', ...wrong });
          expect(await verdicts(order, order)).toEqual([why, why]);
        });
      }
    });

    describe.each(states)('with earlier orders $name', (state) => {
      /** Commits and then brings the ledger into the state. */
      async function given(...batch: OrderMessage[]): Promise<OrderRecord[]> {
        const stored = await commit(...batch);
        await reach(state);
        return stored.map(({ order }) => order);
      }

      const keyOf = (buyer: string, key: string) => world.ledger.findOrderKey({ saleId: SALE, buyer, key });

      it('an order sent again is the same order, and its units are not counted twice (P1)', async () => {
        const order = message({ buyer: 'alice', slots: [1, 2], key: 'k' });
        const [record] = await given(order);
        const before = await item();
        expect(await commit(order)).toEqual([{ order: record, inserted: false }]);
        expect(await item()).toEqual(before);
      });

      it('a batch of old and new orders moves the units of the new ones only', async () => {
        const old = [message({ buyer: 'a' }), message({ buyer: 'b' })];
        await given(...old);
        const before = await item();
        const stored = await commit(old[0]!, message({ buyer: 'c' }), old[1]!);
        expect(stored.map(({ inserted }) => inserted)).toEqual([false, true, false]);
        expect(await item()).toEqual({ ...before, reserved: 3, rev: before.rev + 1 });
      });

      for (const [what, other] of [
        ['another buyer', { buyer: 'eve' }],
        ['another quantity', { quantity: 2, slots: [1, 2] }],
        ['another item', { itemId: '502', itemCode: 'poster' }],
        ['other slots', { slots: [3] }],
        ['another body', { fingerprint: 'other' }],
      ] as const) {
        it(`the same id with ${what} is a fault, and does not take its neighbours with it`, async () => {
          const order = message({ buyer: 'alice' });
          const [record] = await given(order);
          const poison = { ...order, ...other } as OrderMessage;
          const before = message({ buyer: 'bob', key: 'k' });
          const after = message({ buyer: 'carol' });
          expect(await faultOf(commit(before, poison, after))).toBe('order_id_reused');
          expect(await world.ledger.storedAmong([before.orderId, after.orderId])).toEqual(new Map());
          expect(await verdicts(before, after)).toEqual(['reserved', 'reserved']);
          expect(await world.ledger.getOrder(order.orderId)).toEqual(record);
          expect(await item()).toMatchObject({ reserved: 3 });
        });
      }

      it('the writer isolates such a fault: its neighbours are stored, it alone fails', async () => {
        const order = message({ buyer: 'alice' });
        await given(order);
        const heard: string[] = [];
        const effects: UnresolvedEffects = {
          async decided(stored) {
            for (const { order } of stored) {
              const { buyer, status, reason } = order;
              heard.push(status === 'rejected' ? `rejected ${buyer}: ${reason}` : `stored ${buyer}`);
            }
          },
          withdrawn: async () => {},
          failed: ({ buyer }) => heard.push(`failed ${buyer}`),
        };
        const unresolved = new Unresolved(world.ledger, world.runtime, effects);
        const writer = new Writer(world.ledger, world.runtime, { ...effects, committed: () => {} }, unresolved);
        const poison = { ...order, buyer: 'mallory' };
        await (await writer.write([message({ buyer: 'bob', key: 'k' }), poison, message({ buyer: 'carol' })])).told;
        unresolved.close();
        expect(heard).toEqual(['stored bob', 'failed mallory', 'stored carol']);
        expect(unresolved.reason).toBeNull();
      });

      it('P1: the surplus is the tail of the batch, rejected: sold_out', async () => {
        await given(message({ buyer: 'early', slots: [1, 2, 3] }));
        const before = await item();
        const batch = ['a', 'b', 'c', 'd'].map((buyer) => message({ buyer }));
        expect(await verdicts(...batch)).toEqual(['reserved', 'reserved', 'sold_out', 'sold_out']);
        expect(await item()).toEqual({ ...before, reserved: 5, rev: before.rev + 1 });
        expect(await verdicts(message({ buyer: 'e' }))).toEqual(['sold_out']);
        expect((await item()).rev, 'nothing moved').toBe(before.rev + 1);
      });

      it('P1: what comes after the first that does not fit is not squeezed in', async () => {
        await given(message({ buyer: 'early', slots: [1, 2, 3] }));
        const batch = [
          message({ buyer: 'a' }),
          message({ buyer: 'b', slots: [1, 2] }),
          message({ buyer: 'c' }),
          message({ buyer: 'd', itemCode: 'poster' }),
        ];
        expect(await verdicts(...batch)).toEqual(['reserved', 'sold_out', 'sold_out', 'reserved']);
        expect(await item()).toMatchObject({ reserved: 4 });
      });

      it('P2: a slot that is taken is refused, a free one is not', async () => {
        await given(message({ buyer: 'alice' }), message({ buyer: 'alice', slots: [3], itemCode: 'poster' }));
        expect(await verdicts(message({ buyer: 'alice' }))).toEqual(['limit_reached']);
        expect(await verdicts(message({ buyer: 'alice', slots: [3] }))).toEqual(['limit_reached']);
        expect(await verdicts(message({ buyer: 'alice', slots: [2] }))).toEqual(['reserved']);
      });

      it('P2: every slot of an order is taken, not only its first', async () => {
        await given(message({ buyer: 'alice', slots: [3, 1] }));
        for (const slot of [1, 3]) {
          expect(await verdicts(message({ buyer: 'alice', slots: [slot] })), `slot ${slot}`).toEqual(['limit_reached']);
        }
      });

      it('P2: an order with one slot taken loses all of it', async () => {
        await given(message({ buyer: 'alice', slots: [2] }));
        const before = await item();
        expect(await verdicts(message({ buyer: 'alice', slots: [1, 2, 3] }))).toEqual(['limit_reached']);
        expect(await item()).toEqual(before);
        expect(await verdicts(message({ buyer: 'alice', slots: [1, 3] }))).toEqual(['reserved']);
      });

      it('P2: two orders of one batch with the same slot: the first has it', async () => {
        await given();
        const batch = [message({ buyer: 'alice', slots: [1, 2] }), message({ buyer: 'alice', slots: [2, 3] })];
        expect(await verdicts(...batch)).toEqual(['reserved', 'limit_reached']);
        expect(await item()).toMatchObject({ reserved: 2 });
      });

      it('P2: slots of other buyers and other sales are other slots, bytewise', async () => {
        await createSale(OTHER_SALE);
        await given(message({ buyer: 'alice' }), message({ buyer: 'ren\u00e9' }));
        const others = [
          message({ buyer: 'Alice' }),
          message({ buyer: 'rene\u0301' }),
          message({ buyer: 'alice', saleId: OTHER_SALE }),
        ];
        expect(await verdicts(...others)).toEqual(['reserved', 'reserved', 'reserved']);
        const again = [message({ buyer: 'Alice' }), message({ buyer: 'rene\u0301' }), message({ buyer: 'ren\u00e9' })];
        expect(await verdicts(...again)).toEqual(['limit_reached', 'limit_reached', 'limit_reached']);
      });

      it('P2: slots that the sale never had are refused', async () => {
        await given(message({ buyer: 'early' }));
        const wrong = [[0], [-1], [4], [1.5], [1, 1], [1, 2, 3, 4], [1, 101]].map((slots, i) =>
          message({ buyer: `b${i}`, slots, itemCode: 'poster' }),
        );
        const counts = [
          message({ buyer: 'few', quantity: 2, slots: [1], itemCode: 'poster' }),
          message({ buyer: 'many', quantity: 1, slots: [1, 2], itemCode: 'poster' }),
          message({ buyer: 'none', quantity: 1, slots: [], itemCode: 'poster' }),
        ];
        for (const one of [...wrong, ...counts]) {
          expect(await verdicts(one), JSON.stringify(one.slots)).toEqual(['limit_reached']);
        }
        expect(await item('poster')).toMatchObject({ reserved: 0, rev: 0 });
      });

      it('P2: an order admitted under a limit that was lowered since is taken; the limit that never was is not', async () => {
        changed(await world.ledger.patchSale(SALE, { perBuyer: 5 }, 1, call()));
        changed(await world.ledger.patchSale(SALE, { perBuyer: 1 }, 2, call()));
        await given(message({ buyer: 'early' }));
        expect(await verdicts(message({ buyer: 'alice', slots: [5] }))).toEqual(['reserved']);
        expect(await verdicts(message({ buyer: 'bob', slots: [6] }))).toEqual(['limit_reached']);
      });

      it('P5: a key is bound to its first order', async () => {
        const [first] = await given(message({ buyer: 'alice', key: 'k' }));
        const bound = { fingerprint: 'voucher x1', orderId: first!.id };
        expect(await keyOf('alice', 'k')).toEqual(bound);
        const second = message({ buyer: 'alice', slots: [2], key: 'k' });
        expect(await verdicts(second)).toEqual(['gate_rebuilt']);
        expect(await keyOf('alice', 'k')).toEqual(bound);
        expect(await item()).toMatchObject({ reserved: 1 });
      });

      it('P5: two orders of one batch with one key: the first has it', async () => {
        await given();
        const batch = [1, 2].map((slot) => message({ buyer: 'alice', slots: [slot], key: 'k' }));
        expect(await verdicts(...batch)).toEqual(['reserved', 'gate_rebuilt']);
        expect(await keyOf('alice', 'k')).toMatchObject({ orderId: batch[0]!.orderId });
      });

      it('P5: a key belongs to its buyer, sale and text, bytewise', async () => {
        await createSale(OTHER_SALE);
        await given(message({ buyer: 'alice', key: 'k' }));
        const scope = { saleId: SALE, buyer: 'alice', key: 'k' };
        for (const other of [
          { buyer: 'Alice' },
          { saleId: OTHER_SALE },
          { key: 'K' },
          { key: orderKey('admin:a', 'k') },
        ]) {
          expect(await world.ledger.findOrderKey({ ...scope, ...other })).toBeNull();
        }
        expect(await verdicts(message({ buyer: 'Alice', key: 'k' }))).toEqual(['reserved']);
        expect(await verdicts(message({ buyer: 'alice', key: 'k', saleId: OTHER_SALE }))).toEqual(['reserved']);
        expect(await verdicts(message({ buyer: 'alice', key: 'K', slots: [2] }))).toEqual(['reserved']);
        const others = ['bob', 'carol'].map((buyer) => message({ buyer, key: 'k' }));
        const again = message({ buyer: 'alice', key: 'k', slots: [3] });
        expect(await verdicts(again, ...others), 'beside the key of another').toEqual([
          'gate_rebuilt',
          'reserved',
          'reserved',
        ]);
      });

      it('P5: a key is kept for 24 hours, and not longer', async () => {
        const [order] = await given(message({ buyer: 'alice', key: 'k' }));
        world.clock.advance(KEY_KEPT_MS - 1);
        expect(await keyOf('alice', 'k')).toMatchObject({ orderId: order!.id });
        world.clock.advance(1);
        expect(await keyOf('alice', 'k')).toBeNull();
      });

      it('P5: a key that is over binds the next order, before and after what waits is done', async () => {
        await given(message({ buyer: 'alice', key: 'k' }));
        world.clock.advance(KEY_KEPT_MS);
        const next = message({ buyer: 'alice', slots: [2], key: 'k' });
        expect(await verdicts(next)).toEqual(['reserved']);
        expect(await keyOf('alice', 'k')).toMatchObject({ orderId: next.orderId });
        while (await world.ledger.maintain(1000));
        expect(await keyOf('alice', 'k')).toMatchObject({ orderId: next.orderId });
        await world.crash();
        expect(await keyOf('alice', 'k')).toMatchObject({ orderId: next.orderId });
        expect(await verdicts(message({ buyer: 'alice', slots: [3], key: 'k' }))).toEqual(['gate_rebuilt']);
      });

      it('pruning forgets old keys and nothing else', async () => {
        const old = message({ buyer: 'alice', key: 'old' });
        await given(old);
        world.clock.advance(1000);
        const young = message({ buyer: 'alice', key: 'young', slots: [2] });
        await commit(young);
        await world.ledger.pruneKeys(0);
        while (await world.ledger.maintain(1000));
        while ((await world.ledger.pruneKeys(0)) > 0);
        expect(await keyOf('alice', 'old')).toBeNull();
        expect(await keyOf('alice', 'young')).toMatchObject({ orderId: young.orderId });
        expect((await world.ledger.getOrder(old.orderId))?.status).toBe('reserved');
        expect(await verdicts(message({ buyer: 'alice' }))).toEqual(['limit_reached']);
      });

      it('P10: pruning passes by old orders without a key some at a time, and says that it did', async () => {
        await world.ledger.addStock(SALE, 'voucher', 2000, call());
        await commit(...Array.from({ length: 1001 }, (_, at) => message({ buyer: `keyless-${at}` })));
        while (await world.ledger.maintain(1000));
        world.clock.advance(1);
        const done: number[] = [];
        do done.push(await world.ledger.pruneKeys(0));
        while (done.at(-1)! > 0);
        // All of them in one transaction would block the ledger, or the event loop.
        expect(Math.max(...done)).toBeLessThanOrEqual(500);
        expect(done.reduce((sum, some) => sum + some, 0)).toBeGreaterThanOrEqual(1001);
      });

      it('an older epoch is rejected: gate_rebuilt, and only it', async () => {
        await given(message({ buyer: 'early' }));
        const snapshot = (await wholeSnapshot(world.ledger, SALE))!;
        const before = await item();
        expect(await verdicts(message({ buyer: 'a' }))).toEqual(['gate_rebuilt']);
        expect(await item()).toEqual(before);
        const batch = [
          message({ buyer: 'b' }),
          message({ buyer: 'c', epoch: snapshot.epoch }),
          message({ buyer: 'd' }),
        ];
        expect(await verdicts(...batch)).toEqual(['gate_rebuilt', 'reserved', 'gate_rebuilt']);
        expect(await verdicts(message({ buyer: 'e', epoch: snapshot.epoch + 1 }))).toEqual(['gate_rebuilt']);
      });

      it('an older epoch ends as gate_rebuilt whatever else is wrong with it', async () => {
        await given(message({ buyer: 'early', slots: [1, 2, 3], key: 'k' }));
        await wholeSnapshot(world.ledger, SALE);
        expect(await verdicts(message({ buyer: 'early' })), 'slot taken').toEqual(['gate_rebuilt']);
        expect(await verdicts(message({ buyer: 'a', slots: [4] })), 'no such slot').toEqual(['gate_rebuilt']);
        expect(await verdicts(message({ buyer: 'b', slots: [1, 2, 3] })), 'sold out').toEqual(['gate_rebuilt']);
      });

      it('an order of the epoch in force is not refused because of an older one of its batch', async () => {
        await given(message({ buyer: 'early' }));
        const { epoch } = (await wholeSnapshot(world.ledger, SALE))!;
        // The new gate knows nothing of the first: it gave the same slot, and the same key is the buyer's retry.
        const batch = [message({ buyer: 'alice', key: 'k' }), message({ buyer: 'alice', key: 'k', epoch })];
        expect(await verdicts(...batch)).toEqual(['gate_rebuilt', 'reserved']);
      });

      it('a rejected order leaves no units, no claims and no key; its row stays (P4, P5)', async () => {
        await given(message({ buyer: 'early', slots: [1, 2, 3] }));
        const lost = message({ buyer: 'alice', slots: [1, 2, 3], key: 'k' });
        expect(await verdicts(lost)).toEqual(['sold_out']);
        await reach({ name: '', fold: 'all', crash: true });
        expect(await keyOf('alice', 'k')).toBeNull();
        expect(await world.ledger.getOrder(lost.orderId)).toMatchObject({ status: 'rejected', expiresAtMs: null });
        expect(await commit(lost)).toMatchObject([{ inserted: false, order: { reason: 'sold_out' } }]);
        expect((await wholeSnapshot(world.ledger, SALE))!.holds).toMatchObject([{ buyer: 'early' }]);
        expect(await verdicts(message({ buyer: 'alice', slots: [1, 2], key: 'k', epoch: 2 }))).toEqual(['reserved']);
        expect(await keyOf('alice', 'k')).not.toBeNull();
        expect(await item()).toMatchObject({ reserved: 5 });
      });

      it('storedAmong finds what is stored, as it is stored', async () => {
        const orders = await given(message({ buyer: 'a' }), message({ buyer: 'b', slots: [9] }));
        const found = await world.ledger.storedAmong([orders[1]!.id, '424242', orders[0]!.id]);
        expect(found).toEqual(new Map(orders.map((order) => [order.id, order])));
      });

      it('the snapshot for a gate holds every live order with its slots, and every key, oldest first', async () => {
        // Ids are handed out before the commit: this one is the oldest, and is stored last.
        const late = message({ buyer: 'alice', slots: [2], key: 'k2' });
        const orders = await given(
          message({ buyer: 'zoe', slots: [2, 3], key: 'k1' }),
          message({ buyer: 'alice', itemCode: 'poster' }),
          message({ buyer: 'zoe', slots: [9], key: 'lost' }),
        );
        world.clock.advance(10);
        await commit(late);
        const before = (await world.ledger.getSale(SALE))!;
        const snapshot = (await wholeSnapshot(world.ledger, SALE))!;
        expect(snapshot).toMatchObject({ saleId: SALE, version: before.version, perBuyer: 3, payWithinSeconds: 900 });
        expect(snapshot.epoch).toBe(before.items[0]!.epoch + 1);
        expect(snapshot.items).toEqual(
          before.items.map(({ id, code, price, total, blocked, rev }) => ({
            id,
            code,
            price,
            total,
            blocked,
            rev: rev + 1,
          })),
        );
        expect(snapshot.holds).toEqual([
          { orderId: late.orderId, itemId: '501', buyer: 'alice', slots: [2] },
          { orderId: orders[0]!.id, itemId: '501', buyer: 'zoe', slots: [2, 3] },
          { orderId: orders[1]!.id, itemId: '502', buyer: 'alice', slots: [1] },
        ]);
        expect(snapshot.keys).toEqual([
          { buyer: 'zoe', key: 'k1', fingerprint: 'voucher x2', orderId: orders[0]!.id, boundAtMs: T0 },
          { buyer: 'alice', key: 'k2', fingerprint: 'voucher x1', orderId: late.orderId, boundAtMs: T0 + 10 },
        ]);
      });

      describe('lists', () => {
        let mine: OrderRecord[];
        let theirs: OrderRecord[];

        beforeEach(async () => {
          await createSale(OTHER_SALE);
          const stored = await given(
            message({ buyer: 'alice' }),
            message({ buyer: 'bob' }),
            message({ buyer: 'alice', saleId: OTHER_SALE }),
            message({ buyer: 'alice', slots: [2], itemCode: 'poster' }),
          );
          const later = await commit(message({ buyer: 'alice', slots: [3] }), message({ buyer: 'Alice' }));
          const all = [...stored, ...later.map(({ order }) => order)].reverse();
          mine = all.filter(({ buyer }) => buyer === 'alice');
          theirs = all.filter(({ saleId }) => saleId === SALE);
        });

        const first = { limit: 100, before: null };

        it('of a buyer: all and only theirs, newest first', async () => {
          expect(await world.ledger.listOrders({ buyer: 'alice' }, first)).toEqual(mine);
          expect(await world.ledger.listOrders({ buyer: 'Alice' }, first)).toHaveLength(1);
          expect(await world.ledger.listOrders({ buyer: 'ALICE' }, first)).toEqual([]);
        });

        it('of a sale, newest first', async () => {
          expect(await world.ledger.listOrders({ saleId: SALE }, first)).toEqual(theirs);
          expect(await world.ledger.listOrders({ saleId: '424242' }, first)).toEqual([]);
        });

        it('of everything, newest first', async () => {
          const all = await world.ledger.listOrders({}, { limit: 1000, before: null });
          const ids = all.map((order) => BigInt(order.id));
          expect(ids).toEqual(ids.toSorted((a, b) => (a < b ? 1 : -1)));
          expect(all).toEqual(expect.arrayContaining([...mine, ...theirs]));
        });

        it('by sale, buyer and status together', async () => {
          const inSale = mine.filter(({ saleId }) => saleId === SALE);
          expect(await world.ledger.listOrders({ buyer: 'alice', saleId: SALE }, first)).toEqual(inSale);
          const reserved = { buyer: 'alice', saleId: SALE, status: 'reserved' as const };
          expect(await world.ledger.listOrders(reserved, first)).toEqual(inSale);
          expect(await world.ledger.listOrders({ ...reserved, status: 'paid' }, first)).toEqual([]);
          expect(await world.ledger.listOrders({ saleId: SALE, status: 'paid' }, first)).toEqual([]);
        });

        for (const filter of [{ buyer: 'alice' }, { saleId: SALE }, { buyer: 'alice', saleId: SALE }]) {
          it(`page by page, each order once: ${JSON.stringify(filter)}`, async () => {
            const whole = await world.ledger.listOrders(filter, first);
            for (const limit of [1, 2, 3]) {
              const seen: OrderRecord[] = [];
              let before: string | null = null;
              for (;;) {
                const page: OrderRecord[] = await world.ledger.listOrders(filter, { limit, before });
                seen.push(...page);
                if (page.length < limit) break;
                before = page.at(-1)!.id;
              }
              expect(seen).toEqual(whole);
            }
          });
        }

        it('show rejected orders, to the shop and to the buyer alike', async () => {
          const lost = message({ buyer: 'alice' });
          expect(await verdicts(lost)).toEqual(['limit_reached']);
          const rejected = { status: 'rejected' as const };
          const found = [expect.objectContaining({ id: lost.orderId, reason: 'limit_reached' })];
          expect(await world.ledger.listOrders({ ...rejected, saleId: SALE }, first)).toEqual(found);
          expect(await world.ledger.listOrders({ ...rejected, buyer: 'alice' }, first)).toEqual(found);
          expect((await world.ledger.listOrders({ buyer: 'alice' }, first)).map((order) => order.id)).toEqual([
            lost.orderId,
            ...mine.map((order) => order.id),
          ]);
        });
      });
    });

    describe('rejectOrders', () => {
      it('stores orders as rejected, and takes no units, no slots and no key (P4, P5)', async () => {
        const lost = [message({ buyer: 'alice', slots: [1, 2], key: 'k' }), message({ buyer: 'bob' })];
        const stored = await world.ledger.rejectOrders(lost, 'admission_lost');
        expect(stored).toEqual([
          {
            inserted: true,
            order: {
              id: lost[0]!.orderId,
              saleId: SALE,
              itemId: '501',
              itemCode: 'voucher',
              buyer: 'alice',
              quantity: 2,
              amount: { amount: 16_000, currency: 'CNY' },
              status: 'rejected',
              reason: 'admission_lost',
              createdAtMs: T0,
              updatedAtMs: T0,
              expiresAtMs: null,
              version: 1,
              revives: null,
            },
          },
          { inserted: true, order: expect.objectContaining({ id: lost[1]!.orderId, reason: 'admission_lost' }) },
        ]);
        await world.crash();
        for (const { order } of stored) expect(await world.ledger.getOrder(order.id)).toEqual(order);
        expect(await item()).toMatchObject({ reserved: 0, rev: 0 });
        const scope = { saleId: SALE, buyer: 'alice', key: 'k' };
        expect(await world.ledger.findOrderKey(scope)).toBeNull();
        expect(await world.ledger.listOrders({ buyer: 'alice' }, { limit: 9, before: null })).toHaveLength(1);
        expect(await verdicts(message({ buyer: 'alice', slots: [1, 2], key: 'k' }))).toEqual(['reserved']);
        expect((await wholeSnapshot(world.ledger, SALE))!.holds).toHaveLength(1);
      });

      it('has a row of whoever decided it, in the same transaction, whether the order was known or not', async () => {
        const order = message({ buyer: 'alice' });
        const note = { by: actor('admin', 'alice'), action: 'dead_letter.delete', subject: `order:${order.orderId}` };
        for (const detail of [{ error: 'first' }, { error: 'again' }]) {
          await world.ledger.rejectOrders([order], 'undeliverable', { ...note, auditId: id(), detail });
        }
        await world.ledger.note({ ...note, auditId: id(), detail: { error: 'Ü' } });
        expect((await notes('dead_letter.delete')).map(({ detail }) => detail)).toEqual([
          { error: 'first' },
          { error: 'again' },
          { error: 'Ü' },
        ]);
        const unknown = message({ buyer: 'bob', itemId: '999' });
        await expect(
          world.ledger.rejectOrders([unknown], 'undeliverable', { ...note, auditId: id(), detail: {} }),
        ).rejects.toThrow();
        expect(await notes('dead_letter.delete'), 'nothing was decided').toHaveLength(3);
      });

      it('leaves what is stored as it is', async () => {
        const [paid, refused, fresh] = [
          message({ buyer: 'a' }),
          message({ buyer: 'b', slots: [9] }),
          message({ buyer: 'c' }),
        ];
        const before = (await commit(paid, refused)).map(({ order }) => order);
        const stored = await world.ledger.rejectOrders([paid, fresh, refused], 'undeliverable');
        expect(stored[0]).toEqual({ order: before[0], inserted: false });
        expect(stored[1]).toMatchObject({ order: { id: fresh.orderId, reason: 'undeliverable' }, inserted: true });
        expect(stored[2]).toEqual({ order: before[1], inserted: false });
        expect(await item()).toMatchObject({ reserved: 1, rev: 1 });
      });

      it('is final: the message that comes after all does not live again', async () => {
        const late = message({ buyer: 'alice', key: 'k' });
        await world.ledger.rejectOrders([late], 'admission_lost');
        expect(await commit(late)).toMatchObject([{ inserted: false, order: { reason: 'admission_lost' } }]);
        expect(await world.ledger.rejectOrders([late], 'undeliverable')).toMatchObject([
          { inserted: false, order: { reason: 'admission_lost' } },
        ]);
        expect(await item()).toMatchObject({ reserved: 0, rev: 0 });
      });

      it('of an order twice is one order', async () => {
        const lost = message({ buyer: 'alice' });
        const stored = await world.ledger.rejectOrders([lost, lost], 'admission_lost');
        expect(stored.map(({ inserted }) => inserted)).toEqual([true, false]);
        expect(stored[1]!.order).toEqual(stored[0]!.order);
        expect(await world.ledger.rejectOrders([], 'admission_lost')).toEqual([]);
      });

      it('takes orders of any epoch and slot: they were lost, whatever they were', async () => {
        await wholeSnapshot(world.ledger, SALE);
        const lost = [message({ buyer: 'a', epoch: 1 }), message({ buyer: 'b', slots: [7] })];
        const stored = await world.ledger.rejectOrders(lost, 'admission_lost');
        expect(stored.map(({ order }) => order.reason)).toEqual(['admission_lost', 'admission_lost']);
      });
    });

    it('a gate that is built anew has a row of whoever had it built; the first of a sale is made with the sale', async () => {
      const by = actor('system', 'gate');
      for (const _ of [1, 2, 3]) await world.ledger.rebuildSnapshot(SALE, 0, { by, auditId: id() });
      const at = { actor: 'system:gate', origin: null, subject: `sale:${SALE}` };
      expect(await notes('gate.rebuild')).toMatchObject([
        { ...at, detail: { epoch: 3 } },
        { ...at, detail: { epoch: 4 } },
      ]);
    });

    describe('tasks for the gate', () => {
      it('of a change are gone when it is finished; to finish it again is no fault', async () => {
        const made = call();
        changed(await world.ledger.setPaused(SALE, true, made));
        await world.ledger.finishTask(made.auditId);
        await world.ledger.finishTask(made.auditId);
        const left = await world.ledger.unfinishedTasks(-1);
        expect(left.map(({ auditId }) => auditId)).not.toContain(made.auditId);
      });
    });

    describe('maintenance', () => {
      it('comes to an end, says when, and loses nothing on the way', async () => {
        const orders = Array.from({ length: 300 }, (_, i) =>
          message({ buyer: `b${i % 150}`, slots: [1 + Math.floor(i / 150)], itemCode: 'poster', key: `k${i}` }),
        );
        await commit(...orders);
        for (let slices = 0; await world.ledger.maintain(0); slices++) {
          expect(slices).toBeLessThan(1000);
          // Between two slices new orders come and are judged like any other.
          if (slices % 2 === 0) {
            expect(await verdicts(message({ buyer: 'b7', itemCode: 'poster' }))).toEqual(['limit_reached']);
          }
        }
        expect(world.ledger.backlog).toBe(0);
        expect(await world.ledger.maintain(1000)).toBe(false);
        for (const order of orders) {
          const scope = { saleId: SALE, buyer: order.buyer, key: order.key! };
          expect(await world.ledger.findOrderKey(scope)).toMatchObject({ orderId: order.orderId });
        }
        const filter = { buyer: 'b7', status: 'reserved' as const };
        expect(await world.ledger.listOrders(filter, { limit: 9, before: null })).toHaveLength(2);
      });
    });

    describe('ids', () => {
      it('blocks of a kind never overlap, also at once, after a crash and after a reopen', async () => {
        const taken: { from: number; to: number }[] = [];
        for (const disturb of [async () => {}, () => world.crash(), () => world.reopen()]) {
          await disturb();
          taken.push(...(await Promise.all([1, 7, 100].map((size) => world.ledger.takeIdBlock('order', size)))));
        }
        expect(taken.map(({ from, to }) => to - from)).toEqual([1, 7, 100, 1, 7, 100, 1, 7, 100]);
        const sorted = taken.toSorted((a, b) => a.from - b.from);
        for (const [at, block] of sorted.entries()) {
          expect(block.from).toBeGreaterThanOrEqual(at === 0 ? 1 : sorted[at - 1]!.to);
        }
      });

      it('each kind has a sequence of its own', async () => {
        expect(await world.ledger.takeIdBlock('sale', 5)).toEqual({ from: 1, to: 6 });
        expect(await world.ledger.takeIdBlock('item', 5)).toEqual({ from: 1, to: 6 });
        expect(await world.ledger.takeIdBlock('sale', 5)).toEqual({ from: 6, to: 11 });
      });
    });

    describe('sales', () => {
      it('a new sale is what was asked for, and survives a crash', async () => {
        const asked = saleOfTwo({ name: 'Concert', perBuyer: 4 });
        const created = await createSale(OTHER_SALE, asked);
        expect(created).toEqual({
          id: OTHER_SALE,
          name: 'Concert',
          opensAtMs: T0,
          closesAtMs: T0 + 72 * HOUR_MS,
          perBuyer: 4,
          payWithinSeconds: 900,
          paused: false,
          closed: false,
          version: 1,
          createdAtMs: T0,
          readAtMs: T0,
          itemsEpoch: 0,
          items: asked.items.map(({ stock, ...one }, at) => ({
            ...one,
            id: String(601 + at),
            kind: 'counted',
            onSale: true,
            total: stock,
            reserved: 0,
            sold: 0,
            blocked: 0,
            epoch: 1,
            rev: 0,
          })),
        });
        await world.crash();
        expect(await world.ledger.getSale(OTHER_SALE)).toEqual(created);
        expect(await world.ledger.getSale('424242')).toBeNull();
        expect(await world.ledger.getOrder('424242')).toBeNull();
      });

      it('are listed newest first, page by page', async () => {
        for (const saleId of ['700', '600', '1000']) await createSale(saleId);
        const ids = async (limit: number, before: string | null) =>
          (await world.ledger.listSales({ limit, before })).map((sale) => sale.id);
        expect(await ids(10, null)).toEqual(['1000', '700', '600', SALE]);
        expect(await ids(2, null)).toEqual(['1000', '700']);
        expect(await ids(2, '700')).toEqual(['600', SALE]);
        expect(await ids(2, SALE)).toEqual([]);
      });

      it('are open for the gate until they are closed or over', async () => {
        await createSale(OTHER_SALE, { closesAtMs: T0 + 10 });
        await createSale('700', { opensAtMs: T0 + HOUR_MS });
        expect((await world.ledger.openSaleIds()).toSorted()).toEqual([SALE, OTHER_SALE, '700']);
        world.clock.advance(10);
        await world.ledger.setPaused('700', true, call());
        expect((await world.ledger.openSaleIds()).toSorted()).toEqual([SALE, '700']);
        await world.ledger.closeSale(SALE, call());
        expect(await world.ledger.openSaleIds()).toEqual(['700']);
      });

      it('a stamp changes with every change of its sale, and with no other', async () => {
        await createSale(OTHER_SALE);
        const stampsOf = async () => {
          const stamps = await world.ledger.saleStamps([SALE, OTHER_SALE, '424242']);
          for (const id of [SALE, OTHER_SALE])
            expect(stamps.get(id)).toEqual(stampOf((await world.ledger.getSale(id))!));
          expect(stamps.size).toBe(2);
          return JSON.stringify(stamps.get(SALE));
        };
        const other = (await world.ledger.saleStamps([OTHER_SALE])).get(OTHER_SALE);
        const seen = [await stampsOf()];
        const { ledger } = world;
        const changes = [
          () => commit(message({ buyer: 'alice' })),
          () => ledger.addStock(SALE, 'poster', 1, call()),
          () => ledger.setPaused(SALE, true, call()),
          () => ledger.rebuildSnapshot(SALE),
          () => ledger.closeSale(SALE, call()),
        ];
        for (const change of changes) {
          await change();
          seen.push(await stampsOf());
        }
        expect(new Set(seen).size, seen.join(' ')).toBe(seen.length);
        expect((await ledger.saleStamps([OTHER_SALE])).get(OTHER_SALE)).toEqual(other);
        expect(await ledger.saleStamps([])).toEqual(new Map());
      });

      it('a rebuild raises the epoch of all items of that sale', async () => {
        await createSale(OTHER_SALE);
        expect(await wholeSnapshot(world.ledger, SALE)).toMatchObject({ epoch: 2, holds: [], keys: [] });
        expect(await wholeSnapshot(world.ledger, SALE)).toMatchObject({ epoch: 3 });
        expect((await world.ledger.getSale(SALE))!.items).toMatchObject([{ epoch: 3 }, { epoch: 3 }]);
        expect(await item('voucher', OTHER_SALE)).toMatchObject({ epoch: 1, rev: 0 });
        expect(await world.ledger.rebuildSnapshot(SALE, 41), 'above that of a gate in force').toMatchObject({
          epoch: 42,
        });
        expect((await world.ledger.getSale(SALE))!.items).toMatchObject([{ epoch: 42 }, { epoch: 42 }]);
        expect(await wholeSnapshot(world.ledger, '424242')).toBeNull();
      });

      it('what a gate is built from comes in pages: none, one order, a full page, and one more', async () => {
        const price = { amount: 8000, currency: 'CNY' };
        const items = ['voucher', 'poster'].map((code) => ({ code, name: code, price, stock: 1_000_000 }));
        await createSale('700', { items, perBuyer: 1 });
        const stored: string[] = [];
        for (const count of [0, 1, PAGE_ORDERS - 1, PAGE_ORDERS, PAGE_ORDERS + 1]) {
          const { epoch } = (await world.ledger.getSale('700'))!.items[0]!;
          const more = Array.from({ length: count - stored.length }, (_, at) => {
            const itemCode = at % 2 === 0 ? 'voucher' : 'poster';
            const buyer = `buyer ${stored.length + at}`;
            // Orders of another sale come in between.
            if (at % 100 === 0) id();
            return message({ saleId: '700', itemCode, price, buyer, epoch, key: at % 3 === 0 ? 'k' : null });
          });
          for (let from = 0; from < more.length; from += 500) await commit(...more.slice(from, from + 500));
          stored.push(...more.map(({ orderId }) => orderId));
          const pages: SnapshotPage[] = [];
          for await (const page of (await world.ledger.rebuildSnapshot('700'))!.content) pages.push(page);
          expect(pages.length, `${count} orders`).toBe(Math.ceil(count / PAGE_ORDERS));
          expect(pages.flatMap(({ holds }) => holds.map(({ orderId }) => orderId))).toEqual(stored);
          for (const { holds } of pages) expect(holds.length).toBeLessThanOrEqual(PAGE_ORDERS);
        }
        const { holds, keys } = (await wholeSnapshot(world.ledger, '700'))!;
        expect(new Set(holds.map(({ itemId }) => itemId))).toEqual(new Set(['701', '702']));
        expect(keys.length).toBeGreaterThan(PAGE_ORDERS / 3);
      });

      it('P10: a page is bounded by what is looked through: orders that were rejected fill pages, too', async () => {
        await createSale('700', { perBuyer: 1 });
        const lost = Array.from({ length: PAGE_ORDERS }, (_, at) => {
          return message({ saleId: '700', buyer: `lost ${at}`, epoch: 99 });
        });
        for (let from = 0; from < lost.length; from += 500) await commit(...lost.slice(from, from + 500));
        const last = message({ saleId: '700', buyer: 'last' });
        await commit(last);
        const pages: SnapshotPage[] = [];
        for await (const page of (await world.ledger.rebuildSnapshot('700'))!.content) pages.push(page);
        expect(pages).toMatchObject([{ holds: [], keys: [] }, { holds: [{ orderId: last.orderId }] }]);
      });

      it('P1: what is rejected after the epoch was raised is in no page that is read then', async () => {
        const [early] = await commit(message({ buyer: 'early' }));
        const snapshot = (await world.ledger.rebuildSnapshot(SALE))!;
        expect(await commit(message({ buyer: 'late', key: 'k' }))).toMatchObject([
          { order: { reason: 'gate_rebuilt' } },
        ]);
        expect(await whole(snapshot)).toMatchObject({ holds: [{ orderId: early!.order.id }], keys: [] });
      });

      it('whether a sale may still admit is judged by the clock of the ledger', async () => {
        await createSale(OTHER_SALE, { closesAtMs: T0 + 10 });
        await createSale('700');
        await world.ledger.closeSale('700', call());
        const mayAdmit = async (saleId: string) => (await world.ledger.rebuildSnapshot(saleId))!.mayAdmit;
        expect([await mayAdmit(SALE), await mayAdmit(OTHER_SALE), await mayAdmit('700')]).toEqual([true, true, false]);
        world.clock.advance(9);
        expect(await mayAdmit(OTHER_SALE)).toBe(true);
        world.clock.advance(1);
        expect(await mayAdmit(OTHER_SALE), 'at its end').toBe(false);
      });

      it('a patch demands the version it is based on, and raises it', async () => {
        const patch = { name: 'New name', perBuyer: 5, payWithinSeconds: 60, closesAtMs: T0 + HOUR_MS };
        expect(changed(await world.ledger.patchSale(SALE, patch, 1, call()))).toMatchObject({ ...patch, version: 2 });
        expect(await world.ledger.patchSale(SALE, { perBuyer: 9 }, 1, call())).toEqual({ outcome: 'version_conflict' });
        expect(await world.ledger.getSale(SALE)).toMatchObject({ ...patch, version: 2 });
      });

      it('a patch may not turn the window around', async () => {
        const change = await world.ledger.patchSale(SALE, { closesAtMs: T0 }, 1, call());
        expect(change).toMatchObject({ outcome: 'invalid_request', path: '/closesAt' });
        expect(await world.ledger.getSale(SALE)).toMatchObject({ version: 1 });
      });

      it('pause and resume raise the version only if they change something', async () => {
        const version = async (change: Promise<SaleChange>) => changed(await change).version;
        expect(await version(world.ledger.setPaused(SALE, true, call()))).toBe(2);
        expect(await version(world.ledger.setPaused(SALE, true, call()))).toBe(2);
        expect(await version(world.ledger.setPaused(SALE, false, call()))).toBe(3);
        expect(await world.ledger.getSale(SALE)).toMatchObject({ paused: false });
      });

      it('a closed sale stays closed', async () => {
        expect(changed(await world.ledger.closeSale(SALE, call()))).toMatchObject({ closed: true, version: 2 });
        const closed = { outcome: 'sale_closed' };
        expect(await world.ledger.setPaused(SALE, false, call())).toEqual(closed);
        expect(await world.ledger.patchSale(SALE, { perBuyer: 2 }, 2, call())).toEqual(closed);
        expect(await world.ledger.addStock(SALE, 'voucher', 1, call())).toEqual(closed);
        expect(changed(await world.ledger.closeSale(SALE, call()))).toMatchObject({ closed: true, version: 2 });
      });

      it('more stock raises total and rev', async () => {
        const sale = changed(await world.ledger.addStock(SALE, 'voucher', 3, call()));
        expect(sale.items[0]).toMatchObject({ total: 8, rev: 1 });
        expect(sale.items[1]).toMatchObject({ total: 400, rev: 0 });
      });

      it('P1: less stock goes down to what is free, and not below', async () => {
        await commit(message({ buyer: 'a', slots: [1, 2] }));
        expect(await world.ledger.addStock(SALE, 'voucher', -4, call())).toEqual({ outcome: 'insufficient_free' });
        expect(await item()).toMatchObject({ total: 5, rev: 1 });
        expect(changed(await world.ledger.addStock(SALE, 'voucher', -3, call())).items[0]).toMatchObject({ total: 2 });
        expect(await verdicts(message({ buyer: 'b' }))).toEqual(['sold_out']);
      });

      it('stock has a bound', async () => {
        const add = BOUNDS.stockMax - 5;
        expect(await world.ledger.addStock(SALE, 'voucher', add + 1, call())).toMatchObject({
          outcome: 'invalid_request',
          path: '/add',
        });
        expect(changed(await world.ledger.addStock(SALE, 'voucher', add, call())).items[0]).toMatchObject({
          total: BOUNDS.stockMax,
        });
      });

      it('what does not exist is not_found', async () => {
        const missing = { outcome: 'not_found' };
        expect(await world.ledger.patchSale('424242', {}, 1, call())).toEqual(missing);
        expect(await world.ledger.addStock('424242', 'voucher', 1, call())).toEqual(missing);
        expect(await world.ledger.addStock(SALE, 'Voucher', 1, call())).toEqual(missing);
        expect(await world.ledger.setPaused('424242', true, call())).toEqual(missing);
        expect(await world.ledger.closeSale('424242', call())).toEqual(missing);
      });
    });

    describe('keys of administrative calls (P5)', () => {
      const calls: [string, (call: AdminCall) => Promise<SaleChange>][] = [
        ['createSale', (made) => world.ledger.createSale({ ...saleOfTwo(), id: id(), itemIds: [id(), id()] }, made)],
        ['patchSale', (made) => world.ledger.patchSale(SALE, { perBuyer: 9 }, 1, made)],
        ['addStock', (made) => world.ledger.addStock(SALE, 'voucher', 3, made)],
        ['setPaused', (made) => world.ledger.setPaused(SALE, true, made)],
        ['closeSale', (made) => world.ledger.closeSale(SALE, made)],
      ];

      for (const [what, run] of calls) {
        it(`${what}: a repeat gets the first answer and changes nothing, also after a crash`, async () => {
          const first = await run(keyed());
          expect(first.outcome).toBe('changed');
          const { answer } = first as { answer: string };
          const before = await world.ledger.listSales({ limit: 10, before: null });
          for (const disturb of [async () => {}, () => world.crash(), () => world.reopen()]) {
            await disturb();
            expect(await run(keyed())).toEqual({ outcome: 'replayed', answer });
            expect(await run(keyed({}, 'other body'))).toEqual({ outcome: 'idempotency_key_reused' });
            expect(await world.ledger.listSales({ limit: 10, before: null })).toEqual(before);
          }
        });
      }

      it('another caller, buyer acted for, operation, subject or key is another call', async () => {
        const others: Partial<KeyScope>[] = [
          {},
          { key: 'K' },
          { caller: 'admin:Alice' },
          { actingFor: 'ann' },
          { actingFor: 'Ann' },
          { operation: 'sale.Stock' },
          { subject: '7' },
          // Where one part ends and the next begins counts, too.
          { actingFor: `${SCOPE.operation}`, operation: SCOPE.subject, subject: '' },
        ];
        for (const other of others) await world.ledger.addStock(SALE, 'voucher', 1, keyed(other));
        expect(await item()).toMatchObject({ total: 5 + others.length });
        for (const other of others) {
          expect((await world.ledger.addStock(SALE, 'voucher', 1, keyed(other))).outcome).toBe('replayed');
        }
      });

      it('a refused call does not keep its key', async () => {
        const lower = () => world.ledger.addStock(SALE, 'voucher', -6, keyed());
        expect(await lower()).toEqual({ outcome: 'insufficient_free' });
        await world.ledger.addStock(SALE, 'voucher', 1, call());
        expect(await lower()).toMatchObject({ outcome: 'changed' });
      });

      it('is kept for 24 hours, and can be taken again afterwards', async () => {
        const add = () => world.ledger.addStock(SALE, 'voucher', 1, keyed());
        expect((await add()).outcome).toBe('changed');
        world.clock.advance(KEY_KEPT_MS - 1);
        expect((await add()).outcome).toBe('replayed');
        world.clock.advance(1);
        expect((await add()).outcome).toBe('changed');
        expect((await add()).outcome).toBe('replayed');
        expect(await item()).toMatchObject({ total: 7 });
      });

      it('findKey gives the stored answer', async () => {
        const first = await world.ledger.addStock(SALE, 'voucher', 1, keyed());
        expect(await world.ledger.findKey(SCOPE)).toEqual({
          fingerprint: 'f',
          answer: (first as { answer: string }).answer,
        });
        expect(await world.ledger.pruneKeys(0)).toBe(0);
        world.clock.advance(1);
        expect(await world.ledger.pruneKeys(1)).toBe(0);
        expect(await world.ledger.pruneKeys(0)).toBe(1);
        expect(await world.ledger.findKey(SCOPE)).toBeNull();
      });
    });

    it('a healthy ledger passes the probe', async () => {
      await world.ledger.probe();
    });

    it('P1: commits, changes and rebuilds at once do not mix', async () => {
      const work = [
        ...Array.from({ length: 8 }, (_, i) => commit(message({ buyer: `b${i}` }))),
        world.ledger.addStock(SALE, 'voucher', -2, call()),
        ...Array.from({ length: 8 }, (_, i) => commit(message({ buyer: `c${i}` }))),
        world.ledger.addStock(SALE, 'voucher', 1, call()),
      ];
      await Promise.all(work);
      const { total, reserved } = await item();
      const live = await world.ledger.listOrders({ saleId: SALE, status: 'reserved' }, { limit: 100, before: null });
      expect(reserved).toBe(live.length);
      expect(reserved).toBeLessThanOrEqual(total);
    });
  });
}
