import type { ChannelPlaces, Layout } from '../base/redis/layout.ts';
import type { EntryCodec } from '../model/entry.ts';

/**
 * One kind of message, and the channels that carry it. A pipe carries one kind. Each kind has its own queues or topic at a broker and its
 * own limits in a worker, so that a storm of one does not delay another.
 */
export interface Channels<M> {
  /** What its messages are called, in the plural: part of names at the broker, and of the log. */
  readonly kind: string;
  readonly codec: EntryCodec<M>;
  /** The names of all channels, where they are always the same. Null: a set in Redis lists them. */
  readonly names: readonly string[] | null;
  /**
   * Messages that may wait in one channel. Whoever writes them refuses more: the pipe carries what is there. In memory, where all
   * channels share a queue, it applies to the queue.
   */
  readonly bound: number;
  /** Whether a channel of this name carries this kind. */
  has(channel: string): boolean;
  channelOf(message: M): string;
  /** Where the channels stand in Redis. */
  places(layout: Layout): ChannelPlaces;
}
