// A worker that stops after committing one batch: it settles and acknowledges nothing, and reports that.
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { QUICK } from './webhooks.ts';

const [redis, database, prefix] = process.argv.slice(2) as [string, string, string];
const runtime = systemRuntime();
const ledger = await openSqlLedger(database, runtime, { migrate: false, exclusive: false });
ledger.outgoingEvents = async () => [];
const commit = ledger.commitOrders.bind(ledger);
ledger.commitOrders = async (batch: readonly OrderMessage[]) => {
  await commit(batch);
  console.log(`committed ${batch.length}`);
  return new Promise(() => {});
};
await DistributedShop.open(
  ledger,
  {
    ...{ redis, prefix, answerWithinMs: 100, pipeMax: 1000, worker: true, writerLock: 'off' },
    life: { payments: { sandbox: false }, webhooks: QUICK },
  },
  runtime,
);
console.log('works');
setInterval(() => {}, 1000);
