import { backOffMs } from '../../base/back-off.ts';
import { TerminalError, unavailable } from '../../base/errors.ts';
import { KeepAlive } from '../../base/keep-alive.ts';
import type { Runtime } from '../../base/runtime.ts';
import { pause } from '../../base/timers.ts';
import type { Carrier, CarrierOptions, Delivery } from '../brokers/port.ts';
import { ORDERS } from '../orders.ts';
import type { Parcel } from '../parcel.ts';
import { nameFrom, parseAddress } from './address.ts';
import { answered, Clients, drop, isOutage, reasonOf, refusalOf } from './client.ts';
import { PartitionProducer } from './partition-producer.ts';
import { Receiver, type Side } from './receiver.ts';
import { prepareTopic } from './topic.ts';

export interface KafkaOptions extends CarrierOptions {
  /** For a topic that does not exist yet. */
  readonly partitions?: number;
  /** A worker that is silent for so long loses its partitions to others. Brokers accept 6 s and more. */
  readonly sessionMs?: number;
}

/** Parts that can be out independently. */
type Part = 'open' | Side | `send ${number}`;

const AGAIN_MS_MIN = 25;
const AGAIN_MS_MAX = 2000;
/** How many requests preparing the topic takes at most. */
const PREPARE_ANSWERS = 4;
/** Time after the last failed send: from then on the broker counts as back if it says so, even if nothing was sent since. */
const QUIET_MS = 3000;

/**
 * Carries parcels through a topic of Kafka: its partitions are the carrier's, the record key is the channel (of a sale its id), and
 * the workers are one consumer group. An offset is committed when everything before it is done, never by a timer.
 *
 * A client that has failed is thrown away and made anew, with growing delays.
 */
export class KafkaCarrier implements Carrier {
  readonly name: string;
  readonly #kind: string;
  readonly #runtime: Runtime;
  readonly #clients: Clients;
  readonly #topic: string;
  readonly #groupId: string;
  readonly #partitions: number;
  readonly #answerMs: number;
  readonly #inHandMax: number;
  readonly #sessionMs: number;
  readonly #closing = new AbortController();
  readonly #lanes = new Map<number, PartitionProducer>();
  readonly #out = new Map<Part, { readonly reason: string; readonly lastMs: number }>();
  #opening: Promise<number> | null = null;
  #isOpen = false;
  #mending: Promise<void> | null = null;
  #receiver: Receiver | null = null;
  #leaving: Promise<void> = Promise.resolve();

  constructor(options: KafkaOptions, runtime: Runtime) {
    const {
      url,
      prefix,
      kind = ORDERS.kind,
      partitions = 8,
      answerMs = 5000,
      inHandMax = 512,
      sessionMs = 10_000,
    } = options;
    this.#kind = kind;
    const address = parseAddress(url);
    const own = nameFrom(prefix);
    const isOrders = kind === ORDERS.kind;
    if (address.topic === null) this.#topic = `${own}.${kind}`;
    else this.#topic = isOrders ? address.topic : `${address.topic}.${kind}`;
    // The topic is part of the name: two shops with different topics and the same prefix must not share a group.
    this.#groupId = isOrders && address.topic === null ? `${own}-ledger` : `${own}-ledger-${this.#topic}`;
    this.name = `kafka:${this.#topic}`;
    this.#clients = new Clients(address, own);
    this.#partitions = partitions;
    this.#answerMs = answerMs;
    this.#inHandMax = inHandMax;
    this.#sessionMs = sessionMs;
    this.#runtime = runtime;
  }

