import { describe, expect, it } from 'vitest';
import { check } from './check.ts';
import type { Event, History, Trouble } from './history.ts';
import type { LockPlan } from './schedule.ts';
import { scheduleOf } from './schedule.ts';

/** Milliseconds, as they stand in the tests. */
const ms = (value: number): number => value * 1000;

const LOCKS: LockPlan[] = [
  { name: 'm', kind: 'mutex', permits: 1 },
  { name: 'f', kind: 'fair', permits: 1 },
  { name: 'rw', kind: 'readwrite', permits: 1 },
  { name: 's', kind: 'semaphore', permits: 2 },
];

interface Told {
  w?: number;
  lock?: string;
  mode?: 'read' | 'write';
  permits?: number;
  waitMs?: number | null;
  invoked: number;
  waiting?: number;
  acquired?: number;
  token?: number;
  until?: number;
  failed?: number;
  keepsToken?: boolean;
}

/** The events of one operation, from the moments that matter. */
function op(id: string, told: Told): Event[] {
  const { w = Number(id.slice(1)), lock = 'm', mode = 'write', permits = 1, waitMs = null, keepsToken } = told;
  const by = { w, op: id };
  const kept = keepsToken ? { keepsToken } : {};
  const events: Event[] = [
    { e: 'invoked', t: ms(told.invoked), ...by, lock, mode, permits, waitMs, leaseMs: 400, ...kept },
  ];
  if (told.waiting !== undefined) events.push({ e: 'waiting', t: ms(told.waiting), ...by });
  if (told.failed !== undefined) events.push({ e: 'failed', t: ms(told.failed), ...by, why: 'TimeoutError' });
  if (told.acquired === undefined) return events;
  events.push({ e: 'acquired', t: ms(told.acquired), ...by, token: String(told.token) });
  const until = told.until ?? told.acquired;
  events.push({ e: 'held', t: ms(told.acquired), ...by, leftMs: 100 }, { e: 'release', t: ms(until), ...by });
  events.push({ e: 'released', t: ms(until + 1), ...by });
  return events;
}

function history(events: Event[][], more: Partial<History> = {}): History {
  return {
    seed: 0,
    settings: { leaseMs: 400, handOverMs: 200, commandMs: 100, outageMs: 500, persistence: 'aof' },
    locks: LOCKS,
    from: 0,
    events: events.flat().sort((one, other) => one.t - other.t),
    troubles: [],
    killed: [],
    fence: {},
    left: { hung: [], stuck: [], listed: [], keys: [] },
    ...more,
  };
}

const rules = (of: History): string[] => check(of).map(({ rule }) => rule);
const flushed = (from: number, to: number): Trouble => ({
  ...{ kind: 'flush', worker: null, forgets: true },
  ...{ from: ms(from), to: ms(to) },
});
const stopped = (worker: number, from: number, to: number): Trouble => ({
  ...{ kind: 'stop', worker },
  ...{ from: ms(from), to: ms(to) },
});

const first = op('a1', { invoked: 0, acquired: 10, token: 5, until: 50 });

