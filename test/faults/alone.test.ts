import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { RetryableError } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import type { Gate } from '../../src/gate/port.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { SaleChange } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import { until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { createSaleIn, newSale } from '../support/new-sale.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres } from '../support/servers/describe.ts';
import { mysqlUrl } from '../support/servers/mariadb.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { type FaultProxy, saysCommitted, startProxy } from '../support/servers/proxy.ts';
import { emptyDatabase, queryDatabase } from '../support/sql-databases.ts';

/** Within this time gate and ledger agree, however the call ended. */
const CONVERGED_MS = 4_000;

const isCommit = (request: Buffer): boolean => /COMMIT(?!TED)/.test(request.toString('latin1'));

/**
 * DATABASE_URL without REDIS_URL: a COMMIT whose reply is lost, or that reaches the server late. No other process
 * can tell the gate what became of it.
 */
function suite(database: () => Promise<string>, whole: boolean): void {
  let direct: string;
  let proxy: FaultProxy;
  let shop: EmbeddedShop;
  let saleId: string;
  let buyers = 0;

  beforeAll(async () => {
    direct = await database();
    proxy = await startProxy(Number(new URL(direct).port));
  }, 60_000);
  beforeEach(async () => {
    const url = new URL(direct);
    url.port = String(proxy.port);
    const ledger = await openSqlLedger(url.href, systemRuntime(), {
      migrate: true,
      exclusive: true,
      onExclusive: (state) => expect(state, 'nothing else is mended by a rebuild').toBe('unsure'),
    });
    shop = await EmbeddedShop.on(ledger, systemRuntime());
    saleId = await createSaleIn(shop, SALE);
    // Its work must be done before a COMMIT is chosen to fail.
    await until('its task is done', 5_000, async () => (await tasks()) === 0);
  });
  afterEach(async () => {
    proxy.dropReplies(0);
    proxy.passHeld();
    await shop.close();
    await emptyDatabase(direct);
  });
  afterAll(async () => {
    await proxy?.close();
    await cleanUpServers();
  });

  const SALE = { stock: 3, perBuyer: 5 };

  const tasks = async (): Promise<number> =>
    Number((await queryDatabase(direct, 'SELECT count(*) AS n FROM gate_tasks'))[0]!.n);

  const SCOPE = { caller: 'admin:admin', actingFor: null, operation: 'test', subject: '' };
  const caller = (key: string | null) => ({
    by: actor('admin', 'admin'),
    keyed: key === null ? null : { ...SCOPE, key, fingerprint: 'f' },
  });

  async function buy(quantity = 1): Promise<string> {
    const request = { saleId, itemCode: 'voucher', buyer: `buyer-${++buyers}`, quantity, key: null };
    return shop.place(request).then(
      (result) => (result.ok ? result.order.status : result.code),
      (error: unknown) => (error instanceof RetryableError ? 'unavailable' : `error: ${error}`),
    );
  }

  /** The counts in the ledger. */
  const item = async () => (await shop.getSaleNow(saleId))!.items[0]!;
  /** The counts in the gate. */
  const inGate = async () => (await (shop as unknown as { gate: Gate }).gate.view(saleId))![0]!;

  /** The server commits, but its reply is lost. */
  async function replyLost(call: () => Promise<SaleChange>): Promise<void> {
    const before = proxy.counters().repliesDropped;
    proxy.dropReplies((exchange) => proxy.counters().repliesDropped === before && saysCommitted(exchange));
    await expect(call()).rejects.toBeInstanceOf(RetryableError);
    expect(proxy.counters().repliesDropped).toBe(before + 1);
    await until('the ledger is back', 10_000, () => shop.readiness().status === 'ok');
  }

  /** The client is gone, and the COMMIT has not reached the server yet. */
  async function commitHeld(call: () => Promise<unknown>): Promise<unknown> {
    // Otherwise the COMMIT that is held may be that of the new sale's task.
    await until('the task of the sale is done', 5_000, async () => (await tasks()) === 0);
    const held = proxy.holdRequest(isCommit);
    const calling = call();
    await held;
    return calling;
  }

  // Once is enough: databases differ only in how a session is ended.
  describe.runIf(whole)('an administrative call whose COMMIT was answered to nobody', () => {
    it('more stock, pause: the gate sells it, and then does not, though nobody asks again', async () => {
      expect(await buy(3)).toBe('reserved');
      const first = saleId;
      const other = await createSaleIn(shop, SALE);
      await until('its task is done', 5_000, async () => (await tasks()) === 0);
      await replyLost(() => shop.addStock(first, 'voucher', 5, caller(null)));
      await replyLost(() => shop.setPaused(other, true, caller(null)));
      await until('it sells', CONVERGED_MS, async () => (await buy()) === 'reserved');
      expect(await item()).toMatchObject({ total: 8, free: 4, reserved: 4 });
      saleId = other;
      await until('it is paused', CONVERGED_MS, async () => (await buy(5)) === 'sale_paused');
      await until('the tasks are done', CONVERGED_MS, async () => (await tasks()) === 0);
    });

    it('a retry is told the answer, and the gate has heard of it by then: more stock, pause', async () => {
      expect(await buy(3)).toBe('reserved');
      const stock = () => shop.addStock(saleId, 'voucher', 5, caller('stock'));
      await replyLost(stock);
      expect((await stock()).outcome).toBe('replayed');
      expect(await buy(), 'at once').toBe('reserved');
      const pause = () => shop.setPaused(saleId, true, caller('pause'));
      await replyLost(pause);
      expect((await pause()).outcome).toBe('replayed');
      expect(await buy(), 'at once').toBe('sale_paused');
    });

    it('a new sale: whoever asks again can sell it at once', async () => {
      const sale = newSale(SALE);
      const create = () => shop.createSale(sale, caller('create'));
      await replyLost(create);
      const again = await create();
      if (again.outcome !== 'replayed') throw new Error(again.outcome);
      saleId = (JSON.parse(again.answer) as { id: string }).id;
      expect(await buy(), 'at once').toBe('reserved');
    });

    it('P1: less stock: the gate sells no unit that is gone, and keeps none back', async () => {
      await replyLost(() => shop.addStock(saleId, 'voucher', -2, caller('less')));
      expect(await buy(2), 'they are gone').not.toBe('reserved');
      await until('nothing is kept back', CONVERGED_MS, async () => (await inGate()).house === 0);
      expect(await inGate()).toMatchObject({ total: 1, free: 1 });
      expect((await shop.addStock(saleId, 'voucher', -2, caller('less'))).outcome).toBe('replayed');
      expect(await inGate()).toMatchObject({ total: 1, free: 1, house: 0 });
      expect(await item()).toMatchObject({ total: 1, free: 1 });
      expect(await buy()).toBe('reserved');
      expect(await buy()).toBe('sold_out');
    });
  });

  it('P1: less stock whose COMMIT never came: the units come back, and a late COMMIT changes nothing', async () => {
    await commitHeld(() =>
      expect(shop.addStock(saleId, 'voucher', -2, caller(null))).rejects.toBeInstanceOf(RetryableError),
    );
    await until('they are back', CONVERGED_MS, async () => (await inGate()).house === 0);
    proxy.passHeld();
    await until('it sells', CONVERGED_MS, async () => (await buy(3)) === 'reserved');
    expect(await item()).toMatchObject({ total: 3, free: 0, reserved: 3 });
  });

  it('P1 P3: an order whose COMMIT comes late: what was decided about it is not changed by that', async () => {
    expect(await buy(6), 'and the ids are at hand: the next COMMIT is that of an order').toBe('limit_reached');
    expect(await commitHeld(() => buy(3))).toBe('unavailable');
    await until('the ledger is back', 15_000, () => shop.readiness().status === 'ok');
    const before = await inGate();
    expect(before.free + before.held, 'it is decided').toBe(3);
    proxy.passHeld();
    await until('the server has dealt with it', 5_000, async () => proxy.heldOpen() === 0);
    expect(await inGate()).toEqual(before);
    expect((await item()).reserved, 'as the gate has it').toBe(before.held);
    for (let units = 0; units < before.free; units++) expect(await buy()).toBe('reserved');
    expect(await buy()).toBe('sold_out');
    const all = await queryDatabase(direct, `SELECT count(*) AS n FROM orders WHERE status = 'rejected'`);
    expect(Number(all[0]!.n), 'no backstop was needed').toBe(0);
  });
}

describeWithMysql('one process alone on MariaDB', () => suite(mysqlUrl, LONG));
describeWithPostgres('one process alone on PostgreSQL', () => suite(postgresUrl, true));
