import { existsSync, readdirSync, readlinkSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { sign } from '../../src/base/signature.ts';
import { type BareSocket, bareSocket } from '../support/fault-socket.ts';
import { until } from '../support/fault-wait.ts';
import { startHeldShop } from '../support/held-shop.ts';
import { expectProblem, openStream, sendRaw } from '../support/openapi-wire.ts';
import { ADMIN_KEY, type Answer, cleanUp, createSale, startServer, type TestServer, token } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres } from '../support/servers/describe.ts';
import { postgresUrl } from '../support/servers/postgres.ts';

/** P10 at the edge: what a few sockets can do to a shop that other people use. */
const SECRET = 'the-webhook-secret-of-a-provider';
const REQUEST_WITHIN_MS = 1_000;

afterAll(async () => {
  await cleanUp();
  await cleanUpServers();
});

const get = (path: string): string => `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`;
const answersIn = (text: string): number => text.split('HTTP/1.1 ').length - 1;

async function closed({ ended }: BareSocket, withinMs = 3_000): Promise<string> {
  let how: string | null = null;
  void ended.then((end) => {
    how = end;
  });
  return until('the server closes the connection', withinMs, () => how);
}

async function statusesOf(server: TestServer, path: string, sockets: number, headers = ''): Promise<number[]> {
  const open = Array.from({ length: sockets }, () =>
    bareSocket(server.url, `GET ${path} HTTP/1.1\r\nhost: x\r\n${headers}\r\n`),
  );
  const streams = await Promise.all(open);
  await until('every stream is answered', 5_000, () => streams.every(({ heard }) => heard().length > 12));
  const statuses = streams.map(({ heard }) => Number(heard().slice(9, 12)));
  for (const { socket } of streams) socket.destroy();
  return statuses;
}

/** The server for most of these tests. */
let server: TestServer;
let sale: string;
beforeAll(async () => {
  server = await startServer({
    env: { REQUEST_WITHIN_MS: String(REQUEST_WITHIN_MS), IN_FLIGHT_MAX: '40', PAYMENT_WEBHOOK_SECRET: SECRET },
  });
  sale = await createSale(server);
});

describe('pipelined requests', () => {
  it('a request behind an event stream closes the connection, and nobody else is refused (P10)', async () => {
    const sockets: BareSocket[] = [];
    for (let n = 0; n < 3; n++) sockets.push(await bareSocket(server.url, get(`/v1/sales/${sale}/events`)));
    await until('the streams are open', 3_000, () => sockets.every(({ heard }) => heard().includes('200 OK')));
    for (const { socket } of sockets) socket.write(get('/v1/time').repeat(1_750));
    for (let n = 0; n < 20; n++) expect((await server.call('GET', '/v1/time')).status).toBe(200);
    for (const socket of sockets) await closed(socket);
    for (const { heard } of sockets) expect(answersIn(heard())).toBe(1);
    expect((await server.call('GET', '/readyz')).status).toBe(200);
  });

  it.each(['/v1/time', '/nowhere', '/%zz', '/healthz', '/v1/time HTTP/1.1\r\nexpect: tea\r\nx:'])(
    'a stream and %j in one packet: the connection is closed as well',
    async (path) => {
      const socket = await bareSocket(server.url, get(`/v1/sales/${sale}/events`) + get(path));
      await closed(socket);
      expect(answersIn(socket.heard())).toBeLessThanOrEqual(1);
    },
  );

  it('one socket may have 64 requests outstanding: all are answered, in order; more close it (P10)', async () => {
    const paths = Array.from({ length: 64 }, (_, n) => (n % 2 === 0 ? '/v1/time' : `/v1/sales/${sale}`));
    const socket = await bareSocket(server.url, paths.map(get).join(''));
    await until('all are answered', 3_000, () => answersIn(socket.heard()) === 64);
    // Answered requests are not outstanding any more.
    socket.socket.write(paths.map(get).join(''));
    await until('all are answered again', 3_000, () => answersIn(socket.heard()) === 128);
    socket.socket.destroy();
    // Reading a sale takes a turn, so that none is answered before the last request has arrived.
    await closed(await bareSocket(server.url, get(`/v1/sales/${sale}`).repeat(65)));
    expect((await server.call('GET', '/v1/time')).status).toBe(200);
  });

  it('a request is in flight until it is answered, not until its answer was read (P10)', async () => {
    const shop = await startHeldShop({ inFlightMax: 10 });
    const held = [await shop.hold(get('/v1/time').repeat(5)), await shop.hold(get('/v1/time').repeat(40))];
    for (let n = 0; n < 10; n++) expect((await shop.call('GET', '/v1/time')).status).toBe(200);
    for (const { finish } of held) expect(await finish()).toBe(200);
    await until('all are answered', 3_000, () => answersIn(held[1]!.socket.heard()) === 41);
    await shop.close();
  });

  it('answers that wait behind another one are bounded in bytes, and so are files (P10)', async () => {
    const shop = await startHeldShop({});
    for (const path of ['/openapi.json', '/docs/static/swagger-ui-bundle.js']) {
      const held = await shop.hold(get(path).repeat(60));
      await closed(held.socket);
      await held.finish();
    }
    const few = await shop.hold(get('/docs/static/swagger-ui-bundle.js').repeat(4));
    expect(await few.finish()).toBe(200);
    await until('all are answered', 3_000, () => answersIn(few.socket.heard()) === 5);
    // A HEAD has the headers only, however long the body would be.
    const heads = await shop.hold(get('/docs/static/swagger-ui-bundle.js').replace('GET', 'HEAD').repeat(60));
    expect(await heads.finish()).toBe(200);
    await until('all are answered', 3_000, () => answersIn(heads.socket.heard()) === 61);
    await shop.close();
  });
});

