import { describe, expect, it } from 'vitest';
import { InFlight } from '../../src/base/in-flight.ts';

describe('what is under way', () => {
  it('is counted until it succeeds or fails, and everybody who waits is told', async () => {
    const inFlight = new InFlight();
    await inFlight.idle();
    const [good, bad] = [Promise.withResolvers<string>(), Promise.withResolvers<string>()];
    const both = Promise.allSettled([inFlight.during(good.promise), inFlight.during(bad.promise)]);
    expect(inFlight.count).toBe(2);
    let heard = 0;
    const waiting = [inFlight.idle(), inFlight.idle()].map((idle) => idle.then(() => heard++));
    bad.reject(new Error('no'));
    await new Promise((resolve) => setImmediate(resolve));
    expect([inFlight.count, heard]).toEqual([1, 0]);
    good.resolve('yes');
    await Promise.all(waiting);
    expect(inFlight.count).toBe(0);
    expect((await both).map(({ status }) => status)).toEqual(['fulfilled', 'rejected']);
  });

  it('is not over while its end begins something else', async () => {
    const inFlight = new InFlight();
    const [first, next] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    void inFlight.during(first.promise, () => void inFlight.during(next.promise));
    let idle = false;
    const waiting = inFlight.idle().then(() => {
      idle = true;
    });
    first.resolve();
    await new Promise((resolve) => setImmediate(resolve));
    expect([idle, inFlight.count]).toEqual([false, 1]);
    next.resolve();
    await waiting;
  });
});
