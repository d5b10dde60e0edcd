import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { SQLInputValue } from 'node:sqlite';
import { pathToFileURL } from 'node:url';
import { TerminalError, unavailable } from '../../base/errors.ts';
import { Grouped } from '../../base/grouped.ts';
import type { IdBlock, IdKind } from '../../base/ids.ts';
import { keepPrivate, makePrivate } from '../../base/private-file.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { Money } from '../../model/money.ts';
import type { OrderMessage, OrderRecord } from '../../model/order.ts';
import type { PartRefund, PaymentAttempt, SandboxIntent } from '../../model/payment.ts';
import type { NewSale, SalePatch, SaleRecord, SaleStamp } from '../../model/sale.ts';
import type { SaleSnapshot } from '../../model/snapshot.ts';
import { type GateRow, PAGE_ORDERS, snapshotOf } from '../gate-pages.ts';
import * as audit from '../life/audit.ts';
import { ItemFacts } from '../life/book.ts';
import { unblockPayments } from '../life/declines.ts';
import * as events from '../life/events.ts';
import { moveOrders } from '../life/moves.ts';
import * as payments from '../life/payments.ts';
import * as refunds from '../life/refunds.ts';
import * as releases from '../life/releases.ts';
import * as sandbox from '../life/sandbox.ts';
import { WebhookBook } from '../life/webhook-book.ts';
import type {
  Actor,
  AdminCall,
  AttemptEnd,
  AttemptOpened,
  AuditEntry,
  AuditNote,
  DueOrder,
  DueRefund,
  GateTask,
  KeyBinding,
  KeyScope,
  Ledger,
  Move,
  Moved,
  NewAttempt,
  NewIntent,
  NewRefund,
  OrderFilter,
  OrderKeyBinding,
  OrderKeyScope,
  OutgoingEvent,
  Page,
  Postponed,
  Postponement,
  Rebuilding,
  RefundAsked,
  Release,
  SaleChange,
  SaleIds,
  StoredOrder,
  Unsettled,
  UnsettledRefund,
  WaitingRelease,
} from '../port.ts';
import type { Work } from '../work.ts';
import { DatabaseSync } from './database.ts';
import { damaged, isDamaged, ledgerError } from './errors.ts';
import { Fold } from './fold.ts';
import { LEDGER_FILE, lockDataFolder } from './folder.ts';
import { Keys } from './keys.ts';
import { migrate } from './migrate.ts';
import { GATE_ROWS, listQuery, type OrderRow, Orders, orderOfRow } from './orders.ts';
import { Reader } from './reader.ts';
import { Sales } from './sales.ts';
import { LIFE_DIALECT, Steps } from './steps.ts';
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
  readonly atOnce = 1;
  readonly shopId: string;
  readonly #runtime: Runtime;
  readonly #db: DatabaseSync;
  readonly #unlock: () => void;
  readonly #begin;
  readonly #commit;
  readonly #tail = new Tail();
  readonly #keys: Keys;
  readonly #items = new ItemFacts();
  readonly #sales: Sales;
  readonly #orders: Orders;
  readonly #fold: Fold;
  readonly #steps: Steps;
  /** Changes that come in one turn and are small: each by itself would wait for the disk, and the event loop with it. */
  readonly #small: Grouped<() => unknown, unknown>;
  readonly #reader: Reader;
  #blockedMs = 0;
  keepEvents = false;
  readonly webhooks = new WebhookBook({
    dialect: LIFE_DIALECT,
    change: async (work) => this.#change(work()),
    look: async (work) => this.#look(work()),
  });

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
    this.shopId = (db.prepare('SELECT id FROM shop').get() as { id: string }).id;
    this.#begin = db.prepare('BEGIN IMMEDIATE');
    this.#commit = db.prepare('COMMIT');
    this.#keys = new Keys(db, this.#tail);
    this.#steps = new Steps(db, () => runtime.clock.now());
    this.#sales = new Sales(db, this.#keys, this.#steps, () => runtime.clock.now());
    this.#orders = new Orders(db, this.#tail, this.#keys);
    this.#fold = new Fold(db, this.#tail);
    this.#reader = new Reader(file);
    this.#small = new Grouped(async (works) => this.#transaction(() => works.map((work) => work())), runtime);
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
      const { stored, seq } = this.#transaction(() => {
        const nowMs = this.#runtime.clock.now();
        const committed = this.#orders.commit(batch, nowMs, undo);
        const notes = audit.placedNotes(batch, committed.stored);
        if (notes.length > 0) this.#steps.do(audit.writeNotes(notes, nowMs));
        if (this.keepEvents) this.#steps.do(events.writeReserved(committed.stored));
        return committed;
      });
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
    note?: AuditNote,
  ): Promise<StoredOrder[]> {
    const { stored, seq } = this.#transaction(() => {
      const nowMs = this.#runtime.clock.now();
      const rejected = this.#orders.reject(batch, reason, nowMs);
      const notes = audit.placedNotes(batch, rejected.stored);
      this.#steps.do(audit.writeNotes(note === undefined ? notes : [...notes, note], nowMs));
      return rejected;
    });
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

  /** A transaction that failed is over when its error is thrown, and nobody else writes. */
  storedAtRest(batch: readonly OrderMessage[]): Promise<Map<string, OrderRecord>> {
    return this.storedAmong(batch.map(({ orderId }) => orderId));
  }

  saleAtRest(saleId: string): Promise<SaleRecord | null> {
    return this.getSale(saleId);
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

  async saleStamps(saleIds: readonly string[]): Promise<Map<string, SaleStamp>> {
    return this.#read(() => this.#sales.stamps(saleIds));
  }

  async listSales(page: Page): Promise<SaleRecord[]> {
    return this.#read(() => this.#sales.list(page));
  }

  async getOrder(orderId: string): Promise<OrderRecord | null> {
    return this.#read(() => this.#orders.get(orderId));
  }

  async listOrders(filter: OrderFilter, page: Page): Promise<OrderRecord[]> {
    const { buyer } = filter;
    if (buyer === undefined) return this.#longList(listQuery(filter, page));
    const ofBuyer = { ...filter, buyer };
    const few = this.#read(() => this.#orders.listOfBuyer(ofBuyer, page));
    return few ?? this.#longList(this.#orders.listOfBuyerQuery(ofBuyer, page));
  }

  async #longList({ sql, values }: { sql: string; values: SQLInputValue[] }): Promise<OrderRecord[]> {
    this.#mustBeOpen();
    return ((await this.#reader.all(sql, values)) as OrderRow[]).map(orderOfRow);
  }

  async findKey(scope: KeyScope): Promise<KeyBinding | null> {
    return this.#read(() => this.#keys.find(scope, this.#runtime.clock.now()));
  }

  async findOrderKey(scope: OrderKeyScope): Promise<OrderKeyBinding | null> {
    return this.#read(() => this.#keys.findOrder(scope, this.#runtime.clock.now()));
  }

  get unscopedUpTo(): string | null {
    return this.#keys.unscopedUpTo;
  }

  async bindAnswer(scope: KeyScope & { fingerprint: string }, answer: string): Promise<void> {
    await this.#smallChange(() => this.#keys.bindAnswer(scope, answer, this.#runtime.clock.now()));
  }

  async openSaleIds(): Promise<string[]> {
    return this.#read(() => this.#sales.openIds(this.#runtime.clock.now()));
  }

  async rebuildSnapshot(saleId: string, above = 0, note?: Rebuilding): Promise<SaleSnapshot | null> {
    return this.#transaction(() => {
      this.#sales.raiseEpoch(saleId, above);
      const sale = this.#sales.get(saleId);
      if (sale === null) return null;
      const nowMs = this.#runtime.clock.now();
      const snapshot = snapshotOf(sale, nowMs, (afterId) => this.#gateRows(saleId, afterId));
      this.#steps.do(audit.writeNotes(audit.rebuiltNotes(snapshot, note), nowMs));
      return snapshot;
    });
  }

  /** The first page in place: most sales have no second one, and need no thread. */
  async #gateRows(saleId: string, afterId: string): Promise<GateRow[]> {
    const values = [BigInt(saleId), BigInt(afterId), PAGE_ORDERS];
    if (afterId === '0') return this.#read(() => this.#db.prepare(GATE_ROWS).all(...values) as unknown as GateRow[]);
    this.#mustBeOpen();
    return (await this.#reader.all(GATE_ROWS, values)) as GateRow[];
  }

  /**
   * The gate dies with the process and is rebuilt from the ledger, and a COMMIT that fails has not happened as far as this
   * process can see: what may have reached the log is written over, or is found by the next start. So there never is
   * anything that the gate has not heard.
   */
  async unfinishedTasks(): Promise<GateTask[]> {
    return [];
  }

  async finishTask(): Promise<void> {}

  // The life of orders

  async moveOrders(batch: readonly Move[]): Promise<Moved[]> {
    const { moved, freed } = this.#change(
      moveOrders(batch, LIFE_DIALECT, this.#items, { keepEvents: this.keepEvents, believing: false }),
    );
    for (const { buyer, orderId } of freed) this.#tail.end(buyer, orderId);
    return moved;
  }

  async openAttempt(attempt: NewAttempt): Promise<AttemptOpened> {
    return (await this.openAttempts([attempt]))[0]!;
  }

  async openAttempts(batch: readonly NewAttempt[]): Promise<AttemptOpened[]> {
    const unfolded = (buyer: string) => this.#tail.of(buyer).filter(({ live }) => live);
    return this.#change(payments.openAttempts(batch, LIFE_DIALECT, this.#items, unfolded));
  }

  async nameAttempt(attemptId: string, reference: string): Promise<PaymentAttempt | null> {
    return this.#changeAttempt(payments.naming(attemptId, reference));
  }

  async closeAttempt(attemptId: string, end: AttemptEnd, by: Actor, auditId: string): Promise<PaymentAttempt | null> {
    return this.#changeAttempt(payments.closing(attemptId, end, { by, auditId }));
  }

  async unblockPayments(orderId: string, by: Actor, auditId: string): Promise<boolean> {
    return this.#change(unblockPayments(orderId, { by, auditId }, LIFE_DIALECT));
  }

  async startRefund(attemptId: string, by: Actor, auditId: string, back = false): Promise<PaymentAttempt | null> {
    return this.#change(payments.startRefund(attemptId, { by, auditId }, back, LIFE_DIALECT));
  }

  async noteRefunded(attemptId: string, total: Money, by: Actor, auditId: string): Promise<PaymentAttempt | null> {
    return this.#change(payments.noteRefunded(attemptId, total, { by, auditId }, LIFE_DIALECT));
  }

  async askRefund(asked: NewRefund): Promise<RefundAsked> {
    return this.#change(refunds.askRefund(asked, LIFE_DIALECT));
  }

  async refundUnderWay(attemptId: string): Promise<PartRefund | null> {
    return this.#look(refunds.refundUnderWay(attemptId));
  }

  async getRefund(refundId: string): Promise<PartRefund | null> {
    return this.#look(refunds.getRefund(refundId));
  }

  async voidRefund(refundId: string, error: string, by: Actor, auditId: string): Promise<PartRefund | null> {
    return this.#change(refunds.voidRefund(refundId, error, { by, auditId }, LIFE_DIALECT));
  }

  async postponeRefunds(some: readonly { refundId: string; error: string; afterMs: number }[]): Promise<void> {
    this.#change(refunds.postponeRefunds(some));
  }

  async dueRefunds(limit: number, after?: DueRefund): Promise<DueRefund[]> {
    return this.#look(refunds.dueRefunds(limit, after));
  }

  async unsettledRefunds(tries: number, limit: number, saleId: string | null): Promise<UnsettledRefund[]> {
    return this.#look(refunds.unsettledRefunds(tries, limit, saleId));
  }

  async finishRefund(attemptId: string, reference: string | null): Promise<PaymentAttempt | null> {
    return this.#change(payments.finishRefund(attemptId, reference, LIFE_DIALECT));
  }

  async doubtAttempt(attemptId: string, error: string): Promise<PaymentAttempt | null> {
    return this.#change(payments.doubtAttempt(attemptId, error, LIFE_DIALECT));
  }

  async clearDoubt(read: PaymentAttempt): Promise<PaymentAttempt | null> {
    return this.#change(payments.clearDoubt(read, LIFE_DIALECT));
  }

  async postponeAttempts(batch: readonly Postponement[]): Promise<Postponed[]> {
    return this.#change(payments.postponeAttempts(batch, LIFE_DIALECT));
  }

  async highestFence(): Promise<bigint> {
    return this.#look(payments.highestFence());
  }

  async getAttempt(attemptId: string): Promise<PaymentAttempt | null> {
    return this.#look(payments.attemptsAmong([attemptId])).get(attemptId) ?? null;
  }

  async findAttempt(provider: string, reference: string): Promise<PaymentAttempt | null> {
    return this.#look(payments.findAttempt(provider, reference));
  }

  async attemptsOf(orderId: string, limit: number): Promise<PaymentAttempt[]> {
    return this.#look(payments.attemptsOf(orderId, limit, LIFE_DIALECT));
  }

  async lastAttempts(orderIds: readonly string[]): Promise<Map<string, PaymentAttempt>> {
    return this.#look(payments.lastAttempts(orderIds, LIFE_DIALECT));
  }

  async dueAttempts(limit: number, after?: PaymentAttempt): Promise<PaymentAttempt[]> {
    return this.#look(payments.dueAttempts(limit, after));
  }

  async unfinishedAmong(attemptIds: readonly string[]): Promise<Set<string>> {
    return this.#look(payments.unfinishedAmong(attemptIds));
  }

  async unsettledAttempts(tries: number, limit: number, saleId: string | null): Promise<Unsettled[]> {
    return this.#look(payments.unsettledAttempts(tries, limit, saleId));
  }

  async dueOrders(limit: number, after?: DueOrder): Promise<DueOrder[]> {
    return this.#look(releases.dueOrders(limit, after, LIFE_DIALECT));
  }

  async releases(limit: number, olderMs: number, after?: Release): Promise<WaitingRelease[]> {
    return this.#look(releases.releases(limit, olderMs, after));
  }

  async released(orderIds: readonly string[]): Promise<void> {
    await this.#smallWork(() => releases.released(orderIds));
  }

  async releasesSince(saleId: string, revs: ReadonlyMap<string, number>): Promise<Release[]> {
    return this.#look(releases.releasesSince(saleId, revs));
  }

  async pruneReleases(olderMs: number): Promise<number> {
    return this.#change(releases.pruneReleases(olderMs));
  }

  async outgoingEvents(limit: number): Promise<OutgoingEvent[]> {
    return this.#look(events.outgoingEvents(limit));
  }

  async forgetEvents(eventIds: readonly string[]): Promise<void> {
    this.#change(events.forgetEvents(eventIds));
  }

  async note(note: AuditNote): Promise<void> {
    this.#change(audit.writeNote(note));
  }

  async audit(filter: { subject?: string }, page: Page): Promise<AuditEntry[]> {
    return this.#look(audit.audit(filter, page));
  }

  async putIntent(intent: NewIntent): Promise<SandboxIntent> {
    return (await this.#smallWork(() => sandbox.putIntents([intent])))[0]!;
  }

  async getIntent(id: string): Promise<SandboxIntent | null> {
    return this.#look(sandbox.getIntent(id));
  }

  async moveIntent(
    id: string,
    from: readonly SandboxIntent['state'][],
    to: SandboxIntent['state'],
  ): Promise<SandboxIntent | null> {
    return (await this.#smallWork(() => sandbox.moveIntents([{ id, from, to }], LIFE_DIALECT)))[0]!;
  }

  async refundIntent(id: string, refundId: string, amount: number): Promise<SandboxIntent | null> {
    return this.#change(sandbox.refundIntent(id, refundId, amount, LIFE_DIALECT));
  }

  async captureDue(limit: number): Promise<{ captured: number; untold: SandboxIntent[] }> {
    return this.#change(sandbox.captureDue(limit, LIFE_DIALECT));
  }

  async intentsTold(ids: readonly string[]): Promise<void> {
    this.#change(sandbox.intentsTold(ids));
  }

  #change<T>(work: Work<T>): T {
    return this.#transaction(() => this.#steps.do(work));
  }

  #smallChange<T>(change: () => T): Promise<T> {
    return this.#small.ask(change) as Promise<T>;
  }

  async #changeAttempt(change: payments.AttemptChange): Promise<PaymentAttempt | null> {
    return (await this.#smallWork(() => payments.changeAttempts([change], LIFE_DIALECT)))[0]!;
  }

  #smallWork<T>(work: () => Work<T>): Promise<T> {
    return this.#smallChange(() => this.#steps.do(work()));
  }

  #look<T>(work: Work<T>): T {
    return this.#read(() => this.#steps.do(work));
  }

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

  async pruneKeys(olderMs: number): Promise<number> {
    return this.#transaction(() => this.#keys.prune(this.#runtime.clock.now() - olderMs));
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
    makePrivate(file);
    for (const beside of ['-wal', '-shm']) keepPrivate(`${file}${beside}`);
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
