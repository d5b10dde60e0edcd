import { describe, expect, it } from 'vitest';
import { judge, medianInterval, type Round, turnsOf } from '../../bench/compare/statistics.ts';

/** Ten rounds of a machine whose speed drifts; the ratios are given. */
function rounds(change: readonly number[], same: readonly number[]): Round[] {
  return change.map((ratio, at) => {
    const old = 10_000 + 700 * at;
    return { old, new: old * ratio, again: old * same[at]! };
  });
}

const ten = (value: number): number[] => Array.from({ length: 10 }, () => value);
/** The interval reaches from the second smallest to the second largest: 0.98 to 1.03. */
const QUIET = [0.9, 0.98, 0.99, 0.99, 1, 1, 1.01, 1.02, 1.03, 1.2];

describe('bench -- compare', () => {
  it('passes a commit that is compared with itself', () => {
    const { failed, noisy, change } = judge(rounds(QUIET.toReversed(), QUIET));
    expect({ failed, noisy, median: change.median }).toEqual({ failed: false, noisy: false, median: 1 });
  });

  it('fails a scenario whose median is below 0.95 by more than the A/A spread', () => {
    const { spread, failsBelow, failed } = judge(rounds(ten(0.91), QUIET));
    expect(spread).toBeCloseTo(0.03);
    expect(failsBelow).toBeCloseTo(0.92);
    expect(failed).toBe(true);
  });

  it('passes a median below 0.95 that the A/A spread explains', () => {
    expect(judge(rounds(ten(0.925), QUIET)).failed).toBe(false);
  });

  it('has no spread to excuse a loss on a machine without noise', () => {
    expect(judge(rounds(ten(0.949), ten(1))).failed).toBe(true);
    expect(judge(rounds(ten(0.95), ten(1))).failed).toBe(false);
  });

  it('counts a second checkout that is always slower or faster as spread', () => {
    expect(judge(rounds(ten(1), ten(0.96))).spread).toBeCloseTo(0.04);
    expect(judge(rounds(ten(1), ten(1.04))).spread).toBeCloseTo(0.04);
  });

  it('is not moved by two wild rounds of ten, and says when the machine is too noisy', () => {
    expect(judge(rounds([0.2, 5, ...ten(1).slice(2)], QUIET)).failed).toBe(false);
    const wild = [0.7, 0.7, 0.8, 0.9, 1, 1, 1.1, 1.2, 1.3, 1.3];
    expect(judge(rounds(ten(0.8), wild))).toMatchObject({ noisy: true, failed: false });
  });

  it.each([
    [2, 0],
    [5, 0],
    [6, 0],
    [8, 0],
    [9, 1],
    [10, 1],
    [12, 2],
    [20, 5],
  ])('leaves out as many values as 95 %% allow: of %i, %i on each side', (count, outside) => {
    const values = Array.from({ length: count }, (_, at) => at + 1);
    expect(medianInterval(values.toReversed())).toEqual({
      median: (count + 1) / 2,
      low: outside + 1,
      high: count - outside,
    });
  });

  it('refuses a value that is not a ratio', () => {
    for (const values of [[], [Number.NaN], [0], [Number.POSITIVE_INFINITY]]) {
      expect(() => medianInterval(values)).toThrow('not a list of ratios');
    }
  });

  it('lets every side be the first in turn', () => {
    expect([0, 1, 2, 3].map((round) => turnsOf(['old', 'new', 'again'], round).join(' '))).toEqual([
      'old new again',
      'new again old',
      'again old new',
      'old new again',
    ]);
  });
});
