import { EventEmitter } from 'node:events';
import { RetryableError, unavailable } from '../base/errors.ts';
import { FewOfEach } from '../base/few.ts';
import { type IdKind, IdSequence, isId } from '../base/ids.ts';
import { type During, Paced } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep, within } from '../base/timers.ts';
import type { Gate } from '../gate/port.ts';
import type {
  Actor,
  AuditEntry,
  AuditNote,
  KeyBinding,
  KeyedCall,
  KeyScope,
  Ledger,
  Move,
  Moved,
  OrderFilter,
  Page,
  Rebuilding,
  SaleChange,
} from '../ledger/port.ts';
import type { Locks } from '../locks/locks.ts';
import { actor } from '../model/actor.ts';
import type { CheckReport } from '../model/finding.ts';
import type { Money } from '../model/money.ts';
import { hasEnded, type OrderRecord } from '../model/order.ts';
import type { PaymentAttempt } from '../model/payment.ts';
import type { NewSale, SalePatch, SaleRecord } from '../model/sale.ts';
import type { SaleSnapshot } from '../model/snapshot.ts';
import { isCode } from '../model/text.ts';
import { type MetricSources, Metrics } from '../observe/metrics.ts';
import { Acks } from '../orders/acks.ts';
import { cancel, type EndResult } from '../orders/life/cancel.ts';
import { checkLife } from '../orders/life/check.ts';
import type { Life } from '../orders/life/life.ts';
import { hear } from '../orders/life/news.ts';
import { type AroundPay, confirm, type PayResult, pay } from '../orders/life/pay.ts';
import type { Reached } from '../orders/life/points.ts';
import { type RefundOf, refund } from '../orders/life/refund.ts';
import type { Sweeper } from '../orders/life/sweeper.ts';
import { type Patience, PlaceOrder, type PlaceRequest, type PlaceResult } from '../orders/place.ts';
import type { ProviderNews } from '../payments/port.ts';
import type { DeadLetter, DeadLetters } from '../pipe/port.ts';
import { type Caller, ManageSales } from '../sales/manage.ts';
import { Board, type HearSale, type SaleEvent } from './board.ts';
import { type PaymentOptions, wireLife } from './life.ts';
import { type Order, presentOrder, presentSale, type Sale } from './present.ts';
import type { PublicAnswer } from './public-answer.ts';
import { SaleList } from './sale-list.ts';
import { NO_PRIVATE_WEBHOOKS, ShopWebhooks, type WebhookOptions } from './webhooks.ts';

const GATE = actor('system', 'gate');
const OTHER_ID_BLOCK = 100;
/** Payments come in a rush, as orders do. */
const LIFE_ID_BLOCK = 20_000;
const QUEUED_LOOK_MS = 50;
const LIFE_STOP_MS_MAX = 1000;
const LISTS_WAITING_MAX = 16;
/**
 * Lists of buyers, all together: 200 orders hold the event loop as long as ten orders that are placed. What is not seen here,
 * writing them down and reading what a database sends, is as much again: so they have a fifth of it and take less than a half.
 */
const LISTS_PACE = { pauseFactor: 4, atOnce: 8, waitingMax: 64, what: 'lists of orders are being read' };

export interface ShopEvents {
  'order.reserved': [order: Order];
  'order.rejected': [order: Order];
  'order.paid': [order: Order];
  'order.cancelled': [order: Order];
  'order.expired': [order: Order];
  /** A part of its money is back; it stays paid. */
  'order.partly_refunded': [order: Order];
  'order.refunded': [order: Order];
  'sale.changed': [saleId: string];
}

/** What each part says of itself: `ok`, or why not. */
export interface Readiness {
  status: 'ok' | 'unavailable';
  parts: { gate: string; pipe: string; ledger: string };
}

export interface ShopParts {
  readonly ledger: Ledger;
  readonly gate: Gate;
  readonly patience: Patience | null;
  /** Ids of a kind that a crowd uses up come in larger blocks; one block is one commit. */
  readonly orderIdBlock: number;
  readonly metrics: Omit<MetricSources, 'ready' | 'unsettled' | 'releases'>;
  readonly locks: Locks;
  readonly life: LifeOptions;
}

export interface LifeOptions {
  readonly payments: PaymentOptions;
  readonly webhooks?: WebhookOptions;
  /** For tests that end the process between two steps. */
  readonly reached?: Reached;
}

