import { afterAll, expect, it } from 'vitest';
import { CrowdClient } from '../support/crowd-client.ts';
import { allFaults, ledgerOrders, NO_FAULTS, saleNow } from '../support/crowd-judge.ts';
import { CrowdRecord, crowdOf } from '../support/crowd-record.ts';
import { startCalmServer } from '../support/fault-server.ts';
import { bareSocket } from '../support/fault-socket.ts';
import { sleep } from '../support/fault-wait.ts';
import { cleanUp, createSale, token } from '../support/server.ts';

afterAll(cleanUp);

/** Buyers close pages. A request that they leave must not count as in flight for ever. */
it('buyers who go away in the middle of a request cost nothing, and their key tells what became of it (P5)', async () => {
  const IN_FLIGHT_MAX = 20;
  const server = await startCalmServer({ env: { IN_FLIGHT_MAX: String(IN_FLIGHT_MAX) } });
  const saleId = await createSale(server, { stock: 60, perBuyer: 1 });
  const body = JSON.stringify({ item: 'voucher' });
  const head = (buyer: string): string =>
    `POST /v1/sales/${saleId}/orders HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token(buyer)}\r\n` +
    `idempotency-key: k\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n`;
  const ways: Record<string, (n: number) => string> = {
    'after half of the head': (n) => head(`half-${n}`).slice(0, 80),
    'after half of the body': (n) => head(`body-${n}`) + body.slice(0, 5),
    'after the whole request': (n) => head(`whole-${n}`) + body,
    'from an event stream': () => `GET /v1/sales/${saleId}/events HTTP/1.1\r\nhost: x\r\n\r\n`,
    'with garbage': () => 'EHLO example.org\r\n\r\n',
  };
  const many = Array.from({ length: 3 * IN_FLIGHT_MAX }, (_, n) => n);
  for (const [way, text] of Object.entries(ways)) {
    await crowdOf(many, 8, async (n) => {
      const { socket } = await bareSocket(server.url, text(n));
      await sleep(n % 3);
      socket.destroy();
    });
    await sleep(50);
    expect((await server.call('GET', `/v1/sales/${saleId}`)).status, way).toBe(200);
  }

  const record = new CrowdRecord();
  const client = new CrowdClient(server.url, 10);
  await crowdOf(many, 10, (n) => record.place(client, { saleId, buyer: `whole-${n}`, key: 'k' }));
  client.close();
  expect(record.tries.every(({ status }) => status === 201)).toBe(true);
  const [sale, orders] = [await saleNow(server, saleId), await ledgerOrders(server, saleId)];
  expect(allFaults(sale, orders, record.tries, 1)).toEqual(NO_FAULTS);
  expect(await server.stop()).toBe(0);
});

it('open event streams are bounded by themselves and take no room from buyers', async () => {
  const server = await startCalmServer({ env: { IN_FLIGHT_MAX: '5', SSE_MAX: '12' } });
  const saleId = await createSale(server, { stock: 1 });
  const open = () => bareSocket(server.url, `GET /v1/sales/${saleId}/events HTTP/1.1\r\nhost: x\r\n\r\n`);
  const streams = [];
  for (let n = 0; n < 14; n++) streams.push(await open());
  await sleep(200);
  expect(streams.map(({ heard }) => heard().slice(9, 12))).toEqual([...Array(12).fill('200'), '503', '503']);
  const path = `/v1/sales/${saleId}/orders`;
  expect((await server.call('POST', path, { buyer: 'alice', body: { item: 'voucher' } })).status).toBe(201);
  streams[0]!.socket.destroy();
  await sleep(100);
  const next = await open();
  await sleep(100);
  expect(next.heard().slice(9, 12)).toBe('200');
  expect(await server.stop()).toBe(0);
});
