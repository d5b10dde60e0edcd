// The ledger's own throughput, without gate and pipe: one process that writes batches.
import { systemRuntime } from '../../src/base/runtime.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { open } from '../baselines/ledger-mysql.ts';
import { inBatches, Orders, type Way } from '../ledger.ts';
import { jobOf, serve } from './child.ts';
import type { SaleOf } from './crowd.ts';

export interface FloorJob {
  readonly database: string;
  readonly sale: SaleOf;
}

export interface FloorAsk extends Way {
  readonly bare: boolean;
  readonly durationMs: number;
}

const { database, sale } = jobOf<FloorJob>();
const ledger = await openSqlLedger(database, systemRuntime(), { migrate: false, exclusive: false });
const floors = await open(database);
const orders = new Orders(sale.saleId, sale.itemId);

serve({
  write: ({ bare, durationMs, ...way }: FloorAsk) =>
    inBatches(orders, way, durationMs, (batch) => (bare ? floors.insertAll(batch) : ledger.commitOrders(batch))),
  async end() {
    await floors.end();
    await ledger.close();
  },
});
