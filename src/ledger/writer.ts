import { BusyError, messageOf, RetryableError, unavailable } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { hasEnded, type OrderMessage, type OrderRecord } from '../model/order.ts';
import type { OrderLedger, StoredOrder, Upkeep } from './port.ts';

/** What follows from a decision. The order is the design's: commit, then gate, then acknowledge. */
export interface WriterEffects {
  /** Stored as reserved, and perhaps paid or ended since: settle the hold, or release it if ended, then tell who waits. */
  stored(order: OrderRecord, inserted: boolean): void;
  /** A backstop refused it: the gate was wrong about this sale. */
  rejected(order: OrderRecord): void;
  /** It is known not to be stored: give the hold back. */
  withdrawn(message: OrderMessage): void;
  /** Tell who waits that it has failed, or that the outcome is not known yet. */
  failed(message: OrderMessage, error: Error): void;
  committed(batchSize: number, durationMs: number): void;
}

/** How often a ledger that is out is asked whether it is back. */
const PROBE_EVERY_MS = 500;
/** A question takes a lock for each item that it asks about, and a database has room for so many locks. */
const ASKED_MAX = 500;
/** Up to here the tail of the ledger is folded only when nothing else is to do; above, between commits. */
const BACKLOG_IDLE_MAX = 200_000;
const IDLE_AFTER_MS = 50;
const IDLE_PAUSE_MS = 20;
const IDLE_SLICE_MS = 2;
/** Between commits: as many slices as it takes to fold what the commit has added, but no more than these. */
const BUSY_SLICE_MS = 1;
const BUSY_SLICES_MAX = 20;
/** On closing, so that the next start has less to read back. */
const CLOSING_MS_MAX = 2_000;
const CLOSING_SLICE_MS = 50;

/**
 * The writer: takes batches from the pipe and commits each in one transaction.
 *
 *   working → out   a commit failed with a RetryableError (disk full, read-only). Everybody who waits is told at once;
 *                   the messages stay `unresolved`, since a failed commit may yet have reached the disk.
 *   out → working   a probe could write again. What is stored of the unresolved is settled, the rest is withdrawn:
 *                   no unit is freed while its order may still come into being.
 *
 * While it is out, admission is refused before the gate (`reason`), so that nothing piles up.
 */
export class Writer {
  readonly #ledger: OrderLedger & Upkeep;
  readonly #runtime: Runtime;
  readonly #effects: WriterEffects;
  #out: string | null = null;
  #unresolved: OrderMessage[] = [];
  #cancelProbe: (() => void) | null = null;
  #cancelMaintenance: (() => void) | null = null;
  #lastCommitMs = 0;
  #closed = false;

  constructor(ledger: OrderLedger & Upkeep, runtime: Runtime, effects: WriterEffects) {
    this.#ledger = ledger;
    this.#runtime = runtime;
    this.#effects = effects;
    this.#maintainWhenIdle();
  }

  /** Why the ledger is out, or null while it works. */
  get reason(): string | null {
    return this.#out;
  }

  /** Orders whose outcome is not known: admitted, commit failed, ledger still out. */
  get unresolved(): number {
    return this.#unresolved.length;
  }

  async write(batch: OrderMessage[]): Promise<void> {
    if (this.#out !== null) {
      this.#leaveUnresolved(batch, unavailable(this.#out));
      return;
    }
    const startedMs = this.#runtime.clock.monotonic();
    let stored: StoredOrder[];
    try {
      stored = await this.#ledger.commitOrders(batch);
    } catch (error) {
      await this.#commitFailed(batch, error);
      return;
    }
    this.#effects.committed(batch.length, this.#runtime.clock.monotonic() - startedMs);
    for (const { order, inserted } of stored) this.#decide(order, inserted);
    this.#lastCommitMs = this.#runtime.clock.monotonic();
    await this.#keepUp(batch.length);
    this.#maintainWhenIdle();
  }

  /** The ledger failed outside a commit too (an id block, an administrative change): the same state, the same way back. */
  reportFailure(error: unknown): void {
    // One held row keeps this call from being served, and no other.
    if (error instanceof BusyError) return;
    if (error instanceof RetryableError && error.code === 'unavailable') this.#goOut(error);
  }

  /** Before closing, for a bounded time: what is folded now need not be read back at the next start. */
  async foldBeforeClosing(): Promise<void> {
    const untilMs = this.#runtime.clock.monotonic() + CLOSING_MS_MAX;
    while (this.#runtime.clock.monotonic() < untilMs && (await this.#maintain(CLOSING_SLICE_MS))) {
      // Other work of the process goes on in between.
      await new Promise<void>((resolve) => this.#runtime.timers.nextTurn(resolve));
    }
  }

  close(): void {
    this.#closed = true;
    this.#cancelProbe?.();
    this.#cancelMaintenance?.();
  }

  #decide(order: OrderRecord, inserted: boolean): void {
    // Decided by the row as stored, and not by what this writer meant to store.
    if (order.status === 'rejected') this.#effects.rejected(order);
    else this.#effects.stored(order, inserted);
  }

