import { EventEmitter } from 'node:events';
import { RetryableError, unavailable } from '../base/errors.ts';
import { IdSequence, isId } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { MemoryGate } from '../gate/memory.ts';
import { KEY_KEPT_MS, type Ledger, type OrderFilter, type Page, type SaleChange } from '../ledger/port.ts';
import { SqliteLedger } from '../ledger/sqlite/ledger.ts';
import { Writer } from '../ledger/writer.ts';
import { hasEnded, type OrderRecord } from '../model/order.ts';
import type { NewSale, SalePatch } from '../model/sale.ts';
import { Metrics } from '../observe/metrics.ts';
import { Acks } from '../orders/acks.ts';
import { PlaceOrder, type PlaceRequest, type PlaceResult } from '../orders/place.ts';
import { MemoryPipe } from '../pipe/memory.ts';
import { type Caller, ManageSales } from '../sales/manage.ts';
import { Board, type SaleEvent } from './board.ts';
import { type Order, presentOrder, presentSale, type Sale } from './present.ts';

/** Ids of a kind that a crowd uses up come in larger blocks; one block is one commit. */
const ORDER_ID_BLOCK = 20_000;
const OTHER_ID_BLOCK = 100;
const PRUNE_EVERY_MS = 60_000;
const REBUILD_RETRY_MS = 500;

export interface ShopEvents {
  'order.reserved': [order: Order];
  'order.rejected': [order: Order];
  'sale.changed': [saleId: string];
}

/** What each part says of itself: `ok`, or why not. */
export interface Readiness {
  status: 'ok' | 'unavailable';
  parts: { gate: string; pipe: string; ledger: string };
}

/**
 * The embedded shop: the composition root of one process on SQLite. It reads like the way of an order:
 *
 *     place ──▶ gate ──▶ pipe ──▶ writer ──▶ ledger
 *                ▲                  │ commit, then gate, then acknowledge
 *                └──── settle ──────┴──▶ acks ──▶ the answer
 */
export class EmbeddedShop {
  readonly metrics: Metrics;
  readonly runtime: Runtime;
  readonly #ledger: SqliteLedger;
  readonly #pipe: MemoryPipe;
  readonly #gate: MemoryGate;
  readonly #writer: Writer;
  readonly #acks = new Acks();
  readonly #place: PlaceOrder;
  readonly #manage: ManageSales;
  readonly #board: Board;
  readonly #events = new EventEmitter<ShopEvents>();
  readonly #orderWatchers = new Map<string, Set<(order: Order) => void>>();
  readonly #rebuilding = new Map<string, Promise<void>>();
  /** Sales the gate was given. */
  readonly #installed = new Set<string>();
  readonly #cancelPruning: () => void;
  #closing: string | null = null;
  #closed: Promise<void> | null = null;
  /** Orders being placed, and who waits until there are none. */
  #placing = 0;
  readonly #onPlaced: (() => void)[] = [];

  /** Opens the ledger in `folder` and builds the gates of all sales that may still admit. */
  static async open(folder: string, runtime: Runtime): Promise<EmbeddedShop> {
    const shop = new EmbeddedShop(SqliteLedger.open(folder, runtime), runtime);
    try {
      for (const saleId of await shop.#ledger.openSaleIds()) await shop.#install(saleId);
    } catch (error) {
      await shop.close();
      throw error;
    }
    return shop;
  }

  private constructor(ledger: SqliteLedger, runtime: Runtime) {
    this.runtime = runtime;
    this.#ledger = ledger;
    this.#pipe = new MemoryPipe(runtime);
    this.#gate = new MemoryGate(runtime, (message) => this.#pipe.push(message));
    this.metrics = new Metrics({
      pipeDepth: () => this.#pipe.depth,
      ledgerBacklog: () => this.#ledger.backlog,
      unresolved: () => this.#writer.unresolved,
      ready: () => this.readiness().status === 'ok',
    });
    this.#writer = new Writer(ledger, runtime, {
      stored: (order, inserted) => this.#stored(order, inserted),
      rejected: (order) => this.#rejected(order),
      withdrawn: ({ saleId, orderId }) => void this.#gate.withdraw(saleId, orderId),
      failed: ({ orderId }, error) => this.#acks.failed(orderId, error),
      committed: (orders, durationMs) => this.metrics.commit(orders, durationMs),
    });
    this.#pipe.consume((batch) => this.#writer.write(batch));

