import { expect, it } from 'vitest';
import { backOffMs } from '../../src/base/back-off.ts';

it('P10: a delay doubles after each failure, and is bounded however many there are', () => {
  const delays = [0, 1, 2, 3, 4, 5, 6, 7, 2000].map((failures) => backOffMs(failures, 25, 2000));
  expect(delays).toEqual([25, 50, 100, 200, 400, 800, 1600, 2000, 2000]);
});
