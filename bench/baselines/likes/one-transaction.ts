// The document's §2 (docs/concepts/sources.md, 001): BEGIN, INSERT of the like, UPDATE of the post's count, COMMIT, in the document's tables. They
// are as in §1, but for a semicolon in the middle of `posts` and the columns' comments.
import { createPool, type Pool } from 'mysql2/promise';

const TABLES = [
  `CREATE TABLE posts (
     id BIGINT PRIMARY KEY AUTO_INCREMENT, user_id BIGINT NOT NULL, title VARCHAR(200) NOT NULL, content TEXT NOT NULL,
     likes_count INT NOT NULL DEFAULT 0, comments_count INT NOT NULL DEFAULT 0, status TINYINT NOT NULL DEFAULT 1,
     created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
     updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
     version INT NOT NULL DEFAULT 0, KEY idx_user_id (user_id), KEY idx_created_at (created_at))`,
  `CREATE TABLE post_likes (
     id BIGINT PRIMARY KEY AUTO_INCREMENT, post_id BIGINT NOT NULL, user_id BIGINT NOT NULL,
     created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
     UNIQUE KEY idx_post_user (post_id, user_id), KEY idx_user_id (user_id))`,
];

const CONNECTIONS = 64;

export class OneTransaction {
  readonly #pool: Pool;

  private constructor(pool: Pool) {
    this.#pool = pool;
  }

  /** In an empty database. */
  static async open(url: string): Promise<OneTransaction> {
    const pool = createPool({ uri: url, connectionLimit: CONNECTIONS });
    for (const table of TABLES) await pool.query(table);
    // Opened before anything is measured.
    const all = await Promise.all(Array.from({ length: CONNECTIONS }, () => pool.getConnection()));
    for (const one of all) one.release();
    return new OneTransaction(pool);
  }

  async createPosts(ids: readonly string[]): Promise<void> {
    await this.#pool.query('INSERT INTO posts (id, user_id, title, content) VALUES ?', [
      ids.map((id) => [BigInt(id), 1, 'A post', 'Its text']),
    ]);
  }

  async like(postId: string, userId: number): Promise<void> {
    const one = await this.#pool.getConnection();
    try {
      await one.beginTransaction();
      await one.query('INSERT INTO post_likes (post_id, user_id) VALUES (?, ?)', [BigInt(postId), userId]);
      await one.query('UPDATE posts SET likes_count = likes_count + 1 WHERE id = ?', [BigInt(postId)]);
      await one.commit();
    } catch (error) {
      await one.rollback();
      throw error;
    } finally {
      one.release();
    }
  }

  /** Likes of these posts: by their counts, and by their rows. */
  async counted(ids: readonly string[]): Promise<{ counts: number; rows: number }> {
    const [found] = await this.#pool.query(
      `SELECT (SELECT sum(likes_count) FROM posts WHERE id IN (?)) AS counts,
         (SELECT count(*) FROM post_likes WHERE post_id IN (?)) AS \`rows\``,
      [ids.map(BigInt), ids.map(BigInt)],
    );
    const [{ counts, rows }] = found as [{ counts: string; rows: number }];
    return { counts: Number(counts), rows };
  }

  end(): Promise<void> {
    return this.#pool.end();
  }
}
