import { messageOf, RetryableError, unavailable } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import type { OrderMessage } from '../model/order.ts';
import type { Handled, Undeliverable } from '../pipe/port.ts';
import type { Ledger, StoredOrder } from './port.ts';

/** What follows from a commit. The order is the design's: commit, then gate, then acknowledge. */
export interface StreamWriterEffects {
  /**
   * What is stored now for these messages, in the same order: settle the holds, tell who waits, rebuild a gate that was
   * wrong. Resolves when the gate knows; may be called again for the same messages.
   */
  decided(stored: readonly StoredOrder[], messages: readonly OrderMessage[]): Promise<void>;
  committed(batchSize: number, durationMs: number): void;
}

/**
 * The writer behind a pipe that keeps its messages: whatever it cannot decide now comes again, so that it holds nothing
 * itself, and several of them may work on one ledger.
 *
 * A RetryableError (of the ledger, or because the gate could not be told) rejects the whole batch; what of it was committed
 * is stored once, however often it comes. Any other error is something in the batch: it is halved until the messages that
 * cannot be stored are alone, and these are returned.
 */
export class StreamWriter {
  readonly #ledger: Pick<Ledger, 'commitOrders' | 'probe'>;
  readonly #runtime: Runtime;
  readonly #effects: StreamWriterEffects;
  #ledgerOut: string | null = null;
  #effectsOut: string | null = null;

  constructor(ledger: Pick<Ledger, 'commitOrders' | 'probe'>, runtime: Runtime, effects: StreamWriterEffects) {
    this.#ledger = ledger;
    this.#runtime = runtime;
    this.#effects = effects;
  }

  /** Why the ledger is out, or null while it works. */
  get reason(): string | null {
    return this.#ledgerOut;
  }

  /** Resolves when the batch is stored; `told` when all that follows is done, too. */
  async write(batch: readonly OrderMessage[]): Promise<Handled> {
    const undeliverable: Undeliverable[] = [];
    const tells: Promise<void>[] = [];
    await this.#write(batch, undeliverable, tells);
    if (undeliverable.length > 0) await this.#makeSure();
    return { undeliverable, told: tells.length === 1 ? tells[0]! : Promise.all(tells).then(() => undefined) };
  }

  /** One half after the other, so that the order of messages is kept. */
  async #write(batch: readonly OrderMessage[], undeliverable: Undeliverable[], tells: Promise<void>[]): Promise<void> {
    if (batch.length === 0) return;
    const startedMs = this.#runtime.clock.monotonic();
    let stored: StoredOrder[];
    try {
      stored = await this.#ledger.commitOrders(batch);
    } catch (error) {
      if (error instanceof RetryableError) throw this.#wentOut(error);
      if (batch.length === 1) {
        undeliverable.push({ message: batch[0]!, error: error instanceof Error ? error : new Error(messageOf(error)) });
        return;
      }
      const middle = batch.length >> 1;
      await this.#write(batch.slice(0, middle), undeliverable, tells);
      await this.#write(batch.slice(middle), undeliverable, tells);
      return;
    }
    this.#cameBack();
    this.#effects.committed(batch.length, this.#runtime.clock.monotonic() - startedMs);
    const telling = this.#tell(stored, batch);
    // Whoever waits for it hears of its failure; one that is thrown before anybody does is not unhandled.
    telling.catch(() => undefined);
    tells.push(telling);
  }

  async #tell(stored: readonly StoredOrder[], batch: readonly OrderMessage[]): Promise<void> {
    try {
      await this.#effects.decided(stored, batch);
    } catch (error) {
      const reason = messageOf(error);
      if (this.#effectsOut === null) {
        this.#runtime.log.error({ err: error }, 'orders are stored, but nobody could be told; they come again');
      }
      this.#effectsOut = reason;
      throw error instanceof RetryableError ? error : unavailable(reason, error);
    }
    if (this.#effectsOut !== null) this.#runtime.log.info('decisions are passed on again');
    this.#effectsOut = null;
  }

  /** A ledger that can store nothing at all is no reason to give up on messages: the outage may only look like their fault. */
  async #makeSure(): Promise<void> {
    try {
      await this.#ledger.probe();
      this.#cameBack();
    } catch (error) {
      throw this.#wentOut(error instanceof RetryableError ? error : unavailable(messageOf(error), error));
    }
  }

  #wentOut(error: RetryableError): RetryableError {
    if (this.#ledgerOut === null) {
      this.#runtime.log.error(
        { reason: error.message, cause: error.cause === undefined ? undefined : messageOf(error.cause) },
        'the ledger is out; orders wait in the pipe',
      );
    }
    this.#ledgerOut = error.message;
    return error;
  }

  #cameBack(): void {
    if (this.#ledgerOut === null) return;
    this.#ledgerOut = null;
    this.#runtime.log.info('the ledger is back');
  }
}
