import { describe, expect, it } from 'vitest';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { SnapshotPage } from '../../src/model/snapshot.ts';
import { manualRuntime, settled, T0 } from '../contract/manual.ts';
import { paged } from '../support/snapshot.ts';

const SALE = '7';

function sale(epoch: number, keys: SnapshotPage['keys'][number][] = []) {
  const price = { amount: 1, currency: 'CNY' };
  return paged({
    saleId: SALE,
    epoch,
    version: 1,
    opensAtMs: 0,
    closesAtMs: T0 + 1e9,
    paused: false,
    closed: false,
    perBuyer: 1,
    payWithinSeconds: 900,
    mayAdmit: true,
    items: [{ id: '11', code: 'v', price, total: 1e7, blocked: 0, rev: 1 }],
    holds: [],
    keys,
  });
}

const order = (at: number) => {
  return {
    saleId: SALE,
    orderId: String(1e9 + at),
    itemCode: 'v',
    quantity: 1,
    buyer: `b${at}`,
    key: 'k',
    fingerprint: 'f',
  };
};

function keysOf(count: number, boundAtMs: number): SnapshotPage['keys'][number][] {
  return Array.from({ length: count }, (_, at) => {
    return { buyer: `old${at}`, key: 'k', fingerprint: 'f', orderId: String(1 + at), boundAtMs };
  });
}

/** The size of the largest Map that was written to meanwhile: a Map doubles its table in one go, which blocks the event loop. */
async function largestMap(during: () => Promise<void>): Promise<number> {
  const { set } = Map.prototype;
  let largest = 0;
  Map.prototype.set = function (key: unknown, value: unknown) {
    set.call(this, key, value);
    if (this.size > largest) largest = this.size;
    return this;
  };
  try {
    await during();
  } finally {
    Map.prototype.set = set;
  }
  return largest;
}

describe('the gate in memory', () => {
  it('P5: a finished sale leaves it once nothing of the sale is in the pipe, and not while it may sell', async () => {
    const runtime = manualRuntime();
    const gate = new MemoryGate(runtime, () => undefined);
    await gate.install(sale(1));
    expect(await gate.admit(order(1))).toMatchObject({ outcome: 'admitted' });
    expect(await gate.retire(SALE), 'it is open').toBe('busy');
    runtime.clock.advance(1e9 + 1);
    expect(await gate.retire(SALE), 'an order is in the pipe').toBe('busy');
    expect(await gate.keyOf(SALE, 'b1', 'k')).toMatchObject({ orderId: order(1).orderId });
    await gate.settle(SALE, [{ orderId: order(1).orderId, buyer: 'b1' }]);
    expect(await gate.saleIds()).toEqual([SALE]);
    expect(await gate.retire(SALE)).toBe('removed');
    expect([await gate.saleIds(), await gate.view(SALE)]).toEqual([[], null]);
    expect(await gate.retire(SALE)).toBe('removed');
  });

  it('P10: with many keys no table is large: one that is doubled holds up nobody', async () => {
    const gate = new MemoryGate(manualRuntime(), () => {});
    const built = await largestMap(() => gate.install(sale(1, keysOf(150_000, T0))));
    const live = await largestMap(async () => {
      for (let at = 0; at < 150_000; at++) await gate.admit(order(at));
    });
    expect(Math.max(built, live)).toBeLessThan(263_000);
    for (const at of [0, 149_999]) {
      expect(await gate.keyOf(SALE, `old${at}`, 'k')).toEqual({ orderId: String(1 + at), fingerprint: 'f' });
      expect(await gate.keyOf(SALE, `b${at}`, 'k')).toEqual({ orderId: String(1e9 + at), fingerprint: 'f' });
    }
  });

  it('P10: keys are pruned some thousand in a turn, of one sale or of many, and orders come in between', async () => {
    const runtime = manualRuntime();
    const gate = new MemoryGate(runtime, () => {});
    const small = Array.from({ length: 50 }, (_, at) => String(100 + at));
    await gate.install(sale(1, keysOf(20_000, T0 - 1000)));
    for (const saleId of small) await gate.install({ ...sale(1, keysOf(200, T0 - 1000)), saleId });
    const left = async (): Promise<number> => {
      let count = 0;
      for (let at = 0; at < 20_000; at++) if ((await gate.keyOf(SALE, `old${at}`, 'k')) !== null) count++;
      for (const saleId of small) {
        for (let at = 0; at < 200; at++) if ((await gate.keyOf(saleId, `old${at}`, 'k')) !== null) count++;
      }
      return count;
    };
    let over = false;
    const pruned = gate.pruneKeys(500).then(() => {
      over = true;
    });
    await settled();
    let before = 30_000;
    for (let turns = 0; !over; turns++) {
      const now = await left();
      expect(before - now, `turn ${turns}`).toBeLessThanOrEqual(3000);
      before = now;
      await gate.admit(order(turns));
      await runtime.timers.turn();
      expect(turns).toBeLessThan(100);
    }
    await pruned;
    expect(await left()).toBe(0);
    for (let at = 0; at < 10; at++) expect(await gate.keyOf(SALE, `b${at}`, 'k')).not.toBeNull();
  });
});
