import { BusyError, messageOf, RetryableError, unavailable } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { hasEnded, type OrderMessage } from '../model/order.ts';
import type { OrderLedger, StoredOrder, Upkeep } from './port.ts';
import type { Undecided, WriterEffects } from './writer.ts';

export interface UnresolvedEffects extends Pick<WriterEffects, 'decided'> {
  /** The order is known not to be stored: give its hold back. */
  withdrawn(message: OrderMessage): Promise<void>;
  /** Tell whoever waits that the order failed, or that its outcome is not known yet. */
  failed(message: OrderMessage, error: Error): void;
}

/** How often a ledger that is out is asked whether it is back. */
const PROBE_EVERY_MS = 500;
/** A question takes a lock for each item that it asks about, and a database has room for so many locks. */
const ASKED_MAX = 500;

/**
 * Undecided messages of a shop that is one process: they are kept here, and the ledger is asked about them later.
 *
 *   working → out   a commit failed with a RetryableError (disk full, read-only). Everybody who waits is told at once; the
 *                   messages stay unresolved, since a failed commit may yet have reached the disk.
 *   out → working   a probe could write again. Unresolved orders that are stored are settled, the others are withdrawn: no
 *                   unit is freed while its order may still come into being.
 *
 * While the ledger is out, admission is refused before the gate (`reason`), so that nothing piles up.
 */
export class Unresolved implements Undecided {
  readonly #ledger: Pick<OrderLedger, 'storedAtRest'> & Pick<Upkeep, 'probe'>;
  readonly #runtime: Runtime;
  readonly #effects: UnresolvedEffects;
  #reason: string | null = null;
  #messages: OrderMessage[] = [];
  #cancelProbe: (() => void) | null = null;
  #closed = false;

  constructor(
    ledger: Pick<OrderLedger, 'storedAtRest'> & Pick<Upkeep, 'probe'>,
    runtime: Runtime,
    effects: UnresolvedEffects,
  ) {
    this.#ledger = ledger;
    this.#runtime = runtime;
    this.#effects = effects;
  }

  get reason(): string | null {
    return this.#reason;
  }

  /** Orders whose outcome is not known: admitted, commit failed, ledger still out. */
  get size(): number {
    return this.#messages.length;
  }

  keeps(batch: readonly OrderMessage[]): boolean {
    if (this.#reason === null) return false;
    this.#keep(batch, unavailable(this.#reason));
    return true;
  }

  unknown(batch: readonly OrderMessage[], error: RetryableError): void {
    this.#goOut(error);
    this.#keep(batch, error);
  }

  async unstorable(message: OrderMessage, error: Error): Promise<null> {
    this.#runtime.log.error({ err: error, orderId: message.orderId }, 'the ledger cannot take this order');
    try {
      const stored = await this.#ledger.storedAtRest([message]);
      // A message that bears the id of a stored order is a fault; the hold under that id is the stored order's.
      if (!stored.has(message.orderId)) await this.#effects.withdrawn(message);
    } catch (unknown) {
      this.#messages.push(message);
      this.#goOut(unknown instanceof RetryableError ? unknown : unavailable(messageOf(unknown), unknown));
    }
    this.#effects.failed(message, error);
    return null;
  }

  /** Only a probe brings the ledger back: a commit that was under way when it went out proves nothing. */
  worked(): void {}

  /** The ledger failed outside a commit (an id block, an administrative change): the same state, the same way back. */
  reportFailure(error: unknown): void {
    // One held row keeps this call from being served, and no other.
    if (error instanceof BusyError) return;
    if (error instanceof RetryableError && error.code === 'unavailable') this.#goOut(error);
  }

  close(): void {
    this.#closed = true;
    this.#cancelProbe?.();
  }

  #keep(batch: readonly OrderMessage[], error: Error): void {
    this.#messages.push(...batch);
    for (const message of batch) this.#effects.failed(message, error);
  }

  #goOut(error: RetryableError): void {
    if (this.#reason !== null || this.#closed) return;
    this.#reason = error.message;
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
      if (error instanceof RetryableError) this.#reason = error.message;
      else this.#runtime.log.error({ err: error }, 'the probe of the ledger failed');
      this.#probeLater();
      return;
    }
    // A commit that was under way may have failed since the last question: the next probe asks about it.
    if (this.#messages.length > 0) {
      this.#probeLater();
      return;
    }
    this.#reason = null;
    this.#runtime.log.info('the ledger is back');
  }

  /** A commit that was under way may still fail and leave more: each order is asked about before it is decided. */
  async #resolve(): Promise<void> {
    while (this.#messages.length > 0) {
      const asked = this.#messages.slice(0, ASKED_MAX);
      const found = await this.#ledger.storedAtRest(asked);
      const stored: StoredOrder[] = [];
      const messages: OrderMessage[] = [];
      const missing: OrderMessage[] = [];
      for (const message of asked) {
        const order = found.get(message.orderId);
        if (order === undefined) {
          missing.push(message);
          continue;
        }
        // Nobody has announced it. One that has ended since must not be announced as reserved.
        stored.push({ order, inserted: order.status === 'rejected' || !hasEnded(order.status) });
        messages.push(message);
      }
      if (stored.length > 0) await this.#effects.decided(stored, messages);
      await Promise.all(missing.map((message) => this.#effects.withdrawn(message)));
      this.#messages = this.#messages.slice(asked.length);
    }
  }
}
