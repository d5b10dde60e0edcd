import type { OrderStatus } from './order.ts';

/** What can happen to an order. */
export const ORDER_EVENTS = ['commit', 'reject', 'pay', 'cancel', 'expire', 'refund', 'refund_part'] as const;

export type OrderEvent = (typeof ORDER_EVENTS)[number];

/** The status that follows; `repeat`: it has happened already; `refused`: it cannot happen to such an order. */
export type Step = OrderStatus | 'repeat' | 'refused';

/**
 * The life of an order, whole: every event for every status. An ended order never lives again, and nothing but `refund`
 * ends a paid one. A refund of a part (`refund_part`) leaves it paid.
 */
export const LIFE: Readonly<Record<OrderStatus, Readonly<Record<OrderEvent, Step>>>> = {
  queued: {
    commit: 'reserved',
    reject: 'rejected',
    pay: 'refused',
    cancel: 'refused',
    expire: 'refused',
    refund: 'refused',
    refund_part: 'refused',
  },
  reserved: {
    commit: 'repeat',
    reject: 'refused',
    pay: 'paid',
    cancel: 'cancelled',
    expire: 'expired',
    refund: 'refused',
    refund_part: 'refused',
  },
  paid: {
    commit: 'repeat',
    reject: 'refused',
    pay: 'repeat',
    cancel: 'refused',
    expire: 'refused',
    refund: 'refunded',
    refund_part: 'paid',
  },
  cancelled: {
    commit: 'repeat',
    reject: 'refused',
    pay: 'refused',
    cancel: 'repeat',
    expire: 'refused',
    refund: 'refused',
    refund_part: 'refused',
  },
  expired: {
    commit: 'repeat',
    reject: 'refused',
    pay: 'refused',
    cancel: 'refused',
    expire: 'repeat',
    refund: 'refused',
    refund_part: 'refused',
  },
  rejected: {
    commit: 'repeat',
    reject: 'repeat',
    pay: 'refused',
    cancel: 'refused',
    expire: 'refused',
    refund: 'refused',
    refund_part: 'refused',
  },
  refunded: {
    commit: 'repeat',
    reject: 'refused',
    pay: 'refused',
    cancel: 'refused',
    expire: 'refused',
    refund: 'repeat',
    refund_part: 'refused',
  },
};

export function stepOf(status: OrderStatus, event: OrderEvent): Step {
  return LIFE[status][event];
}

/** Where an order's units stand in the ledger; null: nowhere, they are free (or were never taken). */
export function unitsAt(status: OrderStatus): 'reserved' | 'sold' | null {
  if (status === 'reserved') return 'reserved';
  return status === 'paid' ? 'sold' : null;
}
