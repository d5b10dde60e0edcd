import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { ProviderNews } from '../../src/payments/port.ts';
import { BY, LifeWorld, PRICE } from '../support/life-world.ts';

let world: LifeWorld;

beforeEach(async () => {
  world = await LifeWorld.open({ stock: 1, perBuyer: 1, payWithinSeconds: 60 });
});

afterEach(() => world.close());

async function paidOrder(): Promise<{ orderId: string; attemptId: string }> {
  const request = { saleId: world.saleId, itemCode: 'voucher', buyer: 'a', quantity: 1, key: null };
  const placed = await world.until(world.shop.place(request));
  if (!placed.ok) throw new Error(placed.code);
  const paid = await world.until(world.shop.payOrder(placed.order.id, { method: 'bank', token: 'captured' }, BY));
  expect(paid).toMatchObject({ ok: true, state: 'paid' });
  return { orderId: placed.order.id, attemptId: [...world.bank.book.keys()][0]! };
}

describe('P6: a partial refund', () => {
  it('told by the provider does not end the order', async () => {
    const { orderId, attemptId } = await paidOrder();
    const news: ProviderNews = {
      ...{ provider: 'bank', id: 'evt', type: 'payment.refunded', orderId },
      ...{ reference: world.bank.referenceOf(attemptId), amount: { ...PRICE, amount: 500 } },
    };
    await world.until(world.shop.paymentNews(news));
    expect(await world.shop.getOrder(orderId)).toMatchObject({ status: 'paid' });
  });
});
