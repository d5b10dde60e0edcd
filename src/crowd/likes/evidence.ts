/**
 * The evidence of a crowd of likers: every answer that they got, and what the lists say when likes have had time to be stored. The verdict
 * (verdict.ts) is computed from this alone.
 */
export interface LikeEvidence {
  readonly answers: readonly LikerAnswer[];
  readonly posts: readonly PostView[];
  /** What each liker sees of each post at the end, with their own token. */
  readonly seen: readonly SeenLike[];
  /** How long counts had to become exact, at most. */
  readonly waitedMs: number;
}

/** The answer to one request. `sentAt` and `answeredAt` are ticks of one counter for the whole crowd. */
export interface LikerAnswer {
  readonly user: string;
  readonly postId: string;
  /** The step of this liker's visit: clicks of one step want the same, at the same time. */
  readonly step: number;
  readonly wanted: boolean;
  /** Null: the connection broke, and whether it was done is unknown. */
  readonly status: number | null;
  readonly code: string | null;
  /** Of a 200. */
  readonly liked: boolean | null;
  readonly changed: boolean | null;
}

export interface PostView {
  readonly id: string;
  readonly count: number;
  readonly exact: boolean;
  /** Everybody who likes it, by the list of likers. */
  readonly likers: readonly string[];
}

export interface SeenLike {
  readonly user: string;
  readonly postId: string;
  readonly liked: boolean;
}

/** True if the server asks the client to come back later, or did not answer: the same is sent again. */
export function isComeBack({ status }: Pick<LikerAnswer, 'status'>): boolean {
  return status === null || status === 429 || status === 503;
}
