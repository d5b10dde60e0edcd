import { RetryableError, unavailable } from '../base/errors.ts';
import type { AddressInNetwork } from '../base/fair.ts';
import { Few } from '../base/few.ts';
import { type IdKind, IdSequence, isId } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { within } from '../base/timers.ts';
import type { KeptGate, SharedGate } from '../gate/port.ts';
import { Rebuilder } from '../gate/rebuild.ts';
import { GateUpkeep } from '../gate/upkeep.ts';
import type {
  Actor,
  AuditEntry,
  KeyBinding,
  KeyedCall,
  KeyScope,
  Ledger,
  Move,
  Moved,
  OrderFilter,
  Page,
  SaleChange,
} from '../ledger/port.ts';
import type { Locks } from '../locks/locks.ts';
import type { AccountRecord } from '../model/account.ts';
import { actor } from '../model/actor.ts';
import { saleChannel } from '../model/channel.ts';
import { type CheckName, type CheckReport, FINDINGS_MAX } from '../model/finding.ts';
import type { LikeEvent } from '../model/like.ts';
import type { Money } from '../model/money.ts';
import type { OrderMessage, OrderRecord } from '../model/order.ts';
import type { PaymentAttempt } from '../model/payment.ts';
import type { ItemPatch, NewItem, NewSale, SalePatch, SaleRecord } from '../model/sale.ts';
import { namedTwice } from '../model/sale-seats.ts';
import { isCode } from '../model/text.ts';
import { type MetricSources, Metrics } from '../observe/metrics.ts';
import { DecideDeadLetters } from '../orders/dead-letters.ts';
import { Decisions } from '../orders/decisions.ts';
import { FindOrder, type Queue } from '../orders/find.ts';
import { cancel, type EndResult } from '../orders/life/cancel.ts';
import { checkLife } from '../orders/life/check.ts';
import type { Life } from '../orders/life/life.ts';
import { hear } from '../orders/life/news.ts';
import { type AroundPay, confirm, type PayResult, pay } from '../orders/life/pay.ts';
import type { Reached } from '../orders/life/points.ts';
import { type RefundOf, refund } from '../orders/life/refund.ts';
import { type Reseating, type ReseatResult, reseat } from '../orders/life/reseat.ts';
import type { Sweeper } from '../orders/life/sweeper.ts';
import { PendingDecisions } from '../orders/pending-decisions.ts';
import { type Patience, PlaceOrder } from '../orders/place.ts';
import { type OrderRequest, type OrderResult, SeatOrders } from '../orders/seat-orders.ts';
import type { ProviderNews } from '../payments/port.ts';
import type { DeadLetters, Pipe } from '../pipe/port.ts';
import { type Caller, type Deleted, ManageSales } from '../sales/manage.ts';
import { SeatMaps } from '../sales/seat-maps.ts';
import { BlockSeats, type SeatsChange } from '../sales/seats.ts';
import { Accounts, type Registered, type Registration } from '../social/accounts/accounts.ts';
import { type PasswordHasher, ScryptHasher } from '../social/accounts/password.ts';
import { checkCounts, isPlace } from '../social/count-check.ts';
import {
  DecideLikeLetters,
  type DecideLikeLettersDependencies,
  type OlderLetter,
} from '../social/likes/dead-letters.ts';
import type { Likes } from '../social/likes/likes.ts';
import type { RoomForWriting } from '../social/room.ts';
import { AuditView } from '../views/audit.ts';
import { Board, type HearSale, type SaleEvent } from '../views/board.ts';
import { DeadLetterList } from '../views/dead-letters.ts';
import { Events, type OrderEvent, type ShopEvents } from '../views/events.ts';
import { OrderList } from '../views/order-list.ts';
import { Pace } from '../views/pace.ts';
import { type Order, presentSale, type Sale } from '../views/present.ts';
import type { PublicAnswer } from '../views/public-answer.ts';
import { SaleList } from '../views/sale-list.ts';
import { OrderView } from '../views/seat-names.ts';
import { SeatBoard } from '../views/seats.ts';
import { lead } from './lead.ts';
import { type PaymentOptions, wireLife } from './life.ts';
import { ShopSocial } from './social.ts';
import { NO_PRIVATE_WEBHOOKS, ShopWebhooks, type WebhookOptions } from './webhooks.ts';

