import type { LikedKind, Pair, Subject } from '../model/like.ts';
import type { CommentRecord, PostRecord } from '../model/social.ts';
import type { Page } from './port/page.ts';
import type {
  Changed,
  CommentCreated,
  CommentEdit,
  CommentPage,
  CommentsOf,
  Liked,
  Liker,
  LikerPage,
  LikesOf,
  NewComment,
  NewPost,
  PostEdit,
  SocialLedger,
  WrongCount,
} from './port/social.ts';
import type { Store } from './store.ts';
import * as comments from './works/comments.ts';
import { checkCounts } from './works/count-check.ts';
import * as likes from './works/like-reads.ts';
import * as posts from './works/posts.ts';

export class SocialBook implements SocialLedger {
  readonly #on: Store;
  readonly #createPost: (post: NewPost) => Promise<PostRecord>;
  readonly #createComment: (comment: NewComment) => Promise<CommentCreated>;

  constructor(store: Store) {
    this.#on = store;
    this.#createPost = store.together(posts.createPosts, { as: 'statements' });
    this.#createComment = store.together((batch) => comments.createComments(batch, store.dialect), {
      as: 'change',
      // By their own ids, not by their posts: of one name only one goes into a transaction, and comments on a hot post share it.
      about: ({ id }) => id,
    });
  }

  createPost(post: NewPost): Promise<PostRecord> {
    return this.#createPost(post);
  }

  getPost(postId: string): Promise<PostRecord | null> {
    return this.#on.look(() => posts.getPost(postId));
  }

  listPosts(filter: { author?: string }, page: Page, reader: string | null): Promise<Liked<PostRecord>[]> {
    return this.#on.look(() => posts.listPosts(filter, page, reader, this.#on.dialect));
  }

  editPost(postId: string, edit: PostEdit): Promise<Changed<PostRecord>> {
    return this.#on.changeShared(() => posts.editPost(postId, edit, this.#on.dialect));
  }

  deletePost(postId: string, by: string): Promise<Changed<PostRecord>> {
    return this.#on.changeShared(() => posts.deletePost(postId, by, this.#on.dialect));
  }

  createComment(comment: NewComment): Promise<CommentCreated> {
    return this.#createComment(comment);
  }

  getComment(commentId: string): Promise<CommentRecord | null> {
    return this.#on.look(() => comments.getComment(commentId));
  }

  listComments(of: CommentsOf, page: CommentPage, reader: string | null): Promise<Liked<CommentRecord>[]> {
    return this.#on.look(() => comments.listComments(of, page, reader, this.#on.dialect));
  }

  commentsBy(author: string, page: Page): Promise<CommentRecord[]> {
    return this.#on.look(() => comments.commentsBy(author, page, this.#on.dialect));
  }

  editComment(commentId: string, edit: CommentEdit): Promise<Changed<CommentRecord>> {
    return this.#on.changeShared(() => comments.editComment(commentId, edit, this.#on.dialect));
  }

  deleteComment(commentId: string, by: string): Promise<Changed<CommentRecord>> {
    return this.#on.changeShared(() => comments.deleteComment(commentId, by, this.#on.dialect));
  }

  async likedAmong(pairs: readonly Pair[]): Promise<boolean[]> {
    return (await this.#on.look(() => likes.likeRows(pairs))).map((row) => row?.liked ?? false);
  }

  likersOf(subject: Subject, page: LikerPage): Promise<Liker[]> {
    return this.#on.look(() => likes.likersOf(subject, page));
  }

  likesOf(user: string, kind: LikedKind, page: LikerPage): Promise<LikesOf> {
    return this.#on.look(() => likes.likesOf(user, kind, page));
  }

  checkCounts(
    kind: LikedKind,
    after: string | null,
    limit: number,
  ): Promise<{ wrong: WrongCount[]; next: string | null }> {
    return this.#on.lookElsewhere(() => checkCounts(kind, after, limit));
  }
}
