import { messageOf } from '../../base/errors.ts';
import type { KeepAlive } from '../../base/keep-alive.ts';
import type { RedisTarget } from '../../base/redis/address.ts';
import { Layout } from '../../base/redis/layout.ts';
import { RedisLink } from '../../base/redis/link.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { OrderRecord } from '../../model/order.ts';
import type { RejectReason } from '../../model/outcome.ts';
import type { Decision } from '../pending-decisions.ts';

export interface DecisionChannelOptions {
  readonly target: RedisTarget;
  readonly prefix: string;
  /** This process, as the messages of orders that it admitted name it. */
  readonly process: string;
  readonly commandMs: number;
  readonly keepAlive: KeepAlive;
}

/** As long as an order's key is kept. */
const TICKET_SECONDS = 24 * 3600;
const LISTEN_RETRY_MS = 500;

/**
 * What processes tell each other about orders, beside the pipe: decisions, sent to the process that waits for them, and
 * tickets, by which any process finds an order that was answered as queued. Both may be lost: without its decision a 201
 * becomes a 202, and without its ticket other processes do not know a queued order until it is decided.
 */
export class DecisionChannel {
  readonly #link: RedisLink;
  readonly #runtime: Runtime;
  readonly #layout: Layout;
  readonly #channel: string;
  #closed = false;

  constructor(options: DecisionChannelOptions, runtime: Runtime, hear: (orderId: string, decision: Decision) => void) {
    this.#runtime = runtime;
    this.#layout = new Layout(options.prefix);
    this.#channel = this.#layout.acks(options.process);
    this.#link = new RedisLink(
      options.target,
      { commandMs: options.commandMs, broadcast: true },
      runtime,
      options.keepAlive,
      {
        message: (_, message) => {
          for (const line of message.split('\n')) {
            const [orderId, reason, createdAtMs, expiresAtMs] = line.split(' ') as [string, string, string, string];
            hear(orderId, {
              status: reason === '-' ? 'reserved' : 'rejected',
              reason: reason === '-' ? null : (reason as RejectReason),
              createdAtMs: Number(createdAtMs),
              expiresAtMs: expiresAtMs === '-' ? null : Number(expiresAtMs),
            });
          }
        },
        interrupted: () => undefined,
      },
    );
  }

  /** Begins to hear decisions. Resolves when they reach us; if Redis cannot be reached, at once, and tries again later. */
  async listen(): Promise<void> {
    try {
      await this.#link.listen(this.#channel);
    } catch (error) {
      if (this.#closed) return;
      this.#runtime.log.debug({ reason: messageOf(error) }, 'cannot listen for decisions yet');
      this.#runtime.timers.after(LISTEN_RETRY_MS, () => void this.listen());
    }
  }

  /** Tells the process that admitted these orders what became of them. Never fails: a process that is not told looks itself. */
  async tell(process: string, orders: readonly OrderRecord[]): Promise<void> {
    const lines = orders.map(({ id, reason, createdAtMs, expiresAtMs }) =>
      [id, reason ?? '-', createdAtMs, expiresAtMs ?? '-'].join(' '),
    );
    try {
      await this.#link.call('PUBLISH', [this.#layout.acks(process), lines.join('\n')]);
    } catch (error) {
      this.#runtime.log.debug({ reason: messageOf(error), process }, 'decisions could not be told');
    }
  }

  async writeTicket(orderId: string, saleId: string, buyer: string): Promise<void> {
    try {
      await this.#link.call('SET', [this.#layout.ticket(orderId), `${saleId}\n${buyer}`, 'EX', TICKET_SECONDS]);
    } catch (error) {
      this.#runtime.log.debug({ reason: messageOf(error), orderId }, 'a ticket could not be written');
    }
  }

  async readTicket(orderId: string): Promise<{ saleId: string; buyer: string } | null> {
    const ticket = await this.#link.call('GET', [this.#layout.ticket(orderId)]);
    if (typeof ticket !== 'string') return null;
    const at = ticket.indexOf('\n');
    return { saleId: ticket.slice(0, at), buyer: ticket.slice(at + 1) };
  }

  close(): void {
    this.#closed = true;
    this.#link.close();
  }
}
