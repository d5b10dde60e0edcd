import type { Attacker } from '../attacker.ts';

const DECLINED = JSON.stringify({ method: 'sandbox', token: 'declined' });

/** A few buyers try card after card for their orders, and read them all the time. */
export const declinedCards: Attacker = {
  name: 'declined cards',
  perSecond: 90,
  act(attack, n) {
    const { owed } = attack.target;
    const { orderId, buyer } = owed[n % owed.length]!;
    const odd = Math.floor(n / owed.length) % 2 === 1;
    if (odd) void attack.ask('GET', `/v1/orders/${orderId}`, { buyer });
    else void attack.ask('POST', `/v1/orders/${orderId}/pay`, { buyer, body: DECLINED });
  },
};
