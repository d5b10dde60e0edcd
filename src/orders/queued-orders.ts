import type { Runtime } from '../base/runtime.ts';
import type { Gate } from '../gate/port.ts';
import type { OrderLedger, SaleLedger } from '../ledger/port.ts';
import type { OrderMessage, OrderRecord } from '../model/order.ts';

const LOOK_EVERY_MS = 1000;
const LOOK_AT_MAX = 500;
/** A message of the gate before the rebuild may still be on its way to the ledger, which then rejects it itself. */
const GRACE_MS = 3000;

export interface QueuedOrdersDependencies {
  runtime: Runtime;
  gate: Gate;
  ledger: OrderLedger & SaleLedger;
  /** The gate has lost what it admitted: have it built anew. */
  rebuild: (saleId: string, above: number) => void;
  /** The ledger has decided an order that was answered as queued. `here`: this process wrote the decision. */
  ended: (order: OrderRecord, here: boolean) => void;
}

/**
 * Orders that this process answered as queued (202), remembered until the ledger has decided them (P3). The pipe brings
 * them there. If the gate and the pipe have lost one (Redis lost its data), then after the rebuild only this process knows
 * of it, and writes it as `rejected: admission_lost`. From the rebuild's commit on, its admission is of an older epoch and
 * could only be rejected, so that this contradicts nobody.
 */
export class QueuedOrders {
  readonly #on: QueuedOrdersDependencies;
  readonly #orders = new Map<string, { message: OrderMessage; lostSinceMs: number | null }>();
  #cancel: (() => void) | null = null;
  #looking: Promise<void> | null = null;
  #lost = 0;

  constructor(dependencies: QueuedOrdersDependencies) {
    this.#on = dependencies;
  }

  get size(): number {
    return this.#orders.size;
  }

  /** Orders that were lost with the gate and ended here. */
  get lost(): number {
    return this.#lost;
  }

  get(orderId: string): OrderMessage | null {
    return this.#orders.get(orderId)?.message ?? null;
  }

  add(message: OrderMessage): void {
    this.#orders.set(message.orderId, { message, lostSinceMs: null });
    this.#cancel ??= this.#on.runtime.timers.every(LOOK_EVERY_MS, () => void this.look());
  }

  /** Looks at all of them once; what cannot be looked at now is looked at the next time. */
  look(): Promise<void> {
    this.#looking ??= this.#look()
      .catch((error: unknown) => this.#on.runtime.log.debug({ err: error }, 'queued orders cannot be looked at'))
      .finally(() => {
        this.#looking = null;
      });
    return this.#looking;
  }

  async #look(): Promise<void> {
    const ids = [...this.#orders.keys()];
    for (let from = 0; from < ids.length; from += LOOK_AT_MAX) await this.#lookAt(ids.slice(from, from + LOOK_AT_MAX));
    if (this.#orders.size === 0) {
      this.#cancel?.();
      this.#cancel = null;
    }
  }

  async #lookAt(orderIds: string[]): Promise<void> {
    const { ledger } = this.#on;
    for (const order of (await ledger.storedAmong(orderIds)).values()) this.#end(order, false);
    const bySale = new Map<string, OrderMessage[]>();
    for (const orderId of orderIds) {
      const message = this.#orders.get(orderId)?.message;
      if (message) bySale.set(message.saleId, [...(bySale.get(message.saleId) ?? []), message]);
    }
    for (const [saleId, messages] of bySale) await this.#lookAtSale(saleId, messages);
  }

  async #lookAtSale(saleId: string, messages: OrderMessage[]): Promise<void> {
    const { ledger, runtime } = this.#on;
    const sale = await ledger.getSale(saleId);
    const epochs = new Map(sale?.items.map(({ id, epoch }) => [id, epoch]));
    const nowMs = runtime.clock.monotonic();
    const lost: OrderMessage[] = [];
    const current: OrderMessage[] = [];
    for (const message of messages) {
      const entry = this.#orders.get(message.orderId);
      if (!entry) continue;
      if ((epochs.get(message.itemId) ?? 0) <= message.epoch) {
        current.push(message);
      } else {
        entry.lostSinceMs ??= nowMs;
        if (nowMs - entry.lostSinceMs >= GRACE_MS) lost.push(message);
      }
    }
    // A gate loses everything, or the newest: asking about the first and the last is enough.
    for (const message of new Set([current[0], current.at(-1)])) if (message) await this.#mustBeHeld(message);
    if (lost.length === 0) return;
    for (const { order, inserted } of await ledger.rejectOrders(lost, 'admission_lost')) {
      if (inserted) this.#lost++;
      this.#end(order, inserted);
    }
  }

  /** If the order is neither in the ledger nor in the gate, the gate has lost it: has the gate rebuilt. */
  async #mustBeHeld(message: OrderMessage): Promise<void> {
    const { gate, ledger, rebuild } = this.#on;
    if ((await gate.holdOf(message.saleId, message)) !== null) return;
    // Read once more: it may have been decided between the two looks.
    const stored = (await ledger.storedAmong([message.orderId])).get(message.orderId);
    if (stored) this.#end(stored, false);
    else rebuild(message.saleId, message.epoch);
  }

  #end(order: OrderRecord, here: boolean): void {
    if (this.#orders.delete(order.id)) this.#on.ended(order, here);
  }

  close(): void {
    this.#cancel?.();
  }
}
