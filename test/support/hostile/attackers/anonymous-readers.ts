import type { Attacker } from '../attacker.ts';

/** Reads the public pages as fast as possible. */
export const anonymousReaders: Attacker = {
  name: 'anonymous readers',
  perSecond: 60,
  act(attack, n) {
    const { saleId, soldOutId } = attack.target;
    const paths = ['/v1/sales?limit=200', `/v1/sales/${saleId}`, '/v1/sales', `/v1/sales/${soldOutId}`];
    void attack.ask('GET', paths[n % paths.length]!);
  },
};
