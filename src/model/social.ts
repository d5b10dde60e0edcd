/** Bounds of what people write. Lengths are in characters (code points); the body of a request is bounded besides. */
export const SOCIAL_BOUNDS = { titleMax: 200, contentMax: 10_000, commentMax: 2_000 } as const;

/** A post as it is stored. Deleting is soft: the row stays, its text is blanked. */
export interface PostRecord {
  readonly id: string;
  /** Whoever the token named (its `sub`), compared bytewise. */
  readonly author: string;
  /** The name that the author registered with; null: not an account of ours. */
  readonly authorName: string | null;
  readonly title: string;
  readonly content: string;
  readonly likes: number;
  /** Live comments and replies. */
  readonly comments: number;
  readonly deleted: boolean;
  readonly version: number;
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
}

/**
 * A comment as it is stored. Depth is at most 2: a reply to a reply hangs on the same parent and names in `answers` the comment that it
 * answers. A deleted comment that has replies keeps its place, without its text and author.
 */
export interface CommentRecord {
  readonly id: string;
  readonly postId: string;
  /** Null: a comment on the post itself. */
  readonly parentId: string | null;
  /** The reply that this one answers; null: it answers its parent. */
  readonly answers: string | null;
  /** Empty if it is deleted. */
  readonly author: string;
  readonly authorName: string | null;
  readonly content: string;
  readonly likes: number;
  /** Live replies. */
  readonly replies: number;
  readonly deleted: boolean;
  readonly version: number;
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
}

/** How a list of comments is sorted; `liked`: by the count of settled likes, then the newest. */
export type CommentOrder = 'newest' | 'liked';
