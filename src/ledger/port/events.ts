import type { WebhookEvent } from '../../model/webhook.ts';

/** Events for those who subscribed. */
export interface EventLedger {
  /**
   * Whether every reserved order and every move writes an event in its transaction. Off until somebody subscribes, since every
   * order would pay for it.
   */
  keepEvents: boolean;
  /** Oldest first. An event of an order never comes before an older one of the same order. */
  outgoingEvents(limit: number): Promise<OutgoingEvent[]>;
  /** Forgets events that are stored elsewhere or that nobody wants. */
  forgetEvents(eventIds: readonly string[]): Promise<void>;
}

/** What subscribers are told, once per version of an order. */
export interface OutgoingEvent {
  /** `<order id>-<version>`: known before it is written, and the same however often it is told. */
  readonly id: string;
  readonly orderId: string;
  readonly version: number;
  readonly type: WebhookEvent;
  readonly atMs: number;
  /** The order as it was then: JSON of an OrderRecord. */
  readonly body: string;
}
