import { expect } from 'vitest';
import type { LikeLedger, SocialLedger } from '../../src/ledger/port.ts';
import type { LikedKind, Subject } from '../../src/model/like.ts';
import type { CommentRecord, PostRecord } from '../../src/model/social.ts';
import type { LifeUnderTest } from './ledger-life-kit.ts';

/** Posts, comments and likes of a test in few words. */
export class SocialKit {
  readonly world: LifeUnderTest;
  /** Ids beyond what a double holds: two neighbours would become one. */
  #lastId = 2n ** 60n;

  constructor(world: LifeUnderTest) {
    this.world = world;
  }

  get social(): SocialLedger {
    return this.world.ledger.social;
  }

  get likes(): LikeLedger {
    return this.world.ledger.likes;
  }

  id(): string {
    return String(++this.#lastId);
  }

  post(over: Partial<{ id: string; author: string; title: string; content: string }> = {}): Promise<PostRecord> {
    return this.social.createPost({ id: this.id(), author: 'ann', title: 'T', content: 'C', ...over });
  }

  async comment(
    postId: string,
    parentId: string | null = null,
    over: Partial<{ author: string; content: string }> = {},
  ): Promise<CommentRecord> {
    const comment = { id: this.id(), postId, parentId, author: 'bob', content: 'c', ...over };
    const created = await this.social.createComment(comment);
    if (created.outcome !== 'ok') throw new Error(created.outcome);
    return created.record;
  }

  like(subject: Subject, user: string, liked = true) {
    return this.likes.setLike({ subject, user, liked });
  }

  async register(subject: string, username: string): Promise<void> {
    await this.world.change(
      `INSERT INTO users (id, subject, username, email, password_hash, created_at, updated_at)
       VALUES (${this.id()}, '${subject}', '${username}', '${username}@example.org', 'x', 1, 1)`,
    );
  }

  /** What the rows of a subject say, behind the ledger's back. */
  async stored(subject: Subject): Promise<{ count: number; rev: number; likers: string[] }> {
    const [kind, id] = subject.split(':') as [LikedKind, string];
    const [row] = await this.world.rows(`SELECT likes_count, likes_rev FROM ${kind}s WHERE id = ${id}`);
    const likers = await this.world.rows(
      `SELECT liker FROM ${kind}_likes WHERE ${kind}_id = ${id} AND liked = 1 ORDER BY liker`,
    );
    return {
      count: Number(row!.likes_count),
      rev: Number(row!.likes_rev),
      likers: likers.map(({ liker }) => String(liker)),
    };
  }

  /** P8: every count equals its rows. */
  async expectRightCounts(): Promise<void> {
    for (const kind of ['post', 'comment'] as const) {
      let after: string | null = null;
      do {
        const { wrong, next } = await this.social.checkCounts(kind, after, 200);
        expect(wrong).toEqual([]);
        after = next;
      } while (after !== null);
    }
  }
}

/** All rows of a list, read in pages of `limit`. */
export async function inPages<R, C>(
  limit: number,
  read: (before: C | null) => Promise<R[]>,
  cursorOf: (last: R) => C,
): Promise<R[]> {
  const seen: R[] = [];
  for (let before: C | null = null; seen.length < 100; before = cursorOf(seen.at(-1)!)) {
    const page = await read(before);
    expect(page.length).toBeLessThanOrEqual(limit);
    seen.push(...page);
    if (page.length < limit) return seen;
  }
  throw new Error('a list that does not end');
}
