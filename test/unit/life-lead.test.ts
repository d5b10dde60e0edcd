import { rmSync } from 'node:fs';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type IdKind, IdSequence } from '../../src/base/ids.ts';
import { silentLog } from '../../src/base/logger.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { systemTimers } from '../../src/base/timers.ts';
import { lead } from '../../src/engine/lead.ts';
import { wireLife } from '../../src/engine/life.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { createLocks, type Locks } from '../../src/locks/locks.ts';
import { MemorySpace } from '../../src/locks/memory/space.ts';
import type { Sweeper } from '../../src/orders/life/sweeper.ts';
import { until } from '../support/fault-wait.ts';
import { temporary } from '../support/sqlite-ledger.ts';

/** Who sweeps, and when it hands over. The pauses of its parts take a five-hundredth of their time. */
const HASTE = 500;
const SOON_MS = 10_000;

let folder: string;
let ledger: SqliteLedger;
let locks: Locks;
const sweepers: Sweeper[] = [];
/** What the leaders' jobs did. */
let ends: string[];

beforeEach(() => {
  folder = temporary();
  ledger = SqliteLedger.open(folder, systemRuntime(silentLog()));
  const runtime = systemRuntime(silentLog());
  locks = createLocks({ space: new MemorySpace(runtime.clock), runtime: { log: runtime.log } });
  ends = [];
  locks.on('ended', ({ outcome }) => void ends.push(outcome));
});

afterEach(async () => {
  await Promise.all(sweepers.splice(0).map((sweeper) => sweeper.stop()));
  await locks.close();
  await ledger.close();
  rmSync(folder, { recursive: true, force: true });
});

/** A process. `fails`: which calls of its ledger fail; the others are counted. */
function start(fails: (call: string) => boolean, log = silentLog()): Map<string, number> {
  const calls = new Map<string, number>();
  const own = new Proxy(ledger as Ledger, {
    get(target, name) {
      const value = Reflect.get(target, name, target) as unknown;
      if (typeof value !== 'function') return value;
      return (...args: unknown[]) => {
        const call = String(name);
        calls.set(call, (calls.get(call) ?? 0) + 1);
        return fails(call) ? Promise.reject(new Error('out')) : value.apply(target, args);
      };
    },
  });
  const timers = { ...systemTimers, after: (ms: number, run: () => void) => systemTimers.after(ms / HASTE, run) };
  const runtime = { ...systemRuntime(log), timers };
  const ids = (kind: IdKind) => new IdSequence(kind, (of, size) => ledger.takeIdBlock(of, size), runtime.clock, 100);
  const { sweeper } = wireLife({
    runtime,
    ledger: own,
    gate: new MemoryGate(runtime, () => undefined),
    locks,
    attemptIds: ids('attempt'),
    auditIds: ids('audit'),
    payments: { sandbox: false },
    reached: () => undefined,
    place: () => Promise.reject(new Error('nobody buys')),
    touched: () => undefined,
    moved: () => undefined,
    committed: () => undefined,
    watched: (work) => work,
    queuedOrder: async () => null,
    lead: (work, options) => lead(locks, 'life', work, options),
  });
  sweeper.start();
  sweepers.push(sweeper);
  return calls;
}

it('P10: a part that fails on backs off alone: the others go on, and nobody loses the lead', async () => {
  const calls = start((call) => call === 'releases');
  // Twelve in a row once ended all of them.
  await until('it has failed often', SOON_MS, () => (calls.get('releases') ?? 0) >= 30);
  const before = calls.get('dueOrders')!;
  await until('orders expire on', SOON_MS, () => calls.get('dueOrders')! > before + 10);
  expect(ends).toEqual([]);
});

it('P10: what fails on for minutes is left to another process, and nobody waits before it leads again', async () => {
  const first = start((call) => call === 'releases');
  await until('it leads', SOON_MS, () => (first.get('releases') ?? 0) > 0);
  const second = start(() => false);
  await until('the second one leads', SOON_MS, () => (second.get('releases') ?? 0) > 0);
  expect(first.get('releases')).toBe(150);
  expect(ends, 'a job that has failed is kept from leading for up to a minute').toEqual(['done']);
});

it('P10: a process that alone cannot reach the ledger hands over to one that can', async () => {
  const first = start(() => true);
  await until('it leads', SOON_MS, () => (first.get('dueOrders') ?? 0) > 0);
  const second = start(() => false);
  await until('the second one leads', SOON_MS, () => (second.get('dueOrders') ?? 0) > 0);
  const tried = first.get('dueOrders')!;
  expect(tried).toBeGreaterThanOrEqual(12);
  expect(tried).toBeLessThan(50);
  expect(ends).toEqual(['done']);
});

it('P10: an outage of the ledger is one line of the log, whichever parts meet it and however often it leads anew', async () => {
  const lines: string[] = [];
  const log = Object.create(silentLog()) as ReturnType<typeof silentLog>;
  log.warn = ((_: unknown, text: string) => void lines.push(text)) as typeof log.warn;
  start(() => true, log);
  await until('it leads for the third time', SOON_MS, () => ends.length >= 2);
  expect(lines.toSorted()).toEqual([
    'the order sweeper failed; it tries again',
    'the order sweeper keeps failing; another process may lead',
  ]);
});
