import { RetryableError } from '../../base/errors.ts';
import type { IdBlock, IdKind } from '../../base/ids.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { OrderMessage, OrderRecord } from '../../model/order.ts';
import type { PaymentAttempt, SandboxIntent } from '../../model/payment.ts';
import type { NewSale, SalePatch, SaleRecord } from '../../model/sale.ts';
import { type SaleSnapshot, saleValues } from '../../model/snapshot.ts';
import * as audit from '../life/audit.ts';
import { ItemFacts } from '../life/book.ts';
import * as events from '../life/events.ts';
import { moveOrders } from '../life/moves.ts';
import * as payments from '../life/payments.ts';
import * as releases from '../life/releases.ts';
import * as sandbox from '../life/sandbox.ts';
import type { Work } from '../life/step.ts';
import { WebhookBook } from '../life/webhook-book.ts';
import type {
  Actor,
  AdminCall,
  AttemptEnd,
  AttemptOpened,
  AuditEntry,
  DueOrder,
  GateTask,
  KeyBinding,
  KeyScope,
  Ledger,
  Move,
  Moved,
  NewAttempt,
  OrderFilter,
  OrderKeyBinding,
  OrderKeyScope,
  OutgoingEvent,
  Page,
  Release,
  SaleChange,
  SaleIds,
  StoredOrder,
  Unsettled,
} from '../port.ts';
import { Database } from './database.ts';
import type { Dialect, Isolation } from './dialect.ts';
import { Exclusive, type ExclusiveState } from './exclusive.ts';
import { Keys } from './keys.ts';
import { Life } from './life.ts';
import { migrate, mustBeCurrent } from './migrate.ts';
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

export const POOL_MAX_DEFAULT = 10;

/** The ledger on a database with a server. Every method is one transaction of it. */
export class SqlLedger implements Ledger {
  readonly atOnce = 2;
  readonly unscopedUpTo: string | null;
  readonly #database: Database;
  readonly #exclusive: Exclusive | null;
  readonly #keys: Keys;
  readonly #sales: Sales;
  readonly #orders: Orders;
  readonly #life: Life;
  readonly #items = new ItemFacts();
  readonly webhooks: WebhookBook;

  protected static async prepare(
    dialect: Dialect,
    runtime: Runtime,
    options: SqlLedgerOptions,
  ): Promise<[Database, Exclusive | null, SqlLedgerOptions, string | null]> {
    const database = new Database(dialect, runtime, options.now ?? null);
    let exclusive: Exclusive | null = null;
    try {
      if (options.exclusive) exclusive = await Exclusive.take(dialect, runtime, options.onExclusive ?? (() => {}));
      if (options.migrate) await migrate(dialect);
      const unscopedUpTo = await database.read(async (session) => {
        await mustBeCurrent(session, dialect);
        await dialect.mustCountRightly(session);
        if (options.defences?.stock === false) await dialect.dropStockCheck(session);
        const [unscoped] = (await session.query('SELECT up_to FROM unscoped_keys')).rows;
        return (unscoped?.up_to as string | undefined) ?? null;
      });
      return [database, exclusive, options, unscopedUpTo];
    } catch (error) {
      exclusive?.release();
      await database.end().catch(() => {});
      throw error;
    }
  }

  protected constructor(
    database: Database,
    exclusive: Exclusive | null,
    options: SqlLedgerOptions,
    unscopedUpTo: string | null,
  ) {
    this.#database = database;
    this.unscopedUpTo = unscopedUpTo;
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
    this.#orders = new Orders(database, defences, this.#life);
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
  ): Promise<StoredOrder[]> {
    this.#mustBeAlone();
    return this.#orders.reject(batch, reason);
  }

