import type { Runtime } from '../base/runtime.ts';
import { MemoryGate } from '../gate/memory.ts';
import { SqliteLedger } from '../ledger/drivers/sqlite/ledger.ts';
import { Maintenance } from '../ledger/maintenance.ts';
import type { Ledger } from '../ledger/port.ts';
import { Unresolved } from '../ledger/unresolved.ts';
import { Writer, type WriterEffects } from '../ledger/writer.ts';
import { createLocks, type Locks } from '../locks/locks.ts';
import { MemorySpace } from '../locks/memory/space.ts';
import { saleChannel } from '../model/channel.ts';
import type { OrderMessage } from '../model/order.ts';
import type { SaleRecord } from '../model/sale.ts';
import { MemoryPipe } from '../pipe/memory.ts';
import { ORDERS } from '../pipe/orders.ts';
import { DirectLikes } from '../social/likes/direct.ts';
import { RoomForWriting, spaceOf } from '../social/room.ts';
import { type LifeOptions, NO_PAYMENTS, type Readiness, Shop } from './shop.ts';

const ORDER_ID_BLOCK = 20_000;
/** How long a repeat after the end of its sale waits for orders in the pipe. */
const EMPTIED_MS_MAX = 1000;

/**
 * The embedded shop: one process, with its gate and pipe in memory. It reads like the way of an order:
 *
 *     place ──▶ gate ──▶ pipe ──▶ writer ──▶ ledger
 *                ▲                  │ commit, then gate, then acknowledge
 *                └──── settle ──────┴──▶ pending ──▶ the answer
 *
 * Its ledger is SQLite, or a database that it has for itself (DATABASE_URL without REDIS_URL).
 */
export class EmbeddedShop extends Shop {
  readonly #pipe: MemoryPipe<OrderMessage>;
  /** Gates that are being built for sales that had none. */
  readonly #installing = new Map<string, Promise<unknown>>();
  readonly #writer: Writer;
  readonly #unresolved: Unresolved;
  readonly #maintenance: Maintenance;
  readonly #locks: Locks;
  readonly #space: MemorySpace;

  /** Opens the ledger in `folder` and builds the gates of all sales that may still admit. */
  static async open(folder: string, runtime: Runtime, life: LifeOptions = NO_PAYMENTS): Promise<EmbeddedShop> {
    const ledger = SqliteLedger.open(folder, runtime);
    const room = new RoomForWriting(runtime.clock, () => spaceOf(folder));
    return EmbeddedShop.on(ledger, runtime, life, room);
  }

  /** The same on a ledger that is open, and that nobody else writes to. Closes it at its end. */
  static async on(
    ledger: Ledger,
    runtime: Runtime,
    life: LifeOptions = NO_PAYMENTS,
    room: RoomForWriting | null = null,
  ): Promise<EmbeddedShop> {
    let shop: EmbeddedShop | null = null;
    try {
      shop = new EmbeddedShop(ledger, runtime, life, room);
      // Tokens come from the clock, which may have stepped back since the last run.
      shop.#space.mintedElsewhere(Number(await ledger.highestFence()));
      for (const saleId of await ledger.openSaleIds()) await shop.install(saleId, 0);
      // The shop on this database may have been one of many processes before.
      await ledger.likes.setLikeMode('direct');
      await shop.webhooks.open();
      shop.startWork();
      return shop;
    } catch (error) {
      // Whoever tries again in this process would find the folder in use.
      await (shop ?? ledger).close();
      throw error;
    }
  }

