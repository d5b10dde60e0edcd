/**
 * The HTTP API inside an Express application, under a path of its own.
 *
 *     npm run example express
 */
import { mkdtempSync, rmSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import express from 'express';
import { createSigner } from 'fast-jwt';
// In your program: import { createDoorbuster } from 'doorbuster';
import { createDoorbuster } from '../src/index.ts';

const data = mkdtempSync(join(tmpdir(), 'doorbuster-example-'));
const authSecret = 'a-secret-that-your-sign-in-and-the-shop-share';
const shop = await createDoorbuster({ data, adminKey: 'an-admin-key', authSecret });

const app = express();
// Mount it before express.json(): the shop parses bodies itself, and a body can be read only once.
app.use('/shop', shop.handler());
app.use(express.json());

// Your own routes use the same shop as a library: a sale created here is sold under /shop.
app.post('/campaigns', async (request, response) => {
  const created = await shop.sales.create({
    name: request.body.name,
    opensAt: Date.now() - 1000,
    closesAt: Date.now() + 3_600_000,
    items: [{ code: 'voucher', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: 100 }],
  });
  if (created.ok) response.status(201).json({ campaign: created.sale.id });
  else response.status(422).json(created);
});
app.use((_request, response) => void response.status(404).json({ error: 'not found, says Express' }));

const server = app.listen(0, '127.0.0.1');
await new Promise((resolve) => server.once('listening', resolve));
const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

const { campaign } = await post('/campaigns', { name: 'Eleven' });
console.log(`campaign: ${campaign === undefined ? 'none' : 'made'}`);

const token = createSigner({ key: authSecret, algorithm: 'HS256' })({ sub: 'alice' });
const order = await post(`/shop/v1/sales/${campaign}/orders`, { item: 'voucher' }, token);
console.log(`alice: ${order.status}`);

// Public reads of a sale may be up to a tenth of a second old.
await new Promise((resolve) => setTimeout(resolve, 150));
const sale = (await (await fetch(`${url}/shop/v1/sales/${campaign}`)).json()) as { items: { free: number }[] };
console.log(`free: ${sale.items[0]!.free}`);
console.log(`elsewhere: ${JSON.stringify(await (await fetch(`${url}/nope`)).json())}`);

server.close();
server.closeAllConnections();
await shop.close();
rmSync(data, { recursive: true });

async function post(path: string, body: object, bearer = ''): Promise<Record<string, unknown>> {
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${bearer}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  return (await response.json()) as Record<string, unknown>;
}
