/**
 * A flash sale inside your own program: no server, no services, one folder.
 *
 *     npm run example library
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
// In your program: import { createDoorbuster } from 'doorbuster';
import { createDoorbuster } from '../src/index.ts';

// A real shop keeps its folder: { data: './data' }.
const data = mkdtempSync(join(tmpdir(), 'doorbuster-example-'));
const shop = await createDoorbuster({ data });

// Called after the commit: by then the order is on disk.
shop.on('order.reserved', (order) => console.log(`reserved: ${order.buyer} has ${order.quantity} ${order.item}`));

const created = await shop.sales.create({
  name: 'Double Eleven vouchers',
  opensAt: new Date(),
  closesAt: Date.now() + 3_600_000,
  perBuyer: 1,
  items: [{ code: 'voucher-100', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: 2 }],
});
// A refusal is a value, not an exception: the types make you check it.
if (!created.ok) throw new Error(`no sale: ${created.code}`);
const { sale } = created;
console.log(`sale: ${sale.state}, ${sale.items[0]!.free} free`);

// The watcher first gets the state and the counts, then every change.
const stop = await shop.sales.watch(sale.id, (event) => {
  if (event.type === 'state' && event.state === 'sold_out') console.log('watched: sold out');
});

// Three buyers want two vouchers, and Alice clicks twice. The key makes the second click harmless: it returns the
// first order. Without a key it would be refused, since Alice is at her limit.
const clicks = [
  { buyer: 'alice', key: 'click-1' },
  { buyer: 'alice', key: 'click-1' },
  { buyer: 'bob', key: 'click-2' },
  { buyer: 'carol', key: 'click-3' },
];
for (const { buyer, key } of clicks) {
  const placed = await shop.orders.place({ sale: sale.id, buyer, item: 'voucher-100', quantity: 1, key });
  if (!placed.ok) console.log(`refused: ${buyer}, ${placed.code}`);
  else if (placed.replayed) console.log(`again: ${buyer} already has order ${placed.order.id}`);
}

const mine = await shop.orders.list({ buyer: 'alice' });
console.log(`alice has ${mine.data.length} order: ${mine.data[0]!.status}`);

// The watcher is called within a tenth of a second.
await new Promise((resolve) => setTimeout(resolve, 300));
stop?.();

await shop.sales.close(sale.id);
const late = await shop.orders.place({ sale: sale.id, buyer: 'dave', item: 'voucher-100' });
console.log(`late: ${late.ok ? 'sold' : late.code}`);

// Finishes the orders in flight. `await using shop = await createDoorbuster(…)` closes for you.
await shop.close();
rmSync(data, { recursive: true });
