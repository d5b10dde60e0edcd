import type { CommentPage, CommentsOf, Liker, LikerPage, LikesOf, Page } from '../ledger/port.ts';
import type { LikedKind } from '../model/like.ts';
import type { CommentRecord, PostRecord } from '../model/social.ts';
import type { LikeCount } from './likes/likes.ts';

export type { LikeCount } from './likes/likes.ts';

/** What a reader sees of a post. */
export interface ShownPost extends PostRecord, Shown {}

/** What a reader sees of a comment. */
export interface ShownComment extends CommentRecord, Shown {}

interface Shown {
  /** Where Redis counts likes, this may be ahead of the record's `likes`, which are the stored ones. */
  readonly shown: LikeCount;
  /** Whether the reader likes it; null: there is no reader. */
  readonly liked: boolean | null;
}

/** What is done before something new is made. */
export interface Before {
  /** Before anything is stored, and not for a repeat. Throws if it may not be made. */
  readonly begin: () => Promise<void>;
  /** Before it is stored, once its id is known. */
  readonly note: (id: string) => Promise<void>;
}

/** What views read. Null: there is no such post or comment, or it was deleted. */
export interface SocialReader {
  readonly posts: {
    get(postId: string, reader: string | null): Promise<ShownPost | null>;
    list(filter: { author?: string }, page: Page, reader: string | null): Promise<ShownPost[]>;
  };
  readonly comments: {
    get(commentId: string, reader: string | null): Promise<ShownComment | null>;
    list(of: CommentsOf, page: CommentPage, reader: string | null): Promise<ShownComment[] | null>;
    by(author: string, page: Page): Promise<ShownComment[]>;
  };
  readonly likes: {
    likers(kind: LikedKind, id: string, page: LikerPage): Promise<Liker[] | null>;
    likesOf(user: string, kind: LikedKind, page: LikerPage): Promise<LikesOf>;
  };
}
