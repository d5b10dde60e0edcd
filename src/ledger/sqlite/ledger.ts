import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { pathToFileURL } from 'node:url';
import { TerminalError, unavailable } from '../../base/errors.ts';
import type { IdBlock, IdKind } from '../../base/ids.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { OrderMessage, OrderRecord } from '../../model/order.ts';
import type { NewSale, SalePatch, SaleRecord } from '../../model/sale.ts';
import { type SaleSnapshot, saleValues } from '../../model/snapshot.ts';
import type {
  AdminCall,
  GateTask,
  KeyBinding,
  KeyScope,
  Ledger,
  OrderFilter,
  Page,
  SaleChange,
  SaleIds,
  StoredOrder,
} from '../port.ts';
import { damaged, isDamaged, ledgerError } from './errors.ts';
import { Fold } from './fold.ts';
import { LEDGER_FILE, lockDataFolder } from './folder.ts';
import { Keys } from './keys.ts';
import { migrate } from './migrate.ts';
import { listQuery, type OrderRow, Orders, orderOfRow } from './orders.ts';
import { Reader } from './reader.ts';
import { Sales } from './sales.ts';
import { Tail } from './tail.ts';
import { rollBack } from './transaction.ts';

/** A check of every page takes about a second per 300 MB: above this size it is left to `doctor`. */
const CHECKED_ON_START_BYTES_MAX = 64 * 1024 * 1024;

/**
 * The SQLite ledger: WAL, synchronous=FULL, so that a commit has reached the disk when it returns. It runs on the event
 * loop: a group commit of a hundred orders takes less than handing them to a thread and back (measured), and
 * `blockedMs` says how long it has held the loop, so that overload protection does not count it.
 */
export class SqliteLedger implements Ledger {
  readonly #runtime: Runtime;
  readonly #db: DatabaseSync;
  readonly #unlock: () => void;
  readonly #begin;
  readonly #commit;
  readonly #tail = new Tail();
  readonly #keys: Keys;
  readonly #sales: Sales;
  readonly #orders: Orders;
  readonly #fold: Fold;
  readonly #reader: Reader;
  #blockedMs = 0;

  /** Takes the folder for this process, opens the ledger in it and brings its schema up to date. */
  static open(folder: string, runtime: Runtime): SqliteLedger {
    const { unlock } = lockDataFolder(folder);
    const file = join(folder, LEDGER_FILE);
    let db: DatabaseSync | null = null;
    try {
      db = openLedgerFile(file);
      migrate(db, runtime.clock.now());
      return new SqliteLedger(db, file, runtime, unlock);
    } catch (error) {
      if (db?.isOpen) db.close();
      unlock();
      throw isDamaged(error) ? damaged(file, error) : ledgerError(error);
    }
  }

  private constructor(db: DatabaseSync, file: string, runtime: Runtime, unlock: () => void) {
    this.#runtime = runtime;
    this.#unlock = unlock;
    this.#db = db;
    this.#begin = db.prepare('BEGIN IMMEDIATE');
    this.#commit = db.prepare('COMMIT');
    this.#keys = new Keys(db, this.#tail);
    this.#sales = new Sales(db, this.#keys);
    this.#orders = new Orders(db, this.#tail, this.#keys);
    this.#fold = new Fold(db, this.#tail);
    this.#reader = new Reader(file);
  }

  /** Milliseconds that the ledger has held the event loop since it was opened. */
  get blockedMs(): number {
    return this.#blockedMs;
  }

  get backlog(): number {
    return this.#fold.backlog;
  }

  #transaction<T>(run: () => T): T {
    this.#mustBeOpen();
    const startedMs = this.#runtime.clock.monotonic();
    try {
      this.#begin.run();
      const result = run();
      this.#commit.run();
      return result;
    } catch (error) {
      try {
        rollBack(this.#db);
      } catch (rollbackError) {
        this.#runtime.log.error({ err: rollbackError }, 'the ledger could not roll back');
      }
      throw ledgerError(error);
    } finally {
      this.#blockedMs += this.#runtime.clock.monotonic() - startedMs;
    }
  }

  #mustBeOpen(): void {
    if (!this.#db.isOpen) throw unavailable('the ledger is closed');
  }

