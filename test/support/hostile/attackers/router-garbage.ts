import type { Attacker } from '../attacker.ts';

const PATHS = [
  '/docs/static/..%5cx',
  '/docs/static/%00',
  '/docs/static//etc/passwd',
  '/docs/static/%2e%2e/%2e%2e/package.json',
  '/v1/sales/%E0%A4%A',
  '/v1/sales/%',
  `/v1/orders/${'9'.repeat(300)}`,
  `/${'a/'.repeat(500)}`,
  '/v1/sales?limit=%00&cursor=%ff',
  '//%5c%5c..',
];

/** Requests paths that match no route. */
export const routerGarbage: Attacker = {
  name: 'router garbage',
  perSecond: 100,
  act(attack, n) {
    void attack.ask('GET', PATHS[n % PATHS.length]!);
  },
};
