import { type LikedKind, subjectOf } from '../../model/like.ts';
import type { WrongCount } from '../port/social.ts';
import { bounded } from './lists.ts';
import { query, type Row, type Work } from './work.ts';

/** Subjects of one page at most. */
const SUBJECTS_MAX = 200;
/**
 * Rows that one statement counts, unless a single subject has more: a fraction of a second, in which SQLite's reader serves nobody else.
 * By the stored counts, which are as good an estimate as there is.
 */
const ROWS_MAX = 200_000;

type Counted = Pick<WrongCount, 'count'> & { readonly stored: string; readonly rows: string };

/** What each kind counts: the column, and the rows that it should be equal to. */
const COUNTS: Record<LikedKind, { readonly from: string; readonly counts: readonly Counted[] }> = {
  post: {
    from: 'posts',
    counts: [
      {
        count: 'likes',
        stored: 's.likes_count',
        rows: 'SELECT count(*) FROM post_likes l WHERE l.post_id = s.id AND l.liked = 1',
      },
      {
        count: 'comments',
        stored: 's.comments_count',
        rows: "SELECT count(*) FROM comments c WHERE c.post_id = s.id AND c.status = 'live'",
      },
    ],
  },
  comment: {
    from: 'comments',
    counts: [
      {
        count: 'likes',
        stored: 's.likes_count',
        rows: 'SELECT count(*) FROM comment_likes l WHERE l.comment_id = s.id AND l.liked = 1',
      },
      {
        count: 'replies',
        stored: 's.replies_count',
        // A reply has no replies, so it is listed if it is live: the index by parent has no other rows.
        rows: 'SELECT count(*) FROM comments c WHERE c.post_id = s.post_id AND c.listed = s.id',
      },
    ],
  },
};

/**
 * One statement for a page, so that counts and rows are of one state. Every count moves in the transaction that moves its rows. Which
 * subjects make a page is looked up before: it has as many as the statement can count in a short time, and at least one.
 */
export function* checkCounts(
  kind: LikedKind,
  after: string | null,
  limit: number,
): Work<{ wrong: WrongCount[]; next: string | null }> {
  const { from, counts } = COUNTS[kind];
  const stored = counts.map((one, at) => `${one.stored} AS stored_${at}`);
  const [ahead] = yield [
    query(
      `SELECT s.id, ${stored.join(', ')} FROM ${from} s WHERE s.id > ? ORDER BY s.id LIMIT ?`,
      BigInt(after ?? 0),
      bounded(limit, SUBJECTS_MAX),
    ),
  ];
  const last = lastOf(ahead!.rows);
  if (last === null) return { wrong: [], next: null };
  const columns = [...stored, ...counts.map(({ rows }, at) => `(${rows}) AS rows_${at}`)];
  const [found] = yield [
    query(
      `SELECT s.id, ${columns.join(', ')} FROM ${from} s WHERE s.id > ? AND s.id <= ? ORDER BY s.id`,
      BigInt(after ?? 0),
      BigInt(last),
    ),
  ];
  const subjects = found!.rows;
  const wrong = subjects.flatMap((row) =>
    counts
      .map(({ count }, at) => ({ subject: subjectOf(kind, row.id as string), count, ...numbersOf(row, at) }))
      .filter((one) => one.stored !== one.rows),
  );
  const isEnd = ahead!.rows.length < limit && last === ahead!.rows.at(-1)!.id;
  return { wrong, next: isEnd ? null : last };
}

/** The id of the last subject of the page; null: there is none. */
function lastOf(subjects: readonly Row[]): string | null {
  let rows = 0;
  let last: string | null = null;
  for (const { id, ...stored } of subjects) {
    for (const count of Object.values(stored)) rows += Number(count);
    if (last !== null && rows > ROWS_MAX) break;
    last = id as string;
  }
  return last;
}

function numbersOf(row: Row, at: number): Pick<WrongCount, 'stored' | 'rows'> {
  return { stored: Number(row[`stored_${at}`]), rows: Number(row[`rows_${at}`]) };
}
