import type { Parcel } from '../parcel.ts';

/**
 * A broker between the stream that the gate writes and the workers. It carries copies: an entry stays in its stream until
 * it is decided, so that a broker may carry it twice, late, or (its queue was purged, its disk is gone) not at all.
 *
 * Parcels of one sale go into one partition, and come out of it in the order they went in, to one worker at a time, as far
 * as the broker can tell who lives.
 */
export interface Carrier {
  /** What parcels of different shops and brokers are told apart by; part of names in Redis. */
  readonly name: string;
  /** Why nothing can be carried now, or null while it can. */
  readonly reason: string | null;
  /**
   * Connects, makes what is missing at the broker (queues, topic), and resolves with the number of partitions. Goes on trying
   * while the broker is out; rejects with a TerminalError, in one line, when what is there is not what we need, or it
   * refuses us; and when it is closed meanwhile.
   */
  open(): Promise<number>;
  /**
   * Resolves when the broker has made sure of all of them (confirms, acks=all). Rejects otherwise, in bounded time: some may
   * be there. Nothing is tried again here; the relay does.
   */
  send(partition: number, parcels: readonly Parcel[]): Promise<void>;
  /**
   * Starts handing over what the broker has for us. Survives its restarts. What was handed over and is not done when the
   * connection is lost (or the partition goes to another worker) comes again, here or there.
   */
  receive(deliver: (delivery: Delivery) => void): void;
  /** Receives no more, and lets others have what was handed over and is not done. `receive` may be called again. */
  giveBack(): Promise<void>;
  close(): Promise<void>;
}

export interface Delivery {
  /** Null: nothing that we have written. */
  readonly parcel: Parcel | null;
  /** What cannot be read, as it came, for those who have to find out what it was. */
  readonly body: string;
  /** Of something unreadable: what tells it from others, the same when it comes again. */
  readonly id: string;
  /** It need not come again. Never throws; one that is too late has no effect. */
  done(): void;
}

/** What a carrier needs of its surroundings beside its own options. */
export interface CarrierOptions {
  readonly url: string;
  /** Names at the broker begin with it, if the URL does not say otherwise. */
  readonly prefix: string;
  /** How long the broker may take for one answer. */
  readonly answerMs?: number;
  /** Parcels that one worker has in hand at a time: bounds its memory. */
  readonly inHandMax?: number;
}
