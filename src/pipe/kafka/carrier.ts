import { Anchor } from '../../base/anchor.ts';
import { backOffMs } from '../../base/back-off.ts';
import { TerminalError, unavailable } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { pause } from '../../base/timers.ts';
import type { Carrier, CarrierOptions, Delivery } from '../brokers/port.ts';
import type { Parcel } from '../parcel.ts';
import { nameFrom, parseAddress } from './address.ts';
import { answered, Clients, drop, isOutage, reasonOf, refusalOf } from './client.ts';
import { Lane } from './lane.ts';
import { Receiver, type Side } from './receiver.ts';
import { prepareTopic } from './topic.ts';

export interface KafkaOptions extends CarrierOptions {
  /** Of a topic that is not there yet. */
  readonly partitions?: number;
  /** A worker that is not heard of for so long has lost its partitions to others. Brokers take 6 s and more. */
  readonly sessionMs?: number;
}

/** What may be out while others are not. */
type Part = 'open' | Side | `send ${number}`;

const AGAIN_MS_MIN = 25;
const AGAIN_MS_MAX = 2000;
/** Requests that it takes to prepare the topic, at most. */
const PREPARE_ANSWERS = 4;
/** After the last failure to send: then the broker is in, if it says so, though nothing has been sent since. */
const QUIET_MS = 3000;

/**
 * Carries parcels through a topic of Kafka: its partitions are ours, the key is the sale, and the workers are one consumer
 * group. Offsets are committed when all before them are done, and never by the clock.
 *
 * Nothing of the library outlives a failure: what has failed is thrown away and made anew, later and later.
 */
export class KafkaCarrier implements Carrier {
  readonly name: string;
  readonly #runtime: Runtime;
  readonly #clients: Clients;
  readonly #topic: string;
  readonly #groupId: string;
  readonly #partitions: number;
  readonly #answerMs: number;
  readonly #inHandMax: number;
  readonly #sessionMs: number;
  readonly #closing = new AbortController();
  readonly #lanes = new Map<number, Lane>();
  readonly #out = new Map<Part, { readonly reason: string; readonly lastMs: number }>();
  #opening: Promise<number> | null = null;
  #isOpen = false;
  #mending: Promise<void> | null = null;
  #receiver: Receiver | null = null;
  #leaving: Promise<void> = Promise.resolve();

  constructor(options: KafkaOptions, runtime: Runtime) {
    const { url, prefix, partitions = 8, answerMs = 5000, inHandMax = 512, sessionMs = 10_000 } = options;
    const address = parseAddress(url);
    const own = nameFrom(prefix);
    this.#topic = address.topic ?? `${own}.orders`;
    // Two shops that were given different topics and the same prefix are not one group.
    this.#groupId = address.topic === null ? `${own}-ledger` : `${own}-ledger-${address.topic}`;
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
          // The topic may be what is not there.
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
      // Whoever does not receive cannot tell.
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

  #laneOf(partition: number): Lane {
    const known = this.#lanes.get(partition);
    if (known) return known;
    const lane = new Lane(
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
    const anchor = new Anchor(this.#runtime.timers);
    // While it is tried again later, there is only a timer.
    anchor.hold();
    try {
      return await this.#untilOpen();
    } finally {
      anchor.drop();
      anchor.close();
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

  /** Looks until the broker is there again, although nobody may have anything to send. */
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
        // All may look well when nothing can be written: as long as that is tried, it tells more.
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
    if (this.#out.size === 0) log.error({ reason, topic: this.#topic }, 'Kafka is out');
    this.#out.set(part, { reason, lastMs: clock.monotonic() });
  }

  #noteBack(part: Part): void {
    if (!this.#out.delete(part) || this.#out.size > 0 || this.#closing.signal.aborted) return;
    this.#runtime.log.info({ topic: this.#topic }, 'Kafka is back');
  }
}
