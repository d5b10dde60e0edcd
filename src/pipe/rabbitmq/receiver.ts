import { createHash } from 'node:crypto';
import type { AsyncMessage, Channel } from 'rabbitmq-client';
import { unavailable } from '../../base/errors.ts';
import type { Timers } from '../../base/timers.ts';
import type { Delivery } from '../brokers/port.ts';
import { readParcel } from '../parcel.ts';
import { NoAnswerError } from './answers.ts';
import { Intake } from './intake.ts';
import type { Link, LinkUser, Session } from './link.ts';
import type { Topology } from './topology.ts';

/** In hand from the queue of dead letters, which are few. */
const DEAD_IN_HAND = 8;

export interface ReceivingOptions {
  readonly topology: Topology;
  readonly inHandMax: number;
  readonly timers: Timers;
  link(user: LinkUser): Link;
  deliver(delivery: Delivery): void;
  changed(): void;
}

/**
 * Takes parcels out of the queues and hands them over, until it is stopped.
 *
 * All queues share one connection while all answer. A queue that does not (a quorum queue without a majority) gets a connection of
 * its own: the broker ends the connection on which it was requested, and would take the others with it.
 */
export class Receiving {
  readonly #options: ReceivingOptions;
  readonly #parts: { receiver: Receiver; link: Link }[] = [];
  #stopped = false;

  constructor(options: ReceivingOptions) {
    this.#options = options;
    const { queues, dead } = options.topology;
    this.#add([dead, ...queues]);
  }

  /** Why some queue delivers nothing, or null. */
  get reason(): string | null {
    return this.#parts.find(({ link }) => link.reason !== null)?.link.reason ?? null;
  }

  #add(queues: readonly string[]): void {
    if (this.#stopped) return;
    const receiver = new Receiver(this.#options, queues, (queue) => this.#add([queue]));
    const link = this.#options.link(receiver);
    this.#parts.push({ receiver, link });
    // Rejects only when it is closed.
    link.open().catch(() => undefined);
  }

  /** Acknowledges what is done and leaves the rest to others. */
  async stop(): Promise<void> {
    this.#stopped = true;
    for (const { receiver } of this.#parts) receiver.stop();
    await Promise.all(this.#parts.map(({ link }) => link.close()));
  }
}

/** Some queues, each on its own channel: deliveries of one can be acknowledged whatever waits in the others. */
class Receiver implements LinkUser {
  readonly purpose = 'receives';
  readonly insists = true;
  readonly changed: () => void;
  readonly #options: ReceivingOptions;
  readonly #apart: (queue: string) => void;
  #queues: readonly string[];
  #intakes: Intake[] = [];
  #stopped = false;

  constructor(options: ReceivingOptions, queues: readonly string[], apart: (queue: string) => void) {
    this.#options = options;
    this.#queues = queues;
    this.#apart = apart;
    this.changed = options.changed;
  }

  async begin(session: Session): Promise<void> {
    const first = await session.channel();
    await this.#options.topology.declare(first, session.ask);
    const queues = this.#queues;
    const results = await Promise.allSettled(
      queues.map(async (queue, at) => this.#consume(at === 0 ? first : await session.channel(), queue, session)),
    );
    const failures = results.flatMap((result) => (result.status === 'rejected' ? [result.reason as unknown] : []));
    if (failures.length === 0) return;
    if (failures.length < queues.length) {
      const silent = queues.filter((_, at) => (results[at] as { reason?: unknown }).reason instanceof NoAnswerError);
      this.#queues = queues.filter((queue) => !silent.includes(queue));
      for (const queue of silent) this.#apart(queue);
    }
    const failure = failures[0];
    if (!(failure instanceof NoAnswerError) || queues.length > 1) throw failure;
    throw unavailable(`RabbitMQ gives nothing out of ${queues[0]}: ${failure.message}`, failure);
  }

  end(): void {
    this.#intakes = [];
  }

  /** Delivers nothing more. */
  stop(): void {
    this.#stopped = true;
    for (const intake of this.#intakes) intake.flush();
  }

  async #consume(channel: Channel, queue: string, session: Session): Promise<void> {
    const intake = new Intake(channel, this.#options.timers);
    this.#intakes.push(intake);
    await session.ask(channel.basicQos({ prefetchCount: this.#share(queue) }));
    channel.once('basic.cancel', () => session.drop(new Error(`${queue} was deleted, or its node is gone`)));
    await session.ask(channel.basicConsume({ queue }, (message) => this.#arrived(message, channel, intake, queue)));
  }

  /** Each queue has its share of the bound: quorum queues do not support a prefetch over all queues. */
  #share(queue: string): number {
    const { topology, inHandMax } = this.#options;
    const ofDead = Math.min(DEAD_IN_HAND, Math.ceil(inHandMax / 16));
    if (queue === topology.dead) return ofDead;
    return Math.max(Math.floor((inHandMax - ofDead) / topology.queues.length), 1);
  }

  #arrived(message: AsyncMessage, channel: Channel, intake: Intake, queue: string): void {
    // The broker delivers it again, on another channel or to another worker.
    if (this.#stopped || !channel.active) return;
    const body = textOf(message.body);
    const parcel = readParcel(body);
    if (parcel === null && queue !== this.#options.topology.dead) {
      intake.refuse(message.deliveryTag);
      return;
    }
    const done = intake.take(message.deliveryTag);
    this.#options.deliver({ parcel, body, id: parcel === null ? idOf(message, body) : '', done });
  }
}

/** The client parses bodies whose content type is JSON. */
function textOf(body: unknown): string {
  if (typeof body === 'string') return body;
  if (Buffer.isBuffer(body)) return body.toString();
  try {
    return JSON.stringify(body);
  } catch {
    // A foreign message must not end the process.
    return '(JSON that is nested too deep)';
  }
}

/**
 * The same for each delivery of a message: made from what its sender and the broker wrote on it once (where and when it died), not
 * from what changes with each delivery. Two messages that agree in all of this may share one letter.
 */
function idOf({ messageId, timestamp, headers }: AsyncMessage, body: string): string {
  const death: unknown = headers?.['x-death']?.[0];
  const { queue, time } = (death ?? {}) as { queue?: string; time?: number };
  const told = JSON.stringify([messageId, timestamp, queue, time, body]);
  return createHash('sha256').update(told).digest('hex').slice(0, 32);
}
