import { rmSync } from 'node:fs';
import type { FastifyInstance } from 'fastify';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { silentLog } from '../../src/base/logger.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { systemTimers } from '../../src/base/timers.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import type { Gate } from '../../src/gate/port.ts';
import { HTTP_DEFAULTS } from '../../src/http/context.ts';
import { createServer } from '../../src/http/server.ts';
import { sourceOf } from '../../src/library/doorbuster.ts';
import { until } from '../support/fault-wait.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { temporary } from '../support/sqlite-ledger.ts';

/** A repeat of a key whose first call is under way: the gate of this shop takes units out only when it is told to. */

let folder: string;
let shop: EmbeddedShop;
let app: FastifyInstance;
let saleId: string;
let asked: number;
let goOn: () => void;
/** How many times as fast the server's timers run. */
let haste: number;

beforeEach(async () => {
  haste = 1;
  folder = temporary();
  const runtime = systemRuntime(silentLog());
  shop = await EmbeddedShop.open(folder, runtime);
  const { gate } = shop as unknown as { gate: Gate };
  const { promise, resolve } = Promise.withResolvers<void>();
  const take = gate.holdForHouse.bind(gate);
  asked = 0;
  goOn = resolve;
  gate.holdForHouse = async (...args) => {
    asked++;
    await promise;
    return await take(...args);
  };
  const http = { ...HTTP_DEFAULTS, eventLoopDelayMsMax: 60_000, adminKeys: [{ name: 'alice', key: 'k' }] };
  const timers = { ...systemTimers, after: (ms: number, run: () => void) => systemTimers.after(ms / haste, run) };
  app = await createServer({ shop: sourceOf(shop), http, runtime: { ...runtime, timers }, trustProxy: false });
  saleId = await createSaleIn(shop, { stock: 50 });
});

afterEach(async () => {
  goOn();
  await app.close();
  await shop.close();
  rmSync(folder, { recursive: true, force: true });
});

/** All but one of 50: a second try would find too few. */
const lower = (key: string) =>
  app.inject({
    method: 'POST',
    url: `/v1/sales/${saleId}/items/voucher/stock`,
    headers: { authorization: 'Bearer k', 'idempotency-key': key },
    body: { add: -49 },
  });

it('P5: repeats wait for the first, and none is refused because of it', async () => {
  const all = ['k', 'k', 'k'].map(lower);
  await until('the first has begun', 5000, () => asked > 0);
  const other = lower('another');
  await until('another key waits for nobody', 5000, () => asked === 2);
  goOn();
  const answers = await Promise.all(all);
  expect(answers.map(({ statusCode }) => statusCode)).toEqual([200, 200, 200]);
  expect(new Set(answers.map(({ body }) => body)).size).toBe(1);
  expect(answers.filter(({ headers }) => headers['idempotent-replayed'] === 'true')).toHaveLength(2);
  expect((await other).json()).toMatchObject({ status: 409, code: 'insufficient_free' });
});

it('P10: a repeat does not wait for ever: after 5 s it is told to come back', async () => {
  const first = lower('k');
  await until('the first has begun', 5000, () => asked > 0);
  haste = 100;
  const late = await lower('k');
  expect(late.json()).toMatchObject({ status: 409, code: 'idempotency_in_flight' });
  expect(late.headers['retry-after']).toBe('1');
  goOn();
  expect((await first).statusCode).toBe(200);
  expect((await lower('k')).headers['idempotent-replayed']).toBe('true');
});
