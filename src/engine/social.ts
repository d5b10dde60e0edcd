import type { IdSequence } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Actor, Changed, CommentEdit, KeyedCall, Ledger, PostEdit } from '../ledger/port.ts';
import { type LikedKind, subjectOf } from '../model/like.ts';
import { type CommentMade, Comments } from '../social/comments.ts';
import { LikeDesk } from '../social/like-desk.ts';
import type { LikeOutcome, Likes } from '../social/likes/likes.ts';
import { MadeOnce } from '../social/made-once.ts';
import type { Before, ShownComment, ShownPost, SocialReader } from '../social/port.ts';
import { type PostCreated, Posts } from '../social/posts.ts';
import type { RoomForWriting } from '../social/room.ts';
import { SocialPages } from '../views/social-pages.ts';

export interface ShopSocialParts {
  readonly runtime: Runtime;
  readonly ledger: Ledger;
  readonly likes: Likes;
  readonly postIds: IdSequence;
  readonly commentIds: IdSequence;
  readonly auditIds: IdSequence;
  /** Null: the disk is somebody else's. */
  readonly room: RoomForWriting | null;
  /** What has begun is finished before the shop closes, and nothing is begun then. */
  living<T>(work: () => Promise<T>): Promise<T>;
  /** A failure of the ledger here is known everywhere. */
  watched<T>(work: Promise<T>): Promise<T>;
}

type MayBegin = () => void;

const anyTime: MayBegin = () => undefined;

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
  readonly #room: RoomForWriting | null;
  readonly #note: (by: Actor, action: string, kind: LikedKind, id: string, buyer: string) => Promise<void>;

  constructor({ runtime, ledger, likes, postIds, commentIds, auditIds, room, living, watched }: ShopSocialParts) {
    const common = { clock: runtime.clock, ledger: ledger.social, likes, watched };
    const keys: Pick<Ledger, 'findKey' | 'bindAnswer'> = {
      findKey: (scope) => watched(ledger.findKey(scope)),
      bindAnswer: (scope, answer) => watched(ledger.bindAnswer(scope, answer)),
    };
    this.#living = living;
    this.#room = room;
    this.#note = async (by, action, kind, id, buyer) => {
      const note = { auditId: await auditIds.next(), by, action, subject: subjectOf(kind, id), detail: { buyer } };
      await watched(ledger.note(note));
    };
    this.#posts = new Posts({
      ...common,
      once: new MadeOnce({ ledger: keys, ids: postIds }),
      changed: (postId) => this.pages.postChanged(postId),
    });
    this.#comments = new Comments({
      ...common,
      once: new MadeOnce({ ledger: keys, ids: commentIds }),
      changed: (postId, commentId) => this.pages.commentChanged(postId, commentId),
    });
    this.#likes = new LikeDesk({ ledger: ledger.social, likes });
    this.reader = { posts: this.#posts, comments: this.#comments, likes: this.#likes };
    this.pages = new SocialPages(runtime, this.reader);
  }

  // `acting`: the admin who does it for a buyer. It stands in the audit before it is done: a row too many says that somebody tried, one
  // too few would say nothing.
  // `mayBegin`: called before something new is stored, and not for a repeat; throws if it may not be.

  createPost(
    post: { author: string; title: string; content: string },
    call: KeyedCall | null,
    acting: Actor | null = null,
    mayBegin: MayBegin = anyTime,
  ): Promise<PostCreated> {
    return this.#living(() => this.#posts.create(post, call, this.#before(acting, 'post', post.author, mayBegin)));
  }

  editPost(
    postId: string,
    edit: PostEdit,
    acting: Actor | null = null,
    mayBegin: MayBegin = anyTime,
  ): Promise<Changed<ShownPost>> {
    return this.#living(async () => {
      await this.#begin(mayBegin);
      await this.#noteChange(acting, 'post.edit', 'post', postId, edit.by);
      return await this.#posts.edit(postId, edit);
    });
  }

  deletePost(postId: string, by: string, acting: Actor | null = null): Promise<'ok' | 'not_found' | 'forbidden'> {
    return this.#living(async () => {
      await this.#noteChange(acting, 'post.delete', 'post', postId, by);
      return await this.#posts.delete(postId, by);
    });
  }

  createComment(
    comment: { postId: string; parentId: string | null; author: string; content: string },
    call: KeyedCall | null,
    acting: Actor | null = null,
    mayBegin: MayBegin = anyTime,
  ): Promise<CommentMade> {
    const before = this.#before(acting, 'comment', comment.author, mayBegin);
    return this.#living(() => this.#comments.create(comment, call, before));
  }

  editComment(
    commentId: string,
    edit: CommentEdit,
    acting: Actor | null = null,
    mayBegin: MayBegin = anyTime,
  ): Promise<Changed<ShownComment>> {
    return this.#living(async () => {
      await this.#begin(mayBegin);
      await this.#noteChange(acting, 'comment.edit', 'comment', commentId, edit.by);
      return await this.#comments.edit(commentId, edit);
    });
  }

  deleteComment(commentId: string, by: string, acting: Actor | null = null): Promise<'ok' | 'not_found' | 'forbidden'> {
    return this.#living(async () => {
      await this.#noteChange(acting, 'comment.delete', 'comment', commentId, by);
      return await this.#comments.delete(commentId, by);
    });
  }

  setLike(
    kind: LikedKind,
    id: string,
    user: string,
    liked: boolean,
    acting: Actor | null = null,
  ): Promise<LikeOutcome> {
    return this.#living(async () => {
      await this.#noteChange(acting, liked ? 'like.set' : 'like.take_back', kind, id, user);
      return await this.#likes.set(kind, id, user, liked);
    });
  }

  #before(acting: Actor | null, kind: LikedKind, author: string, mayBegin: MayBegin): Before {
    return {
      begin: () => this.#begin(mayBegin),
      note: async (id) => {
        if (acting !== null) await this.#note(acting, `${kind}.create`, kind, id, author);
      },
    };
  }

  async #begin(mayBegin: MayBegin): Promise<void> {
    await this.#room?.mustBeEnough();
    mayBegin();
  }

  /** Of something that is not there nothing is noted: the change will be refused. */
  async #noteChange(acting: Actor | null, action: string, kind: LikedKind, id: string, buyer: string): Promise<void> {
    if (acting === null) return;
    const found = await (kind === 'post' ? this.#posts : this.#comments).get(id, null);
    if (found !== null) await this.#note(acting, action, kind, id, buyer);
  }
}
