import { describe, expect, it } from 'vitest';
import { LikeTally, setLike } from '../../src/ledger/rules/likes.ts';
import { N_MAX, numberOf, partsOf, type Subject, shardOf, subjectOf } from '../../src/model/like.ts';

describe('what is liked', () => {
  it('has the shard that every process computes, of any version', () => {
    const subjects: Subject[] = ['post:1', 'post:2', 'comment:1', 'post:253585859977150465'];
    expect(subjects.map(shardOf)).toEqual([2, 7, 7, 5]);
  });

  it('is named by its kind and id', () => {
    const subject = subjectOf('comment', '42');
    expect(subject).toBe('comment:42');
    expect(partsOf(subject)).toEqual({ kind: 'comment', id: '42' });
  });

  it('has numbers that are exact beyond what a double holds', () => {
    const n = N_MAX - 1;
    expect(numberOf({ epoch: 8_388_607, n }) - numberOf({ epoch: 8_388_607, n: n - 1 })).toBe(1n);
    expect(numberOf({ epoch: 8_388_607, n })).toBe(2n ** 63n - 1n);
    expect(numberOf({ epoch: 2, n: 0 })).toBeGreaterThan(numberOf({ epoch: 1, n }));
  });
});

describe('requests of one transaction', () => {
  it('P8: each sees those before it; the row and the count are written once', () => {
    const subject: Subject = 'post:1';
    const tally = new LikeTally(new Map([[subject, { count: 5, rev: 9 }]]), new Map());
    const wanted = [true, true, false, true];
    const changed = wanted.map((liked) => setLike(tally, { subject, user: 'zoe', liked }, 7));
    expect(changed).toEqual([true, false, true, true]);
    expect([...tally.written]).toEqual([{ subject, user: 'zoe', liked: true, number: 3n, atMs: 7 }]);
    expect([tally.countOf(subject), [...tally.moved()]]).toEqual([{ count: 6, rev: 10 }, [[subject, 1]]]);
    expect(setLike(tally, { subject, user: 'zoe', liked: false }, 8)).toBe(true);
    expect([...tally.moved()], 'back again: the rev moves, the count does not').toEqual([[subject, 0]]);
  });
});
