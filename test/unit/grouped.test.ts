import { describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { BusyError, RetryableError } from '../../src/base/errors.ts';
import { Grouped, type GroupedOptions } from '../../src/base/grouped.ts';
import { silentLog } from '../../src/base/logger.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import type { Release } from '../../src/ledger/port.ts';
import { Releaser, type ReleaserOptions } from '../../src/orders/life/releaser.ts';

const runtime = systemRuntime();

/** The result of the promise, or `hangs`. */
function orHangs<T>(promise: Promise<T>): Promise<T | 'hangs'> {
  return Promise.race([promise, new Promise<'hangs'>((resolve) => setTimeout(resolve, 5000, 'hangs'))]);
}

async function microtasks(count: number): Promise<void> {
  for (let hop = 0; hop < count; hop++) await null;
}

describe('requests that are grouped', () => {
  it('a request that comes in the very turn in which the work ends is not forgotten', async () => {
    const grouped = new Grouped<number, number>(async (batch) => batch, runtime);
    for (let hops = 0; hops < 12; hops++) {
      await grouped.ask(1);
      await microtasks(hops);
      expect([hops, await orHangs(grouped.ask(hops))]).toEqual([hops, hops]);
    }
  });

  it('it is not idle between two batches, at any turn', async () => {
    for (let hops = 0; hops < 12; hops++) {
      let committed = 0;
      const commit = async (batch: number[]): Promise<number[]> => {
        await new Promise((resolve) => setTimeout(resolve, 1));
        committed += batch.length;
        return batch;
      };
      const grouped = new Grouped(commit, runtime);
      const first = grouped.ask(1);
      await new Promise((resolve) => setImmediate(resolve));
      const second = grouped.ask(2);
      await first;
      await microtasks(hops);
      await grouped.idle();
      expect([hops, committed]).toEqual([hops, 2]);
      await second;
    }
  });

  it('what comes in one turn is one batch; what comes during a commit is the next; each hears its own answer', async () => {
    const batches: number[][] = [];
    const commit = async (batch: number[]): Promise<number[]> => {
      batches.push(batch);
      await new Promise((resolve) => setTimeout(resolve, 5));
      return batch.map((one) => one * 10);
    };
    const grouped = new Grouped(commit, runtime);
    const first = [grouped.ask(1), grouped.ask(2)];
    await new Promise((resolve) => setTimeout(resolve, 2));
    const second = [grouped.ask(3), grouped.ask(4), grouped.ask(5)];
    expect(await Promise.all([...first, ...second])).toEqual([10, 20, 30, 40, 50]);
    expect(batches).toEqual([
      [1, 2],
      [3, 4, 5],
    ]);
    await grouped.idle();
  });

  it('where the ledger has room, what waits is shared out; the next ones fill while they are under way', async () => {
    const batches: number[] = [];
    const underWay: (() => void)[] = [];
    const commit = async (batch: number[]): Promise<number[]> => {
      batches.push(batch.length);
      await new Promise<void>((resolve) => void underWay.push(resolve));
      return batch.map((one) => one * 10);
    };
    const grouped = new Grouped(commit, runtime, { atOnce: 2 });
    const turn = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 1));
    const ask = async (count: number): Promise<Promise<number>[]> => {
      const asked = Array.from({ length: count }, (_, at) => grouped.ask(at));
      await turn();
      return asked;
    };
    const end = async (): Promise<void> => {
      underWay.shift()!();
      await turn();
    };
    const all = [...(await ask(301))];
    expect(batches).toEqual([151, 150]);
    all.push(...(await ask(127)));
    expect(batches, 'no room').toEqual([151, 150]);
    await end();
    expect(batches).toEqual([151, 150, 127]);
    await end();
    all.push(...(await ask(63)));
    expect(batches, 'a few wait for the one that is under way').toEqual([151, 150, 127]);
    all.push(...(await ask(1)));
    expect(batches, 'enough do not').toEqual([151, 150, 127, 64]);
    all.push(...(await ask(2)));
    await end();
    expect(batches).toEqual([151, 150, 127, 64]);
    await end();
    expect(batches, 'alone').toEqual([151, 150, 127, 64, 2]);
    await end();
    expect((await Promise.all(all)).length).toBe(494);
    await grouped.idle();
    expect(underWay).toEqual([]);
  });

  it('P10: a batch that hangs holds up nobody else where the ledger has room', async () => {
    const first = Promise.withResolvers<number[]>();
    let batches = 0;
    const commit = (batch: number[]): Promise<number[]> => (++batches === 1 ? first.promise : Promise.resolve(batch));
    const grouped = new Grouped(commit, runtime, { atOnce: 2 });
    const hanging = grouped.ask(1);
    await new Promise((resolve) => setImmediate(resolve));
    expect(await orHangs(Promise.all([grouped.ask(2), grouped.ask(3)]))).toEqual([2, 3]);
    expect(await orHangs(grouped.ask(4))).toBe(4);
    first.resolve([1]);
    expect(await hanging).toBe(1);
  });

  it('of those about the same only one goes into a batch, and they keep their order', async () => {
    const batches: string[][] = [];
    const commit = async (batch: string[]): Promise<string[]> => {
      batches.push(batch);
      return batch;
    };
    const grouped = new Grouped(commit, runtime, { about: (request) => request[0]! });
    await Promise.all(['a1', 'b1', 'a2', 'c1', 'a3', 'b2'].map((request) => grouped.ask(request)));
    expect(batches).toEqual([['a1', 'b1', 'c1'], ['a2', 'b2'], ['a3']]);
  });

  // 128: from there on a second transaction runs beside the first.
  it.each([2, 127, 128, 129, 600])('those about the same keep their order, with %i waiting', async (count) => {
    const committed: string[] = [];
    const underWay: { batch: string[]; end: () => void }[] = [];
    const commit = async (batch: string[]): Promise<string[]> => {
      await new Promise<void>((end) => void underWay.push({ batch, end }));
      committed.push(...batch);
      return batch;
    };
    const about = (request: string): string => request.split(' ')[0]!;
    const grouped = new Grouped(commit, runtime, { atOnce: 2, about });
    // Two requests of each name, the second far behind the first.
    const names = Array.from({ length: Math.ceil(count / 2) }, (_, at) => `name-${at}`);
    const requests = [1, 2].flatMap((time) => names.map((name) => `${name} ${time}`)).slice(0, count);
    const asked = requests.map((request) => grouped.ask(request));
    for (let ended = 0; ended < requests.length; ) {
      await new Promise((resolve) => setTimeout(resolve, 1));
      const named = underWay.flatMap(({ batch }) => batch.map(about));
      expect(new Set(named).size, 'no two of a name at once').toBe(named.length);
      // The newer one first.
      const { batch, end } = underWay.pop()!;
      ended += batch.length;
      end();
    }
    expect(await Promise.all(asked)).toEqual(requests);
    for (const name of names) {
      const inOrder = requests.filter((request) => about(request) === name);
      expect(committed.filter((request) => about(request) === name)).toEqual(inOrder);
    }
    await grouped.idle();
  });

  it('P10: what waits behind one that hangs starts with its end, and holds up nobody else', async () => {
    const first = Promise.withResolvers<string[]>();
    const batches: string[][] = [];
    const commit = (batch: string[]): Promise<string[]> =>
      batches.push(batch) === 1 ? first.promise : Promise.resolve(batch);
    const grouped = new Grouped(commit, runtime, { atOnce: 2, about: (request) => request[0]! });
    const one = grouped.ask('a1');
    await new Promise((resolve) => setImmediate(resolve));
    const two = grouped.ask('a2');
    expect(await orHangs(grouped.ask('b1'))).toBe('b1');
    expect(batches).toEqual([['a1'], ['b1']]);
    first.resolve(['a1']);
    expect(await Promise.all([one, orHangs(two)])).toEqual(['a1', 'a2']);
    expect(batches).toEqual([['a1'], ['b1'], ['a2']]);
  });

  it('P10: where somebody holds what one of a batch needs, the others do not fail with it', async () => {
    const commit = async (batch: number[]): Promise<number[]> => {
      if (batch.includes(2)) throw new BusyError('held');
      return batch;
    };
    const ends = async (options: GroupedOptions<number, number>): Promise<string[]> => {
      const grouped = new Grouped(commit, runtime, options);
      return (await Promise.allSettled([1, 2, 3].map((one) => grouped.ask(one)))).map(({ status }) => status);
    };
    expect(await ends({ about: String })).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    // They all need the locked row, such as an item's: one by one, each would wait for it again.
    expect(await ends({})).toEqual(['rejected', 'rejected', 'rejected']);
  });

  it('P10: where two of a batch are held, the others are not refused for it', async () => {
    let waits = 0;
    const commit = async (batch: number[]): Promise<number[]> => {
      if (!batch.some((one) => one === 0 || one === 1)) return batch;
      waits++;
      throw new BusyError('held');
    };
    const grouped = new Grouped<number, number>(commit, runtime, { about: String });
    const ends = await Promise.allSettled(Array.from({ length: 100 }, (_, n) => grouped.ask(n)));
    expect(ends.map(({ status }) => status)).toEqual([
      ...Array.from({ length: 2 }, () => 'rejected'),
      ...Array.from({ length: 98 }, () => 'fulfilled'),
    ]);
    expect(waits, 'together, and each of the two').toBe(3);
  });

  it('P10: where more than two of a batch are held, the rest is refused without waiting for each', async () => {
    let tries = 0;
    const commit = async (): Promise<number[]> => {
      tries++;
      throw new BusyError('held');
    };
    const grouped = new Grouped<number, number>(commit, runtime, { about: String });
    const asked = Array.from({ length: 256 }, (_, n) => grouped.ask(n));
    const ends = await Promise.allSettled(asked);
    expect(ends.every(({ status }) => status === 'rejected')).toBe(true);
    expect(tries, 'together, two by themselves, and the rest').toBe(4);
  });

  it('one that cannot be committed fails alone; a ledger that is out fails all, once', async () => {
    let calls = 0;
    const commit = async (batch: number[]): Promise<number[]> => {
      calls++;
      if (batch.includes(13)) throw new Error('thirteen');
      if (batch.includes(99)) throw new RetryableError('unavailable', 'the ledger is out');
      return batch;
    };
    const grouped = new Grouped(commit, runtime);
    const ends = await Promise.allSettled([1, 13, 2].map((one) => grouped.ask(one)));
    expect(ends.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    calls = 0;
    const out = await Promise.allSettled([1, 99, 2].map((one) => grouped.ask(one)));
    expect(out.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected']);
    expect(calls).toBe(1);
  });

  it('whoever hears of it first hears it after the commit and before those who wait', async () => {
    const heard: string[] = [];
    const grouped = new Grouped<number, number>(
      async (batch) => {
        heard.push('committed');
        return batch;
      },
      runtime,
      { answered: (request) => void heard.push(`answered ${request}`) },
    );
    await Promise.all([1, 2].map((one) => grouped.ask(one).then(() => heard.push(`waited ${one}`))));
    expect(heard).toEqual(['committed', 'answered 1', 'answered 2', 'waited 1', 'waited 2']);
  });
});

/** An outbox in memory: pages by rev, without what was released. */
function outbox(
  left: () => Release[],
  keep: (rest: Release[]) => void,
  waitedMs: (one: Release) => number,
): ReleaserOptions['ledger'] {
  return {
    releases: async (limit, _, after) =>
      left()
        .filter(({ rev }) => after === undefined || rev > after.rev)
        .slice(0, limit)
        .map((one) => ({ ...one, waitedMs: waitedMs(one) })),
    released: async (ids) => keep(left().filter(({ orderId }) => !ids.includes(orderId))),
  };
}

describe('units on their way back', () => {
  it('no release is forgotten that comes in the very instant in which the work ends', async () => {
    for (let hops = 0; hops < 12; hops++) {
      const released: string[] = [];
      let done = 0;
      const second = Promise.withResolvers<void>();
      const releaser = new Releaser(
        {
          ledger: {
            releases: async () => [],
            released: async (ids) => {
              released.push(...ids);
              if (++done === 1)
                void microtasks(hops).then(() => releaser.add({ orderId: '2', saleId: 's', buyer: 'b' }));
              if (released.includes('2')) second.resolve();
            },
          },
          gate: { release: async () => undefined },
          touched: () => undefined,
          reached: () => undefined,
        },
        runtime,
      );
      releaser.add({ orderId: '1', saleId: 's', buyer: 'b' });
      await orHangs(second.promise);
      expect([hops, released]).toEqual([hops, ['1', '2']]);
    }
  });

  it('those that cannot come back do not hold up others; the oldest are counted, and alerted once after five minutes', async () => {
    const errors: Record<string, unknown>[] = [];
    const log = { ...runtime.log, warn: () => undefined, error: (what: object) => void errors.push({ ...what }) };
    const clock = new ManualClock(Date.now());
    const bornMs = Date.now() - 299_000;
    let left = Array.from({ length: 700 }, (_, at): Release => {
      const saleId = at < 500 ? 'stuck' : 'fine';
      return { orderId: String(at), saleId, itemId: 'i', buyer: 'b', units: 1, rev: at, createdAtMs: bornMs };
    });
    let stuck = true;
    const releaser = new Releaser(
      {
        ledger: outbox(
          () => left,
          (rest) => (left = rest),
          ({ createdAtMs }) => Date.now() - createdAtMs,
        ),
        gate: {
          release: async (saleId) => {
            if (stuck && saleId === 'stuck') throw new Error('its part of the gate is out');
          },
        },
        touched: () => undefined,
        reached: () => undefined,
      },
      { ...runtime, clock, log: log as unknown as typeof runtime.log },
    );
    expect(await releaser.sweep(), 'those of the other sale').toEqual({ changed: 200, more: false });
    expect(left.length).toBe(500);
    expect(releaser.counters.waiting).toBe(500);
    expect(releaser.counters.oldestMs).toBeGreaterThan(290_000);
    expect(errors).toEqual([]);

    left = left.map((one) => ({ ...one, createdAtMs: bornMs - 2000 }));
    for (let times = 0; times < 4; times++) {
      await expect(releaser.sweep(), 'nothing could be done').rejects.toThrow('out');
      clock.advance(60_000);
    }
    expect(errors).toMatchObject([{ waiting: 500, orderId: '0', saleId: 'stuck' }]);
    stuck = false;
    expect(await releaser.sweep()).toEqual({ changed: 500, more: false });
    expect(left.length).toBe(0);
    expect(await releaser.sweep()).toEqual({ changed: 0, more: false });
    expect([left.length, releaser.counters]).toEqual([0, { waiting: 0, oldestMs: 0 }]);
  });

  it('P10: a sale whose gate is out is tried less and less often, up to 8 s; others are given back at once', async () => {
    const clock = new ManualClock(0);
    let left: Release[] = [];
    const tries: number[] = [];
    let out = true;
    const releaser = new Releaser(
      {
        ledger: outbox(
          () => left,
          (rest) => (left = rest),
          () => 2000,
        ),
        gate: {
          release: async (saleId) => {
            if (saleId !== 'out') return;
            tries.push(clock.monotonic());
            if (out) throw new Error('its server is out');
          },
        },
        touched: () => undefined,
        reached: () => undefined,
      },
      { ...runtime, clock, log: silentLog() },
    );
    let rev = 0;
    const waits = (saleId: string): void => {
      const orderId = String(++rev);
      left.push({ orderId, saleId, itemId: 'i', buyer: 'b', units: 1, rev, createdAtMs: 0 });
    };
    waits('out');
    for (let round = 0; round < 150; round++) {
      waits('fine');
      expect(await releaser.sweep()).toEqual({ changed: 1, more: false });
      await expect(releaser.sweep()).rejects.toThrow('its server is out');
      clock.advance(250);
    }
    const beganMs = tries[0]!;
    expect(tries.map((ms) => ms - beganMs)).toEqual([0, 500, 1500, 3500, 7500, 15_500, 23_500, 31_500]);
    out = false;
    clock.advance(8000);
    expect(await releaser.sweep()).toEqual({ changed: 1, more: false });
    waits('out');
    expect(await releaser.sweep(), 'it rests no more').toEqual({ changed: 1, more: false });
  });
});
