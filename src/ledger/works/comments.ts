import type { CommentRecord } from '../../model/social.ts';
import type { Page } from '../port/page.ts';
import type {
  Changed,
  CommentCreated,
  CommentEdit,
  CommentPage,
  CommentsOf,
  Liked,
  NewComment,
} from '../port/social.ts';
import { likedBy } from './like-reads.ts';
import { walked } from './lists.ts';
import { nameStep, namesOf } from './names.ts';
import {
  type Cells,
  CLOCK,
  type LifeDialect,
  nowOf,
  query,
  type Result,
  type Row,
  type Step,
  type Work,
  Writes,
} from './work.ts';

/**
 * Whoever writes or deletes a comment locks its post's row first, then rows of comments by id. So the counts of a post's comments and
 * replies, and which of its comments are live, stand still for one transaction at a time, and no two wait for each other.
 */

const COLUMNS = `c.id, c.post_id, c.parent_id, c.answers, c.author, u.username AS author_name, c.content, c.likes_count,
  c.replies_count, c.status, c.version, c.created_at, c.updated_at`;
const FROM = 'comments c LEFT JOIN users u ON u.subject = c.author';
// A stored count that is too low must not keep a comment from being deleted. It stays wrong, and the check of counts reports it.
const ONE_COMMENT_LESS = 'UPDATE posts SET comments_count = comments_count - 1 WHERE id = ? AND comments_count > 0';
const ONE_REPLY_LESS = 'UPDATE comments SET replies_count = replies_count - 1 WHERE id = ? AND replies_count > 0';
const SELECT_ONE = `SELECT ${COLUMNS} FROM ${FROM} WHERE c.id = ?`;

/** Several in one transaction: comments on a hot post would otherwise wait for its row one by one. */
export function* createComments(batch: readonly NewComment[], dialect: LifeDialect): Work<CommentCreated[]> {
  const parentIds = [...new Set(batch.flatMap(({ parentId }) => parentId ?? []))];
  const [posts, names, clock, parents] = yield [
    lockPosts(batch, dialect),
    nameStep(batch.map(({ author }) => author)),
    CLOCK,
    ...readParents(parentIds),
  ];
  const nowMs = nowOf(clock);
  const counts = new Map(posts!.rows.filter(isLive).map((row) => [row.id as string, Number(row.comments_count)]));
  const found = yield* parentsWithTheirs(parents);
  const authorNames = namesOf(names!);
  const replies = new Map<string, number>();
  const moved = new Set<string>();
  const created: Cells[] = [];
  const answers = batch.map((comment): CommentCreated => {
    const { id, postId, author, content } = comment;
    const count = counts.get(postId);
    if (count === undefined) return { outcome: 'not_found' };
    const place = placeOf(comment, found);
    if (place === null) return { outcome: 'no_parent' };
    const { parentId } = place;
    counts.set(postId, count + 1);
    moved.add(postId);
    if (parentId !== null) {
      replies.set(parentId, (replies.get(parentId) ?? Number(found.get(parentId)!.replies_count)) + 1);
    }
    created.push([...[id, postId, parentId, place.answers].map(idCell), author, content, nowMs, nowMs]);
    const record = { id, postId, ...place, author, authorName: authorNames.get(author) ?? null, content };
    const fresh = { likes: 0, replies: 0, deleted: false, version: 1, createdAtMs: nowMs, updatedAtMs: nowMs };
    return { outcome: 'ok', record: { ...record, ...fresh } };
  });
  const writes = new Writes();
  const columns = ['id', 'post_id', 'parent_id', 'answers', 'author', 'content', 'created_at', 'updated_at'];
  writes.addRows({ do: 'insert', table: 'comments', columns, rows: created });
  const onPosts = byId([...moved].map((postId): Cells => [BigInt(postId), counts.get(postId)!]));
  writes.addRows({ do: 'update', table: 'posts', match: ['id'], set: ['comments_count'], rows: onPosts });
  const onParents = byId([...replies].map(([parentId, count]): Cells => [BigInt(parentId), count]));
  writes.addRows({ do: 'update', table: 'comments', match: ['id'], set: ['replies_count'], rows: onParents });
  yield* writes.last();
  return answers;
}

