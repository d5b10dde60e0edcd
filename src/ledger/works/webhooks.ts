import type { Actor } from '../../model/actor.ts';
import { type DeliveryState, WEBHOOK_BOUNDS, type WebhookEvent } from '../../model/webhook.ts';
import { KEY_KEPT_MS } from '../port/keys.ts';
import type { Page } from '../port/page.ts';
import type {
  DeliveryTry,
  EndpointCreated,
  NewDelivery,
  NewEndpoint,
  WebhookDelivery,
  WebhookEndpoint,
} from '../port/webhooks.ts';
import { auditStep } from './audit.ts';
import { type Cells, CLOCK, type LifeDialect, nowOf, query, type Row, type Step, type Work, Writes } from './work.ts';

/** Rows that one transaction tidies up at most. */
const CHUNK = 500;
const ERROR_MAX = 500;

const ENDPOINT_COLUMNS = ['id', 'created_at', 'url', 'events', 'secret', 'state', 'reason', 'made_with'];
const SELECT_ENDPOINTS = `SELECT ${ENDPOINT_COLUMNS.join(', ')} FROM webhook_endpoints`;
const DELIVERY_COLUMNS = [
  'id',
  'endpoint_id',
  'order_id',
  'created_at',
  'began_at',
  'next_at',
  'done_at',
  'version',
  'tries',
  'last_status',
  'type',
  'state',
  'last_error',
  'body',
];
const SELECT_DELIVERIES = `SELECT ${DELIVERY_COLUMNS.join(', ')} FROM webhook_deliveries`;

// Endpoints

export function* createEndpoint(
  endpoint: NewEndpoint,
  by: Actor,
  auditId: string,
  dialect: LifeDialect,
): Work<EndpointCreated> {
  const [clock, all] = yield [
    CLOCK,
    query(`${SELECT_ENDPOINTS} WHERE state <> 'deleted' OR made_with IS NOT NULL ORDER BY id ${dialect.forUpdate}`),
  ];
  const nowMs = nowOf(clock);
  const { id, url, events, secret, madeWith } = endpoint;
  const writes = new Writes();
  const before = madeWith === null ? undefined : all!.rows.find((row) => row.made_with === madeWith);
  if (before !== undefined) {
    if (nowMs - Number(before.created_at) >= KEY_KEPT_MS || before.state === 'deleted') {
      writes.add(query('UPDATE webhook_endpoints SET made_with = NULL WHERE id = ?', BigInt(before.id!)), 1);
    } else if (before.url !== url || before.events !== events.join(',')) {
      return { outcome: 'key_reused' };
    } else {
      return { outcome: 'repeat', endpoint: endpointOfRow(before) };
    }
  }
  const present = all!.rows.filter(({ state }) => state !== 'deleted').length;
  if (present >= WEBHOOK_BOUNDS.endpointsMax) return { outcome: 'too_many' };
  const cells: Cells = [BigInt(id), nowMs, url, events.join(','), secret, 'active', null, madeWith];
  writes.addRows({ do: 'insert', table: 'webhook_endpoints', columns: ENDPOINT_COLUMNS, rows: [cells] });
  writes.addRows(noteOf('create', id, { url: withoutQuery(url), events }, by, auditId, nowMs));
  yield* writes.done();
  return {
    outcome: 'created',
    endpoint: { id, url, events, secret, state: 'active', reason: null, createdAtMs: nowMs },
  };
}

export function* listEndpoints({ limit, before }: Page): Work<WebhookEndpoint[]> {
  const older = before === null ? [] : [BigInt(before)];
  const [found] = yield [
    query(
      `${SELECT_ENDPOINTS} WHERE state <> 'deleted' ${before === null ? '' : 'AND id < ?'} ORDER BY id DESC LIMIT ?`,
      ...older,
      limit,
    ),
  ];
  return found!.rows.map(endpointOfRow);
}

export function* getEndpoint(endpointId: string): Work<WebhookEndpoint | null> {
  const [found] = yield [query(`${SELECT_ENDPOINTS} WHERE id = ? AND state <> 'deleted'`, BigInt(endpointId))];
  return found!.rows.map(endpointOfRow)[0] ?? null;
}

export function* activeEndpoints(): Work<WebhookEndpoint[]> {
  const [found] = yield [query(`${SELECT_ENDPOINTS} WHERE state = 'active' ORDER BY id`)];
  return found!.rows.map(endpointOfRow);
}

