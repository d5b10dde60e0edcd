import { type LikedKind, subjectOf } from '../../model/like.ts';
import type { WrongCount } from '../port/social.ts';
import { bounded } from './lists.ts';
import { query, type Row, type Work } from './work.ts';

/** Subjects of one page at most: each of them may have a million likes to be counted. */
const SUBJECTS_MAX = 200;

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

/** One statement for a page, so that counts and rows are of one state. Every count moves in the transaction that moves its rows. */
export function* checkCounts(
  kind: LikedKind,
  after: string | null,
  limit: number,
): Work<{ wrong: WrongCount[]; next: string | null }> {
  const { from, counts } = COUNTS[kind];
  const columns = counts.flatMap(({ stored, rows }, at) => [`${stored} AS stored_${at}`, `(${rows}) AS rows_${at}`]);
  const [found] = yield [
    query(
      `SELECT s.id, ${columns.join(', ')} FROM ${from} s WHERE s.id > ? ORDER BY s.id LIMIT ?`,
      BigInt(after ?? 0),
      bounded(limit, SUBJECTS_MAX),
    ),
  ];
  const subjects = found!.rows;
  const wrong = subjects.flatMap((row) =>
    counts
      .map(({ count }, at) => ({ subject: subjectOf(kind, row.id as string), count, ...numbersOf(row, at) }))
      .filter(({ stored, rows }) => stored !== rows),
  );
  return { wrong, next: subjects.length < limit ? null : (subjects.at(-1)!.id as string) };
}

function numbersOf(row: Row, at: number): Pick<WrongCount, 'stored' | 'rows'> {
  return { stored: Number(row[`stored_${at}`]), rows: Number(row[`rows_${at}`]) };
}