const GATE = actor('system', 'gate');
const OTHER_ID_BLOCK = 100;
/** Payments come in a rush as orders do. */
const LIFE_ID_BLOCK = 20_000;
/** A hot post gets many comments in a moment. */
const COMMENT_ID_BLOCK = 2000;
const LIFE_STOP_MS_MAX = 1000;
/** Checks of counts that wait for the one that runs. */
const COUNT_CHECKS_MAX = 4;
/** What each part says of itself: `ok`, or why not. */
export interface Readiness {
  status: 'ok' | 'unavailable';
  parts: { gate: string; pipe: string; ledger: string };
}

export interface ShopParts {
  readonly ledger: Ledger;
  readonly gate: KeptGate & Partial<SharedGate>;
  readonly pipe: Pipe<OrderMessage>;
  /** Messages that the ledger could not take; absent where there can be none. */
  readonly letters?: DeadLetters<OrderMessage>;
  /** The same of likes, and what has to be told to whoever decides them. */
  readonly likeLetters?: DecideLikeLettersDependencies['likes'] & { readonly letters: DeadLetters<LikeEvent> };
  readonly patience: Patience | null;
  readonly rebuild: RebuildOptions;
  /** Where several processes share the shop. */
  readonly cluster: Cluster | null;
  /** Ids of a kind that a crowd uses up come in larger blocks; one block is one commit. */
  readonly orderIdBlock: number;
  readonly metrics: Omit<MetricSources, 'ready' | 'unsettled' | 'releases'>;
  readonly locks: Locks;
  readonly life: LifeOptions;
  /** How likes are decided. */
  readonly likes: Likes;
  /** Null: the ledger's disk is not ours. */
  readonly room: RoomForWriting | null;
}

export interface RebuildOptions {
  /** How long orders in the pipe are waited for: in all, and while none of them is decided. */
  readonly drainMsMax: number;
  readonly drainIdleMsMax: number;
}

export interface Cluster extends Queue {
  /** This process, as the messages of orders that it admitted name it. */
  readonly process: string;
  readonly locks: Locks;
  /** Tells another process what became of orders that it admitted. */
  tell(process: string, orders: readonly OrderRecord[]): void;
}

export interface LifeOptions {
  readonly payments: PaymentOptions;
  readonly webhooks?: WebhookOptions;
  /** How passwords of accounts are hashed; if left out, by scrypt. Tests take less time. */
  readonly passwords?: PasswordHasher;
  /** For tests that end the process between two steps. */
  readonly reached?: Reached;
}

export const NO_PAYMENTS: LifeOptions = { payments: { sandbox: false } };

/** How long a change of a sale waits for its gate, which a Redis or a pipe that is out may hold up. */
const INSTALL_MS_MAX = 5000;
const LETTERS_PAGE = 200;

/** Renewed while a gate is built: a process that is stopped in the middle loses the lock. */
const REBUILD_LEASE_MS = 10_000;

const EVENT_OF = {
  pay: 'order.paid',
  cancel: 'order.cancelled',
  expire: 'order.expired',
  refund: 'order.refunded',
  refund_part: 'order.partly_refunded',
} as const satisfies Record<Move['event'], OrderEvent>;

/**
 * A shop, whatever it is made of: what HTTP and the library call. A deployment (embedded.ts, distributed.ts) chooses the
 * parts, and says what becomes of orders while the ledger is out.
 */
export abstract class Shop {
  readonly metrics: Metrics;
  readonly runtime: Runtime;
  readonly webhooks: ShopWebhooks;
  /** Posts, comments and likes. */
  readonly social: ShopSocial;
  protected readonly ledger: Ledger;
  protected readonly gate: KeptGate;
  protected readonly pending = new PendingDecisions();
  protected readonly board: Board;
  readonly #seatBoard: SeatBoard;
  protected readonly view: OrderView;
  readonly #seatMaps: SeatMaps;
  protected readonly events: Events;
  protected readonly decisions: Decisions;
  protected readonly rebuilder: Rebuilder;
  protected readonly upkeep: GateUpkeep;
  /** Messages that the ledger could not take. */
  readonly deadLetters: DeadLetterList;
  readonly #sweeper: Sweeper;
  readonly #life: Life;
  readonly #saleList: SaleList;
  readonly #orderList: OrderList;
  /** What an operator decides about them, for each kind that there can be. */
  readonly #decideLetters: readonly (DecideDeadLetters | DecideLikeLetters)[];
  readonly #orderIds: IdSequence;
  readonly #auditIds: IdSequence;
  readonly #place: PlaceOrder;
  readonly #orders: SeatOrders;
  readonly #blockSeats: BlockSeats;
  readonly #reseating: Reseating;
  readonly #auditView: AuditView;
  readonly #find: FindOrder;
  readonly #manage: ManageSales;
  readonly #accounts: Accounts;
  readonly #queuedMsMax: number;
  #checked: CheckReport | null = null;
  /** A check of counts reads whole tables: one at a time. */
  readonly #countChecks = new Few(1, COUNT_CHECKS_MAX, 'checks of counts');
  #closing: string | null = null;
  #closed: Promise<void> | null = null;
  /** Orders being placed, and who waits until there are none. */
  #placing = 0;
  readonly #onPlaced: (() => void)[] = [];

