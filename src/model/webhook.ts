/** What a shop's own systems can subscribe to. */
export const WEBHOOK_EVENTS = [
  'order.reserved',
  'order.paid',
  'order.moved',
  'order.expired',
  'order.cancelled',
  'order.partly_refunded',
  'order.refunded',
] as const;

export type WebhookEvent = (typeof WEBHOOK_EVENTS)[number];

export const WEBHOOK_BOUNDS = {
  urlLengthMax: 2048,
  /** Bounded, because each endpoint may use its full share of connections at once, so that none waits for another. */
  endpointsMax: 20,
} as const;

export const DELIVERY_STATES = ['pending', 'delivered', 'failed'] as const;

export type DeliveryState = (typeof DELIVERY_STATES)[number];