  async #commitFailed(batch: OrderMessage[], error: unknown): Promise<void> {
    if (error instanceof RetryableError) {
      this.#goOut(error);
      this.#leaveUnresolved(batch, error);
      return;
    }
    // Not the ledger's state but something in the batch: isolate it, so that one poison order does not take the rest.
    if (batch.length > 1) {
      for (const message of batch) await this.write([message]);
      return;
    }
    const message = batch[0]!;
    this.#runtime.log.error({ err: error, orderId: message.orderId }, 'the ledger cannot take this order');
    // A message that bears the id of a stored order is a fault; the hold under that id is the stored order's.
    try {
      const stored = await this.#ledger.storedAtRest([message]);
      if (!stored.has(message.orderId)) this.#effects.withdrawn(message);
    } catch (unknown) {
      this.#unresolved.push(message);
      this.#goOut(unknown instanceof RetryableError ? unknown : unavailable(messageOf(unknown), unknown));
    }
    this.#effects.failed(message, error instanceof Error ? error : new Error(messageOf(error)));
  }

  #leaveUnresolved(batch: OrderMessage[], error: Error): void {
    this.#unresolved.push(...batch);
    for (const message of batch) this.#effects.failed(message, error);
  }

  #goOut(error: RetryableError): void {
    if (this.#out !== null || this.#closed) return;
    this.#out = error.message;
    this.#runtime.log.error(
      { reason: error.message, cause: messageOf(error.cause) },
      'the ledger is out; orders are refused',
    );
    this.#probeLater();
  }

  #probeLater(): void {
    if (this.#closed) return;
    this.#cancelProbe = this.#runtime.timers.after(PROBE_EVERY_MS, () => void this.#probe());
  }

  async #probe(): Promise<void> {
    try {
      await this.#ledger.probe();
      await this.#resolve();
    } catch (error) {
      if (error instanceof RetryableError) this.#out = error.message;
      else this.#runtime.log.error({ err: error }, 'the probe of the ledger failed');
      this.#probeLater();
      return;
    }
    // A commit that was under way may have failed since the last question: it has its own.
    if (this.#unresolved.length > 0) {
      this.#probeLater();
      return;
    }
    this.#out = null;
    this.#runtime.log.info('the ledger is back');
  }

  /** A commit that was under way may still fail and leave more: each order is asked about before it is decided. */
  async #resolve(): Promise<void> {
    while (this.#unresolved.length > 0) {
      const asked = this.#unresolved.slice(0, ASKED_MAX);
      const stored = await this.#ledger.storedAtRest(asked);
      this.#unresolved = this.#unresolved.slice(asked.length);
      for (const message of asked) {
        const order = stored.get(message.orderId);
        // Whoever hears that it is new must not take one for reserved that has ended.
        if (order) this.#decide(order, !hasEnded(order.status));
        else this.#effects.withdrawn(message);
      }
    }
  }

  /** A crowd that never pauses must not let the tail grow without end. */
  async #keepUp(added: number): Promise<void> {
    const goal = Math.max(this.#ledger.backlog - added, BACKLOG_IDLE_MAX);
    for (let slices = 0; this.#ledger.backlog > goal && slices < BUSY_SLICES_MAX; slices++) {
      if (!(await this.#maintain(BUSY_SLICE_MS))) return;
    }
  }

  #maintainWhenIdle(afterMs = IDLE_AFTER_MS): void {
    if (this.#cancelMaintenance !== null || this.#closed) return;
    this.#cancelMaintenance = this.#runtime.timers.after(afterMs, async () => {
      this.#cancelMaintenance = null;
      const idle = this.#runtime.clock.monotonic() - this.#lastCommitMs >= IDLE_AFTER_MS;
      if (!idle) this.#maintainWhenIdle();
      else if (await this.#maintain(IDLE_SLICE_MS)) this.#maintainWhenIdle(IDLE_PAUSE_MS);
    });
  }

  async #maintain(sliceMs: number): Promise<boolean> {
    if (this.#out !== null || this.#closed) return false;
    try {
      return await this.#ledger.maintain(sliceMs);
    } catch (error) {
      // What waits is in the orders table: nothing is lost, and the next slice tries again.
      this.#runtime.log.warn({ err: error }, 'maintenance of the ledger failed');
      this.reportFailure(error);
      return false;
    }
  }
}