function lockPosts(batch: readonly NewComment[], { byPrimaryKey, forUpdate }: LifeDialect): Step {
  const ids = [...new Set(batch.map(({ postId }) => postId))].map(BigInt).sort(byNumber);
  return query(
    `SELECT id, status, comments_count FROM posts ${byPrimaryKey} WHERE id IN (?) ORDER BY id ${forUpdate}`,
    ids,
  );
}

function readParents(ids: readonly string[]): Step[] {
  if (ids.length === 0) return [];
  return [query('SELECT id, post_id, parent_id, status, replies_count FROM comments WHERE id IN (?)', ids.map(BigInt))];
}

/** By id: the comments that are replied to, and for those that are replies their parents. */
function* parentsWithTheirs(parents: Result | undefined): Work<Map<string, Row>> {
  const found = new Map((parents?.rows ?? []).map((row) => [row.id as string, row]));
  const tops = [...found.values()].flatMap((row) => (row.parent_id as string | null) ?? []);
  const missing = [...new Set(tops)].filter((id) => !found.has(id));
  if (missing.length === 0) return found;
  const [more] = yield readParents(missing);
  for (const row of more!.rows) found.set(row.id as string, row);
  return found;
}

/** Where a comment hangs: at most two levels deep. Null: what it replies to is missing, deleted, or of another post. */
function placeOf(
  { postId, parentId }: NewComment,
  found: ReadonlyMap<string, Row>,
): Pick<CommentRecord, 'parentId' | 'answers'> | null {
  if (parentId === null) return { parentId: null, answers: null };
  const replied = found.get(parentId);
  if (replied === undefined || replied.post_id !== postId || !isLive(replied)) return null;
  const top = replied.parent_id as string | null;
  return top === null ? { parentId, answers: null } : { parentId: top, answers: parentId };
}

function byId(rows: Cells[]): Cells[] {
  return rows.sort(([a], [b]) => byNumber(a as bigint, b as bigint));
}

export function* getComment(commentId: string): Work<CommentRecord | null> {
  const [found] = yield [query(SELECT_ONE, BigInt(commentId))];
  return found!.rows.map(commentOfRow)[0] ?? null;
}

export function* listComments(
  { postId, parentId }: CommentsOf,
  { order, limit, before }: CommentPage,
  reader: string | null,
  dialect: LifeDialect,
): Work<Liked<CommentRecord>[]> {
  const liked = likedBy(reader, 'comment', 'c.id', dialect);
  const byLikes = order === 'liked';
  const [found] = yield [
    walked(
      {
        select: `SELECT ${COLUMNS}, ${liked.sql} AS liked FROM ${FROM}`,
        given: liked.values,
        group: [
          ['c.post_id', BigInt(postId)],
          ['c.listed', BigInt(parentId ?? 0)],
        ],
        keys: byLikes ? ['c.likes_count', 'c.id'] : ['c.id'],
        before: before === null ? null : [...(byLikes ? [before.likes] : []), BigInt(before.id)],
        limit,
      },
      dialect,
    ),
  ];
  return found!.rows.map((row) => ({ ...commentOfRow(row), liked: Number(row.liked) === 1 }));
}

export function* commentsBy(author: string, { limit, before }: Page, dialect: LifeDialect): Work<CommentRecord[]> {
  const [found] = yield [
    walked(
      {
        select: `SELECT ${COLUMNS} FROM ${FROM}`,
        given: [],
        group: [
          ['c.author', author],
          ['c.status', 'live'],
        ],
        keys: ['c.id'],
        before: before === null ? null : [BigInt(before)],
        limit,
      },
      dialect,
    ),
  ];
  return found!.rows.map(commentOfRow);
}

