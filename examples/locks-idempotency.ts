/**
 * Protection against double submission in an Express application: two clicks make one order, and both get its answer.
 *
 *     npm run example locks-idempotency
 */
import { randomUUID } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
// In your program: import { createLocks } from 'doorbuster/locks';
import { createLocks, expressIdempotency } from '../src/locks/index.ts';

// With several processes: createLocks({ redis: 'redis://127.0.0.1:6379' }).
const locks = createLocks();
const app = express();
app.use(express.json());

const orders: { id: number; buyer: string; item: string }[] = [];
// Mount it behind the body parser: it refuses a key that comes back with another body. The caller is whoever your
// sign-in identified; here a header stands in for it.
const idempotent = expressIdempotency(locks, {
  required: true,
  caller: (request) => String(request.headers['x-user']),
});
app.post('/orders', idempotent, async (request, response) => {
  await sleep(50);
  const order = { id: orders.length + 1, buyer: String(request.headers['x-user']), item: request.body.item };
  orders.push(order);
  response.status(201).json(order);
});

const server = app.listen(0, '127.0.0.1');
await new Promise((resolve) => server.once('listening', resolve));
const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/orders`;

// The client draws the key before its first attempt and sends it with every attempt.
const key = randomUUID();
const clicks = await Promise.all([post('alice', key, 'voucher'), post('alice', key, 'voucher')]);
console.log(`two clicks: ${clicks.map(({ status, body }) => `${status} order ${body.id}`).join(', ')}`);
console.log(`orders: ${orders.length}`);

const later = await post('alice', key, 'voucher');
console.log(`later: ${later.status} order ${later.body.id}, replayed: ${later.replayed}`);
const reused = await post('alice', key, 'something else');
console.log(`another body: ${reused.status} ${reused.body.code}`);
const bob = await post('bob', key, 'voucher');
console.log(`another buyer: ${bob.status} order ${bob.body.id}`);
const without = await post('alice', '', 'voucher');
console.log(`without a key: ${without.status} ${without.body.code}`);

server.close();
server.closeAllConnections();
await locks.close();

async function post(
  user: string,
  idempotencyKey: string,
  item: string,
): Promise<{ status: number; replayed: string | null; body: { id?: number; code?: string } }> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-user': user, 'idempotency-key': idempotencyKey },
    body: JSON.stringify({ item }),
  });
  const body = (await response.json()) as { id?: number; code?: string };
  return { status: response.status, replayed: response.headers.get('idempotent-replayed'), body };
}
