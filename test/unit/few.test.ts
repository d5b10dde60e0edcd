import { describe, expect, it } from 'vitest';
import { Few, FewOfEach } from '../../src/base/few.ts';
import { settled } from '../contract/manual.ts';

describe('few at once', () => {
  it('runs a few at once, lets some wait in order, and refuses the rest; a failure passes its place on (P10)', async () => {
    const few = new Few(2, 3, 'of these');
    const began: number[] = [];
    const ends = Array.from({ length: 6 }, () => Promise.withResolvers<void>());
    const all = ends.map(({ promise }, at) =>
      few.run(() => {
        began.push(at);
        return promise;
      }),
    );
    await expect(all[5]).rejects.toMatchObject({ code: 'overloaded', message: 'too many of these' });
    expect(began).toEqual([0, 1]);
    ends[1]!.reject(new Error('failed'));
    await expect(all[1]).rejects.toThrow('failed');
    await settled();
    expect(began).toEqual([0, 1, 2]);
    for (const at of [0, 2, 3, 4]) ends[at]!.resolve();
    await Promise.all([0, 2, 3, 4].map((at) => all[at]));
    expect(began).toEqual([0, 1, 2, 3, 4]);
    expect(few.isIdle).toBe(true);
  });

  it('calls of one key do not wait for those of another (P10)', async () => {
    const each = new FewOfEach(1, 1, 'of one');
    const end = Promise.withResolvers<string>();
    const mallory = Array.from({ length: 3 }, () => each.run('mallory', () => end.promise));
    await expect(mallory[2]).rejects.toMatchObject({ code: 'overloaded' });
    expect(await each.run('ann', async () => 'hers')).toBe('hers');
    end.resolve('done');
    expect(await Promise.all(mallory.slice(0, 2))).toEqual(['done', 'done']);
    expect(await each.run('mallory', async () => 'again')).toBe('again');
  });
});
