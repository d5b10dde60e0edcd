import type { Shop } from '../../src/engine/shop.ts';
import { actor } from '../../src/model/actor.ts';
import type { Bank, Plan } from './life-bank.ts';

/** What a buyer, an admin or the bank does, of the order that was placed as number `at`. */
export type Act =
  | { readonly do: 'place'; readonly buyer: string }
  | { readonly do: 'pay'; readonly at: number; readonly plan: Plan }
  | { readonly do: 'confirm' | 'cancel' | 'refund'; readonly at: number }
  /** At the bank: what it has of this order is decided. */
  | { readonly do: 'finish'; readonly at: number; readonly as: 'captured' | 'declined' }
  /** The bank tells all that it ever had to tell, from the beginning. */
  | { readonly do: 'news' };

export type Step =
  | Act
  | { readonly do: 'pass'; readonly ms: number }
  | { readonly do: 'until'; readonly at: number; readonly status: string }
  /** From now on the process dies when it comes to its point. */
  | { readonly do: 'arm' };

export const LIFE_PRICE = { amount: 8000, currency: 'CNY' };
export const LIFE_ITEM = 'voucher';
const BY = actor('system', 'test');

/** Does it; a refusal or a failure is its own business. `orders` are the ids of those placed so far. */
export async function act(shop: Shop, bank: Bank, saleId: string, orders: string[], step: Act): Promise<unknown> {
  const id = 'at' in step ? orders[step.at]! : '';
  switch (step.do) {
    case 'place': {
      const request = { saleId, itemCode: LIFE_ITEM, buyer: step.buyer, quantity: 1, key: null };
      const placed = await shop.place(request);
      if (placed.ok) orders.push(placed.order.id);
      return placed;
    }
    case 'pay':
      return await shop.payOrder(id, { method: bank.name, token: step.plan }, BY);
    case 'confirm':
      return await shop.confirmOrder(id, `till-${id}`, LIFE_PRICE, BY);
    case 'cancel':
      return await shop.cancelOrder(id, BY);
    case 'refund':
      return await shop.refundOrder(id, BY);
    case 'finish':
      for (const intent of bank.of(id)) bank.finish(intent.id, step.as);
      return null;
    case 'news':
      for (const news of [...bank.news]) await shop.paymentNews(news);
      return null;
  }
}
