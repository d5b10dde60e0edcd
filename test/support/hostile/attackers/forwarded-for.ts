import { type Attacker, ORDER } from '../attacker.ts';

/** Sends forged addresses: a new one with each request, long ones, and invalid ones; some of them reach the audit. */
export const forwardedFor: Attacker = {
  name: 'made-up addresses',
  perSecond: 40,
  act(attack, n) {
    const spoofed = [
      `10.${n % 256}.1.${n % 199}`,
      'a'.repeat(300),
      `not-an-address <${n}>`,
      `::ffff:${n % 65536}`,
      ',,, ,',
    ];
    const headers = { 'x-forwarded-for': spoofed[n % spoofed.length]! };
    if (n % 6 !== 0) {
      void attack.ask('GET', '/v1/time', { headers });
      return;
    }
    const buyer = `spoof-${process.pid}-${n}-${Math.random().toString(36).slice(2, 8)}`;
    void attack
      .ask('POST', `/v1/sales/${attack.target.quickSaleId}/orders`, { buyer, body: ORDER, headers })
      .then((text) => {
        const orderId = /"id":"(\d+)"/.exec(text)?.[1] ?? '1';
        return attack.ask('POST', `/v1/orders/${orderId}/cancel`, { buyer, body: '{}', headers });
      });
  },
};
