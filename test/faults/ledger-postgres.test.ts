import { expect, it, onTestFinished } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { Move } from '../../src/ledger/port.ts';
import { sleep } from '../support/fault-wait.ts';
import { newSale } from '../support/new-sale.ts';
import { describeWithOwnPostgres } from '../support/servers/describe.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { startProxy } from '../support/servers/proxy.ts';
import { sqlFaultSuite } from '../support/sql-faults.ts';

describeWithOwnPostgres('PostgreSQL', () => sqlFaultSuite('postgres', startPostgres));

/** One way. Much more than a commit takes, also on a busy machine. */
const DELAY_MS = 400;
const LOOK_EVERY_MS = 20;

describeWithOwnPostgres('a PostgreSQL that is far away', () => {
  it('P10: nobody holds the hot row of an item while an answer is on its way', async () => {
    const server = await startPostgres();
    const proxy = await startProxy(server.port);
    const far = new URL(server.url);
    far.port = String(proxy.port);
    const ledger = await openSqlLedger(far.href, systemRuntime(), { migrate: true, exclusive: false });
    onTestFinished(() => ledger.close());
    const by = { kind: 'library', name: 'test', origin: null } as const;
    const sale = newSale({ stock: 100 });
    await ledger.createSale({ ...sale, id: '5', itemIds: ['6'] }, { by, auditId: '1', keyed: null, answer: () => '' });
    const orders = ['101', '102'].map((orderId) => ({
      ...{ orderId, saleId: '5', itemId: '6', itemCode: 'voucher', buyer: `buyer-${orderId}`, quantity: 1, slots: [1] },
      ...{ price: sale.items[0]!.price, payWithinSeconds: 600, epoch: 1, key: null, fingerprint: 'x' },
    }));
    const cancel = (orderId: string, auditId: string): Move => {
      return { orderId, event: 'cancel', by, auditId, fence: null };
    };

    /** The longest time for which the row could not be had while this was done, give or take a look. */
    async function heldMs(work: () => Promise<unknown>): Promise<number> {
      let [longest, since, over] = [0, null as number | null, false];
      const looking = (async () => {
        while (!over) {
          // A row that is locked is passed by.
          const free = await server.query('SELECT id FROM items WHERE id = 6 FOR UPDATE SKIP LOCKED');
          const now = performance.now();
          if (free.length === 0) since ??= now;
          else since = null;
          if (since !== null) longest = Math.max(longest, now - since);
          await sleep(LOOK_EVERY_MS);
        }
      })();
      await work();
      over = true;
      await looking;
      return longest;
    }

    proxy.delay(DELAY_MS);
    expect(await heldMs(() => ledger.commitOrders(orders)), 'by new orders').toBeLessThan(DELAY_MS);
    expect(await heldMs(() => ledger.moveOrders([cancel('101', '2')])), 'by a move').toBeLessThan(DELAY_MS);
    proxy.delay(0);
    const [{ reserved } = { reserved: null }] = await server.query('SELECT reserved FROM items WHERE id = 6');
    expect(reserved).toBe(1);
  }, 60_000);
});