describe('overload', () => {
  it('/readyz says 503 and why while requests are refused, and ok again afterwards (P10)', async () => {
    const shop = await startHeldShop({ inFlightMax: 1 });
    const held = await shop.hold();
    expectProblem(await shop.call('GET', '/v1/time'), 503, 'overloaded');
    const ready = await shop.call('GET', '/readyz');
    expect([ready.status, ready.body]).toEqual([
      503,
      {
        status: 'unavailable',
        parts: { gate: 'ok', pipe: 'ok', ledger: 'ok', http: 'more than 1 requests are in flight' },
      },
    ]);
    expect(await held.finish()).toBe(200);
    expect((await shop.call('GET', '/readyz')).status).toBe(200);
    expect((await shop.call('GET', '/v1/time')).status).toBe(200);
    await shop.close();
  });

  it('a request whose client has left is in flight until its work is done, and no longer (P10)', async () => {
    const shop = await startHeldShop({ inFlightMax: 1 });
    const held = await shop.hold();
    held.socket.socket.destroy();
    for (let n = 0; n < 10; n++) expectProblem(await shop.call('GET', '/v1/time'), 503, 'overloaded');
    void held.finish();
    await until('served', 3_000, async () => (await shop.call('GET', '/v1/time')).status === 200);
    await shop.close();
  });
});

describe('pages and documents', () => {
  it.runIf(existsSync('/proc/self/fd'))('no file is open for a client that does not read it (P10)', async () => {
    const shop = await startHeldShop({});
    const openFiles = (): string[] =>
      readdirSync('/proc/self/fd').flatMap((fd) => {
        try {
          return readlinkSync(`/proc/self/fd/${fd}`);
        } catch {
          return [];
        }
      });
    const sockets = await Promise.all(Array.from({ length: 10 }, () => bareSocket(shop.url, '')));
    for (const { socket } of sockets) {
      socket.pause();
      socket.write(get('/docs/static/swagger-ui-bundle.js').repeat(4));
    }
    // Requested after them, and so answered while they are being handled.
    expect((await shop.call('GET', '/docs/static/index.css')).status).toBe(200);
    expect(openFiles().filter((file) => file.includes('swagger-ui'))).toEqual([]);
    for (const { socket } of sockets) socket.resume();
    await until('all have it four times', 5_000, () => sockets.every(({ heard }) => answersIn(heard()) === 4));
    for (const { socket } of sockets) socket.destroy();
    await shop.close();
  });

  it('files of the page have a type and an ETag: a client that has them gets 304', async () => {
    for (const [file, type] of [
      ['index.css', 'text/css; charset=utf-8'],
      ['swagger-ui-bundle.js', 'text/javascript; charset=utf-8'],
      ['favicon-16x16.png', 'image/png'],
    ] as const) {
      const url = `${server.url}/docs/static/${file}`;
      const first = await fetch(url);
      expect([first.status, first.headers.get('content-type')]).toEqual([200, type]);
      const head = await fetch(url, { method: 'HEAD' });
      expect(Number(head.headers.get('content-length'))).toBe((await first.arrayBuffer()).byteLength);
      const again = await fetch(url, { headers: { 'if-none-match': first.headers.get('etag')! } });
      expect([again.status, await again.text()]).toEqual([304, '']);
    }
  });

  it('are refused under overload like everything else (P10)', async () => {
    const shop = await startHeldShop({ inFlightMax: 1 });
    const held = await shop.hold();
    for (const path of ['/', '/board.js', '/docs', '/docs/json', '/docs/static/index.css', '/openapi.json']) {
      expectProblem(await shop.call('GET', path), 503, 'overloaded');
    }
    for (const path of ['/healthz', '/metrics']) {
      expect((await shop.call('GET', path, { admin: true })).status).toBe(200);
    }
    expect(await held.finish()).toBe(200);
    await shop.close();
  });
});

