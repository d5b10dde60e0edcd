// The adaptor of `bench -- compare` for the SQL ledgers. Each commit has one that fits its src/; the interface must not change.

import { systemRuntime } from '../../../src/base/runtime.ts';
import { openSqlLedger } from '../../../src/ledger/drivers/open.ts';
import { actor } from '../../../src/model/actor.ts';

export interface LedgerOrder {
  orderId: string;
  buyer: string;
  key: string;
}

export interface MeasuredLedger {
  /** Resolves when all are committed as reserved; rejects if one is not. */
  commit(batch: readonly LedgerOrder[]): Promise<void>;
}

/** The ledger of one open sale with plenty of stock, in an empty database. */
export async function open(databaseUrl: string): Promise<MeasuredLedger> {
  const ledger = await openSqlLedger(databaseUrl, systemRuntime(), { migrate: true, exclusive: false });
  const price = { amount: 8000, currency: 'CNY' };
  await ledger.createSale(
    {
      ...{ id: '1', itemIds: ['2'], name: 'Bench', perBuyer: 1, payWithinSeconds: 900 },
      ...{ opensAtMs: 0, closesAtMs: Date.now() + 86_400_000 },
      items: [{ code: 'voucher', name: 'V', price, stock: 1_000_000_000 }],
    },
    { by: actor('system', 'bench'), auditId: '3', keyed: null, answer: () => '' },
  );
  const same = {
    ...{ saleId: '1', itemId: '2', itemCode: 'voucher', quantity: 1, slots: [1], price },
    ...{ payWithinSeconds: 900, epoch: 1, fingerprint: 'voucher x1' },
  };
  return {
    commit: async (batch) => {
      const stored = await ledger.commitOrders(batch.map((order) => ({ ...same, ...order })));
      if (!stored.every(({ order }) => order.status === 'reserved')) throw new Error('the ledger rejected an order');
    },
  };
}
