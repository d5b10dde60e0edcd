import { type ChannelPlaces, Layout } from '../../../base/redis/layout.ts';
import { likeChannel } from '../../../model/like.ts';

/** The keys of one epoch of a shard. */
export interface LikeEpochKeys {
  readonly stream: string;
  readonly subjects: string;
  /** The two generations of the records of pairs (lua/_generations.lua). */
  readonly pairs: readonly [string, string];
  /** Numbers of events that Redis was told of before it was told of all events before them. */
  readonly ahead: string;
  /** The prefix of the names of filters. */
  readonly filters: string;
  /** The last answers to a caller that has at most so many calls under way as it has slots. */
  answers(caller: string, slot: number): string;
}

/** The keys of a shard; all share a hash tag, so that one script may touch them in a cluster. */
export interface LikeShardKeys {
  readonly head: string;
  /** Epochs whose streams the pipe reads. */
  readonly epochs: string;
  /** Epochs that are over and have keys left. */
  readonly old: string;
  of(epoch: number): LikeEpochKeys;
}

/** The names of the keys of likes under a shop's prefix (docs/internals/likes.md). Those that the pipe reads, too, have its names. */
export class LikeLayout {
  readonly #places: ChannelPlaces;

  constructor(prefix: string) {
    this.#places = new Layout(prefix).likes;
  }

  /** The channel that announces new entries in a stream. */
  get wake(): string {
    return this.#places.wake;
  }

  /** The name of the shard's channel in the pipe. */
  channel(shard: number): string {
    return likeChannel(shard);
  }

  shard(shard: number): LikeShardKeys {
    const { begin, head, epochs } = this.#places.keys(this.channel(shard));
    return {
      head,
      epochs,
      old: `${begin}old`,
      of: (epoch) => ({
        stream: `${begin}${epoch}:stream`,
        subjects: `${begin}${epoch}:counts`,
        pairs: [`${begin}${epoch}:pairs:0`, `${begin}${epoch}:pairs:1`],
        ahead: `${begin}${epoch}:ahead`,
        filters: `${begin}${epoch}:f:`,
        answers: (caller, slot) => `${begin}${epoch}:a:${caller}:${slot}`,
      }),
    };
  }
}

/** A pair as the field of a hash. Names hold no control characters, so that a line feed separates. */
export function pairField(subject: string, user: string): string {
  return `${subject}\n${user}`;
}
