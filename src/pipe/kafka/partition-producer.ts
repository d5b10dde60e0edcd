import type { MessageToProduce, Producer } from '@platformatic/kafka';
import { unavailable } from '../../base/errors.ts';
import type { Timers } from '../../base/timers.ts';
import { writtenName } from '../../model/channel.ts';
import { type Parcel, writeParcel } from '../parcel.ts';
import { type Clients, noAnswer, reasonOf } from './client.ts';

export interface PartitionOptions {
  readonly clients: Clients;
  readonly topic: string;
  readonly partition: number;
  readonly answerMs: number;
  readonly sent: () => void;
  readonly failed: (error: unknown) => void;
}

interface Call {
  readonly messages: readonly MessageToProduce[];
  readonly bytes: number;
  readonly cancel: () => void;
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/** By default a topic accepts batches of up to 1 MB. */
const BATCH_BYTES = 512 * 1024;
/** The overhead of a record beside key and value, at most. */
const MESSAGE_BYTES = 64;

/**
 * Sends to one partition, one request at a time, so that a retry is not overtaken. Calls that arrive meanwhile share the next request.
 *
 * Each lane has its own producer. A shared producer restarts its sequence numbers for all partitions when one fails; a batch that is
 * about to be sent with an old number then looks like one that the broker already has: confirmed, and never written.
 */
export class PartitionProducer {
  readonly #on: PartitionOptions;
  readonly #timers: Timers;
  #producer: Producer | null = null;
  #queue: Call[] = [];
  #sending: Call[] = [];
  #busy = false;
  #turn = 0;
  /** The offset after what this producer has written. */
  #end = 0n;

  constructor(options: PartitionOptions, timers: Timers) {
    this.#on = options;
    this.#timers = timers;
  }

  send(parcels: readonly Parcel[]): Promise<void> {
    if (parcels.length === 0) return Promise.resolve();
    const { topic, partition, answerMs } = this.#on;
    const messages = parcels.map((parcel) => {
      return {
        topic,
        partition,
        key: Buffer.from(writtenName(parcel.channel)),
        value: Buffer.from(writeParcel(parcel)),
      };
    });
    const bytes = messages.reduce((sum, message) => sum + sizeOf(message), 0);
    return new Promise((resolve, reject) => {
      const cancel = this.#timers.after(answerMs, () => this.#fail(noAnswer(answerMs)));
      this.#queue.push({ messages, bytes, cancel, resolve, reject });
      if (!this.#busy) void this.#work();
    });
  }

  close(): void {
    this.#fail(unavailable('the carrier is closed'));
  }

  async #work(): Promise<void> {
    const turn = ++this.#turn;
    this.#busy = true;
    while (this.#queue.length > 0) {
      const calls = this.#cut();
      this.#sending = calls;
      try {
        for (const batch of batches(calls)) {
          this.#producer ??= this.#on.clients.producer({ connectMs: this.#on.answerMs, answerMs: this.#on.answerMs });
          const { offsets } = await this.#producer.send({ messages: batch });
          // It took too long; its caller has given up.
          if (turn !== this.#turn) return;
          this.#follows(offsets?.[0]?.offset ?? -1n, batch.length);
        }
      } catch (error) {
        if (turn === this.#turn) this.#fail(error);
        return;
      }
      this.#settle(calls);
    }
    this.#busy = false;
  }

  /** An offset below the expected one was written by an earlier batch: ours was not written (see above). */
  #follows(offset: bigint, count: number): void {
    if (offset < this.#end) throw unavailable(`confirmed at ${offset}, although the partition goes up to ${this.#end}`);
    this.#end = offset + BigInt(count);
  }

  #settle(calls: readonly Call[]): void {
    this.#sending = [];
    for (const { cancel, resolve } of calls) {
      cancel();
      resolve();
    }
    this.#on.sent();
  }

  /** Fails the waiting calls too, so that they do not overtake the failed one. Drops the producer: its state at the broker is unknown. */
  #fail(error: unknown): void {
    const calls = [...this.#sending, ...this.#queue];
    this.#sending = [];
    this.#queue = [];
    this.#turn++;
    this.#busy = false;
    if (this.#producer) this.#on.clients.fail(this.#producer);
    this.#producer = null;
    this.#end = 0n;
    if (calls.length === 0) return;
    this.#on.failed(error);
    const failure = unavailable(reasonOf(error), error);
    for (const { cancel, reject } of calls) {
      cancel();
      reject(failure);
    }
  }

  /** One call, and as many more as fit into the same batch. */
  #cut(): Call[] {
    let bytes = 0;
    const past = this.#queue.findIndex((call, index) => {
      bytes += call.bytes;
      return index > 0 && bytes > BATCH_BYTES;
    });
    return this.#queue.splice(0, past === -1 ? this.#queue.length : past);
  }
}

function sizeOf({ key, value }: MessageToProduce): number {
  return MESSAGE_BYTES + (key?.length ?? 0) + (value?.length ?? 0);
}

function* batches(calls: readonly Call[]): Generator<MessageToProduce[]> {
  let batch: MessageToProduce[] = [];
  let bytes = 0;
  for (const message of calls.flatMap(({ messages }) => messages)) {
    const size = sizeOf(message);
    if (batch.length > 0 && bytes + size > BATCH_BYTES) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(message);
    bytes += size;
  }
  yield batch;
}
