import { storedActorText } from '../../model/actor.ts';
import type { OrderRecord, OrderStatus } from '../../model/order.ts';
import type { RejectReason } from '../../model/outcome.ts';
import type { AttemptState, PartRefund, PaymentAttempt } from '../../model/payment.ts';
import type { AuditEntry } from '../port/audit.ts';
import type { OutgoingEvent } from '../port/events.ts';
import type { Release } from '../port/releases.ts';
import type { StoredRefund } from '../rules/decide.ts';
import { parseSeats } from '../rules/seats.ts';
import type { Cells, Row } from './work.ts';

/** Of a row with the columns of `orders` and `item_code`. */
export function orderOfRow(row: Row): OrderRecord {
  const order: OrderRecord = {
    id: row.id as string,
    saleId: row.sale_id as string,
    itemId: row.item_id as string,
    itemCode: row.item_code as string,
    buyer: row.buyer as string,
    quantity: Number(row.quantity),
    amount: { amount: Number(row.amount), currency: row.currency as string },
    status: row.status as OrderStatus,
    reason: row.reason as RejectReason | null,
    createdAtMs: Number(row.created_at),
    updatedAtMs: Number(row.updated_at),
    expiresAtMs: numberOrNull(row.expires_at),
    version: Number(row.version),
    revives: (row.revives ?? null) as string | null,
  };
  if (row.seats !== null) order.seats = parseSeats(row.seats as string);
  return order;
}

export const ATTEMPT_COLUMNS = [
  'id',
  'order_id',
  'provider',
  'state',
  'pays',
  'amount',
  'currency',
  'reference',
  'error',
  'next_at',
  'tries',
  'created_at',
  'updated_at',
  'fence',
  'refunded',
] as const;

export const SELECT_ATTEMPTS = `SELECT ${ATTEMPT_COLUMNS.join(', ')} FROM payments`;

export function attemptOfRow(row: Row): PaymentAttempt {
  return {
    id: row.id as string,
    orderId: row.order_id as string,
    provider: row.provider as string,
    state: row.state as AttemptState,
    pays: Number(row.pays) === 1,
    amount: { amount: Number(row.amount), currency: row.currency as string },
    refunded: Number(row.refunded),
    reference: row.reference as string | null,
    error: row.error as string | null,
    nextAtMs: numberOrNull(row.next_at),
    tries: Number(row.tries),
    createdAtMs: Number(row.created_at),
    updatedAtMs: Number(row.updated_at),
  };
}

/** In the order of ATTEMPT_COLUMNS. */
export function cellsOfAttempt(attempt: PaymentAttempt, fence: bigint | null): Cells {
  return [
    BigInt(attempt.id),
    BigInt(attempt.orderId),
    attempt.provider,
    attempt.state,
    attempt.pays ? 1 : 0,
    attempt.amount.amount,
    attempt.amount.currency,
    attempt.reference,
    attempt.error,
    attempt.nextAtMs,
    attempt.tries,
    attempt.createdAtMs,
    attempt.updatedAtMs,
    fence,
    attempt.refunded,
  ];
}

export const SELECT_REFUNDS = `SELECT id, attempt_id, order_id, amount, currency, back_before, state, made_with, error, next_at,
  tries, created_at FROM refunds`;

export function refundOfRow(row: Row): StoredRefund {
  return {
    id: row.id as string,
    attemptId: row.attempt_id as string,
    orderId: row.order_id as string,
    amount: { amount: Number(row.amount), currency: row.currency as string },
    backBefore: Number(row.back_before),
    state: row.state as PartRefund['state'],
    madeWith: row.made_with as string | null,
    error: row.error as string | null,
    nextAtMs: numberOrNull(row.next_at),
    tries: Number(row.tries),
    createdAtMs: Number(row.created_at),
  };
}

export function releaseOfRow(row: Row): Release {
  return {
    orderId: row.order_id as string,
    saleId: row.sale_id as string,
    itemId: row.item_id as string,
    buyer: row.buyer as string,
    units: Number(row.units),
    rev: Number(row.rev),
    createdAtMs: Number(row.created_at),
  };
}

export function eventOfRow(row: Row): OutgoingEvent {
  const orderId = row.order_id as string;
  const version = Number(row.version);
  return {
    id: `${orderId}-${version}`,
    orderId,
    version,
    type: row.type as OutgoingEvent['type'],
    atMs: Number(row.at),
    body: row.body as string,
  };
}

export function auditOfRow(row: Row): AuditEntry {
  return {
    id: row.id as string,
    atMs: Number(row.at),
    actor: storedActorText(row.actor as string, row.action as string),
    origin: row.origin as string | null,
    action: row.action as string,
    subject: row.subject as string,
    detail: row.detail as string,
  };
}

function numberOrNull(value: string | number | null | undefined): number | null {
  return value === null || value === undefined ? null : Number(value);
}
