import type { Liker } from '../ledger/port.ts';
import type { LikedKind } from '../model/like.ts';
import type { LikeCount, ShownComment, ShownPost } from '../social/port.ts';
import { iso } from './present.ts';

/** How posts, comments and likes read, to HTTP and to the library alike. */
export interface Post {
  id: string;
  author: Person;
  title: string;
  content: string;
  likes: Likes;
  comments: number;
  /** Only for a reader who is known. */
  liked?: boolean;
  version: number;
  createdAt: string;
  updatedAt: string;
}

export interface Comment {
  id: string;
  postId: string;
  /** The comment that it is a reply to; null: it is about the post. */
  parentId: string | null;
  /** The reply that it answers, under the same comment. */
  answers: string | null;
  /** Null: it is deleted. So is its content. */
  author: Person | null;
  content: string | null;
  deleted: boolean;
  likes: Likes;
  replies: number;
  liked?: boolean;
  version: number;
  createdAt: string;
  updatedAt: string;
}

export interface Person {
  id: string;
  /** The username; null: not an account that registered here. */
  name: string | null;
}

export interface Likes {
  count: number;
  /** True: the count of the stored likes. False: some are on their way to the ledger. */
  exact: boolean;
  asOf: string;
}

export interface LikedBy {
  user: Person;
  at: string;
}

export interface LikedSubject {
  kind: LikedKind;
  id: string;
  at: string;
}

export function presentPost(post: ShownPost): Post {
  return {
    id: post.id,
    author: { id: post.author, name: post.authorName },
    title: post.title,
    content: post.content,
    likes: presentLikes(post.shown),
    comments: post.comments,
    ...(post.liked !== null && { liked: post.liked }),
    version: post.version,
    createdAt: iso(post.createdAtMs),
    updatedAt: iso(post.updatedAtMs),
  };
}

export function presentComment(comment: ShownComment): Comment {
  const { deleted } = comment;
  return {
    id: comment.id,
    postId: comment.postId,
    parentId: comment.parentId,
    answers: comment.answers,
    author: deleted ? null : { id: comment.author, name: comment.authorName },
    content: deleted ? null : comment.content,
    deleted,
    likes: presentLikes(comment.shown),
    replies: comment.replies,
    ...(comment.liked !== null && { liked: comment.liked }),
    version: comment.version,
    createdAt: iso(comment.createdAtMs),
    updatedAt: iso(comment.updatedAtMs),
  };
}

export function presentLikes({ count, exact, asOfMs }: LikeCount): Likes {
  return { count, exact, asOf: iso(asOfMs) };
}

export function presentLiker({ user, name, atMs }: Liker): LikedBy {
  return { user: { id: user, name }, at: iso(atMs) };
}

export function presentLiked(kind: LikedKind, { id, atMs }: { id: string; atMs: number }): LikedSubject {
  return { kind, id, at: iso(atMs) };
}
