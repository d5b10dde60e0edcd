import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { InvariantError, RetryableError } from '../../src/base/errors.ts';
import type { LikeMode, LikeSet, SettledLikes } from '../../src/ledger/port.ts';
import { LIKE_SHARDS, type LikeEvent, N_MAX, numberOf, type Subject, shardOf } from '../../src/model/like.ts';
import { countTests } from './count.ts';
import type { LifeUnderTest } from './ledger-life-kit.ts';
import { inPages, SocialKit } from './ledger-social-kit.ts';
import { T0 } from './manual.ts';

/** The contract of src/ledger/port/likes.ts. */
export function likeContract(name: string, make: () => Promise<LifeUnderTest>): void {
  describe(`likes: ${name}`, () => {
    countTests('likes', name);
    let kit: SocialKit;
    let subject: Subject;
    let shard: number;
    const likes = () => kit.likes;

    beforeEach(async () => {
      kit = new SocialKit(await make());
      subject = `post:${(await kit.post()).id}`;
      shard = shardOf(subject);
    });
    afterEach(() => kit.world.close());

    const event = (user: string, n: number, over: Partial<LikeEvent> = {}): LikeEvent => {
      return { subject, user, liked: true, epoch: 1, n, atMs: T0 + n, ...over };
    };
    /** Says who decides, and leaves the epochs as they are. */
    const decidedBy = (mode: LikeMode) => kit.world.change(`UPDATE like_shards SET mode = '${mode}'`);
    const settle = (...events: LikeEvent[]): Promise<SettledLikes> => likes().settleLikes(shard, events);
    const baseOf = (settled: SettledLikes) => settled.bases.get(subject);
    const ok = (answer: LikeSet) => {
      if (answer.outcome !== 'ok') throw new Error(answer.outcome);
      return { liked: answer.liked, changed: answer.changed, count: answer.count };
    };
    const numbers = async (): Promise<Record<string, [boolean, string]>> => {
      const rows = await kit.world.rows(
        `SELECT liker, liked, CAST(number AS ${name === 'mysql' ? 'CHAR' : 'TEXT'}) AS number FROM post_likes`,
      );
      return Object.fromEntries(rows.map((row) => [row.liker, [Number(row.liked) === 1, String(row.number)]]));
    };
    /** Posts of the shard of the others, made behind the ledger's back. */
    const postsOfShard = async (count: number): Promise<Subject[]> => {
      const ids: string[] = [];
      for (let id = 10n ** 15n; ids.length < count; id++) if (shardOf(`post:${id}`) === shard) ids.push(String(id));
      const rows = ids.map((id) => `(${id}, 'ann', 'T', 'C', 1, 1)`).join(', ');
      await kit.world.change(`INSERT INTO posts (id, author, title, content, created_at, updated_at) VALUES ${rows}`);
      return ids.map((id): Subject => `post:${id}`);
    };

    describe('one by one', () => {
      it('P8: a like is exact at once, and so is its count', async () => {
        expect(await kit.like(subject, 'zoe')).toEqual({
          outcome: 'ok',
          liked: true,
          changed: true,
          count: 1,
          atMs: T0,
        });
        kit.world.clock.advance(7);
        const again = await kit.like(subject, 'zoe');
        expect(again).toEqual({ outcome: 'ok', liked: true, changed: false, count: 1, atMs: T0 + 7 });
        expect(ok(await kit.like(subject, 'Zoe'))).toEqual({ liked: true, changed: true, count: 2 });
        expect(ok(await kit.like(subject, 'zoe', false))).toEqual({ liked: false, changed: true, count: 1 });
        expect(ok(await kit.like(subject, 'zoe', false))).toEqual({ liked: false, changed: false, count: 1 });
        expect(ok(await kit.like(subject, 'nobody', false))).toEqual({ liked: false, changed: false, count: 1 });
        expect(await numbers()).toEqual({ zoe: [false, '2'], Zoe: [true, '1'] });
        expect(await kit.stored(subject)).toEqual({ count: 1, rev: 3, likers: ['Zoe'] });
        expect(await likes().likeRows(['zoe', 'Zoe', 'nobody'].map((user) => ({ subject, user })))).toEqual([
          { liked: false, changedMs: T0 + 7 },
          { liked: true, changedMs: T0 + 7 },
          null,
        ]);
        expect(await likes().likeRows([])).toEqual([]);
        await kit.expectRightCounts();
      });

      it('P8: requests for one pair that come together are answered in their order', async () => {
        const wanted = [true, false, true, true, false, false, true];
        const answers = await Promise.all(wanted.map((liked) => kit.like(subject, 'zoe', liked)));
        const changed = [true, true, true, false, true, false, true];
        expect(answers.map(ok)).toEqual(
          wanted.map((liked, at) => ({ liked, changed: changed[at], count: liked ? 1 : 0 })),
        );
        expect(await numbers()).toEqual({ zoe: [true, '5'] });
        await kit.expectRightCounts();
      });

      it('P8: a crowd on one post and one comment is counted to the last', async () => {
        const comment = `comment:${(await kit.comment(subject.slice(5))).id}` as const;
        const users = Array.from({ length: 100 }, (_, at) => `u${at}`);
        const answers = await Promise.all([
          ...users.map((user) => kit.like(subject, user)),
          ...users.map((user) => kit.like(comment, user)),
          ...users.slice(0, 40).map((user) => kit.like(subject, user)),
        ]);
        expect(answers.map(ok).filter(({ changed }) => changed)).toHaveLength(200);
        // Of two requests of one user either may be the first.
        const counts = [...answers.slice(0, 100), ...answers.slice(200)].map(ok).filter(({ changed }) => changed);
        expect(
          counts.map(({ count }) => count).sort((a, b) => a - b),
          'each of them was another',
        ).toEqual(users.map((_, at) => at + 1));
        const { count, rev } = await kit.stored(subject);
        expect(count).toBe(100);
        // Where a transaction is a trip, a crowd shares them.
        if (name !== 'sqlite') expect(rev).toBeLessThan(10);
        expect(await kit.stored(comment)).toMatchObject({ count: 100 });
        await kit.expectRightCounts();
      });

      it('what is not there cannot be liked', async () => {
        expect(await kit.like(`post:${kit.id()}`, 'zoe')).toEqual({ outcome: 'not_found' });
        expect(await kit.like(`comment:${subject.slice(5)}`, 'zoe')).toEqual({ outcome: 'not_found' });
        const { id } = await kit.comment(subject.slice(5));
        await kit.social.deleteComment(id, 'bob');
        expect(await kit.like(`comment:${id}`, 'zoe')).toEqual({ outcome: 'not_found' });
        const known = await likes().likeCounts([subject, `comment:${id}`, `post:${kit.id()}`]);
        expect([...known]).toEqual([[subject, { count: 0, rev: 0, atMs: T0 }]]);
        expect(await likes().likeCounts([])).toEqual(new Map());
      });

      it('P8: a count that is too low stays at zero', async () => {
        await kit.like(subject, 'zoe');
        await kit.world.change('UPDATE posts SET likes_count = 0');
        expect(ok(await kit.like(subject, 'zoe', false))).toEqual({ liked: false, changed: true, count: 0 });
        await decidedBy('counted');
        await settle(event('ann', 1), event('bob', 2));
        await kit.world.change('UPDATE posts SET likes_count = 1');
        const settled = await settle(event('ann', 3, { liked: false }), event('bob', 4, { liked: false }));
        expect(baseOf(settled)).toMatchObject({ count: 0 });
        expect(await kit.stored(subject)).toMatchObject({ count: 0, likers: [] });
      });
    });

    describe('settled in batches', () => {
      beforeEach(() => decidedBy('counted'));

      it('P8: of a pair the event with the largest number counts, in whatever order they come', async () => {
        const first = await settle(
          event('ann', 5),
          event('bob', 6),
          event('ann', 8, { liked: false }),
          event('ann', 7),
        );
        expect(first).toMatchObject({ epoch: 1, mode: 'counted', dropped: 0 });
        expect([...first.bases]).toEqual([[subject, { count: 1, rev: 1, atMs: T0 }]]);
        expect(await numbers()).toEqual({ ann: [false, String(N_MAX + 8)], bob: [true, String(N_MAX + 6)] });
        kit.world.clock.advance(1);
        const again = await settle(event('ann', 5), event('bob', 6), event('ann', 7));
        expect(baseOf(again), 'nothing changes, and the count is as it stands').toEqual({
          count: 1,
          rev: 1,
          atMs: T0 + 1,
        });
        expect(again.dropped, 'an event that came too late is not dropped: its pair has a newer one').toBe(0);
        expect(baseOf(await settle(event('ann', 9)))).toMatchObject({ count: 2, rev: 2 });
        expect(baseOf(await settle(event('bob', 12))), 'newer, and the same').toMatchObject({ count: 2, rev: 2 });
        expect(await numbers()).toMatchObject({ bob: [true, String(N_MAX + 12)] });
        expect(await kit.social.likersOf(subject, { limit: 9, before: null })).toEqual([
          { user: 'bob', name: null, atMs: T0 + 12 },
          { user: 'ann', name: null, atMs: T0 + 9 },
        ]);
        await kit.expectRightCounts();
      });

      it('events of an epoch that is over, and of what is not there, are dropped and counted', async () => {
        expect(await likes().likeShard(shard)).toEqual({ epoch: 1, mode: 'counted' });
        await settle(event('ann', 1));
        expect(await likes().raiseLikeEpoch(shard, 1, 0)).toBe(2);
        expect(await likes().raiseLikeEpoch(shard, 2, 6)).toBe(7);
        expect(await likes().likeShard(shard)).toMatchObject({ epoch: 7 });
        expect(await likes().likeShard((shard + 1) % LIKE_SHARDS), 'each shard has its own').toMatchObject({
          epoch: 1,
        });
        const [gone, other] = (await postsOfShard(2)) as [Subject, Subject];
        await kit.world.change(`UPDATE posts SET status = 'deleted' WHERE id = ${gone.slice(5)}`);
        await kit.world.change(`DELETE FROM posts WHERE id = ${other.slice(5)}`);
        const settled = await settle(
          event('ann', 9, { epoch: 6, liked: false }),
          event('bob', 9, { epoch: 7 }),
          event('cid', 9, { epoch: 1 }),
          event('ann', 10, { epoch: 7, subject: gone }),
          event('ann', 11, { epoch: 7, subject: other }),
        );
        expect(settled).toMatchObject({ epoch: 7, dropped: 4 });
        expect([...settled.bases]).toEqual([[subject, { count: 2, rev: 2, atMs: T0 }]]);
        expect(await kit.stored(subject)).toMatchObject({ likers: ['ann', 'bob'] });
        const nothing = await settle(event('x', 1, { subject: other }));
        expect([...nothing.bases, nothing.dropped]).toEqual([1]);
        await kit.expectRightCounts();
      });

      it('P8: an epoch is raised by one of those who saw the same, and stays for the others', async () => {
        const raised = await Promise.all([0, 5, 9].map((above) => likes().raiseLikeEpoch(shard, 1, above)));
        const [epoch, ...others] = raised.filter((one) => one !== null);
        expect(others).toEqual([]);
        expect([2, 6, 10]).toContain(epoch);
        expect(await likes().raiseLikeEpoch(shard, 1, 99), 'seen long ago').toBeNull();
        expect(await likes().raiseLikeEpoch(shard, epoch! + 1, 99), 'never seen').toBeNull();
        expect(await likes().likeShard(shard)).toMatchObject({ epoch });
      });

      it('numbers beyond what a double holds keep their order', async () => {
        const epoch = 8_388_606;
        expect(await likes().raiseLikeEpoch(shard, 1, epoch - 1)).toBe(epoch);
        const n = N_MAX - 2;
        await settle(event('ann', n, { epoch }), event('bob', n + 1, { epoch }));
        await settle(event('ann', n + 1, { epoch, liked: false }), event('bob', n, { epoch, liked: false }));
        const number = String(numberOf({ epoch, n: n + 1 }));
        expect(await numbers()).toEqual({ ann: [false, number], bob: [true, number] });
        // The epoch comes before the count within it.
        await settle(event('ann', 1, { epoch: epoch + 1 }), event('ann', n + 1, { epoch, liked: false }));
        expect(await numbers()).toMatchObject({ ann: [true, String(numberOf({ epoch: epoch + 1, n: 1 }))] });
        await expect(likes().raiseLikeEpoch(shard, epoch, 8_388_607), 'a number has 63 bits').rejects.toThrow();
      });

      it.each([0, 1, 512, 513])('P8: a batch of %i events', async (size) => {
        const events = Array.from({ length: size }, (_, at) => event(`u${at}`, at + 1));
        for (let times = 0; times < 2; times++) {
          const settled = await settle(...events);
          expect([...settled.bases.values()].map(({ count, rev }) => [count, rev])).toEqual(
            size === 0 ? [] : [[size, 1]],
          );
        }
        expect(await kit.stored(subject)).toMatchObject({ count: size, likers: { length: size } });
      });

      it('P8: a batch of a thousand subjects, with several events of some pairs', async () => {
        const subjects = await postsOfShard(1000);
        const events = subjects.flatMap((each, at) => [
          event('ann', 4 * at + 1, { subject: each }),
          event('bob', 4 * at + 2, { subject: each }),
          ...(at % 2 === 0 ? [event('ann', 4 * at + 3, { subject: each, liked: false })] : []),
          ...(at % 5 === 0 ? [event('ann', 4 * at + 4, { subject: each })] : []),
        ]);
        const { bases, dropped } = await settle(...events);
        expect([bases.size, dropped]).toEqual([1000, 0]);
        for (const [at, each] of subjects.entries()) {
          expect(bases.get(each)).toEqual({ count: at % 2 === 0 && at % 5 !== 0 ? 1 : 2, rev: 1, atMs: T0 });
        }
        await kit.expectRightCounts();
      });

      it('posts and comments of one shard share a batch', async () => {
        let comment: Subject;
        do comment = `comment:${(await kit.comment(subject.slice(5))).id}`;
        while (shardOf(comment) !== shard);
        const { bases } = await settle(
          event('ann', 1),
          event('ann', 2, { subject: comment }),
          event('bob', 3, { subject: comment }),
        );
        expect([bases.get(subject)!.count, bases.get(comment)!.count]).toEqual([1, 2]);
        expect(
          await likes().likeRows([
            { subject: comment, user: 'bob' },
            { subject, user: 'bob' },
          ]),
        ).toEqual([{ liked: true, changedMs: T0 + 3 }, null]);
        await kit.expectRightCounts();
      });

      it('users are compared bytewise', async () => {
        const users = [
          'ann',
          'Ann',
          'ann ',
          'ren\u00e9',
          'rene\u0301',
          '\u{1f389}',
          `o'hara`,
          'o"hara',
          'o\\hara',
          '{a,b}',
          'NULL',
          '?',
          '$1',
          '01',
          '1',
        ];
        for (let times = 0; times < 2; times++) {
          const settled = await settle(...users.map((user, at) => event(user, at + 1)));
          expect(baseOf(settled)).toMatchObject({ count: users.length, rev: 1 });
        }
        expect(await likes().likeRows(users.map((user) => ({ subject, user })))).toEqual(
          users.map((_, at) => ({ liked: true, changedMs: T0 + at + 1 })),
        );
        expect(await likes().likeRows([{ subject, user: 'ANN' }])).toEqual([null]);
        const bytewise = users.toSorted((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
        for (const limit of [4, 15, 16]) {
          const read = (after: string | null) => likes().likeUsers(subject, after, limit);
          expect(await inPages(limit, read, (user) => user)).toEqual(bytewise);
        }
      });

      it('an event of another shard is a fault: its epoch would be judged by the wrong fence', async () => {
        await expect(likes().settleLikes((shard + 1) % LIKE_SHARDS, [event('ann', 1)])).rejects.toBeInstanceOf(
          InvariantError,
        );
      });
    });

    describe('who decides', () => {
      it('P8: while Redis counts, no like is decided here; every change of hands raises all epochs', async () => {
        await kit.like(subject, 'zoe');
        expect(await likes().setLikeMode('direct')).toBe(false);
        expect(await likes().setLikeMode('counted')).toBe(true);
        expect(await likes().setLikeMode('counted')).toBe(false);
        const epochs = async () => {
          const shards = await Promise.all(Array.from({ length: LIKE_SHARDS }, (_, at) => likes().likeShard(at)));
          return shards.map(({ epoch }) => epoch);
        };
        expect(await epochs()).toEqual(Array(LIKE_SHARDS).fill(2));
        const refused = kit.like(subject, 'bob');
        await expect(refused).rejects.toBeInstanceOf(RetryableError);
        await expect(refused).rejects.toMatchObject({ code: 'unavailable' });
        const taken = await settle(
          event('zoe', 1, { epoch: 2, liked: false }),
          event('bob', 1, { epoch: 2 }),
          event('cid', 99),
        );
        expect(taken).toMatchObject({ epoch: 2, mode: 'counted', dropped: 1 });
        expect(await kit.stored(subject)).toMatchObject({ count: 1, likers: ['bob'] });

        expect(await likes().setLikeMode('direct')).toBe(true);
        expect(await epochs()).toEqual(Array(LIKE_SHARDS).fill(3));
        expect(ok(await kit.like(subject, 'bob', false))).toEqual({ liked: false, changed: true, count: 0 });
        expect(await settle(event('bob', 50, { epoch: 2 })), 'what Redis still had').toMatchObject({
          mode: 'direct',
          dropped: 1,
        });
        expect(await numbers()).toMatchObject({ bob: [false, String(2n * BigInt(N_MAX) + 2n)] });
        await likes().setLikeMode('counted');
        await settle(event('bob', 1, { epoch: 4 }));
        expect(await kit.stored(subject)).toMatchObject({ count: 1, likers: ['bob'] });
        await kit.expectRightCounts();
      });

      it('P8: while the ledger decides, it stores no event, and no shard gets an epoch to be opened with', async () => {
        expect(await likes().likeShard(shard)).toEqual({ epoch: 1, mode: 'direct' });
        await kit.like(subject, 'zoe');
        expect(await likes().raiseLikeEpoch(shard, 1, 0)).toBeNull();
        expect(await likes().likeShard(shard)).toEqual({ epoch: 1, mode: 'direct' });
        const settled = await settle(event('zoe', 1, { liked: false }), event('bob', 2, { epoch: 99 }));
        expect(settled).toMatchObject({ epoch: 1, mode: 'direct', dropped: 2 });
        expect(baseOf(settled), 'the count as it stands').toMatchObject({ count: 1, rev: 1 });
        expect(await kit.stored(subject)).toMatchObject({ count: 1, likers: ['zoe'] });
      });
    });
  });
}
