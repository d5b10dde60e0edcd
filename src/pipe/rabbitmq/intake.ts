import type { Channel } from 'rabbitmq-client';
import type { Timers } from '../../base/timers.ts';

/**
 * The deliveries of one channel, by delivery tag. The broker accepts acknowledgements only on the channel of the delivery, and
 * closes the channel on a wrong tag; nothing is acknowledged on a closed channel.
 */
export class Intake {
  readonly #channel: Channel;
  readonly #timers: Timers;
  /** In the order of arrival. True: done, and not acknowledged yet. */
  readonly #inHand = new Map<number, boolean>();
  #waits = false;

  constructor(channel: Channel, timers: Timers) {
    this.#channel = channel;
    this.#timers = timers;
  }

  take(tag: number): () => void {
    this.#inHand.set(tag, false);
    return () => this.#done(tag);
  }

  /** Rejects it: it goes to the dead letters. */
  refuse(tag: number): void {
    if (this.#channel.active) this.#channel.basicNack({ deliveryTag: tag, requeue: false });
  }

  #done(tag: number): void {
    if (!this.#channel.active || this.#inHand.get(tag) !== false) return;
    this.#inHand.set(tag, true);
    if (this.#waits) return;
    this.#waits = true;
    // A batch is done in one turn: acknowledge it together.
    this.#timers.nextTurn(() => this.flush());
  }

  flush(): void {
    this.#waits = false;
    if (!this.#channel.active) {
      this.#inHand.clear();
      return;
    }
    let upTo = 0;
    let isFirst = true;
    for (const [tag, done] of this.#inHand) {
      if (!done) {
        isFirst = false;
        continue;
      }
      this.#inHand.delete(tag);
      if (isFirst) upTo = tag;
      else this.#channel.basicAck({ deliveryTag: tag });
    }
    if (upTo > 0) this.#channel.basicAck({ deliveryTag: upTo, multiple: true });
  }
}
