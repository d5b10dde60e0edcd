import { beforeEach, describe, expect, it } from 'vitest';
import { Paced } from '../../src/base/paced.ts';
import { type ManualRuntime, manualRuntime, settled } from '../contract/manual.ts';

const PACE = { pauseFactor: 4, atOnce: 2, waitingMax: 8, what: 'of these' };

describe('paced work', () => {
  let runtime: ManualRuntime;
  let paced: Paced;
  let done: number;
  beforeEach(() => {
    runtime = manualRuntime();
    paced = new Paced(runtime, PACE);
    done = 0;
  });

  /** Work that blocks the event loop for `ms`. */
  const work = (ms: number): Promise<void> =>
    paced.run(async (during) => {
      during(() => runtime.clock.advance(ms));
      done++;
    });

  it('takes its share of the event loop and no more, however many ask (P10)', async () => {
    let open = true;
    const asking = Array.from({ length: 8 }, async () => {
      while (open && done < 5_000) await work(3);
    });
    await runtime.timers.advance(10_000);
    // A fifth of ten seconds at 3 ms each is 667. Without pauses it would be 3 333.
    expect(done).toBeGreaterThan(500);
    expect(done).toBeLessThan(680);
    open = false;
    await runtime.timers.advance(1_000);
    await Promise.all(asking);
  });

  it('a single call does not wait: not the first, and not one now and then', async () => {
    for (let n = 1; n <= 20; n++) {
      void work(3);
      await settled();
      expect(done).toBe(n);
      await runtime.timers.advance(15);
    }
    // Pauses that are shorter than a timer do not delay small work.
    for (let n = 1; n <= 5; n++) await work(0.2);
    expect(done).toBe(25);
  });

  it('some wait, in order, and the rest is refused at once; a failure passes its place on (P10)', async () => {
    const began: number[] = [];
    const ends = Array.from({ length: 12 }, () => Promise.withResolvers<void>());
    const all = ends.map(({ promise }, at) =>
      paced.run(() => {
        began.push(at);
        return promise;
      }),
    );
    for (const at of [10, 11]) {
      await expect(all[at]).rejects.toMatchObject({ code: 'overloaded', message: 'too many of these' });
    }
    expect(began).toEqual([0, 1]);
    ends[1]!.reject(new Error('failed'));
    await expect(all[1]).rejects.toThrow('failed');
    await settled();
    expect(began).toEqual([0, 1, 2]);
    for (const { resolve } of ends) resolve();
    await Promise.all([0, 2, 3, 4, 5, 6, 7, 8, 9].map((at) => all[at]));
    expect(began).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    expect(runtime.timers.pending).toBe(0);
  });

  it('callers take turns, each with a share of the places; one that stands for many has no share (P10)', async () => {
    paced = new Paced(runtime, { ...PACE, atOnce: 1, waitingOfOneMax: 3 });
    const began: string[] = [];
    const ends: (() => void)[] = [];
    const call = (name: string, caller: string | null) =>
      paced.run(
        () =>
          new Promise<void>((resolve) => {
            began.push(name);
            ends.push(resolve);
          }),
        caller,
      );
    const calls = ['a0', 'a1', 'a2', 'a3'].map((name) => call(name, 'a'));
    await expect(call('a4', 'a')).rejects.toMatchObject({ code: 'overloaded' });
    calls.push(call('b1', 'b'), ...['1', '2', '3', '4'].map((name) => call(name, null)));
    await expect(call('c', 'c'), 'all places are taken').rejects.toMatchObject({ code: 'overloaded' });
    for (let at = 0; at < calls.length; at++) {
      ends[at]!();
      await settled();
    }
    await Promise.all(calls);
    expect(began).toEqual(['a0', 'a1', 'b1', '1', 'a2', '2', 'a3', '3', '4']);
  });

  it('a machine that was suspended costs a quarter of a second, not four times as long', async () => {
    await work(60_000);
    const next = work(1);
    await runtime.timers.advance(250);
    await next;
    expect(done).toBe(2);
  });
});
