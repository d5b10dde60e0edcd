import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { RetryableError } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { mysqlDialect } from '../../src/ledger/drivers/mysql/ledger.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { postgresDialect } from '../../src/ledger/drivers/postgres/ledger.ts';
import { Database } from '../../src/ledger/drivers/server/database.ts';
import type { SqlLedger } from '../../src/ledger/drivers/server/ledger.ts';
import type { StoredOrder } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { sleep, until } from './fault-wait.ts';
import { LONG } from './long.ts';
import { newSale } from './new-sale.ts';
import { cleanUpServers } from './servers/clean-up.ts';
import type { MariadbServer } from './servers/mariadb.ts';
import type { PostgresServer } from './servers/postgres.ts';
import { saysCommitted, startProxy } from './servers/proxy.ts';
import { judgeTables } from './sql-judge.ts';

/** Tests of a ledger on a database when that database, the network or another writer fails. */
export function sqlFaultSuite(name: string, start: () => Promise<MariadbServer | PostgresServer>): void {
  describe(`the ledger on ${name}, and what can fail`, () => {
    let server: MariadbServer | PostgresServer;
    let ledger: SqlLedger;
    let lastId = 1_000_000;
    const sale = newSale({ stock: 100_000 });

    const query = (sql: string) => server.query(name === 'mysql' ? sql.replaceAll('"', '`') : sql);

    beforeAll(async () => {
      server = await start();
      ledger = await openSqlLedger(server.url, systemRuntime(), { migrate: true, exclusive: false });
      const call = { by: actor('admin', 'admin'), auditId: '1', keyed: null, answer: () => '' };
      await ledger.createSale({ ...sale, id: '5', itemIds: ['6'] }, call);
    });
    afterAll(async () => {
      await ledger?.close().catch(() => {});
      await cleanUpServers();
    });

    function batchOf(size: number): OrderMessage[] {
      return Array.from({ length: size }, () => {
        const orderId = String(++lastId);
        return {
          orderId,
          saleId: '5',
          itemId: '6',
          itemCode: 'voucher',
          buyer: `buyer-${orderId}`,
          quantity: 1,
          slots: [1],
          price: sale.items[0]!.price,
          payWithinSeconds: 60,
          epoch: 1,
          key: `k${orderId}`,
          fingerprint: 'x',
        };
      });
    }

    /** Retries the same batch until the ledger says what became of it, as a writer does. */
    async function stored(
      batch: OrderMessage[],
      from: SqlLedger = ledger,
    ): Promise<{ tries: number; answers: StoredOrder[] }> {
      for (let tries = 1; ; tries++) {
        try {
          return { tries, answers: await from.commitOrders(batch) };
        } catch (error) {
          expect(error, 'an outage never counts against a message').toBeInstanceOf(RetryableError);
          await sleep(50);
        }
      }
    }

    it('P1 P2 P3: it is killed in the middle of commits; nothing acknowledged is lost, nothing is there twice', async () => {
      let over = false;
      let sent = 0;
      let failed = 0;
      const acknowledged: string[] = [];
      const writing = Array.from({ length: 3 }, async () => {
        while (!over) {
          const batch = batchOf(40);
          const { tries, answers } = await stored(batch);
          if (tries > 1) failed++;
          sent += batch.length;
          acknowledged.push(...answers.map(({ order }) => order.id));
          expect(answers.every(({ order }) => order.status === 'reserved')).toBe(true);
        }
      });
      for (let kills = 0; kills < 3; kills++) {
        await sleep(150 + Math.random() * 250);
        await server.restart();
      }
      await sleep(200);
      over = true;
      await Promise.all(writing);
      expect(failed, 'a kill was felt').toBeGreaterThan(0);
      expect(new Set(acknowledged).size).toBe(sent);
      expect((await ledger.storedAmong(acknowledged)).size).toBe(sent);
      await judgeTables(query);
      expect((await ledger.getSale('5'))!.items[0]!.reserved).toBe(sent);
    }, 60_000);

    it('P3: the reply to a commit is lost; sent again, the batch is the same orders', async () => {
      const proxy = await startProxy(server.port);
      const through = new URL(server.url);
      through.port = String(proxy.port);
      const remote = await openSqlLedger(through.href, systemRuntime(), { migrate: false, exclusive: false });
      onTestFinished(() => remote.close());
      const before = (await ledger.getSale('5'))!.items[0]!;
      const batch = batchOf(10);
      proxy.dropReplies(saysCommitted);
      await expect(remote.commitOrders(batch)).rejects.toBeInstanceOf(RetryableError);
      expect(proxy.counters().repliesDropped).toBe(1);
      proxy.dropReplies(0);
      const { answers } = await stored(batch, remote);
      expect(answers.map(({ inserted }) => inserted)).toEqual(Array(10).fill(false));
      const after = (await ledger.getSale('5'))!.items[0]!;
      expect(after).toEqual({ ...before, reserved: before.reserved + 10, rev: before.rev + 1 });
      await judgeTables(query);
    });

    it('P1 P3: a COMMIT that comes late: whether its orders are stored is not said before it is certain', async () => {
      const proxy = await startProxy(server.port);
      onTestFinished(() => proxy.close());
      const through = new URL(server.url);
      through.port = String(proxy.port);
      const remote = await openSqlLedger(through.href, systemRuntime(), { migrate: false, exclusive: false });
      onTestFinished(() => remote.close());
      const isCommit = (request: Buffer): boolean => /COMMIT(?!TED)/.test(request.toString('latin1'));
      const sizes = (found: Map<string, unknown>): number => found.size;

      // A ledger that does not know the session waits for the item's row, which the session has locked.
      const first = batchOf(10);
      let held = proxy.holdRequest(isCommit);
      await expect(remote.commitOrders(first)).rejects.toBeInstanceOf(RetryableError);
      await held;
      expect((await ledger.storedAmong(first.map(({ orderId }) => orderId))).size, 'not yet').toBe(0);
      let answered = false;
      const asked = ledger.storedAtRest(first).then((found) => {
        answered = true;
        return sizes(found);
      });
      await ledger.probe();
      expect(answered).toBe(false);
      proxy.passHeld();
      expect(await asked, 'it was committed, and nobody said otherwise').toBe(10);

      // A ledger that knows the session ends it, so that it cannot commit any more.
      const second = batchOf(10);
      held = proxy.holdRequest(isCommit);
      await expect(remote.commitOrders(second)).rejects.toBeInstanceOf(RetryableError);
      await held;
      const startedMs = performance.now();
      expect(sizes(await remote.storedAtRest(second))).toBe(0);
      expect(performance.now() - startedMs, 'and does not wait until the server notices').toBeLessThan(4_000);
      proxy.passHeld();
      await until('the server has dealt with it', 5_000, () => proxy.heldOpen() === 0);
      expect(sizes(await ledger.storedAtRest(second)), 'as it was said').toBe(0);
      const { answers } = await stored(second, remote);
      expect(answers.every(({ inserted }) => inserted)).toBe(true);
      await judgeTables(query);
    });

    it('P10: a session that was at work when its client left is ended as soon as it only waits', async () => {
      // MariaDB reports its uptime in whole seconds, so right after a start it is unclear which sessions belong to it.
      await server.restart();
      const proxy = await startProxy(server.port);
      onTestFinished(() => proxy.close());
      const through = new URL(server.url);
      through.port = String(proxy.port);
      const open = name === 'mysql' ? mysqlDialect : postgresDialect;
      const database = new Database(await open(through.href, systemRuntime(), {}), systemRuntime(), null);
      onTestFinished(() => database.end());
      const forsaken = proxy.forsake((request) => request.includes('SLEEP(0.2)'));
      const leaving = database.transaction(async (session) => {
        await session.query('SELECT id FROM items WHERE id = 6 FOR UPDATE');
        await session.query(name === 'mysql' ? 'SELECT SLEEP(0.2)' : 'SELECT PG_SLEEP(0.2)');
      });
      await expect(leaving).rejects.toBeInstanceOf(RetryableError);
      await forsaken;
      const startedMs = performance.now();
      await database.endLeft();
      await database.transaction((session) => session.query('SELECT id FROM items WHERE id = 6 FOR UPDATE'));
      expect(performance.now() - startedMs, 'nobody waits until the server notices').toBeLessThan(4_000);
    });

    // Takes as long as the database's own time limit.
    it.runIf(LONG || name === 'postgres')(
      'a writer is stopped while it holds the row of an item: the database frees it',
      async () => {
        const holder: ChildProcess = spawn(
          process.execPath,
          [fileURLToPath(new URL('./sql-holder.ts', import.meta.url)), server.url, '6'],
          { stdio: ['ignore', 'pipe', 'inherit'] },
        );
        onTestFinished(() => {
          holder.kill('SIGKILL');
        });
        await new Promise((resolve) => holder.stdout!.once('data', resolve));
        holder.kill('SIGSTOP');
        const startedMs = performance.now();
        const { tries } = await stored(batchOf(10));
        const waitedMs = performance.now() - startedMs;
        expect(tries, 'it had to wait for the row').toBeGreaterThan(1);
        expect(waitedMs).toBeGreaterThan(4_000);
        expect(waitedMs).toBeLessThan(20_000);
        await judgeTables(query);
      },
      60_000,
    );
  });
}
