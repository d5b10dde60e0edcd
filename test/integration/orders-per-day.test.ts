import { afterAll, expect, it } from 'vitest';
import { cleanUp, createSale } from '../support/server.ts';
import { startSocialShop } from '../support/social-shop.ts';

afterAll(cleanUp);

it('P10: a buyer who orders and cancels again and again is refused after so many, except for repeats', async () => {
  const shop = await startSocialShop({ http: { ordersPerDay: 3 } });
  const saleId = await createSale(shop, { stock: 10, perBuyer: 1 });
  const order = (buyer: string, key?: string, quantity = 1) => {
    const body = { item: 'voucher', quantity };
    return shop.call('POST', `/v1/sales/${saleId}/orders`, { buyer, body, ...(key && { key }) });
  };
  const ids: string[] = [];
  for (const key of ['k1', 'k2', 'k3']) {
    const placed = await order('ann', key);
    expect(placed.status).toBe(201);
    ids.push(placed.body.id);
    // Refused: it leaves nothing, and does not count.
    if (key !== 'k3') expect((await order('ann')).body.code).toBe('limit_reached');
    expect((await shop.call('POST', `/v1/orders/${placed.body.id}/cancel`, { buyer: 'ann' })).status).toBe(200);
  }
  for (const key of ['k4', undefined]) {
    const { status, body, headers } = await order('ann', key);
    expect([status, body.code]).toEqual([429, 'rate_limited']);
    expect(Number(headers.get('retry-after'))).toBeGreaterThan(86_000);
  }
  const again = await order('ann', 'k2');
  expect([again.status, again.body.id, again.headers.get('idempotent-replayed')]).toEqual([201, ids[1], 'true']);
  expect((await order('ann', 'k2', 2)).body.code).toBe('idempotency_key_reused');
  expect((await order('bob', 'k1')).status).toBe(201);
  // The shop's backend, which passes on what buyers send, has the buyer's budget.
  const acting = { admin: true, body: { item: 'voucher' }, headers: { 'doorbuster-buyer': 'ann' } };
  expect((await shop.call('POST', `/v1/sales/${saleId}/orders`, acting)).status).toBe(429);
  await shop.close();
});