  storedAmong(orderIds: readonly string[]): Promise<Map<string, OrderRecord>> {
    return this.#database.read((session) => this.#orders.storedAmong(session, orderIds));
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

  listSales(page: Page): Promise<SaleRecord[]> {
    return this.#database.read((session) => this.#sales.list(session, page));
  }

  async getOrder(orderId: string): Promise<OrderRecord | null> {
    return (await this.storedAmong([orderId])).get(orderId) ?? null;
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
    await this.#database.transaction((session) => this.#keys.bindFirst(session, scope, answer));
  }

  openSaleIds(): Promise<string[]> {
    return this.#database.read((session) => this.#sales.openIds(session));
  }

  async rebuildSnapshot(saleId: string, above = 0): Promise<SaleSnapshot | null> {
    this.#mustBeAlone();
    // Each statement must see what was committed before it: the orders that are committed while we wait for the items belong
    // to the gate. From then on no writer of this sale can commit. A sale's items never change.
    const itemIds = await this.#database.read((session) => this.#sales.itemIds(session, saleId));
    if (itemIds.length === 0) return null;
    return this.#database.transaction(async (session) => {
      await this.#sales.raiseEpoch(session, itemIds, above);
      const nowMs = await this.#database.now(session);
      const sale = (await this.#sales.get(session, saleId))!;
      return {
        saleId,
        epoch: Math.max(...sale.items.map((item) => item.epoch)),
        ...saleValues(sale),
        items: sale.items.map(({ id, code, price, total, blocked, rev }) => ({ id, code, price, total, blocked, rev })),
        ...(await this.#orders.forGate(session, saleId, nowMs)),
      };
    }, this.#database.dialect.beginFresh);
  }

  unfinishedTasks(beforeMs: number): Promise<GateTask[]> {
    return this.#database.read((session) => this.#sales.unfinishedTasks(session, beforeMs));
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
    return this.#change(() => payments.nameAttempt(attemptId, reference, this.#life.dialect));
  }

  async closeAttempt(attemptId: string, end: AttemptEnd, by: Actor, auditId: string): Promise<PaymentAttempt | null> {
    return this.#change(() => payments.closeAttempt(attemptId, end, { by, auditId }, this.#life.dialect));
  }

  async startRefund(attemptId: string, by: Actor, auditId: string): Promise<PaymentAttempt | null> {
    return this.#change(() => payments.startRefund(attemptId, { by, auditId }, this.#life.dialect));
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

  async postponeAttempt(attemptId: string, error: string, nextAtMs: number): Promise<void> {
    await this.#change(() => payments.postponeAttempt(attemptId, error, nextAtMs, this.#life.dialect));
  }

  async highestFence(): Promise<bigint> {
    return this.#life.look(() => payments.highestFence());
  }

  async getAttempt(attemptId: string): Promise<PaymentAttempt | null> {
    return this.#life.look(() => payments.getAttempt(attemptId));
  }

  async findAttempt(provider: string, reference: string): Promise<PaymentAttempt | null> {
    return this.#life.look(() => payments.findAttempt(provider, reference));
  }

  async attemptsOf(orderId: string): Promise<PaymentAttempt[]> {
    return this.#life.look(() => payments.attemptsOf(orderId));
  }

  async lastAttempts(orderIds: readonly string[]): Promise<Map<string, PaymentAttempt>> {
    return this.#life.look(() => payments.lastAttempts(orderIds));
  }

  async dueAttempts(limit: number): Promise<PaymentAttempt[]> {
    return this.#life.look(() => payments.dueAttempts(limit));
  }

  async unsettledAttempts(tries: number, limit: number, saleId: string | null): Promise<Unsettled[]> {
    return this.#life.look(() => payments.unsettledAttempts(tries, limit, saleId));
  }

  async dueOrders(limit: number): Promise<DueOrder[]> {
    return this.#life.look(() => releases.dueOrders(limit, this.#life.dialect));
  }

  async releases(limit: number, olderMs: number, after?: Release): Promise<Release[]> {
    return this.#life.look(() => releases.releases(limit, olderMs, after));
  }

  async released(orderIds: readonly string[]): Promise<void> {
    await this.#change(() => releases.released(orderIds));
  }

  async releasesSince(saleId: string, revs: ReadonlyMap<string, number>): Promise<Release[]> {
    return this.#life.look(() => releases.releasesSince(saleId, revs));
  }

  async pruneReleases(beforeMs: number): Promise<number> {
    return this.#change(() => releases.pruneReleases(beforeMs));
  }

  async outgoingEvents(limit: number): Promise<OutgoingEvent[]> {
    return this.#life.look(() => events.outgoingEvents(limit));
  }

  async forgetEvents(eventIds: readonly string[]): Promise<void> {
    await this.#change(() => events.forgetEvents(eventIds));
  }

  async audit(filter: { subject?: string }, page: Page): Promise<AuditEntry[]> {
    return this.#life.look(() => audit.audit(filter, page));
  }

  async putIntent(intent: SandboxIntent): Promise<SandboxIntent> {
    return this.#change(() => sandbox.putIntent(intent));
  }

  async getIntent(id: string): Promise<SandboxIntent | null> {
    return this.#life.look(() => sandbox.getIntent(id));
  }

  async moveIntent(
    id: string,
    from: readonly SandboxIntent['state'][],
    to: SandboxIntent['state'],
  ): Promise<SandboxIntent | null> {
    return this.#change(() => sandbox.moveIntent(id, from, to, this.#life.dialect));
  }

  async dueIntents(nowMs: number, limit: number): Promise<SandboxIntent[]> {
    return this.#life.look(() => sandbox.dueIntents(nowMs, limit));
  }

  async intentTold(id: string): Promise<void> {
    await this.#change(() => sandbox.intentTold(id));
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

  async pruneKeys(beforeMs: number): Promise<number> {
    this.#mustBeAlone();
    return this.#keys.prune(beforeMs);
  }

  async close(): Promise<void> {
    await this.#database.end();
    this.#exclusive?.release();
  }

  #mustBeAlone(): void {
    this.#exclusive?.mustBeAlone();
  }
}
