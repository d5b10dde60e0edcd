import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { afterEach, expect, it, vi } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { Sender } from '../../src/webhooks/sender.ts';

/** Connections are kept, and replaced if the server closed them meanwhile. */
const servers: Server[] = [];
const resolve = async () => [{ address: '127.0.0.1', family: 4 }];
const sender = new Sender(systemRuntime(), { resolve, allowPrivate: true, timeoutMs: 2000 });

afterEach(() => {
  for (const server of servers.splice(0)) server.close().closeAllConnections();
  sender.close();
});

async function listen(answer: RequestListener): Promise<{ send(): ReturnType<Sender['send']>; sockets: Socket[] }> {
  const server = createServer((request, response) => {
    request.resume();
    answer(request, response);
  });
  servers.push(server);
  const sockets: Socket[] = [];
  server.on('connection', (socket) => sockets.push(socket));
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  const { port } = server.address() as AddressInfo;
  const { signal } = new AbortController();
  return { sockets, send: () => sender.send(`http://shop.test:${port}/`, 'secret', '{}', signal) };
}

it('a connection serves several deliveries', async () => {
  const { send, sockets } = await listen((_, response) => response.end('thank you'));
  for (let at = 0; at < 3; at++) expect(await send()).toEqual({ status: 200, error: null });
  expect(sockets).toHaveLength(1);
});

it('one that the endpoint closed meanwhile is replaced: that is no failure', async () => {
  let requests = 0;
  const { send, sockets } = await listen((request, response) => {
    // The second request uses the first connection, which is closed then.
    if (++requests === 2) request.socket.resetAndDestroy();
    else response.end();
  });
  expect(await send()).toEqual({ status: 200, error: null });
  expect(await send()).toEqual({ status: 200, error: null });
  expect([requests, sockets.length]).toEqual([3, 2]);
});

it('a new connection that is closed is a failure', async () => {
  const { send, sockets } = await listen((request) => request.socket.resetAndDestroy());
  expect(await send()).toEqual({ status: null, error: expect.stringContaining('ECONNRESET') });
  expect(sockets).toHaveLength(1);
});

it('an answer that does not come in time is a failure', async () => {
  const hasty = new Sender(systemRuntime(), { resolve, allowPrivate: true, timeoutMs: 60 });
  const { sockets } = await listen(() => undefined);
  const { port } = servers.at(-1)!.address() as AddressInfo;
  const { signal } = new AbortController();
  const none = { status: null, error: 'no answer within 60 ms' };
  expect(await hasty.send(`http://shop.test:${port}/`, 'secret', '{}', signal)).toEqual(none);
  await vi.waitFor(() => expect(sockets[0]!.destroyed).toBe(true));
  const lost = new Sender(systemRuntime(), { resolve: () => new Promise(() => {}), allowPrivate: true, timeoutMs: 60 });
  expect(await lost.send('http://shop.test/', 'secret', '{}', signal)).toEqual({
    status: null,
    error: 'its host was not resolved within 60 ms',
  });
});

it('an answer that is not HTTP, or only a 101, is a failure', async () => {
  const { send } = await listen((request) =>
    request.socket.end('HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n'),
  );
  expect(await send()).toMatchObject({ status: null, error: expect.any(String) });
  const garbage = await listen((request) => request.socket.end('SSH-2.0-OpenSSH\r\n'));
  expect(await garbage.send()).toMatchObject({ status: null, error: expect.stringContaining('Parse Error') });
});
