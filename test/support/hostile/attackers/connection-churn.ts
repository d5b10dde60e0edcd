import { type Attacker, get } from '../attacker.ts';

const BROKEN: (string | Buffer)[] = [
  'HELLO\r\n\r\n',
  Buffer.from([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]),
  'GET / HTTP/9.9\r\n\r\n',
  'POST /v1/sales HTTP/1.1\r\nhost: shop\r\ncontent-length: -1\r\n\r\n',
  'POST /v1/sales HTTP/1.1\r\nhost: shop\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n',
  'POST /v1/sales HTTP/1.1\r\nhost: shop\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n',
  `GET /v1/time HTTP/1.1\r\nhost: shop\r\nx-large: ${'a'.repeat(40_000)}\r\n\r\n`,
  `GET /v1/time HTTP/1.1\r\nhost: shop\r\n${'x: y\r\n'.repeat(3000)}\r\n`,
];

/** Opens connections that end at once, and sends bytes that are not HTTP, or too many of them. */
export const connectionChurn: Attacker = {
  name: 'connection churn and broken HTTP',
  perSecond: 60,
  act(attack, n) {
    if (n % 3 === 0) attack.open(get('/v1/time'), 5);
    else attack.open(BROKEN[n % BROKEN.length]!, 1000);
  },
};
