// The adaptor of `bench -- compare` for the gate in Redis. Each commit has one that fits its src/; the interface must not change.
import { systemRuntime } from '../../../src/base/runtime.ts';
import { RedisGate } from '../../../src/gate/redis/gate.ts';

export interface GateOrder {
  orderId: string;
  buyer: string;
  key: string;
}

export interface MeasuredGate {
  /** Resolves when the gate has admitted the order; rejects if it refuses. */
  admit(order: GateOrder): Promise<void>;
}

/** The gate of one open sale with plenty of stock, in an empty Redis. */
export async function open(redisUrl: string): Promise<MeasuredGate> {
  const gate = new RedisGate({ target: redisUrl, pipeMax: 100_000_000, commandMs: 10_000 }, systemRuntime());
  const nowMs = Date.now();
  // The snapshot in its current form (`content`) and in that of commits before there were pages.
  const snapshot = {
    ...{ saleId: '7', epoch: 1, version: 1, opensAtMs: nowMs - 1000, closesAtMs: nowMs + 3_600_000 },
    ...{ paused: false, closed: false, perBuyer: 1, payWithinSeconds: 900 },
    items: [
      {
        ...{ id: '11', code: 'voucher', total: 1_000_000_000, blocked: 0, rev: 1 },
        price: { amount: 8000, currency: 'CNY' },
      },
    ],
    ...{ mayAdmit: true, content: [], holds: [], keys: [] },
  };
  await gate.install(snapshot);
  const asked = { saleId: '7', itemCode: 'voucher', quantity: 1, fingerprint: 'voucher x1' };
  return {
    admit: async (order) => {
      const { outcome } = await gate.admit({ ...asked, ...order });
      if (outcome !== 'admitted') throw new Error(`the gate said ${outcome}`);
    },
  };
}
