import { describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { actor } from '../../src/model/actor.ts';
import { type ManageDependencies, ManageSales } from '../../src/sales/manage.ts';

const CALLER = { by: actor('admin', 'admin'), keyed: null };

/** A sale whose gate has epoch 1, in a ledger that has changed its items since. */
function world(over: { epochs?: number[]; now?: object | null; orders?: unknown[]; queued?: number } = {}) {
  const sale = { id: '5', closed: false, readAtMs: 1, closesAtMs: 2, itemsEpoch: 1 };
  const calls: string[] = [];
  const epochs = over.epochs ?? [1, 2];
  const changed = { outcome: 'changed', sale, answer: '{}' };
  const on = {
    runtime: systemRuntime(),
    gate: {
      applySale: async () => undefined,
      epochOf: async () => (epochs.length > 1 ? epochs.shift() : epochs[0]),
      view: async () => [{ queued: over.queued ?? 0, held: 0 }],
    },
    ledger: {
      patchItem: async () => changed,
      getSale: async () => (over.now === undefined ? sale : over.now),
      listOrders: async () => over.orders ?? [],
      finishTask: async (auditId: string) => void calls.push(`finished ${auditId}`),
      deleteSale: async () => ({ outcome: 'rebuilt' }),
    },
    auditIds: { next: async () => '7' },
    install: async (saleId: string, above: number) => void calls.push(`install ${saleId} above ${above}`),
    takeAway: async (_: string, decide: (epoch: number) => Promise<boolean>) => {
      calls.push('gate shut');
      return await decide(3);
    },
    hasDeadLetters: async () => false,
    changed: () => undefined,
  };
  return { manage: new ManageSales(on as unknown as ManageDependencies), calls };
}

describe('a change of items', () => {
  const patch = (manage: ManageSales) => manage.patchItem('5', 'a', { onSale: false }, 1, CALLER);

  it('is answered when a gate is in force that was built after it', async () => {
    const { manage, calls } = world();
    expect(await patch(manage)).toMatchObject({ outcome: 'changed' });
    expect(calls).toEqual(['install 5 above 1', 'finished 7']);
  });

  it('needs no rebuild if somebody else has built one since', async () => {
    const { manage, calls } = world({ epochs: [2] });
    await patch(manage);
    expect(calls).toEqual(['finished 7']);
  });

  it('stays a task if no such gate came, as when the shop closes', async () => {
    const { manage, calls } = world({ epochs: [1] });
    await expect(patch(manage)).rejects.toMatchObject({ code: 'unavailable' });
    expect(calls).toEqual(['install 5 above 1']);
  });

  it.each([['closed', { closed: true, readAtMs: 1, closesAtMs: 2 }] as const, ['deleted', null] as const])(
    'is done if the sale was %s meanwhile',
    async (_, now) => {
      const { manage, calls } = world({ epochs: [1], now });
      await patch(manage);
      expect(calls.at(-1)).toBe('finished 7');
    },
  );
});

describe('a sale is to be deleted', () => {
  it.each([
    ['has an order', { orders: [{}] }],
    ['is about to have one', { queued: 1 }],
  ])('P10: one that %s is refused, and its gate is not touched', async (_, over) => {
    const { manage, calls } = world(over);
    expect(await manage.delete('5', CALLER)).toBe('sale_has_orders');
    expect(calls).toEqual([]);
  });

  it('P3: one whose gate somebody rebuilt meanwhile is kept, and the caller tries again', async () => {
    const { manage, calls } = world();
    await expect(manage.delete('5', CALLER)).rejects.toMatchObject({ code: 'unavailable' });
    expect(calls).toEqual(['gate shut']);
  });
});
