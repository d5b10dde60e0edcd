// The load: a process of its own, so that it does not measure itself. Raw sockets and HTTP/1.1 keep-alive, one request
// in flight on each connection, the least a client can cost. Reads its job from argv, prints one line of JSON.
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
  /** Each request with an Idempotency-Key of its own. */
  keyed: boolean;
  /** Requests go round the buyers again (for refusals); otherwise the load ends when all have ordered. */
  again: boolean;
  expect: number;
}

export interface Result {
  requests: number;
  perSecond: number;
  p50Ms: number;
  p99Ms: number;
  unexpected: number;
  statuses: Record<string, number>;
}

const job = JSON.parse(process.argv[2]!) as Job;
const sign = createSigner({ key: job.secret, algorithm: 'HS256' });
const run = process.pid.toString(36) + Math.floor(performance.now() * 1000).toString(36);

const requests: Buffer[] = [];
for (let n = 0; n < job.buyers; n++) {
  // A random name: buyers do not come in the order of the ledger's index.
  const buyer = `${Math.random().toString(36).slice(2, 12)}-${run}-${n}`;
  requests.push(
    Buffer.from(
      `POST ${job.path} HTTP/1.1\r\nhost: 127.0.0.1:${job.port}\r\ncontent-type: application/json\r\n` +
        `authorization: Bearer ${sign({ sub: buyer })}\r\n${job.keyed ? `idempotency-key: key-${run}-${n}\r\n` : ''}` +
        `content-length: ${Buffer.byteLength(job.body)}\r\n\r\n${job.body}`,
    ),
  );
}

let next = 0;
let done = 0;
let running = true;
const statuses: Record<string, number> = {};
const latencies = new Float64Array(2_000_000);

function session(socket: Socket, finished: () => void): void {
  let sentAt = 0;
  let pending = '';
  const send = (): void => {
    if (!running || (next >= requests.length && !job.again)) {
      socket.end();
      finished();
      return;
    }
    sentAt = performance.now();
    socket.write(requests[next++ % requests.length]!);
  };
  socket.setNoDelay(true);
  socket.on('data', (chunk) => {
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
    pending = '';
    send();
  });
  socket.on('error', () => {
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
const startedAt = performance.now();
setTimeout(() => {
  running = false;
}, job.durationMs).unref();
await Promise.all(sockets.map((socket) => new Promise<void>((resolve) => session(socket, resolve))));
const tookMs = performance.now() - startedAt;

const sorted = latencies.subarray(0, Math.min(done, latencies.length)).sort();
const result: Result = {
  requests: done,
  perSecond: Math.round((done / tookMs) * 1000),
  p50Ms: Number(sorted[Math.floor(sorted.length * 0.5)]?.toFixed(2)),
  p99Ms: Number(sorted[Math.floor(sorted.length * 0.99)]?.toFixed(2)),
  unexpected: done - (statuses[String(job.expect)] ?? 0) + (statuses['error'] ?? 0),
  statuses,
};
console.log(JSON.stringify(result));
process.exit(0);
