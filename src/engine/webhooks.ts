import { messageOf } from '../base/errors.ts';
import type { IdSequence } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { Seldom } from '../base/seldom.ts';
import { oneAtATime, within } from '../base/timers.ts';
import type { Ledger } from '../ledger/port.ts';
import type { Metrics } from '../observe/metrics.ts';
import { presentOffer } from '../views/present.ts';
import type { OrderView } from '../views/seat-names.ts';
import { DISPATCHER_DEFAULTS, Dispatcher, type DispatcherOptions } from '../webhooks/dispatcher.ts';
import { Endpoints } from '../webhooks/endpoints.ts';
import { Sender } from '../webhooks/sender.ts';
import { type Resolve, systemResolve } from '../webhooks/target.ts';

export interface WebhookOptions extends Partial<DispatcherOptions> {
  /** Endpoints may be at addresses that are not of the public Internet. */
  readonly allowPrivate: boolean;
  /** How long an endpoint has to answer. */
  readonly timeoutMs?: number;
  /** How a host's addresses are found; the system's way if left out. */
  readonly resolve?: Resolve;
}

export interface ShopWebhooksParts {
  readonly runtime: Runtime;
  readonly ledger: Ledger;
  readonly metrics: Pick<Metrics, 'webhookTry'>;
  readonly endpointIds: IdSequence;
  readonly deliveryIds: IdSequence;
  readonly auditIds: IdSequence;
  readonly options: WebhookOptions;
  readonly view: Pick<OrderView, 'show'>;
  /** Runs `work` in one process of the cluster at a time; `alone`: there is no other. */
  lead(work: (signal: AbortSignal, alone: boolean) => Promise<void>): { stop(): Promise<void> };
}

export const NO_PRIVATE_WEBHOOKS: WebhookOptions = { allowPrivate: false };

const TIMEOUT_MS = 10_000;
/** In every process: events are written for an endpoint that was made elsewhere after this time at the latest. */
const LOOK_EVERY_MS = 500;
const STOP_MS_MAX = 3000;

/**
 * The webhooks of a shop, wired:
 *
 *     an order is stored or moved, in any process ══▶ outbox (while there is an endpoint: every process looks)
 *     dispatcher (one process leads) ──▶ deliveries ──▶ sender ──▶ the shop's own systems
 */
export class ShopWebhooks {
  readonly endpoints: Endpoints;
  readonly #parts: ShopWebhooksParts;
  readonly #sender: Sender;
  readonly #seldom: Seldom;
  #leader: { stop(): Promise<void> } | null = null;
  #stopLooking: () => void = () => undefined;
  #looks = 0;
  #seen = 0;

  constructor(parts: ShopWebhooksParts) {
    const { runtime, ledger, endpointIds, auditIds, options } = parts;
    const { allowPrivate, resolve = systemResolve, timeoutMs = TIMEOUT_MS } = options;
    this.#parts = parts;
    this.#seldom = new Seldom(runtime.clock);
    this.#sender = new Sender(runtime, { resolve, allowPrivate, timeoutMs });
    this.endpoints = new Endpoints({
      runtime,
      ledger: ledger.webhooks,
      endpointIds,
      auditIds,
      resolve,
      allowPrivate,
      changed: () => this.#look(),
    });
  }

  /** Before the first order is stored or moved here: from then on its events are written if anybody wants them. */
  async open(): Promise<void> {
    const { runtime, ledger } = this.#parts;
    // Until it is known: an event that nobody wants is thrown away, one that was not written is lost.
    ledger.keepEvents = true;
    await this.#look();
    this.#stopLooking = runtime.timers.every(
      LOOK_EVERY_MS,
      oneAtATime(() => this.#look()),
    );
  }

  async #look(): Promise<void> {
    const { runtime, ledger } = this.#parts;
    const look = ++this.#looks;
    try {
      const active = await ledger.webhooks.activeEndpoints();
      // A look that began earlier and took longer is outdated.
      if (look < this.#seen) return;
      this.#seen = look;
      ledger.keepEvents = active.length > 0;
    } catch (error) {
      // It stays as it was: without the ledger nothing is written anyway.
      runtime.log.debug({ reason: messageOf(error) }, 'webhook endpoints cannot be read');
    }
  }

  /** From now on this process delivers whenever it leads. */
  start(): void {
    this.#leader = this.#parts.lead((signal, alone) => this.#dispatcher().run(signal, !alone));
  }

  #dispatcher(): Dispatcher {
    const { runtime, ledger, metrics, deliveryIds, auditIds, options, view } = this.#parts;
    const sender = this.#sender;
    return new Dispatcher(
      {
        runtime,
        ledger,
        sender,
        deliveryIds,
        auditIds,
        present: (order, attempt) => view.show(order, attempt),
        presentOffer,
        told: (outcome) => metrics.webhookTry(outcome),
        seldom: this.#seldom,
      },
      { ...DISPATCHER_DEFAULTS, ...options },
    );
  }

  async stop(): Promise<void> {
    this.#stopLooking();
    // Whatever hangs: its lease ends by itself, and what is not settled is sent again.
    if (this.#leader !== null) await within(this.#parts.runtime.timers, this.#leader.stop(), STOP_MS_MAX);
    this.#sender.close();
  }
}
