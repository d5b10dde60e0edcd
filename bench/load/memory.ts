// How much the shop's memory grows by 100 000 buyers with one order each, after garbage collection.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { actor } from '../../src/model/actor.ts';

const keyed = process.argv[2] === 'keyed';
const BUYERS = 100_000;
const folder = mkdtempSync(join(tmpdir(), 'doorbuster-bench-'));
const shop = await EmbeddedShop.open(folder, systemRuntime());
const change = await shop.createSale(
  {
    name: 'memory',
    opensAtMs: 0,
    closesAtMs: Date.now() + 86_400_000,
    perBuyer: 1,
    payWithinSeconds: 900,
    items: [{ code: 'voucher', name: 'Voucher', price: { amount: 1, currency: 'CNY' }, stock: 1_000_000 }],
  },
  { by: actor('system', 'bench'), keyed: null },
);
if (change.outcome !== 'changed') throw new Error(change.outcome);
const used = (): number => {
  gc!();
  gc!();
  return process.memoryUsage().heapUsed;
};
const before = used();
for (let n = 0; n < BUYERS; n += 500) {
  await Promise.all(
    Array.from({ length: 500 }, (_, m) =>
      shop.place({
        saleId: change.sale.id,
        itemCode: 'voucher',
        buyer: `buyer-${Math.random().toString(36).slice(2, 12)}-${n + m}`,
        quantity: 1,
        key: keyed ? `key-${n + m}` : null,
      }),
    ),
  );
}
const hot = used();
// Wait until the tail is folded into the ledger's tables.
const deadline = Date.now() + 120_000;
let folded = hot;
while (Date.now() < deadline) {
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const tail = /doorbuster_ledger_tail_orders (\d+)/.exec(await shop.metrics.registry.metrics());
  folded = used();
  if (tail?.[1] === '0') break;
}
await shop.close();
rmSync(folder, { recursive: true, force: true });
console.log(JSON.stringify({ duringMb: (hot - before) / 1e6, afterMb: (folded - before) / 1e6 }));
