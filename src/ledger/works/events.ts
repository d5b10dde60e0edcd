import type { OrderRecord } from '../../model/order.ts';
import type { WebhookEvent } from '../../model/webhook.ts';
import type { OutgoingEvent } from '../port/events.ts';
import type { StoredOrder } from '../port/orders.ts';
import { eventOfRow } from './rows.ts';
import { type Cells, type InsertStep, query, type Work, Writes } from './work.ts';

/**
 * The outbox of events for webhooks. An event's id is its order and version, so its primary key keeps it from being written
 * twice, and its id is known without a read. An event leaves the table when its deliveries are made. There is no mark of how
 * far the outbox was read: a transaction that commits late would stay behind it.
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
 * The events of a batch: one for each order that is inserted as reserved. Null: none. The orders are written first: only an
 * order's own row proves that it is new, since its event may have left the table long ago.
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

/** An order's time never goes back from version to version, so this order yields its older events first. */
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
