import { type ChildProcess, fork } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Order, Sale } from '../../../src/views/present.ts';
import { countFaults, ledgerOrders, limitFaults, oversellFaults } from '../crowd-judge.ts';
import { sleep, until } from '../fault-wait.ts';
import { saleBody, type TestServer, temporaryFolder, track } from '../server.ts';
import type { AttackOrder, AttackReport } from './attack-process.ts';
import { get, HONEST_ADDRESS, type Target } from './attacker.ts';
import type { HonestJob, HonestMark, HonestRecord } from './honest-process.ts';

/** The shop's settings: as in production, without the relaxations of other tests. */
export const HOSTILE_ENV = {
  RATE_LIMIT_BUYER: '20',
  EVENT_LOOP_DELAY_MAX_MS: '250',
  // Fewer than by default, so that an attack that fills it shows within a slice.
  IN_FLIGHT_MAX: '2000',
  PAYMENTS_SANDBOX: 'on',
  PAYMENT_WEBHOOK_SECRET: 'a-webhook-secret-of-32-characters',
  // The attackers' address is a trusted proxy, so that their forged addresses count.
  TRUST_PROXY: '127.0.0.1',
};

export interface Plan {
  /** Pairs of slices: an attack on the bare server, then one on the shop. */
  slices: number;
  bareMs: number;
  attackedMs: number;
  /** Attackers by name; empty: all. */
  only: string[];
}

/** Honest orders per second in the two kinds of slices, and the state of the shop. */
export interface Outcome {
  goodput: { attacked: number; bare: number; ratio: number };
  p99Ms: { attacked: number; bare: number };
  refused: { attacked: number; bare: number };
  /** The longest time from the end of an attack until the shop was ready and accepted an order. */
  recoveryMs: number;
  rssMb: { before: number; max: number };
  /** What the shop logged while it was attacked. */
  logBytes: number;
  attackedMs: number;
  accepted: number;
  attackers: AttackReport;
  strange: string[];
  faults: Record<string, string[]>;
  /** Event streams that an honest address requested and got right after the attack. */
  streams: Streams;
}

interface Streams {
  asked: number;
  opened: number;
  /** The last answer that was not a stream. */
  refusal: string;
}

const CONNECTIONS = 16;
const THINK_MS = 25;
const WARM_UP_MS = 700;
const RSS_EVERY_MS = 200;
/** A shop that has not recovered by then counts as dead. Until then the run goes on, to report how long it took. */
const RECOVERY_MS_MAX = 30_000;
/** Checked when all load has ended. */
const ANSWERS_WITHIN_MS = 10_000;
const STREAMS_ASKED = 20;
/** Long, because a busy machine opens them slowly; a leaked place never comes back. */
const STREAMS_WITHIN_MS = 20_000;
const OWED = 3;
const LISTED_SALES = 10;
const LISTED_ITEMS = 50;