/** It may have many deliveries: they are removed in chunks, and the row with the last of them. The secret is removed at once. */
export function* deleteEndpoint(endpointId: string, by: Actor, auditId: string, dialect: LifeDialect): Work<boolean> {
  const [clock, found] = yield [CLOCK, lockOf(endpointId, dialect)];
  const [row] = found!.rows;
  if (row === undefined || row.state === 'deleted') return false;
  const writes = new Writes();
  const change = "UPDATE webhook_endpoints SET state = 'deleted', secret = '' WHERE id = ?";
  writes.add(query(change, BigInt(endpointId)), 1);
  writes.addRows(noteOf('delete', endpointId, { url: withoutQuery(row.url as string) }, by, auditId, nowOf(clock)));
  yield* writes.done();
  return true;
}

export function* endpointGone(
  endpointId: string,
  reason: string,
  by: Actor,
  auditId: string,
  dialect: LifeDialect,
): Work<boolean> {
  const [clock, found] = yield [CLOCK, lockOf(endpointId, dialect)];
  if (found!.rows[0]?.state !== 'active') return false;
  const writes = new Writes();
  const change = "UPDATE webhook_endpoints SET state = 'gone', reason = ? WHERE id = ?";
  writes.add(query(change, reason, BigInt(endpointId)), 1);
  writes.addRows(noteOf('gone', endpointId, { reason }, by, auditId, nowOf(clock)));
  yield* writes.done();
  return true;
}

function lockOf(endpointId: string, { forUpdate }: LifeDialect): Step {
  return query(`${SELECT_ENDPOINTS} WHERE id = ? ${forUpdate}`, BigInt(endpointId));
}

function noteOf(action: string, endpointId: string, detail: object, by: Actor, auditId: string, nowMs: number) {
  return auditStep([{ auditId, by, action: `webhook.${action}`, subject: `webhook:${endpointId}`, detail }], nowMs);
}

/** Without the query, which may contain a password: audit rows are kept for ever. */
function withoutQuery(url: string): string {
  return url.split('?', 1)[0]!;
}

// Deliveries

export function* takeOverEvents(
  eventIds: readonly string[],
  deliveries: readonly NewDelivery[],
  { forUpdate }: LifeDialect,
): Work<number> {
  if (eventIds.length === 0) return 0;
  const events = new Map(eventIds.map((id) => [id, id.split('-').map(BigInt) as [bigint, bigint]]));
  const orderIds = [...new Set([...events.values()].map(([orderId]) => orderId))];
  // From here on whoever ends a delivery waits for this lock, or has committed its end. Otherwise the next delivery could wait for ever.
  const [clock, there, active, pending] = yield [
    CLOCK,
    query(
      `SELECT order_id, version FROM order_events WHERE order_id IN (?) ORDER BY order_id, version ${forUpdate}`,
      orderIds,
    ),
    query(`SELECT id FROM webhook_endpoints WHERE state = 'active' ORDER BY id ${forUpdate}`),
    query(
      `SELECT endpoint_id, order_id FROM webhook_deliveries WHERE order_id IN (?) AND done_at IS NULL
       ORDER BY order_id, endpoint_id, version ${forUpdate}`,
      orderIds,
    ),
  ];
  const nowMs = nowOf(clock);
  const taken = there!.rows.map((row) => `${row.order_id}-${row.version}`).filter((id) => events.has(id));
  const takes = new Set(taken);
  const endpoints = new Set(active!.rows.map(({ id }) => id as string));
  const waitedFor = new Set(pending!.rows.map((row) => `${row.endpoint_id} ${row.order_id}`));
  const rows = deliveries
    .filter(({ endpointId, orderId, version }) => endpoints.has(endpointId) && takes.has(`${orderId}-${version}`))
    .map(({ id, endpointId, orderId, version, type, body }): Cells => {
      const line = `${endpointId} ${orderId}`;
      const nextAtMs = waitedFor.has(line) ? null : nowMs;
      waitedFor.add(line);
      return [
        ...[BigInt(id), BigInt(endpointId), BigInt(orderId), nowMs, null, nextAtMs, null],
        ...[version, 0, null, type, 'pending', null, body],
      ];
    });
  const writes = new Writes();
  const columns = DELIVERY_COLUMNS;
  writes.addRows({ do: 'insert', table: 'webhook_deliveries', columns, rows, leavePresent: true }, false);
  const forgotten = taken.map((id): Cells => {
    const [orderId, version] = events.get(id)!;
    return [orderId, Number(version)];
  });
  writes.addRows({ do: 'delete', table: 'order_events', match: ['order_id', 'version'], rows: forgotten });
  yield* writes.done();
  return taken.length;
}

