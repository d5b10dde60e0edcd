import { RetryableError, TerminalError } from '../../base/errors.ts';
import { Grouped } from '../../base/grouped.ts';
import type { IdBlock, IdKind } from '../../base/ids.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { Money } from '../../model/money.ts';
import type { OrderMessage, OrderRecord } from '../../model/order.ts';
import type { PartRefund, PaymentAttempt, SandboxIntent } from '../../model/payment.ts';
import type { NewSale, SalePatch, SaleRecord, SaleStamp } from '../../model/sale.ts';
import type { SaleSnapshot } from '../../model/snapshot.ts';
import { snapshotOf } from '../gate-pages.ts';
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
import { Database } from './database.ts';
import type { Dialect, Isolation } from './dialect.ts';
import { Exclusive, type ExclusiveState } from './exclusive.ts';
import { type FirstAnswer, Keys } from './keys.ts';
import { Life } from './life.ts';
import { migrate, mustBeCurrent, shopIdOf } from './migrate.ts';
import { Orders } from './orders.ts';
import { Sales } from './sales.ts';

export interface SqlLedgerOptions {
  /** Brings the schema up to date; false: an old one is refused (`schema_old`). */
  migrate: boolean;
  /** Keeps the database to this process: for a gate in its memory. */
  exclusive: boolean;
  /** The lock of `exclusive` was lost, taken again, or is another's now. */
  onExclusive?: (state: ExclusiveState) => void;
  isolation?: Isolation;
  /** Connections at most. */
  poolMax?: number;
  /** The ledger's clock; the database's own if left out. */
  now?: () => number;
  /** Leaves a backstop out: for the test that shows what each is for. */
  defences?: { claims?: false; stock?: false };
}

/** Of one kind: a read that the database is slow about does not hold up a crowd of others. */
const READS_AT_ONCE = 4;
const CHANGES_AT_ONCE = 2;

export const POOL_MAX_DEFAULT = 10;

/** What was read when the ledger was opened, and stays so. */
type Facts = Pick<Ledger, 'shopId' | 'unscopedUpTo'>;

/** The ledger on a database with a server. Every method is one transaction of it. */
export class SqlLedger implements Ledger {
  readonly atOnce = 2;
  readonly shopId: string;
  readonly unscopedUpTo: string | null;
  readonly #database: Database;
  readonly #exclusive: Exclusive | null;
  readonly #keys: Keys;
  readonly #sales: Sales;
  readonly #orders: Orders;
  readonly #life: Life;
  readonly #items = new ItemFacts();
  readonly #bind: (answer: FirstAnswer) => Promise<undefined>;
  readonly #release: (orderIds: readonly string[]) => Promise<undefined>;
  readonly #putIntent: (intent: NewIntent) => Promise<SandboxIntent>;
  /** Those that come while others are being committed share a transaction, as moves do. */
  readonly #attemptChanges: Grouped<payments.AttemptChange, PaymentAttempt | null>;
  readonly #intentMoves: Grouped<sandbox.IntentMove, SandboxIntent | null>;
  /** An order, its last attempt and an attempt are what everybody reads. */
  readonly #orderReads: Grouped<string, OrderRecord | null>;
  readonly #attemptReads: Grouped<string, PaymentAttempt | null>;
  readonly #attemptsById: Grouped<string, PaymentAttempt | null>;
  readonly webhooks: WebhookBook;

  protected static async prepare(
    dialect: Dialect,
    runtime: Runtime,
    options: SqlLedgerOptions,
  ): Promise<[Database, Exclusive | null, Facts, SqlLedgerOptions]> {
    const database = new Database(dialect, runtime, options.now ?? null);
    let exclusive: Exclusive | null = null;
    try {
      if (options.exclusive) exclusive = await Exclusive.take(dialect, runtime, options.onExclusive ?? (() => {}));
      if (options.migrate) await migrate(dialect);
      const facts = await database.read(async (session) => {
        await mustBeCurrent(session, dialect);
        await dialect.mustCountRightly(session);
        if (options.defences?.stock === false) await dialect.dropStockCheck(session);
        const [unscoped] = (await session.query('SELECT up_to FROM unscoped_keys')).rows;
        return {
          shopId: await shopIdOf(session),
          unscopedUpTo: (unscoped?.up_to as string | undefined) ?? null,
        };
      });
      const { shopId, unscopedUpTo } = facts;
      if (shopId === null) throw new TerminalError('ledger_damaged', 'the table shop of the ledger is empty');
      return [database, exclusive, { shopId, unscopedUpTo }, options];
    } catch (error) {
      exclusive?.release();
      await database.end().catch(() => {});
      throw error;
    }
  }

