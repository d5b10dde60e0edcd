import { invariant, unavailable } from '../../base/errors.ts';
import {
  type LikedKind,
  type LikeEvent,
  type Pair,
  partsOf,
  type Subject,
  shardOf,
  subjectOf,
} from '../../model/like.ts';
import type { LikeBase, LikeSet, SettledLikes } from '../port/likes.ts';
import {
  isDropped,
  LikeTally,
  newestOf,
  pairKey,
  type StoredCount,
  type StoredLike,
  setLike,
  settle,
} from '../rules/likes.ts';
import { lockShard, shardOfRow, shareShards } from './like-shards.ts';
import {
  type Cells,
  CLOCK,
  type InsertStep,
  type LifeDialect,
  nowOf,
  query,
  type Result,
  type Row,
  type Step,
  type Work,
  Writes,
} from './work.ts';

/** Where the likes of a kind are. */
export interface LikeTables {
  readonly kind: LikedKind;
  /** What is liked. */
  readonly subjects: 'posts' | 'comments';
  readonly likes: 'post_likes' | 'comment_likes';
  readonly id: 'post_id' | 'comment_id';
}

/** In the order in which their rows are locked and written. */
const TABLES: readonly LikeTables[] = [
  { kind: 'post', subjects: 'posts', likes: 'post_likes', id: 'post_id' },
  { kind: 'comment', subjects: 'comments', likes: 'comment_likes', id: 'comment_id' },
];

export function tablesOf(kind: LikedKind): LikeTables {
  return TABLES[kind === 'post' ? 0 : 1]!;
}

export type LikeRequest = Pair & { readonly liked: boolean };

/** Several requests in one transaction, each answered as if they came one after another. */
export function* setLikes(batch: readonly LikeRequest[], dialect: LifeDialect): Work<LikeSet[]> {
  const wanted = new Wanted(batch);
  const [shared, ...found] = yield [shareShards(wanted.shards, dialect), ...wanted.read(dialect)];
  if (shared!.rows.some((row) => shardOfRow(row).mode !== 'direct')) {
    throw unavailable('likes are counted in Redis now: this process decides them in the database (LIKES)');
  }
  const atMs = nowOf(found.pop());
  const tally = wanted.tally(found);
  const answers = batch.map((request): LikeSet => {
    const { subject, liked } = request;
    if (!tally.has(subject)) return { outcome: 'not_found' };
    const changed = setLike(tally, request, atMs);
    return { outcome: 'ok', liked, changed, count: tally.countOf(subject).count, atMs };
  });
  yield* write(tally, wanted);
  return answers;
}

export function* settleLikes(shard: number, events: readonly LikeEvent[], dialect: LifeDialect): Work<SettledLikes> {
  // Rows that are neighbours in the table are read and written one after another, which takes a fifth less time.
  const newest = newestOf(events.toSorted(byPair));
  const wanted = new Wanted(newest.values());
  invariant(
    wanted.shards.every((one) => one === shard),
    `the events of a batch are of one shard (${shard})`,
  );
  const [locked, ...found] = yield [lockShard(shard, dialect), ...wanted.read(dialect)];
  const current = shardOfRow(locked!.rows[0]!);
  const atMs = nowOf(found.pop());
  const tally = wanted.tally(found);
  for (const [key, event] of newest) if (!isDropped(tally, event, current)) settle(tally, key, event);
  yield* write(tally, wanted);
  const bases = new Map<Subject, LikeBase>();
  for (const subject of wanted.subjects) {
    if (tally.has(subject)) bases.set(subject, { ...tally.countOf(subject), atMs });
  }
  const dropped = events.reduce((sum, event) => sum + (isDropped(tally, event, current) ? 1 : 0), 0);
  return { bases, ...current, dropped };
}

/**
 * The counts and rows that a batch needs. The row of a subject is the lock of its pairs: it is locked before they are read, so that no
 * two transactions find the same pair missing, and a count stays as it was read until it is written.
 */
class Wanted {
  readonly #subjects = new Map<Subject, { readonly kind: LikedKind; readonly id: bigint }>();
  readonly #pairs: Record<LikedKind, Cells[]> = { post: [], comment: [] };

  constructor(pairs: Iterable<Pair>) {
    for (const { subject, user } of pairs) {
      let parsed = this.#subjects.get(subject);
      if (parsed === undefined) {
        const { kind, id } = partsOf(subject);
        parsed = { kind, id: BigInt(id) };
        this.#subjects.set(subject, parsed);
      }
      this.#pairs[parsed.kind].push([parsed.id, user]);
    }
  }

