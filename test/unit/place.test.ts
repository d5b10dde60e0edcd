import { beforeEach, describe, expect, it } from 'vitest';
import { unavailable } from '../../src/base/errors.ts';
import { IdSequence, idTimeMs } from '../../src/base/ids.ts';
import type { Gate, Verdict } from '../../src/gate/port.ts';
import { KEY_KEPT_MS, type Ledger, type OrderKeyBinding } from '../../src/ledger/port.ts';
import { type OrderRecord, orderFingerprint } from '../../src/model/order.ts';
import type { SaleRecord } from '../../src/model/sale.ts';
import { Acks } from '../../src/orders/acks.ts';
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
  let acks: Acks;
  let verdict: Verdict;
  let rows: Map<string, OrderRecord>;
  let keys: Map<string, OrderKeyBinding>;
  let unscopedUpTo: string | null;
  let sale: SaleRecord | null;
  let closedBecause: string | null;
  let rebuilt: string[];
  let admitted: number;
  let place: PlaceOrder;

  beforeEach(() => {
    runtime = manualRuntime();
    acks = new Acks();
    verdict = { outcome: 'sold_out' };
    rows = new Map();
    keys = new Map();
    unscopedUpTo = null;
    closedBecause = null;
    rebuilt = [];
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
      items: [{ code: 'v' }] as SaleRecord['items'],
    };
    const gate = {
      admit: async () => {
        admitted++;
        return verdict;
      },
    };
    const ledger = {
      getOrder: async (id: string) => rows.get(id) ?? null,
      getSale: async () => sale,
      findOrderKey: async ({ key }: { key: string }) => keys.get(key) ?? null,
      get unscopedUpTo() {
        return unscopedUpTo;
      },
    };
    const orderIds = new IdSequence('order', async (_, size) => ({ from: 1, to: 1 + size }), runtime.clock, 100);
    place = new PlaceOrder({
      runtime,
      gate: gate as unknown as Gate,
      ledger: ledger as unknown as Ledger,
      acks,
      orderIds,
      patience: null,
      closedBecause: () => closedBecause,
      rebuild: (saleId) => rebuilt.push(saleId),
    });
  });

  const order = (over = {}): Promise<PlaceResult> =>
    place.place({ saleId: '5', itemCode: 'v', buyer: 'alice', quantity: 1, key: 'k', ...over });

  /** The gate has admitted the first try under id 1, and the ledger has not decided it yet. */
  function firstTryRunning(): void {
    void acks.expect('1').catch(() => {});
    verdict = { outcome: 'replayed', orderId: '1' };
  }

  describe('again with the key of an order (P5)', () => {
    it('waits for the first try and gets its answer', async () => {
      firstTryRunning();
      const repeat = order();
      await settled();
      acks.decided(ORDER);
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
      acks.failed('1', unavailable('the disk is full'));
      await expect(repeat).rejects.toThrow('the disk is full');
    });

    it('gets the refusal of a first try that the ledger refused', async () => {
      firstTryRunning();
      const repeat = order();
      await settled();
      acks.decided({ ...ORDER, status: 'rejected', reason: 'sold_out' });
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
    const caller = 'admin:alice';
    /** An id of this moment. */
    const UP_TO = String((BigInt(T0 - idTimeMs('1')) / 1000n) << 32n);

    beforeEach(() => {
      rows.set('1', ORDER);
      // The buyer's own key, or that of an admin from the time when a key did not say whose it was.
      keys.set('k', { fingerprint: orderFingerprint('v', 1), orderId: '1' });
    });

    it('the buyer’s own key is another one', async () => {
      expect(await order({ caller })).toEqual({ ok: false, code: 'sold_out' });
      expect(admitted).toBe(1);
    });

    it('a key of an order from before keys said whose they are is still bound, for as long as it is kept', async () => {
      unscopedUpTo = UP_TO;
      expect(await order({ caller })).toEqual({ ok: true, order: ORDER, replayed: true });
      expect(await order({ caller, quantity: 2 })).toEqual({ ok: false, code: 'idempotency_key_reused' });
      expect(admitted).toBe(0);
      expect(await order({ caller, key: 'other' })).toEqual({ ok: false, code: 'sold_out' });
      runtime.clock.advance(2 * KEY_KEPT_MS);
      expect(await order({ caller })).toEqual({ ok: false, code: 'sold_out' });
    });

    it('a key of an order after that is not', async () => {
      unscopedUpTo = UP_TO;
      keys.set('k', { fingerprint: orderFingerprint('v', 1), orderId: String(BigInt(UP_TO) + 1n) });
      expect(await order({ caller })).toEqual({ ok: false, code: 'sold_out' });
    });

    it('no sale, no look', async () => {
      unscopedUpTo = UP_TO;
      verdict = { outcome: 'stale' };
      expect(await order({ caller, saleId: 'x' })).toEqual({ ok: false, code: 'not_found' });
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

  it('a refused order is not waited for', async () => {
    expect(await order()).toEqual({ ok: false, code: 'sold_out' });
    expect(acks.of('1')).toBeNull();
  });
});
