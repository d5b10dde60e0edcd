import { type Attacker, ORDER } from '../attacker.ts';

const BUYERS = 500;

/** A crowd that comes too late: every order is refused, and every buyer retries. */
export const refusedOrders: Attacker = {
  name: 'refused orders',
  perSecond: 120,
  act(attack, n) {
    const buyer = `late-${n % BUYERS}`;
    void attack.ask('POST', `/v1/sales/${attack.target.soldOutId}/orders`, { buyer, body: ORDER });
  },
};