  #read<T>(run: () => T): T {
    this.#mustBeOpen();
    try {
      return run();
    } catch (error) {
      throw ledgerError(error);
    }
  }

  async commitOrders(batch: readonly OrderMessage[]): Promise<StoredOrder[]> {
    const undo: (() => void)[] = [];
    try {
      const { stored, seq } = this.#transaction(() => this.#orders.commit(batch, this.#runtime.clock.now(), undo));
      this.#orders.committed(seq);
      return stored;
    } catch (error) {
      for (const run of undo) run();
      throw error;
    }
  }

  async rejectOrders(
    batch: readonly OrderMessage[],
    reason: 'admission_lost' | 'undeliverable',
  ): Promise<StoredOrder[]> {
    const { stored, seq } = this.#transaction(() => this.#orders.reject(batch, reason, this.#runtime.clock.now()));
    this.#orders.committed(seq);
    return stored;
  }

  async storedAmong(orderIds: readonly string[]): Promise<Map<string, OrderRecord>> {
    return this.#read(() => {
      const stored = new Map<string, OrderRecord>();
      for (const id of orderIds) {
        const order = this.#orders.get(id);
        if (order !== null) stored.set(id, order);
      }
      return stored;
    });
  }

  async createSale(sale: NewSale & SaleIds, call: AdminCall): Promise<SaleChange> {
    return this.#transaction(() => this.#sales.create(sale, call, this.#runtime.clock.now()));
  }

  async patchSale(saleId: string, patch: SalePatch, version: number, call: AdminCall): Promise<SaleChange> {
    return this.#transaction(() => this.#sales.patch(saleId, patch, version, call, this.#runtime.clock.now()));
  }

  async addStock(saleId: string, itemCode: string, add: number, call: AdminCall): Promise<SaleChange> {
    return this.#transaction(() => this.#sales.addStock(saleId, itemCode, add, call, this.#runtime.clock.now()));
  }

  async setPaused(saleId: string, paused: boolean, call: AdminCall): Promise<SaleChange> {
    return this.#transaction(() => this.#sales.setPaused(saleId, paused, call, this.#runtime.clock.now()));
  }

  async closeSale(saleId: string, call: AdminCall): Promise<SaleChange> {
    return this.#transaction(() => this.#sales.close(saleId, call, this.#runtime.clock.now()));
  }

  async getSale(saleId: string): Promise<SaleRecord | null> {
    return this.#read(() => this.#sales.get(saleId));
  }

  async listSales(page: Page): Promise<SaleRecord[]> {
    return this.#read(() => this.#sales.list(page));
  }

  async getOrder(orderId: string): Promise<OrderRecord | null> {
    return this.#read(() => this.#orders.get(orderId));
  }

  async listOrders(filter: OrderFilter, page: Page): Promise<OrderRecord[]> {
    const { buyer } = filter;
    if (buyer !== undefined) return this.#read(() => this.#orders.listOfBuyer({ ...filter, buyer }, page));
    this.#mustBeOpen();
    const { sql, values } = listQuery(filter, page);
    return ((await this.#reader.all(sql, values)) as OrderRow[]).map(orderOfRow);
  }

  async findKey(scope: KeyScope): Promise<KeyBinding | null> {
    return this.#read(() => this.#keys.find(scope, this.#runtime.clock.now()));
  }

  async openSaleIds(): Promise<string[]> {
    return this.#read(() => this.#sales.openIds(this.#runtime.clock.now()));
  }

  async rebuildSnapshot(saleId: string, above = 0): Promise<SaleSnapshot | null> {
    return this.#transaction(() => {
      this.#sales.raiseEpoch(saleId, above);
      const sale = this.#sales.get(saleId);
      if (sale === null) return null;
      return {
        saleId,
        epoch: Math.max(...sale.items.map((item) => item.epoch)),
        ...saleValues(sale),
        items: sale.items.map(({ id, code, price, total, blocked, rev }) => ({ id, code, price, total, blocked, rev })),
        ...this.#orders.forGate(saleId, this.#runtime.clock.now()),
      };
    });
  }

  /** The gate dies with the process and is rebuilt from the ledger: it never has anything to hear. */
  async unfinishedTasks(): Promise<GateTask[]> {
    return [];
  }

  async finishTask(): Promise<void> {}

  async takeIdBlock(kind: IdKind, size: number): Promise<IdBlock> {
    return this.#transaction(() => {
      const row = this.#db
        .prepare(
          `INSERT INTO id_blocks (kind, next) VALUES (?1, 1 + ?2)
           ON CONFLICT (kind) DO UPDATE SET next = next + ?2 RETURNING next`,
        )
        .get(kind, size) as { next: number };
      return { from: row.next - size, to: row.next };
    });
  }

  async probe(): Promise<void> {
    this.#transaction(() => this.#db.prepare('UPDATE probe SET at = ?').run(this.#runtime.clock.now()));
  }

  async maintain(budgetMs: number): Promise<boolean> {
    const { clock } = this.#runtime;
    const untilMs = clock.monotonic() + budgetMs;
    if (this.#fold.prepare(this.#orders.lastSeq)) {
      this.#transaction(() => this.#fold.write(() => clock.monotonic() >= untilMs))();
    }
    return this.#fold.backlog > 0;
  }

  async pruneKeys(beforeMs: number): Promise<number> {
    return this.#transaction(() => this.#keys.prune(beforeMs));
  }

  async close(): Promise<void> {
    await this.#reader.close();
    if (this.#db.isOpen) this.#db.close();
    this.#unlock();
  }
}

/**
 * Opens the ledger, or says that it is damaged and leaves it as it is. The look comes first and through a read-only
 * connection: the last writing one that closes would write the log into the damaged file.
 */
export function openLedgerFile(file: string): DatabaseSync {
  let db: DatabaseSync | null = null;
  try {
    const bytes = sizeOf(file);
    if (bytes === 0 && sizeOf(`${file}-wal`) > 0)
      throw new TerminalError('ledger_damaged', 'it is empty, its log is not');
    if (bytes > 0) lookAt(file, bytes <= CHECKED_ON_START_BYTES_MAX);
    db = new DatabaseSync(file, { timeout: 1000 });
    db.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536');
    return db;
  } catch (error) {
    db?.close();
    const found = error instanceof TerminalError && error.code === 'ledger_damaged';
    if (found || isDamaged(error)) throw damaged(file, error);
    throw ledgerError(error);
  }
}

function sizeOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

function lookAt(file: string, wholly: boolean): void {
  // With no log beside it the file is all there is; `immutable` then keeps SQLite from making an empty one.
  const path = pathToFileURL(file);
  if (!existsSync(`${file}-wal`)) path.search = 'immutable=1';
  const db = new DatabaseSync(path, { readOnly: true, timeout: 1000 });
  try {
    db.prepare('SELECT count(*) FROM sqlite_schema').get();
    if (wholly) quickCheck(db);
  } finally {
    db.close();
  }
}

export function quickCheck(db: DatabaseSync): void {
  const found = db.prepare('PRAGMA quick_check(1)').get() as { quick_check: string };
  if (found.quick_check !== 'ok') throw new TerminalError('ledger_damaged', found.quick_check);
}
