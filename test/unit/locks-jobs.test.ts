import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Clock } from '../../src/base/clock.ts';
import { TerminalError, unavailable } from '../../src/base/errors.ts';
import type { JobContext } from '../../src/locks/job.ts';
import { createLocks, type Locks, type LocksOptions } from '../../src/locks/locks.ts';
import { MemorySpace } from '../../src/locks/memory/store.ts';
import { type ManualRuntime, manualRuntime, settled, T0 } from '../contract/manual.ts';

/** Instances of one cluster, in one process, on a clock that only the test moves. */
let runtime: ManualRuntime;
let space: MemorySpace;
let made: Locks[];

beforeEach(() => {
  runtime = manualRuntime();
  space = new MemorySpace(runtime.clock);
  made = [];
});
afterEach(async () => {
  const closing = Promise.all(made.map((locks) => locks.close()));
  await runtime.timers.advance(1000);
  await closing;
});

/** `aheadMs`: how wrong this instance's wall clock is. */
function instance(aheadMs = 0, options: LocksOptions = {}): Locks {
  const clock: Clock = { now: () => runtime.clock.now() + aheadMs, monotonic: () => runtime.clock.monotonic() };
  const locks = createLocks({ space, runtime: { ...runtime, clock }, lease: 3000, ...options });
  made.push(locks);
  return locks;
}

const advance = async (ms: number): Promise<void> => {
  await runtime.timers.turn();
  await runtime.timers.advance(ms);
  await runtime.timers.turn();
};

/** Work that goes on until it is told to end. */
function untilAborted({ signal }: JobContext): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve());
  });
}

describe('leader', () => {
  it('is one of three; the others stand in line and say so; who leads next is woken when it stops', async () => {
    const [a, b, c] = [instance(), instance(), instance()];
    const began: string[] = [];
    const skipped: string[] = [];
    const all = Object.entries({ a, b, c }).map(([name, locks]) => {
      locks.on('skipped', (event) => skipped.push(`${name} ${event.kind} ${event.name} ${event.reason}`));
      return locks.leader('rebuild', (context) => {
        began.push(name);
        return untilAborted(context);
      });
    });
    await advance(100);
    expect(began).toEqual(['a']);
    expect(all.map((each) => each.isLeader)).toEqual([true, false, false]);
    expect(skipped).toEqual(['b job rebuild led elsewhere', 'c job rebuild led elsewhere']);
    const first = all[0]!.token!;
    await advance(60_000);
    expect(began).toEqual(['a']);

    const stopping = all[0]!.stop();
    await advance(100);
    await stopping;
    expect(began).toEqual(['a', 'b']);
    expect(all.map((each) => each.isLeader)).toEqual([false, true, false]);
    expect(all[1]!.token!).toBeGreaterThan(first);
  });

  it('P10: an outage that ends its work is a line without a stack, once a minute; a fault of the work is an error each time', async () => {
    const lines: unknown[] = [];
    const log = Object.create(runtime.log) as typeof runtime.log;
    for (const level of ['warn', 'error'] as const) {
      log[level] = ((about: object, text: string) =>
        void lines.push([level, text, Object.keys(about)])) as typeof log.warn;
    }
    let error: Error = unavailable('the database cannot be reached');
    let led = 0;
    const a = instance(0, { runtime: { ...runtime, log } });
    a.leader('j', () => {
      led++;
      throw error;
    });
    const outage = ['warn', 'a job failed; it is tried again', ['job', 'reason']];
    for (let seconds = 0; seconds < 50; seconds++) await advance(1000);
    expect([led > 3, lines]).toEqual([true, [outage]]);
    for (let seconds = 0; seconds < 120; seconds++) await advance(1000);
    expect(lines.length).toBeLessThanOrEqual(3);
    lines.length = 0;
    error = new Error('a fault');
    for (let seconds = 0; seconds < 120; seconds++) await advance(1000);
    expect(lines[0]).toEqual(['error', 'a job failed', ['err', 'job']]);
  });

  it('changes when the leader closes, without waiting for work that does not listen', async () => {
    const [a, b] = [instance(), instance()];
    const ended: string[] = [];
    a.on('ended', ({ outcome }) => ended.push(outcome));
    let reason: unknown;
    a.leader('j', ({ signal }) => {
      signal.addEventListener('abort', () => {
        reason = signal.reason;
      });
      return new Promise(() => undefined);
    });
    await advance(10);
    const next = b.leader('j', untilAborted);
    await advance(10);
    expect(next.isLeader).toBe(false);
    const closing = a.close();
    await advance(100);
    await closing;
    expect(reason).toMatchObject({ code: 'lock_aborted' });
    expect(next.isLeader).toBe(true);
    expect(ended).toEqual([]);
  });

  it('changes when its lock is taken away: the signal aborts, and it stands in line again', async () => {
    const [a, b] = [instance(), instance()];
    const ended: string[] = [];
    a.on('ended', ({ outcome }) => ended.push(outcome));
    const first = a.leader('j', untilAborted);
    await advance(10);
    const second = b.leader('j', untilAborted);
    await advance(10);
    await b.fair('leader:j').forceRelease();
    await advance(100);
    expect(ended).toEqual(['lost']);
    expect([first.isLeader, second.isLeader]).toEqual([false, true]);
    await b.fair('leader:j').forceRelease();
    await advance(100);
    expect([first.isLeader, second.isLeader]).toEqual([true, false]);
  });

  it('leads at most so long', async () => {
    const [a, b] = [instance(), instance()];
    const leads: string[] = [];
    const lead = (name: string) => (context: JobContext) => {
      leads.push(name);
      return untilAborted(context);
    };
    a.leader('j', lead('a'), { atMost: 5000 });
    await advance(10);
    b.leader('j', lead('b'), { atMost: 5000 });
    await advance(4900);
    expect(leads).toEqual(['a']);
    await advance(3000);
    expect(leads).toEqual(['a', 'b']);
    await advance(6000);
    expect(leads).toEqual(['a', 'b', 'a']);
  });

  it('keeps the leadership at least so long when its work ends at once, and hands over then', async () => {
    const [a, b] = [instance(), instance()];
    const leads: [string, number][] = [];
    const lead = (name: string) => () => void leads.push([name, runtime.clock.monotonic()]);
    const first = a.leader('j', lead('a'), { atLeast: 500 });
    await advance(0);
    b.leader('j', lead('b'), { atLeast: 500 });
    await advance(450);
    expect(leads.map(([name]) => name)).toEqual(['a']);
    expect(first.isLeader).toBe(true);
    await advance(1500);
    expect(leads.map(([name]) => name)).toEqual(['a', 'b', 'a', 'b']);
    for (const [at, [, ms]] of leads.entries()) if (at > 0) expect(ms - leads[at - 1]![1]).toBeGreaterThanOrEqual(500);
  });

  it('tells failures, tries again with growing delays, and lets others lead meanwhile', async () => {
    const a = instance();
    const errors: unknown[] = [];
    const beganMs: number[] = [];
    a.on('began', () => beganMs.push(runtime.clock.monotonic()));
    a.on('ended', ({ outcome, error }) => errors.push(outcome, error));
    a.leader(
      'j',
      () => {
        throw new Error('broken');
      },
      { atLeast: 10 },
    );
    await advance(120_000);
    expect(errors.slice(0, 2)).toEqual(['failed', new Error('broken')]);
    expect(beganMs.length).toBeGreaterThan(4);
    expect(beganMs.length).toBeLessThan(12);
    const gaps = beganMs.slice(1).map((ms, at) => ms - beganMs[at]!);
    expect(gaps[0]).toBeLessThan(1500);
    expect(gaps.at(-1)).toBeGreaterThan(10_000);

    const b = instance();
    const second = b.leader('j', untilAborted);
    await advance(100);
    expect(second.isLeader).toBe(true);
  });

  it('says no to nonsense at once', async () => {
    const a = instance();
    expect(() => a.leader('', () => undefined)).toThrow(TerminalError);
    expect(() => a.leader('j', () => undefined, { atLeast: 0 })).toThrow(/atLeast/);
    expect(() => a.leader('j', () => undefined, { atLeast: 100, atMost: 50 })).toThrow(/atLeast/);
    await a.close();
    expect(() => a.leader('j', () => undefined)).toThrow(/closed/);
  });
});

