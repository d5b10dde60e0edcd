import { DatabaseSync } from 'node:sqlite';
import { Cluster, Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TerminalError } from '../../src/base/errors.ts';
import { StaleFenceError } from '../../src/locks/client/errors.ts';
import { assertFenced, fencedScript, fencedSet, fenceSql, runFenced } from '../../src/locks/fencing.ts';
import { createLocks } from '../../src/locks/locks.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startRedis, startRedisCluster } from '../support/servers/redis.ts';

afterAll(cleanUpServers);

describe('fenceSql', () => {
  it('gives the pieces for ? and for $n', () => {
    expect(fenceSql(7n)).toEqual({ set: 'fence = ?', where: 'fence <= ?', value: '7' });
    expect(fenceSql('7', { column: 'stock.seen', parameter: '$3' })).toEqual({
      set: 'seen = $3',
      where: 'stock.seen <= $3',
      value: '7',
    });
  });

  it('refuses what does not belong into a statement, and tokens that were rounded', () => {
    expect(() => fenceSql(1n, { column: 'a = 1 --' })).toThrow(TerminalError);
    expect(() => fenceSql(1n, { parameter: '$1 OR 1' as never })).toThrow(TerminalError);
    expect(() => fenceSql(1 as never)).toThrow(TerminalError);
    expect(() => fenceSql('007')).toThrow(TerminalError);
    expect(() => fenceSql('-1')).toThrow(TerminalError);
  });

  it('SQLite: of two holders the one that comes back late is refused', async () => {
    await using locks = createLocks();
    const db = new DatabaseSync(':memory:');
    db.exec('CREATE TABLE stock (item TEXT PRIMARY KEY, free INTEGER NOT NULL, fence BIGINT NOT NULL DEFAULT 0)');
    db.exec("INSERT INTO stock (item, free) VALUES ('a', 10)");
    const write = (free: number, token: bigint): void => {
      const fence = fenceSql(token);
      const statement = db.prepare(`UPDATE stock SET free = ?, ${fence.set} WHERE item = ? AND ${fence.where}`);
      assertFenced(statement.run(free, fence.value, 'a', fence.value).changes, 'the stock of a');
    };

    const first = await locks.mutex('fenced').acquire();
    write(9, first.token);
    write(8, first.token);
    // Taken from it without its knowledge, as far as it cares to look.
    await locks.mutex('fenced').forceRelease();
    const second = await locks.mutex('fenced').acquire();
    write(7, second.token);
    expect(() => write(7, first.token)).toThrow(StaleFenceError);
    write(6, second.token);
    expect(db.prepare('SELECT free, CAST(fence AS TEXT) AS fence FROM stock').get()).toEqual({
      free: 6,
      fence: String(second.token),
    });
    // Larger than a double can tell apart.
    write(5, 2n ** 60n + 1n);
    expect(() => write(4, 2n ** 60n)).toThrow(StaleFenceError);
    await second.release();
    db.close();
  });
});

describeWithRedis('a fenced script', () => {
  let redis: Redis;
  let url: string;
  beforeAll(async () => {
    ({ url } = await startRedis());
    redis = new Redis(url);
  });
  afterAll(() => redis.disconnect());

  it('runs for the present holder and not for one before it', async () => {
    const take = fencedScript(`
      local free = tonumber(redis.call('GET', KEYS[1]) or ARGV[1])
      redis.call('SET', KEYS[1], free - ARGV[2])
      return {#KEYS, #ARGV, free - ARGV[2]}`);
    await using locks = createLocks({ redis: url, prefix: 'fencing' });
    const first = await locks.mutex('stock').acquire();
    const fence = 'stock:a:fence';
    expect(await take.run(redis, { fence, token: first.token }, ['stock:a'], ['10', '1'])).toEqual([1, 2, 9]);
    expect(await take.run(redis, { fence, token: first.token }, ['stock:a'], ['10', '1'])).toEqual([1, 2, 8]);
    await locks.mutex('stock').forceRelease();
    await using second = await locks.mutex('stock').acquire();
    expect(await take.run(redis, { fence, token: second.token }, ['stock:a'], ['10', '1'])).toEqual([1, 2, 7]);
    const late = take.run(redis, { fence, token: first.token }, ['stock:a'], ['10', '1']);
    await expect(late).rejects.toThrow(StaleFenceError);
    await expect(late).rejects.toThrow(String(second.token));
    expect(await redis.get('stock:a')).toBe('7');
    expect(await redis.get(fence)).toBe(String(second.token));
  });

  it('compares tokens of any size, and forgets a fence only if told', async () => {
    const at = (token: bigint | string, keep?: number) =>
      runFenced(redis, { fence: 'big', token, ...(keep === undefined ? {} : { keep }) }, 'return ARGV[1]', [], ['x']);
    expect(await at(9n)).toBe('x');
    expect(await at(10n)).toBe('x');
    await expect(at('9')).rejects.toThrow(StaleFenceError);
    expect(await at(2n ** 60n + 1n)).toBe('x');
    await expect(at(2n ** 60n)).rejects.toThrow(StaleFenceError);
    expect(await redis.pttl('big')).toBe(-1);
    await at(2n ** 60n + 1n, 60_000);
    expect(await redis.pttl('big')).toBeGreaterThan(50_000);
    await at(2n ** 60n + 1n);
    expect(await redis.pttl('big')).toBe(-1);
  });

  it('sets a key; survives a script cache that was flushed; other errors stay what they are', async () => {
    await fencedSet(redis, { fence: 'f', token: 5n }, 'k', 'five');
    await redis.script('FLUSH');
    await fencedSet(redis, { fence: 'f', token: 6n }, 'k', 'six');
    await expect(fencedSet(redis, { fence: 'f', token: 5n }, 'k', 'late')).rejects.toThrow(StaleFenceError);
    expect(await redis.get('k')).toBe('six');
    await expect(
      runFenced(redis, { fence: 'f', token: 6n }, 'return redis.call("INCR", KEYS[1])', ['k']),
    ).rejects.toThrow(/integer/);
    expect(() => fencedScript('#!lua flags=no-writes\nreturn 1')).toThrow(TerminalError);
  });

  it('works in a cluster where the keys share a slot', async () => {
    const { nodes } = await startRedisCluster();
    const cluster = new Cluster(nodes.map(({ host, port }) => ({ host, port })));
    await fencedSet(cluster, { fence: '{a}:fence', token: 2n }, '{a}:value', 'two');
    await expect(fencedSet(cluster, { fence: '{a}:fence', token: 1n }, '{a}:value', 'one')).rejects.toThrow(
      StaleFenceError,
    );
    expect(await cluster.get('{a}:value')).toBe('two');
    cluster.disconnect();
  });
});