describe('event streams', () => {
  it('a buyer cannot take all places of orders: 20, whatever orders they are of; an admin can (P10)', async () => {
    const shop = await startHeldShop({ sseMax: 40 });
    const sale = await createSale(shop, { perBuyer: 2 });
    const ordered = async (buyer: string): Promise<string> => {
      const placed = await shop.call('POST', `/v1/sales/${sale}/orders`, { buyer, body: { item: 'voucher' } });
      return `${shop.url}/v1/orders/${placed.body.id}/events`;
    };
    const watch = (url: string, bearer: string, count = 1) =>
      Promise.all(Array.from({ length: count }, () => openStream(url, { authorization: `Bearer ${bearer}` })));
    const statuses = (streams: { status: number }[]) => streams.map(({ status }) => status).sort();
    const [one, other, ann] = [await ordered('eve'), await ordered('eve'), await ordered('ann')];
    const first = await watch(one, token('eve'), 15);
    expect(statuses(first)).toEqual(Array(15).fill(200));
    expect(statuses(await watch(other, token('eve'), 6))).toEqual([200, 200, 200, 200, 200, 503]);
    expect(statuses(await watch(ann, token('ann')))).toEqual([200]);
    expect(statuses(await watch(one, ADMIN_KEY, 19))).toEqual(Array(19).fill(200));
    expect(statuses(await watch(ann, token('ann')))).toEqual([503]);
    first[0]!.close();
    await until('the place is free again, also for the buyer', 3_000, async () => {
      const [stream] = await watch(one, token('eve'));
      stream!.close();
      return stream!.status === 200;
    });
    await shop.close();
  });

  it('public and order streams have pools of their own, and SSE_MAX bounds each', async () => {
    const shop = await startHeldShop({ sseMax: 2 });
    const sale = await createSale(shop);
    const placed = await shop.call('POST', `/v1/sales/${sale}/orders`, { buyer: 'a', body: { item: 'voucher' } });
    const path = `/v1/orders/${placed.body.id}/events`;
    const own = { authorization: `Bearer ${token('a')}` };
    const streams = [];
    for (let n = 0; n < 3; n++) streams.push(await openStream(`${shop.url}/v1/sales/${sale}/events`));
    for (let n = 0; n < 3; n++) streams.push(await openStream(`${shop.url}${path}`, own));
    expect(streams.map(({ status }) => status)).toEqual([200, 200, 503, 200, 200, 503]);
    for (const stream of streams) stream.close();
    for (const [url, headers] of [[`${shop.url}/v1/sales/${sale}/events`], [`${shop.url}${path}`, own]] as const) {
      await until('a place is free again', 3_000, async () => {
        const stream = await openStream(url, headers);
        stream.close();
        return stream.status === 200;
      });
    }
    await shop.close();
  });

  it('SSE_MAX_PER_ADDRESS: an address cannot take all places; an IPv6 address is its /64 (P10)', async () => {
    const shop = await startHeldShop({ sseMax: 8, ssePerAddressMax: 2, trustProxy: true });
    const sale = await createSale(shop);
    const from = (address: string) => openStream(`${shop.url}/v1/sales/${sale}/events`, { 'x-forwarded-for': address });
    const addresses = ['10.0.0.1', '10.0.0.1', '10.0.0.1', '10.0.0.2', '2001:db8::1', '2001:db8::2', '2001:db8::3'];
    const streams = [];
    for (const address of addresses) streams.push(await from(address));
    expect(streams.map(({ status }) => status)).toEqual([200, 200, 503, 200, 200, 200, 503]);
    streams[0]!.close();
    await until('the address has a place again', 3_000, async () => {
      const stream = await from('10.0.0.1');
      stream.close();
      return stream.status === 200;
    });
    for (const stream of streams) stream.close();
    await shop.close();
  });

  it('SSE_MAX_PER_ADDRESS: an address is the same from whatever port (P10)', async () => {
    const shop = await startHeldShop({ ssePerAddressMax: 2, trustProxy: true });
    const sale = await createSale(shop);
    const addresses = ['198.51.100.7:1', '198.51.100.7:2', '198.51.100.7:3', '[2001:db8::1]:1', '[2001:db8::2]:2'];
    const streams = [];
    for (const address of [...addresses, '2001:db8::3']) {
      streams.push(await openStream(`${shop.url}/v1/sales/${sale}/events`, { 'x-forwarded-for': address }));
    }
    expect(streams.map(({ status }) => status)).toEqual([200, 200, 503, 200, 200, 503]);
    for (const stream of streams) stream.close();
    await shop.close();
  });

  describeWithPostgres('on a ledger that is a server', () => {
    let server: TestServer;
    let sale: string;
    beforeAll(async () => {
      server = await startServer({ env: { DATABASE_URL: await postgresUrl(), SSE_MAX: '10', IN_FLIGHT_MAX: '100' } });
      sale = await createSale(server);
    }, 60_000);

    it('SSE_MAX holds for streams that are asked for at the same time', async () => {
      const statuses = await statusesOf(server, `/v1/sales/${sale}/events`, 40);
      expect(statuses.filter((status) => status === 200)).toHaveLength(10);
      expect(statuses.filter((status) => status === 503)).toHaveLength(30);
    });

    it('clients that leave before, while and after the sale is read free their places (P10)', async () => {
      for (let round = 0; round < 10; round++) {
        await Promise.all(
          Array.from({ length: 10 }, async (_, n) => {
            const { socket } = await bareSocket(server.url, get(`/v1/sales/${sale}/events`));
            if (n % 4 > 0) await new Promise((resolve) => setTimeout(resolve, n % 4));
            socket.resetAndDestroy();
          }),
        );
      }
      await until('all ten places are free', 5_000, async () => {
        const statuses = await statusesOf(server, `/v1/sales/${sale}/events`, 10);
        return statuses.every((status) => status === 200);
      });
      // No place was released twice either.
      const statuses = await statusesOf(server, `/v1/sales/${sale}/events`, 12);
      expect(statuses.filter((status) => status === 200).length).toBeLessThanOrEqual(10);
      expect((await server.call('GET', '/readyz')).status).toBe(200);
    });
  });
});

