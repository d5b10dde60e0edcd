import { setMaxListeners } from 'node:events';
import { backOffMs } from '../base/back-off.ts';
import { messageOf } from '../base/errors.ts';
import type { IdSequence } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Seldom } from '../base/seldom.ts';
import { type Round, sweep, turn } from '../base/sweep.ts';
import { pause, within } from '../base/timers.ts';
import type {
  DeliveryTry,
  Ledger,
  NewDelivery,
  OutgoingEvent,
  WebhookDelivery,
  WebhookEndpoint,
} from '../ledger/port.ts';
import { actor } from '../model/actor.ts';
import type { OrderRecord } from '../model/order.ts';
import type { PaymentAttempt } from '../model/payment.ts';
import type { SaleRecord } from '../model/sale.ts';
import { isDelivered, type Sender, type Sent } from './sender.ts';

export interface DispatcherDependencies {
  readonly runtime: Runtime;
  readonly ledger: Pick<Ledger, 'webhooks' | 'outgoingEvents' | 'lastAttempts' | 'getSale'>;
  readonly sender: Pick<Sender, 'send'>;
  readonly deliveryIds: Pick<IdSequence, 'next'>;
  readonly auditIds: Pick<IdSequence, 'next'>;
  /** The order as the API shows it, or a promise of that. */
  present(order: OrderRecord, attempt: PaymentAttempt | null): unknown;
  /** What it is an order for. */
  presentOffer(sale: SaleRecord, itemCode: string): object;
  told(outcome: 'delivered' | 'retried' | 'failed'): void;
  /** Shared by all dispatchers of the process, because each one leads only for a while. */
  readonly seldom: Seldom;
}

export interface DispatcherOptions {
  /** The pause after the first failure. It doubles each time, up to retryMsMax. */
  readonly retryMsMin: number;
  readonly retryMsMax: number;
  /** Counted from the first attempt of a delivery. */
  readonly giveUpMs: number;
  /** How long a finished delivery can be listed and sent again. */
  readonly keptMs: number;
  /** How often it looks for new events and due deliveries. */
  readonly pollMs: number;
}

const DAY_MS = 24 * 3600 * 1000;

export const DISPATCHER_DEFAULTS: DispatcherOptions = {
  retryMsMin: 5000,
  retryMsMax: 3600 * 1000,
  giveUpMs: 3 * DAY_MS,
  keptMs: 7 * DAY_MS,
  pollMs: 250,
};

const DISPATCHER = actor('system', 'webhooks');
/** Events per transaction. */
const TAKE_MAX = 200;
/** Concurrent deliveries per endpoint: a slow endpoint does not hold up the others. */
const AT_ONCE = 8;
/** After this many failures in a row, deliveries go one at a time until one succeeds, to spare an endpoint that is down. */
const FAILURES_CAREFUL = 3;
/** Deliveries read ahead per endpoint, so that a fast endpoint does not wait for the ledger. */
const AHEAD = 64;
const SETTLED_MAX = 500;
/** Deliveries that end within this time are stored together. */
const GATHER_MS = 20;
const TIDY_EVERY_MS = 60_000;
/** How long it waits for running requests when it stops. */
const END_MS_MAX = 2000;
const FAILURES_MAX = 5;
const FAILED_MS_MAX = 2000;

/**
 * Sends order events to endpoints: each at least once, and those of one order in sequence.
 *
 *     outbox ══▶ deliveries ──▶ lanes (one an endpoint) ──▶ HTTP ──▶ settled together ══▶ deliveries
 *
 * One process of the cluster does this at a time. Its memory is only a copy: its successor finds due deliveries in the ledger,
 * and sends again those that were not settled. Two processes at once would send twice, and settle once.
 */
export class Dispatcher {
  readonly #on: DispatcherDependencies;
  readonly #options: DispatcherOptions;
  readonly #lanes = new Map<string, EndpointQueue>();
  /** Ids of deliveries that are read ahead, running or not yet settled. */
  readonly #known = new Set<string>();
  readonly #sending = new Set<Promise<void>>();
  readonly #tried: DeliveryTry[] = [];
  /** Endpoints that answered 410, with the reason. */
  readonly #gone = new Map<string, string>();
  readonly #cut = new AbortController();
  #ending = false;
  #tidiedMs = -Infinity;
  #wake: () => void = () => undefined;

  constructor(dependencies: DispatcherDependencies, options: DispatcherOptions) {
    this.#on = dependencies;
    this.#options = options;
    // Every running request listens to it.
    setMaxListeners(0, this.#cut.signal);
  }

  /**
   * Runs until the signal. `mayThrow`: throw after repeated failures, because another process may succeed. Call it once per
   * object: it knows only the deliveries that it has read itself.
   */
  async run(signal: AbortSignal, mayThrow: boolean): Promise<void> {
    const { seldom } = this.#on;
    const { timers, log } = this.#on.runtime;
    const { pollMs } = this.#options;
    try {
      await sweep(timers, () => this.#round(), {
        signal,
        pauseMs: pollMs,
        pauseMsMax: Math.max(pollMs, FAILED_MS_MAX),
        ...(mayThrow && { failuresMax: FAILURES_MAX }),
        failed: (error) => {
          const reason = messageOf(error);
          if (seldom.may(reason)) log.warn({ reason }, 'webhooks could not be read or stored; retrying');
        },
        rest: () => this.#rest(signal),
      });
    } finally {
      await this.#end();
    }
  }

