// The shop of one process, with its gate and pipe in memory, on the same database. The crowd runs in the same process, because
// from outside it could only use HTTP.
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { jobOf, nowMs, serve } from './child.ts';
import type { SaleOf } from './crowd.ts';
import { buyerOf, type Drip, drip, type Flood, flood, ITEM, keyOf, type Place, type Times, Track } from './pace.ts';
import { listenAtLedger } from './worker.ts';

export interface AloneJob {
  readonly database: string;
  readonly sales: readonly SaleOf[];
}

const { database, sales } = jobOf<AloneJob>();
const runtime = systemRuntime();
const track = new Track();
const counts = { batches: 0, parcels: 0, commitMs: 0 };
const ledger = await openSqlLedger(database, runtime, { migrate: false, exclusive: true });
listenAtLedger(ledger, track, counts);
const shop = await EmbeddedShop.on(ledger, runtime);
let told = 0;
const buyers: string[] = [];
const place: Place = async (n) => {
  const { saleId } = sales[n % sales.length]!;
  if (track.on) track.mark('sent', n, nowMs());
  const placed = await shop.place({ saleId, itemCode: ITEM, buyer: buyers[n]!, quantity: 1, key: keyOf(n) });
  if (!placed.ok) throw new Error(`order ${n}: ${placed.code}`);
  if (track.on) track.mark('told', n, nowMs());
  told++;
};
// The gate decides at once.
const withVerdict = (times: Times): Times => (times.sent ? { ...times, verdict: times.sent } : times);

serve({
  async meet({ from, count }: Flood | Drip) {
    for (let n = from; n < from + count; n++) buyers[n] = buyerOf(n);
  },
  flood: (job: Flood) => flood(job, place),
  async drip(job: Drip) {
    track.start(job);
    await drip(job, place);
  },
  told: async () => told,
  times: async () => withVerdict(track.stop()),
  counts: async () => ({ ...counts }),
  end: () => shop.close(),
});
