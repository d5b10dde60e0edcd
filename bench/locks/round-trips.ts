// The physical limit of a hand-over: how often a second one client can ask Redis for nothing (a GET of a key that is not
// there) and hear the answer, alone and without a lock's own work. It keeps its event loop turning meanwhile, as spin-wait.ts
// does. A process of its own, run by ../locks.ts with the port and the milliseconds; prints the rate.
import { once } from 'node:events';
import { connect } from 'node:net';

const [port, durationMs] = process.argv.slice(2).map(Number) as [number, number];
const TURNS_MAX = 64;
const GET = '*2\r\n$3\r\nGET\r\n$4\r\nnone\r\n';
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

const socket = connect(port, '127.0.0.1').setNoDelay(true);
await once(socket, 'connect');
let answered = 0;
let left = 0;

function turn(): void {
  if (--left > 0) setImmediate(turn);
}

function ask(): void {
  const asleep = left <= 0;
  left = TURNS_MAX;
  socket.write(GET);
  if (asleep) setImmediate(turn);
}

socket.on('data', (answer) => {
  if (answer[0] !== 0x24) throw new Error(`Redis answered ${answer.toString('latin1')}`);
  answered++;
  ask();
});
ask();
await pause(durationMs / 3);
const [from, fromMs] = [answered, performance.now()];
await pause(durationMs);
console.log(((answered - from) * 1000) / (performance.now() - fromMs));
process.exit(0);