export function* editComment(
  commentId: string,
  { by, content, version }: CommentEdit,
  { forUpdate }: LifeDialect,
): Work<Changed<CommentRecord>> {
  const id = BigInt(commentId);
  const [, found, clock] = yield [
    query(`SELECT id FROM comments WHERE id = ? ${forUpdate}`, id),
    query(SELECT_ONE, id),
    CLOCK,
  ];
  const [row] = found!.rows;
  if (row === undefined || !isLive(row)) return { outcome: 'not_found' };
  const record = commentOfRow(row);
  if (record.author !== by) return { outcome: 'forbidden' };
  if (record.version !== version) return { outcome: 'version_conflict', record };
  const next = { ...record, content, version: version + 1, updatedAtMs: nowOf(clock) };
  const writes = new Writes();
  writes.add(
    query(
      "UPDATE comments SET content = ?, version = ?, updated_at = ? WHERE id = ? AND status = 'live'",
      content,
      next.version,
      next.updatedAtMs,
      id,
    ),
    1,
  );
  yield* writes.last();
  return { outcome: 'ok', record: next };
}

/** Deleted again by its author, it stays as it is: counts are lowered by whoever finds it live. */
export function* deleteComment(
  commentId: string,
  by: string,
  { byPrimaryKey, forUpdate }: LifeDialect,
): Work<Changed<CommentRecord>> {
  const id = BigInt(commentId);
  // What it belongs to never changes.
  const [place] = yield [query('SELECT post_id, parent_id FROM comments WHERE id = ?', id)];
  const [of] = place!.rows;
  if (of === undefined) return { outcome: 'not_found' };
  const parentIds = of.parent_id === null ? [] : [BigInt(of.parent_id!)];
  const [, , found, clock] = yield [
    query(`SELECT id FROM posts WHERE id = ? ${forUpdate}`, BigInt(of.post_id!)),
    query(
      `SELECT id FROM comments ${byPrimaryKey} WHERE id IN (?) ORDER BY id ${forUpdate}`,
      [id, ...parentIds].sort(byNumber),
    ),
    query(SELECT_ONE, id),
    CLOCK,
  ];
  const row = found!.rows[0]!;
  if (row.author !== by) return { outcome: isLive(row) ? 'forbidden' : 'not_found' };
  const record = commentOfRow(row);
  if (record.deleted) return { outcome: 'ok', record };
  const next = { ...row, status: 'deleted', content: '', version: record.version + 1, updated_at: nowOf(clock) };
  const writes = new Writes();
  writes.add(
    query(
      "UPDATE comments SET status = 'deleted', content = '', version = ?, updated_at = ? WHERE id = ? AND status = 'live'",
      next.version,
      next.updated_at,
      id,
    ),
    1,
  );
  writes.add(query(ONE_COMMENT_LESS, BigInt(of.post_id!)), null);
  for (const parentId of parentIds) writes.add(query(ONE_REPLY_LESS, parentId), null);
  yield* writes.last();
  return { outcome: 'ok', record: commentOfRow(next) };
}

function isLive(row: Row): boolean {
  return row.status === 'live';
}

function idCell(id: string | null): bigint | null {
  return id === null ? null : BigInt(id);
}

function byNumber(a: bigint, b: bigint): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** The author of a deleted comment stays in its row, so that deleting it again can be told from deleting another's; nobody is shown it. */
function commentOfRow(row: Row): CommentRecord {
  const deleted = !isLive(row);
  return {
    id: row.id as string,
    postId: row.post_id as string,
    parentId: row.parent_id as string | null,
    answers: row.answers as string | null,
    author: deleted ? '' : (row.author as string),
    authorName: deleted ? null : (row.author_name as string | null),
    content: row.content as string,
    likes: Number(row.likes_count),
    replies: Number(row.replies_count),
    deleted,
    version: Number(row.version),
    createdAtMs: Number(row.created_at),
    updatedAtMs: Number(row.updated_at),
  };
}
