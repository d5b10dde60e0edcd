import { RetryableError } from '../base/errors.ts';
import type { IdBlock, IdKind } from '../base/ids.ts';
import type { Money } from '../model/money.ts';
import type { OrderMessage, OrderRecord } from '../model/order.ts';
import type { PartRefund, PaymentAttempt, SandboxIntent } from '../model/payment.ts';
import type { ItemPatch, NewItem, NewSale, SalePatch, SaleRecord, SaleStamp } from '../model/sale.ts';
import type { SeatMap } from '../model/seat-map.ts';
import type { SaleSnapshot, SnapshotPage } from '../model/snapshot.ts';
import { AccountBook } from './account-ledger.ts';
import { LikeBook } from './like-ledger.ts';
import type {
  Actor,
  AdminCall,
  AttemptEnd,
  AttemptOpened,
  AuditEntry,
  AuditNote,
  BlockedSeats,
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
  NewSeats,
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
  SaleDeleted,
  SaleIds,
  SeatMove,
  SeatsMoved,
  SeatsOfItem,
  StoredOrder,
  Unsettled,
  UnsettledRefund,
  WaitingRelease,
  WaitingSeatMove,
} from './port.ts';
import { SocialBook } from './social-ledger.ts';
import type { Store } from './store.ts';
import { WebhookBook } from './webhook-ledger.ts';
import * as audit from './works/audit.ts';
import { unblockPayments } from './works/declines.ts';
import * as events from './works/events.ts';
import { gatePages } from './works/gate-pages.ts';
import { takeIdBlock } from './works/ids.ts';
import { seatMaps } from './works/items.ts';
import * as keys from './works/keys.ts';
import { moveOrders } from './works/moves.ts';
import { ItemFacts } from './works/order-batch.ts';
import * as orders from './works/orders.ts';
import * as payments from './works/payments.ts';
import * as refunds from './works/refunds.ts';
import * as releases from './works/releases.ts';
import * as changes from './works/sale-changes.ts';
import * as sales from './works/sales.ts';
import * as sandbox from './works/sandbox.ts';
import * as seatMoves from './works/seat-moves.ts';
import * as seats from './works/seats.ts';
import type { Work } from './works/work.ts';

type Ask<Q, A> = (request: Q) => Promise<A>;

/**
 * The ledger on any store. It forwards calls to work, as the books of its groups do (`webhooks`, `social`, `likes`). To add
 * something that is stored, write it as work (works/), put its decisions into pure functions (rules/), and forward the call here.
 */
export class StoredLedger<S extends Store = Store> implements Ledger {
  readonly webhooks: WebhookBook;
  readonly accounts: AccountBook;
  readonly social: SocialBook;
  readonly likes: LikeBook;
  keepEvents = false;
  protected readonly store: S;
  readonly #items = new ItemFacts();
  readonly #bind: Ask<keys.FirstAnswer, undefined>;
  readonly #release: Ask<readonly string[], undefined>;
  readonly #putIntent: Ask<NewIntent, SandboxIntent>;
  readonly #changeAttempt: Ask<payments.AttemptChange, PaymentAttempt | null>;
  readonly #moveIntent: Ask<sandbox.IntentMove, SandboxIntent | null>;
  /** These three are read most, so reads that come together share a statement. */
  readonly #readOrder: Ask<string, OrderRecord | null>;
  readonly #readAttempt: Ask<string, PaymentAttempt | null>;
  readonly #readLastAttempt: Ask<string, PaymentAttempt | null>;

