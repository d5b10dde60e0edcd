import type { PostRecord } from '../../model/social.ts';
import type { Page } from '../port/page.ts';
import type { Changed, Liked, NewPost, PostEdit } from '../port/social.ts';
import { likedBy } from './like-reads.ts';
import { walked } from './lists.ts';
import { nameStep, namesOf } from './names.ts';
import { ABOUT_NOW, type Cells, CLOCK, type LifeDialect, nowOf, query, type Row, type Work, Writes } from './work.ts';

const COLUMNS = `p.id, p.author, u.username AS author_name, p.title, p.content, p.likes_count, p.comments_count, p.status, p.version,
  p.created_at, p.updated_at`;
const FROM = 'posts p LEFT JOIN users u ON u.subject = p.author';

/** Needs no transaction: each post is a row of its own. */
export function* createPosts(posts: readonly NewPost[]): Work<PostRecord[]> {
  const authors = posts.map(({ author }) => author);
  const [clock, found] = yield [ABOUT_NOW, nameStep(authors)];
  const atMs = nowOf(clock);
  const names = namesOf(found!);
  const rows = posts.map(({ id, author, title, content }): Cells => [BigInt(id), author, title, content, atMs, atMs]);
  const columns = ['id', 'author', 'title', 'content', 'created_at', 'updated_at'];
  yield [{ do: 'insert', table: 'posts', columns, rows }];
  return posts.map((post) => ({
    ...post,
    authorName: names.get(post.author) ?? null,
    likes: 0,
    comments: 0,
    deleted: false,
    version: 1,
    createdAtMs: atMs,
    updatedAtMs: atMs,
  }));
}

export function* getPost(postId: string): Work<PostRecord | null> {
  const [found] = yield [query(`SELECT ${COLUMNS} FROM ${FROM} WHERE p.id = ?`, BigInt(postId))];
  return found!.rows.map(postOfRow)[0] ?? null;
}

export function* listPosts(
  { author }: { author?: string },
  { limit, before }: Page,
  reader: string | null,
  dialect: LifeDialect,
): Work<Liked<PostRecord>[]> {
  const liked = likedBy(reader, 'post', 'p.id', dialect);
  const [found] = yield [
    walked(
      {
        select: `SELECT ${COLUMNS}, ${liked.sql} AS liked FROM ${FROM}`,
        given: liked.values,
        group: [...(author === undefined ? [] : [['p.author', author] as const]), ['p.status', 'live']],
        keys: ['p.id'],
        before: before === null ? null : [BigInt(before)],
        limit,
      },
      dialect,
    ),
  ];
  return found!.rows.map((row) => ({ ...postOfRow(row), liked: Number(row.liked) === 1 }));
}

export function editPost(postId: string, edit: PostEdit, dialect: LifeDialect): Work<Changed<PostRecord>> {
  const { by, version } = edit;
  return changed(postId, by, version, dialect, (post, updatedAtMs) => {
    const { title = post.title, content = post.content } = edit;
    return { ...post, title, content, version: post.version + 1, updatedAtMs };
  });
}

export function deletePost(postId: string, by: string, dialect: LifeDialect): Work<Changed<PostRecord>> {
  return changed(postId, by, null, dialect, (post, updatedAtMs) => {
    return { ...post, title: '', content: '', deleted: true, version: post.version + 1, updatedAtMs };
  });
}

/** `version`: the one that the caller read; null: whatever it is now. A deleted post can only be deleted again, which changes nothing. */
function* changed(
  postId: string,
  by: string,
  version: number | null,
  { forUpdate }: LifeDialect,
  change: (post: PostRecord, nowMs: number) => PostRecord,
): Work<Changed<PostRecord>> {
  // Locked by itself: a lock on a join would take the author's row, too.
  const [, post, clock] = yield [
    query(`SELECT id FROM posts WHERE id = ? ${forUpdate}`, BigInt(postId)),
    query(`SELECT ${COLUMNS} FROM ${FROM} WHERE p.id = ?`, BigInt(postId)),
    CLOCK,
  ];
  const record = post!.rows.map(postOfRow)[0];
  if (record === undefined || (record.deleted && version !== null)) return { outcome: 'not_found' };
  if (record.author !== by) return { outcome: record.deleted ? 'not_found' : 'forbidden' };
  if (record.deleted) return { outcome: 'ok', record };
  if (version !== null && record.version !== version) return { outcome: 'version_conflict', record };
  const next = change(record, nowOf(clock));
  const writes = new Writes();
  writes.add(
    query(
      "UPDATE posts SET title = ?, content = ?, status = ?, version = ?, updated_at = ? WHERE id = ? AND status = 'live'",
      next.title,
      next.content,
      next.deleted ? 'deleted' : 'live',
      next.version,
      next.updatedAtMs,
      BigInt(postId),
    ),
    1,
  );
  yield* writes.last();
  return { outcome: 'ok', record: next };
}

function postOfRow(row: Row): PostRecord {
  return {
    id: row.id as string,
    author: row.author as string,
    authorName: row.author_name as string | null,
    title: row.title as string,
    content: row.content as string,
    likes: Number(row.likes_count),
    comments: Number(row.comments_count),
    deleted: row.status === 'deleted',
    version: Number(row.version),
    createdAtMs: Number(row.created_at),
    updatedAtMs: Number(row.updated_at),
  };
}
