import type { IdSequence } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Changed, CommentEdit, KeyedCall, Ledger, PostEdit } from '../ledger/port.ts';
import type { LikedKind } from '../model/like.ts';
import { type CommentMade, Comments } from '../social/comments.ts';
import { LikeDesk } from '../social/like-desk.ts';
import type { LikeOutcome, Likes } from '../social/likes/likes.ts';
import { MadeOnce } from '../social/made-once.ts';
import type { ShownComment, ShownPost, SocialReader } from '../social/port.ts';
import { type PostCreated, Posts } from '../social/posts.ts';
import { SocialPages } from '../views/social-pages.ts';

export interface ShopSocialParts {
  readonly runtime: Runtime;
  readonly ledger: Ledger;
  readonly likes: Likes;
  readonly postIds: IdSequence;
  readonly commentIds: IdSequence;
  /** What has begun is finished before the shop closes, and nothing is begun then. */
  living<T>(work: () => Promise<T>): Promise<T>;
  /** A failure of the ledger here is known everywhere. */
  watched<T>(work: Promise<T>): Promise<T>;
}

/**
 * Posts, comments and likes of a shop, wired:
 *
 *     posts, comments ──▶ ledger                 pages ◀── posts, comments, likes: shared by the public, paced for buyers
 *     likes           ──▶ ledger (direct), or Redis ──▶ pipe ──▶ ledger (counted)
 */
export class ShopSocial {
  readonly pages: SocialPages;
  /** What can be read. */
  readonly reader: SocialReader;
  readonly #posts: Posts;
  readonly #comments: Comments;
  readonly #likes: LikeDesk;
  readonly #living: ShopSocialParts['living'];

  constructor({ runtime, ledger, likes, postIds, commentIds, living, watched }: ShopSocialParts) {
    const common = { clock: runtime.clock, ledger: ledger.social, likes, watched };
    this.#living = living;
    this.#posts = new Posts({
      ...common,
      once: new MadeOnce({ ledger, ids: postIds }),
      changed: (postId) => this.pages.postChanged(postId),
    });
    this.#comments = new Comments({
      ...common,
      once: new MadeOnce({ ledger, ids: commentIds }),
      changed: (postId, commentId) => this.pages.commentChanged(postId, commentId),
    });
    this.#likes = new LikeDesk({ ledger: ledger.social, likes });
    this.reader = { posts: this.#posts, comments: this.#comments, likes: this.#likes };
    this.pages = new SocialPages(runtime, this.reader);
  }

  createPost(post: { author: string; title: string; content: string }, call: KeyedCall | null): Promise<PostCreated> {
    return this.#living(() => this.#posts.create(post, call));
  }

  editPost(postId: string, edit: PostEdit): Promise<Changed<ShownPost>> {
    return this.#living(() => this.#posts.edit(postId, edit));
  }

  deletePost(postId: string, by: string): Promise<'ok' | 'not_found' | 'forbidden'> {
    return this.#living(() => this.#posts.delete(postId, by));
  }

  createComment(
    comment: { postId: string; parentId: string | null; author: string; content: string },
    call: KeyedCall | null,
  ): Promise<CommentMade> {
    return this.#living(() => this.#comments.create(comment, call));
  }

  editComment(commentId: string, edit: CommentEdit): Promise<Changed<ShownComment>> {
    return this.#living(() => this.#comments.edit(commentId, edit));
  }

  deleteComment(commentId: string, by: string): Promise<'ok' | 'not_found' | 'forbidden'> {
    return this.#living(() => this.#comments.delete(commentId, by));
  }

  setLike(kind: LikedKind, id: string, user: string, liked: boolean): Promise<LikeOutcome> {
    return this.#living(() => this.#likes.set(kind, id, user, liked));
  }
}
