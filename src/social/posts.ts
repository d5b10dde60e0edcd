import type { Clock } from '../base/clock.ts';
import { isId } from '../base/ids.ts';
import type { Changed, KeyedCall, Liked, Page, PostEdit, SocialLedger } from '../ledger/port.ts';
import { subjectOf } from '../model/like.ts';
import type { PostRecord } from '../model/social.ts';
import type { Likes, PageMark } from './likes/likes.ts';
import type { MadeOnce } from './made-once.ts';
import type { Before, ShownPost } from './port.ts';

export type PostCreated =
  | { readonly outcome: 'ok'; readonly post: ShownPost; readonly replayed: boolean }
  | { readonly outcome: 'idempotency_key_reused' };

export interface PostsDependencies {
  readonly clock: Clock;
  readonly ledger: SocialLedger;
  readonly likes: Likes;
  readonly once: MadeOnce;
  /** A post was made, edited or deleted here: copies of it for the public are outdated. */
  readonly changed: (postId: string) => void;
  /** A failure of the ledger here is known everywhere. */
  watched<T>(work: Promise<T>): Promise<T>;
}

/** Posts. Expects input of the right types and lengths (contract/schemas.ts); an id may be any text. */
export class Posts {
  readonly #on: PostsDependencies;

  constructor(dependencies: PostsDependencies) {
    this.#on = dependencies;
  }

  /** A repeat with the same key gets the post as it was made, whatever has become of it since. */
  async create(
    { author, title, content }: { author: string; title: string; content: string },
    call: KeyedCall | null,
    before: Before,
  ): Promise<PostCreated> {
    const { ledger, once, watched, changed } = this.#on;
    const claimed = await once.claim(call, before.begin);
    if (claimed.outcome !== 'ok') return claimed;
    const { id } = claimed;
    const again = async (): Promise<PostCreated | null> => {
      const found = await ledger.getPost(id);
      return found && { outcome: 'ok', post: fresh({ ...found, title, content }), replayed: true };
    };
    const earlier = claimed.mayExist ? await again() : null;
    if (earlier !== null) return earlier;
    await before.note(id);
    try {
      const post = await watched(ledger.createPost({ id, author, title, content }));
      changed(id);
      return { outcome: 'ok', post: fresh(post), replayed: false };
    } catch (error) {
      // Another process, to which the call was sent as well, may have been faster.
      const made = call === null ? null : await again().catch(() => null);
      if (made === null) throw error;
      return made;
    }
  }

  /** Null: there is no such post, or it was deleted. */
  async get(postId: string, reader: string | null): Promise<ShownPost | null> {
    if (!isId(postId)) return null;
    const { clock, ledger, likes } = this.#on;
    const mark = likes.mark();
    const asOfMs = clock.now();
    const [post, [liked = false] = []] = await Promise.all([
      ledger.getPost(postId),
      reader === null ? [] : ledger.likedAmong([{ subject: subjectOf('post', postId), user: reader }]),
    ]);
    if (post === null || post.deleted) return null;
    const [shown] = await this.#shown([{ ...post, liked }], reader, asOfMs, mark);
    return shown!;
  }

  /** Newest first. One statement for the ledger and, where likes are counted in Redis, one call there. */
  async list(filter: { author?: string }, page: Page, reader: string | null): Promise<ShownPost[]> {
    const { clock, ledger, likes } = this.#on;
    const mark = likes.mark();
    const asOfMs = clock.now();
    return await this.#shown(await ledger.listPosts(filter, page, reader), reader, asOfMs, mark);
  }

  async edit(postId: string, edit: PostEdit): Promise<Changed<ShownPost>> {
    if (!isId(postId)) return { outcome: 'not_found' };
    const { ledger, likes, watched, changed } = this.#on;
    const mark = likes.mark();
    const edited = await watched(ledger.editPost(postId, edit));
    if (!('record' in edited)) return edited;
    if (edited.outcome === 'ok') changed(postId);
    const { record } = edited;
    const [liked = false] = await ledger.likedAmong([{ subject: subjectOf('post', postId), user: edit.by }]);
    const [shown] = await this.#shown([{ ...record, liked }], edit.by, record.updatedAtMs, mark);
    return { ...edited, record: shown! };
  }

  /** Deleting it again changes nothing. */
  async delete(postId: string, by: string): Promise<'ok' | 'not_found' | 'forbidden'> {
    if (!isId(postId)) return 'not_found';
    const { ledger, likes, watched, changed } = this.#on;
    const { outcome } = await watched(ledger.deletePost(postId, by));
    if (outcome === 'version_conflict') throw new Error('a deletion has no version');
    if (outcome === 'ok') {
      changed(postId);
      // If Redis cannot be told now, it finds out by itself within seconds.
      await likes.forget(subjectOf('post', postId)).catch(() => undefined);
    }
    return outcome;
  }

  async #shown(
    posts: readonly Liked<PostRecord>[],
    reader: string | null,
    asOfMs: number,
    mark: PageMark,
  ): Promise<ShownPost[]> {
    const settled = posts.map(({ id, likes: count, liked }) => ({
      subject: subjectOf('post', id),
      count,
      liked,
      asOfMs,
    }));
    const looks = await this.#on.likes.look(reader, settled, mark);
    return posts.map((post, at) => {
      const { liked, ...shown } = looks[at]!;
      return { ...post, shown, liked: reader === null ? null : liked };
    });
  }
}

/** A post as it is made: nobody has liked or commented on it. */
function fresh(post: PostRecord): ShownPost {
  const { createdAtMs } = post;
  return {
    ...post,
    likes: 0,
    comments: 0,
    deleted: false,
    version: 1,
    updatedAtMs: createdAtMs,
    shown: { count: 0, exact: true, asOfMs: createdAtMs },
    liked: false,
  };
}
