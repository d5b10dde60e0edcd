// The physical limit of a hand-over: how often a second one client can ask Redis for nothing (a GET of a key that is not
// there) and hear the answer, staying awake meanwhile as our locks do. A process of its own, run by ../locks.ts with the
// port and the milliseconds; prints the rate.
import { once } from 'node:events';
import { connect } from 'node:net';

const [port, durationMs] = process.argv.slice(2).map(Number) as [number, number];
const ASK = '*2\r\n$3\r\nGET\r\n$4\r\nnone\r\n';
const TURNS_MAX = 64;

const socket = connect(port, '127.0.0.1').setNoDelay(true);
await once(socket, 'connect');
let answered = 0;
let left = 0;
const turn = (): void => {
  if (--left > 0) setImmediate(turn);
};
const ask = (): void => {
  const asleep = left <= 0;
  left = TURNS_MAX;
  socket.write(ASK);
  if (asleep) setImmediate(turn);
};
socket.on('data', () => {
  answered++;
  ask();
});
ask();
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
await pause(durationMs / 3);
const [from, fromMs] = [answered, performance.now()];
await pause(durationMs);
console.log(((answered - from) * 1000) / (performance.now() - fromMs));
process.exit(0);
