import type { Channel } from 'rabbitmq-client';
import { unavailable } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { within } from '../../base/timers.ts';
import { type Parcel, writeParcel } from '../parcel.ts';
import { wordsOf } from './answers.ts';
import type { LinkUser, Session } from './link.ts';
import type { Topology } from './topology.ts';

/** Parcels of one call that are not confirmed yet. */
interface Sending {
  returned: boolean;
}

/** The channel into one queue. */
interface QueueChannel {
  readonly session: Session;
  readonly channel: Channel;
  readonly sendings: Set<Sending>;
}

/**
 * Publishes parcels on a connection of its own, since the broker blocks publishing connections when it is short of memory. Each queue
 * has its own channel: one that confirms nothing (a quorum queue without a majority) delays no other.
 */
export class Sender implements LinkUser {
  readonly purpose = 'sends';
  readonly insists = false;
  readonly changed: () => void;
  readonly #topology: Topology;
  readonly #answerMs: number;
  readonly #runtime: Runtime;
  #lanes: (QueueChannel | null)[] = [];
  #blocked: string | null = null;

  constructor(topology: Topology, answerMs: number, runtime: Runtime, changed: () => void) {
    this.#topology = topology;
    this.#answerMs = answerMs;
    this.#runtime = runtime;
    this.changed = changed;
  }

  /** Why the broker takes nothing although it is connected, or null. */
  get blocked(): string | null {
    return this.#blocked;
  }

  async begin(session: Session): Promise<void> {
    const first = await session.channel();
    await this.#topology.declare(first, session.ask);
    session.connection.on('connection.blocked', (why: string) => this.#block(`RabbitMQ takes nothing: ${why}`));
    session.connection.on('connection.unblocked', () => this.#block(null));
    this.#lanes = await Promise.all(
      this.#topology.queues.map(async (_, partition) =>
        this.#lane(session, partition === 0 ? first : await session.channel()),
      ),
    );
  }

  end(): void {
    this.#lanes = [];
    this.#blocked = null;
  }

  async #lane(session: Session, channel: Channel): Promise<QueueChannel> {
    await session.ask(channel.confirmSelect());
    const sendings = new Set<Sending>();
    channel.on('basic.return', () => {
      for (const sending of sendings) sending.returned = true;
    });
    return { session, channel, sendings };
  }

  #block(reason: string | null): void {
    this.#blocked = reason;
    this.changed();
  }

  async send(partition: number, parcels: readonly Parcel[]): Promise<void> {
    const { exchange } = this.#topology;
    const routingKey = this.#topology.routingKey(partition);
    const lane = this.#lanes[partition];
    if (lane === undefined) throw unavailable('RabbitMQ is not connected');
    if (lane === null) throw unavailable(`RabbitMQ confirms nothing for ${exchange} ${routingKey}`);
    // A parcel that is written now would wait in our memory.
    if (this.#blocked !== null) throw unavailable(this.#blocked);

    const { timers } = this.#runtime;
    const { session, channel, sendings } = lane;
    const sending: Sending = { returned: false };
    sendings.add(sending);
    try {
      const confirms = parcels.map((parcel) =>
        channel.basicPublish({ exchange, routingKey, durable: true, mandatory: true }, writeParcel(parcel)),
      );
      const confirmed = await within(timers, Promise.allSettled(confirms), this.#answerMs);
      if (confirmed === null) {
        // A blocked connection takes nothing more anyway.
        if (this.#blocked === null) this.#renew(partition, lane);
        throw unavailable(`RabbitMQ did not confirm for ${exchange} ${routingKey} within ${this.#answerMs} ms`);
      }
      const failure = confirmed.find((one) => one.status === 'rejected');
      if (failure) {
        if (!channel.active && this.#lanes[partition] === lane) session.drop(failure.reason);
        throw unavailable(`RabbitMQ did not confirm: ${wordsOf(failure.reason)}`, failure.reason);
      }
      // A parcel that no queue is bound for is returned and then confirmed; the client reports the return one turn later.
      await new Promise<void>((resolve) => timers.nextTurn(resolve));
      if (sending.returned) {
        const missing = unavailable(`RabbitMQ has no queue for ${exchange} ${routingKey}: it was deleted`);
        // The next session declares the queue again.
        session.drop(missing);
        throw missing;
      }
    } finally {
      sendings.delete(sending);
    }
  }

  /**
   * Drops the channel with what the broker has not confirmed. Opens a new one at once if only the queue does not answer; if the
   * broker does not, drops the connection.
   */
  #renew(partition: number, lane: QueueChannel): void {
    if (this.#lanes[partition] !== lane) return;
    const lanes = this.#lanes;
    lanes[partition] = null;
    const { session, channel } = lane;
    session.release(channel);
    const renew = async (): Promise<void> => {
      lanes[partition] = await this.#lane(session, await session.channel());
    };
    renew().catch(session.drop);
  }
}
