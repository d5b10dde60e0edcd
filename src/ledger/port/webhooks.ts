import type { Actor } from '../../model/actor.ts';
import type { DeliveryState, WebhookEvent } from '../../model/webhook.ts';
import type { Page } from './page.ts';

/**
 * The ledger's part in webhooks: who subscribed to what, and what each has yet to be told. Every method is one transaction;
 * times are the ledger's own clock.
 *
 * An event leaves the outbox in the transaction that makes its deliveries: whoever dies between two steps has lost nothing
 * and doubled nothing. Of one endpoint and one order at most one delivery is due, the oldest that is pending: the next one
 * becomes due with its end.
 */
export interface WebhookLedger {
  /** With the same `madeWith` again: what was made then, for as long as a key stays bound. */
  createEndpoint(endpoint: NewEndpoint, by: Actor, auditId: string): Promise<EndpointCreated>;
  /** Newest first; those that are gone, too. */
  listEndpoints(page: Page): Promise<WebhookEndpoint[]>;
  getEndpoint(endpointId: string): Promise<WebhookEndpoint | null>;
  activeEndpoints(): Promise<WebhookEndpoint[]>;
  /** Nothing is sent to it any more. False: there is none. */
  deleteEndpoint(endpointId: string, by: Actor, auditId: string): Promise<boolean>;
  /** It wants nothing any more; it stays in the list. False: it was not active. */
  endpointGone(endpointId: string, reason: string, by: Actor, auditId: string): Promise<boolean>;

  /**
   * Makes deliveries of events and forgets the events. An event that is not there (somebody else was quicker) gets none, and
   * so does an endpoint that is not active. Deliveries of one order stand in the order of their versions. Returns how many
   * events were forgotten.
   */
  takeOverEvents(eventIds: readonly string[], deliveries: readonly NewDelivery[]): Promise<number>;
  /** Of each endpoint the longest due, at most `limit`. */
  dueDeliveries(wanted: readonly { readonly endpointId: string; readonly limit: number }[]): Promise<WebhookDelivery[]>;
  /**
   * What became of some tries. One that failed is due again after `retryMs`, unless that is later than `giveUpMs` after its
   * first: then it has failed for good. What is not as it was when it was tried stays as it is. Returns those that were
   * changed, as they are now.
   */
  settleDeliveries(tries: readonly DeliveryTry[], giveUpMs: number): Promise<WebhookDelivery[]>;
  /** Newest first; null: there is no such endpoint. */
  listDeliveries(endpointId: string, page: Page): Promise<WebhookDelivery[] | null>;
  /** Once more, now, as if it were new. One that is pending is only hurried on; one that waits for an older one goes on waiting. */
  redeliver(deliveryId: string, by: Actor, auditId: string): Promise<'due' | 'gone' | 'unknown'>;
  /**
   * Does some of what is left to do: ends what is pending of endpoints that are gone, removes what was of deleted ones, and
   * deliveries that ended longer ago than `keptMs`. Returns how many rows it was; 0 when nothing is left.
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
  /** The key was used for another one; or there are as many as there may be. */
  | { readonly outcome: 'key_reused' | 'too_many' };

export interface NewDelivery {
  readonly id: string;
  readonly endpointId: string;
  readonly orderId: string;
  readonly version: number;
  readonly type: WebhookEvent;
  /** What is sent, to the letter: the same at every try. */
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
