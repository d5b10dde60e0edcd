import { spawn } from 'node:child_process';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { createDoorbuster } from '../../src/index.ts';
import { CrowdClient } from '../support/crowd-client.ts';
import { allFaults, ledgerOrders, NO_FAULTS, saleNow } from '../support/crowd-judge.ts';
import { below, CrowdRecord, seedOf } from '../support/crowd-record.ts';
import { startCalmServer } from '../support/fault-server.ts';
import { bareSocket } from '../support/fault-socket.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { BIN, cleanUp, createSale, type TestServer, temporaryFolder, token } from '../support/server.ts';

const DRAIN_MS_MAX = 10_000;
const CROWD_DRAIN_MS_MAX = 4_000;

afterAll(cleanUp);

async function ended(server: TestServer, signal: NodeJS.Signals): Promise<{ code: number | null; tookMs: number }> {
  const sentAtMs = performance.now();
  const code = await new Promise<number | null>((resolve) => {
    server.process.once('exit', resolve);
    server.process.kill(signal);
  });
  return { code, tookMs: performance.now() - sentAtMs };
}

describe.each(['SIGTERM', 'SIGINT'] as const)('%s in the middle of a crowd', (signal) => {
  it('answers what is in flight, ends event streams, exits 0 within 10 s; every 201 is there afterwards', async () => {
    const { random, label } = seedOf(signal);
    let server = await startCalmServer();
    const saleId = await createSale(server, { stock: 100_000, perBuyer: 100 });
    const record = new CrowdRecord();
    const client = new CrowdClient(server.url, 64);
    const order = await record.place(client, { saleId, buyer: 'watcher' });
    const streams = await Promise.all([
      bareSocket(server.url, `GET /v1/sales/${saleId}/events HTTP/1.1\r\nhost: x\r\n\r\n`),
      bareSocket(
        server.url,
        `GET /v1/orders/${order.order!.id}/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token('watcher')}\r\n\r\n`,
      ),
    ]);
    await until('the streams are open', 5_000, () => streams.every(({ heard }) => heard().includes('\ndata: ')));
    // Idle after one answer, and open for as long as the server allows.
    const idle = await bareSocket(server.url, 'GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n');

    let signalledAtMs = Number.POSITIVE_INFINITY;
    const buyer = async (): Promise<void> => {
      for (;;) {
        const n = record.tries.length;
        const one = await record.place(client, {
          saleId,
          buyer: `buyer-${n % 3000}`,
          key: `${n} ${random.fraction()}`,
        });
        if (one.status === 0) return;
        // Some buyers go on, most become silent on an open connection.
        if (performance.now() > signalledAtMs && random.fraction() < 0.9) return;
      }
    };
    const crowd = Promise.all(Array.from({ length: 64 }, buyer));
    await until('a crowd', 10_000, () => record.tries.length > 500 + below(random, 500));
    signalledAtMs = performance.now();
    const ending = ended(server, signal);
    const readiness = watchReadiness(server);
    const { code, tookMs } = await ending;
    await crowd;
    client.close();
    expect(code, label).toBe(0);
    expect(tookMs, label).toBeLessThan(DRAIN_MS_MAX);
    // Nothing here takes long: the server does not wait for a buyer who has the answer and keeps the connection open.
    expect(tookMs, label).toBeLessThan(CROWD_DRAIN_MS_MAX);

    // Once it says 503 it never says anything else.
    const seen = await readiness;
    expect(seen.slice(Math.max(seen.indexOf(503), 0)).filter((status) => status !== 503 && seen.includes(503))).toEqual(
      [],
    );
    for (const { heard, ended: end } of streams) {
      expect(await end, label).toBe('end');
      expect(heard(), label).toMatch(/\r\n0\r\n\r\n$/);
    }
    expect(await idle.ended, label).toBe('end');
    expect(record.strange, label).toEqual([]);

    // A request without an answer met a closing connection and had no effect: none was started and then dropped.
    const answered = record.tries.filter(({ status }) => status !== 0);
    const dropped = record.tries.length - answered.length;
    server = await startCalmServer({ data: server.data });
    const [sale, orders] = [await saleNow(server, saleId), await ledgerOrders(server, saleId)];
    expect(allFaults(sale, orders, answered, 100), label).toEqual(NO_FAULTS);
    expect(await server.stop(), label).toBe(0);
    const refused = answered.filter(({ status }) => status === 503).length;
    console.log(
      `${label}: ended in ${Math.round(tookMs)} ms; ${answered.length} answered, ${refused} of them 503, ` +
        `${dropped} on a connection that was closed; /readyz ${JSON.stringify(seen)}`,
    );
  });
});

