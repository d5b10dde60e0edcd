import { describe, expect, it } from 'vitest';
import { drain, each, pages, type Round, type SweepOptions, sweep } from '../../src/base/sweep.ts';
import { systemTimers } from '../../src/base/timers.ts';

/** Timers whose pauses take only a turn of the event loop; records how long each should have been. */
function quickTimers(pauses: number[]) {
  return {
    ...systemTimers,
    after(ms: number, run: () => void) {
      pauses.push(ms);
      return systemTimers.after(0, run);
    },
  };
}

const NOTHING: Round = { changed: 0, more: false };

/** Runs these rounds; returns the pauses between them. */
async function rounds(answers: (Round | Error)[], options: Partial<SweepOptions> = {}): Promise<(number | string)[]> {
  const happened: (number | string)[] = [];
  const pauses: number[] = [];
  const ended = new AbortController();
  const { signal } = ended;
  let at = 0;
  await sweep(
    quickTimers(pauses),
    async () => {
      happened.push(...pauses.splice(0), 'round');
      const answer = answers[at++]!;
      if (at === answers.length) ended.abort();
      if (answer instanceof Error) throw answer;
      return answer;
    },
    { signal, pauseMs: 10, pauseMsMax: 50, failed: (error) => happened.push((error as Error).message), ...options },
  );
  return happened;
}

describe('a sweep', () => {
  it('repeats at once only after a change, and when there may be more', async () => {
    const again = { changed: 1, more: true };
    expect(await rounds([again, again, { changed: 1, more: false }, NOTHING])).toEqual([
      ...['round', 'round', 'round'],
      ...[10, 'round'],
    ]);
  });

  it('P10: that has read much and changed nothing pauses', async () => {
    const looked = { changed: 0, more: true };
    expect(await rounds([looked, looked, looked])).toEqual(['round', 10, 'round', 10, 'round']);
  });

  it('that fails pauses longer each time, up to a bound, and tells of it once', async () => {
    const out = new Error('out');
    expect(await rounds([out, out, out, out, NOTHING, out, NOTHING])).toEqual([
      ...['round', 'out', 20, 'round', 40, 'round', 50, 'round', 50],
      ...['round', 10, 'round', 'out', 20, 'round'],
    ]);
  });

  it('gives up after so many failures in a row, where another may be able to', async () => {
    const out = new Error('out');
    await expect(rounds([out, NOTHING, out, out, out, NOTHING], { failuresMax: 3 })).rejects.toThrow('out');
  });

  it('P10: gives timers and I/O a turn between two rounds that follow at once', async () => {
    const ended = new AbortController();
    let timers = 0;
    const ticking = setInterval(() => {
      if (++timers === 5) ended.abort();
    }, 1);
    // Its rounds end in the same turn, as with SQLite: without a turn in between, no timer could ever stop it.
    const options = { signal: ended.signal, pauseMs: 1, pauseMsMax: 1, failed: () => undefined };
    await sweep(systemTimers, async () => ({ changed: 1, more: true }), options);
    clearInterval(ticking);
    expect(timers).toBe(5);
  });

  it('ends at its signal in the middle of a pause, and begins no round after it', async () => {
    const ended = new AbortController();
    let begun = 0;
    const options = { signal: ended.signal, pauseMs: 60_000, pauseMsMax: 60_000, failed: () => undefined };
    const swept = sweep(systemTimers, async () => ({ changed: ++begun, more: false }), options);
    setTimeout(() => ended.abort(), 1);
    await swept;
    expect(begun).toBe(1);
  });
});

it('P10: draining ends with the first step that changes nothing, and gives timers a turn', async () => {
  let left = 3;
  let timers = 0;
  const ticking = setInterval(() => timers++, 0);
  await drain(systemTimers, async () => {
    const until = performance.now() + 3;
    while (performance.now() < until);
    return left-- > 0 ? 1 : 0;
  });
  clearInterval(ticking);
  expect(left).toBe(-1);
  expect(timers).toBeGreaterThan(0);
  const ended = new AbortController();
  await drain(
    systemTimers,
    async () => {
      ended.abort();
      return 1;
    },
    ended.signal,
  );
});

describe('work for each of them', () => {
  it('P10: one that fails and one that hangs hold up no other; the first failure is thrown at the end', async () => {
    const hangs = Promise.withResolvers<void>();
    const done: number[] = [];
    const all = each([0, 1, 2, 3, 4, 5], 2, async (at) => {
      if (at === 1) await hangs.promise;
      if (at === 2 || at === 4) throw new Error(`${at} failed`);
      done.push(at);
      if (at === 5) hangs.resolve();
    });
    await expect(all).rejects.toThrow('2 failed');
    expect(done).toEqual([0, 3, 5, 1]);
  });

  it.each([0, 1, 2, 3])('%i of them, two at once: each once, never more at once', async (count) => {
    let [now, most] = [0, 0];
    const done: number[] = [];
    const work = async (at: number) => {
      most = Math.max(most, ++now);
      await null;
      now--;
      done.push(at);
    };
    await each(
      Array.from({ length: count }, (_, at) => at),
      2,
      work,
    );
    expect([done.length, new Set(done).size, most]).toEqual([count, count, Math.min(count, 2)]);
  });

  it('begins none after its signal', async () => {
    const ended = new AbortController();
    const done: number[] = [];
    const work = async (at: number) => {
      done.push(at);
      if (at === 1) ended.abort();
    };
    await each([0, 1, 2, 3], 1, work, ended.signal);
    expect(done).toEqual([0, 1]);
  });
});

describe('a pass in pages', () => {
  it.each([0, 1, 3, 4, 5, 8])('of %i rows, four a page, meets each once, whatever is left of them', async (count) => {
    const rows = Array.from({ length: count }, (_, at) => at);
    const met: number[] = [];
    let reads = 0;
    const read = async (sizeMax: number, after = -1) => {
      reads++;
      return rows.filter((row) => row > after).slice(0, sizeMax);
    };
    for await (const page of pages(systemTimers, 4, read)) met.push(...page);
    expect(met).toEqual(rows);
    expect(reads).toBe(Math.floor(count / 4) + 1);
  });
});
