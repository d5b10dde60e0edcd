import type { Parcel } from '../parcel.ts';

/**
 * A broker between the streams and the workers, for messages of one kind. It carries copies: an entry stays in its stream until
 * it is decided, so that a broker may carry it twice, late, or (its queue was purged, its disk is gone) not at all.
 *
 * Parcels of one channel go into one partition and come out in the same order, to one worker at a time, as far as the broker can tell
 * which workers are alive.
 */
export interface Carrier {
  /** Distinguishes the parcels of different shops and brokers; part of names in Redis. */
  readonly name: string;
  /** Why nothing can be carried now, or null while it can. */
  readonly reason: string | null;
  /**
   * Connects, creates missing queues or topics, and resolves with the number of partitions. Retries while the broker is out.
   * Rejects with a TerminalError, in one line, when what exists there cannot be used or the broker refuses us; also when the
   * carrier is closed meanwhile.
   */
  open(): Promise<number>;
  /**
   * Resolves when the broker has confirmed all of them (confirms, acks=all). Otherwise rejects in bounded time: some may have
   * arrived. The relay retries, not the carrier.
   */
  send(partition: number, parcels: readonly Parcel[]): Promise<void>;
  /**
   * Starts delivering what the broker has for this worker. Survives restarts of the broker. What was delivered and is not done
   * when the connection is lost, or when the partition moves to another worker, is delivered again, here or there.
   */
  receive(deliver: (delivery: Delivery) => void): void;
  /** Receives no more and leaves to others what was delivered and is not done. `receive` may be called again. */
  giveBack(): Promise<void>;
  close(): Promise<void>;
}

export interface Delivery {
  /** Null: not a parcel that this version can read. */
  readonly parcel: Parcel | null;
  /** The raw text of an unreadable delivery, for the operator. */
  readonly body: string;
  /** Identifies an unreadable delivery: the same when it is delivered again. */
  readonly id: string;
  /** Acknowledges the delivery. Never throws; too late it has no effect. */
  done(): void;
}

/** The options that all carriers share. */
export interface CarrierOptions {
  readonly url: string;
  /** What the messages are called (`Channels.kind`): part of names at the broker. Unset: orders. */
  readonly kind?: string;
  /** Names at the broker begin with it, if the URL does not say otherwise. */
  readonly prefix: string;
  /** How long the broker may take for one answer. */
  readonly answerMs?: number;
  /** Parcels that one worker has in hand at a time: bounds its memory. */
  readonly inHandMax?: number;
}