export function* dueDeliveries(
  wanted: readonly { readonly endpointId: string; readonly limit: number }[],
): Work<WebhookDelivery[]> {
  if (wanted.length === 0) return [];
  const [clock] = yield [CLOCK];
  const nowMs = nowOf(clock);
  const found = yield wanted.map(({ endpointId, limit }) =>
    query(
      `${SELECT_DELIVERIES} WHERE endpoint_id = ? AND done_at IS NULL AND next_at <= ? ORDER BY next_at LIMIT ?`,
      BigInt(endpointId),
      nowMs,
      limit,
    ),
  );
  return found.flatMap(({ rows }) => rows.map(deliveryOfRow));
}

export function* settleDeliveries(
  tries: readonly DeliveryTry[],
  giveUpMs: number,
  dialect: LifeDialect,
): Work<WebhookDelivery[]> {
  if (tries.length === 0) return [];
  const ids = tries.map(({ id }) => BigInt(id));
  const [clock, found] = yield [
    CLOCK,
    query(`${SELECT_DELIVERIES} WHERE id IN (?) ORDER BY id ${dialect.forUpdate}`, ids),
  ];
  const nowMs = nowOf(clock);
  const rows = new Map(found!.rows.map((row) => [row.id as string, row]));
  const settled: WebhookDelivery[] = [];
  const cells: Cells[] = [];
  for (const each of tries) {
    const row = rows.get(each.id);
    if (row === undefined || row.done_at !== null || Number(row.tries) !== each.tries) continue;
    rows.delete(each.id);
    const beganAtMs = row.began_at === null ? nowMs : Number(row.began_at);
    const givenUp = !each.delivered && nowMs + each.retryMs > beganAtMs + giveUpMs;
    const state: DeliveryState = each.delivered ? 'delivered' : givenUp ? 'failed' : 'pending';
    const delivery: WebhookDelivery = {
      ...deliveryOfRow(row),
      state,
      tries: each.tries + 1,
      lastStatus: each.status,
      lastError: each.error === null ? null : each.error.slice(0, ERROR_MAX).toWellFormed(),
      nextAtMs: state === 'pending' ? nowMs + each.retryMs : null,
      doneAtMs: state === 'pending' ? null : nowMs,
    };
    settled.push(delivery);
    const { tries: count, nextAtMs, doneAtMs, lastStatus, lastError } = delivery;
    cells.push([BigInt(each.id), each.tries, count, beganAtMs, nextAtMs, doneAtMs, lastStatus, lastError, state]);
  }
  const writes = new Writes();
  writes.addRows({
    do: 'update',
    table: 'webhook_deliveries',
    match: ['id', 'tries'],
    set: ['tries', 'began_at', 'next_at', 'done_at', 'last_status', 'last_error', 'state'],
    rows: cells,
  });
  yield* writes.done();
  const ended = settled.filter(({ state }) => state !== 'pending').map(({ orderId }) => orderId);
  yield* callNext(ended, nowMs, dialect);
  return settled;
}

/** For every endpoint and each of these orders the oldest pending delivery becomes due, now if it was waiting. */
function* callNext(orderIds: readonly string[], nowMs: number, { forUpdate }: LifeDialect): Work<void> {
  if (orderIds.length === 0) return;
  const [found] = yield [
    query(
      `SELECT id, endpoint_id, order_id, next_at FROM webhook_deliveries WHERE order_id IN (?) AND done_at IS NULL
       ORDER BY order_id, endpoint_id, version ${forUpdate}`,
      [...new Set(orderIds)].map(BigInt),
    ),
  ];
  const first = new Map<string, Row>();
  for (const row of found!.rows) {
    const line = `${row.endpoint_id} ${row.order_id}`;
    if (!first.has(line)) first.set(line, row);
  }
  const writes = new Writes();
  const rows = [...first.values()].filter((row) => row.next_at === null).map((row): Cells => [BigInt(row.id!), nowMs]);
  writes.addRows({ do: 'update', table: 'webhook_deliveries', match: ['id'], set: ['next_at'], rows });
  yield* writes.done();
}

export function* listDeliveries(endpointId: string, { limit, before }: Page): Work<WebhookDelivery[] | null> {
  if ((yield* getEndpoint(endpointId)) === null) return null;
  const older = before === null ? [] : [BigInt(before)];
  const [found] = yield [
    query(
      `${SELECT_DELIVERIES} WHERE endpoint_id = ? ${before === null ? '' : 'AND id < ?'} ORDER BY id DESC LIMIT ?`,
      BigInt(endpointId),
      ...older,
      limit,
    ),
  ];
  return found!.rows.map(deliveryOfRow);
}