  get reason(): string | null {
    for (const { reason } of this.#out.values()) return `Kafka is out: ${reason}`;
    return this.#isOpen ? null : 'Kafka is not connected yet';
  }

  open(): Promise<number> {
    this.#opening ??= this.#open();
    return this.#opening;
  }

  send(partition: number, parcels: readonly Parcel[]): Promise<void> {
    if (this.#closing.signal.aborted) return Promise.reject(unavailable('the carrier is closed'));
    return this.#laneOf(partition).send(parcels);
  }

  receive(deliver: (delivery: Delivery) => void): void {
    if (this.#receiver !== null || this.#closing.signal.aborted) return;
    this.#receiver = new Receiver(
      {
        clients: this.#clients,
        groupId: this.#groupId,
        topic: this.#topic,
        answerMs: this.#answerMs,
        sessionMs: this.#sessionMs,
        inHandMax: this.#inHandMax,
        deliver,
        failed: (side, error) => {
          this.#noteOutage(side, error);
          // The topic may be missing.
          this.#mend();
        },
        back: (side) => this.#noteBack(side),
      },
      this.#runtime,
    );
  }

  giveBack(): Promise<void> {
    const receiver = this.#receiver;
    this.#receiver = null;
    if (receiver !== null) {
      this.#leaving = receiver.stop();
      // A process that does not receive cannot know.
      this.#out.delete('group');
      this.#out.delete('read');
    }
    return this.#leaving;
  }

  async close(): Promise<void> {
    this.#closing.abort();
    for (const lane of this.#lanes.values()) lane.close();
    this.#lanes.clear();
    await this.giveBack();
  }

  #laneOf(partition: number): PartitionProducer {
    const known = this.#lanes.get(partition);
    if (known) return known;
    const lane = new PartitionProducer(
      {
        clients: this.#clients,
        topic: this.#topic,
        partition,
        answerMs: this.#answerMs,
        sent: () => this.#noteBack(`send ${partition}`),
        failed: (error) => {
          if (!isOutage(error)) return;
          this.#noteOutage(`send ${partition}`, error);
          this.#mend();
        },
      },
      this.#runtime.timers,
    );
    this.#lanes.set(partition, lane);
    return lane;
  }

  // The topic

  async #open(): Promise<number> {
    const keepAlive = new KeepAlive(this.#runtime.timers);
    // Between two tries only a timer exists, which does not keep the process alive.
    keepAlive.hold();
    try {
      return await this.#untilOpen();
    } finally {
      keepAlive.drop();
      keepAlive.close();
    }
  }

  async #untilOpen(): Promise<number> {
    const { timers } = this.#runtime;
    const { signal } = this.#closing;
    for (let failures = 0; !signal.aborted; failures++) {
      try {
        const partitions = await this.#prepare();
        this.#isOpen = true;
        this.#noteBack('open');
        return partitions;
      } catch (error) {
        if (error instanceof TerminalError) throw error;
        const refusal = refusalOf(error);
        if (refusal !== null) throw new TerminalError('bad_config', refusal);
        this.#noteOutage('open', error);
      }
      await pause(timers, backOffMs(failures, AGAIN_MS_MIN, AGAIN_MS_MAX), signal);
    }
    throw unavailable('the carrier is closed');
  }

  async #prepare(): Promise<number> {
    const answerMs = this.#answerMs;
    const admin = this.#clients.admin({ connectMs: answerMs, answerMs });
    const give = (): void => drop(admin);
    this.#closing.signal.addEventListener('abort', give);
    try {
      const prepared = prepareTopic(admin, this.#topic, this.#partitions, this.#runtime);
      return await answered(this.#runtime.timers, prepared, PREPARE_ANSWERS * answerMs);
    } catch (error) {
      this.#clients.fail(admin);
      throw error;
    } finally {
      this.#closing.signal.removeEventListener('abort', give);
      drop(admin);
    }
  }

  /** Polls until the broker is back, even if there is nothing to send. */
  #mend(): void {
    this.#mending ??= this.#lookUntilBack().finally(() => {
      this.#mending = null;
    });
  }

  async #lookUntilBack(): Promise<void> {
    const { timers, clock, log } = this.#runtime;
    const { signal } = this.#closing;
    for (let failures = 0; !signal.aborted; failures++) {
      await pause(timers, backOffMs(failures, AGAIN_MS_MIN, AGAIN_MS_MAX), signal);
      try {
        await this.#prepare();
        // Metadata may look healthy while writes fail: as long as sends are tried, their outcome counts.
        const quietMs = clock.monotonic() - QUIET_MS;
        for (const [part, { lastMs }] of this.#out) {
          if (part.startsWith('send') && lastMs < quietMs) this.#noteBack(part);
        }
        if (![...this.#out.keys()].some((part) => part.startsWith('send'))) return;
      } catch (error) {
        if (!signal.aborted) log.debug({ reason: reasonOf(error) }, 'the topic cannot be used yet');
      }
    }
  }

  #noteOutage(part: Part, error: unknown): void {
    const { log, clock } = this.#runtime;
    if (this.#closing.signal.aborted) return;
    const reason = reasonOf(error);
    if (this.#out.size === 0) log.error({ kind: this.#kind, reason, topic: this.#topic }, 'Kafka is out');
    this.#out.set(part, { reason, lastMs: clock.monotonic() });
  }

  #noteBack(part: Part): void {
    if (!this.#out.delete(part) || this.#out.size > 0 || this.#closing.signal.aborted) return;
    this.#runtime.log.info({ kind: this.#kind, topic: this.#topic }, 'Kafka is back');
  }
}
