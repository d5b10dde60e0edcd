import { LIKE_SHARDS, type LikeEvent, likeChannel, shardOf } from '../model/like.ts';
import { LIKE_ENTRIES } from '../model/like-entry.ts';
import type { Channels } from './channels.ts';

const CHANNEL = /^likes:\d+$/;
/** 1 to 3 MB of Redis' memory for each shard, measured. */
const BOUND = 50_000;

/** Likes, and likes taken back: a few channels that always exist. A subject has one of them (`shardOf`). */
export const LIKES: Channels<LikeEvent> = {
  kind: 'likes',
  codec: LIKE_ENTRIES,
  names: Array.from({ length: LIKE_SHARDS }, (_, shard) => likeChannel(shard)),
  bound: BOUND,
  has: (channel) => CHANNEL.test(channel),
  channelOf: ({ subject }) => likeChannel(shardOf(subject)),
  places: (layout) => layout.likes,
};
