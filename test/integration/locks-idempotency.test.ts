import { createHash } from 'node:crypto';
import {
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import express from 'express';
import Fastify from 'fastify';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import { expressIdempotency } from '../../src/locks/idempotency-express.ts';
import { fastifyIdempotency } from '../../src/locks/idempotency-fastify.ts';
import { createLocks, type Locks, type LocksOptions } from '../../src/locks/locks.ts';
import { MemorySpace } from '../../src/locks/memory/store.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startRedis } from '../support/servers/redis.ts';

/** What a test says about the answer; the two frameworks say it in their own way. */
interface Said {
  status?: number;
  headers?: Record<string, string>;
  json?: unknown;
  bytes?: Buffer;
  stream?: string[];
  error?: Error;
}

interface Options {
  header?: string;
  required?: boolean;
  wait?: number;
  keep?: number;
  atMost?: number;
  answerBytesMax?: number;
  onOutage?: 'pass' | 'refuse';
  callerHeader?: string;
}

type Handler = (body: unknown, at: number) => Said | Promise<Said>;
/** Serves POST /orders with `handler` behind the middleware; its address. */
type Serve = (locks: Locks, options: Options, handler: Handler) => Promise<string>;

const endings: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});
afterAll(cleanUpServers);

function optionsOf<R extends { headers: IncomingMessage['headers'] }>({ callerHeader, ...options }: Options) {
  const caller = (request: R): string => String(request.headers[callerHeader!]);
  return { ...options, ...(callerHeader === undefined ? {} : { caller }) };
}

const onFastify: Serve = async (locks, options, handler) => {
  const app = Fastify({ forceCloseConnections: true });
  app.setErrorHandler((error, _request, reply) => reply.code(500).send({ failed: (error as Error).message }));
  await app.register(fastifyIdempotency, { locks, ...optionsOf(options) });
  let runs = 0;
  app.post('/orders', async (request, reply) => {
    const { status = 200, headers = {}, json, bytes, stream, error } = await handler(request.body, ++runs);
    if (error) throw error;
    reply.code(status).headers(headers);
    if (stream) return reply.send(Readable.from(stream));
    return reply.send(bytes ?? json);
  });
  app.get('/orders', async () => ({ runs: ++runs }));
  endings.push(() => app.close());
  return await app.listen({ port: 0, host: '127.0.0.1' });
};

const onExpress: Serve = async (locks, options, handler) => {
  const app = express();
  app.use(express.json());
  app.use(expressIdempotency(locks, optionsOf(options)));
  let runs = 0;
  app.post('/orders', async (request, response) => {
    const { status = 200, headers = {}, json, bytes, stream, error } = await handler(request.body, ++runs);
    if (error) throw error;
    response.status(status).set(headers);
    if (stream) Readable.from(stream).pipe(response);
    else if (bytes) response.send(bytes);
    else if (json === undefined) response.end();
    else response.json(json);
  });
  app.get('/orders', (_request, response) => void response.json({ runs: ++runs }));
  app.use((error: Error, _request: unknown, response: express.Response, _next: unknown) => {
    response.status(500).json({ failed: error.message });
  });
  return await listen(createServer(app));
};

async function listen(server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  endings.push(() => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function client(options: LocksOptions = {}): Locks {
  const locks = createLocks(
    options.redis === undefined ? { space: new MemorySpace(systemClock), ...options } : options,
  );
  endings.push(() => locks.close());
  return locks;
}

interface Got {
  status: number;
  headers: Record<string, string>;
  body: Buffer;
}

async function post(
  url: string,
  key: string | null,
  body: unknown = { item: 'a' },
  headers = {},
  path = '/orders',
): Promise<Got> {
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(key === null ? {} : { 'idempotency-key': key }), ...headers },
    body: JSON.stringify(body),
  });
  const bytes = Buffer.from(await response.arrayBuffer());
  return { status: response.status, headers: Object.fromEntries(response.headers), body: bytes };
}

/** As the version before this one digested what it kept: each part with its length before it. */
function formerDigest(...parts: readonly string[]): string {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(`${Buffer.byteLength(part)}:`).update(part);
  return hash.digest('base64url');
}

