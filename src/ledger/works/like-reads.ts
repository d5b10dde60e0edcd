import type { LikedKind, Pair, Subject } from '../../model/like.ts';
import { partsOf, subjectOf } from '../../model/like.ts';
import type { LikeBase, LikeRow } from '../port/likes.ts';
import type { Liker, LikerPage, LikesOf } from '../port/social.ts';
import { pairKey } from '../rules/likes.ts';
import { countOfRow, tablesOf } from './likes.ts';
import { bounded } from './lists.ts';
import { type Cells, CLOCK, type LifeDialect, nowOf, query, type Step, type Value, type Work } from './work.ts';

const KINDS: readonly LikedKind[] = ['post', 'comment'];

/** Users of one page of `likeUsers`, which fills a filter: more than a list for people has. */
const USERS_MAX = 10_000;

export function* likeRows(pairs: readonly Pair[]): Work<(LikeRow | null)[]> {
  const steps: Step[] = [];
  const kinds: LikedKind[] = [];
  for (const kind of KINDS) {
    const { likes: table, id } = tablesOf(kind);
    const mine = pairs.map(({ subject, user }) => ({ ...partsOf(subject), user })).filter((pair) => pair.kind === kind);
    if (mine.length === 0) continue;
    const rows = mine.map((pair): Cells => [BigInt(pair.id), pair.user]);
    steps.push({ do: 'find', table, columns: [id, 'liker', 'liked', 'changed_at'], match: [id, 'liker'], rows });
    kinds.push(kind);
  }
  if (steps.length === 0) return [];
  const found = yield steps;
  const liked = new Map<string, LikeRow>();
  for (const [at, kind] of kinds.entries()) {
    const { id } = tablesOf(kind);
    for (const row of found[at]!.rows) {
      const pair = { subject: subjectOf(kind, row[id] as string), user: row.liker as string };
      liked.set(pairKey(pair), { liked: Number(row.liked) === 1, changedMs: Number(row.changed_at) });
    }
  }
  return pairs.map((pair) => liked.get(pairKey(pair)) ?? null);
}

/**
 * Whether the reader likes what a row is about, as a column of its list. Not by a join: the databases would read all likes of the
 * reader, or all there are, when their statistics say that these are few.
 */
export function likedBy(
  reader: string | null,
  kind: LikedKind,
  subjectId: string,
  { byPrimaryKey }: LifeDialect,
): { sql: string; values: Value[] } {
  if (reader === null) return { sql: '0', values: [] };
  const { likes, id } = tablesOf(kind);
  const like = `SELECT l.liked FROM ${likes} l ${byPrimaryKey} WHERE l.${id} = ${subjectId} AND l.liker = ?`;
  return { sql: `COALESCE((${like}), 0)`, values: [reader] };
}

export function* likeCounts(subjects: readonly Subject[]): Work<Map<Subject, LikeBase>> {
  const parts = subjects.map(partsOf);
  const kinds = KINDS.filter((wanted) => parts.some(({ kind }) => kind === wanted));
  const counts = new Map<Subject, LikeBase>();
  if (kinds.length === 0) return counts;
  // The clock first: a count is at least as new as it says.
  const [clock, ...found] = yield [
    CLOCK,
    ...kinds.map((wanted) => {
      const ids = parts.filter(({ kind }) => kind === wanted).map(({ id }) => BigInt(id));
      const table = tablesOf(wanted).subjects;
      return query(`SELECT id, likes_count, likes_rev FROM ${table} WHERE id IN (?) AND status = 'live'`, ids);
    }),
  ];
  const atMs = nowOf(clock);
  for (const [at, kind] of kinds.entries()) {
    for (const row of found[at]!.rows) counts.set(subjectOf(kind, row.id as string), { ...countOfRow(row), atMs });
  }
  return counts;
}

export function* likeUsers(subject: Subject, after: string | null, limit: number): Work<string[]> {
  const { kind, id } = partsOf(subject);
  const { likes, id: column } = tablesOf(kind);
  const [found] = yield [
    query(
      `SELECT liker FROM ${likes} WHERE ${column} = ? AND liker > ? ORDER BY liker LIMIT ?`,
      BigInt(id),
      // Nobody has an empty name.
      after ?? '',
      bounded(limit, USERS_MAX),
    ),
  ];
  return found!.rows.map(({ liker }) => liker as string);
}

export function* likersOf(subject: Subject, page: LikerPage): Work<Liker[]> {
  const { kind, id } = partsOf(subject);
  const { likes, id: column } = tablesOf(kind);
  const older = olderThan(page, 'liker', (key) => key);
  const [found] = yield [
    query(
      `SELECT l.liker, u.username, l.changed_at FROM ${likes} l LEFT JOIN users u ON u.subject = l.liker
       WHERE l.${column} = ? AND l.liked = 1${older.sql} ORDER BY l.changed_at DESC, l.liker DESC LIMIT ?`,
      BigInt(id),
      ...older.values,
      bounded(page.limit),
    ),
  ];
  return found!.rows.map((row) => {
    return { user: row.liker as string, name: row.username as string | null, atMs: Number(row.changed_at) };
  });
}

/** Likes of deleted subjects that a page of `likesOf` passes by at most: there may be any number of them. */
const PASSED_BY_MAX = 200;

export function* likesOf(user: string, kind: LikedKind, page: LikerPage): Work<LikesOf> {
  const { likes, subjects, id } = tablesOf(kind);
  const older = olderThan(page, id, BigInt);
  const limit = bounded(page.limit);
  const lookedMax = limit + PASSED_BY_MAX;
  const [found] = yield [
    query(
      `SELECT l.${id} AS id, l.changed_at, s.status FROM (SELECT l.${id}, l.changed_at FROM ${likes} l
         WHERE l.liker = ? AND l.liked = 1${older.sql} ORDER BY l.changed_at DESC, l.${id} DESC LIMIT ?) l
       LEFT JOIN ${subjects} s ON s.id = l.${id} ORDER BY l.changed_at DESC, l.${id} DESC`,
      user,
      ...older.values,
      lookedMax,
    ),
  ];
  const looked = found!.rows.map((row) => ({
    id: row.id as string,
    atMs: Number(row.changed_at),
    isLive: row.status === 'live',
  }));
  const rows = looked.filter(({ isLive }) => isLive).map(({ id: own, atMs }) => ({ id: own, atMs }));
  const last = looked.at(-1)!;
  const isCutShort = rows.length < limit && looked.length === lookedMax;
  return { rows: rows.slice(0, limit), next: isCutShort ? { atMs: last.atMs, key: last.id } : null };
}

/** Written so that the time bounds what the index has to be read of. Few rows have the same millisecond. */
function olderThan(
  { before }: LikerPage,
  key: string,
  cellOf: (key: string) => Value,
): { sql: string; values: Value[] } {
  if (before === null) return { sql: '', values: [] };
  const { atMs } = before;
  const sql = ` AND l.changed_at <= ? AND (l.changed_at < ? OR l.${key} < ?)`;
  return { sql, values: [atMs, atMs, cellOf(before.key)] };
}
