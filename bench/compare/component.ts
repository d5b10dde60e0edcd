// Measures a part without HTTP, in slices: component.ts <gate | ledger> <checkout> <url>, with the load's kind of channel.
// This process is the client of a Redis or database that runs elsewhere, and counts its throughput. All sides are measured by
// the new tree's copy of this file, through their own adaptors.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Slice } from '../load/load.ts';
import type { MeasuredGate } from './adaptors/gate.ts';
import type { MeasuredLedger } from './adaptors/ledger.ts';

const [part, checkout, url] = process.argv.slice(2) as [string, string, string];
const GATE_CALLERS = 1024;
const BATCH = 512;
const WRITERS = 2;

let lastOrder = 7_000_000_000_000_000_000n;
/** Each buyer orders once, under a random name: not in the order of any index. */
function nextOrder() {
  const orderId = String(++lastOrder);
  return { orderId, buyer: `buyer-${Math.random().toString(36).slice(2, 12)}-${orderId}`, key: `key-${orderId}` };
}

async function load<T>(): Promise<T> {
  const file = join(checkout, 'bench/compare/adaptors', `${part}.ts`);
  return ((await import(pathToFileURL(file).href)) as { open(url: string): Promise<T> }).open(url);
}

/** Orders per call, concurrent calls, and the call. */
async function openPart(): Promise<{ callers: number; orders: number; call: () => Promise<void> }> {
  if (part === 'gate') {
    const gate = await load<MeasuredGate>();
    return { callers: GATE_CALLERS, orders: 1, call: () => gate.admit(nextOrder()) };
  }
  const ledger = await load<MeasuredLedger>();
  const call = (): Promise<void> => ledger.commit(Array.from({ length: BATCH }, nextOrder));
  return { callers: WRITERS, orders: BATCH, call };
}

const { callers, orders, call } = await openPart();
process.on('message', async (forMs: number) => {
  let done = 0;
  const startedMs = performance.now();
  await Promise.all(
    Array.from({ length: callers }, async () => {
      while (performance.now() - startedMs < forMs) {
        await call();
        done += orders;
      }
    }),
  );
  process.send!({ done, ms: performance.now() - startedMs, unexpected: 0 } satisfies Slice);
});
process.on('disconnect', () => process.exit(0));
process.send!('ready');
