// The honest crowd's process: so many connections, each a buyer after the other who places an order with a key, and now
// and then pays or cancels it. Nobody gives up: an order that was refused for overload or whose answer was lost is
// asked for again with the same key. Every order that was told is written down.
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
  /** Orders that were told so far, each once. */
  accepted: number;
  /** Answers that were no order (429, 5xx, lost connections): each was tried again. */
  refused: number;
  /** Answers that nobody should get, as text. */
  strange: string[];
  /** From the first try to the order, since the last mark. */
  p50Ms: number;
  p99Ms: number;
}

export interface ToldOrder {
  id: string;
  buyer: string;
  /** The last that was heard of it. */
  status: string;
  /** A move was asked for, and no answer came. */
  unsure: boolean;
}

export interface HonestRecord {
  told: ToldOrder[];
  /** Whose orders may or may not be there: the run ended before they heard. */
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

/** The first answer that says something about the order; null at the end of the run. */
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
  // A payment whose answer was late is pending until the shop has asked the provider.
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
