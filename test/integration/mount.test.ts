import type { Server } from 'node:http';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import express, { Router } from 'express';
import Fastify from 'fastify';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import doorbusterPlugin from '../../src/fastify.ts';
import { createDoorbuster, type Doorbuster } from '../../src/index.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { ADMIN_KEY, type Answer, AUTH_SECRET, caller, cleanUp, saleBody, temporaryFolder } from '../support/server.ts';

/** The routes and pages, mounted below a path of another application. */
let shop: Doorbuster;

beforeAll(async () => {
  const data = join(temporaryFolder(), 'mounted');
  shop = await createDoorbuster({
    data,
    adminKey: ADMIN_KEY,
    authSecret: AUTH_SECRET,
    http: { eventLoopDelayMsMax: 60_000 },
  });
});
afterAll(async () => {
  await shop.close();
  await cleanUp();
});

interface Mounted {
  url: string;
  close(): Promise<void>;
}

async function listening(server: Server): Promise<Mounted> {
  if (!server.listening) await new Promise((resolve) => server.once('listening', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

const MOUNTS: { name: string; mount: string; start(): Promise<Mounted> }[] = [
  {
    name: 'Express',
    mount: '/shop',
    start: () => listening(express().use('/shop', shop.handler()).listen(0, '127.0.0.1')),
  },
  {
    name: 'a router in a router of Express',
    mount: '/eu/de:shop',
    start: () => {
      const inner = Router().use('/de\\:shop', shop.handler());
      return listening(express().use('/eu', inner).listen(0, '127.0.0.1'));
    },
  },
  {
    name: 'plain node:http that takes its own path off, as Connect does',
    mount: '/shop',
    start: () => {
      const handler = shop.handler();
      const server = createServer((request, response) => {
        const url = request.url!;
        if (!/^\/shop(?=[/?]|$)/.test(url)) return void response.writeHead(404).end();
        Object.assign(request, { originalUrl: url });
        request.url = url.slice('/shop'.length).replace(/^(?!\/)/, '/');
        handler(request, response);
      });
      return listening(server.listen(0, '127.0.0.1'));
    },
  },
  {
    name: 'Fastify',
    mount: '/shop',
    start: async () => {
      const app = Fastify();
      await app.register(doorbusterPlugin, { shop, prefix: '/shop' });
      return { url: await app.listen({ port: 0, host: '127.0.0.1' }), close: () => app.close() };
    },
  },
  { name: 'no mount at all', mount: '', start: () => listening(createServer(shop.handler()).listen(0, '127.0.0.1')) },
];

describe.each(MOUNTS)('under $name', ({ mount, start }) => {
  let mounted: Mounted;
  let call: ReturnType<typeof caller>;
  beforeAll(async () => {
    mounted = await start();
    call = caller(mounted.url);
  });
  afterAll(() => mounted.close());

  it('each page loads all that it needs, with and without a slash at its end', async () => {
    for (const page of [mount, `${mount}/`, `${mount}/docs`, `${mount}/docs/`, `${mount}/docs/static/index.html`]) {
      const answer = await fetch(mounted.url + page);
      const html = await answer.text();
      expect([page, answer.status, answer.headers.get('content-type')]).toEqual([
        page,
        200,
        expect.stringMatching(/^text\/html/),
      ]);
      const needed = [...html.matchAll(/(?:src|href)="([^"]+\.(?:js|css|png|json))"/g)].map(([, file]) => file!);
      if (page.includes('docs')) {
        expect(needed.length).toBeGreaterThan(4);
        // The page's script also requests this.
        needed.push('./json');
      } else {
        expect(needed).toEqual(expect.arrayContaining(['board.css', 'board.js']));
        needed.push('v1/sales?limit=20', 'docs', 'readyz');
      }
      for (const file of needed) {
        const loaded = await fetch(new URL(file, answer.url));
        await loaded.arrayBuffer();
        expect([page, file, loaded.status]).toEqual([page, file, 200]);
      }
    }
  });

  it('a page’s policy lets it load over http from any host', async () => {
    const policy = (await fetch(`${mounted.url}${mount}/docs/`)).headers.get('content-security-policy');
    expect(policy).not.toContain('upgrade-insecure-requests');
  });

  it('a page without its slash is redirected to where it has one, with its query', async () => {
    for (const page of [...(mount === '' ? [] : [mount]), `${mount}/docs`]) {
      for (const query of ['', '?x=1&y=//other.example/']) {
        const answer = await fetch(`${mounted.url}${page}${query}`, { redirect: 'manual' });
        const to = answer.headers.get('location')!;
        expect([answer.status, new URL(to, mounted.url + page).href]).toEqual([302, `${mounted.url}${page}/${query}`]);
        // Relative, so that it also works behind a proxy that strips a path.
        expect(to).toMatch(/^\.\/[^/]/);
      }
    }
  });

  it('the document says where its paths are', async () => {
    for (const at of ['/openapi.json', '/docs/json']) {
      const document: Answer = await call('GET', mount + at);
      const { servers, paths } = document.body;
      const base = new URL(servers?.[0].url ?? '/', mounted.url + mount + at).href.replace(/\/$/, '');
      const time = Object.keys(paths).find((path) => path.endsWith('/v1/time'))!;
      const answer = await fetch(base + time);
      expect([base + time, answer.status]).toEqual([`${mounted.url}${mount}/v1/time`, 200]);
      await answer.arrayBuffer();
    }
  });

  it('a Location leads to what it names', async () => {
    const made = await call('POST', `${mount}/v1/sales`, { admin: true, body: saleBody() });
    expect(made.status).toBe(201);
    const order = { buyer: 'a', body: { item: 'voucher' } };
    const placed = await call('POST', `${mount}/v1/sales/${made.body.id}/orders`, order);
    expect(placed.status).toBe(201);
    for (const { headers, body } of [made, placed]) {
      const named = await call('GET', headers.get('location')!, { admin: true });
      expect([headers.get('location'), named.body.id]).toEqual([
        expect.stringMatching(new RegExp(`^${mount}/v1/`)),
        body.id,
      ]);
    }
  });

  it('a page takes GET and HEAD', async () => {
    for (const page of [mount || '/', `${mount}/`, `${mount}/docs`, `${mount}/docs/`]) {
      const answer = await call('POST', page, { body: {} });
      expectProblem(answer, 405, 'method_not_allowed');
      expect(answer.headers.get('allow')).toBe('GET, HEAD');
    }
  });
});

it('after express.json() a call is answered with what to do about it', async () => {
  const app = express();
  app.use(express.json());
  app.use('/shop', shop.handler());
  const mounted = await listening(app.listen(0, '127.0.0.1'));
  const call = caller(mounted.url);
  const answer = await call('POST', '/shop/v1/sales', { admin: true, body: saleBody() });
  expect([answer.status, answer.body.code]).toEqual([500, 'internal']);
  expect(answer.body.detail).toMatch(/express\.json\(\)/);
  expect(answer.body.detail).toMatch(/before/);
  // Requests without a body work.
  expect((await call('GET', '/shop/v1/sales')).status).toBe(200);
  await mounted.close();
});