  protected constructor(parts: ShopParts, runtime: Runtime) {
    const {
      ledger,
      gate,
      pipe,
      letters,
      likeLetters,
      patience,
      orderIdBlock,
      metrics,
      locks,
      life,
      cluster,
      likes,
      room,
    } = parts;
    this.runtime = runtime;
    this.#queuedMsMax = patience?.answerWithinMs ?? 0;
    this.ledger = ledger;
    this.gate = gate;
    this.metrics = new Metrics({
      ...metrics,
      unsettled: () => this.#sweeper.due.counters,
      releases: () => this.#life.releaser.counters,
      ready: () => this.readiness().status === 'ok',
    });
    const pace = new Pace(runtime);
    this.#seatMaps = new SeatMaps({ runtime, ledger, exists: (saleId) => this.board.exists(saleId) });
    const seatsOf: SeatMaps['of'] = (saleId, has) => this.#seatMaps.of(saleId, has);
    const seatsOfItem: SeatMaps['ofItem'] = (saleId, itemId) => this.#seatMaps.ofItem(saleId, itemId);
    this.#seatBoard = new SeatBoard({ runtime, gate, ledger, seatsOf, pace });
    this.board = new Board(runtime, ledger, gate, pace, this.#seatBoard);
    this.view = new OrderView(seatsOfItem);
    this.#auditView = new AuditView({ ledger, seatsOf });
    this.events = new Events(runtime.log, this.view);
    this.#orderList = new OrderList(runtime, ledger, this.view);
    this.#saleList = new SaleList({ runtime, ledger, present: (record) => this.board.present(record) });
    const takeBlock: Ledger['takeIdBlock'] = (kind, size) => this.watched(ledger.takeIdBlock(kind, size));
    const ids = (kind: IdKind, block = OTHER_ID_BLOCK): IdSequence =>
      new IdSequence(kind, takeBlock, runtime.clock, block);
    this.#orderIds = ids('order', orderIdBlock);
    const auditIds = ids('audit', LIFE_ID_BLOCK);
    this.#auditIds = auditIds;
    this.rebuilder = new Rebuilder({
      runtime,
      gate,
      pipe,
      ledger,
      lock: async (saleId) =>
        cluster === null
          ? { release: async () => undefined }
          : await cluster.locks.mutex(`rebuild:${saleId}`).tryAcquire({ lease: REBUILD_LEASE_MS, renew: true }),
      ...parts.rebuild,
      rebuilding: async () => ({ auditId: await auditIds.next(), by: GATE }),
      rebuilt: (saleId, pauseMs) => {
        this.metrics.rebuilt(pauseMs);
        this.board.touch(saleId);
      },
    });
    this.upkeep = new GateUpkeep({
      runtime,
      gate,
      ledger,
      rebuilder: this.rebuilder,
      lead: (work) => lead(cluster?.locks ?? null, 'keeper', work),
      told: (saleId) => this.board.changed(saleId),
      // Elsewhere a failure may be that of Redis.
      ...(cluster === null && { failed: (error) => this.ledgerFailed(error) }),
    });
    this.decisions = new Decisions({
      runtime,
      gate,
      pending: this.pending,
      process: cluster?.process,
      tell: (process, orders) => cluster!.tell(process, orders),
      rebuild: (saleId, epoch) => void this.rebuilder.rebuild(saleId, epoch),
      touched: (saleId) => this.board.touch(saleId),
      announce: (event, order) => this.events.announce(event, order),
      backstop: (reason) => this.metrics.backstop(reason),
    });
    this.deadLetters = new DeadLetterList(letters ?? null, likeLetters?.letters ?? null);
    const deciding = { ledger, auditIds, watched: <T>(work: Promise<T>) => this.watched(work) };
    const rejected = (order: OrderRecord): void => this.events.announce('order.rejected', order);
    this.#decideLetters = [
      ...(letters ? [new DecideDeadLetters(letters, { ...deciding, gate, rejected })] : []),
      ...(likeLetters ? [new DecideLikeLetters(likeLetters.letters, { ...deciding, likes: likeLetters })] : []),
    ];
    this.#find = new FindOrder({ runtime, ledger, gate, queue: cluster });
    this.#place = new PlaceOrder({
      runtime,
      gate,
      ledger,
      pending: this.pending,
      orderIds: this.#orderIds,
      auditIds,
      patience,
      closedBecause: () => this.cannotPlace(),
      rebuild: (saleId) => void this.rebuilder.rebuild(saleId),
      isEmptied: (sale) => this.isEmptied(sale),
    });
    this.#orders = new SeatOrders({
      peek: (saleId) => this.#seatMaps.peek(saleId),
      seatsOf: async (saleId, has) => (isId(saleId) ? await seatsOf(saleId, has) : null),
      place: (request) => this.#place.place(request),
      again: (request) => this.#place.again(request),
    });
    this.#reseating = {
      gate,
      ledger,
      seatsOf: seatsOfItem,
      moved: (order) => this.#announceNow('order.moved', order),
    };
    const { life: flows, sweeper } = wireLife({
      runtime,
      ledger,
      gate,
      locks,
      attemptIds: ids('attempt', LIFE_ID_BLOCK),
      auditIds,
      payments: life.payments,
      reached: life.reached ?? (() => undefined),
      place: (request) => this.#place.place(request),
      lead: (work, options) => lead(cluster?.locks ?? null, 'life', work, options),
      touched: (saleId) => this.board.touch(saleId),
      moved: (move, moved) => this.#moved(move, moved),
      committed: (moves, durationMs) => this.metrics.commit(moves, durationMs),
      watched: (work) => this.watched(work),
      queuedOrder: (orderId) => this.#find.queued(orderId),
    });
    this.#life = flows;
    this.#sweeper = sweeper;
    this.webhooks = new ShopWebhooks({
      runtime,
      ledger,
      metrics: this.metrics,
      endpointIds: ids('webhook'),
      deliveryIds: ids('delivery', LIFE_ID_BLOCK),
      auditIds,
      options: life.webhooks ?? NO_PRIVATE_WEBHOOKS,
      view: this.view,
      lead: (work) => lead(cluster?.locks ?? null, 'webhooks', work),
    });
    this.#accounts = new Accounts({
      ledger: ledger.accounts,
      accountIds: ids('user'),
      auditIds,
      hasher: life.passwords ?? new ScryptHasher(runtime.random),
      watched: (work) => this.watched(work),
    });
    this.social = new ShopSocial({
      runtime,
      ledger,
      likes,
      postIds: ids('post'),
      commentIds: ids('comment', COMMENT_ID_BLOCK),
      auditIds,
      room,
      living: (work) => this.#living(work),
      watched: (work) => this.watched(work),
    });
    const present = (sale: SaleRecord): string => JSON.stringify(presentSale(sale, null, runtime.clock.now()));
    this.#manage = new ManageSales({
      runtime,
      gate,
      ledger,
      saleIds: ids('sale'),
      itemIds: ids('item'),
      auditIds,
      install: (saleId, above) => this.install(saleId, above),
      takeAway: (saleId, decide) => this.rebuilder.takeAway(saleId, decide),
      hasDeadLetters: async (saleId) => letters !== undefined && (await isAmong(letters, saleChannel(saleId))),
      present,
      saleIn: (answer) => (JSON.parse(answer) as Sale).id,
      changed: (saleId) => this.#saleChanged(saleId),
      closing: () => this.closing,
    });
    this.#blockSeats = new BlockSeats({
      ...{ runtime, gate, ledger, auditIds, seatsOf, present },
      changed: (saleId) => this.#saleChanged(saleId),
      closing: () => this.closing,
    });
  }

  /** Fetches ids before the first order needs them; if that fails, the first order tries again. */
  protected async prefetchIds(): Promise<void> {
    await Promise.allSettled([this.#orderIds.refill(), this.#auditIds.refill()]);
  }

  /** Why no order can be taken now, or null. */
  protected abstract cannotPlace(): string | null;
  /** Why nothing can be changed in the ledger now, or null. */
  protected abstract cannotChange(): string | null;
  /** Builds the gate of a sale from the ledger, unless one of an epoch above `above` is in force. */
  protected abstract install(saleId: string, above: number): Promise<void>;
  /** Whether the ledger knows all that was admitted to a finished sale, which no gate answers for. */
  protected abstract isEmptied(sale: SaleRecord): Promise<boolean>;
  /** A sale was closed for good. */
  protected abstract saleClosed(saleId: string): Promise<void>;
  /** Nothing is being placed any more: finishes the rest and closes the parts. */
  protected abstract finish(): Promise<void>;
  /** The ledger failed somewhere. */
  protected abstract ledgerFailed(error: unknown): void;
  abstract readiness(): Readiness;
  /** Milliseconds that commits have held the event loop. */
  abstract get blockedMs(): number;

  /** From now on this process does the work that no request asks for, whenever it leads. */
  protected startWork(): void {
    this.upkeep.start();
    this.#sweeper.start();
    this.webhooks.start();
  }

  /** Puts a dead letter back into the pipe. False: there is none. */
  async retryDeadLetter(letterId: string, by: Actor): Promise<boolean> {
    for (const kind of this.#decideLetters) if (await kind.retry(letterId, by)) return true;
    return false;
  }

  /**
   * Ends the order of a dead letter as `rejected: undeliverable` and gives its units back, or drops its like; then forgets the letter.
   * False: there is none. Refused if another letter has to be decided first.
   */
  async endDeadLetter(letterId: string, by: Actor): Promise<boolean | OlderLetter> {
    for (const kind of this.#decideLetters) {
      const ended = await kind.end(letterId, by);
      if (ended !== false) return ended;
    }
    return false;
  }

  // Orders

  async place(request: OrderRequest): Promise<OrderResult> {
    if (this.#closing !== null) throw unavailable(this.#closing);
    this.#placing++;
    try {
      const result = await this.#orders.place(request);
      this.metrics.admission(result.ok ? (result.replayed ? 'replayed' : result.order.status) : result.code);
      return result;
    } catch (error) {
      this.metrics.admission(error instanceof RetryableError ? error.code : 'error');
      throw error;
    } finally {
      if (--this.#placing === 0) for (const resolve of this.#onPlaced.splice(0)) resolve();
    }
  }

  /** What a repeat of a request gets; null: it is none. Takes nothing new. */
  placedBefore(request: OrderRequest): Promise<OrderResult | null> {
    return this.#living(() => this.#orders.again(request));
  }

  /** The order without its payment. */
  findOrder(orderId: string): Promise<OrderRecord | null> {
    return this.#find.find(orderId);
  }

  async getOrder(orderId: string): Promise<Order | null> {
    const found = await this.findOrder(orderId);
    return found && (await this.showOrder(found));
  }

  /** With its last payment. */
  async showOrder(order: OrderRecord): Promise<Order> {
    return this.view.show(order, await this.#attemptOf(order));
  }

  /** As it is given; of a counted item at once. */
  present(order: OrderRecord, attempt: PaymentAttempt | null = null): Order | Promise<Order> {
    return this.view.show(order, attempt);
  }

  /** The last attempt to pay it; what never was in the ledger has none. */
  async #attemptOf({ id, status }: OrderRecord): Promise<PaymentAttempt | null> {
    if (status === 'queued' || status === 'rejected') return null;
    return (await this.ledger.lastAttempts([id])).get(id) ?? null;
  }

  listOrders(filter: OrderFilter, page: Page): Promise<Order[]> {
    return this.#orderList.page(filter, page);
  }

  // The life of an order

  async payOrder<T = PayResult>(
    orderId: string,
    paid: { method: string; token: string | null },
    by: Actor,
    around?: AroundPay<T>,
  ): Promise<PayResult | T> {
    if (!isId(orderId)) return { ok: false, code: 'not_found' };
    return await this.#living(() => pay(this.#life, orderId, paid, by, around));
  }

  async confirmOrder(orderId: string, reference: string, amount: Money, by: Actor): Promise<PayResult> {
    if (!isId(orderId)) return { ok: false, code: 'not_found' };
    return await this.#living(() => confirm(this.#life, orderId, reference, amount, by));
  }

  /** One that is queued is waited for: there is nothing to cancel before its commit. */
  async cancelOrder(orderId: string, by: Actor): Promise<EndResult> {
    if (!isId(orderId)) return { ok: false, code: 'not_found' };
    const waiting = await this.#find.stillQueued(orderId, this.#queuedMsMax);
    if (waiting !== null) return { ok: false, code: 'order_not_cancellable', order: waiting };
    return await this.#living(() => cancel(this.#life, orderId, by));
  }

  async refundOrder(orderId: string, by: Actor, part?: RefundOf): Promise<EndResult> {
    if (!isId(orderId)) return { ok: false, code: 'not_found' };
    return await this.#living(() => refund(this.#life, orderId, by, part));
  }

  /** Moves a reserved or paid order to other seats of its item. */
  async moveOrder(orderId: string, seats: readonly string[], by: Actor): Promise<ReseatResult> {
    if (!isId(orderId)) return { ok: false, code: 'not_found', what: 'order' };
    return await this.#living(() => this.watched(reseat(this.#life, this.#reseating, orderId, seats, by)));
  }

  /** Lifts `payment_blocked` from an order and its buyer; null: there is no such order. */
  async unblockPayments(orderId: string, by: Actor): Promise<Order | null> {
    const order = await this.getOrder(orderId);
    if (order === null) return null;
    await this.#living(async () => {
      const auditId = await this.#auditIds.next();
      return await this.watched(this.ledger.unblockPayments(orderId, by, auditId));
    });
    return order;
  }

  /** One that this process asks for money; `confirm` is none, whatever it is given. */
  hasProvider(name: string): boolean {
    return name !== 'confirm' && this.#life.providers.has(name);
  }

  /** `origin`: the address that it came from. False: it is about nothing that we know. */
  async paymentNews(news: ProviderNews, origin: string | null = null): Promise<boolean> {
    if (!isId(news.orderId)) return false;
    return await this.#living(() => hear(this.#life, news, origin));
  }

  async audit(filter: { subject?: string }, page: Page): Promise<AuditEntry[]> {
    return await this.#auditView.named(await this.ledger.audit(filter, page));
  }

  /**
   * Looks for what does not come to its end by itself, in one sale or in all, and for counts that differ from their rows. `from`: the
   * `next` of a report that is not complete; only the rest of the counts is checked then.
   */
  async check(saleId: string | null = null, from: string | null = null): Promise<CheckReport> {
    const report = await this.#check(saleId, from);
    if (saleId !== null) return report;
    const last = this.#checked;
    if (from === null) this.#checked = report;
    else if (last?.next === from) {
      const findings = [...last.findings, ...report.findings];
      const more = last.more || findings.length > FINDINGS_MAX;
      this.#checked = { ...last, findings: findings.slice(0, FINDINGS_MAX), more, next: report.next };
    }
    return report;
  }

  async #check(saleId: string | null, from: string | null): Promise<CheckReport> {
    const { clock, timers } = this.runtime;
    const checkedAtMs = clock.now();
    const nothing = { checkedAtMs, checks: [], findings: [], more: false, next: null };
    if (saleId !== null && !isId(saleId)) return nothing;
    if (from !== null && !isPlace(from)) return nothing;
    const found = from === null ? await checkLife(this.ledger, timers, saleId) : [];
    const checks: CheckName[] = from === null ? ['releases', 'payments'] : [];
    const more = found.length > FINDINGS_MAX;
    if (saleId !== null || more) return { ...nothing, checks, findings: found.slice(0, FINDINGS_MAX), more };
    // No sale has posts.
    const max = Math.max(FINDINGS_MAX - found.length, 1);
    const counts = await this.#countChecks.run(() => checkCounts(this.ledger.social, this.runtime, from, max));
    const findings = [...found, ...counts.findings];
    return {
      checkedAtMs,
      checks: [...checks, 'counts'],
      findings: findings.slice(0, FINDINGS_MAX),
      more: findings.length > FINDINGS_MAX,
      next: counts.next,
    };
  }

  /** The last report of all sales that this process made; the first one is made now. */
  async lastCheck(): Promise<CheckReport> {
    return this.#checked ?? (await this.check());
  }

  boundAnswer(scope: KeyScope): Promise<KeyBinding | null> {
    return this.ledger.findKey(scope);
  }

  bindAnswer(call: KeyedCall, answer: string): Promise<void> {
    return this.watched(this.ledger.bindAnswer(call, answer));
  }

  /** What has begun is finished before the shop closes, and nothing is begun then. */
  async #living<T>(work: () => Promise<T>): Promise<T> {
    if (this.#closing !== null) throw unavailable(this.#closing);
    this.#placing++;
    try {
      return await work();
    } finally {
      if (--this.#placing === 0) for (const resolve of this.#onPlaced.splice(0)) resolve();
    }
  }

  #moved({ event }: Move, { outcome, order, attempt }: Moved): void {
    if (outcome !== 'moved') return;
    this.board.touch(order!.saleId);
    const name = EVENT_OF[event];
    if (attempt === null) this.#announceNow(name, order!);
    else this.events.announce(name, order!, attempt);
  }

  /** With its last payment: one that failed or was given up shows, too. */
  #announceNow(event: OrderEvent, order: OrderRecord): void {
    if (!this.events.isHeard(event)) return;
    this.#attemptOf(order)
      .catch(() => null)
      .then((last) => this.events.announce(event, order, last));
  }

  /** Calls `hear` with the order as it is and then at every change. The returned function ends it. */
  watchOrder(orderId: string, hear: (order: Order) => void): Promise<(() => void) | null> {
    return this.events.watch(orderId, hear, () => this.getOrder(orderId));
  }

  // Accounts

  registerAccount(registration: Registration, from: AddressInNetwork, origin: string | null): Promise<Registered> {
    return this.#living(() => this.#accounts.register(registration, from, origin));
  }

  /** Null: no such account, or another password. */
  signIn(username: string, password: string, from: AddressInNetwork): Promise<AccountRecord | null> {
    return this.#living(() => this.#accounts.signIn(username, password, from));
  }

  // Sales

  createSale(sale: NewSale, caller: Caller): Promise<SaleChange> {
    return this.#change(() => this.#manage.create(sale, caller));
  }

  patchSale(saleId: string, patch: SalePatch, version: number, caller: Caller): Promise<SaleChange> {
    return this.#changeOf(saleId, () => this.#manage.patch(saleId, patch, version, caller));
  }

  async addStock(saleId: string, itemCode: string, add: number, caller: Caller): Promise<SaleChange> {
    // Before its key is looked up: not every database can hold any text.
    if (!isCode(itemCode)) return { outcome: 'not_found' };
    return this.#changeOf(saleId, () => this.#manage.addStock(saleId, itemCode, add, caller));
  }

  setPaused(saleId: string, paused: boolean, caller: Caller): Promise<SaleChange> {
    return this.#changeOf(saleId, () => this.#manage.setPaused(saleId, paused, caller));
  }

  /** Blocks seats for the house, or makes them free again: all or none. */
  async setBlocked(saleId: string, seats: readonly string[], blocked: boolean, caller: Caller): Promise<SeatsChange> {
    if (!isId(saleId)) return { outcome: 'not_found' };
    const twice = namedTwice(seats);
    if (twice !== null) return { outcome: 'invalid_request', path: `/seats/${twice}`, message: 'is named twice' };
    const reason = this.#closing ?? this.cannotChange();
    if (reason !== null) throw unavailable(reason);
    return await this.watched(this.#blockSeats.set(saleId, seats, blocked, caller));
  }

  async closeSale(saleId: string, caller: Caller): Promise<SaleChange> {
    const change = await this.#changeOf(saleId, () => this.#manage.close(saleId, caller));
    if (change.outcome === 'changed') await this.saleClosed(saleId);
    return change;
  }

  addItem(saleId: string, item: NewItem, caller: Caller): Promise<SaleChange> {
    return this.#changeOf(saleId, () => this.#manage.addItem(saleId, item, caller));
  }

  async patchItem(
    saleId: string,
    itemCode: string,
    patch: ItemPatch,
    version: number,
    caller: Caller,
  ): Promise<SaleChange> {
    if (!isCode(itemCode)) return { outcome: 'not_found' };
    return this.#changeOf(saleId, () => this.#manage.patchItem(saleId, itemCode, patch, version, caller));
  }

  async deleteSale(saleId: string, caller: Pick<Caller, 'by'>): Promise<Deleted> {
    return isId(saleId) ? this.#change(() => this.#manage.delete(saleId, caller)) : 'not_found';
  }

  async getSale(saleId: string): Promise<{ sale: Sale; eventId: string } | null> {
    return isId(saleId) ? this.board.read(saleId) : null;
  }

  async getSaleNow(saleId: string): Promise<Sale | null> {
    return isId(saleId) ? ((await this.board.readNow(saleId))?.sale ?? null) : null;
  }

  /** As anybody may see it over HTTP; null: there is no such sale. */
  async publicSale(saleId: string): Promise<PublicAnswer | null> {
    return isId(saleId) ? this.board.answer(saleId) : null;
  }

  /** Its seats, as anybody may see them; null: there is no such sale. */
  async publicSeats(saleId: string): Promise<PublicAnswer | null> {
    return isId(saleId) ? this.#seatBoard.answer(saleId) : null;
  }

  /** A page of the list, as anybody may see it over HTTP. */
  publicSales(page: Page): Promise<PublicAnswer> {
    return this.#saleList.page(page);
  }

  async listSales(page: Page): Promise<Sale[]> {
    const records = await this.ledger.listSales(page);
    return Promise.all(records.map((record) => this.board.present(record)));
  }

  async watchSale(saleId: string, from: string | null, hear: (event: SaleEvent) => void): Promise<(() => void) | null> {
    return this.streamSale(saleId, from, (events) => {
      for (const event of events) this.events.guarded('a sale', () => hear(event));
    });
  }

  /**
   * The same for a crowd: all who watch get the same array, so that its text is made once. `gone` is called when the sale was
   * deleted: nothing more is heard.
   */
  async streamSale(
    saleId: string,
    from: string | null,
    hear: HearSale,
    gone?: () => void,
  ): Promise<(() => void) | null> {
    return isId(saleId)
      ? this.board.watch(saleId, from, (events) => this.events.guarded('a sale', () => hear(events)), gone)
      : null;
  }

  // The shop itself

  on<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void {
    this.events.on(event, listener);
  }

  off<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void {
    this.events.off(event, listener);
  }

  get closing(): boolean {
    return this.#closing !== null;
  }

  protected get closingReason(): string | null {
    return this.#closing;
  }

  /** Why orders of some sales are refused, or null. */
  protected get rebuildReason(): string | null {
    const { size } = this.rebuilder;
    return size === 0 ? null : `being rebuilt for ${size} sale(s)`;
  }

  /** From now on refuses what is new; what is in flight goes on. */
  stop(): void {
    this.#closing ??= 'the shop is closing';
  }

  /** Stops accepting, finishes what is in flight, closes in order. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    this.stop();
    // Not only the pipe: an order may still be on its way to the gate.
    if (this.#placing > 0) await new Promise<void>((resolve) => this.#onPlaced.push(resolve));
    // Whatever hangs: its lease ends by itself, and others go on with what is left.
    const stopped = Promise.all([this.#sweeper.stop(), this.webhooks.stop(), this.upkeep.stop()]);
    await within(this.runtime.timers, stopped, LIFE_STOP_MS_MAX);
    this.rebuilder.close();
    await this.finish();
    this.board.close();
    this.events.close();
    await this.ledger.close();
  }

  #saleChanged(saleId: string): void {
    this.board.changed(saleId);
    this.#seatMaps.changed(saleId);
    this.#saleList.changed();
    this.events.saleChanged(saleId);
  }

  /** The gate of a sale that may be selling is built anew, for the sake of its items. It is built in any case, if perhaps later. */
  protected async rebuildFor(saleId: string, above: number): Promise<void> {
    const built = this.rebuilder.rebuild(saleId, above, true, true).then(() => true);
    if ((await within(this.runtime.timers, built, INSTALL_MS_MAX)) === null) {
      throw unavailable('it is stored, and its gate is not open yet');
    }
  }

  /** Administrative changes: refused while the shop cannot store them. */
  #change<T>(run: () => Promise<T>): Promise<T> {
    const reason = this.#closing ?? this.cannotChange();
    return reason === null ? this.watched(run()) : Promise.reject(unavailable(reason));
  }

  async #changeOf(saleId: string, run: () => Promise<SaleChange>): Promise<SaleChange> {
    return isId(saleId) ? this.#change(run) : { outcome: 'not_found' };
  }

  /** A failure of the ledger, wherever it shows, is known to the whole shop. */
  protected async watched<T>(work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      this.ledgerFailed(error);
      throw error;
    }
  }
}

/** Whether a letter of this channel is among them. */
async function isAmong(letters: DeadLetters<unknown>, channel: string): Promise<boolean> {
  for (let before: string | null = null; ; ) {
    const page = await letters.list(LETTERS_PAGE, before);
    if (page.some((letter) => letter.channel === channel)) return true;
    if (page.length < LETTERS_PAGE) return false;
    before = page.at(-1)!.id;
  }
}
