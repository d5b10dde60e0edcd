// The honest crowd's process. On each connection one buyer after the other places an order with a key, and now and then pays
// or cancels it. Buyers do not give up: after an overload or a lost answer they retry with the same key. Every order that was
// answered is recorded.
import { writeFileSync } from 'node:fs';
import { ConnectionLost, CrowdClient, type CrowdReply, type CrowdRequest } from '../crowd-client.ts';
import { HONEST_ADDRESS } from './attacker.ts';

export interface HonestJob {
  url: string;
  saleId: string;
  connections: number;
  thinkMs: number;
}

export interface HonestMark {
  atMs: number;
  /** Distinct orders that were answered so far. */
  accepted: number;
  /** Answers without an order (429, 5xx, lost connections): each was retried. */
  refused: number;
  /** Answers that the contract does not allow, as text. */
  strange: string[];
  /** From the first attempt to the order, since the last mark. */
  p50Ms: number;
  p99Ms: number;
}

export interface ToldOrder {
  id: string;
  buyer: string;
  /** The last known status. */
  status: string;
  /** A payment or cancellation was sent, and its answer was lost. */
  unsure: boolean;
}

export interface HonestRecord {
  told: ToldOrder[];
  /** Buyers whose order may or may not exist: the run ended before the answer. */
  unheard: string[];
}

const RETRY_MS = 50;
const STRANGE_MAX = 5;

const job = JSON.parse(process.argv[2]!) as HonestJob;
const client = new CrowdClient(job.url, job.connections, HONEST_ADDRESS);
const told: ToldOrder[] = [];
const strange: string[] = [];
const unheard = new Set<string>();
let latencies: number[] = [];
let refused = 0;
let running = true;
let buyers = 0;

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Retries until an answer is about the order itself; null at the end of the run. */
async function insist(request: CrowdRequest): Promise<CrowdReply | null> {
  while (running) {
    try {
      const reply = await client.send(request);
      if (reply.status < 500 && reply.status !== 429 && reply.status !== 408) return reply;
    } catch (error) {
      if (!(error instanceof ConnectionLost)) throw error;
    }
    refused++;
    await sleep(RETRY_MS);
  }
  return null;
}

function wonder(what: string, { status, body }: CrowdReply): void {
  if (strange.length < STRANGE_MAX) strange.push(`${what}: ${status} ${JSON.stringify(body)}`);
}

async function visit(): Promise<void> {
  const n = buyers++;
  const buyer = `honest-${n}`;
  unheard.add(buyer);
  const startedMs = performance.now();
  const body = { item: 'voucher', quantity: 1 };
  const placed = await insist({ path: `/v1/sales/${job.saleId}/orders`, buyer, key: `place-${n}`, body });
  if (placed === null) return;
  unheard.delete(buyer);
  if (placed.status !== 201 && placed.status !== 202) return wonder('an order', placed);
  latencies.push(performance.now() - startedMs);
  const order: ToldOrder = { id: placed.body.id, buyer, status: placed.body.status, unsure: false };
  told.push(order);
  const move = n % 8 === 0 ? 'pay' : n % 8 === 1 ? 'cancel' : null;
  if (move === null || placed.status !== 201) return;
  const moving = { path: `/v1/orders/${order.id}/${move}`, buyer, key: `${move}-${n}` };
  order.unsure = true;
  const moved = await insist({ ...moving, body: move === 'pay' ? { method: 'sandbox' } : {} });
  if (moved === null) return;
  // If the provider answered late, the payment is pending until the shop has asked it.
  if (move === 'pay' && (moved.status === 202 || moved.body.code === 'payment_in_progress')) return;
  if (moved.status !== 200) return wonder(move, moved);
  order.unsure = false;
  order.status = moved.body.status;
}

function mark(): HonestMark {
  const sorted = latencies.sort((a, b) => a - b);
  latencies = [];
  const at = (part: number): number => Number((sorted[Math.floor(sorted.length * part)] ?? Number.NaN).toFixed(1));
  return { atMs: performance.now(), accepted: told.length, refused, strange, p50Ms: at(0.5), p99Ms: at(0.99) };
}

const loops = Array.from({ length: job.connections }, async () => {
  while (running) {
    await visit();
    await sleep(job.thinkMs);
  }
});

process.on('message', async (message: 'mark' | { finish: string }) => {
  if (message === 'mark') {
    process.send!(mark());
    return;
  }
  running = false;
  await Promise.race([Promise.all(loops), sleep(10_000)]);
  client.close();
  writeFileSync(message.finish, JSON.stringify({ told, unheard: [...unheard] } satisfies HonestRecord));
  process.send!(mark());
});
process.on('disconnect', () => process.exit(0));
process.send!('ready');
