/**
 * One process of a shop whose bank leaves payments pending and then hangs, for test/faults/pending-payments.test.ts. A process
 * of its own, since what is tested is that it does not freeze. Reads a job as its only argument, says what it saw as JSON.
 */

import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import type { Shop } from '../../src/engine/shop.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderRecord } from '../../src/model/order.ts';
import type { PaymentProvider, ProviderState } from '../../src/payments/port.ts';
import { sleep, until } from './fault-wait.ts';
import { createSaleIn } from './new-sale.ts';

export interface PendingJob {
  /** A folder, or a database with the Redis and the prefix of its shop. */
  readonly store:
    | { readonly folder: string }
    | { readonly url: string; readonly redis: string; readonly prefix: string };
  /** Payments that the bank leaves pending; none: the process is a second one, and goes on with what it finds. */
  readonly pending: number;
  readonly unpaid: number;
  readonly payWithinSeconds: number;
  /** So long, from the start of the process on, the bank answers no question; null: for ever. */
  readonly hangsMs: number | null;
  /** So long, after the first orders were over, it goes on with new ones. */
  readonly goesOnMs: number;
  /** Then it waits until no order of any sale is left that is not over. */
  readonly settles: boolean;
}

export interface PendingReport {
  readonly openedMs: number;
  /** Unpaid orders that were watched, and how late the last of them expired, by the ledger's clock. */
  readonly expired: number;
  readonly lateMsMax: number;
  /** The longest that the event loop stood still, without the commits' own time. */
  readonly stallMsMax: number;
  /** How long after its order's time a payment at another provider was settled. */
  readonly otherLateMs: number;
  readonly asked: number;
  /** Orders with a pending payment that are still reserved. */
  readonly stranded: number;
  /** With `settles`: how long after the bank answered again all was settled. */
  readonly settledMs: number;
  /** How long it took to close, where it was not just killed. */
  readonly closedMs: number;
}

const BY = actor('system', 'test');
const PRICE = { amount: 100, currency: 'CNY' };
const job = JSON.parse(process.argv[2]!) as PendingJob;

let asked = 0;

/** Captures are pending; questions are answered when it hangs no more. */
function bank(name: string, hangsMs: number | null, say: (attemptId: string) => ProviderState): PaymentProvider {
  const answer = async (attemptId: string): Promise<ProviderState> => {
    if (name === 'bank') asked++;
    if (hangsMs === null) return await new Promise<never>(() => undefined);
    await sleep(Math.max(beganMs + hangsMs - performance.now(), 5));
    return say(attemptId);
  };
  return {
    name,
    capture: async ({ attemptId }) => ({ state: 'pending', reference: `${name}-${attemptId}`, redirectUrl: null }),
    query: answer,
    void: async (attemptId) => ({ ...(await answer(attemptId)), state: 'voided' }),
    refund: async () => ({ reference: null }),
  };
}

const beganMs = performance.now();
const providers = [
  bank('bank', job.hangsMs, (id) => ({ state: 'pending', reference: `bank-${id}`, redirectUrl: null })),
  bank('other', 0, (id) => ({ state: 'captured', reference: `other-${id}`, amount: PRICE })),
];

async function open(): Promise<{ shop: Shop; ledger: Ledger }> {
  const runtime = systemRuntime();
  const life = { payments: { sandbox: false, providers } };
  if ('folder' in job.store) {
    const ledger = SqliteLedger.open(job.store.folder, runtime);
    return { ledger, shop: await EmbeddedShop.on(ledger, runtime, life as never) };
  }
  const { url, redis, prefix } = job.store;
  const ledger = await openSqlLedger(url, runtime, { migrate: true, exclusive: false });
  const options = { redis, prefix, answerWithinMs: 10_000, pipeMax: 100_000, worker: true, writerLock: 'off', life };
  return { ledger, shop: await DistributedShop.open(ledger, options as never, runtime) };
}

/**
 * The longest that a timer was late by this process' own doing: time that it did not have the processor, or that a commit
 * took, does not count.
 */