const codeOf = ({ body }: Got): unknown => JSON.parse(body.toString()).code;

describe.each([
  ['Fastify', onFastify],
  ['Express', onExpress],
] as const)('idempotency on %s', (_name, serve) => {
  it('20 at once: the handler runs once, all get the same answer; later ones as well', async () => {
    let runs = 0;
    const handler: Handler = async (body) => {
      runs++;
      await sleep(100);
      const id = Math.random();
      return { status: 201, headers: { location: `/orders/${id}`, 'x-other': 'no' }, json: { id, name: '张三', body } };
    };
    // Two instances, two clients of the same locks.
    const space = new MemorySpace(systemClock);
    const urls = [await serve(client({ space }), {}, handler), await serve(client({ space }), {}, handler)];
    const all = await Promise.all(Array.from({ length: 20 }, (_, at) => post(urls[at % 2]!, 'k1')));
    all.push(await post(urls[0]!, 'k1'), await post(urls[1]!, 'k1'));
    expect(runs).toBe(1);
    expect(new Set(all.map(({ body }) => body.toString())).size).toBe(1);
    expect(new Set(all.map(({ status }) => status))).toEqual(new Set([201]));
    expect(new Set(all.map(({ headers }) => `${headers['content-type']} ${headers.location}`)).size).toBe(1);
    expect(all[0]!.headers['content-type']).toMatch(/^application\/json/);
    const replayed = all.filter(({ headers }) => headers['idempotent-replayed'] === 'true');
    expect(replayed).toHaveLength(21);
    expect(replayed[0]!.headers['x-other']).toBeUndefined();
  });

  it('changes nothing for a first request, one without a key, and other methods', async () => {
    const answers: Said[] = [
      { json: { a: 1 } },
      { status: 204 },
      { bytes: Buffer.from([0, 255, 1, 254]), headers: { 'content-type': 'image/png' } },
      { status: 404, json: { error: 'x' } },
      { stream: ['a', 'b', 'c'], headers: { 'content-type': 'text/plain' } },
    ];
    const bare = await serve(client(), { header: 'x-never-sent' }, (_body, at) => answers[at - 1]!);
    const url = await serve(client(), {}, (_body, at) => answers[at - 1]!);
    for (let at = 0; at < answers.length; at++) {
      const without = await post(bare, null);
      const first = await post(url, `k${at}`);
      for (const got of [without, first]) for (const name of ['date', 'keep-alive']) delete got.headers[name];
      expect(first).toEqual(without);
    }
    const get = { headers: { 'idempotency-key': 'k0' } };
    expect(await (await fetch(`${url}/orders`, get)).json()).toEqual({ runs: answers.length + 1 });
    expect(await (await fetch(`${url}/orders`, get)).json()).toEqual({ runs: answers.length + 2 });
  });

  it('replays bytes and empty answers as they were', async () => {
    const bytes = Buffer.from([0, 255, 1, 254, 128]);
    const url = await serve(client(), {}, (_body, at) =>
      at === 1 ? { status: 204 } : { bytes, headers: { 'content-type': 'image/png' } },
    );
    expect(await post(url, 'empty')).toMatchObject({ status: 204 });
    const empty = await post(url, 'empty');
    expect(empty).toMatchObject({ status: 204, headers: { 'idempotent-replayed': 'true' } });
    expect(empty.body).toHaveLength(0);
    await post(url, 'bytes');
    const replayed = await post(url, 'bytes');
    expect(replayed.headers).toMatchObject({ 'idempotent-replayed': 'true', 'content-type': 'image/png' });
    expect(replayed.body).toEqual(bytes);
  });

  it('422 for the same key with another body or query; other callers and paths do not meet', async () => {
    const url = await serve(client(), {}, (body, at) => ({ json: { at, body } }));
    const one = { authorization: 'Bearer one' };
    expect((await post(url, 'k', { n: 1 }, one)).status).toBe(200);
    const other = await post(url, 'k', { n: 2 }, one);
    expect([other.status, codeOf(other)]).toEqual([422, 'idempotency_key_reused']);
    expect(other.headers['content-type']).toMatch(/^application\/problem\+json/);
    expect((await post(url, 'k', { n: 1 }, one, '/orders?x=1')).status).toBe(422);
    const second = await post(url, 'k', { n: 2 }, { authorization: 'Bearer two' });
    expect(JSON.parse(second.body.toString())).toEqual({ at: 2, body: { n: 2 } });
    expect((await post(url, 'k', { n: 1 }, one)).headers['idempotent-replayed']).toBe('true');
  });

  it('knows a JSON body by what it says: the order of its members does not matter', async () => {
    const url = await serve(client(), {}, (_body, at) => ({ json: at }));
    expect((await post(url, 'k', { item: 'a', of: { x: 1, y: 2 } })).status).toBe(200);
    const again = await post(url, 'k', { of: { y: 2, x: 1 }, item: 'a' });
    expect([again.status, again.headers['idempotent-replayed'], again.body.toString()]).toEqual([200, 'true', '1']);
    expect((await post(url, 'k', { of: { y: 1, x: 2 }, item: 'a' })).status).toBe(422);
  });

  it('P5: processes of the version before and of this one replay what the other has kept', async () => {
    const locks = client();
    const url = await serve(locks, {}, (_body, at) => ({ json: at }));
    const body = { n: 1, item: 'a' };
    const asked = formerDigest('', JSON.stringify(body));
    const nameOf = (key: string): string => `idempotency:${formerDigest('POST', '/orders', '', key)}`;
    await locks.once(nameOf('before'), () => ({ asked, status: 201, headers: {}, body: 'kept' }));
    const replayed = await post(url, 'before', body);
    expect([replayed.status, replayed.body.toString()]).toEqual([201, 'kept']);
    expect((await post(url, 'before', { n: 2, item: 'a' })).status).toBe(422);
    expect((await post(url, 'now', body)).headers['idempotent-replayed']).toBeUndefined();
    const kept = await locks.once(nameOf('now'), () => ({ asked: 'it was not kept' }));
    expect(kept.asked, 'which is all that the version before compares').toBe(asked);
  });

  it('takes the caller and the header that it is told', async () => {
    const url = await serve(client(), { header: 'X-Request-Id', callerHeader: 'x-user' }, (_body, at) => ({
      json: at,
    }));
    const sent = (user: string, bearer: string) =>
      post(url, null, {}, { 'x-request-id': 'r1', 'x-user': user, authorization: bearer });
    expect((await sent('alice', 'old')).body.toString()).toBe('1');
    expect((await sent('alice', 'renewed')).body.toString()).toBe('1');
    expect((await sent('bob', 'old')).body.toString()).toBe('2');
  });

  it('a key of the client is needed, if so set; one that is no key is refused', async () => {
    const loose = await serve(client(), {}, (_body, at) => ({ json: at }));
    expect((await post(loose, null)).body.toString()).toBe('1');
    expect((await post(loose, null)).body.toString()).toBe('2');
    const strict = await serve(client(), { required: true }, () => ({ json: 1 }));
    const none = await post(strict, null);
    expect([none.status, codeOf(none)]).toEqual([400, 'idempotency_key_missing']);
    const long = await post(strict, 'k'.repeat(256));
    expect([long.status, codeOf(long)]).toEqual([400, 'idempotency_key_invalid']);
  });

  it('a failure may be tried again, and a waiting repeat does so itself', async () => {
    let runs = 0;
    const url = await serve(client(), {}, async () => {
      runs++;
      await sleep(50);
      return runs === 1 ? { error: new Error('broken') } : { json: { runs } };
    });
    const both = await Promise.all([post(url, 'k'), post(url, 'k')]);
    expect(both.map(({ status }) => status).sort()).toEqual([200, 500]);
    expect(runs).toBe(2);
    expect((await post(url, 'k')).headers['idempotent-replayed']).toBe('true');
    expect(runs).toBe(2);
  });

  it('keeps refusals that decide, not those that ask to come again', async () => {
    const said: Record<string, Said> = {
      soldOut: { status: 409, json: {} },
      notFound: { status: 404, json: {} },
      invalid: { status: 422, json: {} },
      signIn: { status: 401, json: {} },
      tooMany: { status: 429, json: {} },
      busy: { status: 409, json: {}, headers: { 'retry-after': '1' } },
      out: { status: 503, json: {} },
    };
    const url = await serve(client(), {}, (body) => said[(body as { which: string }).which]!);
    const replayed: string[] = [];
    for (const which of Object.keys(said)) {
      await post(url, which, { which });
      if ((await post(url, which, { which })).headers['idempotent-replayed']) replayed.push(which);
    }
    expect(replayed).toEqual(['soldOut', 'notFound', 'invalid']);
  });

  it('409 with Retry-After for a repeat that has waited long enough', async () => {
    const url = await serve(client(), { wait: 100 }, async () => {
      await sleep(600);
      return { json: 'done' };
    });
    const first = post(url, 'k');
    await sleep(50);
    const late = await post(url, 'k');
    expect([late.status, codeOf(late), late.headers['retry-after']]).toEqual([409, 'idempotency_in_flight', '1']);
    expect((await first).status).toBe(200);
    expect((await post(url, 'k')).headers['idempotent-replayed']).toBe('true');
  });

  it('an answer too large to keep is sent whole; its repeat is not run again and says why', async () => {
    let runs = 0;
    const url = await serve(client(), { answerBytesMax: 1000 }, () => {
      runs++;
      return { status: 201, json: { x: 'x'.repeat(5000) } };
    });
    expect((await post(url, 'k')).body).toHaveLength(5008);
    const repeat = await post(url, 'k');
    expect([repeat.status, codeOf(repeat)]).toEqual([409, 'idempotency_answer_not_kept']);
    expect(repeat.body.toString()).toContain('201');
    expect(runs).toBe(1);
  });

  it('a client that leaves: its answer is kept for when it comes back', async () => {
    let runs = 0;
    let done = false;
    const url = await serve(client(), {}, async () => {
      runs++;
      await sleep(300);
      done = true;
      return { json: { runs } };
    });
    const leaving = httpRequest(`${url}/orders`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': 'k' },
    });
    leaving.on('error', () => undefined);
    leaving.end(JSON.stringify({ item: 'a' }));
    await until('it runs', 2000, () => runs === 1);
    leaving.destroy();
    const back = await post(url, 'k');
    expect(done).toBe(true);
    expect(back.headers['idempotent-replayed']).toBe('true');
    expect(back.body.toString()).toBe('{"runs":1}');
  });

  it('a repeat whose client leaves stands in nobody’s way', async () => {
    const locks = client();
    let runs = 0;
    const url = await serve(locks, {}, async () => {
      runs++;
      await sleep(300);
      return { status: 500, json: {} };
    });
    const first = post(url, 'k');
    await until('it runs', 2000, () => runs === 1);
    const leaving = new AbortController();
    const second = fetch(`${url}/orders`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': 'k' },
      body: JSON.stringify({ item: 'a' }),
      signal: leaving.signal,
    }).catch(() => null);
    await until('it waits', 2000, async () => (await locks.list(['once']))[0]?.waiting === 1);
    leaving.abort();
    await second;
    await first;
    await sleep(50);
    expect(runs).toBe(1);
  });
});

