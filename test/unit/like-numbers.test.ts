import { describe, expect, it } from 'vitest';
import { N_MAX, numberOf, shardOf } from '../../src/model/like.ts';
import { userMark } from '../../src/social/likes/redis/user-mark.ts';

describe('numbers, shards and marks', () => {
  it('a number of a later epoch is larger, whatever its n', () => {
    expect(numberOf({ epoch: 2, n: 1 })).toBeGreaterThan(numberOf({ epoch: 1, n: N_MAX - 1 }));
  });

  it('subjects spread over the shards', () => {
    const counts = new Map<number, number>();
    for (let at = 0; at < 8000; at++) {
      const shard = shardOf(`post:${7_000_000_000_000_000_000n + BigInt(at)}`);
      counts.set(shard, (counts.get(shard) ?? 0) + 1);
    }
    expect(counts.size).toBe(8);
    expect(Math.min(...counts.values())).toBeGreaterThan(800);
  });

  it('marks are six characters that every process computes alike, and spread evenly over buckets', () => {
    // Filters that stand in Redis were written with these.
    expect([userMark('anna'), userMark('Anna'), userMark('')]).toEqual(['GSoj0=', 'D;fOEB', '3dNSNY']);
    const marks = Array.from({ length: 100_000 }, (_, at) => userMark(`user-${at}`));
    for (const mark of marks.slice(0, 1000)) expect(mark).toMatch(/^[0-o]{6}$/);
    expect(new Set(marks).size).toBeGreaterThan(99_990);
    const buckets = new Map<string, number>();
    for (const mark of marks) buckets.set(mark.slice(0, 2), (buckets.get(mark.slice(0, 2)) ?? 0) + 1);
    expect(buckets.size).toBe(4096);
    expect(Math.max(...buckets.values())).toBeLessThan(60);
  });
});
