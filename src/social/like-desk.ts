import { isId } from '../base/ids.ts';
import type { Liker, LikerPage, LikesOf, SocialLedger } from '../ledger/port.ts';
import { type LikedKind, subjectOf } from '../model/like.ts';
import type { LikeOutcome, Likes } from './likes/likes.ts';

export interface LikeDeskDependencies {
  readonly ledger: SocialLedger;
  readonly likes: Likes;
}

/**
 * Likes as HTTP and the library ask for them. A like itself is exact at once; the lists are those of the stored rows, which may be behind
 * while likes are on their way to the ledger.
 */
export class LikeDesk {
  readonly #on: LikeDeskDependencies;

  constructor(dependencies: LikeDeskDependencies) {
    this.#on = dependencies;
  }

  /** Repeating it changes nothing. */
  async set(kind: LikedKind, id: string, user: string, liked: boolean): Promise<LikeOutcome> {
    if (!isId(id)) return { outcome: 'not_found' };
    return await this.#on.likes.set(subjectOf(kind, id), user, liked);
  }

  /** Who likes it, the newest first. Null: there is no such post or comment, or it was deleted. */
  async likers(kind: LikedKind, id: string, page: LikerPage): Promise<Liker[] | null> {
    if (!isId(id)) return null;
    const { ledger } = this.#on;
    const [subject, likers] = await Promise.all([
      kind === 'post' ? ledger.getPost(id) : ledger.getComment(id),
      ledger.likersOf(subjectOf(kind, id), page),
    ]);
    return subject === null || subject.deleted ? null : likers;
  }

  /** What a user likes, the newest first. */
  async likesOf(user: string, kind: LikedKind, page: LikerPage): Promise<LikesOf> {
    return await this.#on.ledger.likesOf(user, kind, page);
  }
}