describe('the checker of histories', () => {
  it('has nothing to say to one after the other', () => {
    const second = op('a2', { invoked: 5, acquired: 51, token: 6, until: 60 });
    expect(check(history([first, second]))).toEqual([]);
  });

  describe('exclusion', () => {
    const second = op('a2', { invoked: 5, acquired: 49, token: 6, until: 60 });

    it('catches two at a time', () => {
      expect(rules(history([first, second]))).toEqual(['exclusion']);
    });

    it('excuses them when Redis forgot in between', () => {
      expect(rules(history([first, second], { troubles: [flushed(20, 21)] }))).toEqual([]);
    });

    it('does not excuse them when Redis had forgotten before', () => {
      expect(rules(history([first, second], { troubles: [flushed(-20, -19)] }))).toEqual(['exclusion']);
    });

    it('excuses a force release of that name, and of no other', () => {
      const force = (lock: string): Event[] => [
        { e: 'forcing', t: ms(20), w: 3, op: 'x', lock },
        { e: 'forced', t: ms(21), w: 3, op: 'x' },
      ];
      expect(rules(history([first, second, force('m')]))).toEqual([]);
      expect(rules(history([first, second, force('f')]))).toEqual(['exclusion']);
    });

    it('does not excuse a process that was stopped and found it held afterwards', () => {
      expect(rules(history([first, second], { troubles: [stopped(1, 11, 48)] }))).toEqual(['exclusion']);
    });

    it('says nothing of one that never looked again', () => {
      const looked: Event[] = first.filter(({ e }) => e !== 'release' && e !== 'released');
      const unheld: Event = { e: 'unheld', t: ms(70), w: 1, op: 'a1' };
      expect(rules(history([[...looked, unheld], second]))).toEqual([]);
    });

    it('keeps different names apart', () => {
      const other = op('a2', { lock: 'f', invoked: 5, acquired: 20, token: 6, until: 60 });
      expect(rules(history([first, other]))).toEqual([]);
    });
  });

  describe('readers and writers', () => {
    const reader = op('a1', { lock: 'rw', mode: 'read', invoked: 0, acquired: 10, token: 5, until: 50 });

    it('lets readers in together', () => {
      const other = op('a2', { lock: 'rw', mode: 'read', invoked: 0, acquired: 11, token: 6, until: 40 });
      expect(rules(history([reader, other]))).toEqual([]);
    });

    it('catches a writer among readers', () => {
      const writer = op('a2', { lock: 'rw', invoked: 0, acquired: 20, token: 6, until: 30 });
      expect(rules(history([reader, writer]))).toEqual(['exclusion']);
    });

    it('catches a reader beside a writer', () => {
      const writer = op('a2', { lock: 'rw', invoked: 0, acquired: 5, token: 4, until: 15 });
      expect(rules(history([reader, writer]))).toEqual(['exclusion']);
    });

    it('takes a downgrade for the same token', () => {
      const writer = op('a1', { lock: 'rw', invoked: 0, acquired: 5, token: 4, until: 15 });
      const told = { lock: 'rw', mode: 'read', keepsToken: true, w: 1 } as const;
      const after = op('a1-', { ...told, invoked: 15, acquired: 16, token: 4, until: 20 });
      expect(rules(history([writer, after]))).toEqual([]);
    });
  });

  describe('permits', () => {
    const held = (id: string, permits: number, acquired: number): Event[] =>
      op(id, { lock: 's', permits, invoked: 0, acquired, token: acquired, until: 50 });

    it('allows as many as there are', () => {
      expect(rules(history([held('a1', 1, 10), held('a2', 1, 11)]))).toEqual([]);
    });

    it('catches one more', () => {
      expect(rules(history([held('a1', 1, 10), held('a2', 2, 11)]))).toEqual(['permits']);
      expect(rules(history([held('a1', 1, 10), held('a2', 1, 11), held('a3', 1, 12)]))).toEqual(['permits']);
    });

    it('excuses it when Redis forgot', () => {
      const troubles = [flushed(5, 6)];
      expect(rules(history([held('a1', 1, 10), held('a2', 2, 11)], { troubles }))).toEqual([]);
    });
  });

  describe('tokens', () => {
    it('catches one that was given twice', () => {
      const second = op('a2', { invoked: 5, acquired: 60, token: 5, until: 70 });
      expect(rules(history([first, second]))).toContain('token');
    });

    it('catches a smaller one for who asked later, also when Redis forgot', () => {
      const second = op('a2', { invoked: 60, acquired: 70, token: 4, until: 80 });
      expect(rules(history([first, second], { troubles: [flushed(52, 53)] }))).toEqual(['token']);
    });

    it('catches a smaller one for who held it later', () => {
      const second = op('a2', { invoked: 5, acquired: 70, token: 4, until: 80 });
      expect(rules(history([first, second]))).toEqual(['token']);
    });

    it('catches another one on re-entry', () => {
      const entered = (token: string): Event[] => [{ e: 'entered', t: ms(20), w: 1, op: 'a1', token }];
      expect(rules(history([first, entered('5')]))).toEqual([]);
      expect(rules(history([first, entered('6')]))).toEqual(['token']);
    });
  });

  describe('the fence', () => {
    const second = op('a2', { invoked: 5, acquired: 51, token: 6, until: 60 });

    it('has writes in the order of their tokens', () => {
      const [one, two] = [
        { token: '5', op: 'a1' },
        { token: '6', op: 'a2' },
      ];
      expect(rules(history([first, second], { fence: { m: [one, one, two] } }))).toEqual([]);
      expect(rules(history([first, second], { fence: { m: [one, two, one] } }))).toContain('fence');
    });

    it('catches writes of two holders in turn', () => {
      const log = ['a1', 'a2', 'a1'].map((id) => ({ token: '5', op: id }));
      expect(rules(history([first, second], { fence: { m: log } }))).toEqual(['fence']);
    });

    it('catches a holder that was refused', () => {
      const refused: Event[] = [{ e: 'write', t: ms(40), w: 1, op: 'a1', accepted: false }];
      expect(rules(history([first, refused]))).toEqual(['fence']);
      expect(rules(history([first, refused], { troubles: [flushed(20, 21)] }))).toEqual([]);
    });
  });

  describe('signals', () => {
    const lost = (t: number, calm: boolean, reason = 'expired'): Event[] => {
      return [{ e: 'lost', t: ms(t), w: 1, op: 'a1', reason, calm }];
    };
    const second = op('a2', { invoked: 5, acquired: 60, token: 6, until: 80 });
    const working = first.filter(({ e }) => e !== 'release' && e !== 'released');

    it('come before the next one has it', () => {
      expect(rules(history([working, lost(59, true), second]))).toEqual([]);
      expect(rules(history([working, lost(65, true), second]))).toEqual(['signal']);
    });

    it('may be late in a process that was', () => {
      expect(rules(history([working, lost(65, false), second]))).toEqual([]);
      expect(rules(history([working, lost(65, true), second], { troubles: [stopped(1, 52, 64)] }))).toEqual([]);
    });

    it('may come while it is being given back', () => {
      expect(rules(history([first, lost(65, true), second]))).toEqual([]);
    });

    it('catches Redis giving away what was leased', () => {
      expect(rules(history([first, lost(60, false, 'refused')]))).toEqual(['early']);
      expect(rules(history([first, lost(105, false, 'refused')]))).toEqual([]);
      expect(rules(history([first, lost(60, false, 'refused')], { troubles: [flushed(20, 21)] }))).toEqual([]);
    });

    it('catches a release that found it gone', () => {
      const gone: Event[] = [{ e: 'unreleased', t: ms(55), w: 1, op: 'a1', why: 'refused' }];
      expect(rules(history([first, gone]))).toEqual(['early']);
    });
  });

  describe('order of the queue', () => {
    const early = op('a1', { lock: 'f', invoked: 1000, waiting: 1001, acquired: 1050, token: 9, until: 1060 });
    const late = op('a2', { lock: 'f', invoked: 1002, acquired: 1030, token: 8, until: 1040 });

    it('catches who was served before one in the queue', () => {
      expect(rules(history([early, late]))).toEqual(['fifo']);
    });

    it('catches it when the one in the queue gave up later', () => {
      const gaveUp = op('a1', { lock: 'f', invoked: 1000, waiting: 1001, failed: 1035 });
      expect(rules(history([gaveUp, late]))).toEqual(['fifo']);
      const before = op('a1', { lock: 'f', invoked: 1000, waiting: 1001, failed: 1025 });
      expect(rules(history([before, late]))).toEqual([]);
    });

    it('says nothing of those who came at the same time', () => {
      const same = op('a2', { lock: 'f', invoked: 1000.5, acquired: 1030, token: 8, until: 1040 });
      expect(rules(history([early, same]))).toEqual([]);
    });

    it('excuses who was stopped or stood still', () => {
      expect(rules(history([early, late], { troubles: [stopped(1, 1003, 1010)] }))).toEqual([]);
      expect(rules(history([early, late], { troubles: [stopped(3, 1003, 1010)] }))).toEqual(['fifo']);
      const stall: Event[] = [{ e: 'stall', t: ms(1020), w: 1, ms: 40 }];
      expect(rules(history([early, late, stall]))).toEqual([]);
    });

    it('is promised by the fair lock alone', () => {
      const mutex = [early, late].map((events) => {
        return events.map((event) => (event.e === 'invoked' ? { ...event, lock: 'm' } : event));
      });
      expect(rules(history(mutex))).toEqual([]);
    });
  });

  describe('the end', () => {
    const left = { hung: [], stuck: [], listed: [], keys: [] };

    it('catches what never ended', () => {
      const waiting = op('a1', { invoked: 0, waiting: 1 });
      expect(rules(history([waiting], { left: { ...left, hung: [1] } }))).toEqual(['liveness', 'liveness']);
      expect(rules(history([waiting], { killed: [{ w: 1, t: ms(5) }] }))).toEqual([]);
    });

    it('catches a wait that was too long', () => {
      const failed = (at: number): Event[] => op('a1', { invoked: 0, waiting: 1, waitMs: 300, failed: at });
      expect(rules(history([failed(320)]))).toEqual([]);
      expect(rules(history([failed(800)]))).toEqual(['liveness']);
      expect(rules(history([failed(800)], { troubles: [stopped(1, 100, 790)] }))).toEqual([]);
    });

    it('catches one that was forgotten for seconds', () => {
      const waited = op('a1', { invoked: 0, waiting: 1, acquired: 6_000, token: 5, until: 6_010 });
      expect(rules(history([waited]))).toEqual(['liveness']);
      expect(rules(history([waited], { troubles: [stopped(2, 0, 2_000)] }))).toEqual([]);
    });

    it('catches unhandled rejections', () => {
      expect(rules(history([[{ e: 'unhandled', t: 0, w: 1, why: 'Error' }]]))).toEqual(['unhandled']);
    });

    it('catches what was left behind', () => {
      expect(rules(history([], { left: { ...left, stuck: ['m'] } }))).toEqual(['left']);
      expect(rules(history([], { left: { ...left, listed: ['mutex m'] } }))).toEqual(['left']);
      expect(rules(history([], { left: { ...left, keys: ['history:{0}:mutex:queue:m'] } }))).toEqual(['left']);
    });
  });
});

describe('a schedule', () => {
  it('is the same for the same seed', () => {
    expect(scheduleOf(7)).toEqual(scheduleOf(7));
    expect(scheduleOf(7)).not.toEqual(scheduleOf(8));
  });

  it('has every kind of lock and of fault in some seed', () => {
    const all = Array.from({ length: 200 }, (_, seed) => scheduleOf(seed));
    const kinds = new Set(all.flatMap(({ locks }) => locks.map(({ kind }) => kind)));
    expect([...kinds].sort()).toEqual(['fair', 'mutex', 'readwrite', 'semaphore']);
    const faults = new Set(all.flatMap((schedule) => schedule.faults.map(({ kind }) => kind)));
    const workers = ['cut', 'delay', 'freeze', 'kill', 'lose', 'refuse', 'stop'];
    expect([...faults].sort()).toEqual([...workers, 'flush', 'redis-pause', 'redis-restart', 'redis-stop'].sort());
  });
});
