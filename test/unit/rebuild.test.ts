import { expect, it } from 'vitest';
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
  over: Partial<{ timers: RebuildDependencies['runtime']['timers']; mayAdmit: boolean; gate: object }> = {},
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
      }),
    },
    lock: async () => ({ release: async () => undefined }),
    pipe: { caughtUp: async () => true, depthOf: async () => 0 },
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
