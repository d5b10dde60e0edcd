import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, it, onTestFinished } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { SqlLedger } from '../../src/ledger/drivers/server/ledger.ts';
import { actor } from '../../src/model/actor.ts';
import { until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis, describeWithMysql, describeWithPostgres } from '../support/servers/describe.ts';
import { mysqlUrl } from '../support/servers/mariadb.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { QUICK } from '../support/webhooks.ts';

const AGENT = fileURLToPath(new URL('../support/dying-worker.ts', import.meta.url));
const ORDERS = 40;

/** Makes the dead worker's messages look a minute old, so that the test need not wait. */
async function growOld(url: string, prefix: string): Promise<void> {
  const client = new Redis(url);
  try {
    for (const stream of await client.keys(`${prefix}:*:stream`)) {
      for (const group of (await client.xinfo('GROUPS', stream)) as string[][]) {
        const pending = (await client.xpending(stream, group[1]!, '-', '+', 1000)) as [string, string][];
        for (const [id, consumer] of pending) {
          await client.xclaim(stream, group[1]!, consumer, 0, id, 'IDLE', 60_000, 'JUSTID');
        }
      }
    }
  } finally {
    client.disconnect();
  }
}

/** A worker is killed between its commit and the acknowledgement, with a webhook endpoint subscribed. */
function suite(database: () => Promise<string>): void {
  let redis: string;
  let url: string;
  let dying: ChildProcess | null = null;
  const shops: DistributedShop[] = [];
  beforeAll(async () => {
    [redis, url] = await Promise.all([redisUrl(), database()]);
  }, 60_000);
  afterEach(async () => {
    dying?.kill('SIGKILL');
    await Promise.all(shops.splice(0).map((shop) => shop.close()));
  });
  afterAll(cleanUpServers);

  const openLedger = (): Promise<SqlLedger> => openSqlLedger(url, systemRuntime(), { migrate: true, exclusive: false });

  async function start(worker: boolean, prefix: string) {
    const ledger = await openLedger();
    // The events are not taken over before the batch is redelivered: only then could they conflict.
    ledger.outgoingEvents = async () => [];
    const shop = await DistributedShop.open(
      ledger,
      {
        ...{ redis, prefix, answerWithinMs: 100, pipeMax: 1000, worker, writerLock: 'off' },
        life: { payments: { sandbox: false }, webhooks: QUICK },
      },
      systemRuntime(),
    );
    shops.push(shop);
    return shop;
  }

  it('P3: what it committed is known to the next worker: no dead letters, one event for each order', async () => {
    const prefix = `redelivery-${Math.random().toString(36).slice(2)}`;
    const api = await start(false, prefix);
    await api.webhooks.endpoints.create(
      { url: 'http://127.0.0.1:9/', events: ['order.reserved'] },
      actor('admin', 'admin'),
      null,
    );
    dying = spawn(process.execPath, [AGENT, redis, url, prefix], { stdio: ['ignore', 'pipe', 'inherit'] });
    let output = '';
    dying.stdout!.on('data', (chunk) => {
      output += chunk;
    });
    await until('it works', 20_000, () => output.includes('works'));
    const saleId = await createSaleIn(api);
    const placed = await Promise.all(
      Array.from({ length: ORDERS }, (_, at) =>
        api.place({ saleId, itemCode: 'voucher', buyer: `buyer-${at}`, quantity: 1, key: null }),
      ),
    );
    const ids = placed.map((one) => (one.ok ? one.order.id : one.code));
    await until('it committed', 10_000, () => output.includes('committed'));
    dying.kill('SIGKILL');
    await growOld(redis, prefix);
    const next = await start(true, prefix);
    await until('all are out of the pipe', 30_000, async () => {
      const item = (await api.getSaleNow(saleId))!.items[0]!;
      const { data: letters } = await next.deadLetters.page(500, null);
      return item.queued === 0 || letters.length > 0;
    });
    expect((await next.deadLetters.page(500, null)).data.map(({ error }) => error)).toEqual([]);
    expect((await api.getSaleNow(saleId))!.items[0]).toMatchObject({ reserved: ORDERS, queued: 0 });
    const ledger = await openLedger();
    onTestFinished(() => ledger.close());
    const events = await ledger.outgoingEvents(500);
    expect(events.map(({ orderId }) => orderId).toSorted()).toEqual(ids.toSorted());
  }, 90_000);
}

describeWithAnyRedis('a worker that dies after its commit', () => {
  if (LONG) describeWithMysql('on MariaDB', () => suite(mysqlUrl));
  describeWithPostgres('on PostgreSQL', () => suite(postgresUrl));
});
