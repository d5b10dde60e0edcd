import { expect, it } from 'vitest';
import { seededRandom } from '../../src/base/random.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { systemTimers } from '../../src/base/timers.ts';
import { planTries } from '../../src/crowd/buyer.ts';
import { percentiles } from '../../src/crowd/people.ts';
import { showProgress, type Tally } from '../../src/crowd/progress.ts';
import { count, grouped } from '../../src/crowd/words.ts';

it('the same seed gives the same crowd, with double clicks, repeats and new keys in it', () => {
  const crowdOf = (seed: number) => {
    const random = seededRandom(seed);
    return Array.from({ length: 1000 }, () => planTries(random, 3));
  };
  expect(crowdOf(7)).toEqual(crowdOf(7));
  expect(crowdOf(7)).not.toEqual(crowdOf(8));
  const tries = crowdOf(7).flat();
  expect(crowdOf(7).every(([first]) => first!.newKey)).toBe(true);
  const share = (of: number, all: number): number => of / all;
  expect(share(tries.filter(({ clicks }) => clicks === 2).length, tries.length)).toBeCloseTo(0.2, 1);
  expect(share(tries.filter(({ newKey }) => !newKey).length, 2000)).toBeCloseTo(0.5, 1);
});

it('percentiles are values that occurred', () => {
  expect(percentiles([])).toBeNull();
  expect(percentiles([5])).toEqual({ p50: 5, p95: 5, p99: 5, max: 5 });
  const hundred = Array.from({ length: 100 }, (_, at) => 100 - at);
  expect(percentiles(hundred)).toEqual({ p50: 50, p95: 95, p99: 99, max: 100 });
});

it('figures are grouped', () => {
  expect([grouped(0), grouped(999), grouped(5000), grouped(1234567)]).toEqual(['0', '999', '5 000', '1 234 567']);
  expect([count(1, 'try', 'tries'), count(3, 'try', 'tries')]).toEqual(['1 try', '3 tries']);
});

const TALLY = { stage: 'orders', done: 2500, of: 5000, sold: 100, refused: 7000, queued: 0, rejected: 0, requests: 0 };

it.each([
  [true, '\r\x1b[K[████████████░░░░░░░░░░░░] 2 500 of 5 000 buyers: 100 sold, 7 000 refusals'],
  [false, '2 500 of 5 000 buyers: 100 sold, 7 000 refusals\n'],
])('progress on a terminal (%s) is a bar, else lines', (isTTY, expected) => {
  let tick = (): void => {};
  const written: string[] = [];
  const screen = { isTTY, columns: 120, write: (text: string) => written.push(text) };
  const every = (_ms: number, run: () => void) => {
    tick = run;
    return () => {};
  };
  const end = showProgress(screen, () => TALLY as Tally, { ...systemRuntime(), timers: { ...systemTimers, every } });
  tick();
  expect(written).toEqual([expected]);
  end();
  expect(written.slice(1)).toEqual(isTTY ? ['\r\x1b[K'] : []);
});

it.each<[string, Partial<Tally>, string]>([
  ['while buyers come', { queued: 12 }, '2 500 of 5 000 buyers: 100 sold, 12 queued, 7 000 refusals\n'],
  [
    'and after some were rejected',
    { queued: 12, rejected: 3 },
    '2 500 of 5 000 buyers: 100 sold, 12 queued, 3 rejected later, 7 000 refusals\n',
  ],
  [
    'and after the last buyer',
    { stage: 'queued', done: 8, of: 20, rejected: 3 },
    '8 of 20 queued orders decided: 100 sold, 3 rejected later\n',
  ],
])('progress shows what is queued %s', (_, change, expected) => {
  const written: string[] = [];
  const every = (_ms: number, run: () => void) => {
    run();
    return () => {};
  };
  const tally = { ...TALLY, ...change } as Tally;
  showProgress({ write: (text) => written.push(text) }, () => tally, {
    ...systemRuntime(),
    timers: { ...systemTimers, every },
  });
  expect(written).toEqual([expected]);
});
