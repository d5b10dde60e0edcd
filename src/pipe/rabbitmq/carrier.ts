import { unavailable } from '../../base/errors.ts';
import { KeepAlive } from '../../base/keep-alive.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { Carrier, CarrierOptions, Delivery } from '../brokers/port.ts';
import { ORDERS } from '../orders.ts';
import type { Parcel } from '../parcel.ts';
import { parseRabbitUrl, type RabbitAddress } from './address.ts';
import { Link, type LinkUser } from './link.ts';
import { Receiving } from './receiver.ts';
import { Sender } from './sender.ts';
import { Topology } from './topology.ts';

export interface RabbitOptions extends CarrierOptions {
  /** Partitions: at most so many workers are busy at a time. */
  readonly queues?: number;
}

/**
 * RabbitMQ, 3.8 or newer. Two connections: when the broker is short of memory or disk it stops reading from connections that
 * publish, and workers must go on receiving to relieve it.
 *
 * A worker whose process ends loses its queues at once; one that hangs, after two to three heartbeats (10 to 15 s).
 */
export class RabbitCarrier implements Carrier {
  readonly name: string;
  readonly #kind: string;
  readonly #address: RabbitAddress;
  /** Connections are named after it. */
  readonly #owner: string;
  readonly #answerMs: number;
  readonly #inHandMax: number;
  readonly #runtime: Runtime;
  readonly #keepAlive: KeepAlive;
  readonly #topology: Topology;
  readonly #sender: Sender;
  readonly #sending: Link;
  #opening: Promise<number> | null = null;
  #receiving: Receiving | null = null;
  #closing: Promise<void> | null = null;
  #isOut = false;

  constructor(options: RabbitOptions, runtime: Runtime) {
    const { url, prefix, kind = ORDERS.kind, queues = 8, answerMs = 5000, inHandMax = 512 } = options;
    this.#address = parseRabbitUrl(url);
    this.#kind = kind;
    this.#answerMs = answerMs;
    this.#inHandMax = inHandMax;
    this.#runtime = runtime;
    this.#keepAlive = new KeepAlive(runtime.timers);
    this.#topology = new Topology(prefix, kind, queues, runtime.log);
    this.#owner = kind === ORDERS.kind ? prefix : this.#topology.exchange;
    this.#sender = new Sender(this.#topology, answerMs, runtime, () => this.#changed());
    this.#sending = this.#link(this.#sender);
    // Two virtual hosts are two brokers.
    const { vhost } = this.#address;
    this.name = `amqp:${vhost === '/' ? '' : `${vhost}/`}${this.#topology.exchange}`;
  }

  #link(user: LinkUser): Link {
    return new Link(this.#address, this.#owner, this.#answerMs, this.#runtime, user);
  }

  get reason(): string | null {
    return this.#trouble ?? (this.#sending.wasUp ? null : 'RabbitMQ is not connected yet');
  }

  get #trouble(): string | null {
    return this.#sending.reason ?? this.#sender.blocked ?? this.#receiving?.reason ?? null;
  }

  open(): Promise<number> {
    this.#opening ??= this.#open();
    return this.#opening;
  }

  async #open(): Promise<number> {
    if (this.#closing !== null) throw unavailable('RabbitMQ is closed');
    // Between two tries only a timer exists, which does not keep the process alive.
    this.#keepAlive.hold();
    try {
      await this.#sending.open();
    } finally {
      this.#keepAlive.drop();
    }
    return this.#topology.queues.length;
  }

  async send(partition: number, parcels: readonly Parcel[]): Promise<void> {
    try {
      await this.#sender.send(partition, parcels);
    } catch (error) {
      throw this.#sending.reason === null ? error : unavailable(this.#sending.reason, error);
    }
  }

  receive(deliver: (delivery: Delivery) => void): void {
    if (this.#receiving !== null || this.#closing !== null) return;
    this.#receiving = new Receiving({
      topology: this.#topology,
      inHandMax: this.#inHandMax,
      timers: this.#runtime.timers,
      link: (user) => this.#link(user),
      deliver,
      changed: () => this.#changed(),
    });
  }

  async giveBack(): Promise<void> {
    const receiving = this.#receiving;
    this.#receiving = null;
    await receiving?.stop();
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    await Promise.all([this.giveBack(), this.#sending.close()]);
    this.#keepAlive.close();
  }

  /** Logged once per outage, not per try. */
  #changed(): void {
    if (this.#closing !== null) return;
    const { log } = this.#runtime;
    const kind = this.#kind;
    const reason = this.#trouble;
    if (reason !== null && !this.#isOut) log.error({ kind, reason }, 'RabbitMQ is out');
    if (reason === null && this.#isOut) log.info({ kind }, 'RabbitMQ is back');
    this.#isOut = reason !== null;
  }
}
