import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cleanUp, startServer, type TestServer } from '../support/server.ts';
import { concert, seatsOverHttp } from './seats-suite.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startServer({ env: { WEBHOOKS_PRIVATE: 'on' } });
});
afterAll(cleanUp);

describe('numbered seats, embedded', () => seatsOverHttp(() => ({ a: server, b: server })));

it('100 000 seats in a definition, and after a restart', async () => {
  const price = { amount: 1, currency: 'CNY' };
  // As long as a body of that many seats may be: each number is written out.
  const numbers = Array.from({ length: 500 }, (_, at) => 900_000 + at);
  const seats = Array.from({ length: 200 }, (_, at) => ({ section: 'Hall', row: `${at}`, numbers }));
  const body = concert({ perBuyer: 100, items: [{ code: 'hall', name: 'Hall', price, seats }] });
  const made = await server.call('POST', '/v1/sales', { admin: true, body });
  expect([made.status, made.body.items[0].total]).toEqual([201, 100_000]);
  const tooMany = {
    ...body,
    items: [{ ...body.items[0], seats: [...seats, { section: 'Hall', row: 'x', from: 1, to: 1 }] }],
  };
  expect((await server.call('POST', '/v1/sales', { admin: true, body: tooMany })).status).toBe(422);
  const { id } = made.body;
  const last = ['Hall/199/900498', 'Hall/199/900499'];
  const placed = await server.call('POST', `/v1/sales/${id}/orders`, { buyer: 'alice', body: { seats: last } });
  expect([placed.status, placed.body.seats]).toEqual([201, last]);
  const best = { item: 'hall', quantity: 100, together: true };
  expect((await server.call('POST', `/v1/sales/${id}/orders`, { buyer: 'bob', body: best })).body.seats[0]).toBe(
    'Hall/0/900200',
  );
  expect(await server.stop()).toBe(0);
  server = await startServer({ data: server.data });
  const { body: shown } = await server.call('GET', `/v1/sales/${id}/seats`);
  const rows = shown.items[0].rows as { states: string }[];
  expect([rows.length, rows[0]!.states, rows[199]!.states]).toEqual([
    200,
    'f'.repeat(200) + 'r'.repeat(100) + 'f'.repeat(200),
    `${'f'.repeat(498)}rr`,
  ]);
});
