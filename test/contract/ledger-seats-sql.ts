import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { RetryableError } from '../../src/base/errors.ts';
import { type Random, seededRandom } from '../../src/base/random.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { SqlLedger } from '../../src/ledger/drivers/server/ledger.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { judgeLife } from '../support/life-judge.ts';
import { newSale } from '../support/new-sale.ts';
import { emptyDatabase, freshDatabase, type Product, queryDatabase } from '../support/sql-databases.ts';
import { judgeTables } from '../support/sql-judge.ts';
import { mapOf, seatedItem } from './ledger-seats-kit.ts';

const SALE = '500';
const ITEM = '501';
const SEATS = 60;
const BY = actor('admin', 'admin');

/** What only ledgers of several processes can do: race for the same seats, as if every gate lied. */
export function sqlSeatSuite(product: Product): void {
  describe.each(['read committed', 'repeatable read'] as const)(`seats raced for on ${product} at %s`, (isolation) => {
    let url: string;
    let lastId = 1000;
    let all: SqlLedger[];

    beforeAll(async () => {
      url = await freshDatabase(product);
      const options = { migrate: true, exclusive: false, isolation, poolMax: 3 };
      all = [];
      for (let n = 0; n < 3; n++) all.push(await openSqlLedger(url, systemRuntime(), options));
    });
    afterEach(async () => {
      const query = (sql: string) => queryDatabase(url, sql);
      await judgeTables(query);
      await judgeLife(query, { claims: true });
      await emptyDatabase(url);
    });
    afterAll(() => Promise.all(all.map((ledger) => ledger.close())));

    const id = (): string => String(++lastId);
    const call = () => ({ by: BY, auditId: id(), keyed: null, answer: () => '' });

    async function hall(): Promise<void> {
      const sale = newSale({ opensAtMs: 0, closesAtMs: 4e12, perBuyer: 3, items: [seatedItem('hall', mapOf(SEATS))] });
      await all[0]!.createSale({ ...sale, id: SALE, itemIds: [ITEM] }, call());
    }

    function message(seats: number[]): OrderMessage {
      return {
        ...{ orderId: id(), saleId: SALE, itemId: ITEM, itemCode: 'hall', buyer: `b${lastId}`, quantity: seats.length },
        ...{ slots: seats.map((_, at) => at + 1), seats, price: { amount: 1, currency: 'CNY' }, payWithinSeconds: 60 },
        ...{ epoch: 1, key: null, fingerprint: 'x' },
      };
    }

    function draw(random: Random, count: number): number[] {
      const seats = new Set<number>();
      while (seats.size < count) seats.add(Math.floor(random.fraction() * SEATS));
      return [...seats].sort((a, b) => a - b);
    }

    /** A collision that comes again and again is the caller's to try later. */
    async function patiently<T>(run: () => Promise<T>): Promise<T> {
      for (let tries = 1; ; tries++) {
        try {
          return await run();
        } catch (error) {
          if (!(error instanceof RetryableError) || tries === 20) throw error;
        }
      }
    }

    it('P1: orders, blocks, moves and ends at once: no seat twice, all or none, and nobody is stuck', async () => {
      const seed = Number(process.env.SEED ?? Math.floor(Math.random() * 2 ** 31));
      console.log(`seats on ${product}, ${isolation}: seed=${seed}`);
      const random = seededRandom(seed);
      await hall();
      const live: string[] = [];
      const verdicts: string[] = [];
      const writer = async (ledger: SqlLedger): Promise<void> => {
        for (let n = 0; n < 6; n++) {
          const batch = Array.from({ length: 6 }, () => message(draw(random, 1 + Math.floor(random.fraction() * 3))));
          const stored = await patiently(() => ledger.commitOrders(batch));
          for (const { order } of stored) {
            verdicts.push(order.reason ?? order.status);
            if (order.status === 'reserved') live.push(order.id);
          }
        }
      };
      const house = async (ledger: SqlLedger): Promise<void> => {
        for (let n = 0; n < 10; n++) {
          const seats = [{ itemId: ITEM, seats: draw(random, 2) }];
          const { outcome } = await patiently(() => ledger.setBlocked(SALE, seats, n % 3 < 2, call()));
          expect(['changed', 'seat_taken']).toContain(outcome);
        }
      };
      const usher = async (ledger: SqlLedger): Promise<void> => {
        for (let n = 0; n < 15; n++) {
          const orderId = live[Math.floor(random.fraction() * live.length)];
          if (orderId === undefined) await patiently(() => ledger.probe());
          else if (n % 3 === 0) {
            const move = { orderId, event: 'cancel' as const, by: BY, auditId: id(), fence: null };
            await patiently(() => ledger.moveOrders([move]));
          } else {
            const { quantity } = (await ledger.getOrder(orderId))!;
            const wanted = { orderId, seats: draw(random, quantity), by: BY, auditId: id(), fence: null };
            const { outcome } = await patiently(() => ledger.moveSeats(wanted));
            expect(['moved', 'repeat', 'seat_taken', 'not_movable']).toContain(outcome);
          }
        }
      };
      await Promise.all([...all.map(writer), ...all.map(house), ...all.map(usher)]);
      expect(new Set(verdicts)).toEqual(new Set(['reserved', 'seat_taken']));
    });

    it('P1: one seat, and everybody wants it: one has it', async () => {
      await hall();
      for (let seat = 0; seat < 5; seat++) {
        const [[a], [b], block] = await Promise.all([
          patiently(() => all[0]!.commitOrders([message([seat, seat + 10])])),
          patiently(() => all[1]!.commitOrders([message([seat, seat + 20])])),
          patiently(() => all[2]!.setBlocked(SALE, [{ itemId: ITEM, seats: [seat, seat + 30] }], true, call())),
        ]);
        const winners = [a!.order.status === 'reserved', b!.order.status === 'reserved', block.outcome === 'changed'];
        expect(winners.filter(Boolean)).toHaveLength(1);
      }
      const [item] = (await all[0]!.getSale(SALE))!.items;
      expect(item!.reserved + item!.blocked).toBe(10);
    });

    it('a sale is deleted while its first order is being stored: one of them wins', async () => {
      for (let n = 0; n < 6; n++) {
        await hall();
        const order = message([1]);
        const [stored, deleted] = await Promise.all([
          all[0]!.commitOrders([order]).then(
            () => 'stored',
            (error: Error & { code?: string }) => error.code,
          ),
          patiently(() => all[1]!.deleteSale(SALE, 1, { by: BY, auditId: id() })),
        ]);
        expect(['stored sale_has_orders', 'item_unknown deleted']).toContain(`${stored} ${deleted.outcome}`);
        expect(await all[2]!.getOrder(order.orderId)).toEqual(stored === 'stored' ? expect.anything() : null);
        await emptyDatabase(url);
      }
    });

    it('an item is added while the gate is rebuilt: all items have one epoch, and orders of it are stored', async () => {
      await hall();
      for (let n = 0; n < 6; n++) {
        const item = { id: `60${n}`, code: `c${n}`, name: 'x', price: { amount: 1, currency: 'CNY' }, stock: 1 };
        await Promise.all([
          patiently(() => all[0]!.addItem(SALE, item, call())),
          patiently(() => all[1]!.rebuildSnapshot(SALE)),
          patiently(() => all[2]!.rebuildSnapshot(SALE)),
        ]);
        const sale = (await all[0]!.getSale(SALE))!;
        expect(new Set(sale.items.map(({ epoch }) => epoch)).size).toBe(1);
      }
    });
  });
}
