import type { Runtime } from '../base/runtime.ts';
import { drain, NOTHING_MORE, type Round, sweep } from '../base/sweep.ts';
import { pause } from '../base/timers.ts';
import { MemoryGate } from '../gate/memory.ts';
import { applyLatest } from '../gate/port.ts';
import { SqliteLedger } from '../ledger/drivers/sqlite/ledger.ts';
import { KEY_KEPT_MS, type Ledger, RELEASES_KEPT_MS } from '../ledger/port.ts';
import { Writer } from '../ledger/writer.ts';
import { createLocks, type Locks } from '../locks/locks.ts';
import { MemorySpace } from '../locks/memory/space.ts';
import { hasGivenBack, type OrderRecord } from '../model/order.ts';
import type { SaleRecord } from '../model/sale.ts';
import { MemoryPipe } from '../pipe/memory.ts';
import { Keeper, TASK_MS } from './keeper.ts';
import { type LifeOptions, NO_PAYMENTS, type Readiness, Shop } from './shop.ts';

const ORDER_ID_BLOCK = 20_000;
const TIDY_EVERY_MS = 60_000;
const REBUILD_RETRY_MS = 500;
/** So long a repeat after the end of its sale waits for what is in the pipe. */
const EMPTIED_MS_MAX = 1000;

/**
 * The embedded shop: one process, with its gate and pipe in memory. It reads like the way of an order:
 *
 *     place ──▶ gate ──▶ pipe ──▶ writer ──▶ ledger
 *                ▲                  │ commit, then gate, then acknowledge
 *                └──── settle ──────┴──▶ acks ──▶ the answer
 *
 * Its ledger is SQLite, or a database that it has for itself (DATABASE_URL without REDIS_URL).
 */
export class EmbeddedShop extends Shop {
  readonly #pipe: MemoryPipe;
  readonly #writer: Writer;
  readonly #locks: Locks;
  readonly #space: MemorySpace;
  readonly #rebuilding = new Map<string, Promise<void>>();
  /** Sales the gate was given. */
  readonly #installed = new Set<string>();
  readonly #ended = new AbortController();

  /** Opens the ledger in `folder` and builds the gates of all sales that may still admit. */
  static async open(folder: string, runtime: Runtime, life: LifeOptions = NO_PAYMENTS): Promise<EmbeddedShop> {
    return EmbeddedShop.on(SqliteLedger.open(folder, runtime), runtime, life);
  }

  /** The same on a ledger that is open, and that nobody else writes to. Closes it at its end. */
  static async on(ledger: Ledger, runtime: Runtime, life: LifeOptions = NO_PAYMENTS): Promise<EmbeddedShop> {
    let shop: EmbeddedShop | null = null;
    try {
      shop = new EmbeddedShop(ledger, runtime, life);
      // Tokens come from the clock, which may have stepped back since the last run.
      shop.#space.mintedElsewhere(Number(await ledger.highestFence()));
      for (const saleId of await ledger.openSaleIds()) await shop.install(saleId);
      await shop.webhooks.open();
      shop.sweeper.start(null);
      shop.webhooks.start(null);
      return shop;
    } catch (error) {
      // Whoever tries again in this process would find the folder in use.
      await (shop ?? ledger).close();
      throw error;
    }
  }

