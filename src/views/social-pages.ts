import { isId } from '../base/ids.ts';
import type { During } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Timers } from '../base/timers.ts';
import type { CommentPage, CommentsOf, LikerPage, Page } from '../ledger/port.ts';
import { commentCursor, likeCursor } from '../model/cursor.ts';
import { type LikedKind, subjectOf } from '../model/like.ts';
import type { ShownPost, SocialReader } from '../social/port.ts';
import { BuyerPages } from './buyer-pages.ts';
import {
  type Comment,
  type LikedBy,
  type LikedSubject,
  type Post,
  presentComment,
  presentLiked,
  presentLiker,
  presentPost,
} from './present-social.ts';
import type { PublicAnswer } from './public-answer.ts';
import { type Part, PublicPages, type Reader } from './public-pages.ts';

/** A page ends with the row that reaches this: 200 posts of 10 000 characters would be 2 MB for anybody who asks. */
const PAGE_CHARS_MAX = 256 * 1024;
const PAGE_ROWS_MAX = 200;
/** Posts read in one step: the longest fill a page with 27, and what is read beyond its end is thrown away. */
const STEP_POSTS = 32;

/** Who asks. `reader` null: an admin, who waits behind nobody; `likes` are shown for nobody then. */
export interface Asking {
  readonly reader: string | null;
}

export interface Listed<T> {
  data: T[];
  nextCursor: string | null;
}

/**
 * Pages of posts, comments and likes. The public shares pages that are at most half a second old (public-pages.ts). A buyer gets one that
 * is read now, with what the buyer likes, at a bounded pace.
 */
export class SocialPages {
  readonly #from: SocialReader;
  readonly #timers: Timers;
  readonly #public: PublicPages;
  readonly #buyers: BuyerPages;

  constructor(runtime: Runtime, from: SocialReader) {
    this.#from = from;
    this.#timers = runtime.timers;
    this.#public = new PublicPages(runtime, 'posts');
    this.#buyers = new BuyerPages(runtime, 'posts');
  }

  /** A post was made, edited or deleted here: whoever did it must see it at once. */
  postChanged(postId: string): void {
    this.#public.changed(subjectOf('post', postId));
    this.#public.changed(null);
  }

  /** The same for a comment. Its post's count in the list of posts is as old as that page. */
  commentChanged(postId: string, commentId: string): void {
    this.#public.changed(subjectOf('post', postId));
    this.#public.changed(subjectOf('comment', commentId));
  }

  // For the public

