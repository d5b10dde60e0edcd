import type { Attacker } from '../attacker.ts';

const bodiesOf = (bytes: number): string[] => [
  JSON.stringify({ item: 'v'.repeat(2 * bytes) }),
  `${'['.repeat(bytes / 2 - 10)}${']'.repeat(bytes / 2 - 10)}`,
  `{"item":${'{"a":'.repeat(bytes / 8)}1${'}'.repeat(bytes / 8)}}`,
  `{"item":"voucher","quantity":${'9'.repeat(bytes - 100)}}`,
  `{"item":"voucher",${Array.from({ length: bytes / 16 }, (_, n) => `"${n}":0`).join(',')}}`,
  `{"item":"voucher","__proto__":{"quantity":${'1'.repeat(400)}}}`,
];
const ORDERS = bodiesOf(4 * 1024);
const POSTS = bodiesOf(64 * 1024);

/** Sends bodies above the bound, and the deepest and longest ones below it. */
export const largeBodies: Attacker = {
  name: 'large and deep bodies',
  perSecond: 20,
  act(attack, n) {
    const buyer = `large-${n % 50}`;
    const at = (n >> 1) % ORDERS.length;
    const path = n % 2 === 0 ? `/v1/sales/${attack.target.saleId}/orders` : '/v1/posts';
    void attack.ask('POST', path, { buyer, body: (n % 2 === 0 ? ORDERS : POSTS)[at]! });
  },
};
