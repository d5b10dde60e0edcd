import type { LikedKind, Pair, Subject } from '../../model/like.ts';
import type { CommentOrder, CommentRecord, PostRecord } from '../../model/social.ts';
import type { Page } from './page.ts';

/**
 * Posts and comments. Counts stand in the row, and move in the transaction that changes what they count. A list has at most 201 rows
 * (a page of 200, and one that tells whether there are more); asking for more is a fault of the caller.
 */
export interface SocialLedger {
  createPost(post: NewPost): Promise<PostRecord>;
  /** Deleted ones too; null: there never was one. */
  getPost(postId: string): Promise<PostRecord | null>;
  /** Newest first, without deleted ones; with whether `reader` has liked each (settled likes), in one statement. */
  listPosts(filter: { author?: string }, page: Page, reader: string | null): Promise<Liked<PostRecord>[]>;
  editPost(postId: string, edit: PostEdit): Promise<Changed<PostRecord>>;
  /** Deleted again by its author: ok, and nothing changes. For anybody else a deleted one is not found. */
  deletePost(postId: string, by: string): Promise<Changed<PostRecord>>;

  /** Counts it on its post and its parent in the same transaction. `parentId` may be a reply: see CommentRecord. */
  createComment(comment: NewComment): Promise<CommentCreated>;
  getComment(commentId: string): Promise<CommentRecord | null>;
  /** Those of a post (`parentId` null) or the replies of a comment. Deleted ones only if they have live replies. */
  listComments(of: CommentsOf, page: CommentPage, reader: string | null): Promise<Liked<CommentRecord>[]>;
  commentsBy(author: string, page: Page): Promise<CommentRecord[]>;
  editComment(commentId: string, edit: CommentEdit): Promise<Changed<CommentRecord>>;
  /** As `deletePost`. */
  deleteComment(commentId: string, by: string): Promise<Changed<CommentRecord>>;

  /** Whether and by whom each of these was liked, as settled: for a few records that were read one by one. */
  likedAmong(pairs: readonly Pair[]): Promise<boolean[]>;
  /** Who likes it, the newest first. */
  likersOf(subject: Subject, page: LikerPage): Promise<Liker[]>;
  /** What a user likes, the newest first; deleted ones are left out. */
  likesOf(user: string, kind: LikedKind, page: LikerPage): Promise<LikesOf>;

  /**
   * Compares counts with rows for subjects after `after`, at most `limit` (up to 200) of them and fewer where they have many rows, and
   * returns those that differ. Reads one consistent state. `next`: where to go on; null: that was all.
   */
  checkCounts(
    kind: LikedKind,
    after: string | null,
    limit: number,
  ): Promise<{ wrong: WrongCount[]; next: string | null }>;
}

export interface NewPost {
  readonly id: string;
  readonly author: string;
  readonly title: string;
  readonly content: string;
}

export interface PostEdit {
  readonly by: string;
  readonly title?: string;
  readonly content?: string;
  readonly version: number;
}

export interface NewComment {
  readonly id: string;
  readonly postId: string;
  readonly parentId: string | null;
  readonly author: string;
  readonly content: string;
}

export interface CommentEdit {
  readonly by: string;
  readonly content: string;
  readonly version: number;
}

export type Liked<T> = T & { readonly liked: boolean };

export type Changed<T> =
  | { readonly outcome: 'ok'; readonly record: T }
  | { readonly outcome: 'not_found' }
  /** Somebody else's. */
  | { readonly outcome: 'forbidden' }
  | { readonly outcome: 'version_conflict'; readonly record: T };

/** `not_found`: no such post, or it is deleted. `no_parent`: the parent is missing, deleted, or of another post. */
export type CommentCreated =
  | { readonly outcome: 'ok'; readonly record: CommentRecord }
  | { readonly outcome: 'not_found' }
  | { readonly outcome: 'no_parent' };

export interface CommentsOf {
  readonly postId: string;
  readonly parentId: string | null;
}

/** `before`: the last row of the page before, by id and, for `liked`, by its count. */
export interface CommentPage {
  readonly order: CommentOrder;
  readonly limit: number;
  readonly before: { readonly id: string; readonly likes: number } | null;
}

/**
 * Rows are sorted by the time of their last change and then by `key`: the user of `likersOf`, the id of `likesOf`. `before`: those of
 * the last row of the page before.
 */
export interface LikerPage {
  readonly limit: number;
  readonly before: { readonly atMs: number; readonly key: string } | null;
}

/** `next`: so many deleted ones were passed by that the page is shorter than it might be; go on here. */
export interface LikesOf {
  readonly rows: { readonly id: string; readonly atMs: number }[];
  readonly next: LikerPage['before'];
}

export interface Liker {
  readonly user: string;
  readonly name: string | null;
  readonly atMs: number;
}

export interface WrongCount {
  readonly subject: Subject;
  readonly count: 'likes' | 'comments' | 'replies';
  readonly stored: number;
  readonly rows: number;
}
