import { describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { turn } from '../../src/base/sweep.ts';
import { type RebuildDependencies, Rebuilder } from '../../src/gate/rebuild.ts';
import { actor } from '../../src/model/actor.ts';

/** Gates built at the same time. */
const AT_ONCE = 8;

/** Builds nothing; `install` says when a gate is in force. */
function rebuilderOf(
  epochOf: (saleId: string) => number | null,
  install: (saleId: string, epoch: number) => Promise<void>,
  over: Partial<{
    timers: RebuildDependencies['runtime']['timers'];
    mayAdmit: boolean;
    gate: object;
    ledger: object;
    pipe: object;
  }> = {},
): Rebuilder {
  const { log, ...runtime } = systemRuntime();
  const quiet = { ...log, info: () => undefined, warn: () => undefined, error: () => undefined };
  let epoch = 1;
  const on = {
    runtime: { ...runtime, timers: over.timers ?? runtime.timers, log: quiet },
    gate: {
      epochOf: async (saleId: string) => epochOf(saleId),
      emptiedAt: async () => null,
      shut: async () => undefined,
      install: (snapshot: { saleId: string; epoch: number }) => install(snapshot.saleId, snapshot.epoch),
      ...over.gate,
    },
    ledger: {
      probe: async () => undefined,
      getSale: async () => null,
      rebuildSnapshot: async (saleId: string) => ({
        ...{ saleId, epoch: ++epoch, content: [] },
        mayAdmit: over.mayAdmit ?? true,
        items: [],
      }),
      ...over.ledger,
    },
    lock: async () => ({ release: async () => undefined }),
    pipe: { caughtUp: async () => true, depthOf: async () => 0, ...over.pipe },
    drainMsMax: 60_000,
    drainIdleMsMax: 3000,
    rebuilding: async () => ({ auditId: '1', by: actor('system', 'gate') }),
    rebuilt: () => undefined,
  };
  return new Rebuilder(on as unknown as RebuildDependencies);
}

it('P10: what somebody waits for is built first, also when the upkeep queued it long before', async () => {
  const epochs = new Map<string, number>();
  const built: string[] = [];
  const rebuilder = rebuilderOf(
    (saleId) => epochs.get(saleId) ?? null,
    async (saleId, epoch) => {
      for (let turns = 0; turns < 5; turns++) await turn(systemRuntime().timers);
      epochs.set(saleId, epoch);
      built.push(saleId);
    },
  );
  const sales = Array.from({ length: 100 }, (_, at) => `sale ${at}`);
  const all = sales.map((saleId) => rebuilder.rebuild(saleId, 0, false));
  await turn(systemRuntime().timers);
  // A buyer waits for each of these.
  await Promise.all(['sale 99', 'sale 50'].map((saleId) => rebuilder.rebuild(saleId)));
  expect(built.indexOf('sale 99')).toBeLessThan(2 * AT_ONCE);
  expect(built.indexOf('sale 50')).toBeLessThan(2 * AT_ONCE);
  await Promise.all(all);
  expect(built.toSorted()).toEqual(sales.toSorted());
});

it('P10: a gate that is lost as soon as it is built is not built again without a pause', async () => {
  const { timers } = systemRuntime();
  const happened: string[] = [];
  const rebuilder = rebuilderOf(
    () => null,
    async () => {
      await turn(timers);
      happened.push('built');
      if (happened.length >= 10) rebuilder.close();
    },
    {
      timers: {
        ...timers,
        after(ms, run) {
          happened.push(`${ms} ms`);
          return timers.after(0, run);
        },
      },
    },
  );
  await rebuilder.rebuild('sale');
  expect(happened.slice(0, 6)).toEqual(['built', '250 ms', 'built', '250 ms', 'built', '250 ms']);
});

it('a higher one that is asked for while one is built follows at once', async () => {
  const { timers } = systemRuntime();
  let inForce: number | null = null;
  let pauses = 0;
  const rebuilder = rebuilderOf(
    () => inForce,
    async (_, epoch) => {
      if (epoch === 2) void rebuilder.rebuild('sale', 2);
      await turn(timers);
      inForce = epoch;
    },
    { timers: { ...timers, after: (_, run) => timers.after(pauses++, run) } },
  );
  await rebuilder.rebuild('sale');
  expect([inForce, pauses]).toEqual([3, 0]);
});

it.each([
  ['that others share notes the epoch', true, ['emptied sale 2']],
  ['of this process alone forgets the sale', false, ['removed sale']],
])('a sale that cannot admit any more gets no gate: one %s', async (_, shared, expected) => {
  const happened: string[] = [];
  const rebuilder = rebuilderOf(
    () => null,
    async (saleId) => void happened.push(`installed ${saleId}`),
    {
      mayAdmit: false,
      gate: {
        remove: async (saleId: string) => void happened.push(`removed ${saleId}`),
        ...(shared && {
          setEmptied: async (saleId: string, epoch: number) => void happened.push(`emptied ${saleId} ${epoch}`),
        }),
      },
    },
  );
  await rebuilder.rebuild('sale');
  expect(happened).toEqual(expected);
  expect(rebuilder.size).toBe(0);
});

describe('a wish', () => {
  /** One gate; `decided` says whether its pipe moves. */
  function wishing(decided: () => boolean, delays: number[] = [], buildMs = 0) {
    const { timers } = systemRuntime();
    const happened: string[] = [];
    let inForce: number | null = 1;
    const rebuilder = rebuilderOf(
      () => inForce,
      async (_, epoch) => {
        await new Promise((resolve) => timers.after(buildMs, () => resolve(undefined)));
        inForce = epoch;
        happened.push(`opened ${epoch}`);
      },
      {
        timers: {
          ...timers,
          after(ms, run) {
            delays.push(ms);
            return timers.after(1, run);
          },
        },
        gate: {
          shut: async () => {
            inForce = null;
            happened.push('shut');
          },
        },
        pipe: { caughtUp: async () => decided(), depthOf: async () => 0 },
      },
    );
    return { rebuilder, happened };
  }

  it('P3: shuts no gate while orders in the pipe are not decided, since a rebuild might reject them', async () => {
    let asked = 0;
    const { rebuilder, happened } = wishing(() => {
      // Twice a round: at once, and after waiting.
      if (++asked < 5) expect(happened).toEqual([]);
      return asked >= 5;
    });
    await rebuilder.rebuild('sale', 1, true, true);
    expect(happened).toEqual(['shut', 'opened 2']);
    expect(asked).toBeGreaterThanOrEqual(5);
  });

  it('is none any more when somebody knows that the gate is wrong', async () => {
    const moves = false;
    const { rebuilder, happened } = wishing(() => moves);
    const done = rebuilder.rebuild('sale', 1, true, true);
    await rebuilder.rebuild('sale', 1);
    await done;
    expect(happened).toEqual(['shut', 'opened 2']);
  });

  it('P10: several at once are one rebuild, and between two the sale is open', async () => {
    const delays: number[] = [];
    const { rebuilder, happened } = wishing(() => true, delays, 30);
    await Promise.all(Array.from({ length: 10 }, () => rebuilder.rebuild('sale', 1, true, true)));
    expect(happened).toEqual(['shut', 'opened 2']);
    expect(delays).toEqual([]);
    await rebuilder.rebuild('sale', 2, true, true);
    // It was shut for 30 ms, and is open for three times that.
    expect(delays).toHaveLength(1);
    expect(delays[0]).toBeGreaterThan(60);
    expect(happened).toEqual(['shut', 'opened 2', 'shut', 'opened 3']);
  });
});

/** A sale that may admit. */
const OPEN = { id: 'sale', closed: false, readAtMs: 1, closesAtMs: 2, items: [] };

describe('a sale is taken away', () => {
  function taking(over: { drained?: boolean; sale?: object | null; mayAdmit?: boolean } = {}) {
    const happened: string[] = [];
    let inForce: number | null = 1;
    let there = true;
    const rebuilder = rebuilderOf(
      () => inForce,
      async () => undefined,
      {
        ...(over.mayAdmit !== undefined && { mayAdmit: over.mayAdmit }),
        gate: {
          shut: async () => {
            inForce = null;
            happened.push('shut');
          },
          remove: async () => {
            there = false;
            happened.push('removed');
          },
          install: async ({ epoch }: { epoch: number }, latest: () => Promise<unknown>) => {
            happened.push(`in place ${epoch}`);
            there = true;
            await latest();
            if (!there) return;
            inForce = epoch;
            happened.push(`opened ${epoch}`);
          },
        },
        ledger: {
          getSale: async () => (over.sale === undefined ? OPEN : over.sale),
          releasesSince: async function* () {
            yield [];
          },
        },
        pipe: { caughtUp: async () => over.drained ?? true, depthOf: async () => 1 },
      },
    );
    return { rebuilder, happened };
  }

  it('is asked about when no gate is open, and none can be', async () => {
    const { rebuilder, happened } = taking();
    const taken = await rebuilder.takeAway('sale', async (epoch) => {
      happened.push(`decided ${epoch}`);
      return true;
    });
    expect(taken).toBe(true);
    expect(happened).toEqual(['shut', 'in place 2', 'decided 2', 'removed']);
  });

  it('its gate is open again if it stays', async () => {
    const { rebuilder, happened } = taking();
    expect(await rebuilder.takeAway('sale', async () => false)).toBe(false);
    expect(happened).toEqual(['shut', 'in place 2', 'opened 2']);
  });

  it('its gate is open again if nobody could say, and the error is told', async () => {
    const { rebuilder, happened } = taking();
    const failed = rebuilder.takeAway('sale', async () => {
      throw new Error('the ledger is out');
    });
    await expect(failed).rejects.toThrow('the ledger is out');
    expect(happened.at(-1)).toBe('opened 3');
  });

  it('nobody is asked while orders are in the pipe', async () => {
    const { rebuilder, happened } = taking({ drained: false });
    expect(await rebuilder.takeAway('sale', () => Promise.reject(new Error('asked')))).toBeNull();
    expect(happened.at(-1)).toBe('opened 2');
  });

  it('one that cannot admit any more has no gate to put in place', async () => {
    const { rebuilder, happened } = taking({ mayAdmit: false });
    expect(await rebuilder.takeAway('sale', async () => true)).toBe(true);
    expect(happened).toEqual(['shut', 'removed']);
  });

  it('whoever asks for a rebuild meanwhile joins, and builds nothing', async () => {
    const { rebuilder, happened } = taking();
    const taken = rebuilder.takeAway('sale', async () => {
      void rebuilder.rebuild('sale');
      return true;
    });
    expect(await taken).toBe(true);
    expect(rebuilder.size).toBe(0);
    expect(happened).toEqual(['shut', 'in place 2', 'removed']);
  });

  it('a gate whose sale was deleted since its snapshot never opens', async () => {
    const { rebuilder, happened } = taking({ sale: null });
    await rebuilder.build('sale');
    expect(happened).toEqual(['in place 2', 'removed']);
  });
});