describe('schedule', () => {
  it('runs each slot once over three instances whose clocks differ by 5 s', async () => {
    const runs: [string, string][] = [];
    const reasons: Record<string, number> = {};
    // Not right at a slot: who is behind would have that one to itself.
    runtime.clock.step(20_000);
    for (const [name, aheadMs] of [
      ['ahead', 5000],
      ['right', 0],
      ['behind', -5000],
    ] as const) {
      const locks = instance(aheadMs);
      locks.on('skipped', ({ reason }) => {
        reasons[reason] = (reasons[reason] ?? 0) + 1;
      });
      locks.schedule('report', '* * * * *', ({ slot }) => void runs.push([name, slot.toISOString()]));
    }
    await advance(10 * 60_000 + 10_000);
    const slots = runs.map(([, slot]) => slot);
    expect(slots).toEqual(Array.from({ length: 10 }, (_, at) => new Date(T0 + (at + 1) * 60_000).toISOString()));
    expect(new Set(runs.map(([name]) => name))).toEqual(new Set(['ahead']));
    expect(reasons).toEqual({ 'done elsewhere': 20 });
  });

  it('runs every slot of a schedule that is faster than the clocks differ', async () => {
    const slots: number[] = [];
    for (const aheadMs of [5000, 0, -5000]) {
      instance(aheadMs).schedule('tick', '* * * * * *', ({ slot }) => void slots.push(slot.getTime()));
    }
    await advance(60_500);
    expect(new Set(slots).size).toBe(slots.length);
    expect(slots.length).toBeGreaterThanOrEqual(60);
  });

  it('does not overlap: skipped where it runs, and elsewhere', async () => {
    const [a, b] = [instance(100), instance()];
    const said: string[] = [];
    for (const [name, locks] of Object.entries({ a, b })) {
      locks.on('skipped', ({ reason }) => said.push(`${name} ${reason}`));
    }
    let running = 0;
    const work = async (): Promise<void> => {
      expect(++running).toBe(1);
      await new Promise<void>((resolve) => void runtime.timers.after(90_000, resolve));
      running--;
    };
    const first = a.schedule('slow', '* * * * *', work);
    b.schedule('slow', '* * * * *', work);
    await advance(61_000);
    expect(first.isRunning).toBe(true);
    expect(said).toEqual(['b done elsewhere']);
    await advance(60_000);
    expect(said).toEqual(['b done elsewhere', 'a still running here', 'b running elsewhere']);
  });

  it('keeps its lock at least so long, also when its process ends', async () => {
    const [a, b] = [instance(100), instance()];
    const said: string[] = [];
    b.on('skipped', ({ reason }) => said.push(reason));
    let runs = 0;
    a.schedule('j', '*/10 * * * * *', () => void runs++, { atLeast: 25_000 });
    b.schedule('j', '*/10 * * * * *', () => void runs++, { atLeast: 25_000 });
    await advance(10_500);
    expect(runs).toBe(1);
    const closing = a.close();
    await advance(100);
    await closing;
    await advance(20_000);
    expect(runs).toBe(1);
    expect(said).toEqual(['done elsewhere', 'running elsewhere', 'running elsewhere']);
    await advance(10_000);
    expect(runs).toBe(2);
  });

  it('aborts after atMost', async () => {
    const a = instance();
    const ended: string[] = [];
    a.on('ended', ({ outcome }) => ended.push(outcome));
    a.schedule('j', '* * * * *', untilAborted, { atMost: 10_000 });
    await advance(60_500);
    expect(ended).toEqual([]);
    await advance(10_000);
    expect(ended).toEqual(['lost']);
  });

  it('tells failures and goes on with the next slot', async () => {
    const a = instance();
    const ended: unknown[] = [];
    a.on('ended', ({ outcome, error }) => ended.push(outcome, (error as Error).message));
    a.schedule('j', '* * * * *', async () => {
      throw new Error('broken');
    });
    await advance(120_500);
    expect(ended).toEqual(['failed', 'broken', 'failed', 'broken']);
  });

  it('does not run slots that went by while the process was stopped', async () => {
    const a = instance();
    const slots: string[] = [];
    const said: string[] = [];
    a.on('skipped', ({ reason }) => said.push(reason));
    a.schedule('j', '*/10 * * * *', ({ slot }) => void slots.push(slot.toISOString()));
    await advance(1000);
    // The wall clock goes on; no timer did.
    runtime.clock.step(45 * 60_000);
    await advance(31_000);
    expect(slots).toEqual([]);
    expect(said).toEqual(['missed']);
    await advance(5 * 60_000);
    expect(slots).toEqual(['2026-11-11T00:50:00.000Z']);
  });

  it('waits by the wall clock, which may be set back', async () => {
    const a = instance();
    const slots: string[] = [];
    runtime.clock.step(365 * 86_400_000);
    const job = a.schedule('j', '0 * * * *', ({ slot }) => void slots.push(slot.toISOString()));
    await advance(10);
    runtime.clock.step(-365 * 86_400_000);
    await advance(31_000);
    expect(job.next?.toISOString()).toBe('2026-11-11T01:00:00.000Z');
    await advance(3_600_000);
    expect(slots).toEqual(['2026-11-11T01:00:00.000Z']);
  });

  it('knows time zones; the default is UTC wherever the machine is', async () => {
    const a = instance();
    const at = (timeZone?: string) =>
      a.schedule('z', '0 9 * * *', () => undefined, timeZone === undefined ? {} : { timeZone });
    const [utc, shanghai] = [at(), at('Asia/Shanghai')];
    await settled();
    expect(utc.next?.toISOString()).toBe('2026-11-11T09:00:00.000Z');
    expect(shanghai.next?.toISOString()).toBe('2026-11-11T01:00:00.000Z');
  });

  it('stops, and waits for what runs', async () => {
    const a = instance();
    let ended = false;
    const job = a.schedule('j', '* * * * *', async (context) => {
      await untilAborted(context);
      ended = true;
    });
    await advance(60_500);
    expect(job.isRunning).toBe(true);
    await job.stop();
    expect(ended).toBe(true);
    await advance(120_000);
    expect(job.isRunning).toBe(false);
  });

  it.each([
    ['nope', /five, six, or seven/],
    ['61 * * * *', /cron "61/],
    ['0 0 30 2 *', /never comes/],
    ['2027-01-01T00:00:00', /no pattern/],
    ['', /cron ""/],
  ])('refuses "%s" at once', (cron, message) => {
    const refused = () => instance().schedule('j', cron, () => undefined);
    expect(refused).toThrow(TerminalError);
    expect(refused).toThrow(message);
  });

  it('refuses a time zone that is not', () => {
    expect(() => instance().schedule('j', '* * * * *', () => undefined, { timeZone: 'No/Where' })).toThrow(/No\/Where/);
  });
});
