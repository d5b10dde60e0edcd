// A Redis that is further away: a proxy that passes on every chunk `delayUs` later, in both directions. A process of its own,
// run by away.ts with the port of the real server and the delay; prints where it listens.
//
// A timer of Node is too coarse (1 ms), and a loop that spins would take one of the machine's two cores from those who are
// measured. So while something is queued the process sleeps in short slices, and looks for new data in between.
import { writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

const [port, delayUs] = process.argv.slice(2).map(Number) as [number, number];
const SLICE_MS = 0.02;

interface Chunk {
  readonly dueMs: number;
  readonly to: Socket;
  readonly data: Buffer;
}

/** In the order of arrival, which is the order they are due in. */
let queue: Chunk[] = [];
let turning = false;
const never = new Int32Array(new SharedArrayBuffer(4));

try {
  // Linux lets a sleep last 50 µs longer than asked for; this process asks for the exact time.
  writeFileSync('/proc/self/timerslack_ns', '1');
} catch {
  // Elsewhere the delay is less even: away.ts prints what a PING takes.
}

function turn(): void {
  const nowMs = performance.now();
  let sent = 0;
  for (; sent < queue.length && queue[sent]!.dueMs <= nowMs; sent++) queue[sent]!.to.write(queue[sent]!.data);
  if (sent > 0) queue = queue.slice(sent);
  if (queue.length === 0) {
    turning = false;
    return;
  }
  Atomics.wait(never, 0, 0, Math.min(SLICE_MS, queue[0]!.dueMs - nowMs));
  setImmediate(turn);
}

function passOn(from: Socket, to: Socket): void {
  from.setNoDelay(true);
  from.on('data', (data) => {
    queue.push({ dueMs: performance.now() + delayUs / 1000, to, data });
    if (turning) return;
    turning = true;
    setImmediate(turn);
  });
  from.on('error', () => to.destroy());
  from.on('close', () => to.destroy());
}

const server = createServer((client) => {
  const redis = connect(port, '127.0.0.1');
  passOn(client, redis);
  passOn(redis, client);
});
server.listen(0, '127.0.0.1', () => console.log(`127.0.0.1:${(server.address() as AddressInfo).port}`));
