import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import type { WebhookOptions } from '../../src/engine/webhooks.ts';
import { HTTP_DEFAULTS } from '../../src/http/context.ts';
import { createServer as createShopServer } from '../../src/http/server.ts';
import { ADMIN_KEY, AUTH_SECRET, caller } from './server.ts';

export interface Received {
  headers: IncomingHttpHeaders;
  text: string;
  body: { id: string; type: string; at: string; order: { id: string; version: number; status: string } };
  /** The status of the answer; null: none. */
  status: number | null;
}

/** Returns a status, or answers itself (or not at all) and returns null. `count`: earlier deliveries. */
export type Behaviour = (received: Received, count: number, response: ServerResponse) => number | null;

export interface Receiver {
  url: string;
  port: number;
  received: Received[];
  behave(behaviour: Behaviour): void;
  close(): Promise<void>;
}

/** Starts a receiver of webhooks on this machine. */
export async function startReceiver(first: Behaviour = () => 204): Promise<Receiver> {
  let behaviour = first;
  const received: Received[] = [];
  const server = createServer(async (request, response) => {
    let text = '';
    for await (const chunk of request.setEncoding('utf8')) text += chunk;
    const one: Received = { headers: request.headers, text, body: JSON.parse(text), status: null };
    one.status = behaviour(one, received.length, response);
    received.push(one);
    if (one.status !== null) response.writeHead(one.status).end();
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/hooks?shop=1`,
    port,
    received,
    behave(next) {
      behaviour = next;
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** As in production, but with shorter times. The time-outs allow for a busy machine. */
export const QUICK: WebhookOptions = {
  allowPrivate: true,
  pollMs: 15,
  retryMsMin: 20,
  retryMsMax: 60,
  timeoutMs: 5000,
};

export interface WebhookShop {
  shop: EmbeddedShop;
  call: ReturnType<typeof caller>;
  close(): Promise<void>;
}

/** An embedded shop in this process, with its HTTP. */
export async function openWebhookShop(data: string, webhooks: WebhookOptions = QUICK): Promise<WebhookShop> {
  const runtime = systemRuntime();
  const shop = await EmbeddedShop.open(data, runtime, { payments: { sandbox: true }, webhooks });
  const app = await createShopServer({
    shop: {
      get: () => shop,
      readiness: () => shop.readiness(),
      closing: () => shop.closing,
      blockedMs: () => shop.blockedMs,
    },
    http: {
      ...HTTP_DEFAULTS,
      authSecrets: [AUTH_SECRET],
      adminKeys: [{ name: 'alice', key: ADMIN_KEY }],
      eventLoopDelayMsMax: 60_000,
      rateLimitBuyer: 1000,
      rateLimitBuyerWrites: 1000,
      rateLimitBuyerReads: 1000,
    },
    runtime,
    trustProxy: false,
  });
  const url = await app.listen({ port: 0, host: '127.0.0.1' });
  return {
    shop,
    call: caller(url),
    async close() {
      await app.close();
      await shop.close();
    },
  };
}
