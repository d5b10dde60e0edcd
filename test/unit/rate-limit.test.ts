import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { RateLimit } from '../../src/http/rate-limit.ts';
import { T0 } from '../contract/manual.ts';
import { seeded } from '../property/seed.ts';

const PER_SECOND = 20;

function limitAt(clock = new ManualClock(T0), perSecond = PER_SECOND): { clock: ManualClock; limit: RateLimit } {
  return { clock, limit: new RateLimit(clock, perSecond) };
}

/** How many of `tries` requests at once are allowed. */
function burst(limit: RateLimit, tries: number, caller = 'alice'): number {
  return Array.from({ length: tries }, () => limit.take(caller)).filter((wait) => wait === 0).length;
}

/** The largest number in any window of one second. */
function mostInOneSecond(timesMs: number[]): number {
  return Math.max(...timesMs.map((from) => timesMs.filter((ms) => ms >= from && ms < from + 1000).length));
}

describe('the rate limit', () => {
  it('lets 20 through at once and tells the next to wait', () => {
    const { limit } = limitAt();
    expect(burst(limit, PER_SECOND)).toBe(PER_SECOND);
    expect(limit.take('alice')).toBe(1);
  });

  it('lets at most 20 through in any one second, however the caller tries', () => {
    const { clock, limit } = limitAt();
    const passed: number[] = [];
    for (let ms = 0; ms < 4000; ms++) {
      if (limit.take('alice') === 0) passed.push(ms);
      clock.advance(1);
    }
    expect(mostInOneSecond(passed)).toBeLessThanOrEqual(PER_SECOND);
  });

  it('has no double burst at the edge of a second', () => {
    const { clock, limit } = limitAt();
    clock.advance(990);
    expect(burst(limit, 100)).toBe(PER_SECOND);
    clock.advance(20);
    expect(burst(limit, 100)).toBeLessThanOrEqual(1);
  });

  it('lets a steady 20 a second through without end', () => {
    const { clock, limit } = limitAt();
    for (let i = 0; i < 200; i++) {
      expect(limit.take('alice'), `at ${i * 50} ms`).toBe(0);
      clock.advance(50);
    }
  });

  it('gives the whole allowance back after a second of silence', () => {
    const { clock, limit } = limitAt();
    for (let round = 0; round < 3; round++) {
      expect(burst(limit, 100)).toBe(PER_SECOND);
      clock.advance(1001);
    }
  });

  it('a refused request costs nothing: a caller that keeps trying is let in as soon as one that waits', () => {
    const { clock, limit } = limitAt();
    burst(limit, PER_SECOND);
    for (let ms = 0; ms < 1000; ms += 10) {
      limit.take('alice');
      clock.advance(10);
    }
    clock.advance(1000);
    expect(burst(limit, 100)).toBe(PER_SECOND);
  });

  it('an expensive request counts as several, and is told when there is room for it', () => {
    const { clock, limit } = limitAt();
    expect(limit.take('alice', 15)).toBe(0);
    clock.advance(600);
    expect([limit.take('alice', 6), limit.take('alice', 5), limit.take('alice')]).toEqual([1, 0, 1]);
    clock.advance(400);
    // The fifteen no longer count, the five still do.
    expect([limit.take('alice', 16), limit.take('alice', 15), limit.take('alice')]).toEqual([1, 0, 1]);
    expect([limit.take('bob'), limit.take('bob', 19), limit.take('bob')]).toEqual([0, 0, 1]);
    // More than the whole limit counts as the whole limit.
    expect([limit.take('carol', 1_000), limit.take('carol')]).toEqual([0, 1]);
    clock.advance(1_000);
    expect([limit.take('carol'), limit.take('carol', 1_000)]).toEqual([0, 1]);
  });

  it('counts each caller alone', () => {
    const { limit } = limitAt();
    expect(burst(limit, 100, 'alice')).toBe(PER_SECOND);
    expect(burst(limit, 100, 'Alice')).toBe(PER_SECOND);
  });

  it('does not look at the wall clock', () => {
    const { clock, limit } = limitAt();
    burst(limit, PER_SECOND);
    clock.step(3600_000);
    expect(limit.take('alice')).toBeGreaterThan(0);
    clock.step(-7200_000);
    expect(limit.take('alice')).toBeGreaterThan(0);
  });

  it('says how long to wait, and means it', () => {
    const { clock, limit } = limitAt(new ManualClock(T0), 1);
    expect(limit.take('alice')).toBe(0);
    const wait = limit.take('alice');
    expect(wait).toBe(1);
    clock.advance(wait * 1000);
    expect(limit.take('alice')).toBe(0);
  });

  it('holds for any limit and any pattern of tries', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 50 }),
        fc.array(fc.tuple(fc.integer({ min: 0, max: 700 }), fc.integer({ min: 1, max: 60 })), { maxLength: 30 }),
        (perSecond, steps) => {
          const { clock, limit } = limitAt(new ManualClock(T0), perSecond);
          const passed: number[] = [];
          for (const [waitMs, tries] of steps) {
            clock.advance(waitMs);
            for (let i = 0; i < tries; i++) if (limit.take('alice') === 0) passed.push(clock.monotonic());
          }
          if (passed.length > 0) expect(mostInOneSecond(passed)).toBeLessThanOrEqual(perSecond);
        },
      ),
      seeded('rate limit', { short: 100, long: 2000 }),
    );
  });

  it('forgets silent callers: a million do not stay in memory', () => {
    setFlagsFromString('--expose-gc');
    const gc = runInNewContext('gc') as () => void;
    const { clock, limit } = limitAt();
    const fill = (seconds: number, name: string): void => {
      for (let second = 0; second < seconds; second++) {
        for (let caller = 0; caller < 5000; caller++) limit.take(`${name}-${second}-${caller}`);
        clock.advance(1001);
      }
    };
    const heap = (): number => {
      gc();
      return process.memoryUsage().heapUsed;
    };
    fill(3, 'warm');
    const before = heap();
    fill(100, 'crowd');
    // 500 000 callers would take about 50 MB; two generations are 10 000.
    expect((heap() - before) / 2 ** 20).toBeLessThan(10);
  });
});