    const takeBlock: Ledger['takeIdBlock'] = (kind, size) => this.#watched(this.#ledger.takeIdBlock(kind, size));
    const ids = (kind: 'sale' | 'item' | 'order' | 'audit', block = OTHER_ID_BLOCK): IdSequence =>
      new IdSequence(kind, takeBlock, runtime.clock, block);
    this.#board = new Board(runtime, ledger, this.#gate);
    this.#place = new PlaceOrder({
      runtime,
      gate: this.#gate,
      ledger,
      acks: this.#acks,
      orderIds: ids('order', ORDER_ID_BLOCK),
      closedBecause: () => this.#writer.reason,
      rebuild: (saleId) => void this.#rebuild(saleId),
    });
    this.#manage = new ManageSales({
      runtime,
      gate: this.#gate,
      ledger,
      saleIds: ids('sale'),
      itemIds: ids('item'),
      auditIds: ids('audit'),
      install: (saleId) => this.#install(saleId),
      present: (sale) => JSON.stringify(presentSale(sale, null, runtime.clock.now())),
      changed: (saleId) => this.#saleChanged(saleId),
    });
    this.#cancelPruning = runtime.timers.every(PRUNE_EVERY_MS, () => void this.#prune());
  }

  // Orders

  async place(request: PlaceRequest): Promise<PlaceResult> {
    if (this.#closing !== null) throw unavailable(this.#closing);
    this.#placing++;
    try {
      const result = await this.#place.place(request);
      this.metrics.admission(result.ok ? (result.replayed ? 'replayed' : 'reserved') : result.code);
      return result;
    } catch (error) {
      this.metrics.admission(error instanceof RetryableError ? error.code : 'error');
      throw error;
    } finally {
      if (--this.#placing === 0) for (const resolve of this.#onPlaced.splice(0)) resolve();
    }
  }

  async getOrder(orderId: string): Promise<Order | null> {
    if (!isId(orderId)) return null;
    const order = await this.#ledger.getOrder(orderId);
    return order && presentOrder(order);
  }

  async listOrders(filter: OrderFilter, page: Page): Promise<Order[]> {
    if (filter.saleId !== undefined && !isId(filter.saleId)) return [];
    return (await this.#ledger.listOrders(filter, page)).map(presentOrder);
  }

  /** Calls `hear` with the order as it is and then at every change. The returned function ends it. */
  async watchOrder(orderId: string, hear: (order: Order) => void): Promise<(() => void) | null> {
    const watchers = this.#orderWatchers.get(orderId) ?? new Set();
    this.#orderWatchers.set(orderId, watchers.add(hear));
    const stop = (): void => {
      watchers.delete(hear);
      if (watchers.size === 0) this.#orderWatchers.delete(orderId);
    };
    const order = await this.getOrder(orderId);
    if (order === null) {
      stop();
      return null;
    }
    hear(order);
    if (hasEnded(order.status)) stop();
    return stop;
  }

  // Sales

  createSale(sale: NewSale, caller: Caller): Promise<SaleChange> {
    return this.#change(() => this.#manage.create(sale, caller));
  }

  patchSale(saleId: string, patch: SalePatch, version: number, caller: Caller): Promise<SaleChange> {
    return this.#changeOf(saleId, () => this.#manage.patch(saleId, patch, version, caller));
  }

  addStock(saleId: string, itemCode: string, add: number, caller: Caller): Promise<SaleChange> {
    return this.#changeOf(saleId, () => this.#manage.addStock(saleId, itemCode, add, caller));
  }

  setPaused(saleId: string, paused: boolean, caller: Caller): Promise<SaleChange> {
    return this.#changeOf(saleId, () => this.#manage.setPaused(saleId, paused, caller));
  }

  async closeSale(saleId: string, caller: Caller): Promise<SaleChange> {
    const change = await this.#changeOf(saleId, () => this.#manage.close(saleId, caller));
    // What was admitted before is committed; then the gate lets the sale go. Its end stands in the ledger.
    if (change.outcome === 'changed') {
      await this.#pipe.caughtUp();
      await this.#gate.remove(saleId);
      this.#installed.delete(saleId);
    }
    return change;
  }

  async getSale(saleId: string): Promise<{ sale: Sale; eventId: string } | null> {
    return isId(saleId) ? this.#board.read(saleId) : null;
  }

  async getSaleNow(saleId: string): Promise<Sale | null> {
    return isId(saleId) ? ((await this.#board.readNow(saleId))?.sale ?? null) : null;
  }

  async listSales(page: Page): Promise<Sale[]> {
    const records = await this.#ledger.listSales(page);
    return Promise.all(records.map((record) => this.#board.present(record)));
  }

  async watchSale(saleId: string, from: string | null, hear: (event: SaleEvent) => void): Promise<(() => void) | null> {
    return isId(saleId) ? this.#board.watch(saleId, from, (event) => this.#guarded('a sale', () => hear(event))) : null;
  }

  // The shop itself

  on<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void {
    this.#events.on(event, listener as never);
  }

  off<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void {
    this.#events.off(event, listener as never);
  }

  /** Milliseconds that commits have held the event loop. */
  get blockedMs(): number {
    return this.#ledger.blockedMs;
  }

  get closing(): boolean {
    return this.#closing !== null;
  }

  readiness(): Readiness {
    const ledger = this.#writer.reason ?? 'ok';
    const gate = this.#rebuilding.size === 0 ? 'ok' : `being rebuilt for ${this.#rebuilding.size} sale(s)`;
    const pipe = this.#closing ?? 'ok';
    const ok = ledger === 'ok' && gate === 'ok' && pipe === 'ok';
    return { status: ok ? 'ok' : 'unavailable', parts: { gate, pipe, ledger } };
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
    await this.#pipe.drained();
    this.#cancelPruning();
    await this.#writer.foldBeforeClosing();
    this.#writer.close();
    this.#board.close();
    this.#events.removeAllListeners();
    await this.#ledger.close();
  }

  // What follows from the ledger's decisions

  #stored(order: OrderRecord, inserted: boolean): void {
    void this.#gate.settle(order.saleId, order.id);
    this.#acks.decided(order);
    this.#board.touch(order.saleId);
    if (inserted && (this.#events.listenerCount('order.reserved') > 0 || this.#orderWatchers.size > 0)) {
      this.#announce('order.reserved', order);
    }
  }

  /** Units of an order that a backstop refused do not go back to free: the gate's count is what was wrong. */
  #rejected(order: OrderRecord): void {
    this.runtime.log.error(
      { orderId: order.id, saleId: order.saleId, reason: order.reason },
      'the ledger refused what the gate admitted; the gate is rebuilt',
    );
    this.metrics.backstop(order.reason!);
    void this.#rebuild(order.saleId);
    this.#acks.decided(order);
    this.#announce('order.rejected', order);
  }

  #announce(event: 'order.reserved' | 'order.rejected', record: OrderRecord): void {
    const order = presentOrder(record);
    for (const hear of this.#orderWatchers.get(order.id) ?? []) this.#guarded('an order', () => hear(order));
    this.#emit(event, order);
  }

  #saleChanged(saleId: string): void {
    this.#board.changed(saleId);
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

  // Rebuilding

  async #install(saleId: string): Promise<void> {
    const snapshot = await this.#watched(this.#ledger.rebuildSnapshot(saleId));
    if (snapshot === null) return;
    await this.#gate.install(snapshot);
    this.#installed.add(saleId);
    // What was changed between the snapshot and the installing found no gate to tell: it is told now.
    const sale = await this.#ledger.getSale(saleId);
    if (sale !== null) {
      await this.#gate.applySale(saleId, sale);
      for (const { id, total, rev } of sale.items) await this.#gate.applyTotal(saleId, id, total, rev);
    }
    this.metrics.rebuilt();
  }

  /** Closes admission of the sale, lets what it admitted reach the ledger, and builds its gate anew; tries again while the ledger is out. */
  #rebuild(saleId: string): Promise<void> {
    const running = this.#rebuilding.get(saleId);
    if (running) return running;
    const rebuild = (async () => {
      await this.#gate.remove(saleId);
      await this.#pipe.caughtUp();
      while (this.#closing === null) {
        try {
          await this.#install(saleId);
          return;
        } catch (error) {
          this.runtime.log.error({ err: error, saleId }, 'the gate cannot be rebuilt yet');
          await new Promise<void>((resolve) => void this.runtime.timers.after(REBUILD_RETRY_MS, resolve));
        }
      }
    })().finally(() => this.#rebuilding.delete(saleId));
    this.#rebuilding.set(saleId, rebuild);
    return rebuild;
  }

  async #prune(): Promise<void> {
    if (this.#closing !== null || this.#writer.reason !== null) return;
    const beforeMs = this.runtime.clock.now() - KEY_KEPT_MS;
    try {
      await this.#gate.pruneKeys(beforeMs);
      await this.#letGo();
      while ((await this.#ledger.pruneKeys(beforeMs)) > 0 && this.#closing === null) {
        await new Promise<void>((resolve) => this.runtime.timers.nextTurn(resolve));
      }
    } catch (error) {
      this.#writer.reportFailure(error);
    }
  }

  /** Sales whose window is over leave the gate: what they answer stands in the ledger. */
  async #letGo(): Promise<void> {
    const open = new Set(await this.#ledger.openSaleIds());
    for (const saleId of this.#installed) {
      if (open.has(saleId)) continue;
      await this.#pipe.caughtUp();
      await this.#gate.remove(saleId);
      this.#installed.delete(saleId);
    }
  }

  /** Administrative changes: refused while the shop cannot store them. */
  #change(run: () => Promise<SaleChange>): Promise<SaleChange> {
    const reason = this.#closing ?? this.#writer.reason;
    return reason === null ? this.#watched(run()) : Promise.reject(unavailable(reason));
  }

  async #changeOf(saleId: string, run: () => Promise<SaleChange>): Promise<SaleChange> {
    return isId(saleId) ? this.#change(run) : { outcome: 'not_found' };
  }

  /** A failure of the ledger anywhere takes it out everywhere, and starts the probe that brings it back. */
  async #watched<T>(work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      this.#writer.reportFailure(error);
      throw error;
    }
  }
}
