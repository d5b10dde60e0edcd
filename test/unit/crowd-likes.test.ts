import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../src/base/random.ts';
import type { LikeEvidence, LikerAnswer } from '../../src/crowd/likes/evidence.ts';
import { planSteps } from '../../src/crowd/likes/liker.ts';
import { judgeLikes } from '../../src/crowd/likes/verdict.ts';

const ok = { status: 200, code: null };

function told(
  user: string,
  step: number,
  wanted: boolean,
  changed: boolean,
  more: Partial<LikerAnswer> = {},
): LikerAnswer {
  return { user, postId: '1', step, wanted, ...ok, liked: wanted, changed, ...more };
}

const lost = { status: null, liked: null, changed: null };

/** Ann likes it with two clicks, Bob likes it and takes it back, Cat never heard whether she did. */
function honest(change: Partial<LikeEvidence> = {}): LikeEvidence {
  return {
    answers: [
      told('ann', 0, true, true),
      told('ann', 0, true, false),
      told('bob', 0, true, true),
      told('bob', 1, false, true),
      told('bob', 2, false, false),
      told('cat', 0, true, false, { ...lost }),
      told('cat', 0, true, false, { status: 503, code: 'unavailable', liked: null, changed: null }),
    ],
    posts: [{ id: '1', count: 1, exact: true, likers: ['ann'] }],
    seen: [
      { user: 'ann', postId: '1', liked: true },
      { user: 'bob', postId: '1', liked: false },
      { user: 'cat', postId: '1', liked: false },
    ],
    waitedMs: 60_000,
    ...change,
  };
}

function broken(change: Partial<LikeEvidence>): string[] {
  return judgeLikes(honest(change)).findings.flatMap(({ held, says }) => (held ? [] : [says.split(':')[0]!]));
}

describe('the verdict on likes', () => {
  it('finds nothing wrong with a shop that keeps P8', () => {
    const verdict = judgeLikes(honest());
    expect(verdict.findings.filter(({ held }) => !held)).toEqual([]);
    expect(verdict).toMatchObject({ held: true, changes: 3, repeats: 2, likes: 1, unknown: 1 });
    // Cat's like may have been made.
    const made = { posts: [{ id: '1', count: 2, exact: true, likers: ['ann', 'cat'] }] };
    expect(broken({ ...made, seen: [{ user: 'cat', postId: '1', liked: true }] })).toEqual([]);
  });

  it('P8: a count that differs from its rows, or counts somebody twice', () => {
    expect(broken({ posts: [{ id: '1', count: 2, exact: true, likers: ['ann'] }] })).toEqual(['COUNTS DRIFT']);
    expect(broken({ posts: [{ id: '1', count: 2, exact: true, likers: ['ann', 'ann'] }] })).toEqual(['COUNTS DRIFT']);
  });

  it('P8: likes that are not stored in time are neither lost nor counted wrongly', () => {
    const late = { posts: [{ id: '1', count: 1, exact: false, likers: ['bob'] }], waitedMs: 3_000 };
    expect(broken(late)).toEqual(['NOT STORED IN TIME']);
    const verdict = judgeLikes(honest(late));
    expect(verdict.held).toBe(false);
    expect(verdict.findings.find(({ held }) => !held)!.says).toBe(
      'NOT STORED IN TIME: likes of 1 post after 3 s; is a worker running? (doorbuster doctor)',
    );
    // What no delay explains is a fault all the same.
    const posts = [{ ...late.posts[0]!, likers: ['eve', 'eve'] }];
    expect(broken({ posts })).toEqual(['NOT STORED IN TIME', 'COUNTS DRIFT', 'LOST OR MADE UP']);
    // Another post that is exact is compared as ever.
    const other = { id: '2', count: 1, exact: true, likers: [] };
    expect(broken({ posts: [...late.posts, other] })).toEqual(['NOT STORED IN TIME', 'COUNTS DRIFT']);
  });

  it('P8: a like that is lost, and one that nobody made', () => {
    expect(broken({ posts: [{ id: '1', count: 0, exact: true, likers: [] }] })).toEqual(['LOST OR MADE UP']);
    const likers = ['ann', 'bob'];
    expect(broken({ posts: [{ id: '1', count: 2, exact: true, likers }] })).toEqual(['LOST OR MADE UP']);
    expect(broken({ posts: [{ id: '1', count: 2, exact: true, likers: ['ann', 'eve'] }] })).toEqual([
      'LOST OR MADE UP',
    ]);
  });

  it('P8: somebody who sees another state than they were told', () => {
    expect(broken({ seen: [{ user: 'ann', postId: '1', liked: false }] })).toEqual(['SEEN WRONG']);
    expect(broken({ seen: [{ user: 'dan', postId: '1', liked: true }] })).toEqual(['SEEN WRONG']);
  });

  it('P8: answers that say that both clicks changed it, that neither did, or that a repeat did', () => {
    const { answers } = honest();
    const with_ = (at: number, changed: boolean) =>
      answers.map((one, index) => (index === at ? { ...one, changed } : one));
    expect(broken({ answers: with_(1, true) })).toEqual(['TOLD WRONG']);
    expect(broken({ answers: with_(0, false) })).toEqual(['TOLD WRONG']);
    expect(broken({ answers: with_(4, true) })).toEqual(['TOLD WRONG']);
    // A click whose answer was lost may have been the one that changed it.
    const unsure = answers.map((one, at) => (at === 0 ? { ...one, ...lost } : one));
    expect(broken({ answers: unsure })).toEqual([]);
  });

  it('an answer that the contract does not explain', () => {
    const { answers } = honest();
    const odd = (more: Partial<LikerAnswer>) => [...answers, told('dan', 0, false, false, more)];
    expect(broken({ answers: odd({}) })).toEqual([]);
    expect(broken({ answers: odd({ liked: true }) })).toEqual(['UNEXPLAINED']);
    expect(broken({ answers: odd({ status: 500, code: 'internal', liked: null, changed: null }) })).toEqual([
      'UNEXPLAINED',
    ]);
    expect(broken({ answers: odd({ status: 429, code: 'rate_limited', liked: null, changed: null }) })).toEqual([]);
  });
});

it('a seed gives the same likers, of all kinds', () => {
  const steps = planSteps(seededRandom(7), 200, 3);
  expect(planSteps(seededRandom(7), 200, 3)).toEqual(steps);
  expect(new Set(steps.map(({ post }) => post))).toEqual(new Set([0, 1, 2]));
  expect(new Set(steps.map(({ wanted, clicks }) => `${wanted} ${clicks}`)).size).toBe(4);
});
