import { messageOf, RetryableError, unavailable } from '../base/errors.ts';
import { halved } from '../base/halved.ts';
import type { Runtime } from '../base/runtime.ts';
import type { OrderMessage } from '../model/order.ts';
import type { Handled, Undeliverable } from '../pipe/port.ts';
import type { OrderLedger, StoredOrder } from './port.ts';

/** What follows from a commit. The order is the design's: commit, then gate, then acknowledge. */
export interface WriterEffects {
  /**
   * What is stored now for these messages, in the same order: settle the holds, answer whoever waits, rebuild a gate that was
   * wrong. Resolves when the gate knows; may be called again for the same messages.
   */
  decided(stored: readonly StoredOrder[], messages: readonly OrderMessage[]): Promise<void>;
  committed(batchSize: number, durationMs: number): void;
}

/** What becomes of messages that a commit did not decide: the only thing in which the deployments differ. */
export interface Undecided {
  /** Why the ledger is out, or null while it works. */
  readonly reason: string | null;
  /** True: the ledger is known to be out, and this batch was kept without a try. */
  keeps(batch: readonly OrderMessage[]): boolean;
  /** A commit failed, and may have happened all the same. Throws where the pipe has to bring the batch again. */
  unknown(batch: readonly OrderMessage[], error: RetryableError): void;
  /** The ledger cannot store this message as it is. Returned: the pipe tries it again apart from the others. */
  unstorable(message: OrderMessage, error: Error): Promise<Undeliverable<OrderMessage> | null>;
  /** A commit succeeded. */
  worked(): void;
}

/**
 * The writer: takes batches from the pipe and commits each in one transaction.
 *
 * A RetryableError says something about the ledger: the outcome of the whole batch is unknown. Any other error says something
 * about the batch: it is halved until the messages that cannot be stored are alone, so that they take no others with them.
 * An order is decided by the row as stored, and not by what this writer meant to store: a batch may be written any
 * number of times, by several writers.
 */
export class Writer {
  readonly #ledger: Pick<OrderLedger, 'commitOrders'>;
  readonly #runtime: Runtime;
  readonly #effects: WriterEffects;
  readonly #undecided: Undecided;
  #effectsOut = false;

  constructor(
    ledger: Pick<OrderLedger, 'commitOrders'>,
    runtime: Runtime,
    effects: WriterEffects,
    undecided: Undecided,
  ) {
    this.#ledger = ledger;
    this.#runtime = runtime;
    this.#effects = effects;
    this.#undecided = undecided;
  }

  /** Resolves when the batch is stored or kept; `told` when all that follows from it is done, too. */
  async write(batch: readonly OrderMessage[]): Promise<Handled<OrderMessage>> {
    const undeliverable: Undeliverable<OrderMessage>[] = [];
    const tells: Promise<void>[] = [];
    await this.#write(batch, undeliverable, tells);
    return { undeliverable, told: tells.length === 1 ? tells[0]! : Promise.all(tells).then(() => undefined) };
  }

  async #write(
    batch: readonly OrderMessage[],
    undeliverable: Undeliverable<OrderMessage>[],
    tells: Promise<void>[],
  ): Promise<void> {
    const store = (part: readonly OrderMessage[]): Promise<void> => this.#store(part, tells);
    await halved(batch, store, async (message, error) => {
      const reason = error instanceof Error ? error : new Error(messageOf(error));
      const left = await this.#undecided.unstorable(message, reason);
      if (left !== null) undeliverable.push(left);
    });
  }

  /** Throws if the ledger cannot take this as it is. */
  async #store(batch: readonly OrderMessage[], tells: Promise<void>[]): Promise<void> {
    if (this.#undecided.keeps(batch)) return;
    const startedMs = this.#runtime.clock.monotonic();
    let stored: StoredOrder[];
    try {
      stored = await this.#ledger.commitOrders(batch);
    } catch (error) {
      if (error instanceof RetryableError) return this.#undecided.unknown(batch, error);
      throw error;
    }
    this.#undecided.worked();
    this.#effects.committed(batch.length, this.#runtime.clock.monotonic() - startedMs);
    const telling = this.#tell(stored, batch);
    // Whoever awaits `told` hears of its failure; a failure before that must not count as unhandled.
    telling.catch(() => undefined);
    tells.push(telling);
  }

  async #tell(stored: readonly StoredOrder[], batch: readonly OrderMessage[]): Promise<void> {
    try {
      await this.#effects.decided(stored, batch);
    } catch (error) {
      if (!this.#effectsOut) {
        this.#runtime.log.error({ err: error }, 'orders are stored, but nobody could be told; they come again');
      }
      this.#effectsOut = true;
      throw error instanceof RetryableError ? error : unavailable(messageOf(error), error);
    }
    if (this.#effectsOut) this.#runtime.log.info('decisions are passed on again');
    this.#effectsOut = false;
  }
}
