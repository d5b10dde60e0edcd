import type { IdSequence } from '../base/ids.ts';
import { isId } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { within } from '../base/timers.ts';
import type { Actor, Page, WebhookDelivery, WebhookEndpoint, WebhookLedger } from '../ledger/port.ts';
import { WEBHOOK_BOUNDS, WEBHOOK_EVENTS, type WebhookEvent } from '../model/webhook.ts';
import { type Resolve, targetOf } from './target.ts';

export interface EndpointsDependencies {
  readonly runtime: Runtime;
  readonly ledger: WebhookLedger;
  readonly endpointIds: Pick<IdSequence, 'next'>;
  readonly auditIds: Pick<IdSequence, 'next'>;
  readonly resolve: Resolve;
  readonly allowPrivate: boolean;
  /** Called after an endpoint was created or deleted. */
  changed(): Promise<void>;
}

export type EndpointResult =
  | { readonly ok: true; readonly endpoint: WebhookEndpoint }
  | { readonly ok: false; readonly code: 'invalid_request'; readonly message: string }
  | { readonly ok: false; readonly code: 'idempotency_key_reused' };

const RESOLVE_MS_MAX = 5000;
const SECRET_BYTES = 32;

/** Manages webhook endpoints for admins. */
export class Endpoints {
  readonly #on: EndpointsDependencies;

  constructor(dependencies: EndpointsDependencies) {
    this.#on = dependencies;
  }

  /** `madeWith`: identifies the call by its Idempotency-Key and caller; null without a key. */
  async create(
    { url, events }: { readonly url: string; readonly events: readonly WebhookEvent[] },
    by: Actor,
    madeWith: string | null,
  ): Promise<EndpointResult> {
    const { runtime, ledger, endpointIds, auditIds, resolve, allowPrivate } = this.#on;
    const target = await within(runtime.timers, targetOf(url, resolve, allowPrivate), RESOLVE_MS_MAX);
    if (target === null) return refused(`its host was not resolved within ${RESOLVE_MS_MAX / 1000} s`);
    if (!target.ok) return refused(target.reason);
    const made = await ledger.createEndpoint(
      {
        id: await endpointIds.next(),
        url: new URL(url).href,
        events: WEBHOOK_EVENTS.filter((event) => events.includes(event)),
        secret: `whsec_${runtime.random.secret(SECRET_BYTES)}`,
        madeWith,
      },
      by,
      await auditIds.next(),
    );
    switch (made.outcome) {
      case 'key_reused':
        return { ok: false, code: 'idempotency_key_reused' };
      case 'too_many':
        return refused(`there are ${WEBHOOK_BOUNDS.endpointsMax} endpoints already: delete one first`);
      default:
        await this.#on.changed();
        return { ok: true, endpoint: made.endpoint };
    }
  }

  list(page: Page): Promise<WebhookEndpoint[]> {
    return this.#on.ledger.listEndpoints(page);
  }

  async delete(endpointId: string, by: Actor): Promise<boolean> {
    const { ledger, auditIds } = this.#on;
    if (!isId(endpointId) || !(await ledger.deleteEndpoint(endpointId, by, await auditIds.next()))) return false;
    await this.#on.changed();
    return true;
  }

  /** Null: there is no such endpoint. */
  async deliveries(endpointId: string, page: Page): Promise<WebhookDelivery[] | null> {
    return isId(endpointId) ? await this.#on.ledger.listDeliveries(endpointId, page) : null;
  }

  async redeliver(deliveryId: string, by: Actor): Promise<'due' | 'gone' | 'unknown'> {
    const { ledger, auditIds } = this.#on;
    return isId(deliveryId) ? await ledger.redeliver(deliveryId, by, await auditIds.next()) : 'unknown';
  }
}

function refused(message: string): EndpointResult {
  return { ok: false, code: 'invalid_request', message };
}
