import { describe, expect, it } from 'vitest';
import { type LikeEvent, N_MAX, numberOf, type Subject, shardOf } from '../../src/model/like.ts';
import { decodeLikeEntry, encodeLikeEntry } from '../../src/model/like-entry.ts';
import { userMark } from '../../src/social/likes/redis/user-mark.ts';

const event: LikeEvent = { subject: 'post:7', user: 'ü;+ -', liked: true, epoch: 3, n: 12, atMs: 1_700_000_000_000 };

describe('an entry of likes', () => {
  it('is read as it was written', () => {
    for (const one of [event, { ...event, liked: false, user: '-', subject: 'comment:9' as Subject }]) {
      expect(decodeLikeEntry(encodeLikeEntry(one))).toEqual([one]);
    }
  });

  it('numbers the events of a subject one after the other', () => {
    const fields = ['', '3\n1700000000000', 'l2', 'post:7\n12\n+anna\n-b', 'l1', 'comment:1\n14\n+anna'];
    expect(decodeLikeEntry(fields).map(({ subject, user, liked, n }) => [subject, user, liked, n])).toEqual([
      ['post:7', 'anna', true, 12],
      ['post:7', 'b', false, 13],
      ['comment:1', 'anna', true, 14],
    ]);
  });

  it.each([
    ['without a header', ['l1', 'post:7\n12\n+anna']],
    ['with half a header', ['', '3', 'l1', 'post:7\n12\n+anna']],
    ['of another field', ['', '3\n4', 'o1', 'post:7\n12\n+anna']],
    ['with too few likes', ['', '3\n4', 'l2', 'post:7\n12\n+anna']],
    ['with a mark that is none', ['', '3\n4', 'l1', 'post:7\n12\nanna']],
    ['without a user', ['', '3\n4', 'l1', 'post:7\n12\n+']],
    ['of something that cannot be liked', ['', '3\n4', 'l1', 'sale:7\n12\n+anna']],
    ['with a number that is too large', ['', '3\n4', 'l1', `post:7\n${N_MAX}\n+anna`]],
    ['without a number', ['', '3\n4', 'l1', 'post:7\n\n+anna']],
  ])('%s is refused', (_, fields) => {
    expect(() => decodeLikeEntry(fields)).toThrow();
  });
});

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
