// The load, in its own process so that it does not measure itself. Raw sockets and HTTP/1.1 keep-alive with one request in
// flight per connection: the cheapest possible client. Reads its job from argv, prints one line of JSON.
import { connect, type Socket } from 'node:net';
import { createSigner } from 'fast-jwt';

export interface Job {
  port: number;
  path: string;
  body: string;
  secret: string;
  connections: number;
  durationMs: number;
  /** Distinct buyers, in random order, signed before the clock starts. */
  buyers: number;
  /** Send a new Idempotency-Key with each request. */
  keyed: boolean;
  /** Start again with the first buyer (for refusals); otherwise the load ends when all have ordered. */
  again: boolean;
  expect: number;
  /** If set, the requests above are not measured and not limited in time: one of these per order is measured instead. */
  then?: {
    /** Contains `:order`. */
    path: string;
    body: string;
    expect: number;
  };
}

export interface Result {
  requests: number;
  perSecond: number;
  p50Ms: number;
  p99Ms: number;
  unexpected: number;
  statuses: Record<string, number>;
}

/** With a channel to its parent the load runs in slices: each message is a number of milliseconds, each answer a slice. */
export interface Slice {
  done: number;
  ms: number;
  /** Unexpected answers so far. */
  unexpected: number;
}

const job = JSON.parse(process.argv[2]!) as Job;
const sign = createSigner({ key: job.secret, algorithm: 'HS256' });
const run = process.pid.toString(36) + Math.floor(performance.now() * 1000).toString(36);

function post(path: string, body: string, token: string, key: string | null): Buffer {
  return Buffer.from(
    `POST ${path} HTTP/1.1\r\nhost: 127.0.0.1:${job.port}\r\ncontent-type: application/json\r\n` +
      `authorization: Bearer ${token}\r\n${key === null ? '' : `idempotency-key: ${key}\r\n`}` +
      `content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
}

let requests: Buffer[] = [];
const tokens: string[] = [];
for (let n = 0; n < job.buyers; n++) {
  // A random name, so that buyers do not come in the order of the ledger's index.
  const buyer = `${Math.random().toString(36).slice(2, 12)}-${run}-${n}`;
  tokens.push(sign({ sub: buyer }));
  requests.push(post(job.path, job.body, tokens[n]!, job.keyed ? `key-${run}-${n}` : null));
}

let next = 0;
let done = 0;
let running = true;
let expected = job.expect;
let statuses: Record<string, number> = {};
const latencies = new Float64Array(2_000_000);
/** With `then`: the order ids of the first requests, by the request's number. */
const orders: (string | null)[] | null = job.then === undefined ? null : [];
let collecting = orders !== null;

function session(socket: Socket, finished: () => void): void {
  let sentAt = 0;
  let sent = 0;
  let pending = '';
  const send = (): void => {
    if (!running || (next >= requests.length && !job.again)) {
      finished();
      return;
    }
    sentAt = performance.now();
    sent = next++;
    socket.write(requests[sent % requests.length]!);
  };
  socket.setNoDelay(true);
  socket.removeAllListeners('data').on('data', (chunk) => {
    pending = pending === '' ? chunk.toString('latin1') : pending + chunk.toString('latin1');
    const head = pending.indexOf('\r\n\r\n');
    if (head < 0) return;
    const at = pending.indexOf('content-length: ');
    const length = Number.parseInt(pending.slice(at + 16, at + 24), 10);
    if (pending.length < head + 4 + length) return;
    const status = pending.slice(9, 12);
    statuses[status] = (statuses[status] ?? 0) + 1;
    if (done < latencies.length) latencies[done] = performance.now() - sentAt;
    done++;
    if (collecting) orders![sent] = /"id":"(\d+)"/.exec(pending)?.[1] ?? null;
    pending = '';
    send();
  });
  socket.removeAllListeners('error').on('error', () => {
    statuses['error'] = (statuses['error'] ?? 0) + 1;
    finished();
  });
  send();
}

const sockets = await Promise.all(
  Array.from(
    { length: job.connections },
    () =>
      new Promise<Socket>((resolve, reject) => {
        const socket = connect(job.port, '127.0.0.1', () => resolve(socket));
        socket.on('error', reject);
      }),
  ),
);
const everyone = (): Promise<unknown> =>
  Promise.all(sockets.map((socket) => new Promise<void>((resolve) => session(socket, resolve))));
if (job.then !== undefined) {
  await everyone();
  if (statuses[job.expect] !== job.buyers) throw new Error(`orders were not all placed: ${JSON.stringify(statuses)}`);
  const { path, body, expect } = job.then;
  requests = orders!.map((id, n) =>
    post(path.replace(':order', id!), body, tokens[n]!, job.keyed ? `then-${run}-${n}` : null),
  );
  // Shuffle, so that orders do not come in the order of the ledger's index.
  for (let at = requests.length - 1; at > 0; at--) {
    const other = Math.floor(Math.random() * (at + 1));
    [requests[at], requests[other]] = [requests[other]!, requests[at]!];
  }
  [next, expected, collecting] = [0, expect, false];
  [done, statuses] = [0, {}];
}

/** Runs for `ms`, or until every request is answered. */
async function runFor(ms: number): Promise<Slice> {
  const [doneBefore, startedAt] = [done, performance.now()];
  running = true;
  const timer = setTimeout(() => {
    running = false;
  }, ms);
  await everyone();
  clearTimeout(timer);
  return { done: done - doneBefore, ms: performance.now() - startedAt, unexpected: unexpected() };
}

function unexpected(): number {
  return done - (statuses[expected] ?? 0) + (statuses['error'] ?? 0);
}

if (process.send !== undefined) {
  // The parent starts each slice.
  process.on('message', async (ms: number) => process.send!(await runFor(ms)));
  process.on('disconnect', () => process.exit(0));
  process.send('ready');
} else {
  const { ms: tookMs } = await runFor(job.durationMs);
  const sorted = latencies.subarray(0, Math.min(done, latencies.length)).sort();
  const result: Result = {
    requests: done,
    perSecond: Math.round((done / tookMs) * 1000),
    p50Ms: Number(sorted[Math.floor(sorted.length * 0.5)]?.toFixed(2)),
    p99Ms: Number(sorted[Math.floor(sorted.length * 0.99)]?.toFixed(2)),
    unexpected: unexpected(),
    statuses,
  };
  console.log(JSON.stringify(result));
  process.exit(0);
}
