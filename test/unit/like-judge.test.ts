import { describe, expect, it } from 'vitest';
import type { Subject } from '../../src/model/like.ts';
import { judgeLikes, type LikeCall, type LikeEnd, type LikeHistory, type LikeLook } from '../support/like-judge.ts';

/** The model of P8 must find lies, and must not take an allowed loss for one. A call takes 10 ms here. */
const POST: Subject = 'post:1';
const NONE: LikeHistory = { calls: [], looks: [], sightings: [], losses: [] };

function call(atMs: number, wanted: boolean, changed: boolean | null, more: Partial<LikeCall> = {}): LikeCall {
  const answer = changed === null ? null : { liked: wanted, changed, count: 1 };
  return { subject: POST, user: 'ann', by: 'A', fromMs: atMs, toMs: atMs + 10, wanted, answer, ...more };
}

function endOf(liked: Record<string, boolean>, more: Partial<LikeEnd> = {}): LikeEnd {
  const count = Object.values(liked).filter(Boolean).length;
  return {
    rows: new Map([[POST, new Map(Object.entries(liked))]]),
    counts: new Map([[POST, count]]),
    shown: [{ subject: POST, count, exact: true }],
    callers: Object.entries(liked).map(([user, is]) => ({ subject: POST, user, liked: is })),
    ...more,
  };
}

const judged = (history: Partial<LikeHistory>, end: LikeEnd) => judgeLikes({ ...NONE, ...history }, end);
const faultsOf = (history: Partial<LikeHistory>, end: LikeEnd): string[] => judged(history, end).faults;
const lossAt = (fromMs: number) => ({ fromMs, toMs: fromMs + 5 });
const exactAt = (fromMs: number) => ({ subject: POST, fromMs, toMs: fromMs + 5 });

describe('without a loss, the last answer counts', () => {
  const calls = [call(0, true, true), call(20, true, false), call(40, false, true), call(60, true, true)];

  it('is right', () => {
    expect(judged({ calls }, endOf({ ann: true }))).toEqual({
      faults: [],
      pairs: 1,
      certain: 1,
      lost: 0,
      changesChecked: 4,
      behind: 0,
    });
  });

  it.each([
    ['the last like is not stored', calls, endOf({ ann: false })],
    ['there is no row', calls, endOf({})],
    ['a like that was taken back is stored', calls.slice(0, 3), endOf({ ann: true })],
    ['a repeated like changed something', [calls[0]!, call(20, true, true)], endOf({ ann: true })],
    ['a first like changed nothing', [call(0, true, false)], endOf({ ann: true })],
    [
      'the answer is another than what was wanted',
      [call(0, true, true, { answer: { liked: false, changed: true, count: 1 } })],
      endOf({ ann: true }),
    ],
    [
      'a like was answered with a count without it',
      [call(0, true, true, { answer: { liked: true, changed: true, count: 0 } })],
      endOf({ ann: true }),
    ],
    [
      'an unlike was answered with a negative count',
      [calls[0]!, call(20, false, true, { answer: { liked: false, changed: true, count: -1 } })],
      endOf({ ann: false }),
    ],
  ])('is wrong: %s', (_, made, end) => {
    expect(faultsOf({ calls: made }, end)).toHaveLength(1);
  });
});

describe('counts and what is shown are those of the rows', () => {
  const calls = [call(0, true, true)];

  it.each([
    ['a count is too high', { counts: new Map([[POST, 2]]), shown: [] }],
    ['a count is negative', { counts: new Map([[POST, -1]]), shown: [] }],
    [
      'a count has no rows',
      {
        counts: new Map<Subject, number>([
          [POST, 1],
          ['comment:2', 1],
        ]),
      },
    ],
    ['a count is shown that is not stored', { shown: [{ subject: POST, count: 2, exact: true }] }],
    ['a count is not exact', { shown: [{ subject: POST, count: 1, exact: false }] }],
    ['a caller is shown another state', { callers: [{ subject: POST, user: 'ann', liked: false }] }],
    ['a stranger is shown a like', { callers: [{ subject: POST, user: 'bob', liked: true }] }],
  ])('is wrong: %s', (_, more) => {
    expect(faultsOf({ calls }, endOf({ ann: true }, more))).toHaveLength(1);
  });
});

it('a row that nobody asked for is wrong', () => {
  expect(faultsOf({ calls: [call(0, true, true)] }, endOf({ ann: true, bob: true }))).toHaveLength(1);
});

describe('a call without an answer', () => {
  it('leaves the state open, and so does one that was answered while it may still come', () => {
    const open = [call(0, true, null)];
    for (const ann of [true, false])
      expect(judged({ calls: open }, endOf({ ann }))).toMatchObject({ faults: [], certain: 0 });
    const soon = [call(0, true, null), call(500, false, true)];
    for (const ann of [true, false]) expect(faultsOf({ calls: soon }, endOf({ ann }))).toEqual([]);
  });

  it('is over after a while', () => {
    const later = [call(0, true, null), call(20_000, false, true)];
    expect(faultsOf({ calls: later }, endOf({ ann: false }))).toEqual([]);
    expect(faultsOf({ calls: later }, endOf({ ann: true }))).toHaveLength(1);
  });
});

