import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Overload } from '../../src/http/overload.ts';
import { kept, Sockets } from '../../src/http/sockets.ts';
import { type ManualRuntime, manualRuntime } from '../contract/manual.ts';
import { type BareSocket, bareSocket } from '../support/fault-socket.ts';
import { until } from '../support/fault-wait.ts';

const MIB = 1024 * 1024;
/** More than the kernel buffers for a client that does not read. */
const LARGE = 16 * MIB;
const BOUNDS = { bytesMax: 2.5 * LARGE, withinMs: 30_000, bytesPerSecondMin: 1 * MIB };

describe('answers that nobody reads', () => {
  let runtime: ManualRuntime;
  let sockets: Sockets;
  let server: Server;
  let url: string;
  let clients: BareSocket[];
  const file = kept(Buffer.alloc(LARGE, 'f'));

  beforeEach(async () => {
    runtime = manualRuntime();
    clients = [];
    const overload = new Overload(runtime, { inFlightMax: 1_000, delayMsMax: 100 }, () => 0);
    sockets = new Sockets(overload, runtime, BOUNDS);
    // `/n` is answered with n bytes, `/file` with a shared body, and `/later/n` when the next `/now` comes.
    const later: (() => void)[] = [];
    server = createServer((request, response) => {
      if (!sockets.enter(request, response)) return;
      const [, first, length] = request.url!.split('/');
      const body = first === 'file' ? file : 'x'.repeat(Number(first === 'later' ? length : first) || 1);
      const answer = (): void => {
        sockets.answered(request, response, body);
        response.end(body);
      };
      if (first === 'now') for (const each of later.splice(0)) each();
      if (first === 'later') later.push(answer);
      else answer();
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  afterEach(() => {
    for (const { socket } of clients) socket.destroy();
    server.closeAllConnections();
    server.close();
    sockets.close();
  });

  /** Sends requests and does not read the answers. */
  async function unread(...paths: string[]): Promise<BareSocket> {
    const client = await bareSocket(url, '');
    clients.push(client);
    client.socket.pause();
    client.socket.write(paths.map((path) => `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`).join(''));
    return client;
  }

  const connections = () => new Promise<number>((resolve) => server.getConnections((_, count) => resolve(count)));
  const owed = (bytes: number): Promise<unknown> =>
    until(`${bytes} bytes are unread`, 5_000, () => Math.abs(sockets.unsentBytes - bytes) < MIB);
  const lengthOf = ({ heard }: BareSocket): number => heard().length;

  it('are bounded for all sockets together: whoever has left the most unread is cut off (P10)', async () => {
    const small = await unread(`/${LARGE}`);
    await owed(LARGE);
    await unread(`/${LARGE + 2 * MIB}`);
    await owed(2 * LARGE + 2 * MIB);
    await runtime.timers.turn();
    expect(await connections()).toBe(2);
    await unread(`/${LARGE + MIB}`);
    await owed(3 * LARGE + 3 * MIB);
    // Not in the turn in which the bound is exceeded: clients that read have taken their answers by its end.
    await runtime.timers.turn();
    await until('one is gone', 5_000, async () => (await connections()) === 2);
    expect(sockets.unsentBytes).toBeLessThan(BOUNDS.bytesMax);
    small.socket.resume();
    await until('the smallest gets all of it', 5_000, () => lengthOf(small) > LARGE);
    await owed(LARGE + MIB);
  });

  it('count while they wait behind another one, and no longer when their socket has closed (P10)', async () => {
    const waiting = await unread('/later/1', ...Array(9).fill('/100000'));
    await owed(900_000);
    waiting.socket.destroy();
    await until('nothing is unread', 5_000, () => sockets.unsentBytes === 0);
    const read = await unread('/later/1', ...Array(9).fill('/100000'));
    await owed(900_000);
    read.socket.resume();
    await unread('/now');
    await until('all of it was read', 5_000, () => lengthOf(read) > 900_000);
    await until('nothing is unread', 5_000, () => sockets.unsentBytes === 0);
  });

  it('have a time in which all of it is taken, by their length: a byte now and then does not do (P10)', async () => {
    const [sipping, reading] = [await unread(`/${LARGE}`), await unread(`/${LARGE}`)];
    await owed(2 * LARGE);
    await runtime.timers.advance(44_000);
    expect(await connections()).toBe(2);
    sipping.socket.read(1_000);
    reading.socket.resume();
    await until('it was read', 5_000, () => lengthOf(reading) > LARGE);
    // 30 s, plus 16 s for 16 MiB at 1 MiB/s.
    await runtime.timers.advance(3_000);
    await until('the other one is gone', 5_000, async () => (await connections()) === 1);
    expect(sockets.unsentBytes).toBe(0);
  });

  it('an answer that is still being made is not the fault of its client, nor what waits behind it (P10)', async () => {
    const client = await unread('/later/1', '/100000');
    await owed(100_000);
    await runtime.timers.advance(3_600_000);
    expect(await connections()).toBe(1);
    client.socket.resume();
    await unread('/now');
    await until('all of it was read', 5_000, () => lengthOf(client) > 100_000);
  });

  it('of what everybody gets take no memory, but have their time (P10)', async () => {
    for (let n = 0; n < 4; n++) await unread('/file');
    await until('all are answered', 5_000, () => sockets.unsentBytes === 4 * 4096);
    await runtime.timers.turn();
    expect(await connections()).toBe(4);
    await runtime.timers.advance(47_000);
    await until('all are gone', 5_000, async () => (await connections()) === 0);
  });
});