export const NO_PAYMENTS: LifeOptions = { payments: { sandbox: false } };

const EVENT_OF = {
  pay: 'order.paid',
  cancel: 'order.cancelled',
  expire: 'order.expired',
  refund: 'order.refunded',
  refund_part: 'order.partly_refunded',
} as const satisfies Record<Move['event'], keyof ShopEvents>;

/**
 * A shop, whatever it is made of: what HTTP and the library call. A deployment (embedded.ts, distributed.ts) chooses the
 * parts, says how a gate is rebuilt, and what follows from the ledger's decisions.
 */
export abstract class Shop {
  readonly metrics: Metrics;
  readonly runtime: Runtime;
  readonly webhooks: ShopWebhooks;
  protected readonly ledger: Ledger;
  protected readonly gate: Gate;
  protected readonly acks = new Acks();
  protected readonly board: Board;
  protected readonly sweeper: Sweeper;
  readonly #life: Life;
  readonly #saleList: SaleList;
  /** A filter that matches nothing has the ledger look through all orders of a buyer: one at a time for each. */
  readonly #lists = new FewOfEach(1, LISTS_WAITING_MAX, 'lists of this buyer are being read');
  readonly #listsOfAll: Paced;
  readonly #orderIds: IdSequence;
  readonly #auditIds: IdSequence;
  readonly #place: PlaceOrder;
  readonly #manage: ManageSales;
  readonly #events = new EventEmitter<ShopEvents>();
  readonly #orderWatchers = new Map<string, Set<(order: Order) => void>>();
  readonly #queuedMsMax: number;
  #checked: CheckReport | null = null;
  #closing: string | null = null;
  #closed: Promise<void> | null = null;
  /** Orders being placed, and who waits until there are none. */
  #placing = 0;
  readonly #onPlaced: (() => void)[] = [];

