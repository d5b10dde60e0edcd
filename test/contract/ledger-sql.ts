import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { RetryableError, TerminalError } from '../../src/base/errors.ts';
import { composeId, ID_EPOCH_MS } from '../../src/base/ids.ts';
import { seededRandom } from '../../src/base/random.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { mysqlDialect } from '../../src/ledger/drivers/mysql/ledger.ts';
import { migrateSqlLedger, openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { postgresDialect } from '../../src/ledger/drivers/postgres/ledger.ts';
import type { ExclusiveState } from '../../src/ledger/drivers/server/exclusive.ts';
import type { SqlLedger, SqlLedgerOptions } from '../../src/ledger/drivers/server/ledger.ts';
import { migrate } from '../../src/ledger/drivers/server/migrate.ts';
import type { AdminCall, SaleChange } from '../../src/ledger/port.ts';
import { type Migrated, type Migration, migrations } from '../../src/ledger/schema/migrations.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import type { NewSale } from '../../src/model/sale.ts';
import { ledgersWithout } from '../mutants/defences.ts';
import { until } from '../support/fault-wait.ts';
import { expectFormerKeys, formerRows } from '../support/former-keys.ts';
import { newSale } from '../support/new-sale.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { wholeSnapshot } from '../support/snapshot.ts';
import { emptyDatabase, freshDatabase, type Product, queryDatabase } from '../support/sql-databases.ts';
import { judgeTables } from '../support/sql-judge.ts';

const SALE = '500';
const VOUCHER = '501';
const POSTER = '502';

/** What only happens to a ledger on a database with a server: several processes, races, locks, lost connections. */
export function sqlLedgerSuite(product: Product): void {
  describe(`the ledger on ${product}`, () => {
    let url: string;
    let lastId = 1000;
    const open: SqlLedger[] = [];

    beforeAll(async () => {
      url = await freshDatabase(product);
    });
    afterEach(async () => {
      await Promise.all(open.splice(0).map((ledger) => ledger.close()));
      await emptyDatabase(url).catch(() => {});
    });
    afterAll(cleanUpServers);

    const id = (): string => String(++lastId);

    async function ledgerAt(at: string, options: Partial<SqlLedgerOptions> = {}): Promise<SqlLedger> {
      const ledger = await openSqlLedger(at, systemRuntime(), { migrate: true, exclusive: false, ...options });
      open.push(ledger);
      return ledger;
    }

    const ledgerOf = (options: Partial<SqlLedgerOptions> = {}): Promise<SqlLedger> => ledgerAt(url, options);

    function call(over: Partial<AdminCall> = {}): AdminCall {
      return { by: actor('admin', 'admin'), auditId: id(), keyed: null, answer: (sale) => `v${sale.version}`, ...over };
    }

    function keyed(operation: string, key: string): AdminCall {
      return call({ keyed: { caller: 'admin:a', actingFor: null, operation, subject: '', key, fingerprint: 'f' } });
    }

    /** Open whatever the clock says: some tests set that of their ledger. */
    function saleOfTwo(stock: number, perBuyer: number): NewSale {
      const price = { amount: 100, currency: 'CNY' };
      const items = ['voucher', 'poster'].map((code) => ({ code, name: code, price, stock }));
      return newSale({ opensAtMs: 0, closesAtMs: 4_000_000_000_000, perBuyer, items });
    }

    function sell(ledger: SqlLedger, stock: number, perBuyer = 3): Promise<SaleChange> {
      return ledger.createSale({ ...saleOfTwo(stock, perBuyer), id: SALE, itemIds: [VOUCHER, POSTER] }, call());
    }

    function message(buyer: string, over: Partial<OrderMessage> = {}): OrderMessage {
      const slots = over.slots ?? [1];
      return {
        orderId: id(),
        saleId: SALE,
        itemId: VOUCHER,
        itemCode: 'voucher',
        buyer,
        quantity: slots.length,
        slots,
        price: { amount: 100, currency: 'CNY' },
        payWithinSeconds: 900,
        epoch: 1,
        key: null,
        fingerprint: 'x',
        ...over,
      };
    }

    async function verdicts(ledger: SqlLedger, ...batch: OrderMessage[]): Promise<string[]> {
      return (await ledger.commitOrders(batch)).map(({ order }) => order.reason ?? order.status);
    }

    const errorOf = (promise: Promise<unknown>): Promise<Error & { code?: string }> =>
      promise.then(
        () => expect.fail('should have failed'),
        (error: Error) => error,
      );

    it('the clock is that of the database', async () => {
      const ledger = await ledgerOf();
      await sell(ledger, 1);
      const [stored] = await ledger.commitOrders([message('alice')]);
      const { createdAtMs, expiresAtMs } = stored!.order;
      expect(Math.abs(createdAtMs - Date.now())).toBeLessThan(10_000);
      expect(expiresAtMs).toBe(createdAtMs + 900_000);
      expect(await ledger.openSaleIds()).toEqual([SALE]);
    });

    it('names are compared byte for byte: no two of these are the same buyer, key or item', async () => {
      const ledger = await ledgerOf();
      const names = [
        ...['alice', 'Alice', 'ALICE', 'alice ', 'alice  '],
        ...['ren\u00e9', 'rene\u0301', 'rene', 'stra\u00dfe', 'strasse', 'STRASSE'],
        ...['\u{1f389}', '\u{1f38a}', '\u4e70\u5bb6', '\u8ca7\u5bb6', '\u0131', 'i', 'I', '\u0130'],
        ...[
          `o'hara`,
          `o"hara`,
          'o\\hara',
          'o\\\\hara',
          '100%',
          '1_0',
          '{a,b}',
          'NULL',
          '?',
          '$1',
          'a;b',
          '--',
          '1',
          '01',
        ],
      ];
      const items = names.map((name) => ({ code: name, name, price: { amount: 100, currency: 'CNY' }, stock: 5 }));
      const itemIds = names.map(() => id());
      const sale = { ...saleOfTwo(1, 1), name: names.join(' '), items, id: SALE, itemIds };
      const made = await ledger.createSale(sale, call());
      expect(made).toMatchObject({ outcome: 'changed', sale: { name: sale.name } });
      expect((await ledger.getSale(SALE))!.items.map(({ code, name }) => [code, name])).toEqual(
        names.map((n) => [n, n]),
      );

      const orders = names.map((name, at) =>
        message(name, { itemId: itemIds[at]!, itemCode: name, key: name, fingerprint: name }),
      );
      expect(new Set(await verdicts(ledger, ...orders))).toEqual(new Set(['reserved']));
      for (const order of orders) {
        const listed = await ledger.listOrders({ buyer: order.buyer }, { limit: 9, before: null });
        expect(listed).toMatchObject([{ id: order.orderId, buyer: order.buyer, itemCode: order.itemCode }]);
        expect(await ledger.findOrderKey({ saleId: SALE, buyer: order.buyer, key: order.key! })).toEqual({
          fingerprint: order.fingerprint,
          orderId: order.orderId,
        });
      }
      // The second time each is known, and only by its own name.
      const again = names.map((name, at) => message(name, { itemId: itemIds[at]!, itemCode: name }));
      expect(new Set(await verdicts(ledger, ...again))).toEqual(new Set(['limit_reached']));
      const { holds, keys } = (await wholeSnapshot(ledger, SALE))!;
      expect(new Set(holds.map(({ buyer }) => buyer))).toEqual(new Set(names));
      expect(new Set(keys.map(({ key, fingerprint }) => `${key}${fingerprint}`))).toEqual(
        new Set(names.map((name) => name + name)),
      );
    });

    it('the longest names fit, and what is longer is a fault and not another name', async () => {
      const ledger = await ledgerOf();
      const code = '\u4e70'.repeat(64);
      const items = [{ code, name: '\u{1f389}'.repeat(200), price: { amount: 10 ** 12, currency: 'CNY' }, stock: 500 }];
      await ledger.createSale({ ...saleOfTwo(1, 100), items, id: SALE, itemIds: [VOUCHER] }, call());
      const buyer = '\u{1f389}'.repeat(128);
      const slots = Array.from({ length: 100 }, (_, at) => at + 1);
      const long = message(buyer, {
        itemCode: code,
        key: 'k'.repeat(255),
        slots,
        price: { amount: 10 ** 12, currency: 'CNY' },
        fingerprint: `${code} x100`,
      });
      const [stored] = await ledger.commitOrders([long]);
      expect(stored!.order).toMatchObject({ status: 'reserved', buyer, amount: { amount: 10 ** 14 } });
      expect(await ledger.getOrder(long.orderId)).toEqual(stored!.order);
      expect((await wholeSnapshot(ledger, SALE))!.holds).toMatchObject([{ buyer, slots }]);
      if (product === 'postgres') return;
      const error = await errorOf(ledger.commitOrders([message(`${buyer}!`, { epoch: 2 })]));
      expect(error, 'a fault of the message').not.toBeInstanceOf(RetryableError);
    });

    it('every change leaves a task until it is finished; a repeat and a refusal leave none', async () => {
      let nowMs = 1000;
      const ledger = await ledgerOf({ now: () => nowMs });
      const made = [call(), call(), keyed('x', 'k')];
      await ledger.createSale({ ...saleOfTwo(5, 1), id: SALE, itemIds: [VOUCHER, POSTER] }, made[0]!);
      nowMs = 2000;
      await ledger.setPaused(SALE, true, made[1]!);
      await ledger.addStock(SALE, 'voucher', 1, made[2]!);
      await ledger.addStock(SALE, 'voucher', 1, keyed('x', 'k'));
      await ledger.addStock(SALE, 'voucher', -100, call());
      await ledger.patchSale(SALE, {}, 77, call());
      const tasks = made.map(({ auditId }) => ({ auditId, saleId: SALE }));
      nowMs = 2001;
      expect(await ledger.unfinishedTasks(0)).toEqual(tasks);
      expect(await ledger.unfinishedTasks(1)).toEqual(tasks.slice(0, 1));
      await ledger.finishTask(made[1]!.auditId);
      expect(await ledger.unfinishedTasks(0)).toEqual([tasks[0], tasks[2]]);
      const audited = await queryDatabase(url, 'SELECT count(*) AS n FROM audit');
      expect(Number(audited[0]!.n)).toBe(3);
    });

    it('P1: of two orders for 8 and 6 of 10 units at once one is stored; the code of the document ends with -4', async () => {
      // Step by step as in the document's table: both read 10 and find it enough, then both deduct.
      await queryDatabase(url, 'CREATE TABLE products (stock INT NOT NULL)');
      onTestFinished(() => queryDatabase(url, 'DROP TABLE products').then(() => undefined));
      await queryDatabase(url, 'INSERT INTO products (stock) VALUES (10)');
      const stock = async (): Promise<number> =>
        Number((await queryDatabase(url, 'SELECT stock FROM products'))[0]!.stock);
      const read = [await stock(), await stock()];
      for (const [at, wanted] of [8, 6].entries()) {
        if (read[at]! >= wanted) await queryDatabase(url, `UPDATE products SET stock = stock - ${wanted}`);
      }
      expect(await stock(), 'the naive way').toBe(-4);

      const [one, other] = [await ledgerOf(), await ledgerOf()];
      await sell(one, 10, 8);
      const slots = (count: number): number[] => Array.from({ length: count }, (_, at) => at + 1);
      const [eight, six] = await Promise.all([
        verdicts(one, message('ann', { slots: slots(8) })),
        verdicts(other, message('bob', { slots: slots(6) })),
      ]);
      expect([eight![0] === 'reserved', six![0] === 'reserved'].filter(Boolean), `${eight}, ${six}`).toHaveLength(1);
      expect((await one.getSale(SALE))!.items[0]!.reserved).toBe(eight![0] === 'reserved' ? 8 : 6);
      await judgeTables((sql) => queryDatabase(url, sql));
    });

    describe.each(['read committed', 'repeatable read'] as const)('at %s', (isolation) => {
      it('P1 P2 P5: writers of the same items with overlapping batches, all of it twice', async () => {
        const seed = Math.floor(Math.random() * 2 ** 31);
        console.log(`${product}, ${isolation}: seed=${seed}`);
        const random = seededRandom(seed);
        const pick = (below: number): number => Math.floor(random.fraction() * below);
        const writers = await Promise.all([ledgerOf({ isolation }), ledgerOf({ isolation }), ledgerOf({ isolation })]);
        await sell(writers[0]!, 60);
        // Buyers come again with slots and keys that are taken, for either item, so that writers collide at claims, too.
        const all = Array.from({ length: 300 }, () => {
          const one = pick(3) + 1;
          const slots = pick(4) === 0 ? [one, (one % 3) + 1] : [one];
          const itemId = pick(2) === 0 ? VOUCHER : POSTER;
          const key = pick(3) === 0 ? `k${pick(5)}` : null;
          return message(`buyer-${pick(70)}`, {
            slots,
            itemId,
            itemCode: itemId === VOUCHER ? 'voucher' : 'poster',
            key,
          });
        });
        const batches = Array.from({ length: 36 }, () => {
          const from = pick(all.length);
          return all.slice(from, from + 1 + pick(30));
        });
        batches.push(...Array.from({ length: 10 }, (_, at) => all.slice(at * 30, at * 30 + 30)));
        const heard = new Map<string, Set<string>>();
        let inserted = 0;
        await Promise.all(
          writers.map(async (ledger, who) => {
            for (let at = who; at < batches.length * 2; at += writers.length) {
              const batch = batches[at % batches.length]!;
              for (const stored of await ledger.commitOrders(batch)) {
                if (stored.inserted) inserted++;
                const { id: orderId, status, reason } = stored.order;
                const words = heard.get(orderId) ?? new Set();
                heard.set(orderId, words.add(`${status} ${reason}`));
              }
            }
          }),
        );
        expect(inserted, 'each order was inserted once').toBe(heard.size);
        expect(heard.size).toBe(300);
        for (const [orderId, words] of heard) expect(words.size, `one verdict on order ${orderId}`).toBe(1);
        await judgeTables((sql) => queryDatabase(url, sql));
        const stored = await writers[0]!.storedAmong(all.map(({ orderId }) => orderId));
        for (const [orderId, words] of heard) {
          const { status, reason } = stored.get(orderId)!;
          expect([...words]).toEqual([`${status} ${reason}`]);
        }
      });

      it('P1: a snapshot for the gate has every order of an older epoch, and no such order comes after it', async () => {
        const [writer, other, rebuilder] = await Promise.all([
          ledgerOf({ isolation }),
          ledgerOf({ isolation }),
          ledgerOf({ isolation }),
        ]);
        await sell(writer, 100_000);
        let epoch = 1;
        let over = false;
        const write = async (ledger: SqlLedger, name: string): Promise<void> => {
          for (let round = 0; !over; round++) {
            const batch = Array.from({ length: 20 }, (_, i) => message(`${name}-${round}-${i}`, { epoch, key: 'k' }));
            await ledger.commitOrders(batch);
          }
        };
        const writing = [write(writer, 'a'), write(other, 'b')];
        try {
          for (let round = 0; round < 4; round++) {
            await until('orders of this epoch come', 10_000, async () => {
              const rows = await queryDatabase(
                url,
                `SELECT 1 FROM orders WHERE status = 'reserved' AND epoch = ${epoch} LIMIT 1`,
              );
              return rows.length > 0;
            });
            const before = epoch;
            const snapshot = (await wholeSnapshot(rebuilder, SALE))!;
            epoch = snapshot.epoch;
            const rows = await queryDatabase(
              url,
              `SELECT id FROM orders WHERE status = 'reserved' AND epoch <= ${before} ORDER BY id`,
            );
            expect(snapshot.holds.map(({ orderId }) => orderId)).toEqual(rows.map((row) => String(row.id)));
            expect(snapshot.keys).toHaveLength(rows.length);
          }
        } finally {
          over = true;
          await Promise.all(writing);
        }
        await judgeTables((sql) => queryDatabase(url, sql));
      });

      it('P5: two processes, one key: one changes, the others replay', async () => {
        const ledgers = await Promise.all(Array.from({ length: 3 }, () => ledgerOf({ isolation })));
        const path = 'POST /v1/sales';
        const made = await Promise.all(
          ledgers.flatMap((ledger) =>
            [1, 2].map(() =>
              ledger.createSale({ ...saleOfTwo(5, 1), id: id(), itemIds: [id(), id()] }, keyed(path, 'one')),
            ),
          ),
        );
        expect(made.map(({ outcome }) => outcome).toSorted()).toEqual(['changed', ...Array(5).fill('replayed')]);
        const sales = await ledgers[0]!.listSales({ limit: 10, before: null });
        expect(sales).toHaveLength(1);

        const saleId = sales[0]!.id;
        const stock = (key: string | null) =>
          ledgers.map((ledger) => ledger.addStock(saleId, 'voucher', 10, key === null ? call() : keyed('stock', key)));
        const added = await Promise.all([...stock('a'), ...stock('b'), ...stock(null)]);
        expect(added.filter(({ outcome }) => outcome === 'changed')).toHaveLength(5);
        expect(added.filter(({ outcome }) => outcome === 'replayed')).toHaveLength(4);
        const [item] = (await ledgers[0]!.getSale(saleId))!.items;
        expect(item).toMatchObject({ total: 55, rev: 5 });

        const patched = await Promise.all(
          ledgers.map((ledger) => ledger.patchSale(saleId, { perBuyer: 2 }, 1, call())),
        );
        expect(patched.map(({ outcome }) => outcome).toSorted()).toEqual([
          'changed',
          'version_conflict',
          'version_conflict',
        ]);
      });

      it('blocks of ids never overlap between processes', async () => {
        const ledgers = await Promise.all([ledgerOf({ isolation }), ledgerOf({ isolation })]);
        const blocks = await Promise.all(
          ledgers.flatMap((ledger) => Array.from({ length: 8 }, () => ledger.takeIdBlock('order', 10))),
        );
        const froms = blocks.map(({ from }) => from).toSorted((a, b) => a - b);
        expect(froms).toEqual(froms.map((_, at) => froms[0]! + at * 10));
      });
    });

    it('a batch sent twice at the same time is stored once', async () => {
      const ledgers = await Promise.all([ledgerOf(), ledgerOf()]);
      await sell(ledgers[0]!, 1000);
      const batch = Array.from({ length: 200 }, (_, i) => message(`b${i}`, { key: 'k' }));
      const both = await Promise.all([...ledgers, ...ledgers].map((ledger) => ledger.commitOrders(batch)));
      const inserted = both.flat().filter((stored) => stored.inserted);
      expect(inserted).toHaveLength(200);
      for (const answers of both) {
        expect(answers.map(({ order }) => order)).toEqual(both[0]!.map(({ order }) => order));
      }
      await judgeTables((sql) => queryDatabase(url, sql));
      expect((await ledgers[0]!.getSale(SALE))!.items[0]).toMatchObject({ reserved: 200, rev: 1 });
    });

    it('a batch larger than one packet is still one transaction', async () => {
      const ledger = await ledgerOf();
      await sell(ledger, 10_000);
      const batch = Array.from({ length: 2500 }, (_, i) => message(`b${i}`, { key: 'k', slots: i % 7 ? [1] : [2, 3] }));
      expect(new Set(await verdicts(ledger, ...batch))).toEqual(new Set(['reserved']));
      await judgeTables((sql) => queryDatabase(url, sql));
      expect((await ledger.getSale(SALE))!.items[0]).toMatchObject({ rev: 1 });
    });

    it('keys are pruned in chunks', async () => {
      let nowMs = 1000;
      const ledger = await ledgerOf({ now: () => nowMs });
      await sell(ledger, 5000);
      await ledger.commitOrders(Array.from({ length: 1100 }, (_, i) => message(`b${i}`, { key: 'k' })));
      nowMs = 5000;
      await ledger.commitOrders([message('young', { key: 'k' })]);
      const gone: number[] = [];
      do gone.push(await ledger.pruneKeys(0));
      while (gone.at(-1)! > 0);
      expect(gone.reduce((sum, n) => sum + n, 0)).toBe(1100);
      expect(gone.length).toBeGreaterThan(2);
      expect(await ledger.findOrderKey({ saleId: SALE, buyer: 'young', key: 'k' })).not.toBeNull();
    });

    describe('what each defence is for', () => {
      it('without claims a slot is given twice', async () => {
        const { openSqlLedger: openWeak, remove } = await ledgersWithout('claims');
        onTestFinished(remove);
        const ledger = await openWeak(url, systemRuntime(), { migrate: true, exclusive: false });
        open.push(ledger);
        await sell(ledger, 10, 1);
        expect(await verdicts(ledger, message('alice'), message('alice'))).toEqual(['reserved', 'reserved']);
        expect(await verdicts(ledger, message('alice'))).toEqual(['reserved']);
        expect(await verdicts(await ledgerOf(), message('bob'), message('bob'))).toEqual(['reserved', 'limit_reached']);
      });

      it('without the stock check more is sold than there is', async () => {
        const { openSqlLedger: openWeak, remove } = await ledgersWithout('stock');
        onTestFinished(remove);
        const at = await freshDatabase(product);
        const ledger = await openWeak(at, systemRuntime(), { migrate: true, exclusive: false });
        open.push(ledger);
        await sell(ledger, 1);
        expect(await verdicts(ledger, message('a'), message('b'), message('c'))).toEqual(Array(3).fill('reserved'));
      });

      it('P1: the table itself refuses a row above its total', async () => {
        const ledger = await ledgerOf();
        await sell(ledger, 2);
        await expect(queryDatabase(url, 'UPDATE items SET reserved = 3')).rejects.toThrow();
        await expect(queryDatabase(url, 'UPDATE items SET reserved = -1')).rejects.toThrow();
      });
    });

    describe('the schema', () => {
      const codeOf = async (promise: Promise<unknown>): Promise<string> => {
        const error = await errorOf(promise);
        expect(error).toBeInstanceOf(TerminalError);
        return error.code!;
      };

      const ALL = migrations(new URL(`../../src/ledger/drivers/${product}/migrations/`, import.meta.url));
      const NEWEST = ALL.at(-1)!.version;
      const nameOf = ({ version, name }: Migration): string => `${String(version).padStart(4, '0')} ${name}`;

      /** A copy of some of the files, to be changed. */
      async function withFiles(at: string, some: (migration: Migration) => boolean) {
        const folder = mkdtempSync(join(tmpdir(), 'doorbuster-migrations-'));
        onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
        for (const migration of ALL.filter(some)) {
          writeFileSync(join(folder, `${nameOf(migration).replace(' ', '_')}.sql`), migration.sql);
        }
        const real = await (product === 'mysql' ? mysqlDialect : postgresDialect)(at, systemRuntime(), { poolMax: 1 });
        onTestFinished(() => real.connections.end());
        return { folder, dialect: { ...real, migration: { ...real.migration, folder: pathToFileURL(`${folder}/`) } } };
      }

      it('is made once by several that race', async () => {
        const at = await freshDatabase(product);
        const runs: Migrated[] = await Promise.all(
          Array.from({ length: 4 }, () => migrateSqlLedger(at, systemRuntime())),
        );
        expect(runs.flatMap(({ applied }) => applied)).toEqual(ALL.map(nameOf));
        expect(await migrateSqlLedger(at, systemRuntime())).toEqual({ from: NEWEST, to: NEWEST, applied: [] });
        const ledger = await ledgerAt(at, { migrate: false });
        await ledger.probe();
      });

      it('has the number of its shop: the same for every process and every start, another in another database', async () => {
        const at = await freshDatabase(product);
        const first = await ledgerAt(at);
        expect(first.shopId).toMatch(/^[0-9a-f]{32}$/);
        expect((await ledgerAt(at)).shopId).toBe(first.shopId);
        expect((await ledgerAt(await freshDatabase(product))).shopId).not.toBe(first.shopId);
      });

      it('that is old or missing is refused, in words that say what to do', async () => {
        const at = await freshDatabase(product);
        const error = await errorOf(ledgerAt(at, { migrate: false }));
        expect(error).toBeInstanceOf(TerminalError);
        expect(error.code).toBe('schema_old');
        expect(error.message).toContain('doorbuster migrate');
      });

      it('that is newer is refused, and left as it is', async () => {
        const at = await freshDatabase(product);
        await migrateSqlLedger(at, systemRuntime());
        await queryDatabase(at, `INSERT INTO migrations (version, name, applied_at) VALUES (99, 'future', 1)`);
        for (const migrate of [true, false]) expect(await codeOf(ledgerAt(at, { migrate }))).toBe('schema_newer');
      });

      it('that is one migration ahead will do where others share it: an upgrade has begun; alone it is refused', async () => {
        const at = await freshDatabase(product);
        await migrateSqlLedger(at, systemRuntime());
        const ahead = NEWEST + 1;
        await queryDatabase(at, `INSERT INTO migrations (version, name, applied_at) VALUES (${ahead}, 'next', 1)`);
        await sell(await ledgerAt(at, { migrate: false }), 1);
        await (await ledgerAt(at, { migrate: true })).probe();
        expect(await migrateSqlLedger(at, systemRuntime())).toEqual({ from: ahead, to: ahead, applied: [] });
        expect(await codeOf(ledgerAt(at, { migrate: true, exclusive: true }))).toBe('schema_newer');
        await queryDatabase(at, `INSERT INTO migrations (version, name, applied_at) VALUES (${ahead + 1}, 'later', 1)`);
        for (const migrate of [true, false]) expect(await codeOf(ledgerAt(at, { migrate }))).toBe('schema_newer');
      });

      it('of somebody else is left alone', async () => {
        const theirs = await freshDatabase(product);
        await queryDatabase(theirs, 'CREATE TABLE orders (mine INT)');
        expect(await codeOf(ledgerAt(theirs))).toBe('schema_foreign');
        const framework = await freshDatabase(product);
        await queryDatabase(framework, 'CREATE TABLE migrations (migration INT)');
        expect(await codeOf(ledgerAt(framework))).toBe('schema_foreign');
      });

      it('that was made in part is completed, or somebody is told', async () => {
        const at = await freshDatabase(product);
        const { dialect: broken, folder } = await withFiles(at, () => true);
        const next = NEWEST + 1;
        const name = `${String(next).padStart(4, '0')} broken`;
        const file = join(folder, `${name.replace(' ', '_')}.sql`);
        writeFileSync(file, 'CREATE TABLE twice (a INT); CREATE TABLE twice (a INT);');
        await expect(migrate(broken)).rejects.toThrow();
        if (product === 'mysql') {
          // Its DDL cannot be rolled back, so an operator must decide.
          expect(await codeOf(migrate(broken))).toBe('schema_half_applied');
          await queryDatabase(at, `UPDATE migrations SET applied_at = 1 WHERE version = ${next}`);
        } else {
          writeFileSync(file, 'CREATE TABLE twice (a INT);');
          expect(await migrate(broken)).toEqual({ from: NEWEST, to: next, applied: [name] });
        }
        expect(await migrate(broken)).toEqual({ from: next, to: next, applied: [] });
      });

      it('P5: keys that were bound when they stood in paths stay bound, each to whose it is (0003)', async () => {
        const at = await freshDatabase(product);
        const { dialect: former } = await withFiles(at, ({ version }) => version < 3);
        await migrate(former);
        const [now] = await queryDatabase(at, `${former.clock}`);
        for (const sql of formerRows('answers', Number(now!.now_ms), product === 'mysql' ? ', 1' : '')) {
          await queryDatabase(at, sql);
        }
        await migrateSqlLedger(at, systemRuntime());
        if (product === 'mysql') {
          // It died before or after it marked the migration as applied: what exists stays.
          await queryDatabase(at, 'UPDATE migrations SET applied_at = NULL WHERE version = 3');
          await migrateSqlLedger(at, systemRuntime());
        }
        const ledger = await ledgerAt(at, { migrate: false });
        await expectFormerKeys(ledger);
      });

      it('P5: keys of orders that are in the pipe during the migration are covered, with none stored yet; a new ledger has none (0003)', async () => {
        const at = await freshDatabase(product);
        const { dialect: former } = await withFiles(at, ({ version }) => version < 3);
        await migrate(former);
        const [theSale] = formerRows('answers', 0, '');
        await queryDatabase(at, theSale!);
        const inThePipe = composeId(Math.floor((Date.now() - ID_EPOCH_MS) / 1000) + 30, 2 ** 32 - 1);
        await migrateSqlLedger(at, systemRuntime());
        const ledger = await ledgerAt(at, { migrate: false });
        expect(BigInt(ledger.unscopedUpTo ?? 0)).toBeGreaterThan(BigInt(inThePipe));
        expect((await ledgerAt(await freshDatabase(product))).unscopedUpTo).toBeNull();
      });

      it.runIf(product === 'mysql')('whose first file stopped in the middle is completed', async () => {
        const at = await freshDatabase(product);
        await migrateSqlLedger(at, systemRuntime());
        await queryDatabase(at, 'UPDATE migrations SET applied_at = NULL');
        await queryDatabase(at, 'DROP TABLE audit');
        expect(await codeOf(ledgerAt(at, { migrate: false }))).toBe('schema_old');
        const ledger = await ledgerAt(at);
        await sell(ledger, 1);
      });
    });

    describe('for one process', () => {
      /** The connection that holds the lock of a database. */
      async function killHolder(at: string): Promise<void> {
        const sql =
          product === 'mysql'
            ? `SELECT IS_USED_LOCK(CONCAT('doorbuster.exclusive.', MD5(DATABASE()))) AS id`
            : `SELECT pg_terminate_backend(l.pid) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objid = 1
                 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`;
        const [row] = await queryDatabase(at, sql);
        if (product === 'mysql') await queryDatabase(at, `KILL ${row!.id}`);
      }

      it('a second one is refused, by name; it may come when the first has gone', async () => {
        const first = await ledgerOf({ exclusive: true });
        expect(first.exclusive).toBe('held');
        const error = await errorOf(ledgerOf({ exclusive: true }));
        expect(error).toBeInstanceOf(TerminalError);
        expect(error.code).toBe('data_in_use');
        expect(error.message).toContain(new URL(url).pathname.slice(1));
        // Another database of the same server is another shop.
        await ledgerAt(await freshDatabase(product), { exclusive: true });
        await first.close();
        const second = await ledgerOf({ exclusive: true });
        await second.probe();
      });

      it('its connection is lost: the lock is taken again, and it is told', async () => {
        const states: ExclusiveState[] = [];
        const ledger = await ledgerOf({ exclusive: true, onExclusive: (state) => states.push(state) });
        await sell(ledger, 10);
        await killHolder(url);
        await until('the lock is taken again', 20_000, () => states.includes('held'));
        expect(states).toEqual(['unsure', 'held']);
        expect(await verdicts(ledger, message('alice'))).toEqual(['reserved']);
        expect((await errorOf(ledgerOf({ exclusive: true }))).message).toContain('another doorbuster process');
      });

      it('another has taken over: no write succeeds any more', async () => {
        const states: ExclusiveState[] = [];
        const ledger = await ledgerOf({ exclusive: true, onExclusive: (state) => states.push(state) });
        await sell(ledger, 10);
        const waiting = await (product === 'mysql' ? mysqlDialect : postgresDialect)(url, systemRuntime(), {
          poolMax: 1,
        });
        const rival = await waiting.connections.connect(() => {});
        onTestFinished(async () => {
          rival.destroy();
          await waiting.connections.end();
        });
        const taken = waiting.locks.take(rival, 'exclusive', 10_000);
        await until('the rival waits', 5_000, async () => {
          const sql =
            product === 'mysql'
              ? `SELECT 1 FROM information_schema.processlist
                 WHERE db = DATABASE() AND info LIKE '%GET_LOCK%exclusive%' AND id <> CONNECTION_ID()`
              : `SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`;
          return (await queryDatabase(url, sql)).length > 0;
        });
        await killHolder(url);
        expect(await taken).toBe(true);
        await until('it is told', 5_000, () => states.includes('taken'));
        for (const write of [
          () => ledger.commitOrders([message('alice')]),
          () => ledger.rejectOrders([message('alice')], 'admission_lost'),
          () => ledger.setPaused(SALE, true, call()),
          () => wholeSnapshot(ledger, SALE),
          () => ledger.takeIdBlock('order', 1),
          () => ledger.probe(),
        ]) {
          const error = await errorOf(write());
          expect(error).toBeInstanceOf(RetryableError);
          expect(error.message).toContain('taken over');
        }
        expect(await ledger.getSale(SALE)).not.toBeNull();
        rival.destroy();
        expect((await errorOf(ledger.commitOrders([message('bob')]))).message, 'for ever').toContain('taken over');
      });
    });

    it('a connection that ends while nobody uses it is no more than that', async () => {
      const ledger = await ledgerOf();
      await sell(ledger, 10);
      const kill =
        product === 'mysql'
          ? async () => {
              const rows = await queryDatabase(
                url,
                'SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()',
              );
              for (const { id: connection } of rows) await queryDatabase(url, `KILL ${connection}`);
            }
          : () =>
              queryDatabase(
                url,
                'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
              );
      for (let round = 0; round < 3; round++) {
        await kill();
        await until('a write goes through', 5_000, () =>
          ledger.commitOrders([message(`b${round}`)]).then(
            () => true,
            (error: unknown) => {
              expect(error).toBeInstanceOf(RetryableError);
              return false;
            },
          ),
        );
      }
      expect((await ledger.getSale(SALE))!.items[0]!.reserved).toBeGreaterThanOrEqual(3);
      await judgeTables((sql) => queryDatabase(url, sql));
    });

    it('an address that leads nowhere: refused for good, or out for now', async () => {
      const wrong = new URL(url);
      wrong.password = 'wrong';
      wrong.username = 'nobody';
      expect(await errorOf(ledgerAt(wrong.href))).toMatchObject({ code: 'database_refused' });
      const missing = new URL(url);
      missing.pathname = '/no_such_database';
      expect(await errorOf(ledgerAt(missing.href))).toMatchObject({ code: 'database_refused' });
      const closed = new URL(url);
      closed.port = '1';
      expect(await errorOf(ledgerAt(closed.href))).toBeInstanceOf(RetryableError);
      expect(await errorOf(ledgerAt('redis://127.0.0.1'))).toMatchObject({ code: 'database_url' });
    });
  });
}