describe('when Redis loses its data', () => {
  it('what was not stored may be lost, and is counted', () => {
    const history = { calls: [call(0, true, true)], losses: [lossAt(50)] };
    expect(judged(history, endOf({ ann: true }))).toMatchObject({ faults: [], lost: 0, certain: 0 });
    expect(judged(history, endOf({ ann: false }))).toMatchObject({ faults: [], lost: 1 });
  });

  it('nothing that was known to be stored may be lost', () => {
    const history = { calls: [call(0, true, true)], sightings: [exactAt(20)], losses: [lossAt(50)] };
    expect(faultsOf(history, endOf({ ann: true }))).toEqual([]);
    expect(faultsOf(history, endOf({ ann: false }))).toHaveLength(1);
  });

  it('a sighting proves nothing of a later like, nor while the data is lost, nor afterwards', () => {
    for (const sighting of [exactAt(5), exactAt(48), exactAt(60)]) {
      const history = { calls: [call(0, true, true)], sightings: [sighting], losses: [lossAt(50)] };
      expect(faultsOf(history, endOf({ ann: false }))).toEqual([]);
    }
    const other = { ...exactAt(20), subject: 'post:2' as const };
    const history = { calls: [call(0, true, true)], sightings: [other], losses: [lossAt(50)] };
    expect(faultsOf(history, endOf({ ann: false }))).toEqual([]);
  });

  it('of several that were not stored any may be left, or what was stored before them', () => {
    const calls = [call(0, true, true), call(40, false, true), call(60, true, true)];
    const history = { calls, sightings: [exactAt(20)], losses: [lossAt(100)] };
    for (const ann of [true, false]) expect(faultsOf(history, endOf({ ann }))).toEqual([]);
  });

  it('like, flush, unlike, like: the newest wins', () => {
    const calls = [call(0, true, true), call(100, false, true), call(120, true, true)];
    const history = { calls, losses: [lossAt(50)] };
    expect(faultsOf(history, endOf({ ann: true }))).toEqual([]);
    expect(faultsOf(history, endOf({ ann: false }))).toHaveLength(1);
    // Whether the first was lost is open; from the next answer on it is not.
    const lie = [call(0, true, true), call(100, false, false), call(120, true, false)];
    expect(faultsOf({ calls: lie, losses: [lossAt(50)] }, endOf({ ann: true }))).toHaveLength(1);
  });

  it('a call that was under way then may be lost', () => {
    const history = { calls: [call(45, true, true)], losses: [lossAt(50)] };
    for (const ann of [true, false]) expect(faultsOf(history, endOf({ ann }))).toEqual([]);
  });
});

describe('a user who looks', () => {
  const look = (liked: boolean, exact: boolean, more: Partial<LikeLook> = {}): LikeLook => {
    return { subject: POST, user: 'ann', by: 'B', fromMs: 40, toMs: 50, liked, exact, ...more };
  };
  const calls = [call(0, true, true), call(20, false, true)];
  const end = endOf({ ann: false });

  it('sees the own like at once', () => {
    for (const exact of [true, false]) {
      expect(judged({ calls, looks: [look(false, exact)] }, end)).toMatchObject({ faults: [], behind: 0 });
      expect(faultsOf({ calls, looks: [look(true, exact)] }, end), 'exact or not').toHaveLength(1);
    }
  });

  const waited = { toMs: 540 };

  it('may see what was stored before, where a process waited for Redis in vain, which is counted', () => {
    const looks = [look(true, false, waited)];
    expect(judged({ calls, looks }, end)).toMatchObject({ faults: [], behind: 1 });
    // The ledger may have been read before this.
    expect(faultsOf({ calls, looks, sightings: [exactAt(43)] }, end)).toEqual([]);
    // A process remembers what it decided itself, but not for ever.
    const later = [look(true, false, { by: 'A', fromMs: 6_000, toMs: 6_500 })];
    expect(judged({ calls, looks: later }, end)).toMatchObject({ faults: [], behind: 1 });
  });

  it.each<[string, Partial<LikeHistory>]>([
    ['it is said to be exact', { looks: [look(true, true, waited)] }],
    ['nobody can have waited', { looks: [look(true, false, { toMs: 539 })] }],
    ['the process itself decided otherwise', { looks: [look(true, false, { ...waited, by: 'A' })] }],
    ['it is stored otherwise', { looks: [look(true, false, waited)], sightings: [exactAt(32)] }],
  ])('is wrong: %s', (_, history) => {
    expect(faultsOf({ calls, ...history }, end)).toHaveLength(1);
  });
});
