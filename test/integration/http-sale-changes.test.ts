import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { admin, place } from '../support/distributed-calls.ts';
import { CALM } from '../support/openapi-wire.ts';
import { saleChangesOver } from '../support/sale-changes.ts';
import { cleanUp, createSale, startServer, type TestServer } from '../support/server.ts';

/** What a sale says, its items, and its end, in the embedded shop. */
let server: TestServer;
beforeAll(async () => {
  server = await startServer({ env: CALM });
});
afterAll(cleanUp);

describe('the embedded shop', () => {
  saleChangesOver(() => ({ a: server, b: server }));

  it('P3: what was changed is there after a restart, and what was deleted is not', async () => {
    const kept = await createSale(server, { stock: 5, perBuyer: 5 });
    const gone = await createSale(server);
    const price = { amount: 7, currency: 'CNY' };
    await admin(server, 'PATCH', `/v1/sales/${kept}/items/voucher`, { body: { price, version: 1 } });
    const added = { code: 'new', name: 'New', price, stock: 1 };
    await admin(server, 'POST', `/v1/sales/${kept}/items`, { body: added });
    const { body: before } = await server.call('GET', `/v1/sales/${kept}`);
    expect((await admin(server, 'DELETE', `/v1/sales/${gone}`)).status).toBe(204);
    await server.kill();
    server = await startServer({ env: CALM, data: server.data });
    expect((await server.call('GET', `/v1/sales/${kept}`)).body).toEqual(before);
    expect((await server.call('GET', `/v1/sales/${gone}`)).status).toBe(404);
    for (const item of ['voucher', 'new']) {
      expect((await place(server, kept, 'alice', { item })).body.amount).toEqual(price);
    }
  });
});
