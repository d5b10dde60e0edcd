import type { Clock } from '../base/clock.ts';
import { isId } from '../base/ids.ts';
import type {
  Changed,
  CommentEdit,
  CommentPage,
  CommentsOf,
  KeyedCall,
  Liked,
  Page,
  SocialLedger,
} from '../ledger/port.ts';
import { subjectOf } from '../model/like.ts';
import type { CommentRecord } from '../model/social.ts';
import type { Likes, PageMark } from './likes/likes.ts';
import type { MadeOnce } from './made-once.ts';
import type { Before, ShownComment } from './port.ts';

export type CommentMade =
  | { readonly outcome: 'ok'; readonly comment: ShownComment; readonly replayed: boolean }
  /** There is no such post or parent, or it was deleted. */
  | { readonly outcome: 'not_found'; readonly what: 'post' | 'parent' }
  /** The parent is a comment on another post. */
  | { readonly outcome: 'other_post' }
  | { readonly outcome: 'idempotency_key_reused' };

export interface CommentsDependencies {
  readonly clock: Clock;
  readonly ledger: SocialLedger;
  readonly likes: Likes;
  readonly once: MadeOnce;
  /** This comment was made, edited or deleted here: copies for the public are outdated. */
  readonly changed: (postId: string, commentId: string) => void;
  /** A failure of the ledger here is known everywhere. */
  watched<T>(work: Promise<T>): Promise<T>;
}

/** Comments and replies. Expects input of the right types and lengths (contract/schemas.ts); an id may be any text. */
export class Comments {
  readonly #on: CommentsDependencies;

  constructor(dependencies: CommentsDependencies) {
    this.#on = dependencies;
  }

  /** A repeat with the same key gets the comment as it was made, whatever has become of it since. */
  async create(
    comment: { postId: string; parentId: string | null; author: string; content: string },
    call: KeyedCall | null,
    before: Before,
  ): Promise<CommentMade> {
    const { postId, parentId, author, content } = comment;
    if (!isId(postId)) return { outcome: 'not_found', what: 'post' };
    if (parentId !== null && !isId(parentId)) return { outcome: 'not_found', what: 'parent' };
    const { ledger, once, watched, changed } = this.#on;
    const claimed = await once.claim(call, before.begin);
    if (claimed.outcome !== 'ok') return claimed;
    const { id } = claimed;
    const again = async (): Promise<CommentMade | null> => {
      const found = await ledger.getComment(id);
      return found && { outcome: 'ok', comment: fresh({ ...found, author, content }), replayed: true };
    };
    const earlier = claimed.mayExist ? await again() : null;
    if (earlier !== null) return earlier;
    await before.note(id);
    try {
      const made = await watched(ledger.createComment({ id, postId, parentId, author, content }));
      if (made.outcome === 'not_found') return { outcome: 'not_found', what: 'post' };
      if (made.outcome === 'no_parent') return await this.#noParent(postId, parentId!);
      changed(postId, id);
      return { outcome: 'ok', comment: fresh(made.record), replayed: false };
    } catch (error) {
      // Another process, to which the call was sent as well, may have been faster.
      const made = call === null ? null : await again().catch(() => null);
      if (made === null) throw error;
      return made;
    }
  }