/** Starts a script of this folder with a channel; resolves to its first message. */
async function child<T>(file: string, args: string[] = []): Promise<{ process: ChildProcess; first: T }> {
  const path = fileURLToPath(new URL(file, import.meta.url));
  const started = fork(path, args, { execArgv: [], stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  track(started);
  return { process: started, first: await nextMessage<T>(started) };
}

function nextMessage<T>(from: ChildProcess): Promise<T> {
  return new Promise((resolve, reject) => {
    const ended = (code: number | null): void => reject(new Error(`a process of the stage ended with ${code}`));
    from.once('exit', ended);
    from.once('message', (message) => {
      from.off('exit', ended);
      resolve(message as T);
    });
  });
}

/** Sends a message and waits for the answer. */
function told<T>(process: ChildProcess, message: object | string): Promise<T> {
  const answer = nextMessage<T>(process);
  process.send(message);
  return answer;
}

async function prepare(server: TestServer): Promise<Omit<Target, 'port'>> {
  const sale = async (body: object): Promise<string> => {
    const answer = await server.call('POST', '/v1/sales', { admin: true, body });
    if (answer.status !== 201) throw new Error(`no sale: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body.id as string;
  };
  const base = saleBody({ stock: 1_000_000 });
  const quickSaleId = await sale({ ...base, payWithin: 3 });
  const soldOutId = await sale({ ...base, items: [{ ...base.items[0], stock: 0 }] });
  const owedSaleId = await sale({ ...base, payWithin: 86_400 });
  const items = Array.from({ length: LISTED_ITEMS }, (_, n) => ({ ...base.items[0], code: `item-${n}`, stock: 10 }));
  for (let n = 0; n < LISTED_SALES; n++) await sale({ ...base, items });
  const owed: Target['owed'] = [];
  for (let n = 0; n < OWED; n++) {
    const buyer = `carder-${n}`;
    const body = { item: 'voucher', quantity: 1 };
    const answer = await server.call('POST', `/v1/sales/${owedSaleId}/orders`, { buyer, body });
    if (answer.status !== 201) throw new Error(`no order: ${answer.status}`);
    owed.push({ orderId: answer.body.id, buyer });
  }
  // Created last, so that it is on the first page of every list.
  const saleId = await sale({ ...base, payWithin: 86_400 });
  return { saleId, soldOutId, quickSaleId, owed };
}

/**
 * Runs all attacks at once beside an honest crowd, in slices: the attackers target a bare server, then the shop, at the same
 * rates. So both kinds of slices load the machine alike, and its variations cancel out. Load, attackers, bare server and shop
 * are separate processes.
 */
export async function playHostile(server: TestServer, plan: Plan, say: (line: string) => void): Promise<Outcome> {
  const target = await prepare(server);
  const port = Number(new URL(server.url).port);
  const job: HonestJob = { url: server.url, saleId: target.saleId, connections: CONNECTIONS, thinkMs: THINK_MS };
  const [honest, attackers, bare] = await Promise.all([
    child('honest-process.ts', [JSON.stringify(job)]),
    child('attack-process.ts'),
    child<number>('bare-process.ts'),
  ]);
  const aim = (at: number | null): Promise<AttackReport> =>
    told(attackers.process, {
      target: at === null ? null : { ...target, port: at },
      only: plan.only,
    } satisfies AttackOrder);
  const mark = (): Promise<HonestMark> => told(honest.process, 'mark');

  await sleep(WARM_UP_MS);
  const rss = watchRss(server.process.pid!);
  const sums = { attacked: newSum(), bare: newSum() };
  const totals: AttackReport = {};
  let [recoveryMs, logBytes] = [0, 0];
  let streams: Streams = { asked: STREAMS_ASKED, opened: STREAMS_ASKED, refusal: '' };
  const slice = async (kind: 'attacked' | 'bare', forMs: number): Promise<void> => {
    await aim(kind === 'attacked' ? port : bare.first);
    const before = await mark();
    await sleep(forMs);
    const after = await mark();
    const report = await aim(null);
    add(sums[kind], before, after);
    if (kind === 'attacked') addReport(totals, report);
  };
  const rate = (kind: 'attacked' | 'bare'): string => goodput(sums[kind]).toFixed(0);
  for (let n = 1; n <= plan.slices; n++) {
    await slice('bare', plan.bareMs);
    const loggedBefore = server.output().length;
    await slice('attacked', plan.attackedMs);
    const endedMs = performance.now();
    const rates = (): string =>
      `honest orders/s: ${rate('attacked')} attacked, ${rate('bare')} beside a bare server attacked`;
    await until('the shop is well again after the attack', RECOVERY_MS_MAX, () => isWell(server, target.saleId), rates);
    recoveryMs = Math.max(recoveryMs, performance.now() - endedMs);
    const open = await openStreams(port, target.saleId);
    if (open.opened < streams.opened) streams = open;
    logBytes += server.output().length - loggedBefore;
    say(
      `slice ${n} of ${plan.slices}: ${rates()}; well after at most ${Math.round(recoveryMs)} ms; ${rss.lastMb()} MB`,
    );
  }
  const file = join(temporaryFolder(), 'honest.json');
  const last = await told<HonestMark>(honest.process, { finish: file });
  const rssMb = rss.stop();
  const record = JSON.parse(readFileSync(file, 'utf8')) as HonestRecord;
  for (const { process } of [honest, attackers, bare]) process.disconnect();
  // What the attackers left behind may stop it later, for example expiring payments.
  await until('the shop still answers when all have gone', ANSWERS_WITHIN_MS, () => isWell(server, target.saleId));
  return {
    goodput: {
      attacked: goodput(sums.attacked),
      bare: goodput(sums.bare),
      ratio: goodput(sums.attacked) / goodput(sums.bare),
    },
    p99Ms: { attacked: sums.attacked.p99Ms, bare: sums.bare.p99Ms },
    refused: { attacked: sums.attacked.refused, bare: sums.bare.refused },
    recoveryMs: Math.round(recoveryMs),
    rssMb,
    logBytes,
    attackedMs: sums.attacked.ms,
    accepted: record.told.length,
    attackers: totals,
    strange: last.strange,
    faults: await judge(server, target.saleId, record),
    streams,
  };
}

interface Sum {
  ms: number;
  accepted: number;
  refused: number;
  p99Ms: number;
}

function newSum(): Sum {
  return { ms: 0, accepted: 0, refused: 0, p99Ms: 0 };
}

function add(sum: Sum, before: HonestMark, after: HonestMark): void {
  sum.ms += after.atMs - before.atMs;
  sum.accepted += after.accepted - before.accepted;
  sum.refused += after.refused - before.refused;
  sum.p99Ms = Math.max(sum.p99Ms, after.p99Ms || 0);
}

function goodput({ accepted, ms }: Sum): number {
  return (accepted * 1000) / ms;
}

function addReport(totals: AttackReport, report: AttackReport): void {
  for (const [name, { acts, skipped, answers }] of Object.entries(report)) {
    totals[name] ??= { acts: 0, skipped: 0, answers: {} };
    const total = totals[name];
    total.acts += acts;
    total.skipped += skipped;
    for (const [status, count] of Object.entries(answers)) total.answers[status] = (total.answers[status] ?? 0) + count;
  }
}

function watchRss(pid: number): { lastMb(): number; stop(): { before: number; max: number } } {
  const read = (): number => {
    try {
      return Math.round(Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) / 1024);
    } catch {
      // Not Linux, or the process has ended, which is noticed elsewhere.
      return 0;
    }
  };
  const before = read();
  let [last, max] = [before, before];
  const timer = setInterval(() => {
    last = read();
    max = Math.max(max, last);
  }, RSS_EVERY_MS);
  return {
    lastMb: () => last,
    stop: () => {
      clearInterval(timer);
      return { before, max };
    },
  };
}

/** True if the shop reports that it is ready and answers an ordinary request. */
async function isWell({ url }: TestServer, saleId: string): Promise<boolean> {
  try {
    for (const path of ['/readyz', `/v1/sales/${saleId}`]) {
      const answer = await fetch(url + path, { signal: AbortSignal.timeout(1000) });
      await answer.arrayBuffer();
      if (answer.status !== 200) return false;
    }
    return true;
  } catch {
    // No answer in time.
    return false;
  }
}

/** How many streams an honest address gets. A refused one is requested again: a leaked place never comes back. */
async function openStreams(port: number, saleId: string): Promise<Streams> {
  let refusal = 'no answer';
  const sockets: Socket[] = [];
  const open = (): Promise<boolean> =>
    new Promise((resolve) => {
      const socket = connect({ port, host: '127.0.0.1', localAddress: HONEST_ADDRESS });
      sockets.push(socket);
      // A server that hangs does not answer at all.
      const late = setTimeout(() => socket.destroy(), STREAMS_WITHIN_MS);
      socket.on('connect', () => socket.write(get(`/v1/sales/${saleId}/events`)));
      socket.once('data', (chunk: Buffer) => {
        clearTimeout(late);
        const opened = chunk.toString('latin1').startsWith('HTTP/1.1 200');
        if (!opened) {
          refusal = chunk.toString('latin1').slice(0, 1000);
          socket.destroy();
        }
        resolve(opened);
      });
      socket.on('data', () => undefined);
      socket.on('error', () => undefined);
      socket.on('close', () => {
        clearTimeout(late);
        resolve(false);
      });
    });
  let opened = 0;
  await Promise.all(
    Array.from({ length: STREAMS_ASKED }, () =>
      until('a stream opens', STREAMS_WITHIN_MS, open).then(
        () => opened++,
        () => undefined,
      ),
    ),
  );
  for (const socket of sockets) socket.destroy();
  return { asked: STREAMS_ASKED, opened, refusal };
}

const PATIENCE_MS = 30_000;

/** Checks P1, P2, P3 and P9 of the honest sale, by the API alone. Empty lists: they hold. */
async function judge(
  server: TestServer,
  saleId: string,
  { told, unheard }: HonestRecord,
): Promise<Record<string, string[]>> {
  const saleNow = async (): Promise<Sale> => (await server.call('GET', `/v1/sales/${saleId}`)).body as Sale;
  // Wait until every queued order is decided and the counts include all payments and cancellations.
  await until('nothing is queued', PATIENCE_MS, async () => (await saleNow()).items[0]!.queued === 0).catch(
    () => undefined,
  );
  const orders = await ledgerOrders(server, saleId);
  // Public counts may lag by a second.
  const sale = await until('the counts agree', PATIENCE_MS, async () => {
    const now = await saleNow();
    return [...countFaults(now), ...oversellFaults(now, orders)].length === 0 && now;
  }).catch(saleNow);
  return {
    counts: countFaults(sale),
    oversold: oversellFaults(sale, orders),
    overLimit: limitFaults(orders, sale.perBuyer),
    lost: lossFaults(orders, told, unheard),
  };
}

/** Every answered order is in the list with its last known status; every other order in it belongs to a buyer without an answer. */
function lossFaults(orders: readonly Order[], told: HonestRecord['told'], unheard: readonly string[]): string[] {
  const stored = new Map(orders.map((order) => [order.id, order]));
  const faults: string[] = [];
  for (const { id, buyer, status, unsure } of told) {
    const found = stored.get(id);
    stored.delete(id);
    if (found === undefined) faults.push(`order ${id} of ${buyer} is lost`);
    else if (found.buyer !== buyer) faults.push(`order ${id} of ${buyer} is now of ${found.buyer}`);
    else if (!unsure && found.status !== (status === 'queued' ? 'reserved' : status)) {
      faults.push(`order ${id} was told as ${status} and is ${found.status} ${found.reason ?? ''}`);
    }
  }
  const silent = new Set(unheard);
  for (const { id, buyer } of stored.values()) {
    if (!silent.has(buyer)) faults.push(`order ${id} of ${buyer} is in the ledger, and nobody was told`);
  }
  return faults.slice(0, 10);
}
