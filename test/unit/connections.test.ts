import { EventEmitter } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { boundConnections, type ConnectionBounds } from '../../src/http/connections.ts';
import { enterSocket } from '../../src/http/sockets.ts';
import { type BareSocket, bareSocket } from '../support/fault-socket.ts';
import { until } from '../support/fault-wait.ts';

const BOUNDS = { connectionsMax: 4, connectionsPerAddressMax: 2, requestWithinMs: 60_000 };
const GET = 'GET / HTTP/1.1\r\nhost: x\r\n\r\n';

describe('connections', () => {
  let server: Server | null = null;
  afterEach(() => {
    server?.closeAllConnections();
    server?.close();
    server = null;
  });

  async function listening(handler: RequestListener, bounds: Partial<ConnectionBounds> = {}): Promise<string> {
    server = createServer(handler);
    boundConnections(server, { ...BOUNDS, ...bounds }, systemRuntime(), false);
    await new Promise<void>((resolve) => server!.listen(0, '127.0.0.1', resolve));
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  it('are bounded: one more is closed at once, and idle ones make room (P10)', async () => {
    const url = await listening((_, response) => response.end('here'));
    const open = (bytes: string): Promise<BareSocket | null> => bareSocket(url, bytes).catch(() => null);
    const sockets: BareSocket[] = [];
    for (let n = 0; n < BOUNDS.connectionsMax; n++) sockets.push((await open(GET.slice(0, -2)))!);
    // All are in the middle of a request: a new connection is closed, and none of the others is.
    const more = await open(GET);
    await until('it is closed', 3_000, () => more === null || more.socket.closed);
    expect(more?.heard() ?? '').toBe('');
    for (const { socket } of sockets) socket.write('\r\n');
    await until('they are answered', 3_000, () => sockets.every(({ heard }) => heard().endsWith('here')));
    // All are idle now: a new connection finds no place, and the next one does.
    await until('there is room for someone new', 3_000, async () => {
      const next = await open(GET);
      await until('an answer or an end', 3_000, () => next === null || next.heard() !== '' || next.socket.closed);
      next?.socket.destroy();
      return next?.heard().endsWith('here');
    });
  });

  it('are closed when nobody reads the answer, and not while it is being made (P10)', async () => {
    const url = await listening(
      (request, response) => {
        enterSocket(request, response);
        if (request.url === '/') response.end(Buffer.alloc(64 * 1024 * 1024));
        else setTimeout(() => response.end('late'), 1_000);
      },
      { unreadMs: 200 },
    );
    const late = await bareSocket(url, GET.replace('/', '/late'));
    const unread = await bareSocket(url, '');
    unread.socket.pause();
    unread.socket.write(GET);
    const connections = () => new Promise<number>((resolve) => server!.getConnections((_, count) => resolve(count)));
    await until('the one who does not read is gone', 5_000, async () => (await connections()) === 1);
    await until('the one who waits is answered', 5_000, () => late.heard().endsWith('late'));
    unread.socket.destroy();
  });

  /** A server that does not listen: the test emits its connections, with any address. */
  function told(proxied: boolean): (address: string) => { destroyed: boolean; close(): void } {
    const fake = Object.assign(new EventEmitter(), { setTimeout: () => {} });
    boundConnections(fake as unknown as Server, BOUNDS, systemRuntime(), proxied);
    return (remoteAddress) => {
      const socket = Object.assign(new EventEmitter(), { remoteAddress, destroyed: false, destroy: () => {} });
      socket.destroy = () => {
        socket.destroyed = true;
        socket.emit('close');
      };
      fake.emit('connection', socket as unknown as Socket);
      return { ...socket, destroyed: socket.destroyed, close: () => void socket.emit('close') };
    };
  }

  it('are bounded for each public address, IPv6 by its /64', () => {
    const connect = told(false);
    const first = connect('203.0.113.7');
    expect([first, connect('::ffff:203.0.113.7'), connect('203.0.113.7')].map((one) => one.destroyed)).toEqual([
      false,
      false,
      true,
    ]);
    expect(connect('203.0.113.8').destroyed).toBe(false);
    expect(['2001:db8::1', '2001:db8::2', '2001:db8::3'].map((one) => connect(one).destroyed)).toEqual([
      false,
      false,
      true,
    ]);
    // The refused connection took no place.
    expect(connect('203.0.113.7').destroyed).toBe(true);
    first.close();
    expect(connect('203.0.113.7').destroyed).toBe(false);
  });

  it('of a proxy stand for many clients: a local one, or a trusted one', () => {
    const [local, proxied] = [told(false), told(true)];
    for (let n = 0; n < 9; n++) {
      for (const address of ['127.0.0.1', '10.0.0.1', '::1']) expect(local(address).destroyed).toBe(false);
      expect(proxied('203.0.113.7').destroyed).toBe(false);
    }
  });
});