  private constructor(ledger: Ledger, runtime: Runtime, life: LifeOptions) {
    // Of this shop alone: another one in this process has other orders.
    const space = new MemorySpace(runtime.clock);
    const locks = createLocks({ space, log: runtime.log, runtime });
    const pipe = new MemoryPipe(runtime);
    const gate = new MemoryGate(runtime, (message) => pipe.push(message));
    super(
      {
        ledger,
        gate,
        patience: null,
        orderIdBlock: ORDER_ID_BLOCK,
        locks,
        life,
        metrics: {
          pipeDepth: () => pipe.depth,
          ledgerBacklog: () => ledger.backlog,
          unresolved: () => this.#writer.unresolved,
        },
      },
      runtime,
    );
    this.#pipe = pipe;
    this.#locks = locks;
    this.#space = space;
    this.#writer = new Writer(ledger, runtime, {
      stored: (order, inserted) => this.#stored(order, inserted),
      rejected: (order) => this.#rejected(order),
      withdrawn: (message) => void gate.withdraw(message.saleId, message),
      failed: ({ orderId }, error) => this.acks.failed(orderId, error),
      committed: (orders, durationMs) => this.metrics.commit(orders, durationMs),
    });
    pipe.consume((batch) =>
      // The writer decides every message of a batch itself; what comes here is a bug, and must not stop the shop.
      this.#writer.write(batch).catch((error: unknown) => {
        runtime.log.error({ err: error, orders: batch.length }, 'the writer failed on a batch');
      }),
    );
    void this.#tidy();
    void this.#finishTasks();
  }

  override get blockedMs(): number {
    return this.ledger instanceof SqliteLedger ? this.ledger.blockedMs : 0;
  }

  override readiness(): Readiness {
    const ledger = this.#writer.reason ?? 'ok';
    const gate = this.#rebuilding.size === 0 ? 'ok' : `being rebuilt for ${this.#rebuilding.size} sale(s)`;
    const pipe = this.closingReason ?? 'ok';
    const ok = ledger === 'ok' && gate === 'ok' && pipe === 'ok';
    return { status: ok ? 'ok' : 'unavailable', parts: { gate, pipe, ledger } };
  }

  protected override cannotPlace(): string | null {
    return this.#writer.reason;
  }

  protected override cannotChange(): string | null {
    return this.#writer.reason;
  }

  /** A failure of the ledger anywhere takes it out everywhere, and starts the probe that brings it back. */
  protected override ledgerFailed(error: unknown): void {
    this.#writer.reportFailure(error);
  }

  /** What was admitted before is committed; then the gate lets the sale go. Its end stands in the ledger. */
  protected override async saleClosed(saleId: string): Promise<void> {
    await this.#pipe.caughtUp(saleId);
    await this.gate.remove(saleId);
    this.#installed.delete(saleId);
  }

  protected override async isEmptied({ id }: SaleRecord): Promise<boolean> {
    return (await this.#pipe.caughtUp(id, EMPTIED_MS_MAX)) && this.#writer.unresolved === 0;
  }

  protected override async finish(): Promise<void> {
    await this.#pipe.drained();
    await this.#locks.close();
    this.#ended.abort();
    await this.#writer.foldBeforeClosing();
    this.#writer.close();
  }

  // What follows from the ledger's decisions

  #stored(order: OrderRecord, inserted: boolean): void {
    const hold = { orderId: order.id, buyer: order.buyer };
    // An ended order holds nothing, whoever is told first: this writer, or the gate by the outbox.
    if (hasGivenBack(order.status)) void this.gate.release(order.saleId, hold);
    else void this.gate.settle(order.saleId, [hold]);
    this.acks.decided(order);
    this.board.touch(order.saleId);
    if (inserted) this.announce('order.reserved', order);
  }

  /** Units of an order that a backstop refused do not go back to free: the gate's count is what was wrong. */
  #rejected(order: OrderRecord): void {
    this.runtime.log.error(
      { orderId: order.id, saleId: order.saleId, reason: order.reason },
      'the ledger refused what the gate admitted; the gate is rebuilt',
    );
    this.metrics.backstop(order.reason!);
    this.rebuild(order.saleId);
    this.acks.decided(order);
    this.announce('order.rejected', order);
  }

  // Rebuilding

  protected override async install(saleId: string): Promise<void> {
    const beganMs = this.runtime.clock.monotonic();
    const snapshot = await this.watched(this.ledger.rebuildSnapshot(saleId, 0, await this.rebuilding()));
    if (snapshot === null) return;
    await this.gate.install(snapshot, async () => {
      await this.releaseSince(snapshot);
      return await this.ledger.getSale(saleId);
    });
    this.#installed.add(saleId);
    this.metrics.rebuilt(this.runtime.clock.monotonic() - beganMs);
  }

  /** Closes admission of the sale, lets what it admitted reach the ledger, and builds its gate anew; tries again while the ledger is out. */
  protected override rebuild(saleId: string): void {
    if (this.#rebuilding.has(saleId)) return;
    const rebuild = (async () => {
      await this.gate.remove(saleId);
      await this.#pipe.caughtUp(saleId);
      while (!this.closing) {
        try {
          await this.install(saleId);
          return;
        } catch (error) {
          this.runtime.log.error({ err: error, saleId }, 'the gate cannot be rebuilt yet');
          await new Promise<void>((resolve) => void this.runtime.timers.after(REBUILD_RETRY_MS, resolve));
        }
      }
    })().finally(() => this.#rebuilding.delete(saleId));
    this.#rebuilding.set(saleId, rebuild);
  }

  /** Somebody else may have written to the ledger. */
  rebuildAll(): void {
    for (const saleId of this.#installed) this.rebuild(saleId);
  }

  /** Changes that were committed, and whose answer was lost on its way to us: nobody else can tell the gate. */
  async #finishTasks(): Promise<void> {
    const { runtime, gate, ledger } = this;
    const rebuilder = {
      rebuild: async (saleId: string) => this.rebuild(saleId),
      apply: async (saleId: string) => {
        const sale = await ledger.getSale(saleId);
        if (sale !== null) await applyLatest(gate, saleId, sale);
        this.board.changed(saleId);
        return sale !== null;
      },
    };
    const { signal } = this.#ended;
    await pause(runtime.timers, TASK_MS, signal);
    await sweep(
      runtime.timers,
      async () => {
        // A gate that is not there yet will read what the ledger has: none was before the change and comes after it.
        if (!this.closing && this.#writer.reason === null) {
          await Keeper.finishTasks({ gate, ledger, rebuilder }, TASK_MS, true);
        }
        return NOTHING_MORE;
      },
      { signal, pauseMs: TASK_MS, pauseMsMax: TASK_MS, failed: (error) => this.#writer.reportFailure(error) },
    );
  }

  async #tidy(): Promise<void> {
    const { timers } = this.runtime;
    const { signal } = this.#ended;
    await pause(timers, TIDY_EVERY_MS, signal);
    await sweep(timers, () => this.#prune(signal), {
      signal,
      pauseMs: TIDY_EVERY_MS,
      pauseMsMax: TIDY_EVERY_MS,
      failed: (error) => this.#writer.reportFailure(error),
    });
  }

  async #prune(signal: AbortSignal): Promise<Round> {
    const { timers } = this.runtime;
    if (!this.closing && this.#writer.reason === null) {
      await this.gate.pruneKeys(KEY_KEPT_MS);
      await this.#letGo();
      await drain(timers, () => this.ledger.pruneKeys(KEY_KEPT_MS), signal);
      await drain(timers, () => this.ledger.pruneReleases(RELEASES_KEPT_MS), signal);
    }
    return NOTHING_MORE;
  }

  /** Sales whose window is over leave the gate: what they answer stands in the ledger. */
  async #letGo(): Promise<void> {
    const open = new Set(await this.ledger.openSaleIds());
    for (const saleId of this.#installed) {
      if (open.has(saleId)) continue;
      await this.#pipe.caughtUp(saleId);
      await this.gate.remove(saleId);
      this.#installed.delete(saleId);
    }
  }
}
