import type { OrderRecord } from '../../model/order.ts';
import type { WebhookEvent } from '../../model/webhook.ts';
import type { OutgoingEvent } from '../port/events.ts';
import type { StoredOrder } from '../port/orders.ts';
import { eventOfRow } from './rows.ts';
import { type Cells, type InsertStep, query, type Work, Writes } from './work.ts';

/**
 * The outbox of events for those who subscribed. An event is named after its order and its version, so that it is written
 * once by its primary key, and known without being read. It leaves the table when somebody has taken it over: no mark has
 * to be passed, which a transaction that commits late could stay behind.
 */
export function eventStep(
  versions: readonly { readonly order: OrderRecord; readonly type: WebhookEvent }[],
): InsertStep {
  return {
    do: 'insert',
    table: 'order_events',
    columns: ['order_id', 'version', 'type', 'at', 'body'],
    rows: versions.map(
      ({ order, type }): Cells => [BigInt(order.id), order.version, type, order.updatedAtMs, JSON.stringify(order)],
    ),
  };
}

/**
 * Of a batch: for those that its transaction inserts, and does not refuse. Null: none. The orders go first: what proves that
 * an order is new is its own row, and never that of its event, which somebody may have taken over long ago.
 */
export function reservedEvents(stored: readonly StoredOrder[]): InsertStep | null {
  const fresh = stored.filter(({ order, inserted }) => inserted && order.status === 'reserved');
  return fresh.length === 0 ? null : eventStep(fresh.map(({ order }) => ({ order, type: 'order.reserved' })));
}

export function* writeReserved(stored: readonly StoredOrder[]): Work<void> {
  const step = reservedEvents(stored);
  const writes = new Writes();
  if (step !== null) writes.addRows(step);
  yield* writes.done();
}

/** The time of an order does not go back from version to version: none is met before an older one of its order. */
export function* outgoingEvents(limit: number): Work<OutgoingEvent[]> {
  const [found] = yield [
    query(
      'SELECT order_id, version, type, "at", body FROM order_events ORDER BY "at", order_id, version LIMIT ?',
      limit,
    ),
  ];
  return found!.rows.map(eventOfRow);
}

export function* forgetEvents(eventIds: readonly string[]): Work<void> {
  if (eventIds.length === 0) return;
  const rows = eventIds.map((id): Cells => {
    const [orderId, version] = id.split('-') as [string, string];
    return [BigInt(orderId), Number(version)];
  });
  yield [{ do: 'delete', table: 'order_events', match: ['order_id', 'version'], rows }];
}
