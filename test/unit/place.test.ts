import { beforeEach, describe, expect, it } from 'vitest';
import { unavailable } from '../../src/base/errors.ts';
import { type IdBlock, type IdKind, IdSequence, idTimeMs } from '../../src/base/ids.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import { type AdmitRequest, type BoundTo, type Gate, NotAdmittedError, type Verdict } from '../../src/gate/port.ts';
import { KEY_KEPT_MS, type Ledger, type OrderKeyBinding } from '../../src/ledger/port.ts';
import { type Actor, actor } from '../../src/model/actor.ts';
import { type OrderRecord, orderFingerprint } from '../../src/model/order.ts';
import type { SaleRecord } from '../../src/model/sale.ts';
import { PendingDecisions } from '../../src/orders/pending-decisions.ts';
import { PlaceOrder, type PlaceResult } from '../../src/orders/place.ts';
import { type ManualRuntime, manualRuntime, settled, T0 } from '../contract/manual.ts';

const ORDER: OrderRecord = {
  id: '1',
  saleId: '5',
  itemId: '6',
  itemCode: 'v',
  buyer: 'alice',
  quantity: 1,
  amount: { amount: 1, currency: 'CNY' },
  status: 'reserved',
  reason: null,
  createdAtMs: T0,
  updatedAtMs: T0,
  expiresAtMs: T0 + 1,
  version: 1,
  revives: null,
};

