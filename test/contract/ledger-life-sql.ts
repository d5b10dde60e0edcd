import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { seededRandom } from '../../src/base/random.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { mysqlDialect } from '../../src/ledger/drivers/mysql/ledger.ts';
import { MysqlSteps } from '../../src/ledger/drivers/mysql/steps.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { postgresDialect } from '../../src/ledger/drivers/postgres/ledger.ts';
import { PostgresSteps } from '../../src/ledger/drivers/postgres/steps.ts';
import type { SqlLedger, SqlLedgerOptions } from '../../src/ledger/drivers/server/ledger.ts';
import type { Move, Moved } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderMessage, OrderRecord } from '../../src/model/order.ts';
import type { PaymentAttempt } from '../../src/model/payment.ts';
import { judgeLife } from '../support/life-judge.ts';
import { newSale } from '../support/new-sale.ts';
import { databaseAlone, emptyDatabase, type Product, queryDatabase } from '../support/sql-databases.ts';
import { judgeTables } from '../support/sql-judge.ts';

const SALE = '500';
const ITEMS = ['501', '502'];
const PRICE = { amount: 100, currency: 'CNY' };
const BY = actor('system', 'test');

/** What only ledgers of several processes can do: race to move the same orders. */
export function sqlLifeSuite(product: Product): void {
  const dialectOf = product === 'postgres' ? postgresDialect : mysqlDialect;

  describe.each(['read committed', 'repeatable read'] as const)(`raced on ${product} at %s`, (isolation) => {
    let url: string;
    let lastId = 1000;
    let nowMs = 1_000_000;
    const open: SqlLedger[] = [];

    beforeAll(async () => {
      // Alone on its server: the test counts the server's deadlocks.
      url = await databaseAlone(product);
    });
    afterEach(async () => {
      const query = (sql: string) => queryDatabase(url, sql);
      await judgeTables(query);
      await judgeLife(query, { claims: true });
      await emptyDatabase(url);
    });
    afterAll(async () => {
      await Promise.all(open.map((ledger) => ledger.close()));
    });

    const id = (): string => String(++lastId);

    async function ledgers(count: number): Promise<SqlLedger[]> {
      const options: SqlLedgerOptions = { migrate: true, exclusive: false, isolation, poolMax: 3, now: () => nowMs };
      while (open.length < count) open.push(await openSqlLedger(url, systemRuntime(), options));
      const items = ITEMS.map((_, at) => ({ code: `i${at}`, name: 'x', price: PRICE, stock: 100_000 }));
      const sale = newSale({ opensAtMs: 0, closesAtMs: 4e12, perBuyer: 3, items });
      const call = { by: actor('admin', 'admin'), auditId: id(), keyed: null, answer: () => '' };
      await open[0]!.createSale({ ...sale, id: SALE, itemIds: ITEMS }, call);
      return open.slice(0, count);
    }

    function message(buyer: string, over: Partial<OrderMessage> = {}): OrderMessage {
      const at = Number(over.itemId ?? ITEMS[0]) - 501;
      return {
        orderId: id(),
        saleId: SALE,
        itemId: ITEMS[at]!,
        itemCode: `i${at}`,
        buyer,
        quantity: 1,
        slots: [1],
        price: PRICE,
        payWithinSeconds: 60,
        epoch: 1,
        key: null,
        fingerprint: 'x',
        ...over,
      };
    }

    /** Orders of both items, one after the other. */
    async function orders(ledger: SqlLedger, count: number): Promise<OrderRecord[]> {
      const batch = Array.from({ length: count }, (_, at) => message(`buyer-${id()}`, { itemId: ITEMS[at % 2]! }));
      return (await ledger.commitOrders(batch)).map(({ order }) => order);
    }

    it('P10: an order ends while another transaction, which nobody has committed, writes claims of another sale', async () => {
      const [ledger] = (await ledgers(1)) as [SqlLedger];
      const [one, ...others] = await orders(ledger, 3);
      const dialect = await dialectOf(url, systemRuntime(), { poolMax: 1 });
      const writer = await dialect.connections.take();
      try {
        // Before all of this sale, and behind them: whoever reads the table in whatever order meets one of them.
        const rows = [1, 999].map((saleId) => `(${saleId}, 'somebody else', 1, 9)`).join(',');
        await writer.script(`${dialect.begin}; INSERT INTO claims (sale_id, buyer, slot, order_id) VALUES ${rows}`);
        for (const ending of [[one!], others]) {
          const moved = await ledger.moveOrders(ending.map((order) => move('cancel', order.id)));
          expect(moved.map(({ outcome }) => outcome)).toEqual(ending.map(() => 'moved'));
        }
      } finally {
        await writer.query('ROLLBACK');
        writer.release();
        await dialect.connections.end();
      }
    });

    const move = (event: Move['event'], orderId: string, over: Partial<Move> = {}): Move => ({
      orderId,
      event,
      by: BY,
      auditId: id(),
      fence: null,
      ...over,
    });

    const taken = (order: OrderRecord, reference: string): Move =>
      move('pay', order.id, { money: { taken: reference, attemptId: id(), amount: order.amount } });

    function shuffled<T>(all: readonly T[], random: { fraction(): number }): T[] {
      return all
        .map((one) => ({ one, at: random.fraction() }))
        .sort((a, b) => a.at - b.at)
        .map(({ one }) => one);
    }

    async function deadlocks(): Promise<number> {
      const [row] = await queryDatabase(
        url,
        product === 'mysql'
          ? `SELECT variable_value AS n FROM information_schema.global_status WHERE variable_name = 'INNODB_DEADLOCKS'`
          : 'SELECT deadlocks AS n FROM pg_stat_database WHERE datname = current_database()',
      );
      return Number(row?.n ?? 0);
    }

    it('P4 P6: pay, cancel and expire of the same orders in batches of any order: exactly one wins, and late money is late', async () => {
      const seed = Math.floor(Math.random() * 2 ** 31);
      console.log(`${product}, ${isolation}: seed=${seed}`);
      const random = seededRandom(seed);
      const all = await ledgers(3);
      const some = await orders(all[0]!, 90);
      // We gave the attempt up, and its money may still come for as long as the order is reserved.
      const attempts = some.map(({ id: orderId }) => ({
        ...{ id: id(), orderId, provider: 'sandbox', fence: null, by: BY, askAfterMs: 1000 },
      }));
      await all[0]!.openAttempts(attempts);
      for (const attempt of attempts)
        await all[0]!.closeAttempt(attempt.id, { state: 'voided', error: null }, BY, id());
      nowMs += 60_000;
      const kinds = [
        (at: number) => move('expire', some[at]!.id),
        (at: number) => move('cancel', some[at]!.id),
        (at: number) =>
          move('pay', some[at]!.id, { money: { capture: attempts[at]!.id, reference: `r${at}`, amount: PRICE } }),
      ];
      const places = some.map((_, at) => at);
      const heard = new Map<string, Moved['outcome'][]>();
      await Promise.all(
        kinds.map(async (make, who) => {
          const moves = shuffled(places, random).map(make);
          for (let from = 0; from < moves.length; from += 15) {
            const batch = moves.slice(from, from + 15);
            for (const [at, { outcome }] of (await all[who]!.moveOrders(batch)).entries()) {
              heard.set(batch[at]!.orderId, [...(heard.get(batch[at]!.orderId) ?? []), outcome]);
            }
          }
        }),
      );
      for (const [orderId, outcomes] of heard) {
        expect(
          outcomes.filter((outcome) => outcome === 'moved'),
          orderId,
        ).toHaveLength(1);
        expect(outcomes).toHaveLength(3);
        expect(outcomes.every((outcome) => ['moved', 'refused', 'late'].includes(outcome))).toBe(true);
      }
      const stored = await all[0]!.storedAmong(some.map((order) => order.id));
      for (const [at, { id: attemptId }] of attempts.entries()) {
        const paid = stored.get(some[at]!.id)!.status === 'paid';
        expect((await all[0]!.getAttempt(attemptId))!.state).toBe(paid ? 'captured' : 'late');
      }
    });

    it('P6: a payment that begins and an order that ends: never both', async () => {
      const all = await ledgers(2);
      const some = await orders(all[0]!, 60);
      const [opened, moved] = await Promise.all([
        Promise.all(
          some.map(({ id: orderId }) =>
            all[0]!.openAttempt({
              id: id(),
              orderId,
              provider: 'p',
              fence: null,
              by: BY,
              askAfterMs: 1,
            }),
          ),
        ),
        Promise.all(some.toReversed().map(({ id: orderId }) => all[1]!.moveOrders([move('cancel', orderId)]))),
      ]);
      const ended = new Map(moved.flat().map(({ order, outcome }) => [order!.id, outcome]));
      for (const [at, { id: orderId }] of some.entries()) {
        const both = `${opened[at]!.outcome} ${ended.get(orderId)}`;
        expect(['opened payment_open', 'not_payable moved']).toContain(both);
      }
      // Exactly one of those that race may begin.
      const more = await orders(all[0]!, 1);
      const wants = Array.from({ length: 6 }, (_, at) =>
        all[at % 2]!.openAttempt({
          ...{ id: id(), orderId: more[0]!.id, provider: 'p', fence: null, by: BY, askAfterMs: 1 },
        }),
      );
      const outcomes = (await Promise.all(wants)).map(({ outcome }) => outcome);
      expect(outcomes.toSorted()).toEqual(['opened', ...Array(5).fill('payment_open')]);
    });

    it('P6: one reference, many orders: one has it', async () => {
      const all = await ledgers(2);
      const some = await orders(all[0]!, 12);
      const moved = await Promise.all(
        some.map((order, at) => all[at % 2]!.moveOrders([taken(order, 'one')]).catch((error: unknown) => error)),
      );
      // Both have seen the reference free: the second fails by its constraint, and the retry tells it why.
      const outcomes = await Promise.all(
        moved.map(async (one, at) =>
          Array.isArray(one) ? one[0].outcome : (await all[0]!.moveOrders([taken(some[at]!, 'one')]))[0]!.outcome,
        ),
      );
      expect(outcomes.toSorted()).toEqual(['moved', ...Array(11).fill('refused')]);
    });

    it('P6: one reference, told of two attempts at the same time: both end, and one has it', async () => {
      const all = await ledgers(2);
      const some = await orders(all[0]!, 40);
      const attempts = some.map(({ id: orderId }) => ({
        ...{ id: id(), orderId, provider: 'sandbox', fence: null, by: BY, askAfterMs: 1000 },
      }));
      await all[0]!.openAttempts(attempts);
      const closed: (PaymentAttempt | null)[] = [];
      // One pair at a time: a group that fails would be retried one by one, and find the reference.
      for (let at = 0; at < attempts.length; at += 2) {
        const end = { state: 'failed', error: null, reference: `r${at / 2}` } as const;
        const pair = all.map((ledger, who) => ledger.closeAttempt(attempts[at + who]!.id, end, BY, id()));
        closed.push(...(await Promise.all(pair)));
      }
      expect(closed.map((one) => one!.state)).toEqual(Array(40).fill('failed'));
      const references = closed.flatMap((one) => one!.reference ?? []);
      expect(references.toSorted()).toEqual(Array.from({ length: 20 }, (_, at) => `r${at}`).toSorted());
    });

    it('a batch is read in one round and written in another, however large', async () => {
      const [ledger] = await ledgers(1);
      ledger!.keepEvents = true;
      const rounds = vi.spyOn((product === 'mysql' ? MysqlSteps : PostgresSteps).prototype, 'run');
      const [first, ...some] = await orders(ledger!, 257);
      // The ledger asks for the names of items only once.
      await ledger!.moveOrders([taken(first!, 'first')]);
      rounds.mockClear();
      await ledger!.moveOrders(some.map((order) => taken(order, order.id)));
      await ledger!.moveOrders(some.map((order) => move('refund', order.id)));
      expect(rounds).toHaveBeenCalledTimes(4);
      const more = await orders(ledger!, 256);
      rounds.mockClear();
      const opened = await ledger!.openAttempts(
        more.map(({ id: orderId }) => ({
          ...{ id: id(), orderId, provider: 'p', fence: null, by: BY, askAfterMs: 1000 },
        })),
      );
      expect(rounds, 'whoever has one order of a sale, and nothing declined, is not looked at').toHaveBeenCalledTimes(
        2,
      );
      rounds.mockClear();
      const moved = await ledger!.moveOrders(
        opened.map((one): Move => {
          if (one.outcome !== 'opened') throw new Error('should be opened');
          const money = { capture: one.attempt.id, reference: null, amount: null };
          return { ...move('pay', one.order.id), money, believed: { ...one, nowMs } };
        }),
      );
      expect(new Set(moved.map(({ outcome }) => outcome))).toEqual(new Set(['moved']));
      // PostgreSQL would run statements behind a BEGIN that failed, so the BEGIN is awaited.
      expect(rounds, 'nothing is read again').toHaveBeenCalledTimes(product === 'mysql' ? 1 : 2);
      rounds.mockRestore();
      ledger!.keepEvents = false;
    });

    it('nobody waits in a circle: batches of both items in opposite order, beside new orders', async () => {
      const all = await ledgers(3);
      const before = await deadlocks();
      for (let round = 0; round < 4; round++) {
        const buyers = Array.from({ length: 40 }, (_, at) => `r${round}-${at}`);
        const some = (
          await all[0]!.commitOrders(buyers.map((buyer, at) => message(buyer, { itemId: ITEMS[at % 2]! })))
        ).map(({ order }) => order);
        const moves = some.map((order, at) => (at % 4 === 0 ? move('cancel', order.id) : taken(order, order.id)));
        const fresh = (name: string) =>
          Array.from({ length: 60 }, (_, at) => message(`${name}${round}-${at}`, { itemId: ITEMS[(at + 1) % 2]! }));
        const again = (some: readonly Move[]) => some.map((one) => ({ ...one, auditId: id() }));
        const [early, late] = [moves.slice(0, 20), moves.slice(20)];
        await Promise.all([
          // Orders of their own, items in opposite order: each begins where the other ends.
          all[0]!.moveOrders(early),
          all[1]!.moveOrders(late.toReversed()),
          all[2]!.commitOrders(fresh('n')),
          all[2]!.commitOrders(fresh('m').toReversed()),
          // The same orders, in another order.
          all[1]!.moveOrders(again(moves.toReversed())),
          all[0]!.moveOrders(again(moves.filter((_, at) => at % 3 === 0))),
        ]);
      }
      expect(await deadlocks()).toBe(before);
    });
  });
}