function watchLoop(shop: Shop): () => number {
  const STEP_MS = 5;
  let longest = 0;
  let last = { atMs: performance.now(), cpu: process.cpuUsage(), blockedMs: shop.blockedMs };
  setInterval(() => {
    const cpu = process.cpuUsage(last.cpu);
    const atMs = performance.now();
    const { blockedMs } = shop;
    const stallMs = Math.min(atMs - last.atMs - STEP_MS, (cpu.user + cpu.system) / 1000) - (blockedMs - last.blockedMs);
    longest = Math.max(longest, stallMs);
    last = { atMs, cpu: process.cpuUsage(), blockedMs };
  }, STEP_MS);
  return () => longest;
}

const { shop, ledger } = await open();
const openedMs = performance.now() - beganMs;
const stall = watchLoop(shop);

const { payWithinSeconds } = job;
const items = [{ code: 'voucher', name: 'Voucher', price: PRICE, stock: 100_000 }];
const saleId = await createSaleIn(shop, { payWithinSeconds, items });
let buyers = 0;

async function place(count: number): Promise<OrderRecord[]> {
  const request = () => ({ saleId, itemCode: 'voucher', buyer: `b${buyers++}`, quantity: 1, key: null });
  const placed = await Promise.all(Array.from({ length: count }, () => shop.place(request())));
  return placed.map((one) => {
    if (!one.ok) throw new Error(one.code);
    return one.order;
  });
}

async function pay(orders: readonly OrderRecord[], method: string): Promise<void> {
  const paid = await Promise.all(orders.map(({ id }) => shop.payOrder(id, { method, token: null }, BY)));
  const strange = paid.find((result) => !(result.ok && result.state === 'pending'));
  if (strange) throw new Error(`a payment is not pending: ${JSON.stringify(strange)}`);
}

const LATE_MS_MAX = 30_000;
const SETTLED_MS_MAX = 120_000;
let expired = 0;
let lateMsMax = 0;

/** Until all of them have expired: how late each was stands in the ledger. */
async function untilExpired(orders: readonly OrderRecord[]): Promise<void> {
  const ids = orders.map(({ id }) => id);
  const found = await until('unpaid orders expire', job.payWithinSeconds * 1000 + LATE_MS_MAX, async () => {
    const stored = [...(await ledger.storedAmong(ids)).values()];
    return stored.every(({ status }) => status === 'expired') && stored;
  });
  for (const { updatedAtMs, expiresAtMs } of found) lateMsMax = Math.max(lateMsMax, updatedAtMs - expiresAtMs!);
  expired += found.length;
}

const pending: OrderRecord[] = [];
// Some at a time: how many a busy machine takes at once is not what is tested here.
while (pending.length < job.pending) {
  const some = await place(Math.min(job.pending - pending.length, 100));
  await pay(some, 'bank');
  pending.push(...some);
}
const [elsewhere] = await place(1);
await pay([elsewhere!], 'other');
const unpaid = await place(job.unpaid);
const watched = [untilExpired(unpaid)];
const paid = until('a payment elsewhere is settled', payWithinSeconds * 1000 + LATE_MS_MAX, async () => {
  const order = await ledger.getOrder(elsewhere!.id);
  return order?.status === 'paid' && order.updatedAtMs - order.expiresAtMs!;
});
await watched[0];
const endMs = performance.now() + job.goesOnMs;
while (performance.now() < endMs) {
  watched.push(untilExpired(await place(5)));
  await sleep(500);
}
await Promise.all(watched);
const otherLateMs = await paid;
if (job.settles) {
  await until('every payment is settled', SETTLED_MS_MAX, async () => {
    return (await ledger.listOrders({ status: 'reserved' }, { limit: 1, before: null })).length === 0;
  });
}
const settledMs = performance.now() - beganMs - (job.hangsMs ?? 0);
const stored = [...(await ledger.storedAmong(pending.map(({ id }) => id))).values()];
const stranded = stored.filter(({ status }) => status === 'reserved').length;
const closesMs = performance.now();
// What leads in Redis leads on until its lease is over when it is killed: that is not what is tested here.
if (!('folder' in job.store)) await shop.close();
const closedMs = performance.now() - closesMs;
const report: PendingReport = {
  openedMs,
  expired,
  lateMsMax,
  stallMsMax: stall(),
  otherLateMs,
  asked,
  stranded,
  settledMs,
  closedMs,
};
console.log(JSON.stringify(report));
process.kill(process.pid, 'SIGKILL');
