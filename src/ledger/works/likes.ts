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
import { LikeTally, newestOf, pairKey, type StoredCount, type StoredLike, setLike, settle } from '../rules/likes.ts';
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
  const shards = new Set(batch.map(({ subject }) => shardOf(subject)));
  const wanted = new Wanted(batch);
  const [shared, ...found] = yield [shareShards([...shards], dialect), ...wanted.read(dialect)];
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
  yield* write(tally);
  return answers;
}

export function* settleLikes(shard: number, events: readonly LikeEvent[], dialect: LifeDialect): Work<SettledLikes> {
  invariant(
    events.every(({ subject }) => shardOf(subject) === shard),
    `events of one batch are of one shard (${shard})`,
  );
  const wanted = new Wanted(events);
  const [locked, ...found] = yield [lockShard(shard, dialect), ...wanted.read(dialect)];
  const { epoch, mode } = shardOfRow(locked!.rows[0]!);
  const atMs = nowOf(found.pop());
  const tally = wanted.tally(found);
  const known = events.filter(({ subject }) => tally.has(subject));
  const { newest, over } = newestOf(known, epoch);
  for (const event of newest) settle(tally, event);
  yield* write(tally);
  const bases = new Map<Subject, LikeBase>();
  for (const { subject } of known) if (!bases.has(subject)) bases.set(subject, { ...tally.countOf(subject), atMs });
  return { bases, epoch, mode, dropped: events.length - known.length + over };
}

/**
 * The counts and rows that a batch needs. The row of a subject is the lock of its pairs: it is locked before they are read, so that no
 * two transactions find the same pair missing, and a count stays as it was read until it is written.
 */
class Wanted {
  readonly #ids = new Map<LikedKind, Set<string>>();
  readonly #pairs = new Map<LikedKind, Map<string, Cells>>();

  constructor(pairs: readonly Pair[]) {
    for (const pair of pairs) {
      const { kind, id } = partsOf(pair.subject);
      put(this.#ids, kind, () => new Set<string>()).add(id);
      put(this.#pairs, kind, () => new Map<string, Cells>()).set(pairKey(pair), [BigInt(id), pair.user]);
    }
  }

  get #tables(): LikeTables[] {
    return TABLES.filter(({ kind }) => this.#ids.has(kind));
  }

  /** Posts before comments, each by id. Whoever comments locks in the same order. */
  read({ byPrimaryKey, forUpdate }: LifeDialect): Step[] {
    const counts = this.#tables.map(({ kind, subjects }) => {
      const ids = [...this.#ids.get(kind)!].map(BigInt).sort(byNumber);
      return query(
        `SELECT id, likes_count, likes_rev, status FROM ${subjects} ${byPrimaryKey} WHERE id IN (?) ORDER BY id ${forUpdate}`,
        ids,
      );
    });
    const likes = this.#tables.map(({ kind, likes: table, id }): Step => {
      const rows = [...this.#pairs.get(kind)!.values()];
      return { do: 'find', table, columns: [id, 'liker', 'liked', 'number'], match: [id, 'liker'], rows };
    });
    // The clock after the locks: times of one subject do not go back.
    return [...counts, ...likes, CLOCK];
  }

  /** Of the results of `read`, without the clock. */
  tally(found: readonly Result[]): LikeTally {
    const counts = new Map<Subject, StoredCount>();
    const likes = new Map<string, StoredLike>();
    for (const [at, { kind, id }] of this.#tables.entries()) {
      for (const row of found[at]!.rows) {
        if (row.status === 'live') counts.set(subjectOf(kind, row.id as string), countOfRow(row));
      }
      for (const row of found[this.#tables.length + at]!.rows) {
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
function* write(tally: LikeTally): Work<void> {
  const likes = new Map<LikedKind, Cells[]>();
  for (const { subject, user, liked, number, atMs } of tally.written) {
    const { kind, id } = partsOf(subject);
    put(likes, kind, (): Cells[] => []).push([BigInt(id), user, liked ? 1 : 0, number, atMs]);
  }
  const moves = new Map<string, { kind: LikedKind; by: number; ids: bigint[] }>();
  for (const [subject, by] of tally.moved) {
    const { kind, id } = partsOf(subject);
    put(moves, `${kind} ${by}`, () => ({ kind, by, ids: [] as bigint[] })).ids.push(BigInt(id));
  }
  const writes = new Writes();
  for (const { kind } of TABLES) writes.addRows(putLikes(kind, (likes.get(kind) ?? []).sort(byCells)), false);
  for (const { kind, by, ids } of moves.values()) writes.add(query(MOVE_COUNTS[kind], by, ids), ids.length);
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

function put<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  let value = map.get(key);
  if (value === undefined) {
    value = make();
    map.set(key, value);
  }
  return value;
}

function byNumber(a: bigint, b: bigint): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function byCells([id, user]: Cells, [otherId, otherUser]: Cells): number {
  return byNumber(id as bigint, otherId as bigint) || (user! < otherUser! ? -1 : 1);
}