export function* redeliver(
  deliveryId: string,
  by: Actor,
  auditId: string,
  dialect: LifeDialect,
): Work<'due' | 'gone' | 'unknown'> {
  const [clock, found] = yield [
    CLOCK,
    query(`${SELECT_DELIVERIES} WHERE id = ? ${dialect.forUpdate}`, BigInt(deliveryId)),
  ];
  const [row] = found!.rows;
  const endpointId = row === undefined ? null : (row.endpoint_id as string);
  const endpoint = endpointId === null ? null : yield* getEndpoint(endpointId);
  if (row === undefined || endpoint === null) return 'unknown';
  if (endpoint.state === 'gone') return 'gone';
  const nowMs = nowOf(clock);
  const { eventId, orderId, version } = deliveryOfRow(row);
  // A delivery that waits goes on waiting; one that has ended waits behind older pending ones.
  const [older] = yield [
    query(
      `SELECT id FROM webhook_deliveries WHERE order_id = ? AND endpoint_id = ? AND version < ? AND done_at IS NULL
       ${dialect.forUpdate}`,
      BigInt(orderId),
      BigInt(endpoint.id),
      version,
    ),
  ];
  const nextAtMs = older!.rows.length > 0 ? null : nowMs;
  const writes = new Writes();
  writes.add(
    query(
      row.done_at === null
        ? 'UPDATE webhook_deliveries SET next_at = ? WHERE id = ?'
        : `UPDATE webhook_deliveries SET state = 'pending', tries = 0, done_at = NULL, began_at = NULL, next_at = ?
           WHERE id = ?`,
      nextAtMs,
      BigInt(deliveryId),
    ),
    null,
  );
  writes.addRows(noteOf('redeliver', endpoint.id, { delivery: deliveryId, event: eventId }, by, auditId, nowMs));
  yield* writes.done();
  return 'due';
}

export function* tidyWebhooks(keptMs: number): Work<number> {
  const [clock, all] = yield [CLOCK, query('SELECT id, state, reason FROM webhook_endpoints ORDER BY id')];
  const nowMs = nowOf(clock);
  let done = 0;
  for (const { id, state, reason } of all!.rows) {
    const endpointId = BigInt(id!);
    if (state === 'gone') done += yield* endPending(endpointId, reason as string, nowMs);
    const which = state === 'deleted' ? '' : 'AND done_at < ?';
    const values = state === 'deleted' ? [] : [nowMs - keptMs];
    const [found] = yield [
      query(`SELECT id FROM webhook_deliveries WHERE endpoint_id = ? ${which} LIMIT ?`, endpointId, ...values, CHUNK),
    ];
    const ids = found!.rows.map((row) => BigInt(row.id!));
    if (ids.length > 0) yield [query('DELETE FROM webhook_deliveries WHERE id IN (?)', ids)];
    else if (state === 'deleted') yield [query('DELETE FROM webhook_endpoints WHERE id = ?', endpointId)];
    done += ids.length;
  }
  return done;
}

function* endPending(endpointId: bigint, reason: string, nowMs: number): Work<number> {
  const [found] = yield [
    query('SELECT id FROM webhook_deliveries WHERE endpoint_id = ? AND done_at IS NULL LIMIT ?', endpointId, CHUNK),
  ];
  const ids = found!.rows.map((row) => BigInt(row.id!));
  if (ids.length === 0) return 0;
  yield [
    query(
      `UPDATE webhook_deliveries SET state = 'failed', last_error = ?, next_at = NULL, done_at = ?
       WHERE id IN (?) AND done_at IS NULL`,
      reason,
      nowMs,
      ids,
    ),
  ];
  return ids.length;
}

function endpointOfRow(row: Row): WebhookEndpoint {
  return {
    id: row.id as string,
    url: row.url as string,
    events: (row.events as string).split(',') as WebhookEvent[],
    secret: row.secret as string,
    state: row.state as WebhookEndpoint['state'],
    reason: row.reason as string | null,
    createdAtMs: Number(row.created_at),
  };
}

function deliveryOfRow(row: Row): WebhookDelivery {
  const orderId = row.order_id as string;
  const version = Number(row.version);
  return {
    id: row.id as string,
    endpointId: row.endpoint_id as string,
    orderId,
    version,
    eventId: `${orderId}-${version}`,
    type: row.type as WebhookEvent,
    body: row.body as string,
    state: row.state as DeliveryState,
    tries: Number(row.tries),
    lastStatus: row.last_status === null ? null : Number(row.last_status),
    lastError: row.last_error as string | null,
    nextAtMs: row.next_at === null ? null : Number(row.next_at),
    createdAtMs: Number(row.created_at),
    doneAtMs: row.done_at === null ? null : Number(row.done_at),
  };
}