describe('idempotency on Express', () => {
  it('holds for code that asks whether it has answered, and for plain node:http', async () => {
    const locks = client();
    const middleware = expressIdempotency(locks);
    const seen: boolean[] = [];
    const handler: RequestListener = (request: IncomingMessage, response: ServerResponse) => {
      middleware(request, response, () => {
        response.writeHead(202, 'Taken', { 'Content-Type': 'text/plain', Location: '/x' });
        response.write('a');
        response.end('b', () => seen.push(true));
        seen.push(response.headersSent, response.writableEnded);
        // A second end is what it always was: nothing.
        response.end();
      });
    };
    const url = await listen(createServer(handler));
    const first = await post(url, 'k');
    const second = await post(url, 'k');
    expect([first.status, first.body.toString(), first.headers.location]).toEqual([202, 'ab', '/x']);
    expect([second.status, second.body.toString(), second.headers.location]).toEqual([202, 'ab', '/x']);
    expect(second.headers['content-type']).toBe('text/plain');
    expect(second.headers['idempotent-replayed']).toBe('true');
    await until('the callback', 1000, () => seen.length === 3);
    expect(seen).toEqual([true, true, true]);
  });

  it('does not wait for the end of server-sent events', async () => {
    const middleware = expressIdempotency(client());
    const url = await listen(
      createServer((request, response) => {
        middleware(request, response, () => {
          response.setHeader('content-type', 'text/event-stream');
          response.write('data: 1\n\n');
        });
      }),
    );
    const leaving = new AbortController();
    const first = await fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k' }, signal: leaving.signal });
    expect(first.status).toBe(200);
    expect((await fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k' } })).status).toBe(409);
    leaving.abort();
  });
});

describe('idempotency on Fastify', () => {
  it('an answer past Fastify is not seen: its repeat is not run', async () => {
    const app = Fastify({ forceCloseConnections: true });
    await app.register(fastifyIdempotency, { locks: client() });
    let runs = 0;
    app.post('/orders', (_request, reply) => {
      runs++;
      reply.hijack();
      reply.raw.end('raw');
    });
    endings.push(() => app.close());
    const url = await app.listen({ port: 0, host: '127.0.0.1' });
    expect((await post(url, 'k')).body.toString()).toBe('raw');
    expect((await post(url, 'k')).status).toBe(409);
    expect(runs).toBe(1);
  });

  it('keeps to the scope that it is registered in', async () => {
    const app = Fastify({ forceCloseConnections: true });
    const locks = client();
    let runs = 0;
    await app.register(async (scope) => {
      await scope.register(fastifyIdempotency, { locks });
      scope.post('/orders', async () => ++runs);
    });
    app.post('/other', async () => ++runs);
    endings.push(() => app.close());
    const url = await app.listen({ port: 0, host: '127.0.0.1' });
    const bodies = async (path: string) => [
      (await post(url, 'k', {}, {}, path)).body.toString(),
      (await post(url, 'k', {}, {}, path)).body.toString(),
    ];
    expect(await bodies('/orders')).toEqual(['1', '1']);
    expect(await bodies('/other')).toEqual(['2', '3']);
  });
});

describeWithRedis('idempotency on a Redis', () => {
  it.each([
    ['Fastify', onFastify],
    ['Express', onExpress],
  ] as const)(
    '%s: once over two processes’ clients; 503 or a pass when it is out; back when it is back',
    async (_name, serve) => {
      const redis = await startRedis();
      let runs = 0;
      const handler: Handler = async () => {
        await sleep(50);
        return { status: 201, json: ++runs };
      };
      const options = { redis: redis.url, outageMs: 300, commandMs: 300 };
      const urls = [
        await serve(client(options), {}, handler),
        await serve(client(options), {}, handler),
        await serve(client(options), { onOutage: 'pass' }, handler),
      ];
      const all = await Promise.all(Array.from({ length: 20 }, (_, at) => post(urls[at % 3]!, 'k')));
      expect(runs).toBe(1);
      expect(all.map(({ status, body }) => `${status} ${body}`)).toEqual(Array(20).fill('201 1'));

      await redis.kill();
      const refused = await post(urls[0]!, 'k2');
      expect([refused.status, codeOf(refused), refused.headers['retry-after']]).toEqual([503, 'unavailable', '1']);
      expect(runs).toBe(1);
      expect((await post(urls[2]!, 'k2')).body.toString()).toBe('2');
      await redis.restart();
      await until('it serves again', 5000, async () => (await post(urls[1]!, 'k3')).status === 201);
      expect((await post(urls[0]!, 'k3')).headers['idempotent-replayed']).toBe('true');
    },
  );

  it('an outage between the work and its answer: the answer is sent all the same', async () => {
    const redis = await startRedis();
    const url = await onFastify(client({ redis: redis.url, outageMs: 300, commandMs: 300 }), {}, async () => {
      await redis.kill();
      return { json: 'done' };
    });
    expect((await post(url, 'k')).body.toString()).toContain('done');
  });
});