describe('placing an order', () => {
  let runtime: ManualRuntime;
  let pending: PendingDecisions;
  let verdict: Verdict | Error;
  let rows: Map<string, OrderRecord>;
  let keys: Map<string, OrderKeyBinding>;
  let unscopedUpTo: string | null;
  let sale: SaleRecord | null;
  let closedBecause: string | null;
  let rebuilt: string[];
  let emptied: boolean;
  let asked: string[];
  let keysInGate: Map<string, BoundTo>;
  /** What the ledger does when it is asked for ids. */
  let block: () => Promise<IdBlock>;
  let orderIds: IdSequence;
  let admitted: number;
  let place: PlaceOrder;

  beforeEach(() => {
    runtime = manualRuntime();
    pending = new PendingDecisions();
    verdict = { outcome: 'sold_out' };
    rows = new Map();
    keys = new Map();
    unscopedUpTo = null;
    closedBecause = null;
    rebuilt = [];
    emptied = true;
    asked = [];
    keysInGate = new Map();
    block = async () => ({ from: 1, to: 101 });
    admitted = 0;
    sale = {
      id: '5',
      name: 'S',
      opensAtMs: T0,
      closesAtMs: T0 + 1000,
      perBuyer: 1,
      payWithinSeconds: 1,
      paused: false,
      closed: false,
      version: 1,
      createdAtMs: T0,
      readAtMs: T0,
      itemsEpoch: 0,
      items: [{ code: 'v' }] as SaleRecord['items'],
    };
    const gate = {
      admit: async ({ orderId }: AdmitRequest) => {
        admitted++;
        asked.push(orderId);
        if (verdict instanceof Error) throw verdict;
        return verdict;
      },
      keyOf: async (_saleId: string, _buyer: string, key: string) => keysInGate.get(key) ?? null,
    };
    const ledger = {
      getOrder: async (id: string) => rows.get(id) ?? null,
      getSale: async () => sale,
      findOrderKey: async ({ key }: { key: string }) => keys.get(key) ?? null,
      get unscopedUpTo() {
        return unscopedUpTo;
      },
    };
    orderIds = new IdSequence('order', () => block(), runtime.clock, 100);
    place = new PlaceOrder({
      runtime,
      gate: gate as unknown as Gate,
      ledger: ledger as unknown as Ledger,
      pending,
      orderIds,
      auditIds: new IdSequence('audit', () => block(), runtime.clock, 100),
      patience: null,
      closedBecause: () => closedBecause,
      rebuild: (saleId) => rebuilt.push(saleId),
      isEmptied: async () => emptied,
    });
  });

  const order = (over = {}): Promise<PlaceResult> =>
    place.place({ saleId: '5', itemCode: 'v', buyer: 'alice', quantity: 1, key: 'k', ...over });

  /** The gate has admitted the first try under id 1, and the ledger has not decided it yet. */
  function firstTryRunning(): void {
    void pending.expect('1').catch(() => {});
    verdict = { outcome: 'replayed', orderId: '1' };
  }

  describe('again with the key of an order (P5)', () => {
    it('waits for the first try and gets its answer', async () => {
      firstTryRunning();
      const repeat = order();
      await settled();
      pending.decided(ORDER);
      expect(await repeat).toEqual({ ok: true, order: ORDER, replayed: true });
    });

    it('is told to come back after 5 s', async () => {
      firstTryRunning();
      const repeat = order();
      await settled();
      await runtime.timers.advance(5000);
      expect(await repeat).toEqual({ ok: false, code: 'idempotency_in_flight', retryAfterSeconds: 1 });
      expect(runtime.timers.pending).toBe(0);
    });

    it('fails as the first try fails', async () => {
      firstTryRunning();
      const repeat = order();
      await settled();
      pending.failed('1', unavailable('the disk is full'));
      await expect(repeat).rejects.toThrow('the disk is full');
    });

    it('gets the refusal of a first try that the ledger refused', async () => {
      firstTryRunning();
      const repeat = order();
      await settled();
      pending.decided({ ...ORDER, status: 'rejected', reason: 'sold_out' });
      expect(await repeat).toEqual({ ok: false, code: 'sold_out' });
    });

    it('gets the first answer again from the ledger, as it was', async () => {
      verdict = { outcome: 'replayed', orderId: '1' };
      rows.set('1', { ...ORDER, status: 'cancelled', version: 4, updatedAtMs: T0 + 99 });
      expect(await order()).toEqual({ ok: true, order: ORDER, replayed: true });
    });

    it('is not told reserved of an order that the ledger has rejected (P3)', async () => {
      verdict = { outcome: 'replayed', orderId: '1' };
      rows.set('1', { ...ORDER, status: 'rejected', reason: 'sold_out', expiresAtMs: null });
      const result = await order().catch(() => ({ ok: false }));
      expect(result.ok).toBe(false);
    });

    it('fails if the first try is not decided: the outcome is not known', async () => {
      verdict = { outcome: 'replayed', orderId: '1' };
      await expect(order()).rejects.toThrow('not decided');
    });
  });

  describe('for a buyer, under a key of whoever acts for them (P5)', () => {
    const by = actor('admin', 'alice');
    /** An id of this moment. */
    const UP_TO = String((BigInt(T0 - idTimeMs('1')) / 1000n) << 32n);

    beforeEach(() => {
      rows.set('1', ORDER);
      // The buyer's own key, or that of an admin from the time when a key did not say whose it was.
      keys.set('k', { fingerprint: orderFingerprint('v', 1), orderId: '1' });
    });

    it('the buyer’s own key is another one', async () => {
      expect(await order({ by })).toEqual({ ok: false, code: 'sold_out' });
      expect(admitted).toBe(1);
    });

    it('a key of an order from before keys said whose they are is still bound, for as long as it is kept', async () => {
      unscopedUpTo = UP_TO;
      expect(await order({ by })).toEqual({ ok: true, order: ORDER, replayed: true });
      expect(await order({ by, quantity: 2 })).toEqual({ ok: false, code: 'idempotency_key_reused' });
      expect(admitted).toBe(0);
      expect(await order({ by, key: 'other' })).toEqual({ ok: false, code: 'sold_out' });
      runtime.clock.advance(2 * KEY_KEPT_MS);
      expect(await order({ by })).toEqual({ ok: false, code: 'sold_out' });
    });

    it('P5: also while that order is in the pipe, and only the gate knows it', async () => {
      unscopedUpTo = UP_TO;
      const fingerprint = orderFingerprint('v', 1);
      keysInGate.set('k', { fingerprint, orderId: '1' });
      keys.clear();
      rows.clear();
      void pending.expect('1').catch(() => {});
      const repeat = order({ by });
      await settled();
      pending.decided(ORDER);
      expect(await repeat).toEqual({ ok: true, order: ORDER, replayed: true });
      expect(await order({ by, quantity: 2 })).toEqual({ ok: false, code: 'idempotency_key_reused' });
      expect(admitted).toBe(0);
      keysInGate.set('k', { fingerprint, orderId: String(BigInt(UP_TO) + 1n) });
      expect(await order({ by })).toEqual({ ok: false, code: 'sold_out' });
    });

    it('a key of an order after that is not', async () => {
      unscopedUpTo = UP_TO;
      keys.set('k', { fingerprint: orderFingerprint('v', 1), orderId: String(BigInt(UP_TO) + 1n) });
      expect(await order({ by })).toEqual({ ok: false, code: 'sold_out' });
    });

    it('no sale, no look', async () => {
      unscopedUpTo = UP_TO;
      verdict = { outcome: 'stale' };
      expect(await order({ by, saleId: 'x' })).toEqual({ ok: false, code: 'not_found' });
    });
  });

  describe('in a sale that the gate does not hold', () => {
    beforeEach(() => {
      verdict = { outcome: 'stale' };
    });

    it('is not found if the ledger does not know the sale or the item', async () => {
      expect(await order({ itemCode: 'w' })).toEqual({ ok: false, code: 'not_found' });
      sale = null;
      expect(await order()).toEqual({ ok: false, code: 'not_found' });
      expect(rebuilt).toEqual([]);
    });

    it('P5: gets the answer of its key, also after close', async () => {
      sale!.closed = true;
      rows.set('1', ORDER);
      keys.set('k', { fingerprint: orderFingerprint('v', 1), orderId: '1' });
      expect(await order()).toEqual({ ok: true, order: ORDER, replayed: true });
      expect(await order({ quantity: 2 })).toEqual({ ok: false, code: 'idempotency_key_reused' });
      expect(await order({ key: 'other' })).toMatchObject({ ok: false, code: 'sale_closed' });
    });

    it('P5: is not refused because of its end while the first try of its key may be in the pipe', async () => {
      sale!.closed = true;
      emptied = false;
      await expect(order()).rejects.toMatchObject({ code: 'unavailable' });
      expect(await order({ key: null }), 'nobody can have asked for it before').toMatchObject({ code: 'sale_closed' });
      rows.set('1', ORDER);
      keys.set('k', { fingerprint: orderFingerprint('v', 1), orderId: '1' });
      expect(await order()).toEqual({ ok: true, order: ORDER, replayed: true });
      expect(rebuilt).toEqual([]);
    });

    it('has the gate built if the sale can sell, and fails meanwhile', async () => {
      await expect(order()).rejects.toMatchObject({ code: 'unavailable' });
      expect(rebuilt).toEqual(['5']);
    });
  });

  describe('while the ledger is out', () => {
    beforeEach(() => {
      closedBecause = 'the disk is full';
    });

    it('is refused before the gate', async () => {
      await expect(order()).rejects.toMatchObject({ code: 'unavailable', message: 'the disk is full' });
      expect(admitted).toBe(0);
    });

    it('P5: a repeat still gets its answer if it can be read', async () => {
      rows.set('1', ORDER);
      keys.set('k', { fingerprint: orderFingerprint('v', 1), orderId: '1' });
      expect(await order()).toMatchObject({ ok: true, replayed: true });
    });
  });

  describe('ids', () => {
    const idsOf = async (count: number): Promise<Set<string>> => {
      for (let i = 0; i < count; i++) await order({ key: null }).catch(() => null);
      return new Set(asked);
    };

    it.each([
      { outcome: 'sold_out' },
      { outcome: 'stale' },
      { outcome: 'idempotency_key_reused' },
      { outcome: 'replayed', orderId: '77' },
      { outcome: 'limit_reached', orderIds: [], perBuyer: 1 },
    ] satisfies Verdict[])('P10: $outcome costs none', async (refusal) => {
      verdict = refusal;
      rows.set('77', ORDER);
      expect(await idsOf(5)).toHaveLength(1);
    });

    it('P10: an order that was never sent to the gate costs none', async () => {
      verdict = new NotAdmittedError('overloaded', 'too many orders are waiting for the gate');
      expect(await idsOf(5)).toHaveLength(1);
    });

    it('P4: the id of an order that may have been admitted is not used again', async () => {
      verdict = { outcome: 'sold_out', uncertain: true };
      expect(await idsOf(5)).toHaveLength(5);
      verdict = unavailable('Redis does not answer');
      expect(await idsOf(5)).toHaveLength(10);
    });

    it('P10: an order waits 2 s for one, and what comes too late for it serves the next', async () => {
      const coming = Promise.withResolvers<IdBlock>();
      block = () => coming.promise;
      const failed = expect(order({ key: null })).rejects.toMatchObject({ code: 'unavailable' });
      await settled();
      await runtime.timers.advance(1999);
      expect(runtime.timers.pending).toBe(1);
      await runtime.timers.advance(1);
      await runtime.timers.advance(0);
      await failed;
      coming.resolve({ from: 1, to: 2 });
      await settled();
      expect(await order({ key: null })).toEqual({ ok: false, code: 'sold_out' });
      expect(asked).toHaveLength(1);
    });

    it('P5: a repeat needs none: the gate knows its key', async () => {
      block = async () => {
        throw unavailable('the ledger is out');
      };
      await expect(order()).rejects.toThrow('the ledger is out');
      rows.set('1', ORDER);
      keysInGate.set('k', { orderId: '1', fingerprint: orderFingerprint('v', 1) });
      expect(await order()).toEqual({ ok: true, order: ORDER, replayed: true });
      expect(await order({ quantity: 2 })).toEqual({ ok: false, code: 'idempotency_key_reused' });
      keys.set('other', { fingerprint: orderFingerprint('v', 1), orderId: '1' });
      expect(await order({ key: 'other' }), 'or the ledger does').toMatchObject({ ok: true, replayed: true });
      expect(admitted).toBe(0);
    });

    async function leaveIds(SIZE: number, by?: Actor): Promise<void> {
      const gate = new MemoryGate(runtime, ({ orderId }) => pending.decided({ ...ORDER, id: orderId }));
      const item = { price: { amount: 1, currency: 'CNY' }, blocked: 0, rev: 1 };
      await gate.install({
        ...{ saleId: '5', epoch: 1, version: 1, opensAtMs: T0, closesAtMs: T0 + 1000, paused: false, closed: false },
        ...{ perBuyer: 2 * SIZE, payWithinSeconds: 1, mayAdmit: true, content: [] },
        items: [
          { ...item, id: '6', code: 'gone', total: 0 },
          { ...item, id: '7', code: 'v', total: 2 * SIZE },
        ],
      });
      const out = Promise.reject<IdBlock>(unavailable('the ledger is out'));
      const idsOf = (kind: IdKind): IdSequence => {
        let given = false;
        const takeBlock = (): Promise<IdBlock> => {
          if (given) return out;
          given = true;
          return Promise.resolve({ from: 1, to: 1 + SIZE });
        };
        return new IdSequence(kind, takeBlock, runtime.clock, SIZE);
      };
      const [orderIds, auditIds] = [idsOf('order'), idsOf('audit')];
      const ledger = { findKey: async () => null } as unknown as Ledger;
      const shop = new PlaceOrder({
        ...{ runtime, gate, ledger, pending, orderIds, auditIds, patience: null },
        closedBecause: () => null,
        rebuild: () => undefined,
        isEmptied: async () => true,
      });
      const buy = (itemCode: string, at: number): Promise<PlaceResult> =>
        shop.place({ saleId: '5', itemCode, buyer: `b${at}`, quantity: 1, key: null, by });
      for (let at = 0; at <= SIZE; at++) if ((await buy('gone', at)).ok) throw new Error('sold what is gone');
      expect(await buy('v', 0)).toMatchObject({ ok: true });
      const scarce = by === undefined ? orderIds : auditIds;
      for (let at = 2; at < SIZE; at++) scarce.take();
      expect(await buy('v', 1), 'the last one').toMatchObject({ ok: true });
      await expect(buy('v', 2)).rejects.toThrow('the ledger is out');
    }

    it('P10: 100 000 refusals and one leave a block of 100 000 to those who can buy, and to no more', () =>
      leaveIds(100_000));

    it('P10: so do refusals of orders that somebody places for buyers, of the ids for the audit', () =>
      leaveIds(1_000, actor('admin', 'shop')));
  });

  it('a refused order is not waited for', async () => {
    expect(await order()).toEqual({ ok: false, code: 'sold_out' });
    expect(pending.of('1')).toBeNull();
  });
});
