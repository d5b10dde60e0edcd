import type { LikeMode, LikeShard } from '../port/likes.ts';
import { COMMIT, type LifeDialect, query, type Row, type Step, type Work } from './work.ts';

/**
 * The rows of `like_shards` are the fence of likes. Whoever changes likes locks the rows of its shards first and keeps them to its
 * commit: a settle for itself alone, a direct like shared with other direct likes. Whoever raises an epoch or changes the mode locks
 * them for itself alone. So once that has committed, nothing that was decided before it is still to be committed.
 *
 * A plain read would not do: a like could read `direct`, and commit after a gate in Redis has been opened on rows without it.
 */

/** For a settle. Those of one shard run one after another: two workers that got the same events do not wait for each other's rows. */
export function lockShard(shard: number, { forUpdate }: LifeDialect): Step {
  return query(`SELECT epoch, mode FROM like_shards WHERE shard = ? ${forUpdate}`, shard);
}

/** For direct likes. In the order of their numbers, as `setLikeMode` takes them: otherwise the two could deadlock. */
export function shareShards(shards: readonly number[], { byPrimaryKey, forShare }: LifeDialect): Step {
  return query(
    `SELECT epoch, mode FROM like_shards ${byPrimaryKey} WHERE shard IN (?) ORDER BY shard ${forShare}`,
    shards.toSorted((a, b) => a - b),
  );
}

export function shardOfRow(row: Row): LikeShard {
  return { epoch: Number(row.epoch), mode: row.mode as LikeMode };
}

export function* likeShard(shard: number): Work<LikeShard> {
  const [found] = yield [query('SELECT epoch, mode FROM like_shards WHERE shard = ?', shard)];
  return shardOfRow(found!.rows[0]!);
}

export function* raiseLikeEpoch(shard: number, seen: number, above: number, dialect: LifeDialect): Work<number | null> {
  const [found] = yield [lockShard(shard, dialect)];
  const { epoch: stored, mode } = shardOfRow(found!.rows[0]!);
  if (stored !== seen || mode !== 'counted') return null;
  const epoch = Math.max(stored, above) + 1;
  yield [{ ...query('UPDATE like_shards SET epoch = ? WHERE shard = ?', epoch, shard), expected: 1 }, COMMIT];
  return epoch;
}

export function* setLikeMode(mode: LikeMode, { byPrimaryKey, forUpdate }: LifeDialect): Work<boolean> {
  const [found] = yield [query(`SELECT shard, mode FROM like_shards ${byPrimaryKey} ORDER BY shard ${forUpdate}`)];
  if (found!.rows.every((row) => row.mode === mode)) return false;
  const expected = found!.rows.length;
  yield [{ ...query('UPDATE like_shards SET mode = ?, epoch = epoch + 1', mode), expected }, COMMIT];
  return true;
}
