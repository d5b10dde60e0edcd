import { afterAll, expect, it } from 'vitest';
import { allOrders, cleanUp, createSale, startServer } from '../support/server.ts';

afterAll(cleanUp);

it('sells one voucher over HTTP and stops cleanly', async () => {
  const server = await startServer();
  const sale = await createSale(server, { stock: 1 });
  const first = await server.call('POST', `/v1/sales/${sale}/orders`, { buyer: 'alice', body: { item: 'voucher' } });
  expect(first.status).toBe(201);
  const second = await server.call('POST', `/v1/sales/${sale}/orders`, { buyer: 'bob', body: { item: 'voucher' } });
  expect([second.status, second.body.code]).toEqual([409, 'sold_out']);
  expect(await allOrders(server, sale)).toMatchObject([{ id: first.body.id, buyer: 'alice', status: 'reserved' }]);
  expect(await server.stop()).toBe(0);
});