  private constructor(ledger: Ledger, runtime: Runtime, life: LifeOptions, room: RoomForWriting | null) {
    // Of this shop alone: another one in this process has other orders.
    const space = new MemorySpace(runtime.clock);
    const locks = createLocks({ space, log: runtime.log, runtime });
    const pipe = new MemoryPipe(ORDERS, runtime);
    const gate = new MemoryGate(runtime, (message) => pipe.push(message));
    super(
      {
        ledger,
        gate,
        pipe,
        patience: null,
        // Nobody else could carry them, and this process does as long as it lives.
        rebuild: { drainMsMax: Infinity, drainIdleMsMax: Infinity },
        cluster: null,
        orderIdBlock: ORDER_ID_BLOCK,
        locks,
        life,
        room,
        likes: new DirectLikes(
          {
            setLike: (request) => this.watched(ledger.likes.setLike(request)),
            likeShard: (shard) => this.watched(ledger.likes.likeShard(shard)),
          },
          runtime.clock,
        ),
        metrics: {
          pipeDepth: () => pipe.depth,
          ledgerBacklog: () => ledger.backlog,
          unresolved: () => this.#unresolved.size,
        },
      },
      runtime,
    );
    this.#pipe = pipe;
    this.#locks = locks;
    this.#space = space;
    const decided: WriterEffects['decided'] = (stored, messages) => this.decisions.follow(stored, messages);
    this.#unresolved = new Unresolved(ledger, runtime, {
      decided,
      withdrawn: (message) => gate.withdraw(message.saleId, message),
      failed: ({ orderId }, error) => this.pending.failed(orderId, error),
    });
    const committed = (orders: number, durationMs: number): void => this.metrics.commit(orders, durationMs);
    this.#writer = new Writer(ledger, runtime, { decided, committed }, this.#unresolved);
    this.#maintenance = new Maintenance(ledger, runtime, {
      isOut: () => this.#unresolved.reason !== null,
      failed: (error) => this.#unresolved.reportFailure(error),
    });
    pipe.consume((batch) => this.#write(batch));
  }

  async #write(batch: readonly OrderMessage[]): Promise<void> {
    try {
      const { told } = await this.#writer.write(batch);
      await told;
      await this.#maintenance.committed(batch.length);
    } catch (error) {
      // Every message of a batch is decided or kept by now: this is a bug, and must not stop the shop.
      this.runtime.log.error({ err: error, orders: batch.length }, 'the writer failed on a batch');
    }
  }

  override get blockedMs(): number {
    return this.ledger instanceof SqliteLedger ? this.ledger.blockedMs : 0;
  }

  override readiness(): Readiness {
    const ledger = this.#unresolved.reason ?? 'ok';
    const gate = this.rebuildReason ?? 'ok';
    const pipe = this.closingReason ?? 'ok';
    const ok = ledger === 'ok' && gate === 'ok' && pipe === 'ok';
    return { status: ok ? 'ok' : 'unavailable', parts: { gate, pipe, ledger } };
  }

  protected override cannotPlace(): string | null {
    return this.#unresolved.reason;
  }

  protected override cannotChange(): string | null {
    return this.#unresolved.reason;
  }

  /** A failure of the ledger anywhere takes it out everywhere, and starts the probe that brings it back. */
  protected override ledgerFailed(error: unknown): void {
    this.#unresolved.reportFailure(error);
  }

  /** What was admitted before is committed; then the gate lets the sale go. Its end stands in the ledger. */
  protected override async saleClosed(saleId: string): Promise<void> {
    await this.#pipe.caughtUp(saleChannel(saleId));
    await this.gate.retire(saleId);
  }

  protected override async isEmptied({ id }: SaleRecord): Promise<boolean> {
    return (await this.#pipe.caughtUp(saleChannel(id), EMPTIED_MS_MAX)) && this.#unresolved.size === 0;
  }

  protected override async finish(): Promise<void> {
    await this.#pipe.drained();
    await this.#locks.close();
    await this.#maintenance.beforeClosing();
    this.#maintenance.close();
    this.#unresolved.close();
  }

  /**
   * Of a sale that has no gate yet, nothing is in the pipe: it is built at once. Changes that meet share one gate. Of two, the later
   * would not be open yet when the call that asked for the earlier is answered.
   */
  protected override async install(saleId: string, above: number): Promise<void> {
    if (above > 0) return await this.rebuildFor(saleId, above);
    let building = this.#installing.get(saleId);
    if (building === undefined) {
      building = this.rebuilder.build(saleId).finally(() => this.#installing.delete(saleId));
      this.#installing.set(saleId, building);
    }
    await this.watched(building);
  }

  /** Somebody else may have written to the ledger. */
  async rebuildAll(): Promise<void> {
    for (const saleId of await this.gate.saleIds()) {
      const epoch = await this.gate.epochOf(saleId);
      await this.gate.shut(saleId);
      void this.rebuilder.rebuild(saleId, epoch ?? 0);
    }
  }
}