  protected constructor(database: Database, exclusive: Exclusive | null, facts: Facts, options: SqlLedgerOptions) {
    this.#database = database;
    this.shopId = facts.shopId;
    this.unscopedUpTo = facts.unscopedUpTo;
    this.#exclusive = exclusive;
    this.#keys = new Keys(database);
    this.#sales = new Sales(database, this.#keys);
    this.#life = new Life(database);
    this.webhooks = new WebhookBook({
      dialect: this.#life.dialect,
      change: (work) => this.#change(work),
      look: (work) => this.#life.look(work),
    });
    const defences = { claims: options.defences?.claims ?? true, stock: options.defences?.stock ?? true };
    this.#orders = new Orders(database, defences);
    const { runtime } = database;
    const { dialect } = this.#life;
    this.#attemptChanges = new Grouped(
      (batch) => this.#change(() => payments.changeAttempts(batch, dialect)),
      runtime,
      { atOnce: CHANGES_AT_ONCE, about: ({ attemptId }) => attemptId },
    );
    this.#intentMoves = new Grouped((batch) => this.#change(() => sandbox.moveIntents(batch, dialect)), runtime, {
      atOnce: CHANGES_AT_ONCE,
      about: ({ id }) => id,
    });
    this.#bind = this.#life.bare((answers) => this.#keys.bindFirst(answers));
    this.#release = this.#life.bare(function* (batch) {
      yield* releases.released(batch.flat());
      return batch.map(() => undefined);
    });
    this.#putIntent = this.#life.bare(sandbox.putIntents);
    const each = <T>(read: (ids: readonly string[]) => Promise<Map<string, T>>): Grouped<string, T | null> => {
      const some = async (ids: string[]): Promise<(T | null)[]> => {
        const found = await read(ids);
        return ids.map((id) => found.get(id) ?? null);
      };
      return new Grouped(some, database.runtime, { atOnce: READS_AT_ONCE });
    };
    this.#orderReads = each((ids) => this.storedAmong(ids));
    this.#attemptsById = each((ids) => this.#life.look(() => payments.attemptsAmong(ids)));
    this.#attemptReads = each((ids) => this.#lastAttempts([...new Set(ids)]));
  }

  /** Whether the database is still ours alone; null where it is shared on purpose. */
  get exclusive(): ExclusiveState | null {
    return this.#exclusive?.state ?? null;
  }

  /** Claims, keys and lists are written with the order: nothing is left for later. */
  get backlog(): number {
    return 0;
  }

  get keepEvents(): boolean {
    return this.#orders.keepEvents;
  }

  set keepEvents(keep: boolean) {
    this.#orders.keepEvents = keep;
  }

  async commitOrders(batch: readonly OrderMessage[]): Promise<StoredOrder[]> {
    this.#mustBeAlone();
    return this.#orders.commit(batch);
  }

  async rejectOrders(
    batch: readonly OrderMessage[],
    reason: 'admission_lost' | 'undeliverable',
    note?: AuditNote,
  ): Promise<StoredOrder[]> {
    this.#mustBeAlone();
    return this.#orders.reject(batch, reason, note);
  }

  storedAmong(orderIds: readonly string[]): Promise<Map<string, OrderRecord>> {
    return this.#database.read((session) => this.#orders.storedAmong(session, orderIds));
  }

  /** A batch has the rows of its items, or has announced them, before its COMMIT is sent. */
  storedAtRest(batch: readonly OrderMessage[]): Promise<Map<string, OrderRecord>> {
    const itemIds = [...new Set(batch.map(({ itemId }) => itemId))];
    const orderIds = batch.map(({ orderId }) => orderId);
    return this.#database.atRest(
      (session) => this.#sales.lockAnnounced(session, itemIds),
      (session) => this.#orders.storedAmong(session, orderIds),
    );
  }

  async createSale(sale: NewSale & SaleIds, call: AdminCall): Promise<SaleChange> {
    this.#mustBeAlone();
    return this.#sales.create(sale, call);
  }

  async patchSale(saleId: string, patch: SalePatch, version: number, call: AdminCall): Promise<SaleChange> {
    this.#mustBeAlone();
    return this.#sales.patch(saleId, patch, version, call);
  }

  async addStock(saleId: string, itemCode: string, add: number, call: AdminCall): Promise<SaleChange> {
    this.#mustBeAlone();
    return this.#sales.addStock(saleId, itemCode, add, call);
  }

  async setPaused(saleId: string, paused: boolean, call: AdminCall): Promise<SaleChange> {
    this.#mustBeAlone();
    return this.#sales.setPaused(saleId, paused, call);
  }

  async closeSale(saleId: string, call: AdminCall): Promise<SaleChange> {
    this.#mustBeAlone();
    return this.#sales.close(saleId, call);
  }

  getSale(saleId: string): Promise<SaleRecord | null> {
    return this.#database.read((session) => this.#sales.get(session, saleId));
  }

  saleStamps(saleIds: readonly string[]): Promise<Map<string, SaleStamp>> {
    return this.#database.read((session) => this.#sales.stamps(session, saleIds));
  }

  /** A change has the row of its sale from its beginning. */
  saleAtRest(saleId: string): Promise<SaleRecord | null> {
    return this.#database.atRest(
      (session) => this.#sales.lock(session, saleId),
      (session) => this.#sales.get(session, saleId),
    );
  }

  listSales(page: Page): Promise<SaleRecord[]> {
    return this.#database.read((session) => this.#sales.list(session, page));
  }

  getOrder(orderId: string): Promise<OrderRecord | null> {
    return this.#orderReads.ask(orderId);
  }

  listOrders(filter: OrderFilter, page: Page): Promise<OrderRecord[]> {
    return this.#database.read((session) => this.#orders.list(session, filter, page));
  }

  findKey(scope: KeyScope): Promise<KeyBinding | null> {
    return this.#database.read((session) => this.#keys.find(session, scope));
  }

  findOrderKey(scope: OrderKeyScope): Promise<OrderKeyBinding | null> {
    return this.#database.read((session) => this.#keys.findOrder(session, scope));
  }

  async bindAnswer(scope: KeyScope & { fingerprint: string }, answer: string): Promise<void> {
    this.#mustBeAlone();
    await this.#bind({ keyed: scope, answer });
  }

  openSaleIds(): Promise<string[]> {
    return this.#database.read((session) => this.#sales.openIds(session));
  }

  async rebuildSnapshot(saleId: string, above = 0, note?: Rebuilding): Promise<SaleSnapshot | null> {
    this.#mustBeAlone();
    // A sale's items never change.
    const itemIds = await this.#database.read((session) => this.#sales.itemIds(session, saleId));
    if (itemIds.length === 0) return null;
    // Each statement must see what was committed before it: the sale as of when its items were ours. From this commit on
    // nobody can commit an order of this sale, and so the pages that are read afterwards hold all that there are.
    const { beginFresh, steps } = this.#database.dialect;
    return this.#database.transaction(async (session) => {
      await this.#sales.raiseEpoch(session, itemIds, above);
      const nowMs = await this.#database.now(session);
      const snapshot = snapshotOf((await this.#sales.get(session, saleId))!, nowMs, (afterId) =>
        this.#database.read((reading) => this.#orders.gateRows(reading, saleId, afterId)),
      );
      const notes = audit.rebuiltNotes(snapshot, note);
      if (notes.length > 0) await steps.run(session, [audit.auditStep(notes, nowMs)]);
      return snapshot;
    }, beginFresh);
  }

  unfinishedTasks(olderMs: number): Promise<GateTask[]> {
    return this.#database.read((session) => this.#sales.unfinishedTasks(session, olderMs));
  }

  finishTask(auditId: string): Promise<void> {
    return this.#database.transaction((session) => this.#sales.finishTask(session, auditId));
  }

  // The life of orders

  async moveOrders(batch: readonly Move[]): Promise<Moved[]> {
    let believing = true;
    const work = () => {
      const moves = moveOrders(batch, this.#life.dialect, this.#items, { keepEvents: this.keepEvents, believing });
      believing = false;
      return moves;
    };
    try {
      return (await this.#change(work)).moved;
    } catch (error) {
      // A reference may be another's, whose constraint says so: then it is read who has it.
      if (error instanceof RetryableError) throw error;
      return (await this.#change(work)).moved;
    }
  }

  async openAttempt(attempt: NewAttempt): Promise<AttemptOpened> {
    return (await this.openAttempts([attempt]))[0]!;
  }

  async openAttempts(batch: readonly NewAttempt[]): Promise<AttemptOpened[]> {
    return this.#change(() => payments.openAttempts(batch, this.#life.dialect, this.#items));
  }

  async nameAttempt(attemptId: string, reference: string): Promise<PaymentAttempt | null> {
    return this.#attemptChanges.ask(payments.naming(attemptId, reference));
  }

  async closeAttempt(attemptId: string, end: AttemptEnd, by: Actor, auditId: string): Promise<PaymentAttempt | null> {
    return this.#attemptChanges.ask(payments.closing(attemptId, end, { by, auditId }));
  }

  async unblockPayments(orderId: string, by: Actor, auditId: string): Promise<boolean> {
    return this.#change(() => unblockPayments(orderId, { by, auditId }, this.#life.dialect));
  }

  async startRefund(attemptId: string, by: Actor, auditId: string, back = false): Promise<PaymentAttempt | null> {
    return this.#change(() => payments.startRefund(attemptId, { by, auditId }, back, this.#life.dialect));
  }

  async noteRefunded(attemptId: string, total: Money, by: Actor, auditId: string): Promise<PaymentAttempt | null> {
    return this.#change(() => payments.noteRefunded(attemptId, total, { by, auditId }, this.#life.dialect));
  }

  async askRefund(asked: NewRefund): Promise<RefundAsked> {
    return this.#change(() => refunds.askRefund(asked, this.#life.dialect));
  }

  async refundUnderWay(attemptId: string): Promise<PartRefund | null> {
    return this.#life.look(() => refunds.refundUnderWay(attemptId));
  }

  async getRefund(refundId: string): Promise<PartRefund | null> {
    return this.#life.look(() => refunds.getRefund(refundId));
  }

  async voidRefund(refundId: string, error: string, by: Actor, auditId: string): Promise<PartRefund | null> {
    return this.#change(() => refunds.voidRefund(refundId, error, { by, auditId }, this.#life.dialect));
  }

  async postponeRefunds(some: readonly { refundId: string; error: string; afterMs: number }[]): Promise<void> {
    await this.#change(() => refunds.postponeRefunds(some));
  }

  async dueRefunds(limit: number, after?: DueRefund): Promise<DueRefund[]> {
    return this.#life.look(() => refunds.dueRefunds(limit, after));
  }

  async unsettledRefunds(tries: number, limit: number, saleId: string | null): Promise<UnsettledRefund[]> {
    return this.#life.look(() => refunds.unsettledRefunds(tries, limit, saleId));
  }

  async finishRefund(attemptId: string, reference: string | null): Promise<PaymentAttempt | null> {
    return this.#change(() => payments.finishRefund(attemptId, reference, this.#life.dialect));
  }

  async doubtAttempt(attemptId: string, error: string): Promise<PaymentAttempt | null> {
    return this.#change(() => payments.doubtAttempt(attemptId, error, this.#life.dialect));
  }

  async clearDoubt(read: PaymentAttempt): Promise<PaymentAttempt | null> {
    return this.#change(() => payments.clearDoubt(read, this.#life.dialect));
  }

  async postponeAttempts(batch: readonly Postponement[]): Promise<Postponed[]> {
    return this.#change(() => payments.postponeAttempts(batch, this.#life.dialect));
  }

  async highestFence(): Promise<bigint> {
    return this.#life.look(() => payments.highestFence());
  }

  async getAttempt(attemptId: string): Promise<PaymentAttempt | null> {
    return this.#attemptsById.ask(attemptId);
  }

  async findAttempt(provider: string, reference: string): Promise<PaymentAttempt | null> {
    return this.#life.look(() => payments.findAttempt(provider, reference));
  }

  async attemptsOf(orderId: string, limit: number): Promise<PaymentAttempt[]> {
    return this.#life.look(() => payments.attemptsOf(orderId, limit, this.#life.dialect));
  }

  async lastAttempts(orderIds: readonly string[]): Promise<Map<string, PaymentAttempt>> {
    if (orderIds.length !== 1) return this.#lastAttempts(orderIds);
    const [orderId] = orderIds as [string];
    const attempt = await this.#attemptReads.ask(orderId);
    return new Map(attempt === null ? [] : [[orderId, attempt]]);
  }

  #lastAttempts(orderIds: readonly string[]): Promise<Map<string, PaymentAttempt>> {
    return this.#life.look(() => payments.lastAttempts(orderIds, this.#life.dialect));
  }

  async dueAttempts(limit: number, after?: PaymentAttempt): Promise<PaymentAttempt[]> {
    return this.#life.look(() => payments.dueAttempts(limit, after));
  }

  async unfinishedAmong(attemptIds: readonly string[]): Promise<Set<string>> {
    return this.#life.look(() => payments.unfinishedAmong(attemptIds));
  }

  async unsettledAttempts(tries: number, limit: number, saleId: string | null): Promise<Unsettled[]> {
    return this.#life.look(() => payments.unsettledAttempts(tries, limit, saleId));
  }

  async dueOrders(limit: number, after?: DueOrder): Promise<DueOrder[]> {
    return this.#life.look(() => releases.dueOrders(limit, after, this.#life.dialect));
  }

  async releases(limit: number, olderMs: number, after?: Release): Promise<WaitingRelease[]> {
    return this.#life.look(() => releases.releases(limit, olderMs, after));
  }

  async released(orderIds: readonly string[]): Promise<void> {
    this.#mustBeAlone();
    await this.#release(orderIds);
  }

  async releasesSince(saleId: string, revs: ReadonlyMap<string, number>): Promise<Release[]> {
    return this.#life.look(() => releases.releasesSince(saleId, revs));
  }

  async pruneReleases(olderMs: number): Promise<number> {
    return this.#change(() => releases.pruneReleases(olderMs));
  }

  async outgoingEvents(limit: number): Promise<OutgoingEvent[]> {
    return this.#life.look(() => events.outgoingEvents(limit));
  }

  async forgetEvents(eventIds: readonly string[]): Promise<void> {
    await this.#change(() => events.forgetEvents(eventIds));
  }

  async note(note: AuditNote): Promise<void> {
    await this.#change(() => audit.writeNote(note));
  }

  async audit(filter: { subject?: string }, page: Page): Promise<AuditEntry[]> {
    return this.#life.look(() => audit.audit(filter, page));
  }

  async putIntent(intent: NewIntent): Promise<SandboxIntent> {
    this.#mustBeAlone();
    return this.#putIntent(intent);
  }

  async getIntent(id: string): Promise<SandboxIntent | null> {
    return this.#life.look(() => sandbox.getIntent(id));
  }

  async moveIntent(
    id: string,
    from: readonly SandboxIntent['state'][],
    to: SandboxIntent['state'],
  ): Promise<SandboxIntent | null> {
    return this.#intentMoves.ask({ id, from, to });
  }

  async refundIntent(id: string, refundId: string, amount: number): Promise<SandboxIntent | null> {
    return this.#change(() => sandbox.refundIntent(id, refundId, amount, this.#life.dialect));
  }

  async captureDue(limit: number): Promise<{ captured: number; untold: SandboxIntent[] }> {
    return this.#change(() => sandbox.captureDue(limit, this.#life.dialect));
  }

  async intentsTold(ids: readonly string[]): Promise<void> {
    await this.#change(() => sandbox.intentsTold(ids));
  }

  async #change<T>(work: () => Work<T>): Promise<T> {
    this.#mustBeAlone();
    return this.#life.change(work);
  }

  async takeIdBlock(kind: IdKind, size: number): Promise<IdBlock> {
    this.#mustBeAlone();
    return this.#database.transaction(async (session) => {
      const { leavePresent } = this.#database.dialect;
      await session.query(`INSERT INTO id_blocks (kind, "next") VALUES (?, 1) ${leavePresent('kind')}`, [kind]);
      // The row is ours from here to the commit.
      await session.query('UPDATE id_blocks SET "next" = "next" + ? WHERE kind = ?', [size, kind]);
      const { rows } = await session.query('SELECT "next" FROM id_blocks WHERE kind = ?', [kind]);
      const to = Number(rows[0]!.next);
      return { from: to - size, to };
    });
  }

  async probe(): Promise<void> {
    this.#mustBeAlone();
    // One statement that commits by itself: nobody who is stopped in the middle can hold up the others with it.
    await this.#database.read((session) => session.query('UPDATE probe SET "at" = "at" + 1'));
  }

  async maintain(): Promise<boolean> {
    return false;
  }

  async pruneKeys(olderMs: number): Promise<number> {
    this.#mustBeAlone();
    return this.#keys.prune(olderMs);
  }

  async close(): Promise<void> {
    await this.#database.end();
    this.#exclusive?.release();
  }

  #mustBeAlone(): void {
    this.#exclusive?.mustBeAlone();
  }
}