  /** Waits until a delivery has ended or it is time to look again. */
  async #rest(signal: AbortSignal): Promise<void> {
    const { timers } = this.#on.runtime;
    if (this.#tried.length === 0) {
      const woken = new AbortController();
      this.#wake = () => woken.abort();
      await pause(timers, this.#options.pollMs, signal, woken.signal);
    }
    if (this.#tried.length > 0) await pause(timers, GATHER_MS, signal);
  }

  async #round(): Promise<Round> {
    const { ledger, runtime } = this.#on;
    await this.#settle();
    const taken = await this.#takeOver();
    this.#arrange(await ledger.webhooks.activeEndpoints());
    const wanted = [...this.#lanes.values()]
      .filter(({ ahead }) => ahead.length < AT_ONCE)
      .map(({ endpoint, ahead, sending }) => {
        // The ledger still counts the known deliveries as due, and returns them first.
        return { endpointId: endpoint.id, limit: AHEAD + ahead.length + sending + this.#tried.length };
      });
    for (const delivery of await ledger.webhooks.dueDeliveries(wanted)) {
      // The endpoint may have answered 410 meanwhile.
      const lane = this.#lanes.get(delivery.endpointId);
      if (lane === undefined || this.#known.has(delivery.id)) continue;
      this.#known.add(delivery.id);
      lane.ahead.push(delivery);
    }
    for (const lane of this.#lanes.values()) this.#fill(lane);
    if (runtime.clock.monotonic() - this.#tidiedMs >= TIDY_EVERY_MS) {
      const changed = await ledger.webhooks.tidyWebhooks(this.#options.keptMs);
      if (changed > 0) return { changed, more: true };
      this.#tidiedMs = runtime.clock.monotonic();
    }
    return taken;
  }

  // From the outbox

  async #takeOver(): Promise<Round> {
    const { ledger, deliveryIds } = this.#on;
    const events = await ledger.outgoingEvents(TAKE_MAX);
    if (events.length === 0) return { changed: 0, more: false };
    // Read after the events: an endpoint exists before the first event that it must get.
    const endpoints = await ledger.webhooks.activeEndpoints();
    const wanted = events.flatMap((event) => {
      const wants = endpoints.filter((endpoint) => wantsEvent(endpoint, event));
      return wants.length === 0 ? [] : [{ event, endpoints: wants }];
    });
    const attempts = await ledger.lastAttempts([...new Set(wanted.map(({ event }) => event.orderId))]);
    const deliveries: NewDelivery[] = [];
    // As it reads now, for all tries.
    const sales = new Map<string, SaleRecord | null>();
    for (const { event, endpoints: tell } of wanted) {
      const { orderId, version, type } = event;
      const order = JSON.parse(event.body) as OrderRecord;
      const { saleId } = order;
      if (!sales.has(saleId)) sales.set(saleId, await ledger.getSale(saleId));
      const body = await this.#bodyOf(event, order, attempts.get(orderId) ?? null, sales.get(saleId) ?? null);
      for (const { id: endpointId } of tell) {
        deliveries.push({ id: await deliveryIds.next(), endpointId, orderId, version, type, body });
      }
    }
    const changed = await ledger.webhooks.takeOverEvents(
      events.map(({ id }) => id),
      deliveries,
    );
    return { changed, more: events.length === TAKE_MAX };
  }

  async #bodyOf(
    { id, type, atMs }: OutgoingEvent,
    order: OrderRecord,
    attempt: PaymentAttempt | null,
    sale: SaleRecord | null,
  ): Promise<string> {
    const { present, presentOffer } = this.#on;
    const shown = await present(order, attemptThen(type, order, attempt));
    const offer = sale && presentOffer(sale, order.itemCode);
    return JSON.stringify({ id, type, at: new Date(atMs).toISOString(), order: shown, ...offer });
  }

  // To the endpoints

  #arrange(endpoints: readonly WebhookEndpoint[]): void {
    const active = new Map(endpoints.map((endpoint) => [endpoint.id, endpoint]));
    for (const lane of this.#lanes.values()) if (!active.has(lane.endpoint.id)) this.#drop(lane);
    for (const [id, endpoint] of active) {
      if (!this.#lanes.has(id) && !this.#gone.has(id)) {
        this.#lanes.set(id, { endpoint, ahead: [], sending: 0, failures: 0 });
      }
    }
  }

  #drop({ endpoint, ahead }: EndpointQueue): void {
    this.#lanes.delete(endpoint.id);
    for (const { id } of ahead.splice(0)) this.#known.delete(id);
  }

  #fill(lane: EndpointQueue): void {
    while (!this.#ending && lane.sending < (lane.failures < FAILURES_CAREFUL ? AT_ONCE : 1)) {
      const delivery = lane.ahead.shift();
      if (delivery === undefined) return;
      lane.sending++;
      const sending = this.#send(lane, delivery).finally(() => {
        lane.sending--;
        this.#sending.delete(sending);
        this.#fill(lane);
        this.#wake();
      });
      this.#sending.add(sending);
    }
  }

  async #send(lane: EndpointQueue, { id, tries, body }: WebhookDelivery): Promise<void> {
    const { endpoint } = lane;
    const { giveUpMs } = this.#options;
    let sent: Sent;
    try {
      sent = await this.#on.sender.send(endpoint.url, endpoint.secret, body, this.#cut.signal);
    } catch (error) {
      sent = { status: null, error: messageOf(error) };
    }
    // Our successor will send it again.
    if (this.#cut.signal.aborted) return;
    const { status, error } = sent;
    const delivered = isDelivered(sent);
    lane.failures = delivered ? 0 : lane.failures + 1;
    if (status === 410) {
      this.#gone.set(endpoint.id, 'the endpoint answered 410 Gone');
      this.#drop(lane);
    }
    const retryMs = status === 410 ? giveUpMs + 1 : this.#retryMs(tries);
    this.#tried.push({ id, tries, delivered, status, error, retryMs });
  }

  /** With jitter: deliveries that failed together must not all be retried together. */
  #retryMs(tries: number): number {
    const { retryMsMin, retryMsMax } = this.#options;
    return Math.round(backOffMs(tries, retryMsMin, retryMsMax) * (0.75 + this.#on.runtime.random.fraction() / 2));
  }

  // Back into the ledger

  async #settle(): Promise<void> {
    const { ledger, told, runtime, auditIds } = this.#on;
    for (const [endpointId, reason] of this.#gone) {
      if (await ledger.webhooks.endpointGone(endpointId, reason, DISPATCHER, await auditIds.next())) {
        runtime.log.warn({ endpointId, reason }, 'a webhook endpoint answered 410 Gone: nothing more is sent to it');
      }
      this.#gone.delete(endpointId);
      // Its pending deliveries have failed: tidy up now.
      this.#tidiedMs = -Infinity;
    }
    while (this.#tried.length > 0) {
      const some = this.#tried.slice(0, SETTLED_MAX);
      const settled = await ledger.webhooks.settleDeliveries(some, this.#options.giveUpMs);
      this.#tried.splice(0, some.length);
      for (const { id } of some) this.#known.delete(id);
      for (const delivery of settled) {
        told(delivery.state === 'pending' ? 'retried' : delivery.state);
        if (delivery.state === 'failed' && delivery.lastStatus !== 410) this.#alert(delivery);
      }
      if (this.#tried.length > 0) await turn(runtime.timers);
    }
  }

  #alert({ id: deliveryId, endpointId, eventId, tries, lastStatus, lastError }: WebhookDelivery): void {
    this.#on.runtime.log.error(
      { deliveryId, endpointId, eventId, tries, lastStatus, lastError },
      'a webhook was not delivered and is given up: an admin can redeliver it',
    );
  }

  async #end(): Promise<void> {
    const { timers, log } = this.#on.runtime;
    this.#ending = true;
    await within(timers, Promise.all(this.#sending), END_MS_MAX);
    this.#cut.abort();
    // An unsettled delivery is sent again: at least once.
    await this.#settle().catch((error: unknown) => {
      log.debug({ err: error }, 'webhooks that were sent last could not be settled');
    });
  }
}

/** The deliveries of one endpoint. */
interface EndpointQueue {
  readonly endpoint: WebhookEndpoint;
  /** Due deliveries that were read ahead. */
  readonly ahead: WebhookDelivery[];
  sending: number;
  /** In a row. */
  failures: number;
}

/** An endpoint does not get events from before it was created. */
function wantsEvent({ events, createdAtMs }: WebhookEndpoint, { type, atMs }: OutgoingEvent): boolean {
  return events.includes(type) && atMs >= createdAtMs;
}

/** The payment as it was at the time of the event, as far as it can be told: it may have changed since. */
function attemptThen(
  type: OutgoingEvent['type'],
  { status }: OrderRecord,
  attempt: PaymentAttempt | null,
): PaymentAttempt | null {
  if (attempt === null || status === 'reserved') return null;
  // `refunded` only grows. The event of a partial refund may already include the next one; that of the payment includes none.
  if (type === 'order.paid') return { ...attempt, state: 'captured', refunded: 0 };
  if (status === 'paid') return { ...attempt, state: 'captured' };
  return status === 'refunded' ? { ...attempt, state: 'refunded' } : attempt;
}
