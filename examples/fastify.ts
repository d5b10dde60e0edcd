/**
 * The HTTP API inside a Fastify application, under a prefix. The application keeps its own error and 404 handlers.
 *
 *     npm run example fastify
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createSigner } from 'fast-jwt';
import Fastify from 'fastify';
// In your program: import doorbuster from 'doorbuster/fastify';
import doorbuster from '../src/fastify.ts';
// In your program: import { createDoorbuster } from 'doorbuster';
import { createDoorbuster } from '../src/index.ts';

const data = mkdtempSync(join(tmpdir(), 'doorbuster-example-'));
const authSecret = 'a-secret-that-your-sign-in-and-the-shop-share';
const shop = await createDoorbuster({ data, adminKey: 'an-admin-key', authSecret });

const app = Fastify();
await app.register(doorbuster, { shop, prefix: '/shop' });
app.setNotFoundHandler((_request, reply) => reply.code(404).send({ error: 'not found, says the application' }));
// You created the shop, so you close it: here together with the application.
app.addHook('onClose', () => shop.close());

const created = await shop.sales.create({
  name: 'Sneakers',
  opensAt: Date.now() - 1000,
  closesAt: Date.now() + 3_600_000,
  items: [{ code: 'size-42', name: 'Size 42', price: { amount: 99900, currency: 'CNY' }, stock: 1 }],
});
if (!created.ok) throw new Error(`no sale: ${created.code}`);

const url = await app.listen({ port: 0, host: '127.0.0.1' });
const sign = createSigner({ key: authSecret, algorithm: 'HS256' });
for (const buyer of ['alice', 'bob']) {
  const response = await fetch(`${url}/shop/v1/sales/${created.sale.id}/orders`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${sign({ sub: buyer })}`,
      'content-type': 'application/json',
      // A retry with the same key gets the same order: it never buys twice.
      'idempotency-key': `cart-of-${buyer}`,
    },
    body: JSON.stringify({ item: 'size-42' }),
  });
  const order = (await response.json()) as { status: string; code?: string };
  console.log(`${buyer}: ${response.status} ${order.code ?? order.status}`);
}
console.log(`elsewhere: ${await (await fetch(`${url}/nope`)).text()}`);

await app.close();
rmSync(data, { recursive: true });