  async #noParent(postId: string, parentId: string): Promise<CommentMade> {
    const parent = await this.#on.ledger.getComment(parentId);
    const isOther = parent !== null && !parent.deleted && parent.postId !== postId;
    return isOther ? { outcome: 'other_post' } : { outcome: 'not_found', what: 'parent' };
  }

  /** Null: there is no such comment, or it was deleted. */
  async get(commentId: string, reader: string | null): Promise<ShownComment | null> {
    if (!isId(commentId)) return null;
    const { clock, ledger, likes } = this.#on;
    const mark = likes.mark();
    const asOfMs = clock.now();
    const comment = await ledger.getComment(commentId);
    if (comment === null || comment.deleted) return null;
    const [shown] = await this.#withLiked([comment], reader, asOfMs, mark);
    return shown!;
  }

  /** Null: there is no such post, or it was deleted. Deleted comments that have replies are in the list. */
  async list(of: CommentsOf, page: CommentPage, reader: string | null): Promise<ShownComment[] | null> {
    const { postId, parentId } = of;
    if (!isId(postId)) return null;
    const { clock, ledger, likes } = this.#on;
    const mark = likes.mark();
    const asOfMs = clock.now();
    const [post, comments] = await Promise.all([
      ledger.getPost(postId),
      parentId !== null && !isId(parentId) ? [] : ledger.listComments(of, page, reader),
    ]);
    if (post === null || post.deleted) return null;
    return await this.#shown(comments, reader, asOfMs, mark);
  }

  /** What this author wrote, newest first, as the author sees it. */
  async by(author: string, page: Page): Promise<ShownComment[]> {
    const { clock, ledger, likes } = this.#on;
    const mark = likes.mark();
    const asOfMs = clock.now();
    return await this.#withLiked(await ledger.commentsBy(author, page), author, asOfMs, mark);
  }

  async edit(commentId: string, edit: CommentEdit): Promise<Changed<ShownComment>> {
    if (!isId(commentId)) return { outcome: 'not_found' };
    const { ledger, likes, watched, changed } = this.#on;
    const mark = likes.mark();
    const edited = await watched(ledger.editComment(commentId, edit));
    if (!('record' in edited)) return edited;
    if (edited.outcome === 'ok') changed(edited.record.postId, commentId);
    const [record] = await this.#withLiked([edited.record], edit.by, edited.record.updatedAtMs, mark);
    return { ...edited, record: record! };
  }

  /** Deleting it again changes nothing. */
  async delete(commentId: string, by: string): Promise<'ok' | 'not_found' | 'forbidden'> {
    if (!isId(commentId)) return 'not_found';
    const { ledger, likes, watched, changed } = this.#on;
    const deleted = await watched(ledger.deleteComment(commentId, by));
    if (deleted.outcome === 'version_conflict') throw new Error('a deletion has no version');
    if (deleted.outcome === 'ok') {
      changed(deleted.record.postId, commentId);
      // If Redis cannot be told now, it finds out by itself within seconds.
      await likes.forget(subjectOf('comment', commentId)).catch(() => undefined);
    }
    return deleted.outcome;
  }

  async #withLiked(
    comments: readonly CommentRecord[],
    reader: string | null,
    asOfMs: number,
    mark: PageMark,
  ): Promise<ShownComment[]> {
    const pairs =
      reader === null ? [] : comments.map(({ id }) => ({ subject: subjectOf('comment', id), user: reader }));
    const liked = pairs.length === 0 ? [] : await this.#on.ledger.likedAmong(pairs);
    const settled = comments.map((comment, at) => ({ ...comment, liked: liked[at] ?? false }));
    return await this.#shown(settled, reader, asOfMs, mark);
  }

  async #shown(
    comments: readonly Liked<CommentRecord>[],
    reader: string | null,
    asOfMs: number,
    mark: PageMark,
  ): Promise<ShownComment[]> {
    // Nobody can like a deleted one: its count stands still in the ledger.
    const live = comments.filter(({ deleted }) => !deleted);
    const looks = await this.#on.likes.look(
      reader,
      live.map(({ id, likes: count, liked }) => ({ subject: subjectOf('comment', id), count, liked, asOfMs })),
      mark,
    );
    const looked = new Map(live.map(({ id }, at) => [id, looks[at]!]));
    return comments.map((comment) => {
      const look = looked.get(comment.id) ?? { count: comment.likes, exact: true, asOfMs, liked: false };
      const { liked, ...shown } = look;
      return { ...comment, shown, liked: reader === null ? null : liked };
    });
  }
}

/** A comment as it is made: nobody has liked it or replied to it. */
function fresh(comment: CommentRecord): ShownComment {
  const { createdAtMs } = comment;
  return {
    ...comment,
    likes: 0,
    replies: 0,
    deleted: false,
    version: 1,
    updatedAtMs: createdAtMs,
    shown: { count: 0, exact: true, asOfMs: createdAtMs },
    liked: false,
  };
}
