import type { Attacker } from '../attacker.ts';

const BODIES = [
  JSON.stringify({ item: 'v'.repeat(100_000) }),
  `${'['.repeat(30_000)}${']'.repeat(30_000)}`,
  `{"item":${'{"a":'.repeat(10_000)}1${'}'.repeat(10_000)}}`,
  `{"item":"voucher","quantity":${'9'.repeat(50_000)}}`,
  `{"item":"voucher","__proto__":{"quantity":${'1'.repeat(400)}}}`,
];

/** Sends bodies above the bound, and the deepest and longest ones below it. */
export const largeBodies: Attacker = {
  name: 'large and deep bodies',
  perSecond: 20,
  act(attack, n) {
    const buyer = `large-${n % 50}`;
    void attack.ask('POST', `/v1/sales/${attack.target.saleId}/orders`, { buyer, body: BODIES[n % BODIES.length]! });
  },
};