describe('half-sent requests', () => {
  const order = (headers: string): string =>
    `POST /v1/sales/${sale}/orders HTTP/1.1\r\nhost: x\r\n${headers}content-type: application/json\r\ncontent-length: 4000\r\n\r\n{`;
  const webhook = (signature: string | null): string =>
    `POST /v1/webhooks/payments/x HTTP/1.1\r\nhost: x\r\n${signature === null ? '' : `doorbuster-signature: ${signature}\r\n`}` +
    'content-type: application/json\r\ncontent-length: 60000\r\n\r\n{';

  it('heads and bodies that do not come are 408 after a while, and refuse nobody before; streams stay (P10)', async () => {
    const stream = await openStream(`${server.url}/v1/sales/${sale}/events`);
    const halves = [
      order(`authorization: Bearer ${token('slow')}\r\n`),
      // Only the body can show that this signature is wrong.
      webhook(`t=${Math.floor(Date.now() / 1000)},v1=${'0'.repeat(64)}`),
      'GET /v1/time HTTP/1.1\r\nhost: x\r\nx-',
    ];
    const sockets = await Promise.all(
      Array.from({ length: 75 }, (_, n) => bareSocket(server.url, halves[n % halves.length]!)),
    );
    for (let n = 0; n < 5; n++) expect((await server.call('GET', '/v1/time')).status).toBe(200);
    for (const socket of sockets) await closed(socket, REQUEST_WITHIN_MS + 4_000);
    for (const { heard } of sockets) {
      expect(heard()).toMatch(/^HTTP\/1.1 408 [\s\S]*content-type: application\/problem\+json[\s\S]*connection: close/);
      expect(JSON.parse(heard().split('\r\n\r\n')[1]!)).toMatchObject({ status: 408, code: 'request_timeout' });
    }
    expect((await server.call('GET', '/readyz')).status).toBe(200);
    await server.call('POST', `/v1/sales/${sale}/orders`, { buyer: 'a', body: { item: 'voucher' } });
    await stream.until(({ event, data }) => event === 'stock' && data.free === 99);
    stream.close();
  });

  const now = Math.floor(Date.now() / 1000);
  it.each<[string, () => string]>([
    ['no token', () => order('')],
    ['a bad token', () => order('authorization: Bearer a.b.c\r\n')],
    ['no signature', () => webhook(null)],
    ['a signature that is none', () => webhook('v1=abc')],
    ['a signature without a hash', () => webhook(`t=${now}`)],
    ['a signature whose hash is none', () => webhook(`t=${now},v1=xyz`)],
    ['an old signature', () => webhook(sign(SECRET, '{}', 1000 * (now - 400)))],
    ['a signature of the future', () => webhook(sign(SECRET, '{}', 1000 * (now + 400)))],
  ])('%s is refused before the body has come', async (_, request) => {
    const before = performance.now();
    expectProblem(await sendRaw(server.url, request()), 401, 'unauthenticated');
    expect(performance.now() - before).toBeLessThan(REQUEST_WITHIN_MS / 2);
  });

  it('the body of a webhook has at most 64 KiB, whoever has signed it: more is refused before it is looked at (P10)', async () => {
    const told = (length: number): Promise<Answer> => {
      const body = ' '.repeat(length);
      const headers = `doorbuster-signature: t=${Math.floor(Date.now() / 1000)},v1=${'a'.repeat(64)}\r\n`;
      return sendRaw(
        server.url,
        `POST /v1/webhooks/payments/sandbox HTTP/1.1\r\nhost: x\r\n${headers}content-type: application/json\r\n` +
          `content-length: ${length}\r\nconnection: close\r\n\r\n${body}`,
      );
    };
    expectProblem(await told(64 * 1024), 401, 'unauthenticated');
    expectProblem(await told(64 * 1024 + 1), 413, 'body_too_large');
  });

  it('a refused client that goes on sending is cut off, and a small rest is read so that the answer arrives', async () => {
    const body = 'x'.repeat(200_000);
    const small = await sendRaw(
      server.url,
      `POST /v1/sales/${sale}/orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
    );
    expectProblem(small, 401, 'unauthenticated');
    const endless = await bareSocket(
      server.url,
      `POST /v1/sales/${sale}/orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n`,
    );
    let sent = 0;
    const chunk = `10000\r\n${'x'.repeat(65_536)}\r\n`;
    const push = (): void => {
      while (!endless.socket.destroyed) {
        sent += chunk.length;
        if (!endless.socket.write(chunk)) return;
      }
    };
    endless.socket.on('drain', push);
    push();
    await closed(endless, 5_000);
    expect(endless.heard()).toMatch(/^HTTP\/1.1 401 /);
    expect(sent).toBeLessThan(64 * 1024 * 1024);
  });
});

describe('bytes that no client sends', () => {
  const raw = (bytes: string): Promise<Answer> => sendRaw(server.url, bytes);

  it.each(['..%5cx', '%00', '/etc/passwd', '..%2f..%2fpackage.json', '%2e%2e/%2e%2e/x', 'a%00.js', '%c0%ae%c0%ae/x'])(
    'GET /docs/static/%s is 4xx',
    async (path) => {
      const { status, body } = await raw(`GET /docs/static/${path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n`);
      expect([status, typeof body.code]).toEqual([404, 'string']);
    },
  );

  it('nothing on the first line gives 500', async () => {
    const long = 'a'.repeat(8_000);
    const targets = [
      '/%',
      '/%zz',
      '/v1/sales/%',
      '/v1/sales/%ff',
      '/v1/sales/%c0%ae',
      '/v1/sales/%00',
      '/v1/sales/%00/events',
      '/v1/orders/%ed%a0%80',
      `/v1/sales/${long}`,
      `/v1/sales/${long}/events`,
      `/${long}`,
      `/v1/sales?cursor=${long}`,
      '/v1/sales?limit=%',
      '/v1/sales?%00=%ff',
      '/v1/sales?__proto__[x]=1&constructor=2',
      '/v1//sales',
      '//v1/sales',
      '/v1/sales/',
      '/v1/sales/../sales',
      '/v1/sales;x=1',
      '/v1/sales#x',
      '/docs/',
      '/docs/..',
      '/docs/static/',
      '/docs/static/index.html/..%2f',
      '/docs/static/.',
      '/docs/static/%2e',
      '/docs/static/swagger-ui.css/',
      `/docs/static/${long}`,
      '/docs/json',
      '/docs/yaml',
      '/docs/%00',
      'http://other.example/v1/time',
      'https://other.example/docs/static/%00',
      '*',
      '/*',
      '?',
      '/?',
      '/board.js/',
    ];
    const failed: string[] = [];
    for (const method of ['GET', 'HEAD', 'OPTIONS', 'POST', 'PROPFIND']) {
      await Promise.all(
        targets.map(async (target) => {
          const line = `${method} ${target} HTTP/1.1`;
          const { status } = await raw(`${line}\r\nhost: x\r\nconnection: close\r\n\r\n`);
          if (status >= 500) failed.push(`${line.slice(0, 60)}: ${status}`);
        }),
      );
    }
    expect(failed).toEqual([]);
    expect(server.output()).not.toContain('a request failed');
  });

  it.each<[string, string, number]>([
    ['HTTP/1.0', 'GET /v1/time HTTP/1.0\r\n\r\n', 200],
    ['no Host', 'GET /v1/time HTTP/1.1\r\n\r\n', 400],
    ['two Hosts', 'GET /v1/time HTTP/1.1\r\nhost: x\r\nHost: y\r\n\r\n', 400],
    ['a Host and its like', 'GET /v1/time HTTP/1.1\r\nhost: x\r\nx-host: y\r\nhos: z\r\nhosts: z\r\n\r\n', 200],
    [
      'two Content-Lengths',
      'POST /v1/sales HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}',
      400,
    ],
    [
      'both lengths',
      'POST /v1/sales HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}',
      400,
    ],
    ['an unknown Expect', 'GET /v1/time HTTP/1.1\r\nhost: x\r\nexpect: tea\r\nconnection: close\r\n\r\n', 417],
    ['a range of a file', 'GET /docs/static/index.css HTTP/1.1\r\nhost: x\r\nrange: bytes=9999999-\r\n\r\n', 200],
    ['a precondition', 'GET /docs/static/index.css HTTP/1.1\r\nhost: x\r\nif-match: "no"\r\n\r\n', 200],
    [
      'trailers',
      'POST /v1/sales HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntrailer: x\r\n\r\n0\r\nx: y\r\n\r\n',
      401,
    ],
    ['an unknown encoding', 'POST /v1/sales HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n', 400],
    ['a null byte in a header', 'GET /v1/time HTTP/1.1\r\nhost: x\r\nx: a\u0000b\r\n\r\n', 400],
    ['a method that is none', 'FETCH /v1/time HTTP/1.1\r\nhost: x\r\n\r\n', 400],
    ['garbage', '\u0016\u0003\u0001\r\n\r\n', 400],
  ])('%s', async (_, bytes, status) => {
    expect((await raw(bytes)).status).toBe(status);
  });

  it('headers that are too large are 431 headers_too_large', async () => {
    const answer = await raw(`GET /v1/time HTTP/1.1\r\nhost: x\r\nx: ${'a'.repeat(20_000)}\r\n\r\n`);
    expectProblem(answer, 431, 'headers_too_large');
    expect(answer.headers.get('connection')).toBe('close');
    const many = Array.from({ length: 5_000 }, (_, n) => `x${n}: y\r\n`).join('');
    expectProblem(await raw(`GET /v1/time HTTP/1.1\r\nhost: x\r\n${many}\r\n`), 431, 'headers_too_large');
  });

  it('CONNECT and an upgrade end the connection or are answered, and do no harm', async () => {
    for (const bytes of [
      'CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n',
      'GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n',
      'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    ]) {
      const socket = await bareSocket(server.url, bytes);
      await until('an answer or an end', 3_000, async () =>
        socket.heard() !== '' || (await Promise.race([socket.ended, null])) !== null ? true : null,
      );
      socket.socket.destroy();
    }
    expect((await server.call('GET', '/v1/time')).status).toBe(200);
  });
});