  protected constructor(parts: ShopParts, runtime: Runtime) {
    const { ledger, gate, patience, orderIdBlock, metrics, locks, life } = parts;
    this.runtime = runtime;
    this.#listsOfAll = new Paced(runtime, LISTS_PACE);
    this.#queuedMsMax = patience?.answerWithinMs ?? 0;
    this.ledger = ledger;
    this.gate = gate;
    this.metrics = new Metrics({
      ...metrics,
      unsettled: () => this.sweeper.due.counters,
      releases: () => this.#life.releaser.counters,
      ready: () => this.readiness().status === 'ok',
    });
    this.board = new Board(runtime, ledger, gate);
    this.#saleList = new SaleList({ runtime, ledger, present: (record) => this.board.present(record) });
    const takeBlock: Ledger['takeIdBlock'] = (kind, size) => this.watched(ledger.takeIdBlock(kind, size));
    const ids = (kind: IdKind, block = OTHER_ID_BLOCK): IdSequence =>
      new IdSequence(kind, takeBlock, runtime.clock, block);
    this.#orderIds = ids('order', orderIdBlock);
    const auditIds = ids('audit', LIFE_ID_BLOCK);
    this.#auditIds = auditIds;
    this.#place = new PlaceOrder({
      runtime,
      gate,
      ledger,
      acks: this.acks,
      orderIds: this.#orderIds,
      auditIds,
      patience,
      closedBecause: () => this.cannotPlace(),
      rebuild: (saleId) => this.rebuild(saleId),
      isEmptied: (sale) => this.isEmptied(sale),
    });
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
      touched: (saleId) => this.board.touch(saleId),
      moved: (move, moved) => this.#moved(move, moved),
      committed: (moves, durationMs) => this.metrics.commit(moves, durationMs),
      watched: (work) => this.watched(work),
      queuedOrder: (orderId) => this.queuedOrder(orderId, false),
    });
    this.#life = flows;
    this.sweeper = sweeper;
    this.webhooks = new ShopWebhooks({
      runtime,
      ledger,
      metrics: this.metrics,
      endpointIds: ids('webhook'),
      deliveryIds: ids('delivery', LIFE_ID_BLOCK),
      auditIds,
      options: life.webhooks ?? NO_PRIVATE_WEBHOOKS,
    });
    this.#manage = new ManageSales({
      runtime,
      gate,
      ledger,
      saleIds: ids('sale'),
      itemIds: ids('item'),
      auditIds,
      install: (saleId) => this.install(saleId),
      present: (sale) => JSON.stringify(presentSale(sale, null, runtime.clock.now())),
      saleIn: (answer) => (JSON.parse(answer) as Sale).id,
      changed: (saleId) => this.#saleChanged(saleId),
      closing: () => this.closing,
    });
  }

  /** For the audit: the shop itself builds a gate anew. */
  protected async rebuilding(): Promise<Rebuilding> {
    return { auditId: await this.#auditIds.next(), by: GATE };
  }

  /** Has ids at hand before the first order, also of one placed for a buyer; without success the first order tries again. */
  protected async prefetchIds(): Promise<void> {
    await Promise.allSettled([this.#orderIds.refill(), this.#auditIds.refill()]);
  }

  /** Why no order can be taken now, or null. */
  protected abstract cannotPlace(): string | null;
  /** Why nothing can be changed in the ledger now, or null. */
  protected abstract cannotChange(): string | null;
  /** Builds the gate of a sale from the ledger. */
  protected abstract install(saleId: string): Promise<void>;
  /** The gate of a sale is stale: has it built anew, in the background. */
  protected abstract rebuild(saleId: string): void;
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

  /** Messages that the ledger could not take; null where there can be none. */
  get deadLetters(): DeadLetters | null {
    return null;
  }

  /** Puts a dead letter back into the pipe. False: there is none. */
  async retryDeadLetter(letterId: string, by: Actor): Promise<boolean> {
    const letter = await this.deadLetters?.get(letterId);
    if (!letter) return false;
    // First, since the pipe is no part of the ledger: a row too many says that somebody tried, one too few would say nothing.
    await this.watched(this.ledger.note(await this.#letterNote('retry', letter, by)));
    return await this.deadLetters!.retry(letterId);
  }

  async #letterNote(action: 'retry' | 'delete', { message, error }: DeadLetter, by: Actor): Promise<AuditNote> {
    const { orderId, saleId, buyer } = message;
    // What nobody could read has an id of its own, of up to 300 characters.
    const subject = isId(orderId) ? `order:${orderId}` : `dead_letter:${orderId.slice(0, 100)}`;
    const detail = { ...(saleId !== '' && { saleId }), ...(buyer !== '' && { buyer }), error: error.slice(0, 500) };
    return { auditId: await this.#auditIds.next(), by, action: `dead_letter.${action}`, subject, detail };
  }

  /** Ends the order of a dead letter as `rejected: undeliverable`, gives its units back, and forgets the letter. */
  async endDeadLetter(orderId: string, by: Actor): Promise<boolean> {
    const letter = await this.deadLetters?.get(orderId);
    if (!letter) return false;
    const { message } = letter;
    const note = await this.#letterNote('delete', letter, by);
    const sale = message.quantity > 0 ? await this.ledger.getSale(message.saleId) : null;
    // What nobody can read, or is of nothing that we sell, has no order to be rejected: it is only forgotten.
    if (sale?.items.some(({ id }) => id === message.itemId)) {
      const [stored] = await this.watched(this.ledger.rejectOrders([message], 'undeliverable', note));
      // An order that is stored otherwise keeps its hold: the letter was a message that only bore its id.
      if (stored!.order.reason === 'undeliverable') await this.gate.withdraw(message.saleId, message);
      if (stored!.inserted) this.announce('order.rejected', stored!.order);
    } else {
      await this.watched(this.ledger.note(note));
    }
    await this.deadLetters!.drop(orderId);
    return true;
  }

  // Orders

  async place(request: PlaceRequest): Promise<PlaceResult> {
    if (this.#closing !== null) throw unavailable(this.#closing);
    this.#placing++;
    try {
      const result = await this.#place.place(request);
      this.metrics.admission(result.ok ? (result.replayed ? 'replayed' : result.order.status) : result.code);
      return result;
    } catch (error) {
      this.metrics.admission(error instanceof RetryableError ? error.code : 'error');
      throw error;
    } finally {
      if (--this.#placing === 0) for (const resolve of this.#onPlaced.splice(0)) resolve();
    }
  }

  /** The order as the ledger has it. */
  protected storedOrder(orderId: string): Promise<OrderRecord | null> {
    return this.ledger.getOrder(orderId);
  }

  /** For a deployment whose orders may be queued: the order if it is not in the ledger, or that cannot be asked now. */
  protected async queuedOrder(_orderId: string, _ledgerOut: boolean): Promise<OrderRecord | null> {
    return null;
  }

  /** The order without its payment. */
  async findOrder(orderId: string): Promise<OrderRecord | null> {
    if (!isId(orderId)) return null;
    try {
      return (await this.storedOrder(orderId)) ?? (await this.queuedOrder(orderId, false));
    } catch (error) {
      if (!(error instanceof RetryableError)) throw error;
      // With the ledger out a queued order can still be shown.
      const queued = await this.queuedOrder(orderId, true).catch(() => null);
      if (queued === null) throw error;
      return queued;
    }
  }

  async getOrder(orderId: string): Promise<Order | null> {
    const found = await this.findOrder(orderId);
    return found && (await this.showOrder(found));
  }

  /** With its last payment. */
  async showOrder(order: OrderRecord): Promise<Order> {
    return presentOrder(order, await this.#attemptOf(order));
  }

  /** The last attempt to pay it; what never was in the ledger has none. */
  async #attemptOf({ id, status }: OrderRecord): Promise<PaymentAttempt | null> {
    if (status === 'queued' || status === 'rejected') return null;
    return (await this.ledger.lastAttempts([id])).get(id) ?? null;
  }

  async listOrders(filter: OrderFilter, page: Page): Promise<Order[]> {
    if (filter.saleId !== undefined && !isId(filter.saleId)) return [];
    const read = async (during: During): Promise<Order[]> => {
      const orders = await during(() => this.ledger.listOrders(filter, page));
      const attempts = await during(() => this.ledger.lastAttempts(orders.map(({ id }) => id)));
      return during(() => orders.map((order) => presentOrder(order, attempts.get(order.id))));
    };
    // The shop's own lists are nobody's to hold up.
    if (filter.buyer === undefined) return await read((piece) => piece());
    return await this.#lists.run(filter.buyer, () => this.#listsOfAll.run(read));
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
    const waiting = await this.#whileQueued(orderId);
    if (waiting !== null) return { ok: false, code: 'order_not_cancellable', order: waiting };
    return await this.#living(() => cancel(this.#life, orderId, by));
  }

  async refundOrder(orderId: string, by: Actor, part?: RefundOf): Promise<EndResult> {
    if (!isId(orderId)) return { ok: false, code: 'not_found' };
    return await this.#living(() => refund(this.#life, orderId, by, part));
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
    return await this.ledger.audit(filter, page);
  }

  /** Looks for what does not come to its end by itself, in one sale or in all. */
  async check(saleId: string | null = null): Promise<CheckReport> {
    if (saleId !== null && !isId(saleId)) return { checkedAtMs: this.runtime.clock.now(), findings: [], more: false };
    const report = await checkLife(this.ledger, this.runtime, saleId);
    if (saleId === null) this.#checked = report;
    return report;
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

  /** The order if it is still queued when the bound is over; else null. */
  async #whileQueued(orderId: string): Promise<OrderRecord | null> {
    const { clock, timers } = this.runtime;
    const untilMs = clock.monotonic() + this.#queuedMsMax;
    for (;;) {
      if ((await this.storedOrder(orderId)) !== null) return null;
      const queued = await this.queuedOrder(orderId, false);
      if (queued?.status !== 'queued') return null;
      if (clock.monotonic() >= untilMs) return queued;
      await sleep(timers, QUEUED_LOOK_MS);
    }
  }

  /** Units that came back while a gate was being built: whoever gave them back did so to the gate before it. */
  protected async releaseSince({ saleId, items }: SaleSnapshot): Promise<void> {
    const revs = new Map(items.map(({ id, rev }) => [id, rev]));
    for await (const page of this.ledger.releasesSince(saleId, revs)) {
      await Promise.all(page.map(({ orderId, buyer }) => this.gate.release(saleId, { orderId, buyer })));
    }
  }

  #moved({ event }: Move, { outcome, order, attempt }: Moved): void {
    if (outcome !== 'moved') return;
    this.board.touch(order!.saleId);
    const name = EVENT_OF[event];
    if (attempt !== null || !this.#isHeard(name)) {
      this.announce(name, order!, attempt);
      return;
    }
    // A payment that failed or was given up shows, too.
    this.#attemptOf(order!)
      .catch(() => null)
      .then((last) => this.announce(name, order!, last));
  }

  #isHeard(event: keyof ShopEvents): boolean {
    return this.#events.listenerCount(event) > 0 || this.#orderWatchers.size > 0;
  }

  /** Calls `hear` with the order as it is and then at every change. The returned function ends it. */
  async watchOrder(orderId: string, hear: (order: Order) => void): Promise<(() => void) | null> {
    const watchers = this.#orderWatchers.get(orderId) ?? new Set();
    this.#orderWatchers.set(orderId, watchers.add(hear));
    const stop = (): void => {
      watchers.delete(hear);
      if (watchers.size === 0) this.#orderWatchers.delete(orderId);
    };
    const order = await this.getOrder(orderId).catch((error: unknown) => {
      stop();
      throw error;
    });
    if (order === null) {
      stop();
      return null;
    }
    hear(order);
    if (hasEnded(order.status)) stop();
    return stop;
  }

  /** Ids of orders that somebody watches here. */
  protected get watchedOrders(): string[] {
    return [...this.#orderWatchers.keys()];
  }

  protected tellWatchers(order: Order): void {
    for (const hear of this.#orderWatchers.get(order.id) ?? []) this.#guarded('an order', () => hear(order));
  }

  /** Tells watchers and listeners, if there are any. */
  protected announce(
    event: Exclude<keyof ShopEvents, 'sale.changed'>,
    record: OrderRecord,
    attempt: PaymentAttempt | null = null,
  ): void {
    if (!this.#isHeard(event)) return;
    const order = presentOrder(record, attempt);
    this.tellWatchers(order);
    this.#emit(event, order);
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

  async closeSale(saleId: string, caller: Caller): Promise<SaleChange> {
    const change = await this.#changeOf(saleId, () => this.#manage.close(saleId, caller));
    if (change.outcome === 'changed') await this.saleClosed(saleId);
    return change;
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
      for (const event of events) this.#guarded('a sale', () => hear(event));
    });
  }

  /** The same for a crowd: all who watch get the same array, so that its text is made once. */
  async streamSale(saleId: string, from: string | null, hear: HearSale): Promise<(() => void) | null> {
    return isId(saleId)
      ? this.board.watch(saleId, from, (events) => this.#guarded('a sale', () => hear(events)))
      : null;
  }

  // The shop itself

  on<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void {
    this.#events.on(event, listener as never);
  }

  off<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void {
    this.#events.off(event, listener as never);
  }

  get closing(): boolean {
    return this.#closing !== null;
  }

  protected get closingReason(): string | null {
    return this.#closing;
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
    const stopped = Promise.all([this.sweeper.stop(), this.webhooks.stop()]);
    await within(this.runtime.timers, stopped, LIFE_STOP_MS_MAX);
    await this.finish();
    this.board.close();
    this.#events.removeAllListeners();
    await this.ledger.close();
  }

  #saleChanged(saleId: string): void {
    this.board.changed(saleId);
    this.#saleList.changed();
    this.#emit('sale.changed', saleId);
  }

  /** A listener's fault is not the shop's: it is logged, and the order stands. */
  #emit<E extends keyof ShopEvents>(event: E, ...args: ShopEvents[E]): void {
    for (const listener of this.#events.listeners(event)) {
      this.#guarded(event, () => (listener as (...args: unknown[]) => unknown)(...args));
    }
  }

  /** Runs what an owner gave us, synchronous or not. */
  #guarded(what: string, run: () => unknown): void {
    const failed = (error: unknown): void => this.runtime.log.error({ err: error }, `a listener of ${what} failed`);
    try {
      const result = run();
      if (result instanceof Promise) result.catch(failed);
    } catch (error) {
      failed(error);
    }
  }

  /** Administrative changes: refused while the shop cannot store them. */
  #change(run: () => Promise<SaleChange>): Promise<SaleChange> {
    const reason = this.#closing ?? this.cannotChange();
    return reason === null ? this.watched(run()) : Promise.reject(unavailable(reason));
  }

  async #changeOf(saleId: string, run: () => Promise<SaleChange>): Promise<SaleChange> {
    return isId(saleId) ? this.#change(run) : { outcome: 'not_found' };
  }

  /** A failure of the ledger anywhere is known everywhere. */
  protected async watched<T>(work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      this.ledgerFailed(error);
      throw error;
    }
  }
}
