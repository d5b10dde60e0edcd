/** A user likes something, or takes the like back. The pipe carries it to the ledger. */
export interface LikeEvent {
  /** `post:<id>` or `comment:<id>`. */
  readonly subject: string;
  readonly user: string;
  readonly liked: boolean;
  readonly epoch: number;
  /** Grows with each decision of its shard in an epoch: of two events of one user and subject the later one has the higher number. */
  readonly n: number;
  readonly atMs: number;
}

/** Every process must compute the same shard of a subject: a change needs an empty pipe. */
export const LIKE_SHARDS = 8;

export const LIKE_SUBJECT = /^(?:post|comment):\d{1,20}$/;

const CHANNEL = 'likes:';

export function likeChannel(shard: number): string {
  return CHANNEL + shard;
}

/** All likes of a subject go through one channel, so that they arrive in the order in which they were decided. */
export function likeShard(subject: string): number {
  // FNV-1a: subjects that differ in one digit are spread evenly.
  let hash = 0x811c9dc5;
  for (let at = 0; at < subject.length; at++) hash = Math.imul(hash ^ subject.charCodeAt(at), 0x01000193);
  return (hash >>> 0) % LIKE_SHARDS;
}
