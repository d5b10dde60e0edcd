import { expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { Keeper, type KeeperDependencies } from '../../src/engine/keeper.ts';

/** Answers every call with nothing, but those that are given; says which were made. */
function stand<T>(answers: Record<string, (...args: string[]) => unknown>, calls: string[]): T {
  return new Proxy({} as object, {
    get:
      (_, name: string) =>
      async (...args: string[]) => {
        calls.push([name, ...args].join(' '));
        return answers[name]?.(...args);
      },
  }) as T;
}

it('a sale that is made during its round keeps its gate', async () => {
  const calls: string[] = [];
  // 1 is over and 2 is open; 3 is made between the first and the second question.
  let asked = 0;
  const ledger = stand<KeeperDependencies['ledger']>(
    {
      openSaleIds: () => (asked++ === 0 ? ['2'] : ['2', '3']),
      unfinishedTasks: () => [],
      pruneKeys: () => 0,
    },
    calls,
  );
  const gate = stand<KeeperDependencies['gate']>(
    { saleIds: () => ['1', '2', '3'], epochOf: () => 1, houseHolds: () => [] },
    calls,
  );
  const locks = stand<KeeperDependencies['locks']>({}, []);
  const rebuilder = stand<KeeperDependencies['rebuilder']>({ apply: () => true }, []);
  await new Keeper({ runtime: systemRuntime(), gate, ledger, locks, rebuilder }).round();
  expect(calls.filter((call) => /^(shut|retire|remove) /.test(call))).toEqual(['retire 1']);
});

/** A cluster: the shard that has the sale `out` does not answer. */
function outage<T>(answers: Record<string, (saleId: string) => unknown>, calls: string[]): T {
  const failing = Object.entries(answers).map(([name, answer]) => [
    name,
    (saleId: string) => {
      if (saleId === 'out') throw new Error('its shard is out');
      return answer(saleId);
    },
  ]);
  return stand<T>(Object.fromEntries(failing), calls);
}

it('P10: a sale whose gate cannot be asked holds up no other; the round fails at its end', async () => {
  const calls: string[] = [];
  let asked = 0;
  const ledger = stand<KeeperDependencies['ledger']>(
    {
      // The second question is which of them may leave Redis: `out` is over by then.
      openSaleIds: () => (asked++ === 0 ? ['out', 'fine', 'stale'] : ['fine', 'stale']),
      unfinishedTasks: () => [
        { auditId: '1', saleId: 'out' },
        { auditId: '2', saleId: 'fine' },
        { auditId: '3', saleId: 'out' },
        { auditId: '4', saleId: 'fine' },
      ],
      pruneKeys: () => 0,
      pruneReleases: () => 0,
    },
    calls,
  );
  const gate = outage<KeeperDependencies['gate']>(
    {
      epochOf: (saleId) => (saleId === 'stale' ? null : 1),
      houseHolds: (saleId) => (saleId === 'fine' ? [{ holdId: 'h', itemId: 'i', ageMs: 120_000 }] : []),
      // The list of sales is on a shard of its own.
      saleIds: () => ['out', 'over'],
      pruneKeys: () => {
        throw new Error('its shard is out');
      },
    },
    calls,
  );
  const rebuilder = outage<KeeperDependencies['rebuilder']>({ apply: () => true }, calls);
  const locks = stand<KeeperDependencies['locks']>({}, []);
  const log = { ...systemRuntime().log, warn: () => undefined };
  const runtime = { ...systemRuntime(), log: log as unknown as ReturnType<typeof systemRuntime>['log'] };
  const keeper = new Keeper({ runtime, gate, ledger, locks, rebuilder });
  await expect(keeper.round()).rejects.toThrow('its shard is out');
  expect(calls).toContain('rebuild stale 0 false');
  for (const auditId of ['2', '4']) expect(calls).toContain(`finishTask ${auditId}`);
  for (const auditId of ['1', '3']) expect(calls).not.toContain(`finishTask ${auditId}`);
  expect(calls.some((call) => call.startsWith('pruneReleases '))).toBe(true);
  expect(calls.some((call) => call.startsWith('dropHouseHold fine '))).toBe(true);
  expect(calls.filter((call) => call.startsWith('retire '))).toEqual(['retire over']);
});

it('P10: a keeper whose rounds fail hands over, and does not wait before it stands in line again', async () => {
  const gate = outage<KeeperDependencies['gate']>({ epochOf: () => 1, houseHolds: () => [], saleIds: () => [] }, []);
  const answers = { openSaleIds: () => ['out', 'fine'], unfinishedTasks: () => [] };
  const ledger = stand<KeeperDependencies['ledger']>({ ...answers, pruneKeys: () => 0, pruneReleases: () => 0 }, []);
  const rebuilder = stand<KeeperDependencies['rebuilder']>({}, []);
  let lead: ((context: { signal: AbortSignal }) => Promise<void>) | undefined;
  const locks = {
    leader(_: string, work: typeof lead) {
      lead = work;
    },
  } as unknown as KeeperDependencies['locks'];
  let warned = 0;
  const { log, ...rest } = systemRuntime();
  const timers = { ...rest.timers, after: (_: number, run: () => void) => rest.timers.after(0, run) };
  const quiet = { ...log, warn: () => void warned++ } as unknown as typeof log;
  new Keeper({ runtime: { ...rest, timers, log: quiet }, gate, ledger, locks, rebuilder }).start();
  const { signal } = new AbortController();
  // A job that throws is kept from leading for up to a minute.
  for (let times = 0; times < 3; times++) await lead!({ signal });
  expect(warned, 'an outage is logged once').toBe(1);
});
