// The limits of likes on MariaDB, in our tables: the rows of a batch and the counts of their posts in one transaction, with nothing read, locked,
// compared or answered; and a page of posts by their ids.
import { createPool, type Pool } from 'mysql2/promise';

export interface BareLike {
  readonly postId: string;
  readonly user: string;
}

export class Bare {
  readonly #pool: Pool;
  #number = 2 ** 41;

  constructor(url: string) {
    this.#pool = createPool({ uri: url, connectionLimit: 8, multipleStatements: true, supportBigNumbers: true });
  }

  /** One trip. SQL built by hand, and rows in the order of the table: both make it faster. The names need no escaping. */
  async upsert(batch: readonly BareLike[]): Promise<void> {
    const now = Date.now();
    const more = new Map<string, number>();
    for (const { postId } of batch) more.set(postId, (more.get(postId) ?? 0) + 1);
    const moved = Map.groupBy(more.keys(), (postId) => more.get(postId)!);
    const rows = batch
      .toSorted((a, b) => (a.postId === b.postId ? (a.user < b.user ? -1 : 1) : a.postId < b.postId ? -1 : 1))
      .map(({ postId, user }) => `(${postId},'${user}',1,${this.#number++},${now})`);
    const counts = [...moved].map(
      ([by, ids]) =>
        `UPDATE posts SET likes_count = likes_count + ${by}, likes_rev = likes_rev + 1 WHERE id IN (${ids.sort().join()});`,
    );
    await this.#again(
      `START TRANSACTION; INSERT INTO post_likes (post_id, liker, liked, number, changed_at) VALUES ${rows.join()}
         ON DUPLICATE KEY UPDATE liked = VALUES(liked), number = VALUES(number), changed_at = VALUES(changed_at);
       ${counts.join('')} COMMIT`,
    );
  }

  /** Batches that are written side by side may lock posts in different orders. */
  async #again(sql: string): Promise<void> {
    for (;;) {
      try {
        await this.#pool.query(sql);
        return;
      } catch (error) {
        if ((error as { code?: string }).code !== 'ER_LOCK_DEADLOCK') throw error;
      }
    }
  }

  async page(ids: readonly string[]): Promise<unknown[]> {
    const [rows] = await this.#pool.query(
      `SELECT id, author, title, content, likes_count, comments_count, status, version, created_at, updated_at
       FROM posts WHERE id IN (${ids.join()})`,
    );
    return rows as unknown[];
  }

  end(): Promise<void> {
    return this.#pool.end();
  }
}
