import type { Actor } from '../../model/actor.ts';
import type { DeliveryState, WebhookEvent } from '../../model/webhook.ts';
import type { Page } from './page.ts';

/**
 * The ledger's part in webhooks: who subscribed to what, and the deliveries each has yet to get. Every method is one
 * transaction; times are by the ledger's clock.
 *
 * An event leaves the outbox in the transaction that makes its deliveries: a process that dies between two steps loses
 * nothing and doubles nothing. For each endpoint and order at most one delivery is due, the oldest pending one; when it
 * ends, the next becomes due.
 */
export interface WebhookLedger {
  /** With the same `madeWith` again it returns the endpoint made then, for as long as a key stays bound. */
  createEndpoint(endpoint: NewEndpoint, by: Actor, auditId: string): Promise<EndpointCreated>;
  /** Newest first, with those that are gone. */
  listEndpoints(page: Page): Promise<WebhookEndpoint[]>;
  getEndpoint(endpointId: string): Promise<WebhookEndpoint | null>;
  activeEndpoints(): Promise<WebhookEndpoint[]>;
  /** Nothing is sent to it any more. False: there is none. */
  deleteEndpoint(endpointId: string, by: Actor, auditId: string): Promise<boolean>;
  /** Stops its deliveries, since it answered that it is gone; it stays in the list. False: it was not active. */
  endpointGone(endpointId: string, reason: string, by: Actor, auditId: string): Promise<boolean>;

  /**
   * Makes deliveries of events and forgets the events. An event that another process took already makes none, and neither does
   * an endpoint that is not active. Deliveries of one order are in the order of its versions. Returns how many events were
   * forgotten.
   */
  takeOverEvents(eventIds: readonly string[], deliveries: readonly NewDelivery[]): Promise<number>;
  /** At most `limit` of each endpoint, longest due first. */
  dueDeliveries(wanted: readonly { readonly endpointId: string; readonly limit: number }[]): Promise<WebhookDelivery[]>;
  /**
   * Stores the outcome of some tries. A delivery that failed is due again after `retryMs`, unless that is later than `giveUpMs`
   * after its first try: then it has failed for good. A delivery that changed since it was tried stays as it is. Returns
   * those that were changed, as they are now.
   */
  settleDeliveries(tries: readonly DeliveryTry[], giveUpMs: number): Promise<WebhookDelivery[]>;
  /** Newest first; null: there is no such endpoint. */
  listDeliveries(endpointId: string, page: Page): Promise<WebhookDelivery[] | null>;
  /** Sends it again, now, as if it were new. A pending one becomes due at once; one that waits for an older one goes on waiting. */
  redeliver(deliveryId: string, by: Actor, auditId: string): Promise<'due' | 'gone' | 'unknown'>;
  /**
   * Tidies up some rows: ends pending deliveries of endpoints that are gone, removes those of deleted ones, and removes
   * deliveries that ended longer ago than `keptMs`. Returns how many rows it changed; 0 when nothing is left.
   */
  tidyWebhooks(keptMs: number): Promise<number>;
}

export interface NewEndpoint {
  readonly id: string;
  readonly url: string;
  readonly events: readonly WebhookEvent[];
  readonly secret: string;
  /** Who asked for it with which key, as one text; null: without a key. */
  readonly madeWith: string | null;
}

export interface WebhookEndpoint {
  readonly id: string;
  readonly url: string;
  readonly events: readonly WebhookEvent[];
  readonly secret: string;
  readonly state: 'active' | 'gone';
  /** Why it is gone. */
  readonly reason: string | null;
  readonly createdAtMs: number;
}

export type EndpointCreated =
  | { readonly outcome: 'created' | 'repeat'; readonly endpoint: WebhookEndpoint }
  /** The key was used for another endpoint, or there are as many as there may be. */
  | { readonly outcome: 'key_reused' | 'too_many' };

export interface NewDelivery {
  readonly id: string;
  readonly endpointId: string;
  readonly orderId: string;
  readonly version: number;
  readonly type: WebhookEvent;
  /** The body, byte for byte the same at every try. */
  readonly body: string;
}

export interface WebhookDelivery extends NewDelivery {
  /** Of the event: `<order id>-<version>`. */
  readonly eventId: string;
  readonly state: DeliveryState;
  readonly tries: number;
  readonly lastStatus: number | null;
  readonly lastError: string | null;
  /** Null: it has ended, or waits for an older one of its order. */
  readonly nextAtMs: number | null;
  readonly createdAtMs: number;
  readonly doneAtMs: number | null;
}

export interface DeliveryTry {
  readonly id: string;
  /** How many there had been before. */
  readonly tries: number;
  readonly delivered: boolean;
  readonly status: number | null;
  readonly error: string | null;
  readonly retryMs: number;
}
