import { describe, expect, it } from 'vitest';
import { Tally } from '../../src/base/tally.ts';

describe('what is under way', () => {
  it('is counted until it succeeds or fails, and everybody who waits is told', async () => {
    const tally = new Tally();
    await tally.idle();
    const [good, bad] = [Promise.withResolvers<string>(), Promise.withResolvers<string>()];
    const both = Promise.allSettled([tally.during(good.promise), tally.during(bad.promise)]);
    expect(tally.count).toBe(2);
    let heard = 0;
    const waiting = [tally.idle(), tally.idle()].map((idle) => idle.then(() => heard++));
    bad.reject(new Error('no'));
    await new Promise((resolve) => setImmediate(resolve));
    expect([tally.count, heard]).toEqual([1, 0]);
    good.resolve('yes');
    await Promise.all(waiting);
    expect(tally.count).toBe(0);
    expect((await both).map(({ status }) => status)).toEqual(['fulfilled', 'rejected']);
  });

  it('is not over while its end begins something else', async () => {
    const tally = new Tally();
    const [first, next] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    void tally.during(first.promise, () => void tally.during(next.promise));
    let idle = false;
    const waiting = tally.idle().then(() => {
      idle = true;
    });
    first.resolve();
    await new Promise((resolve) => setImmediate(resolve));
    expect([idle, tally.count]).toEqual([false, 1]);
    next.resolve();
    await waiting;
  });
});
