import type { Actor } from '../model/actor.ts';
import type { Page } from './port/page.ts';
import type {
  DeliveryTry,
  EndpointCreated,
  NewDelivery,
  NewEndpoint,
  WebhookDelivery,
  WebhookEndpoint,
  WebhookLedger,
} from './port/webhooks.ts';
import * as webhooks from './works/webhooks.ts';
import type { LifeDialect, Work } from './works/work.ts';

/** How a ledger does work: in one transaction, or reading only. */
export interface Doing {
  readonly dialect: LifeDialect;
  change<T>(work: () => Work<T>): Promise<T>;
  look<T>(work: () => Work<T>): Promise<T>;
}

export class WebhookBook implements WebhookLedger {
  readonly #on: Doing;

  constructor(doing: Doing) {
    this.#on = doing;
  }

  createEndpoint(endpoint: NewEndpoint, by: Actor, auditId: string): Promise<EndpointCreated> {
    return this.#on.change(() => webhooks.createEndpoint(endpoint, by, auditId, this.#on.dialect));
  }

  listEndpoints(page: Page): Promise<WebhookEndpoint[]> {
    return this.#on.look(() => webhooks.listEndpoints(page));
  }

  getEndpoint(endpointId: string): Promise<WebhookEndpoint | null> {
    return this.#on.look(() => webhooks.getEndpoint(endpointId));
  }

  activeEndpoints(): Promise<WebhookEndpoint[]> {
    return this.#on.look(() => webhooks.activeEndpoints());
  }

  deleteEndpoint(endpointId: string, by: Actor, auditId: string): Promise<boolean> {
    return this.#on.change(() => webhooks.deleteEndpoint(endpointId, by, auditId, this.#on.dialect));
  }

  endpointGone(endpointId: string, reason: string, by: Actor, auditId: string): Promise<boolean> {
    return this.#on.change(() => webhooks.endpointGone(endpointId, reason, by, auditId, this.#on.dialect));
  }

  takeOverEvents(eventIds: readonly string[], deliveries: readonly NewDelivery[]): Promise<number> {
    return this.#on.change(() => webhooks.takeOverEvents(eventIds, deliveries, this.#on.dialect));
  }

  dueDeliveries(
    wanted: readonly { readonly endpointId: string; readonly limit: number }[],
  ): Promise<WebhookDelivery[]> {
    return this.#on.look(() => webhooks.dueDeliveries(wanted));
  }

  settleDeliveries(tries: readonly DeliveryTry[], giveUpMs: number): Promise<WebhookDelivery[]> {
    return this.#on.change(() => webhooks.settleDeliveries(tries, giveUpMs, this.#on.dialect));
  }

  listDeliveries(endpointId: string, page: Page): Promise<WebhookDelivery[] | null> {
    return this.#on.look(() => webhooks.listDeliveries(endpointId, page));
  }

  redeliver(deliveryId: string, by: Actor, auditId: string): Promise<'due' | 'gone' | 'unknown'> {
    return this.#on.change(() => webhooks.redeliver(deliveryId, by, auditId, this.#on.dialect));
  }

  tidyWebhooks(keptMs: number): Promise<number> {
    return this.#on.change(() => webhooks.tidyWebhooks(keptMs));
  }
}
