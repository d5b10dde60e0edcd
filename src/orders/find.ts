import { RetryableError, unavailable } from '../base/errors.ts';
import { idTimeMs, isId } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep, within } from '../base/timers.ts';
import type { Gate } from '../gate/port.ts';
import type { OrderLedger } from '../ledger/port.ts';
import type { OrderMessage, OrderRecord } from '../model/order.ts';
import { queuedOrder } from './pending-decisions.ts';

/** Where orders that the ledger has not decided are known. */
export interface Queue {
  /** One that this process answered as queued; null: it remembers none of that id. */
  owed(orderId: string): OrderMessage | null;
  /** Where to look for one that any process answered as queued; null: nobody has noted it. */
  ticket(orderId: string): Promise<{ readonly saleId: string; readonly buyer: string } | null>;
}

export interface FindOrderDependencies {
  readonly runtime: Runtime;
  readonly ledger: Pick<OrderLedger, 'getOrder'>;
  readonly gate: Pick<Gate, 'holdOf'>;
  /** Null where an order is in the ledger before anybody hears of it. */
  readonly queue: Queue | null;
}

const LOOK_MS_MAX = 1000;
const LOOK_EVERY_MS = 50;

/** Finds an order by its id: in the ledger, or on its way there. */
export class FindOrder {
  readonly #on: FindOrderDependencies;

  constructor(dependencies: FindOrderDependencies) {
    this.#on = dependencies;
  }

  async find(orderId: string): Promise<OrderRecord | null> {
    if (!isId(orderId)) return null;
    try {
      return (await this.#stored(orderId)) ?? (await this.queued(orderId));
    } catch (error) {
      if (!(error instanceof RetryableError)) throw error;
      // With the ledger out a queued order can still be shown.
      const queued = await this.queued(orderId, true).catch(() => null);
      if (queued === null) throw error;
      return queued;
    }
  }

  /** The order if it is still queued after `waitMs`; else null. */
  async stillQueued(orderId: string, waitMs: number): Promise<OrderRecord | null> {
    const { runtime, queue } = this.#on;
    if (queue === null) return null;
    const { clock, timers } = runtime;
    const untilMs = clock.monotonic() + waitMs;
    for (;;) {
      if ((await this.#stored(orderId)) !== null) return null;
      const queued = await this.queued(orderId);
      if (queued?.status !== 'queued') return null;
      if (clock.monotonic() >= untilMs) return queued;
      await sleep(timers, LOOK_EVERY_MS);
    }
  }

  /** An order that was not in the ledger just now, or that cannot be asked for there. */
  async queued(orderId: string, ledgerOut = false): Promise<OrderRecord | null> {
    const { gate, queue } = this.#on;
    if (queue === null) return null;
    const owed = queue.owed(orderId);
    const ticket = owed ?? (await queue.ticket(orderId));
    if (ticket === null) return null;
    const { saleId, buyer } = ticket;
    // The hold first, then the ledger, and the ledger wins: the other way round it could be decided in between.
    const held = await gate.holdOf(saleId, { orderId, buyer });
    const stored = ledgerOut ? null : await this.#stored(orderId);
    if (stored !== null) return stored;
    if (held?.queued) return queuedOrder({ ...held, orderId, saleId, buyer }, idTimeMs(orderId));
    if (held !== null) throw unavailable('it is decided, and the ledger cannot be read now');
    // The hold is gone with its gate. As long as this process remembers the order, it is not decided; another process knows
    // only that it exists.
    if (owed === null) throw unavailable('the order is being decided');
    return queuedOrder(owed, idTimeMs(orderId));
  }

  async #stored(orderId: string): Promise<OrderRecord | null> {
    const { runtime, ledger, queue } = this.#on;
    if (queue === null) return await ledger.getOrder(orderId);
    // A ledger that hangs must not hide an order that the gate knows.
    const asked = ledger.getOrder(orderId).then((order) => ({ order }));
    const answer = await within(runtime.timers, asked, LOOK_MS_MAX);
    if (answer === null) throw unavailable('the ledger does not answer');
    return answer.order;
  }
}
