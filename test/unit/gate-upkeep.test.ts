import { expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { GateUpkeep, type GateUpkeepDependencies } from '../../src/gate/upkeep.ts';

const lead: GateUpkeepDependencies['lead'] = () => ({ stop: async () => undefined });

/** A sale that may admit, and whose items have not changed. */
const OPEN = { closed: false, readAtMs: 1, closesAtMs: 2, itemsEpoch: 0, items: [] };

async function answered(answer: () => unknown): Promise<unknown> {
  return answer();
}

/** Answers every call with nothing, but those that are given; says which were made. */
function stand<T>(answers: Record<string, (...args: string[]) => unknown>, calls: string[]): T {
  return new Proxy({} as object, {
    get:
      (_, name: string) =>
      (...args: string[]) => {
        calls.push([name, ...args].join(' '));
        // Pages are no promise.
        return name === 'seatMovesSince' ? (answers[name]?.(...args) ?? []) : answered(() => answers[name]?.(...args));
      },
  }) as T;
}

it('a sale that is made during its round keeps its gate', async () => {
  const calls: string[] = [];
  // 1 is over and 2 is open; 3 is made between the first and the second question.
  let asked = 0;
  const ledger = stand<GateUpkeepDependencies['ledger']>(
    {
      openSaleIds: () => (asked++ === 0 ? ['2'] : ['2', '3']),
      unfinishedTasks: () => [],
      pruneKeys: () => 0,
    },
    calls,
  );
  const gate = stand<GateUpkeepDependencies['gate']>(
    { saleIds: () => ['1', '2', '3'], epochOf: () => 1, houseHolds: () => [] },
    calls,
  );
  const rebuilder = stand<GateUpkeepDependencies['rebuilder']>({ apply: () => true }, []);
  await new GateUpkeep({ runtime: systemRuntime(), gate, ledger, lead, rebuilder }).round();
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
  const ledger = stand<GateUpkeepDependencies['ledger']>(
    {
      // The second question is which of them may leave Redis: `out` is over by then.
      openSaleIds: () => (asked++ === 0 ? ['out', 'fine', 'stale'] : ['fine', 'stale']),
      unfinishedTasks: () => [
        { auditId: '1', saleId: 'out' },
        { auditId: '2', saleId: 'fine' },
        { auditId: '3', saleId: 'out' },
        { auditId: '4', saleId: 'fine' },
      ],
      getSale: () => OPEN,
      pruneKeys: () => 0,
      pruneReleases: () => 0,
    },
    calls,
  );
  const gate = outage<GateUpkeepDependencies['gate']>(
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
  const rebuilder = outage<GateUpkeepDependencies['rebuilder']>({ apply: () => true }, calls);
  const log = { ...systemRuntime().log, warn: () => undefined };
  const runtime = { ...systemRuntime(), log: log as unknown as ReturnType<typeof systemRuntime>['log'] };
  const upkeep = new GateUpkeep({ runtime, gate, ledger, lead, rebuilder });
  await expect(upkeep.round()).rejects.toThrow('its shard is out');
  expect(calls).toContain('rebuild stale 0 false');
  for (const auditId of ['2', '4']) expect(calls).toContain(`finishTask ${auditId}`);
  for (const auditId of ['1', '3']) expect(calls).not.toContain(`finishTask ${auditId}`);
  expect(calls.some((call) => call.startsWith('pruneReleases '))).toBe(true);
  expect(calls.some((call) => call.startsWith('dropHouseHold fine '))).toBe(true);
  expect(calls.filter((call) => call.startsWith('retire '))).toEqual(['retire over']);
});

it('P10: an upkeep whose rounds fail hands over, and does not wait before it stands in line again', async () => {
  const gate = outage<GateUpkeepDependencies['gate']>(
    { epochOf: () => 1, houseHolds: () => [], saleIds: () => [] },
    [],
  );
  const answers = { openSaleIds: () => ['out', 'fine'], unfinishedTasks: () => [] };
  const ledger = stand<GateUpkeepDependencies['ledger']>(
    { ...answers, pruneKeys: () => 0, pruneReleases: () => 0 },
    [],
  );
  const rebuilder = stand<GateUpkeepDependencies['rebuilder']>({}, []);
  let work: ((signal: AbortSignal, alone: boolean) => Promise<void>) | undefined;
  const inLine: GateUpkeepDependencies['lead'] = (job) => {
    work = job;
    return { stop: async () => undefined };
  };
  let warned = 0;
  const { log, ...rest } = systemRuntime();
  const timers = { ...rest.timers, after: (_: number, run: () => void) => rest.timers.after(0, run) };
  const quiet = { ...log, warn: () => void warned++ } as unknown as typeof log;
  new GateUpkeep({ runtime: { ...rest, timers, log: quiet }, gate, ledger, lead: inLine, rebuilder }).start();
  const { signal } = new AbortController();
  // A job that throws is kept from leading for up to a minute.
  for (let times = 0; times < 3; times++) await work!(signal, false);
  expect(warned, 'an outage is logged once').toBe(1);
});

it('P10: a process that is alone goes on after any number of failed rounds, and reports the outage once', async () => {
  const gate = outage<GateUpkeepDependencies['gate']>(
    { epochOf: () => 1, houseHolds: () => [], saleIds: () => [] },
    [],
  );
  const ended = new AbortController();
  let rounds = 0;
  const openSaleIds = () => {
    if (++rounds === 10) ended.abort();
    return ['out'];
  };
  const answers = { openSaleIds, unfinishedTasks: () => [], pruneKeys: () => 0, pruneReleases: () => 0 };
  const ledger = stand<GateUpkeepDependencies['ledger']>(answers, []);
  const rebuilder = stand<GateUpkeepDependencies['rebuilder']>({}, []);
  const { log, ...rest } = systemRuntime();
  const timers = { ...rest.timers, after: (_: number, run: () => void) => rest.timers.after(0, run) };
  const runtime = { ...rest, timers, log: { ...log, warn: () => undefined } as unknown as typeof log };
  let done: Promise<void> | undefined;
  const failures: unknown[] = [];
  const alone: GateUpkeepDependencies['lead'] = (work) => {
    done = work(ended.signal, true);
    return { stop: () => done! };
  };
  const failed = (error: unknown): void => void failures.push(error);
  new GateUpkeep({ runtime, gate, ledger, lead: alone, rebuilder, failed }).start();
  await done;
  expect([rounds, failures.length]).toEqual([10, 1]);
});

it('a change of items is finished by a gate that knows them, and a deleted sale leaves the gate', async () => {
  const calls: string[] = [];
  const sales: Record<string, object> = {
    plain: OPEN,
    old: { ...OPEN, itemsEpoch: 4 },
    new: { ...OPEN, itemsEpoch: 3 },
    over: { ...OPEN, closed: true, itemsEpoch: 4 },
  };
  const tasks = [...Object.keys(sales), 'deleted'].map((saleId, at) => ({ auditId: String(at), saleId }));
  const ledger = stand<GateUpkeepDependencies['ledger']>(
    {
      openSaleIds: () => [],
      unfinishedTasks: (olderMs) => (Number(olderMs) === 1000 ? tasks : []),
      getSale: (saleId) => sales[saleId!] ?? null,
      pruneKeys: () => 0,
      pruneReleases: () => 0,
    },
    calls,
  );
  const gate = stand<GateUpkeepDependencies['gate']>({ epochOf: () => 4, saleIds: () => [] }, calls);
  const rebuilder = stand<GateUpkeepDependencies['rebuilder']>({ apply: () => true }, calls);
  await new GateUpkeep({ runtime: systemRuntime(), gate, ledger, lead, rebuilder }).round();
  expect(calls.filter((call) => /^(rebuild|remove|finishTask|apply) /.test(call)).sort()).toEqual([
    'apply new',
    'apply over',
    'apply plain',
    'finishTask 0',
    'finishTask 2',
    'finishTask 3',
    'finishTask 4',
    'rebuild old 4 false true',
    'remove deleted',
  ]);
});
