/** What can be liked. */
export type LikedKind = 'post' | 'comment';

/** What is liked, as it is named in Redis, in messages and in logs: `post:<id>` or `comment:<id>`. */
export type Subject = `${LikedKind}:${string}`;

export const LIKE_SUBJECT = /^(?:post|comment):\d{1,20}$/;

export interface Pair {
  readonly subject: Subject;
  readonly user: string;
}

/**
 * One decided change of a pair, which the pipe carries to the ledger. Its number is `epoch × 2^40 + n`: the deciding script counts n,
 * and the ledger raises the epoch whenever Redis may have lost its count. So numbers of one pair only grow, and of two events the one
 * with the larger number is the newer.
 */
export interface LikeEvent {
  readonly subject: Subject;
  readonly user: string;
  readonly liked: boolean;
  readonly epoch: number;
  readonly n: number;
  /** When it was decided, by Redis' clock. */
  readonly atMs: number;
}

export const N_MAX = 2 ** 40;

export function numberOf({ epoch, n }: Pick<LikeEvent, 'epoch' | 'n'>): bigint {
  return BigInt(epoch) * BigInt(N_MAX) + BigInt(n);
}

/** Every process must compute the same shard of a subject: a change needs an empty pipe. */
export const LIKE_SHARDS = 8;
export const ALL_SHARDS: readonly number[] = Array.from({ length: LIKE_SHARDS }, (_, shard) => shard);

const CHANNEL = 'likes:';

export function likeChannel(shard: number): string {
  return CHANNEL + shard;
}

export function shardOfChannel(channel: string): number {
  return Number(channel.slice(CHANNEL.length));
}

/** All likes of a subject go through one channel, so that they arrive in the order in which they were decided. */
export function shardOf(subject: string): number {
  // FNV-1a: subjects that differ in one digit are spread evenly.
  let hash = 0x811c9dc5;
  for (let at = 0; at < subject.length; at++) hash = Math.imul(hash ^ subject.charCodeAt(at), 0x01000193);
  return (hash >>> 0) % LIKE_SHARDS;
}

export function subjectOf(kind: LikedKind, id: string): Subject {
  return `${kind}:${id}`;
}

export function partsOf(subject: Subject): { kind: LikedKind; id: string } {
  const colon = subject.indexOf(':');
  return { kind: subject.slice(0, colon) as LikedKind, id: subject.slice(colon + 1) };
}
