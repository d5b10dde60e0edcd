import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { mysqlDialect } from '../../src/ledger/drivers/mysql/ledger.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { postgresDialect } from '../../src/ledger/drivers/postgres/ledger.ts';
import type { SqlLedger } from '../../src/ledger/drivers/server/ledger.ts';
import { type LikeEvent, type Subject, shardOf } from '../../src/model/like.ts';
import { until } from '../support/fault-wait.ts';
import type { LifeUnderTest } from './ledger-life-kit.ts';
import { SocialKit } from './ledger-social-kit.ts';

/** What only ledgers of several processes can do: race for the same pairs, and be fenced off in the middle. */
export function sqlLikeSuite(make: () => Promise<LifeUnderTest>, url: () => string): void {
  describe('likes of several processes', () => {
    let kit: SocialKit;
    let subject: Subject;
    let another: SqlLedger;

    beforeEach(async () => {
      kit = new SocialKit(await make());
      subject = `post:${(await kit.post()).id}`;
      another = await openSqlLedger(url(), systemRuntime(), { migrate: false, exclusive: false, poolMax: 3 });
    });
    afterEach(() => another.close());

    it('P8: the same requests and batches at two processes count once', async () => {
      const users = Array.from({ length: 40 }, (_, at) => `u${at}`);
      const both = [kit.likes, another.likes];
      const answers = await Promise.all(
        both.flatMap((likes) => users.map((user) => likes.setLike({ subject, user, liked: true }))),
      );
      expect(answers.filter((answer) => answer.outcome === 'ok' && answer.changed)).toHaveLength(40);
      await kit.world.change("UPDATE like_shards SET mode = 'counted'");
      const events = users.map((user, at): LikeEvent => {
        return { subject, user, liked: at % 4 === 0, epoch: 1, n: at + 1, atMs: 5 };
      });
      await Promise.all(
        both.flatMap((likes, at) => {
          const mine = at === 0 ? events : events.toReversed();
          return [mine, mine.slice(10), mine.slice(0, 30)].map((batch) => likes.settleLikes(shardOf(subject), batch));
        }),
      );
      expect(await kit.stored(subject)).toMatchObject({ count: 10, likers: { length: 10 } });
      await kit.expectRightCounts();
    });

    it('P8: likes, comments and deletions of several posts at two processes do not deadlock for good', async () => {
      const posts = await Promise.all(Array.from({ length: 4 }, () => kit.post()));
      const tops = await Promise.all(posts.map(({ id }) => kit.comment(id)));
      const works = [kit.world.ledger, another].flatMap(({ social, likes }, process) =>
        posts.flatMap(({ id: postId }, at) => [
          likes.setLike({ subject: `post:${postId}`, user: `u${process}`, liked: true }),
          likes.setLike({ subject: `comment:${tops[at]!.id}`, user: `u${process}`, liked: true }),
          social.createComment({ id: kit.id(), postId, parentId: tops[3 - at]!.id, author: 'a', content: 'c' }),
          social.createComment({ id: kit.id(), postId, parentId: tops[at]!.id, author: 'a', content: 'c' }),
          social.deleteComment(tops[at]!.id, 'bob'),
          social.editPost(postId, { by: 'ann', title: 'x', version: 1 }),
        ]),
      );
      await Promise.all(works);
      await kit.expectRightCounts();
    });

    /** A settle or a like has passed the fence and waits for its post, which somebody else has locked. */
    async function heldAtPost(start: () => Promise<unknown>, meanwhile: () => Promise<void>): Promise<void> {
      const open = url().startsWith('postgres') ? postgresDialect : mysqlDialect;
      const dialect = await open(url(), systemRuntime(), { poolMax: 2 });
      const [holder, eye] = [await dialect.connections.take(), await dialect.connections.take()];
      try {
        await holder.script(`${dialect.begin}; SELECT id FROM posts WHERE id = ${subject.slice(5)} FOR UPDATE`);
        const started = start();
        // Whoever else wants the shard's row finds it locked as soon as the work under test has passed it.
        await until('the shard is locked', 5_000, async () => {
          await eye.script(dialect.begin);
          try {
            await eye.query(`SELECT shard FROM like_shards WHERE shard = ${shardOf(subject)} FOR UPDATE NOWAIT`);
            return false;
          } catch {
            return true;
          } finally {
            await eye.query('ROLLBACK');
          }
        });
        await meanwhile();
        await holder.query('ROLLBACK');
        await started;
      } finally {
        holder.release();
        eye.release();
        await dialect.connections.end();
      }
    }

    /** What is stored when it is answered: the replies themselves may overtake each other. */
    const andStored = async <T>(act: Promise<T>) => ({ answer: await act, stored: await kit.stored(subject) });
    const ZOE = { count: 1, likers: ['zoe'] };

    it('P8: an epoch is raised after every settle that was let in before it', async () => {
      const shard = shardOf(subject);
      await kit.world.change("UPDATE like_shards SET mode = 'counted'");
      const event = { subject, user: 'zoe', liked: true, epoch: 1, n: 1, atMs: 1 };
      let raised: Promise<unknown> | null = null;
      await heldAtPost(
        () => kit.likes.settleLikes(shard, [event]),
        async () => {
          raised = andStored(another.likes.raiseLikeEpoch(shard, 1, 0));
          await expect(
            Promise.race([raised, new Promise((resolve) => setTimeout(resolve, 60, 'waits'))]),
          ).resolves.toBe('waits');
        },
      );
      expect(await raised).toMatchObject({ answer: 2, stored: ZOE });
      expect(await kit.likes.settleLikes(shard, [{ ...event, user: 'late' }])).toMatchObject({ dropped: 1 });
      expect(await kit.stored(subject)).toMatchObject(ZOE);
    });

    it('P8: Redis decides after every direct like that was let in before it', async () => {
      let counted: Promise<unknown> | null = null;
      await heldAtPost(
        () => kit.like(subject, 'zoe'),
        async () => {
          counted = andStored(another.likes.setLikeMode('counted'));
          await expect(
            Promise.race([counted, new Promise((resolve) => setTimeout(resolve, 60, 'waits'))]),
          ).resolves.toBe('waits');
        },
      );
      expect(await counted).toMatchObject({ answer: true, stored: ZOE });
      await expect(kit.like(subject, 'late')).rejects.toMatchObject({ code: 'unavailable' });
      expect(await kit.stored(subject)).toMatchObject(ZOE);
    });
  });
}