  get subjects(): Iterable<Subject> {
    return this.#subjects.keys();
  }

  get shards(): number[] {
    return [...new Set([...this.#subjects.keys()].map(shardOf))];
  }

  idOf(subject: Subject): { readonly kind: LikedKind; readonly id: bigint } {
    return this.#subjects.get(subject)!;
  }

  get #tables(): LikeTables[] {
    return TABLES.filter(({ kind }) => this.#pairs[kind].length > 0);
  }

  /** Posts before comments, each by id. Whoever comments locks in the same order. */
  read({ byPrimaryKey, forUpdate }: LifeDialect): Step[] {
    const counts = this.#tables.map(({ kind, subjects }) => {
      const ids = [...this.#subjects.values()].filter((parsed) => parsed.kind === kind).map(({ id }) => id);
      return query(
        `SELECT id, likes_count, likes_rev FROM ${subjects} ${byPrimaryKey} WHERE id IN (?) AND status = 'live' ORDER BY id ${forUpdate}`,
        ids.sort(byNumber),
      );
    });
    const likes = this.#tables.map(({ kind, likes: table, id }): Step => {
      const columns = [id, 'liker', 'liked', 'number'];
      return { do: 'find', table, columns, match: [id, 'liker'], rows: this.#pairs[kind] };
    });
    // The clock after the locks: times of one subject do not go back.
    return [...counts, ...likes, CLOCK];
  }

  /** Of the results of `read`, without the clock. */
  tally(found: readonly Result[]): LikeTally {
    const tables = this.#tables;
    const counts = new Map<Subject, StoredCount>();
    const likes = new Map<string, StoredLike>();
    for (const [at, { kind, id }] of tables.entries()) {
      for (const row of found[at]!.rows) counts.set(subjectOf(kind, row.id as string), countOfRow(row));
      for (const row of found[tables.length + at]!.rows) {
        const pair = { subject: subjectOf(kind, row[id] as string), user: row.liker as string };
        likes.set(pairKey(pair), { liked: Number(row.liked) === 1, number: BigInt(row.number!) });
      }
    }
    return new LikeTally(counts, likes);
  }
}

export function countOfRow(row: Row): StoredCount {
  return { count: Number(row.likes_count), rev: Number(row.likes_rev) };
}

/** Counts move by what changed, so that the many subjects with one more like share a statement. */
function* write(tally: LikeTally, wanted: Wanted): Work<void> {
  const likes: Record<LikedKind, Cells[]> = { post: [], comment: [] };
  for (const { subject, user, liked, number, atMs } of tally.written) {
    const { kind, id } = wanted.idOf(subject);
    likes[kind].push([id, user, liked ? 1 : 0, number, atMs]);
  }
  const moves: Record<LikedKind, Map<number, bigint[]>> = { post: new Map(), comment: new Map() };
  for (const [subject, by] of tally.moved()) {
    const { kind, id } = wanted.idOf(subject);
    const ids = moves[kind].get(by);
    if (ids === undefined) moves[kind].set(by, [id]);
    else ids.push(id);
  }
  const writes = new Writes();
  for (const { kind } of TABLES) writes.addRows(putLikes(kind, likes[kind]), false);
  for (const { kind } of TABLES) {
    // Unchecked: these rows are locked, and MySQL commits in this trip where no count has to be checked.
    for (const [by, ids] of moves[kind]) writes.add(query(MOVE_COUNTS[kind], by, ids), null);
  }
  yield* writes.last();
}

const MOVE_COUNTS: Record<LikedKind, string> = {
  post: 'UPDATE posts SET likes_count = likes_count + ?, likes_rev = likes_rev + 1 WHERE id IN (?)',
  comment: 'UPDATE comments SET likes_count = likes_count + ?, likes_rev = likes_rev + 1 WHERE id IN (?)',
};

function putLikes(kind: LikedKind, rows: Cells[]): InsertStep {
  const { id } = tablesOf(kind);
  const columns = [id, 'liker', 'liked', 'number', 'changed_at'];
  const overwrite = [id, 'liker'];
  return kind === 'post'
    ? { do: 'insert', table: 'post_likes', columns, rows, overwrite }
    : { do: 'insert', table: 'comment_likes', columns, rows, overwrite };
}

function byNumber(a: bigint, b: bigint): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** By id and user, as they are in the table. */
function byPair(one: Pair, other: Pair): number {
  return (
    one.subject.length - other.subject.length || byText(one.subject, other.subject) || byText(one.user, other.user)
  );
}

function byText(one: string, other: string): number {
  return one < other ? -1 : one > other ? 1 : 0;
}
