import { token } from '../../server.ts';
import type { Attacker } from '../attacker.ts';

const HOLD_MS = 60_000;
/** Announces no more than the call allows: it would be refused at once otherwise. */
const halfBody = (bytes: number): string =>
  `host: shop\r\ncontent-type: application/json\r\ncontent-length: ${bytes}\r\n\r\n{`;

/** Slowloris: bodies and headers that never end. Each keeps its socket for as long as possible. */
export const halfSent: Attacker = {
  name: 'half-sent bodies and headers',
  perSecond: 100,
  act(attack, n) {
    const news = `POST /v1/webhooks/payments/sandbox HTTP/1.1\r\n${halfBody(60_000)}`;
    const orders = `POST /v1/sales/${attack.target.saleId}/orders HTTP/1.1\r\n`;
    // One in eight has a valid token: the server must wait for it, but no longer than for any request.
    const authorization = n % 8 === 3 ? `authorization: Bearer ${token(`slow-${n % 400}`)}\r\n` : '';
    const kinds = [
      news,
      'GET /v1/time HTTP/1.1\r\nhost: shop\r\nx-slow: a',
      news,
      `${orders}${authorization}${halfBody(4000)}`,
    ];
    attack.open(kinds[n % kinds.length]!, HOLD_MS);
  },
};
