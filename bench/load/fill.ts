// Fills a data folder with a sale that has `orders` reserved orders of random buyers, and stock for as many more. Writes
// through the ledger in batches, because a million orders over HTTP would take a minute. Prints { saleId }.

import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { actor } from '../../src/model/actor.ts';

const [folder, count] = [process.argv[2]!, Number(process.argv[3]!)];
const shop = await EmbeddedShop.open(folder, systemRuntime());
const price = { amount: 8000, currency: 'CNY' };
const change = await shop.createSale(
  {
    name: 'bench',
    opensAtMs: 0,
    closesAtMs: Date.now() + 86_400_000,
    perBuyer: 1,
    payWithinSeconds: 900,
    items: [
      { code: 'voucher', name: 'Voucher', price, stock: 1_000_000 },
      { code: 'sustained', name: 'Sustained', price, stock: 1_000_000 },
      { code: 'none', name: 'Sold out', price, stock: 0 },
      { code: 'old', name: 'Sold before', price, stock: Math.max(count, 1) },
    ],
  },
  { by: actor('system', 'bench'), keyed: null },
);
if (change.outcome !== 'changed') throw new Error(change.outcome);
const saleId = change.sale.id;
for (let done = 0; done < count; ) {
  const batch = Math.min(512, count - done);
  await Promise.all(
    Array.from({ length: batch }, (_, n) =>
      shop.place({
        saleId,
        itemCode: 'old',
        buyer: `${Math.random().toString(36).slice(2, 12)}-old-${done + n}`,
        quantity: 1,
        key: `key-old-${done + n}`,
      }),
    ),
  );
  done += batch;
  if (done % 102_400 === 0) console.error(`  filled ${done} of ${count}`);
}
await shop.close();
console.log(JSON.stringify({ saleId }));
