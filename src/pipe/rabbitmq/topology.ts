import type { Channel } from 'rabbitmq-client';
import type { Logger } from '../../base/logger.ts';
import { ORDERS } from '../orders.ts';
import { codeOf, refused, wordsOf } from './answers.ts';
import type { Ask } from './link.ts';

/** A mistake in names or rights, which does not pass by itself. */
const FINAL = new Set(['PRECONDITION_FAILED', 'RESOURCE_LOCKED', 'ACCESS_REFUSED', 'NOT_ALLOWED']);

/**
 * Our exchanges and queues at the broker.
 *
 *   orders  ──(0)──▶  orders.0   one worker at a time (single active consumer), in the order of the relay
 *  (direct) ──(1)──▶  orders.1
 *             …          │ refused by a worker (not ours to read), or dropped by a policy
 *                        ▼
 *                      dead (fanout) ──▶ dead
 *
 * Each kind of message has its own: `likes`, `likes.0` …, `likes-dead`. A process that does not carry a kind does not know them.
 *
 * Quorum queues: a confirm means that a majority has it on disk. Dead letters travel at most once: a parcel that is lost on the way
 * is still in its stream in Redis, and a foreign message does not matter. At-least-once needs more of the server (3.10, a feature
 * flag, another overflow mode) and would keep them in the memory of the queue that they left.
 */
export class Topology {
  readonly exchange: string;
  readonly dead: string;
  readonly queues: readonly string[];
  readonly #log: Logger;
  #quorum = true;

  constructor(prefix: string, kind: string, queues: number, log: Logger) {
    this.exchange = `${prefix}.${kind}`;
    // With a dash: a shop whose own prefix is `<prefix>.likes` has a queue `<prefix>.likes.dead`.
    this.dead = kind === ORDERS.kind ? `${prefix}.dead` : `${prefix}.${kind}-dead`;
    this.queues = Array.from({ length: queues }, (_, at) => `${this.exchange}.${at}`);
    this.#log = log;
  }

  routingKey(partition: number): string {
    return String(partition);
  }

  /** Creates what is missing. Throws a TerminalError if something incompatible exists. */
  async declare(channel: Channel, ask: Ask): Promise<void> {
    const { exchange, dead } = this;
    const durable = true;
    await made(`exchange ${dead}`, ask(channel.exchangeDeclare({ exchange: dead, type: 'fanout', durable })));
    await made(`exchange ${exchange}`, ask(channel.exchangeDeclare({ exchange, type: 'direct', durable })));
    await this.#queue(dead, dead, '', {}, channel, ask);
    for (const [partition, queue] of this.queues.entries()) {
      const toDead = { 'x-dead-letter-exchange': dead };
      await this.#queue(queue, exchange, this.routingKey(partition), toDead, channel, ask);
    }
  }

  async #queue(
    queue: string,
    exchange: string,
    routingKey: string,
    more: Record<string, string>,
    channel: Channel,
    ask: Ask,
  ): Promise<void> {
    const type = this.#quorum ? { 'x-queue-type': 'quorum' as const } : {};
    const args = { ...type, 'x-single-active-consumer': true, ...more };
    try {
      await made(`queue ${queue}`, ask(channel.queueDeclare({ queue, durable: true, arguments: args })));
    } catch (error) {
      // The server answers 541 and ends the connection. Before 3.8 it ignores both arguments.
      if (this.#quorum && codeOf(error) === 'INTERNAL_ERROR' && /feature flag is disabled/.test(wordsOf(error))) {
        this.#quorum = false;
        this.#log.warn({ reason: wordsOf(error) }, 'RabbitMQ has no quorum queues: classic ones are used');
      }
      throw error;
    }
    await made(`queue ${queue}`, ask(channel.queueBind({ queue, exchange, routingKey })));
  }
}

async function made(what: string, answer: Promise<unknown>): Promise<void> {
  try {
    await answer;
  } catch (error) {
    const code = codeOf(error);
    if (code === null || !FINAL.has(code)) throw error;
    const words = wordsOf(error);
    if (/^inequivalent arg/.test(words)) {
      const advice = `delete it when it is empty (it is made anew; orders wait in Redis meanwhile), or take another prefix`;
      throw refused(`the ${what} at RabbitMQ is not as it must be: ${words}; ${advice}`, error);
    }
    throw refused(`RabbitMQ refuses the ${what} (${code}: ${words})`, error);
  }
}