  async publicPosts(filter: { author?: string }, { limit, before }: Page, reader?: Reader): Promise<PublicAnswer> {
    const { author } = filter;
    const asked = {
      of: author === undefined ? null : `author:${author}`,
      page: before ?? '',
      isFirst: author === undefined && before === null,
      reader,
    };
    const found = await this.#public.page(asked, limit, async (during) => {
      const posts = await this.#readPosts(filter, before, during);
      return during(() => written(posts.map(presentPost), PAGE_ROWS_MAX, (at) => posts[at]!.id));
    });
    return found!;
  }

  /** So many that they fill a page, and one more if there are others. */
  async #readPosts(filter: { author?: string }, before: string | null, during: During): Promise<ShownPost[]> {
    const posts: ShownPost[] = [];
    let chars = 0;
    for (;;) {
      const isFull = chars >= PAGE_CHARS_MAX;
      const limit = isFull ? 1 : Math.min(STEP_POSTS, PAGE_ROWS_MAX + 1 - posts.length);
      const page = { limit, before: posts.at(-1)?.id ?? before };
      const some = await during(() => this.#from.posts.list(filter, page, null));
      for (const post of some) {
        posts.push(post);
        // This one begins the next page.
        if (chars >= PAGE_CHARS_MAX) return posts;
        chars += charsOf(post);
      }
      if (some.length < limit || posts.length > PAGE_ROWS_MAX) return posts;
      // An embedded ledger has answered within this turn: others have theirs in between.
      await new Promise<void>((resolve) => this.#timers.nextTurn(resolve));
    }
  }

  async publicPost(postId: string, reader?: Reader): Promise<PublicAnswer | null> {
    if (!isId(postId)) return null;
    return await this.#public.one(subjectOf('post', postId), reader, async (during) => {
      const post = await during(() => this.#from.posts.get(postId, null));
      return post && JSON.stringify(presentPost(post));
    });
  }

  async publicComment(commentId: string, reader?: Reader): Promise<PublicAnswer | null> {
    if (!isId(commentId)) return null;
    return await this.#public.one(subjectOf('comment', commentId), reader, async (during) => {
      const comment = await during(() => this.#from.comments.get(commentId, null));
      return comment && JSON.stringify(presentComment(comment));
    });
  }

  async publicComments(of: CommentsOf, page: CommentPage, reader?: Reader): Promise<PublicAnswer | null> {
    const { postId, parentId } = of;
    if (!isId(postId)) return null;
    const { order, limit, before } = page;
    const cursor = before === null ? '' : commentCursor(before);
    const asked = {
      of: subjectOf('post', postId),
      page: `comments ${parentId ?? ''} ${order} ${cursor}`,
      isFirst: parentId === null && before === null,
      reader,
    };
    return await this.#public.page(asked, limit, async (during) => {
      const all = { ...page, limit: PAGE_ROWS_MAX + 1 };
      const comments = await during(() => this.#from.comments.list(of, all, null));
      if (comments === null) return null;
      return during(() => written(comments.map(presentComment), PAGE_ROWS_MAX, (at) => commentCursor(comments[at]!)));
    });
  }

  async publicLikers(
    kind: LikedKind,
    id: string,
    { limit, before }: LikerPage,
    reader?: Reader,
  ): Promise<PublicAnswer | null> {
    if (!isId(id)) return null;
    const cursor = before === null ? '' : likeCursor(before.atMs, before.key);
    const asked = { of: subjectOf(kind, id), page: `likes ${cursor}`, isFirst: before === null, reader };
    return await this.#public.page(asked, limit, async (during) => {
      const likers = await during(() => this.#from.likes.likers(kind, id, { limit: PAGE_ROWS_MAX + 1, before }));
      if (likers === null) return null;
      const cursorAt = (at: number): string => likeCursor(likers[at]!.atMs, likers[at]!.user);
      return during(() => written(likers.map(presentLiker), PAGE_ROWS_MAX, cursorAt));
    });
  }

  // For those who are known

  posts({ reader }: Asking, filter: { author?: string }, { limit, before }: Page): Promise<Listed<Post>> {
    return this.#paced(reader, async (during) => {
      const posts = await during(() => this.#from.posts.list(filter, { limit: limit + 1, before }, reader));
      return during(() => listed(posts.map(presentPost), limit, (at) => posts[at]!.id));
    });
  }

  comments({ reader }: Asking, of: CommentsOf, page: CommentPage): Promise<Listed<Comment> | null> {
    const { limit } = page;
    return this.#paced(reader, async (during) => {
      const comments = await during(() => this.#from.comments.list(of, { ...page, limit: limit + 1 }, reader));
      if (comments === null) return null;
      return during(() => listed(comments.map(presentComment), limit, (at) => commentCursor(comments[at]!)));
    });
  }

  likers({ reader }: Asking, kind: LikedKind, id: string, page: LikerPage): Promise<Listed<LikedBy> | null> {
    const { limit, before } = page;
    return this.#paced(reader, async (during) => {
      const likers = await during(() => this.#from.likes.likers(kind, id, { limit: limit + 1, before }));
      if (likers === null) return null;
      const cursorAt = (at: number): string => likeCursor(likers[at]!.atMs, likers[at]!.user);
      return listed(likers.map(presentLiker), limit, cursorAt);
    });
  }

  likesOf(user: string, kind: LikedKind, { limit, before }: LikerPage): Promise<Listed<LikedSubject>> {
    return this.#paced(user, async (during) => {
      const { rows, next } = await during(() => this.#from.likes.likesOf(user, kind, { limit: limit + 1, before }));
      const cursorAt = (at: number): string => likeCursor(rows[at]!.atMs, rows[at]!.id);
      const { data, nextCursor } = listed(
        rows.map((one) => presentLiked(kind, one)),
        limit,
        cursorAt,
      );
      return { data, nextCursor: nextCursor ?? (next && likeCursor(next.atMs, next.key)) };
    });
  }

  commentsBy(author: string, { limit, before }: Page): Promise<Listed<Comment>> {
    return this.#paced(author, async (during) => {
      const comments = await during(() => this.#from.comments.by(author, { limit: limit + 1, before }));
      return during(() => listed(comments.map(presentComment), limit, (at) => comments[at]!.id));
    });
  }

  async #paced<T>(reader: string | null, read: (during: During) => Promise<T>): Promise<T> {
    return reader === null ? await read((piece) => piece()) : await this.#buyers.run(reader, read);
  }
}

/** `rows`: one more than the page has, if there are others. */
function listed<T extends object>(rows: T[], limit: number, cursorAt: (at: number) => string): Listed<T> {
  const length = lengthOf(rows, limit);
  return { data: rows.slice(0, length), nextCursor: rows.length > length ? cursorAt(length - 1) : null };
}

function written(rows: readonly object[], limit: number, cursorAt: (at: number) => string): Part {
  const length = lengthOf(rows, limit);
  const some = rows.slice(0, length).map((row, at) => ({ cursor: cursorAt(at), json: JSON.stringify(row) }));
  return { rows: some, more: rows.length > length };
}

/** How many of the rows make a page. */
function lengthOf(rows: readonly object[], limit: number): number {
  let chars = 0;
  for (let at = 0; at < Math.min(rows.length, limit); at++) {
    chars += charsOf(rows[at]!);
    if (chars >= PAGE_CHARS_MAX) return at + 1;
  }
  return Math.min(rows.length, limit);
}

function charsOf(row: object): number {
  const { title, content } = row as { title?: string; content?: string | null };
  return (title?.length ?? 0) + (content?.length ?? 0);
}
