import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { createSigner } from 'fast-jwt';

/**
 * What watching numbered seats costs: bytes and processor time of a server for each change, with many watchers of one sale.
 *
 *     node bench/seat-watchers.ts [watchers = 10000] [orders a second = 20] [seconds = 10]
 *
 * One embedded server in a process of its own, a sale of 20 000 seats in 400 rows, watchers on the loopback. Orders take two seats
 * each. The processor time is that of the server's process, the same without orders subtracted.
 */
const [watchers = 10_000, rate = 20, seconds = 10] = process.argv.slice(2).map(Number);
const SEATS = { rows: 400, inRow: 50 };
const ADMIN = 'bench-admin-key';
const SECRET = 'bench-auth-secret-of-at-least-32-bytes';
const TICKS_A_SECOND = 100;

const data = mkdtempSync(join(tmpdir(), 'doorbuster-'));
const server = spawn(
  process.execPath,
  [fileURLToPath(new URL('../bin/doorbuster.js', import.meta.url)), 'serve', '--port', '0', '--data', data],
  {
    env: {
      ...process.env,
      ...{ DOORBUSTER_ADMIN_KEY: ADMIN, DOORBUSTER_AUTH_SECRET: SECRET, LOG_LEVEL: 'warn', RATE_LIMIT_BUYER: '100000' },
      ...{ SSE_MAX: '50000', SSE_MAX_PER_ADDRESS: '50000', CONNECTIONS_MAX: '50000', EVENT_LOOP_DELAY_MAX_MS: '60000' },
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  },
);
const url = await new Promise<string>((resolve) => {
  let text = '';
  server.stdout.on('data', (chunk: Buffer) => {
    text += chunk;
    const found = /http:\/\/127\.0\.0\.1:\d+/.exec(text);
    if (found) resolve(found[0]);
  });
});

/** Of the server, in milliseconds. */
function cpuMs(): number {
  const fields = readFileSync(`/proc/${server.pid}/stat`, 'utf8').split(') ')[1]!.split(' ');
  return ((Number(fields[11]) + Number(fields[12])) * 1000) / TICKS_A_SECOND;
}

// Whatever happens here, the server does not outlive it.
process.on('exit', () => server.kill('SIGKILL'));

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function call(
  method: string,
  path: string,
  bearer: string,
  body?: unknown,
): Promise<{ id: string; status: unknown }> {
  const answer = await fetch(url + path, {
    method,
    headers: { authorization: `Bearer ${bearer}`, 'content-type': 'application/json' },
    body: JSON.stringify(body ?? {}),
  });
  return (await answer.json()) as { id: string; status: unknown };
}

const sign = createSigner({ key: SECRET, algorithm: 'HS256' });
const seats = Array.from({ length: SEATS.rows }, (_, row) => ({
  section: 'Hall',
  row: `${row + 1}`,
  from: 1,
  to: SEATS.inRow,
}));
const price = { amount: 68_000, currency: 'CNY' };
const sale = await call('POST', '/v1/sales', ADMIN, {
  ...{ name: 'Hall', opensAt: '2020-01-01T00:00:00Z', closesAt: '2099-01-01T00:00:00Z', perBuyer: 100 },
  items: [{ code: 'hall', name: 'Hall', price, seats }],
});

const { port } = new URL(url);
let bytes = 0;
let events = 0;
let open = 0;
const beforeMs = cpuMs();
for (let at = 0; at < watchers; at++) {
  const socket = connect(Number(port), '127.0.0.1', () => {
    socket.write(`GET /v1/sales/${sale.id}/events HTTP/1.1\r\nHost: x\r\n\r\n`);
  });
  const isFirst = at === 0;
  let heard = false;
  socket.on('data', (chunk) => {
    bytes += chunk.length;
    if (!heard) open++;
    heard = true;
    if (isFirst) events += chunk.toString('latin1').split('event: seats').length - 1;
  });
  if (at % 200 === 199) await pause(20);
}
while (open < watchers) await pause(100);
await pause(1000);
const joined = { bytes: bytes / watchers, ms: (cpuMs() - beforeMs) / watchers };

async function phase(ordersASecond: number): Promise<{ bytes: number; ms: number; events: number; orders: number }> {
  await pause(1000);
  [bytes, events] = [0, 0];
  const startedMs = cpuMs();
  let orders = 0;
  for (const untilMs = performance.now() + seconds! * 1000; performance.now() < untilMs; ) {
    if (ordersASecond === 0) await pause(100);
    else {
      await call('POST', `/v1/sales/${sale.id}/orders`, sign({ sub: `buyer-${Math.random()}` }), {
        item: 'hall',
        quantity: 2,
        together: true,
      });
      orders++;
      await pause(1000 / ordersASecond - 2);
    }
  }
  await pause(500);
  return { bytes, ms: cpuMs() - startedMs, events, orders };
}

const still = await phase(0);
const busy = await phase(rate!);
const ms = busy.ms - still.ms;
console.log(
  JSON.stringify(
    {
      ...{ watchers, seats: SEATS.rows * SEATS.inRow, seconds },
      snapshotBytes: Math.round(joined.bytes),
      joinMsOfCpu: Number(joined.ms.toFixed(3)),
      stillCpuShare: Number((still.ms / (seconds! * 1000)).toFixed(3)),
      orders: busy.orders,
      seatEvents: busy.events,
      bytesAWatcherAndOrder: Math.round(busy.bytes / watchers! / busy.orders),
      cpuMsAnOrder: Number((ms / busy.orders).toFixed(2)),
      cpuMicrosecondsAWatcherAndEvent: Number(((ms * 1000) / watchers! / Math.max(busy.events, 1)).toFixed(2)),
      cpuShare: Number((ms / (seconds! * 1000)).toFixed(3)),
    },
    null,
    2,
  ),
);
server.kill('SIGTERM');
await new Promise((resolve) => server.on('close', resolve));
rmSync(data, { recursive: true, force: true });
process.exit(0);
