import { describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { systemTimers } from '../../src/base/timers.ts';
import type { WrongCount } from '../../src/ledger/port.ts';
import type { LikedKind } from '../../src/model/like.ts';
import { checkCounts, isPlace } from '../../src/social/count-check.ts';

/** Posts 1 to 5 and comments 1 to 3, of which each second one is wrong; a page has two, and takes so long. */
function world(pageMs: number) {
  const clock = new ManualClock(0);
  const asked: string[] = [];
  const LAST: Record<LikedKind, number> = { post: 5, comment: 3 };
  const ledger = {
    checkCounts: async (kind: LikedKind, after: string | null) => {
      asked.push(`${kind} ${after}`);
      clock.advance(pageMs);
      const from = Number(after ?? 0) + 1;
      const ids = [from, from + 1].filter((id) => id <= LAST[kind]);
      const wrong = ids
        .filter((id) => id % 2 === 0)
        .map((id): WrongCount => ({ subject: `${kind}:${id}`, count: 'likes', stored: 7, rows: id }));
      return { wrong, next: from + 1 < LAST[kind] ? String(from + 1) : null };
    },
  };
  const check = (from: string | null, max = 1000) => checkCounts(ledger, { clock, timers: systemTimers }, from, max);
  return { asked, check };
}

describe('a check of counts', () => {
  it('goes through all posts and then all comments, and says what is wrong with each', async () => {
    const { asked, check } = world(1);
    const { findings, next } = await check(null);
    expect(next).toBeNull();
    expect(asked).toEqual(['post null', 'post 2', 'post 4', 'comment null', 'comment 2']);
    expect(findings.map(({ id }) => id)).toEqual(['count-post-2-likes', 'count-post-4-likes', 'count-comment-2-likes']);
    expect(findings[0]).toEqual({
      id: 'count-post-2-likes',
      check: 'counts',
      subject: 'post:2',
      expected: 'likes_count 2, as many as there are rows',
      actual: 'likes_count 7',
      cause: expect.stringContaining('wrote to the tables'),
      repair: expect.stringContaining('likes_count of row 2 of posts'),
    });
  });

  it.each([2_500, 5_000, 60_000])(
    'P10: ends after 5 s, and the next one goes on there; %i ms a page',
    async (pageMs) => {
      const { asked, check } = world(pageMs);
      const found: string[] = [];
      const places: string[] = [];
      let from: string | null = null;
      do {
        const before = asked.length;
        const part: Awaited<ReturnType<typeof check>> = await check(from);
        expect(asked.length - before).toBeLessThanOrEqual(Math.ceil(5_000 / pageMs));
        found.push(...part.findings.map(({ subject }) => subject));
        from = part.next;
        if (from !== null) places.push(from);
      } while (from !== null);
      expect(found).toEqual(['post:2', 'post:4', 'comment:2']);
      expect(new Set(asked).size, 'nothing twice').toBe(asked.length);
      for (const place of places) expect(isPlace(place), place).toBe(true);
    },
  );

  it('ends with as many findings as a report holds, or those of one page more', async () => {
    const { check } = world(1);
    expect(await check(null, 1)).toMatchObject({ findings: { length: 1 }, next: 'post:2' });
    expect(await check('post:2', 1)).toMatchObject({ findings: { length: 1 }, next: 'post:4' });
    expect(await check('post:4', 1)).toMatchObject({ findings: { length: 1 }, next: 'comment:2' });
    expect(await check('comment:2', 1)).toEqual({ findings: [], next: null });
  });

  it.each(['post:0', 'comment:0', 'post:1', 'comment:9223372036854775807'])('can go on at %s', (place) => {
    expect(isPlace(place)).toBe(true);
  });

  it.each(['', 'post', 'post:', 'sale:1', 'post:01', 'post:9223372036854775808', 'post:-1', ' post:1', 'post:1\n'])(
    'cannot go on at %j',
    (place) => {
      expect(isPlace(place)).toBe(false);
    },
  );
});
