import type { Runtime } from '../base/runtime.ts';
import type { Gate } from '../gate/port.ts';
import type { StoredOrder } from '../ledger/port.ts';
import { hasGivenBack, type OrderMessage, type OrderRecord } from '../model/order.ts';
import type { RejectReason } from '../model/outcome.ts';
import type { PendingDecisions } from './pending-decisions.ts';

export interface DecisionsDependencies {
  readonly runtime: Runtime;
  readonly gate: Gate;
  readonly pending: PendingDecisions;
  /** This process, as the messages of orders that it admitted name it; undefined where there is no other. */
  readonly process: string | undefined;
  /** Orders that another process admitted, and waits for. */
  tell(process: string, orders: readonly OrderRecord[]): void;
  /** The gate that admitted at this epoch was wrong. */
  rebuild(saleId: string, epoch: number): void;
  /** Counts of the sale have moved. */
  touched(saleId: string): void;
  announce(event: 'order.reserved' | 'order.rejected', order: OrderRecord): void;
  backstop(reason: RejectReason): void;
}

/**
 * What follows from the ledger's decisions, in both deployments: commit, then gate, then acknowledge. The commit is done. The
 * batch is acknowledged by whoever awaits `follow`, when the gate knows all of it.
 */
export class Decisions {
  readonly #on: DecisionsDependencies;

  constructor(dependencies: DecisionsDependencies) {
    this.#on = dependencies;
  }

  /** May be called again for the same messages: after a failure the pipe brings them again. */
  async follow(stored: readonly StoredOrder[], messages: readonly OrderMessage[]): Promise<void> {
    const { gate, pending, process, tell, rebuild, touched, announce } = this.#on;
    const reserved = new Map<string, OrderMessage[]>();
    const ended: OrderRecord[] = [];
    const refused: { order: OrderRecord; message: OrderMessage; inserted: boolean }[] = [];
    const elsewhere = new Map<string, OrderRecord[]>();
    for (let at = 0; at < stored.length; at++) {
      const { order, inserted } = stored[at]!;
      const message = messages[at]!;
      if (order.status === 'rejected') {
        refused.push({ order, message, inserted });
        if (inserted) announce('order.rejected', order);
      } else if (hasGivenBack(order.status)) {
        ended.push(order);
      } else {
        gather(reserved, order.saleId, message);
        // Not after the gate: if that fails, the order comes again, and is not new then.
        if (inserted) announce('order.reserved', order);
      }
      // Whoever waits in this process hears of the commit at once: the order stands, whatever becomes of the gate.
      if (message.from === process) pending.decided(order);
      else if (message.from !== undefined) gather(elsewhere, message.from, order);
    }
    const wrong = this.#refused(refused);
    // All calls are made in this turn: the in-process gate has settled before anybody who was told above goes on.
    const telling = Array.from(reserved, ([saleId, holds]) => gate.settle(saleId, holds));
    // An ended order holds nothing. A copy of its admission that Redis executed late has made a hold for it again: settled,
    // that would stand for ever (P4). Where there is none, releasing does nothing.
    for (const { id, saleId, buyer } of ended) telling.push(gate.release(saleId, { orderId: id, buyer }));
    // Shut before the message is acknowledged: should this process die, others find the gate so and rebuild it. A gate of a
    // higher epoch than the message's is not the one that admitted it.
    for (const [saleId, epoch] of wrong) telling.push(gate.shut(saleId, epoch));
    if (telling.length === 1) await telling[0];
    else await Promise.all(telling);
    for (const [saleId, epoch] of wrong) rebuild(saleId, epoch);
    for (const [other, orders] of elsewhere) tell(other, orders);
    for (const saleId of reserved.keys()) touched(saleId);
    for (const { saleId } of ended) touched(saleId);
  }

  /**
   * Units of an order that a backstop refused do not go back to free: the gate's count is what was wrong. Returns the sales,
   * each with the highest epoch that admitted such an order.
   */
  #refused(
    refused: readonly { order: OrderRecord; message: OrderMessage; inserted: boolean }[],
  ): ReadonlyMap<string, number> {
    const { runtime, backstop } = this.#on;
    const wrong = new Map<string, number>();
    const reasons = new Map<RejectReason, string[]>();
    for (const { order, message, inserted } of refused) {
      wrong.set(order.saleId, Math.max(message.epoch, wrong.get(order.saleId) ?? 0));
      if (!inserted) continue;
      backstop(order.reason!);
      gather(reasons, order.reason!, order.id);
    }
    for (const [reason, ids] of reasons) {
      const level = reason === 'gate_rebuilt' ? 'warn' : 'error';
      const some = { reason, orders: ids.length, first: ids.slice(0, 3) };
      runtime.log[level](some, 'the ledger refused what a gate had admitted');
    }
    return wrong;
  }
}

function gather<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const values = map.get(key);
  if (values) values.push(value);
  else map.set(key, [value]);
}
