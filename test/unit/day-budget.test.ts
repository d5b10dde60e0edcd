import { beforeEach, describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { BuyerLimits } from '../../src/http/buyer-limits.ts';
import { HTTP_DEFAULTS } from '../../src/http/context.ts';
import { DayBudget } from '../../src/http/day-budget.ts';
import { HttpProblem } from '../../src/http/problem.ts';

const DAY_MS = 24 * 3600 * 1000;
let clock: ManualClock;

beforeEach(() => {
  clock = new ManualClock(0);
});

describe('what may be spent in a day', () => {
  it('P10: all of it and no more, of each thing; the day begins with the first and ends 24 hours later', () => {
    const budget = new DayBudget(clock, 3, 100);
    clock.advance(5000);
    budget.spend('ann', 1, 40);
    clock.advance(DAY_MS / 2);
    expect([budget.waitSeconds('ann', 1, 60), budget.waitSeconds('ann', 1, 61)]).toEqual([0, 12 * 3600]);
    budget.spend('ann', 1, 0);
    budget.spend('ann', 1, 0);
    expect([budget.waitSeconds('ann', 1, 0), budget.waitSeconds('bob', 3, 100)]).toEqual([12 * 3600, 0]);
    clock.advance(DAY_MS / 2 - 1);
    expect(budget.waitSeconds('ann', 1, 0)).toBe(1);
    clock.advance(1);
    expect(budget.waitSeconds('ann', 3, 100)).toBe(0);
  });

  it('P10: 100 000 are remembered; one more forgets the one whose day ends first; days that are over take no room', () => {
    const budget = new DayBudget(clock, 1);
    for (let n = 0; n < 100_000; n++) budget.spend(`user-${n}`, 1);
    expect([budget.size, budget.waitSeconds('user-0', 1)]).toEqual([100_000, 24 * 3600]);
    budget.spend('one more', 1);
    expect([budget.size, budget.waitSeconds('user-0', 1)]).toEqual([100_000, 0]);
    expect(budget.waitSeconds('user-1', 1)).toBe(24 * 3600);
    clock.advance(DAY_MS);
    budget.spend('the next day', 1);
    expect(budget.size).toBe(1);
  });
});

describe('what one buyer writes', () => {
  it('P10: is counted before it is stored, in texts and characters; what fails and what is repeated is not counted', async () => {
    const limits = new BuyerLimits(clock, { ...HTTP_DEFAULTS, postsPerDay: 3, writingCharsPerDay: 100 });
    const write = (chars: number, store = async (mayBegin: () => void) => mayBegin()) =>
      limits.write('ann', chars, store).then(
        () => 'stored',
        (error: Error) => (error instanceof HttpProblem ? [error.code, error.headers!['retry-after']] : error.message),
      );
    const failing = async (mayBegin: () => void) => {
      mayBegin();
      throw new Error('the ledger is out');
    };
    for (let n = 0; n < 5; n++) expect(await write(100, failing)).toBe('the ledger is out');
    expect(await write(60)).toBe('stored');
    expect(await write(41)).toEqual(['rate_limited', String(24 * 3600)]);
    expect([await write(39), await write(1), await write(0)]).toEqual(['stored', 'stored', ['rate_limited', '86400']]);
    expect(await write(100, async () => undefined), 'a repeat stores nothing').toBe('stored');
    // Those that are being stored count, too.
    const both = [1, 2].map(() => limits.write('bob', 60, async (mayBegin) => mayBegin()));
    expect((await Promise.allSettled(both)).map(({ status }) => status)).toEqual(['fulfilled', 'rejected']);
  });
});