// Concurrent, because one of them waits for seconds.
describe.concurrent('SIGTERM', () => {
  it('waits for no idle connection', async () => {
    const server = await startCalmServer();
    const idle = await Promise.all(
      Array.from({ length: 20 }, () => bareSocket(server.url, 'GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n')),
    );
    // Browsers open connections in advance, and load balancers to probe a server.
    await bareSocket(server.url, '');
    await until('all are answered', 5_000, () => idle.every(({ heard }) => heard().includes('{"status":"ok"}')));
    const { code, tookMs } = await ended(server, 'SIGTERM');
    expect([code, tookMs < 2_000]).toEqual([0, true]);
  });

  it('waits for a request that is half sent, and not for ever: it still ends within 10 s, in order', async () => {
    let server = await startCalmServer();
    const saleId = await createSale(server, { stock: 5 });
    const body = JSON.stringify({ item: 'voucher' });
    const head = (buyer: string): string =>
      `POST /v1/sales/${saleId}/orders HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token(buyer)}\r\n` +
      `content-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n`;
    const headless = await bareSocket(server.url, head('nobody').slice(0, 60));
    const bodyless = await bareSocket(server.url, head('never') + body.slice(0, 5));
    const slow = await bareSocket(server.url, head('slow') + body.slice(0, 5));
    const idle = await bareSocket(server.url, 'GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n');
    await until('an answer', 5_000, () => idle.heard().includes('{"status":"ok"}'));

    const ending = ended(server, 'SIGTERM');
    await sleep(300);
    // It began before the signal, so it gets an answer: an order, or 503 because the shop is closing.
    slow.socket.write(body.slice(5));
    expect(await slow.ended).toBe('end');
    expect(slow.heard()).toMatch(/^HTTP\/1\.1 (201|503) /);
    const { code, tookMs } = await ending;
    expect(tookMs).toBeLessThan(DRAIN_MS_MAX);
    expect(code).toBe(0);
    for (const one of [headless, bodyless, idle]) await one.ended;

    server = await startCalmServer({ data: server.data });
    const orders = await ledgerOrders(server, saleId);
    expect(orders.length).toBe(slow.heard().startsWith('HTTP/1.1 201') ? 1 : 0);
    expect(await server.stop()).toBe(0);
  });

  it('twice is as good as once', async () => {
    const server = await startCalmServer();
    const half = await bareSocket(server.url, 'GET /healthz HTTP/1.1\r\n');
    server.process.kill('SIGTERM');
    await sleep(100);
    server.process.kill('SIGTERM');
    half.socket.destroy();
    expect(await new Promise((resolve) => server.process.once('exit', resolve))).toBe(0);
  });

  it.runIf(process.getuid?.() === 0)('ends a server whose ledger could not be opened, a demo too', async () => {
    const data = join(temporaryFolder(), 'data');
    mkdirSync(data);
    writeFileSync(join(data, 'demo-keys.json'), JSON.stringify({ adminKey: 'a', authSecret: 'b' }));
    chmodSync(join(data, '..'), 0o755);
    chmodSync(data, 0o555);
    const under = ['--reuid=65534', '--regid=65534', '--clear-groups', process.execPath, BIN, 'serve', '--port', '0'];
    for (const args of [['--admin-key', 'a', '--auth-secret', 'b'], ['--demo']]) {
      const child = spawn('setpriv', [...under, '--data', data, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
      let output = '';
      for (const stream of [child.stdout, child.stderr]) {
        stream.on('data', (chunk: Buffer) => {
          output += chunk;
        });
      }
      const code = new Promise<number | null>((resolve) => child.once('exit', resolve));
      try {
        await until('it says so', 10_000, () => output.includes('answering 503'));
        await sleep(200);
        child.kill('SIGTERM');
        expect(await code, `${args[0]}: ${output}`).toBe(0);
      } finally {
        child.kill('SIGKILL');
      }
    }
  });
});

it('P10: behind a balancer: /readyz is 503 for CLOSE_AFTER_MS while calls are still served; a second signal ends that', async () => {
  let server = await startCalmServer({ env: { CLOSE_AFTER_MS: '300000' } });
  const saleId = await createSale(server, { stock: 5 });
  expect((await server.call('GET', '/readyz')).status).toBe(200);
  server.process.kill('SIGTERM');
  let readiness = await server.call('GET', '/readyz');
  await until('503', 5_000, async () => {
    readiness = await server.call('GET', '/readyz');
    return readiness.status === 503;
  });
  expect(readiness.body).toEqual({
    status: 'unavailable',
    parts: { gate: 'ok', pipe: 'the shop is closing', ledger: 'ok' },
  });
  // A balancer that has not polled yet still sends buyers here, on new or kept connections.
  const order = await server.call('POST', `/v1/sales/${saleId}/orders`, { buyer: 'late', body: { item: 'voucher' } });
  expect([order.status, order.headers.get('connection')]).toEqual([201, 'close']);
  expect((await ended(server, 'SIGTERM')).code).toBe(0);

  server = await startCalmServer({ env: { CLOSE_AFTER_MS: '400' } });
  const { code, tookMs } = await ended(server, 'SIGTERM');
  expect([code, tookMs >= 400]).toEqual([0, true]);
});

it('closing a shop finishes every order that was begun, and refuses what comes after', async () => {
  const data = temporaryFolder();
  const open = () => createDoorbuster({ data });
  let shop = await open();
  const made = await shop.sales.create({
    name: 'Vouchers',
    opensAt: 0,
    closesAt: '2099-01-01T00:00:00.000Z',
    items: [{ code: 'voucher', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: 100 }],
  });
  const sale = made.ok ? made.sale.id : '';
  const begun = Array.from({ length: 50 }, (_, n) => shop.orders.place({ sale, buyer: `b-${n}`, item: 'voucher' }));
  const closing = shop.close();
  await expect(shop.orders.place({ sale, buyer: 'late', item: 'voucher' })).rejects.toThrow('closing');
  const placed = await Promise.all(begun);
  await closing;
  expect(placed.filter(({ ok }) => ok).length).toBe(50);
  shop = await open();
  expect((await shop.orders.list({ saleId: sale, limit: 200 })).data.length).toBe(50);
  await shop.close();
});

/** Polls /readyz on new connections until the server is gone. */
async function watchReadiness({ call }: TestServer): Promise<number[]> {
  const seen: number[] = [];
  for (;;) {
    try {
      seen.push((await call('GET', '/readyz')).status);
    } catch {
      return seen;
    }
  }
}
