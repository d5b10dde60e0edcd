import { type Attacker, ORDER } from '../attacker.ts';

/** About twice the page of a sweep. Placed together, so that more than a page of them expires together. */
const TOGETHER = 500;
const STEP = 50;
const STEP_MS = 30;
const NEVER_ANSWERS = JSON.stringify({ method: 'sandbox', token: 'timeout' });

/**
 * Places orders whose payments the provider leaves pending, and which all expire together meanwhile. If the server accepts no
 * orders, the payments are sent all the same.
 */
export const pendingPayments: Attacker = {
  name: 'pending payments',
  perSecond: 1 / 20,
  // A pending payment keeps its connection waiting.
  connections: TOGETHER,
  act(attack, n) {
    const run = `${process.pid}-${n}-${Math.random().toString(36).slice(2, 8)}`;
    const buyers = Array.from({ length: TOGETHER }, (_, each) => `pending-${run}-${each}`);
    const path = `/v1/sales/${attack.target.quickSaleId}/orders`;
    const pay = async (buyer: string): Promise<void> => {
      const orderId = /"id":"(\d+)"/.exec(await attack.ask('POST', path, { buyer, body: ORDER }))?.[1] ?? '1';
      await attack.ask('POST', `/v1/orders/${orderId}/pay`, { buyer, body: NEVER_ANSWERS });
    };
    // In steps: connections beyond the server's backlog would wait for a second each.
    for (let from = 0; from < TOGETHER; from += STEP) {
      attack.later((from / STEP) * STEP_MS, () => {
        for (const buyer of buyers.slice(from, from + STEP)) void pay(buyer);
      });
    }
  },
};
