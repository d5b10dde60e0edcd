import { afterAll, beforeAll, expect, it } from 'vitest';
import { admin, counts, isWhole, place, replayed } from '../support/distributed-calls.ts';
import { until } from '../support/fault-wait.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import {
  ADMIN_KEY,
  AUTH_SECRET,
  allOrders,
  cleanUp,
  createSale,
  run,
  startServer,
  type TestServer,
} from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres } from '../support/servers/describe.ts';
import { anyMysql } from '../support/servers/mariadb.ts';
import { anyPostgres } from '../support/servers/postgres.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';

/** DATABASE_URL without REDIS_URL: one process with its gate in memory, and the database to itself. */
function suite(start: () => Promise<{ port: number; url: string }>): void {
  let proxy: FaultProxy;
  let server: TestServer;
  let env: { DATABASE_URL: string; LOG_LEVEL: string };
  beforeAll(async () => {
    const database = await start();
    proxy = await startProxy(database.port);
    const url = new URL(database.url);
    url.port = String(proxy.port);
    env = { DATABASE_URL: url.href, LOG_LEVEL: 'fatal' };
  }, 60_000);
  afterAll(async () => {
    await cleanUp();
    await cleanUpServers();
  });

  it('sells, keeps orders, limits and keys over a kill, and keeps a second process out', async () => {
    // The start migrates an empty database, because no other process can use it.
    const first = await startServer({ env });
    expect((await first.call('GET', '/readyz')).body).toEqual({
      status: 'ok',
      parts: { gate: 'ok', pipe: 'ok', ledger: 'ok' },
    });
    const sale = await createSale(first, { stock: 3, perBuyer: 1 });
    const order = await place(first, sale, 'alice', { key: 'k' });
    expect(order).toMatchObject({ status: 201, body: { status: 'reserved' } });

    const keys = { DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET, PORT: '0' };
    const second = await run(['serve'], { ...keys, ...env });
    expect(second.code).toBe(1);
    expect(second.stderr.trimEnd().split('\n')).toHaveLength(1);
    expect(second.stderr).toMatch(/^doorbuster serve: another doorbuster process is using this database/);
    expect(second.stderr).not.toContain('doorbuster:doorbuster@');

    await first.kill();
    const next = await startServer({ env });
    const replay = await place(next, sale, 'alice', { key: 'k' });
    expect([replay.status, replay.body, replayed(replay)]).toEqual([201, order.body, true]);
    expectProblem(await place(next, sale, 'alice'), 409, 'limit_reached');
    expect((await place(next, sale, 'bob')).status).toBe(201);
    expect((await place(next, sale, 'carol')).status).toBe(201);
    expectProblem(await place(next, sale, 'dora'), 409, 'sold_out');
    expect(await counts(next, sale)).toMatchObject({ total: 3, free: 0, reserved: 3, queued: 0 });
    expect(await allOrders(next, sale)).toHaveLength(3);
    server = next;
  });

  it('a database that goes away: 503 and never 202; it sells again when it is back, and counts are right', async () => {
    const sale = await createSale(server, { stock: 20, perBuyer: 20 });
    const before = await place(server, sale, 'alice', { key: 'before' });
    expect(before.status).toBe(201);
    await proxy.refuse(true);
    proxy.cut();
    for (let n = 0; n < 3; n++) {
      const out = await place(server, sale, 'alice', { key: `out-${n}` });
      expectProblem(out, 503, 'unavailable');
      expect(out.headers.get('retry-after')).toMatch(/^\d+$/);
    }
    const { status, body } = await server.call('GET', '/readyz');
    expect({ status, ledger: body.parts.ledger === 'ok' }).toEqual({ status: 503, ledger: false });
    await proxy.refuse(false);
    const after = await until('it sells again', 15_000, async () => {
      const one = await place(server, sale, 'alice', { key: 'after' });
      return one.status === 503 ? null : one;
    });
    expect(after.status).toBe(201);
    await until('ready', 5_000, async () => (await server.call('GET', '/readyz')).status === 200);
    // Their keys tell what became of the orders in flight, and none was bought twice.
    for (let n = 0; n < 3; n++) {
      const one = await place(server, sale, 'alice', { key: `out-${n}` });
      expect(one.status, JSON.stringify(one.body)).toBe(201);
    }
    const item = await counts(server, sale);
    expect(isWhole(item)).toBe(true);
    expect(item).toMatchObject({ total: 20, reserved: 5, queued: 0 });
    expect(await allOrders(server, sale)).toHaveLength(5);
    expect((await admin(server, 'GET', '/v1/ops/dead-letters')).body.data).toEqual([]);
    expect(await server.stop()).toBe(0);
  });
}

describeWithMysql('DATABASE_URL alone, on MariaDB', () => suite(anyMysql));
describeWithPostgres('DATABASE_URL alone, on PostgreSQL', () => suite(anyPostgres));
