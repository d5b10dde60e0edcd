import type { Actor } from './actor.ts';
import { type Money, times } from './money.ts';
import type { RejectReason } from './outcome.ts';

export const ORDER_STATUSES = ['queued', 'reserved', 'paid', 'cancelled', 'expired', 'rejected', 'refunded'] as const;

export type OrderStatus = (typeof ORDER_STATUSES)[number];

/** A live order holds units; an ended one never lives again. */
export function isLive(status: OrderStatus): boolean {
  return status === 'queued' || status === 'reserved' || status === 'paid';
}

export function hasEnded(status: OrderStatus): boolean {
  return !isLive(status);
}

/** It was reserved once and its units are free again; a rejected order never had any. */
export function hasGivenBack(status: OrderStatus): boolean {
  return status === 'cancelled' || status === 'expired' || status === 'refunded';
}

/** An order as the ledger stores it. */
export interface OrderRecord {
  id: string;
  saleId: string;
  itemId: string;
  itemCode: string;
  buyer: string;
  quantity: number;
  /** The seat numbers that it has now, or had when it ended, ascending. Absent: the item is counted. */
  seats?: number[];
  amount: Money;
  status: OrderStatus;
  reason: RejectReason | null;
  createdAtMs: number;
  updatedAtMs: number;
  expiresAtMs: number | null;
  version: number;
  /** The ended order whose late money paid this one. */
  revives: string | null;
}

/**
 * What the gate puts into the pipe for an admitted order: all that the ledger needs to write it. `slots` are the
 * buyer's places under the sale's limit (1 … perBuyer), one per unit, free again when the unit is: the ledger's
 * UNIQUE (sale, buyer, slot) then holds the limit without counting.
 */
export interface OrderMessage {
  orderId: string;
  saleId: string;
  itemId: string;
  itemCode: string;
  buyer: string;
  quantity: number;
  slots: number[];
  /** The seat numbers of a seated item's order as it was admitted, ascending, one per unit. Absent: the item is counted. */
  seats?: number[];
  price: Money;
  payWithinSeconds: number;
  epoch: number;
  key: string | null;
  /** The request as the key binds it: the same key with another fingerprint is another request. */
  fingerprint: string;
  /** The process that admitted it and waits for its decision; absent where there is only one. */
  from?: string;
  /** Whoever placed it for the buyer, for the audit: the ledger writes both or none. Absent: the buyer did. */
  placedBy?: PlacedBy;
}

export interface PlacedBy extends Actor {
  readonly auditId: string;
}

/**
 * What an order asks for, as one comparable text. Stored beside the key, so it must stay stable across versions. Seats are seat
 * numbers: the order in which they were named makes no difference. `together: false` is the same as none.
 */
export function orderFingerprint(
  itemCode: string,
  quantity: number,
  { seats, together = false }: { seats?: readonly number[] | undefined; together?: boolean | undefined } = {},
): string {
  if (seats !== undefined) return `${itemCode} s${seats.toSorted((a, b) => a - b).join('.')}`;
  return `${itemCode} x${quantity}${together ? ' together' : ''}`;
}

/** An order as it is stored first: reserved, or rejected for a reason. */
export function firstRecord(message: OrderMessage, reason: RejectReason | null, nowMs: number): OrderRecord {
  const order: OrderRecord = {
    id: message.orderId,
    saleId: message.saleId,
    itemId: message.itemId,
    itemCode: message.itemCode,
    buyer: message.buyer,
    quantity: message.quantity,
    amount: times(message.price, message.quantity),
    status: reason === null ? 'reserved' : 'rejected',
    reason,
    createdAtMs: nowMs,
    updatedAtMs: nowMs,
    expiresAtMs: reason === null ? nowMs + message.payWithinSeconds * 1000 : null,
    version: 1,
    revives: null,
  };
  if (message.seats !== undefined) order.seats = message.seats;
  return order;
}
