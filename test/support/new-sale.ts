import type { Shop } from '../../src/engine/shop.ts';
import { actor } from '../../src/model/actor.ts';
import type { NewSale } from '../../src/model/sale.ts';
import type { Caller } from '../../src/sales/manage.ts';

const ADMIN: Caller = { by: actor('admin', 'admin'), keyed: null };

/** What a test relies on; the rest does not matter to it. `stock` is that of the only item, unless there are `items`. */
export interface NewSaleOver extends Partial<NewSale> {
  stock?: number;
}

/** A sale of one item, `voucher`, that is open by the system's clock. A test with a clock of its own gives the window. */
export function newSale({ stock = 1000, ...over }: NewSaleOver = {}): NewSale {
  const nowMs = Date.now();
  return {
    name: 'Vouchers',
    opensAtMs: nowMs - 60_000,
    closesAtMs: nowMs + 3_600_000,
    perBuyer: 1,
    payWithinSeconds: 900,
    items: [{ code: 'voucher', name: 'Voucher', price: { amount: 100, currency: 'EUR' }, stock }],
    ...over,
  };
}

/** Creates that sale in the shop; its id. */
export async function createSaleIn(shop: Pick<Shop, 'createSale'>, over: NewSaleOver = {}): Promise<string> {
  const made = await shop.createSale(newSale(over), ADMIN);
  if (made.outcome !== 'changed') throw new Error(made.outcome);
  return made.sale.id;
}
