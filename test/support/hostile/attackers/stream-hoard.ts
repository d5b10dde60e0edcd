import { type Attacker, get } from '../attacker.ts';

const HOLD_MS = 60_000;

/** Opens as many event streams as one address can get, some by pipelining, and reads none of them. */
export const streamHoard: Attacker = {
  name: 'stream hoard',
  perSecond: 20,
  act(attack, n) {
    const stream = get(`/v1/sales/${attack.target.saleId}/events`);
    const socket = attack.open(n % 40 === 0 ? stream.repeat(20) : stream, HOLD_MS);
    if (n % 2 === 0) socket.on('connect', () => attack.later(200, () => socket.pause()));
  },
};
