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
