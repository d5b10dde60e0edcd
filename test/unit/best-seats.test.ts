import { describe, expect, it } from 'vitest';
import { bestApart, bestTogether, bestWindow, centralFree, freeCount } from '../../src/model/best-seats.ts';

/** Worked by hand. Rank of a window: orphans left, |2 · start + k - n|, start. */
describe('the best window of a row', () => {
  it.each<[row: string, k: number, start: number | null, why: string]>([
    ['ffffffffff', 2, 4, 'the centre'],
    ['ffffffffff', 3, 3, '3 and 4 are equally near: the first'],
    ['fffff', 3, 0, 'the centre (1) would leave two orphans; 0 and 2 leave none and are equally near'],
    ['ffff', 2, 0, 'the centre (1) would leave two orphans'],
    ['ffff', 3, 0, 'either window leaves one orphan'],
    ['fffffff', 4, 0, '1 and 2 leave one orphan each, 0 and 3 none'],
    ['ffffffffr', 2, 3, '(0, 1, 3) before (0, 1, 4): the centre is that of the row, not of the run'],
    ['sffffffff', 2, 3, 'the same from the other end'],
    ['rrrrrrffffff', 2, 6, 'the near end of a run that is off the centre'],
    ['ffffffrrrrrr', 2, 4, 'and from the other side'],
    ['fffsfff', 3, 0, 'whole runs on both sides, equally near'],
    ['fffsfffs', 3, 4, 'n is 8: 4 is at distance 3, 0 at distance 5'],
    ['fffrffffr', 3, 0, 'a whole run, rather than an orphan nearer to the centre'],
  ])('%s, %i together: at %s (%s)', (row, k, start) => {
    expect(bestWindow(row, k)).toBe(start);
  });

  it.each<[row: string, k: number, start: number | null, why: string]>([
    ['ff|ff', 2, 0, 'not across the gap, where the centre is'],
    ['ff|ff', 3, null, 'no run of three'],
    ['fff|fff', 2, 1, 'an orphan in any case; 1 and 3 are nearest'],
    ['f|ff', 1, 0, 'a seat between end and gap leaves no orphan, one of the pair does'],
    ['f|f|f', 1, 1, 'a gap counts nothing: n is 3'],
    ['ff|f|ff', 1, 2, 'the middle of five seats'],
  ])('%s, %i together: at %s (%s)', (row, k, start) => {
    expect(bestWindow(row, k)).toBe(start);
  });

  it.each<[row: string, k: number, start: number | null]>([
    ['f', 1, 0],
    ['ff', 1, 0],
    ['fff', 1, 0],
    ['ffff', 1, 0],
    ['fffff', 1, 2],
    // A single seat that is left already: taking it leaves none.
    ['frff', 1, 0],
    ['ffrf', 1, 3],
    ['rrrr', 1, null],
    ['', 1, null],
  ])('%s, one seat: at %s', (row, k, start) => {
    expect(bestWindow(row, k)).toBe(start);
  });

  it('takes a row whole, and nothing longer', () => {
    expect(bestWindow('ffff', 4)).toBe(0);
    expect(bestWindow('ffff', 5)).toBe(null);
    expect(bestWindow('f'.repeat(100), 100)).toBe(0);
    expect(bestWindow('f'.repeat(99), 100)).toBe(null);
    expect(bestWindow('f'.repeat(500), 100)).toBe(200);
    // (0, 0, 1) is not to be had: it leaves an orphan at both ends.
    expect(bestWindow('f'.repeat(102), 100)).toBe(0);
    expect(bestWindow('f'.repeat(104), 100)).toBe(2);
  });

  it('takes no seat of any other state', () => {
    for (const state of 'qrsbh') expect(bestWindow(`ff${state}ff`, 3)).toBe(null);
  });
});

describe('together', () => {
  it('is the first row that has a run, even if a later one has a better window', () => {
    expect(bestTogether(['sss', 'fff', 'ffffff'], 2)).toEqual({ row: 1, seats: [0, 1] });
    expect(bestTogether(['sss', 'ff|f', 'ffffff'], 3)).toEqual({ row: 2, seats: [0, 1, 2] });
  });

  it('is nothing without a run, however many are free', () => {
    expect(bestTogether(['frf', 'f|f', 'fsf'], 2)).toBe(null);
    expect(bestTogether(['rrr', 'sss'], 1)).toBe(null);
    expect(bestTogether([], 1)).toBe(null);
  });
});

describe('apart', () => {
  it.each<[k: number, chosen: ReturnType<typeof bestApart>]>([
    [1, [{ row: 0, seats: [0] }]],
    [2, [{ row: 0, seats: [0, 2] }]],
    // The first row has two. In the second, 1 and 2 are nearest, then 0.
    [3, [{ row: 1, seats: [0, 1, 2] }]],
    [4, [{ row: 1, seats: [0, 1, 2, 3] }]],
    // No row has five: the fullest whole, the fifth in the first row that has one.
    [
      5,
      [
        { row: 0, seats: [0] },
        { row: 1, seats: [0, 1, 2, 3] },
      ],
    ],
    [
      6,
      [
        { row: 0, seats: [0, 2] },
        { row: 1, seats: [0, 1, 2, 3] },
      ],
    ],
    [7, null],
  ])('fsf, ffff, rsb: %i seats', (k, chosen) => {
    expect(bestApart(['fsf', 'ffff', 'rsb'], k)).toEqual(chosen);
  });

  it('empties the fullest rows first, the earliest of equals', () => {
    const rows = ['ff', 'fff', 'f|ff'];
    expect(bestApart(rows, 5)).toEqual([
      { row: 0, seats: [0, 1] },
      { row: 1, seats: [0, 1, 2] },
    ]);
    expect(bestApart(rows, 7)).toEqual([
      { row: 0, seats: [0] },
      { row: 1, seats: [0, 1, 2] },
      { row: 2, seats: [0, 1, 2] },
    ]);
    expect(bestApart(rows, 8)!.flatMap(({ seats }) => seats)).toHaveLength(8);
    expect(bestApart(rows, 9)).toBe(null);
  });

  it('finds a hundred seats that stand alone', () => {
    const rows = Array.from({ length: 100 }, () => 'sfs');
    expect(bestApart(rows, 100)).toEqual(rows.map((_, row) => ({ row, seats: [1] })));
    expect(bestApart(rows, 101)).toBe(null);
  });

  it('measures each seat by itself, across gaps', () => {
    expect(centralFree('f|f|f', 2)).toEqual([0, 1]);
    expect(centralFree('ffffff', 3)).toEqual([1, 2, 3]);
    expect(centralFree('frrrff', 2)).toEqual([0, 4]);
  });

  it('counts what is free', () => {
    expect(['', 'r|s', 'f|f', 'frf|ff'].map(freeCount)).toEqual([0, 0, 2, 4]);
  });
});
