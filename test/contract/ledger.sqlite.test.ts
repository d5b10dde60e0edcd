import { afterEach, describe, expect, it, onTestFinished } from 'vitest';
import { EXAMINED_MAX } from '../../src/ledger/drivers/sqlite/orders.ts';
import { actor } from '../../src/model/actor.ts';
import { orderFingerprint } from '../../src/model/order.ts';
import { newSale } from '../support/new-sale.ts';
import { type SqliteUnderTest, sqliteUnderTest } from '../support/sqlite-ledger.ts';
import { ledgerContract } from './ledger.ts';
import { T0 } from './manual.ts';

ledgerContract('sqlite', async () => sqliteUnderTest());

describe('sqlite: where orders are', () => {
  let world: SqliteUnderTest;

  afterEach(() => world.close());

  /** The contract runs in states of folding. This test proves that the states are what their names say. */
  it('a slice of maintenance ends in the middle, and a crash reads the rest back from the orders', async () => {
    world = sqliteUnderTest();
    const items = [{ code: 'v', name: 'V', price: { amount: 1, currency: 'CNY' }, stock: 1000 }];
    const sale = newSale({ opensAtMs: T0, closesAtMs: T0 + 1, items });
    const call = { by: actor('admin', 'admin'), auditId: '1', keyed: null, answer: () => '' };
    await world.ledger.createSale({ ...sale, id: '5', itemIds: ['6'] }, call);
    await world.ledger.commitOrders(
      Array.from({ length: 130 }, (_, i) => ({
        orderId: String(1000 + i),
        saleId: '5',
        itemId: '6',
        itemCode: 'v',
        buyer: `b${i}`,
        quantity: 1,
        slots: [1],
        price: { amount: 1, currency: 'CNY' },
        payWithinSeconds: 60,
        epoch: 1,
        key: `k${i}`,
        fingerprint: orderFingerprint('v', 1),
      })),
    );
    const count = (table: string) => world.rows(`SELECT count(*) AS n FROM ${table}`)[0]!.n as number;
    const counts = () => [count('claims'), count('order_keys'), count('buyer_orders')];
    const folded = () => world.rows('SELECT seq FROM folded')[0]!.seq;
    expect(counts(), 'a commit writes orders only').toEqual([0, 0, 0]);

    for (let slice = 0; slice < 2; slice++) expect(await world.ledger.maintain(0)).toBe(true);
    const part = count('claims');
    expect(part).toBeGreaterThan(0);
    expect(part).toBeLessThan(130);
    expect(counts()).toEqual([part, part, part]);
    expect(world.ledger.backlog).toBe(130 - part);
    expect(folded(), 'a round counts when it is whole').toBe(0);

    await world.crash();
    expect(world.ledger.backlog, 'the round begins again').toBe(130);
    while (await world.ledger.maintain(1000));
    expect(counts()).toEqual([130, 130, 130]);
    expect(folded()).toBe(130);
    await world.crash();
    expect(world.ledger.backlog).toBe(0);
  });
});

describe('sqlite: the audit trail', () => {
  it('has a row for every change and none for a repeat or a refusal', async () => {
    const world = sqliteUnderTest();
    onTestFinished(() => world.close());
    const items = [{ code: 'v', name: 'V', price: { amount: 1, currency: 'CNY' }, stock: 3 }];
    const sale = newSale({ name: 'S', opensAtMs: T0, closesAtMs: T0 + 1, items });
    let lastId = 100;
    const call = (name: string, key: string | null = null) => ({
      by: actor('admin', name, '192.0.2.8'),
      auditId: String(++lastId),
      keyed:
        key === null ? null : { caller: name, actingFor: null, operation: 'x', subject: '', key, fingerprint: 'f' },
      answer: () => 'answer',
    });
    const { ledger, clock } = world;
    await ledger.createSale({ ...sale, id: '5', itemIds: ['6'] }, call('alice'));
    clock.advance(10);
    await ledger.patchSale('5', { perBuyer: 2 }, 1, call('bob'));
    await ledger.patchSale('5', { perBuyer: 3 }, 1, call('bob'));
    await ledger.addStock('5', 'v', 2, call('bob', 'k'));
    await ledger.addStock('5', 'v', 2, call('bob', 'k'));
    await ledger.addStock('5', 'v', -9, call('bob'));
    await ledger.setPaused('5', true, call('alice'));
    await ledger.setPaused('5', false, call('alice'));
    await ledger.closeSale('5', call('alice'));
    const rows = world.rows('SELECT at, actor, origin, action, subject, detail FROM audit ORDER BY id');
    expect(rows.map((row) => ({ ...row, detail: JSON.parse(row.detail as string) }))).toEqual([
      {
        at: T0,
        actor: 'admin:alice',
        origin: '192.0.2.8',
        action: 'sale.create',
        subject: 'sale:5',
        detail: { name: 'S' },
      },
      {
        at: T0 + 10,
        actor: 'admin:bob',
        origin: '192.0.2.8',
        action: 'sale.patch',
        subject: 'sale:5',
        detail: { perBuyer: 2 },
      },
      {
        at: T0 + 10,
        actor: 'admin:bob',
        origin: '192.0.2.8',
        action: 'sale.stock',
        subject: 'sale:5',
        detail: { item: 'v', add: 2, total: 5 },
      },
      { at: T0 + 10, actor: 'admin:alice', origin: '192.0.2.8', action: 'sale.pause', subject: 'sale:5', detail: {} },
      { at: T0 + 10, actor: 'admin:alice', origin: '192.0.2.8', action: 'sale.resume', subject: 'sale:5', detail: {} },
      { at: T0 + 10, actor: 'admin:alice', origin: '192.0.2.8', action: 'sale.close', subject: 'sale:5', detail: {} },
    ]);
  });
});

