import { rmSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import type { FastifyInstance } from 'fastify';
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { HTTP_DEFAULTS } from '../../src/http/context.ts';
import { createServer } from '../../src/http/server.ts';
import { sourceOf } from '../../src/library/doorbuster.ts';
import { Bank, type BankOptions } from './life-bank.ts';
import { WEBHOOK_SECRET } from './life-http.ts';
import { ADMIN_KEY, AUTH_SECRET, caller } from './server.ts';
import { temporary } from './sqlite-ledger.ts';

/** An embedded shop in this process, served over HTTP, whose payment provider is a bank under the test's control. */
export interface ServedShop {
  shop: EmbeddedShop;
  bank: Bank;
  data: string;
  url: string;
  call: ReturnType<typeof caller>;
  close(): Promise<void>;
}

export interface ServedOptions extends BankOptions {
  data?: string;
  answerWithinMs?: number;
}

export async function serveShop(options: ServedOptions = {}): Promise<ServedShop> {
  const { data = temporary(), answerWithinMs = 300, ...bankOptions } = options;
  const runtime = systemRuntime();
  const bank = new Bank(bankOptions);
  const payments = { sandbox: false, providers: [bank.provider()], answerWithinMs };
  const shop = await EmbeddedShop.open(data, runtime, { payments });
  const http = {
    ...HTTP_DEFAULTS,
    eventLoopDelayMsMax: 60_000,
    rateLimitBuyer: 1000,
    rateLimitBuyerWrites: 1000,
    rateLimitBuyerReads: 1000,
    adminKeys: [{ name: 'admin', key: ADMIN_KEY }],
    authSecrets: [AUTH_SECRET],
    paymentSecrets: [WEBHOOK_SECRET],
  };
  const app: FastifyInstance = await createServer({ shop: sourceOf(shop), http, runtime, trustProxy: false });
  await app.listen({ port: 0, host: '127.0.0.1' });
  const url = `http://127.0.0.1:${(app.server.address() as AddressInfo).port}`;
  return {
    shop,
    bank,
    data,
    url,
    call: caller(url),
    close: async () => {
      shop.stop();
      await app.close();
      await shop.close();
      rmSync(data, { recursive: true, force: true });
    },
  };
}
