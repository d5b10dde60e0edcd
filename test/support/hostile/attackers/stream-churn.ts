import { type Attacker, get } from '../attacker.ts';

const RESET_WITHIN_MS = 4;

/** Opens event streams and leaves before the server has read the sale. */
export const streamChurn: Attacker = {
  name: 'stream churn',
  perSecond: 60,
  act(attack, n) {
    const socket = attack.open(get(`/v1/sales/${attack.target.saleId}/events`), 1000);
    socket.on('connect', () => attack.later(n % (RESET_WITHIN_MS + 1), () => socket.resetAndDestroy()));
  },
};
