import { afterAll, beforeAll, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { SqlLedger } from '../../src/ledger/drivers/server/ledger.ts';
import { actor } from '../../src/model/actor.ts';
import { until } from '../support/fault-wait.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis, describeWithPostgres } from '../support/servers/describe.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { QUICK, type Receiver, startReceiver } from '../support/webhooks.ts';

const BY = actor('admin', 'alice');

interface Process {
  shop: DistributedShop;
  ledger: SqlLedger;
}

describeWithAnyRedis('webhooks of a shop of several processes', () => {
  describeWithPostgres('on PostgreSQL', () => {
    let redis: string;
    let database: string;
    let receiver: Receiver;
    const processes: Process[] = [];

    async function start(worker: boolean): Promise<Process> {
      const runtime = systemRuntime();
      const ledger = await openSqlLedger(database, runtime, { migrate: true, exclusive: false });
      const shop = await DistributedShop.open(
        ledger,
        {
          redis,
          prefix: 'webhooks-test',
          answerWithinMs: 5000,
          pipeMax: 1000,
          worker,
          writerLock: 'off',
          life: { payments: { sandbox: false }, webhooks: QUICK },
        },
        runtime,
      );
      processes.push({ shop, ledger });
      return { shop, ledger };
    }

    beforeAll(async () => {
      [redis, database, receiver] = await Promise.all([redisUrl(), postgresUrl(), startReceiver()]);
    }, 60_000);
    afterAll(async () => {
      await Promise.all(processes.map(({ shop }) => shop.close()));
      await receiver.close();
      await cleanUpServers();
    });

    it('an endpoint made at one is told of what happens at any; whoever leads next goes on', async () => {
      const first = await start(true);
      const api = await start(false);
      const saleId = await createSaleIn(api.shop, { stock: 10 });
      const place = async (buyer: string): Promise<string> => {
        const request = { saleId, itemCode: 'voucher', buyer, quantity: 1, key: null };
        const placed = await api.shop.place(request);
        if (!placed.ok || placed.order.status !== 'reserved') throw new Error(JSON.stringify(placed));
        return placed.order.id;
      };
      const told = (): string[] => receiver.received.map(({ body }) => body.id).toSorted();

      expect(first.ledger.keepEvents, 'nobody has subscribed').toBe(false);
      const events = ['order.reserved', 'order.cancelled'] as const;
      const created = await api.shop.webhooks.endpoints.create({ url: receiver.url, events }, BY, null);
      if (!created.ok) throw new Error(created.code);
      expect(api.ledger.keepEvents, 'where it was made, at once').toBe(true);
      await until('elsewhere, soon', 2000, () => first.ledger.keepEvents);

      // Stored by the worker, paid at the other process.
      const order = await place('ann');
      expect(await api.shop.cancelOrder(order, BY)).toMatchObject({ ok: true });
      await until('both are told', 5000, () => receiver.received.length === 2);
      expect(told()).toEqual([`${order}-1`, `${order}-2`]);

      const another = await place('bob');
      await until('it is told', 5000, () => receiver.received.length === 3);
      await first.shop.close();
      // No process leads, so it waits in the ledger.
      expect(await api.shop.cancelOrder(another, BY)).toMatchObject({ ok: true });
      const next = await start(true);
      expect(next.ledger.keepEvents, 'from its start').toBe(true);
      await until('the next leader goes on', 10_000, () => receiver.received.length === 4);
      expect(told()).toEqual([`${order}-1`, `${order}-2`, `${another}-1`, `${another}-2`]);

      expect(await api.shop.webhooks.endpoints.delete(created.endpoint.id, BY)).toBe(true);
      expect(api.ledger.keepEvents).toBe(false);
      await until('nobody writes events any more', 2000, () => !next.ledger.keepEvents);
    });
  });
});