  constructor(store: S) {
    this.store = store;
    const { dialect } = store;
    this.webhooks = new WebhookBook(store);
    this.accounts = new AccountBook(store);
    this.social = new SocialBook(store);
    this.likes = new LikeBook(store);
    this.#bind = store.together(keys.bindFirst, { as: 'statements' });
    this.#release = store.together(
      function* (batch) {
        yield* releases.released(batch.flat());
        return batch.map(() => undefined);
      },
      { as: 'statements' },
    );
    this.#putIntent = store.together(sandbox.putIntents, { as: 'statements' });
    this.#changeAttempt = store.together((batch) => payments.changeAttempts(batch, dialect), {
      as: 'change',
      about: ({ attemptId }) => attemptId,
    });
    this.#moveIntent = store.together((batch) => sandbox.moveIntents(batch, dialect), {
      as: 'change',
      about: ({ id }) => id,
    });
    const each = <T>(read: (ids: readonly string[]) => Work<Map<string, T>>): Ask<string, T | null> =>
      store.together(
        function* (ids) {
          const found = yield* read([...new Set(ids)]);
          return ids.map((id) => found.get(id) ?? null);
        },
        { as: 'look' },
      );
    this.#readOrder = each(orders.ordersAmong);
    this.#readAttempt = each(payments.attemptsAmong);
    this.#readLastAttempt = each((ids) => payments.lastAttempts(ids, dialect));
  }

  get shopId(): string {
    return this.store.shopId;
  }

  get unscopedUpTo(): string | null {
    return this.store.unscopedUpTo;
  }

  get atOnce(): number {
    return this.store.atOnce;
  }

  // Orders

  commitOrders(batch: readonly OrderMessage[]): Promise<StoredOrder[]> {
    return this.store.orders.commit(batch, this.keepEvents);
  }

  rejectOrders(
    batch: readonly OrderMessage[],
    reason: 'admission_lost' | 'undeliverable',
    note?: AuditNote,
  ): Promise<StoredOrder[]> {
    return this.store.orders.reject(batch, reason, note);
  }

  storedAmong(orderIds: readonly string[]): Promise<Map<string, OrderRecord>> {
    return this.store.look(() => orders.ordersAmong(orderIds));
  }

  storedAtRest(batch: readonly OrderMessage[]): Promise<Map<string, OrderRecord>> {
    return this.store.atRest(() => orders.ordersAtRest(batch, this.store.dialect));
  }

  getOrder(orderId: string): Promise<OrderRecord | null> {
    return this.#readOrder(orderId);
  }

  listOrders(filter: OrderFilter, page: Page): Promise<OrderRecord[]> {
    return this.store.orders.list(filter, page);
  }

  // Sales

  createSale(sale: NewSale & SaleIds, call: AdminCall): Promise<SaleChange> {
    return this.store.change(() => changes.createSale(sale, call, this.store.dialect));
  }

  patchSale(saleId: string, patch: SalePatch, version: number, call: AdminCall): Promise<SaleChange> {
    return this.store.change(() => changes.patchSale(saleId, patch, version, call, this.store.dialect));
  }

  addStock(saleId: string, itemCode: string, add: number, call: AdminCall): Promise<SaleChange> {
    return this.store.change(() => changes.addStock(saleId, itemCode, add, call, this.store.dialect));
  }

  setPaused(saleId: string, paused: boolean, call: AdminCall): Promise<SaleChange> {
    return this.store.change(() => changes.setPaused(saleId, paused, call, this.store.dialect));
  }

  closeSale(saleId: string, call: AdminCall): Promise<SaleChange> {
    return this.store.change(() => changes.closeSale(saleId, call, this.store.dialect));
  }

  addItem(saleId: string, item: NewItem & { id: string }, call: AdminCall): Promise<SaleChange> {
    return this.store.change(() => changes.addItem(saleId, item, call, this.store.dialect));
  }

  patchItem(saleId: string, itemCode: string, patch: ItemPatch, version: number, call: AdminCall): Promise<SaleChange> {
    return this.store.change(() => changes.patchItem(saleId, itemCode, patch, version, call, this.store.dialect));
  }

  deleteSale(saleId: string, epoch: number, note: Pick<AuditNote, 'auditId' | 'by'>): Promise<SaleDeleted> {
    return this.store.remove(() => changes.deleteSale(saleId, epoch, note, this.store.dialect));
  }

  getSale(saleId: string): Promise<SaleRecord | null> {
    return this.store.look(() => sales.getSale(saleId));
  }

  saleStamps(saleIds: readonly string[]): Promise<Map<string, SaleStamp>> {
    return this.store.look(() => sales.saleStamps(saleIds));
  }

  saleAtRest(saleId: string): Promise<SaleRecord | null> {
    return this.store.atRest(() => sales.saleAtRest(saleId, this.store.dialect));
  }

  listSales(page: Page): Promise<SaleRecord[]> {
    return this.store.look(() => sales.listSales(page));
  }

  openSaleIds(): Promise<string[]> {
    return this.store.look(() => sales.openSaleIds());
  }

  rebuildSnapshot(saleId: string, above = 0, note?: Rebuilding): Promise<SaleSnapshot | null> {
    const readPage = (afterId: string) => this.store.orders.page(saleId, afterId);
    return this.store.change(() => sales.rebuildSnapshot(saleId, above, note, readPage, this.store.dialect));
  }

  unfinishedTasks(olderMs: number): Promise<GateTask[]> {
    return this.store.look(() => sales.unfinishedTasks(olderMs, this.store.dialect));
  }

  finishTask(auditId: string): Promise<void> {
    return this.store.change(() => sales.finishTask(auditId, this.store.dialect));
  }

  // Seats

  seatMaps(saleId: string): Promise<Map<string, SeatMap>> {
    return this.store.look(() => seatMaps(saleId));
  }

  blockedSeats(saleId: string): Promise<BlockedSeats[]> {
    return this.store.look(() => seats.blockedSeats(saleId));
  }

  seatHolds(saleId: string): AsyncIterable<SnapshotPage> {
    // No key is so young: they are not asked for.
    return gatePages((afterId) => this.store.orders.page(saleId, afterId), Number.POSITIVE_INFINITY);
  }

  setBlocked(
    saleId: string,
    wanted: readonly SeatsOfItem[],
    blocked: boolean,
    call: AdminCall,
  ): Promise<SaleChange | { outcome: 'seat_taken'; taken: SeatsOfItem[] }> {
    const { dialect, orders } = this.store;
    return this.store.change(() => seats.setBlocked(saleId, wanted, blocked, call, dialect, orders.tail));
  }

  moveSeats(wanted: NewSeats): Promise<SeatsMoved> {
    const { dialect, orders } = this.store;
    return this.store.change(() => seats.moveSeats(wanted, dialect, this.#items, orders.tail, this.keepEvents));
  }

  seatMoves(limit: number, olderMs: number, after?: SeatMove): Promise<WaitingSeatMove[]> {
    return this.store.look(() => seatMoves.seatMoves(limit, olderMs, after));
  }

  async seatMovesTold(moves: readonly Pick<SeatMove, 'orderId' | 'version'>[]): Promise<void> {
    await this.store.change(() => seatMoves.seatMovesTold(moves));
  }

  seatMovesSince(saleId: string, revs: ReadonlyMap<string, number>): AsyncGenerator<SeatMove[]> {
    return this.#since(saleId, revs, (span, after) =>
      seatMoves.seatMovesSince(saleId, span, releases.SINCE_PAGE, after),
    );
  }

  // Keys

  findKey(scope: KeyScope): Promise<KeyBinding | null> {
    return this.store.look(() => keys.findKey(scope));
  }

  findOrderKey(scope: OrderKeyScope): Promise<OrderKeyBinding | null> {
    return this.store.orders.findKey(scope);
  }

  async bindAnswer(scope: KeyScope & { fingerprint: string }, answer: string): Promise<void> {
    await this.#bind({ keyed: scope, answer });
  }

  pruneKeys(olderMs: number): Promise<number> {
    return this.store.change(() => keys.pruneKeys(olderMs, this.store.dialect));
  }

  // The life of orders

  async moveOrders(batch: readonly Move[]): Promise<Moved[]> {
    const { dialect } = this.store;
    let believing = dialect.believes;
    const work = () => {
      const moves = moveOrders(batch, dialect, this.#items, { keepEvents: this.keepEvents, believing });
      believing = false;
      return moves;
    };
    return believing ? twice(() => this.store.change(work)) : this.store.change(work);
  }

  async openAttempt(attempt: NewAttempt): Promise<AttemptOpened> {
    return (await this.openAttempts([attempt]))[0]!;
  }

  async openAttempts(batch: readonly NewAttempt[]): Promise<AttemptOpened[]> {
    return this.store.change(() =>
      payments.openAttempts(batch, this.store.dialect, this.#items, this.store.orders.tail),
    );
  }

  async nameAttempt(attemptId: string, reference: string): Promise<PaymentAttempt | null> {
    return twice(() => this.#changeAttempt(payments.naming(attemptId, reference)));
  }

  async closeAttempt(attemptId: string, end: AttemptEnd, by: Actor, auditId: string): Promise<PaymentAttempt | null> {
    const close = () => this.#changeAttempt(payments.closing(attemptId, end, { by, auditId }));
    return (end.reference ?? null) === null ? close() : twice(close);
  }

  async unblockPayments(orderId: string, by: Actor, auditId: string): Promise<boolean> {
    return this.store.change(() => unblockPayments(orderId, { by, auditId }, this.store.dialect));
  }

  async startRefund(attemptId: string, by: Actor, auditId: string, back = false): Promise<PaymentAttempt | null> {
    return this.store.change(() => payments.startRefund(attemptId, { by, auditId }, back, this.store.dialect));
  }

  async noteRefunded(attemptId: string, total: Money, by: Actor, auditId: string): Promise<PaymentAttempt | null> {
    return this.store.change(() => payments.noteRefunded(attemptId, total, { by, auditId }, this.store.dialect));
  }

  async askRefund(asked: NewRefund): Promise<RefundAsked> {
    return this.store.change(() => refunds.askRefund(asked, this.store.dialect));
  }

  async refundUnderWay(attemptId: string): Promise<PartRefund | null> {
    return this.store.look(() => refunds.refundUnderWay(attemptId));
  }

  async getRefund(refundId: string): Promise<PartRefund | null> {
    return this.store.look(() => refunds.getRefund(refundId));
  }

  async voidRefund(refundId: string, error: string, by: Actor, auditId: string): Promise<PartRefund | null> {
    return this.store.change(() => refunds.voidRefund(refundId, error, { by, auditId }, this.store.dialect));
  }

  async postponeRefunds(some: readonly { refundId: string; error: string; afterMs: number }[]): Promise<void> {
    await this.store.change(() => refunds.postponeRefunds(some));
  }

  async dueRefunds(limit: number, after?: DueRefund): Promise<DueRefund[]> {
    return this.store.look(() => refunds.dueRefunds(limit, after));
  }

  async unsettledRefunds(tries: number, limit: number, saleId: string | null): Promise<UnsettledRefund[]> {
    return this.store.look(() => refunds.unsettledRefunds(tries, limit, saleId));
  }

  async finishRefund(attemptId: string, reference: string | null): Promise<PaymentAttempt | null> {
    const finish = () => this.store.change(() => payments.finishRefund(attemptId, reference, this.store.dialect));
    return reference === null ? finish() : twice(finish);
  }

  async doubtAttempt(attemptId: string, error: string): Promise<PaymentAttempt | null> {
    return this.store.change(() => payments.doubtAttempt(attemptId, error, this.store.dialect));
  }

  async clearDoubt(read: PaymentAttempt): Promise<PaymentAttempt | null> {
    return this.store.change(() => payments.clearDoubt(read, this.store.dialect));
  }

  async postponeAttempts(batch: readonly Postponement[]): Promise<Postponed[]> {
    return this.store.change(() => payments.postponeAttempts(batch, this.store.dialect));
  }

  async highestFence(): Promise<bigint> {
    return this.store.look(() => payments.highestFence());
  }

  async getAttempt(attemptId: string): Promise<PaymentAttempt | null> {
    return this.#readAttempt(attemptId);
  }

  async findAttempt(provider: string, reference: string): Promise<PaymentAttempt | null> {
    return this.store.look(() => payments.findAttempt(provider, reference));
  }

  async attemptsOf(orderId: string, limit: number): Promise<PaymentAttempt[]> {
    return this.store.look(() => payments.attemptsOf(orderId, limit, this.store.dialect));
  }

  async lastAttempts(orderIds: readonly string[]): Promise<Map<string, PaymentAttempt>> {
    if (orderIds.length !== 1) return this.#lastAttempts(orderIds);
    const [orderId] = orderIds as [string];
    const attempt = await this.#readLastAttempt(orderId);
    return new Map(attempt === null ? [] : [[orderId, attempt]]);
  }

  #lastAttempts(orderIds: readonly string[]): Promise<Map<string, PaymentAttempt>> {
    return this.store.look(() => payments.lastAttempts(orderIds, this.store.dialect));
  }

  async dueAttempts(limit: number, after?: PaymentAttempt): Promise<PaymentAttempt[]> {
    return this.store.look(() => payments.dueAttempts(limit, after));
  }

  async unfinishedAmong(attemptIds: readonly string[]): Promise<Set<string>> {
    return this.store.look(() => payments.unfinishedAmong(attemptIds));
  }

  async unsettledAttempts(tries: number, limit: number, saleId: string | null): Promise<Unsettled[]> {
    return this.store.look(() => payments.unsettledAttempts(tries, limit, saleId));
  }

  async dueOrders(limit: number, after?: DueOrder): Promise<DueOrder[]> {
    return this.store.look(() => releases.dueOrders(limit, after, this.store.dialect));
  }

  async releases(limit: number, olderMs: number, after?: Release): Promise<WaitingRelease[]> {
    return this.store.look(() => releases.releases(limit, olderMs, after));
  }

  async released(orderIds: readonly string[]): Promise<void> {
    await this.#release(orderIds);
  }

  releasesSince(saleId: string, revs: ReadonlyMap<string, number>): AsyncGenerator<Release[]> {
    return this.#since(saleId, revs, (span, after) => releases.releasesSince(saleId, span, after));
  }

  /** Pages of what has happened since these revs, item by item. */
  async *#since<T>(
    saleId: string,
    revs: ReadonlyMap<string, number>,
    read: (span: releases.ItemSpan, after: T | undefined) => Work<T[]>,
  ): AsyncGenerator<T[]> {
    for (const span of await this.store.look(() => releases.itemsSince(saleId, revs))) {
      let page: T[] = [];
      do {
        const after = page.at(-1);
        page = await this.store.look(() => read(span, after));
        if (page.length > 0) yield page;
      } while (page.length === releases.SINCE_PAGE);
    }
  }

  async pruneReleases(olderMs: number): Promise<number> {
    return this.store.change(() => releases.pruneReleases(olderMs));
  }

  async outgoingEvents(limit: number): Promise<OutgoingEvent[]> {
    return this.store.look(() => events.outgoingEvents(limit));
  }

  async forgetEvents(eventIds: readonly string[]): Promise<void> {
    await this.store.change(() => events.forgetEvents(eventIds));
  }

  async note(note: AuditNote): Promise<void> {
    await this.store.changeShared(() => audit.writeNote(note));
  }

  async audit(filter: { subject?: string }, page: Page): Promise<AuditEntry[]> {
    return this.store.look(() => audit.audit(filter, page));
  }

  async putIntent(intent: NewIntent): Promise<SandboxIntent> {
    return this.#putIntent(intent);
  }

  async getIntent(id: string): Promise<SandboxIntent | null> {
    return this.store.look(() => sandbox.getIntent(id));
  }

  async moveIntent(
    id: string,
    from: readonly SandboxIntent['state'][],
    to: SandboxIntent['state'],
  ): Promise<SandboxIntent | null> {
    return this.#moveIntent({ id, from, to });
  }

  async refundIntent(id: string, refundId: string, amount: number): Promise<SandboxIntent | null> {
    return this.store.change(() => sandbox.refundIntent(id, refundId, amount, this.store.dialect));
  }

  async captureDue(limit: number): Promise<{ captured: number; untold: SandboxIntent[] }> {
    return this.store.change(() => sandbox.captureDue(limit, this.store.dialect));
  }

  async intentsTold(ids: readonly string[]): Promise<void> {
    await this.store.change(() => sandbox.intentsTold(ids));
  }

  // The store itself

  takeIdBlock(kind: IdKind, size: number): Promise<IdBlock> {
    return this.store.change(() => takeIdBlock(kind, size, this.store.dialect));
  }

  probe(): Promise<void> {
    return this.store.probe();
  }

  get backlog(): number {
    return this.store.orders.tail?.backlog ?? 0;
  }

  async maintain(budgetMs: number): Promise<boolean> {
    return this.store.orders.tail?.fold(budgetMs) ?? false;
  }

  close(): Promise<void> {
    return this.store.close();
  }
}

/** Another attempt may take the reference after the work looked for it, and its constraint fails. The second try finds it. */
async function twice<T>(change: () => Promise<T>): Promise<T> {
  try {
    return await change();
  } catch (error) {
    if (error instanceof RetryableError) throw error;
    return await change();
  }
}
