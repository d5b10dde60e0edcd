import type { Shop } from '../../src/engine/shop.ts';
import { actor } from '../../src/model/actor.ts';
import type { NewSale } from '../../src/model/sale.ts';
import type { Caller } from '../../src/sales/manage.ts';

const ADMIN: Caller = { by: actor('admin', 'admin'), keyed: null };

/** An open sale of one item, `voucher`; its id. */
export async function createSaleIn(
  shop: Pick<Shop, 'createSale'>,
  { stock = 1000, ...over }: Partial<NewSale> & { stock?: number } = {},
): Promise<string> {
  const nowMs = Date.now();
  const made = await shop.createSale(
    {
      ...{ name: 'Vouchers', opensAtMs: nowMs - 60_000, closesAtMs: nowMs + 3_600_000, perBuyer: 1 },
      payWithinSeconds: 900,
      items: [{ code: 'voucher', name: 'Voucher', price: { amount: 100, currency: 'EUR' }, stock }],
      ...over,
    },
    ADMIN,
  );
  if (made.outcome !== 'changed') throw new Error(made.outcome);
  return made.sale.id;
}
