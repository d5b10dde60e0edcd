/**
 * The whole HTTP API on a plain node:http server of your own.
 *
 *     npm run example http
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
// Any JWT library will do: your sign-in signs tokens with HS256, and `sub` is the buyer's id.
import { createSigner } from 'fast-jwt';
// In your program: import { createDoorbuster } from 'doorbuster';
import { createDoorbuster } from '../src/index.ts';

const data = mkdtempSync(join(tmpdir(), 'doorbuster-example-'));
const adminKey = 'an-admin-key-from-your-secret-store';
const authSecret = 'a-secret-that-your-sign-in-and-the-shop-share';
const shop = await createDoorbuster({ data, adminKey, authSecret });

const server = createServer(shop.handler());
await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
console.log(`listening: ${url}/docs shows the API`);

// The shop's owner creates a sale…
const sale = await call('POST', '/v1/sales', adminKey, {
  name: 'Concert',
  opensAt: new Date(Date.now() - 1000).toISOString(),
  closesAt: new Date(Date.now() + 3_600_000).toISOString(),
  items: [{ code: 'standing', name: 'Standing', price: { amount: 68000, currency: 'CNY' }, stock: 1 }],
});
console.log(`sale: ${sale.status} ${sale.body.state}`);

// …and two buyers want the last ticket.
const sign = createSigner({ key: authSecret, algorithm: 'HS256', expiresIn: 3_600_000 });
for (const buyer of ['alice', 'bob']) {
  const path = `/v1/sales/${sale.body.id}/orders`;
  const order = await call('POST', path, sign({ sub: buyer }), { item: 'standing' });
  console.log(`${buyer}: ${order.status} ${order.body.code ?? order.body.status}`);
}

// Stop taking connections first, then close the shop, which finishes the orders in flight.
server.close();
server.closeAllConnections();
await shop.close();
rmSync(data, { recursive: true });

async function call(method: string, path: string, bearer: string, body: object) {
  const response = await fetch(url + path, {
    method,
    headers: { authorization: `Bearer ${bearer}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}
