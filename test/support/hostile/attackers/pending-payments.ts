import { type Attacker, ORDER } from '../attacker.ts';

/** About twice the page of a sweep: placed together, so that a page and more of them run out together. */
const TOGETHER = 500;
const STEP = 50;
const STEP_MS = 30;
const NEVER_ANSWERS = JSON.stringify({ method: 'sandbox', token: 'timeout' });

/**
 * Orders whose payments the provider leaves pending, and whose time to pay runs out meanwhile, all together. At a server
 * that gives no orders the payments are sent just the same.
 */
export const pendingPayments: Attacker = {
  name: 'pending payments',
  perSecond: 1 / 20,
  // A payment that is pending keeps its connection waiting.
  connections: TOGETHER,
  act(attack, n) {
    const run = `${process.pid}-${n}-${Math.random().toString(36).slice(2, 8)}`;
    const buyers = Array.from({ length: TOGETHER }, (_, each) => `pending-${run}-${each}`);
    const path = `/v1/sales/${attack.target.quickSaleId}/orders`;
    const pay = async (buyer: string): Promise<void> => {
      const orderId = /"id":"(\d+)"/.exec(await attack.ask('POST', path, { buyer, body: ORDER }))?.[1] ?? '1';
      await attack.ask('POST', `/v1/orders/${orderId}/pay`, { buyer, body: NEVER_ANSWERS });
    };
    // In a few steps: more connections at once than a server's backlog takes would wait for a second each.
    for (let from = 0; from < TOGETHER; from += STEP) {
      attack.later((from / STEP) * STEP_MS, () => {
        for (const buyer of buyers.slice(from, from + STEP)) void pay(buyer);
      });
    }
  },
};