describe('sqlite: lists of a buyer with many orders', () => {
  const PER_SALE = 100;

  it.each([true, false])(
    'P10: beyond 500 that a filter passes by they leave the event loop, and are whole (folded: %s)',
    async (fold) => {
      const world = sqliteUnderTest();
      onTestFinished(() => world.close());
      const { ledger } = world;
      const items = [{ code: 'v', name: 'V', price: { amount: 1, currency: 'CNY' }, stock: 1000 }];
      const sale = newSale({ opensAtMs: T0, closesAtMs: T0 + 1, perBuyer: PER_SALE, items });
      // As large as real ids: a JavaScript number cannot represent them.
      let lastId = 2n ** 57n;
      const place = async (saleId: string, orders: number) => {
        const call = { by: actor('admin', 'admin'), auditId: String(++lastId), keyed: null, answer: () => '' };
        await ledger.createSale({ ...sale, id: saleId, itemIds: [`${saleId}1`] }, call);
        const message = {
          saleId,
          itemId: `${saleId}1`,
          itemCode: 'v',
          buyer: 'mallory',
          quantity: 1,
          key: null,
          epoch: 1,
        };
        const terms = { price: { amount: 1, currency: 'CNY' }, payWithinSeconds: 60 };
        const fingerprint = orderFingerprint('v', 1);
        const one = (at: number) => ({ ...message, ...terms, orderId: String(++lastId), slots: [at + 1], fingerprint });
        await ledger.commitOrders(Array.from({ length: orders }, (_, at) => one(at)));
        while (fold && (await ledger.maintain(1000)));
      };
      /** Whether the event loop went on before the list was there. */
      const list = async (filter: object, limit = 9) => {
        const first: string[] = [];
        const listing = ledger.listOrders({ buyer: 'mallory', ...filter }, { limit, before: null });
        void listing.then(() => first.push('list'));
        // A read on the event loop needs promises only; the reader thread needs a turn.
        for (let i = 0; i < 50; i++) await null;
        first.push('loop');
        return { ids: (await listing).map(({ id }) => id), left: first[0] === 'loop' };
      };
      await place('50', 7);
      const oldest = (await list({})).ids;
      for (let at = 1; at < EXAMINED_MAX / PER_SALE; at++) await place(String(50 + at), PER_SALE);
      await place('70', PER_SALE - 7);
      expect(await list({ status: 'refunded' })).toEqual({ ids: [], left: false });
      expect(await list({ saleId: '50' })).toEqual({ ids: oldest, left: false });
      await place('80', 1);
      expect(await list({ status: 'refunded' })).toEqual({ ids: [], left: true });
      expect(await list({ saleId: '50' })).toEqual({ ids: oldest, left: true });
      expect((await list({ saleId: '50', status: 'reserved' }, 3)).ids).toEqual(oldest.slice(0, 3));
      expect((await list({ status: 'reserved' })).ids).toEqual((await list({})).ids);
      if (fold) expect((await list({ status: 'reserved' })).left, 'a page that is full is found at once').toBe(false);
      const ids: string[] = [];
      for (let before: string | null = null; ; ) {
        const page = await ledger.listOrders({ buyer: 'mallory', status: 'reserved' }, { limit: 200, before });
        ids.push(...page.map(({ id }) => id));
        if (page.length < 200) break;
        before = ids.at(-1)!;
      }
      expect(new Set(ids).size).toBe(EXAMINED_MAX + 1);
    },
  );
});
