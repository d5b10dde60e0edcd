// The physical limits of a hand-over: how often a second one client can ask Redis and hear the answer, alone, with nothing of a
// lock's own work, staying awake meanwhile as our locks do. Once it asks for nothing (a GET of a key that is not there), once
// it calls the script by which a mutex goes from one waiter to the next. A process of its own, run by ../locks.ts with the
// port and the milliseconds; prints both rates as JSON.
import { once } from 'node:events';
import { connect } from 'node:net';
import { fileURLToPath } from 'node:url';
import { loadScripts } from '../../src/base/redis/scripts.ts';
import { bulk } from '../../src/base/redis/sent-script.ts';

const [port, durationMs] = process.argv.slice(2).map(Number) as [number, number];
const TURNS_MAX = 64;
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
const command = (...parts: string[]): string => `*${parts.length}\r\n${parts.map(bulk).join('')}`;

const socket = connect(port, '127.0.0.1').setNoDelay(true);
await once(socket, 'connect');

async function answerTo(ask: string): Promise<string> {
  socket.write(ask);
  const [chunk] = (await once(socket, 'data')) as [Buffer];
  return chunk.toString('latin1');
}

/** Asks again with every answer; `asked` counts. */
async function rate(ask: (asked: number) => string, fits: (answer: Buffer) => boolean): Promise<number> {
  let answered = 0;
  let left = 0;
  let over: (() => void) | null = null;
  let wrong: string | null = null;
  const turn = (): void => {
    if (--left > 0) setImmediate(turn);
  };
  const next = (): void => {
    const asleep = left <= 0;
    left = TURNS_MAX;
    socket.write(ask(answered));
    if (asleep) setImmediate(turn);
  };
  const heard = (answer: Buffer): void => {
    if (!fits(answer)) wrong ??= answer.toString('latin1');
    answered++;
    if (over) over();
    else next();
  };
  socket.on('data', heard);
  next();
  await pause(durationMs / 3);
  const [from, fromMs] = [answered, performance.now()];
  await pause(durationMs);
  const perSecond = ((answered - from) * 1000) / (performance.now() - fromMs);
  await new Promise<void>((resolve) => {
    over = resolve;
  });
  socket.off('data', heard);
  if (wrong !== null) throw new Error(`Redis answered ${wrong}`);
  return perSecond;
}

const asksNothing = command('GET', 'none');
const trips = await rate(
  () => asksNothing,
  (answer) => answer[0] === 0x24,
);

const folder = fileURLToPath(new URL('../../src/locks/redis/lua/', import.meta.url));
const { lua, sha } = loadScripts(folder).get('mutex-pass')!;
const [clock, lock, queue] = ['clock', 'lock', 'queue'].map((part) => `bench:{0}:${part}`) as [string, string, string];
await answerTo(command('SCRIPT', 'LOAD', lua));
await answerTo(command('SET', lock, 'client.0 1 1 '));
const head = `*9\r\n${['EVALSHA', sha, '3', clock, lock, queue].map(bulk).join('')}`;
const passes = await rate(
  (asked) => `${head}${bulk(`client.${asked}`)}${bulk(`client.${asked + 1}`)}${bulk('500')}`,
  // The token: anything shorter is a refusal.
  (answer) => answer[0] === 0x3a && answer.length > 10,
);
console.log(JSON.stringify({ trips, passes }));
process.exit(0);
