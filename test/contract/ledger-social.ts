import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { InvariantError } from '../../src/base/errors.ts';
import type { CommentPage, LikerPage } from '../../src/ledger/port.ts';
import { LIKE_SHARDS } from '../../src/model/like.ts';
import type { CommentRecord } from '../../src/model/social.ts';
import { countTests } from './count.ts';
import type { LifeUnderTest } from './ledger-life-kit.ts';
import { inPages, SocialKit } from './ledger-social-kit.ts';
import { T0 } from './manual.ts';

const ALL = { limit: 200, before: null };

/** The contract of src/ledger/port/social.ts. */
export function socialContract(name: string, make: () => Promise<LifeUnderTest>): void {
  describe(`posts and comments: ${name}`, () => {
    countTests('posts and comments', name);
    let kit: SocialKit;
    const social = () => kit.social;

    beforeEach(async () => {
      kit = new SocialKit(await make());
    });
    afterEach(() => kit.world.close());

    const commentsOf = async (postId: string) => (await social().getPost(postId))!.comments;
    const repliesOf = async (commentId: string) => (await social().getComment(commentId))!.replies;
    const idsOf = (rows: readonly { id: string }[]): string[] => rows.map(({ id }) => id);

    describe('posts', () => {
      it('a post is what was written, with the name that its author registered with', async () => {
        await kit.register('ann', 'Ann');
        const title = '\u{1f389}'.repeat(200);
        const content = `it's "quoted"\\ \u4e70 ${'\u{1f389}'.repeat(9_900)}`;
        const post = await kit.post({ author: 'ann', title, content });
        expect(post).toMatchObject({ author: 'ann', authorName: 'Ann', title, content, likes: 0, comments: 0 });
        expect(post).toMatchObject({ deleted: false, version: 1 });
        expect(await social().getPost(post.id)).toEqual(post);
        const theirs = await kit.post({ author: 'Ann' });
        expect(theirs.authorName, 'names of users are compared bytewise').toBeNull();
        expect(await social().getPost(kit.id())).toBeNull();
        const longest = await kit.post({ author: '\u{1f389}'.repeat(128) });
        expect(await social().listPosts({ author: longest.author }, ALL, null)).toHaveLength(1);
      });

      it('are listed from the newest on, in pages that neither skip nor repeat', async () => {
        const posts = await Promise.all(Array.from({ length: 7 }, (_, at) => kit.post({ author: `a${at % 2}` })));
        const ids = idsOf(posts).reverse();
        for (const limit of [1, 3, 6, 7, 8]) {
          const seen = await inPages(
            limit,
            (before: string | null) => social().listPosts({}, { limit, before }, 'reader'),
            ({ id }) => id,
          );
          expect(idsOf(seen), `pages of ${limit}`).toEqual(ids);
        }
        const mine = await social().listPosts({ author: 'a1' }, { limit: 2, before: ids[1]! }, null);
        expect(idsOf(mine)).toEqual(ids.filter((_, at) => at % 2 === 1).slice(1, 3));
        await social().deletePost(ids[0]!, 'a0');
        await social().deletePost(ids[3]!, 'a1');
        expect(idsOf(await social().listPosts({}, ALL, null))).toEqual(ids.filter((_, at) => at !== 0 && at !== 3));
      });

      it('say whether the reader likes them', async () => {
        const [one, other] = [await kit.post(), await kit.post()];
        await kit.like(`post:${one.id}`, 'zoe');
        await kit.like(`post:${other.id}`, 'zoe');
        await kit.like(`post:${other.id}`, 'zoe', false);
        await kit.like(`post:${other.id}`, 'Zoe');
        const liked = async (reader: string | null) =>
          (await social().listPosts({}, ALL, reader)).map((post) => [post.id, post.likes, post.liked]);
        expect(await liked('zoe')).toEqual([
          [other.id, 1, false],
          [one.id, 1, true],
        ]);
        expect(await liked('nobody')).toMatchObject([
          [other.id, 1, false],
          [one.id, 1, false],
        ]);
        expect((await liked(null)).map(([, , is]) => is)).toEqual([false, false]);
      });

      it('are edited by their authors, with the version that they read', async () => {
        const { id } = await kit.post();
        kit.world.clock.advance(10);
        const edited = await social().editPost(id, { by: 'ann', title: 'New', version: 1 });
        expect(edited).toMatchObject({ outcome: 'ok', record: { title: 'New', content: 'C', version: 2 } });
        expect(edited).toMatchObject({ record: { createdAtMs: T0, updatedAtMs: T0 + 10 } });
        const again = await social().editPost(id, { by: 'ann', content: 'Other', version: 1 });
        expect(again).toMatchObject({ outcome: 'version_conflict', record: { title: 'New', version: 2 } });
        expect(await social().editPost(id, { by: 'Ann', content: 'x', version: 2 })).toEqual({ outcome: 'forbidden' });
        expect(await social().editPost(kit.id(), { by: 'ann', version: 1 })).toEqual({ outcome: 'not_found' });
        expect(await social().getPost(id)).toEqual(edited.outcome === 'ok' && edited.record);
      });

      it('of several edits with one version exactly one is taken', async () => {
        const { id } = await kit.post();
        const titles = Array.from({ length: 6 }, (_, at) => `T${at}`);
        const edits = await Promise.all(titles.map((title) => social().editPost(id, { by: 'ann', title, version: 1 })));
        expect(edits.map(({ outcome }) => outcome).sort()).toEqual(['ok', ...Array(5).fill('version_conflict')]);
        expect((await social().getPost(id))!.version).toBe(2);
      });

      it('are deleted by their authors: the row stays without its text, and takes no edit, comment or like any more', async () => {
        const { id } = await kit.post();
        const { id: commentId } = await kit.comment(id);
        await kit.like(`post:${id}`, 'zoe');
        expect(await social().deletePost(id, 'bob')).toEqual({ outcome: 'forbidden' });
        kit.world.clock.advance(5);
        const deleted = await social().deletePost(id, 'ann');
        const blank = { title: '', content: '', deleted: true, version: 2, updatedAtMs: T0 + 5, likes: 1, comments: 1 };
        expect(deleted).toMatchObject({ outcome: 'ok', record: blank });
        kit.world.clock.advance(5);
        expect(await social().deletePost(id, 'ann'), 'a repeat changes nothing').toEqual(deleted);
        expect(await social().deletePost(id, 'bob')).toEqual({ outcome: 'not_found' });
        expect(await social().deletePost(kit.id(), 'ann')).toEqual({ outcome: 'not_found' });
        expect(await social().editPost(id, { by: 'ann', title: 'x', version: 2 })).toEqual({ outcome: 'not_found' });
        const late = { id: kit.id(), postId: id, parentId: null, author: 'bob', content: 'late' };
        expect(await social().createComment(late)).toEqual({ outcome: 'not_found' });
        expect(await kit.like(`post:${id}`, 'late')).toEqual({ outcome: 'not_found' });
        expect(await social().deleteComment(commentId, 'bob')).toMatchObject({ outcome: 'ok' });
        await kit.expectRightCounts();
      });
    });

    describe('comments', () => {
      let postId: string;

      beforeEach(async () => {
        postId = (await kit.post()).id;
      });

      it('a reply counts on its parent and on the post; a reply to a reply hangs on the same parent', async () => {
        await kit.register('bob', 'Bob');
        const top = await kit.comment(postId, null, { content: 'top' });
        expect(top).toMatchObject({
          postId,
          parentId: null,
          answers: null,
          author: 'bob',
          authorName: 'Bob',
          replies: 0,
        });
        const reply = await kit.comment(postId, top.id, { author: 'zoe' });
        expect(reply).toMatchObject({ parentId: top.id, answers: null, authorName: null });
        const deeper = await kit.comment(postId, reply.id);
        expect(deeper).toMatchObject({ parentId: top.id, answers: reply.id });
        const deepest = await kit.comment(postId, deeper.id);
        expect(deepest).toMatchObject({ parentId: top.id, answers: deeper.id });
        for (const one of [reply, deeper, deepest]) expect(await social().getComment(one.id)).toEqual(one);
        expect(await social().getComment(top.id)).toEqual({ ...top, replies: 3 });
        expect(await repliesOf(reply.id)).toBe(0);
        expect(await commentsOf(postId)).toBe(4);
        expect(await social().getComment(kit.id())).toBeNull();
        await kit.expectRightCounts();
      });

      it('a comment needs a post that is there, and a parent of that post that is there', async () => {
        const other = await kit.post();
        const elsewhere = await kit.comment(other.id);
        const gone = await kit.comment(postId);
        await social().deleteComment(gone.id, 'bob');
        const under = (parentId: string | null, of = postId) =>
          social().createComment({ id: kit.id(), postId: of, parentId, author: 'bob', content: 'c' });
        expect(await under(null, kit.id())).toEqual({ outcome: 'not_found' });
        expect(await under(kit.id())).toEqual({ outcome: 'no_parent' });
        expect(await under(elsewhere.id)).toEqual({ outcome: 'no_parent' });
        expect(await under(gone.id)).toEqual({ outcome: 'no_parent' });
        expect(await commentsOf(postId)).toBe(0);
        await kit.expectRightCounts();
      });

      it('P8: comments and replies of a crowd on one post are all counted', async () => {
        const top = await kit.comment(postId);
        const other = await kit.post();
        const crowd = Array.from({ length: 60 }, (_, at) => {
          const of =
            at % 10 === 9 ? { postId: other.id, parentId: null } : { postId, parentId: at % 3 === 0 ? top.id : null };
          return social().createComment({ id: kit.id(), ...of, author: `u${at}`, content: 'c' });
        });
        // A bad one among them does not harm the others.
        const bad = social().createComment({ id: kit.id(), postId, parentId: kit.id(), author: 'x', content: 'c' });
        const outcomes = (await Promise.all(crowd)).map(({ outcome }) => outcome);
        expect(new Set(outcomes)).toEqual(new Set(['ok']));
        expect(await bad).toEqual({ outcome: 'no_parent' });
        expect([await commentsOf(postId), await commentsOf(other.id)]).toEqual([55, 6]);
        expect(await repliesOf(top.id)).toBe(
          Array.from({ length: 60 }, (_, at) => at).filter((at) => at % 3 === 0 && at % 10 !== 9).length,
        );
        await kit.expectRightCounts();
      });

      it('P8: deleting counts once, whoever deletes how often', async () => {
        const top = await kit.comment(postId);
        const reply = await kit.comment(postId, top.id);
        await kit.comment(postId);
        expect(await social().deleteComment(reply.id, 'zoe')).toEqual({ outcome: 'forbidden' });
        const deletes = await Promise.all(Array.from({ length: 5 }, () => social().deleteComment(reply.id, 'bob')));
        const [first] = deletes;
        expect(first).toMatchObject({ outcome: 'ok', record: { deleted: true, content: '', author: '', version: 2 } });
        for (const one of deletes) expect(one).toEqual(first);
        expect([await commentsOf(postId), await repliesOf(top.id)]).toEqual([2, 0]);
        expect(await social().deleteComment(reply.id, 'zoe')).toEqual({ outcome: 'not_found' });
        expect(await social().deleteComment(kit.id(), 'bob')).toEqual({ outcome: 'not_found' });
        await kit.expectRightCounts();
      });

      it('P8: comments that are written while others are deleted leave the counts right', async () => {
        const top = await kit.comment(postId);
        const old = await Promise.all(Array.from({ length: 12 }, () => kit.comment(postId, top.id)));
        await Promise.all([
          ...old.map(({ id }) => social().deleteComment(id, 'bob')),
          ...old.map(() => kit.comment(postId, top.id)),
          ...old.map((_, at) => kit.like(`comment:${top.id}`, `u${at}`)),
          ...old.map((_, at) => kit.like(`post:${postId}`, `u${at}`)),
        ]);
        expect([await commentsOf(postId), await repliesOf(top.id)]).toEqual([13, 12]);
        await kit.expectRightCounts();
      });

      it('P8: a count that is too low stays at zero, and does not keep a comment from being deleted', async () => {
        const top = await kit.comment(postId);
        const reply = await kit.comment(postId, top.id);
        await kit.world.change('UPDATE posts SET comments_count = 0');
        await kit.world.change('UPDATE comments SET replies_count = 0');
        expect(await social().deleteComment(reply.id, 'bob')).toMatchObject({ outcome: 'ok' });
        expect([await commentsOf(postId), await repliesOf(top.id)]).toEqual([0, 0]);
      });

      it('are edited by their authors, with the version that they read', async () => {
        const { id } = await kit.comment(postId);
        kit.world.clock.advance(3);
        const edited = await social().editComment(id, { by: 'bob', content: 'new', version: 1 });
        expect(edited).toMatchObject({ outcome: 'ok', record: { content: 'new', version: 2, updatedAtMs: T0 + 3 } });
        expect(await social().getComment(id)).toEqual(edited.outcome === 'ok' && edited.record);
        const edit = (by: string, version: number, of = id) => social().editComment(of, { by, content: 'x', version });
        expect(await edit('bob', 1)).toMatchObject({ outcome: 'version_conflict', record: { content: 'new' } });
        expect(await edit('zoe', 2)).toEqual({ outcome: 'forbidden' });
        expect(await edit('bob', 1, kit.id())).toEqual({ outcome: 'not_found' });
        await social().deleteComment(id, 'bob');
        expect(await edit('bob', 3)).toEqual({ outcome: 'not_found' });
      });

      it('a deleted comment keeps its place as long as it has replies, without text and author', async () => {
        const [top, alone] = [await kit.comment(postId, null, { content: 'secret' }), await kit.comment(postId)];
        const reply = await kit.comment(postId, top.id);
        for (const { id } of [top, alone]) await social().deleteComment(id, 'bob');
        const list = () => social().listComments({ postId, parentId: null }, { order: 'newest', ...ALL }, null);
        expect(await list()).toMatchObject([
          { id: top.id, deleted: true, content: '', author: '', authorName: null, replies: 1 },
        ]);
        expect(
          await social().createComment({ id: kit.id(), postId, parentId: reply.id, author: 'a', content: 'c' }),
        ).toMatchObject({ outcome: 'ok', record: { parentId: top.id, answers: reply.id } });
        const replies = await social().listComments({ postId, parentId: top.id }, { order: 'newest', ...ALL }, null);
        for (const { id, author } of replies) await social().deleteComment(id, author);
        expect(await list()).toEqual([]);
        expect(await social().commentsBy('bob', ALL)).toEqual([]);
        expect(await commentsOf(postId)).toBe(0);
        await kit.expectRightCounts();
      });

      it('are listed by time or by likes, in pages that neither skip nor repeat where counts are equal', async () => {
        const top = await kit.comment(postId);
        const made: CommentRecord[] = [];
        for (let at = 0; at < 9; at++) made.push(await kit.comment(postId, top.id));
        const likes = [0, 2, 0, 1, 2, 2, 0, 1, 0];
        for (const [at, { id }] of made.entries()) {
          for (let user = 0; user < likes[at]!; user++) await kit.like(`comment:${id}`, `u${user}`);
        }
        await kit.comment(postId);
        await kit.comment((await kit.post()).id);
        const likesOf = new Map(made.map(({ id }, at) => [id, likes[at]!]));
        const newest = idsOf(made).reverse();
        const expected = { newest, liked: newest.toSorted((a, b) => likesOf.get(b)! - likesOf.get(a)!) };
        for (const order of ['newest', 'liked'] as const) {
          for (const limit of [1, 2, 3, 8, 9, 10]) {
            const seen = await inPages(
              limit,
              (before: CommentPage['before']) =>
                social().listComments({ postId, parentId: top.id }, { order, limit, before }, 'u1'),
              (last) => last,
            );
            for (const { id, liked, likes: count } of seen) {
              expect([count, liked]).toEqual([likesOf.get(id), likesOf.get(id) === 2]);
            }
            expect(idsOf(seen), `${order}, pages of ${limit}`).toEqual(expected[order]);
          }
        }
        const whole = await social().listComments({ postId, parentId: null }, { order: 'liked', ...ALL }, null);
        expect(whole).toMatchObject([
          { replies: 0, liked: false },
          { id: top.id, replies: 9, liked: false },
        ]);
      });

      it('of an author are listed from the newest on', async () => {
        const mine = [await kit.comment(postId), await kit.comment(postId), await kit.comment((await kit.post()).id)];
        await kit.comment(postId, null, { author: 'Bob' });
        const ids = idsOf(mine).reverse();
        expect(idsOf(await social().commentsBy('bob', ALL))).toEqual(ids);
        expect(idsOf(await social().commentsBy('bob', { limit: 2, before: ids[0]! }))).toEqual(ids.slice(1));
      });
    });

    describe('who likes what', () => {
      it('is listed from the newest on, in pages that neither skip nor repeat within one instant', async () => {
        await kit.register('u3', 'Three');
        const posts = await Promise.all(Array.from({ length: 6 }, () => kit.post()));
        const subject = `post:${posts[0]!.id}` as const;
        for (const users of [['u1', 'u3', 'u2'], ['u5', 'u4'], ['U1']]) {
          await Promise.all(users.map((user) => kit.like(subject, user)));
          kit.world.clock.advance(1);
        }
        await kit.like(subject, 'u5', false);
        const expected = ['U1', 'u4', 'u3', 'u2', 'u1'];
        for (const limit of [1, 2, 4, 5, 6]) {
          const seen = await inPages(
            limit,
            (before: LikerPage['before']) => social().likersOf(subject, { limit, before }),
            ({ atMs, user }) => ({ atMs, key: user }),
          );
          for (const { user, name } of seen) expect(name).toBe(user === 'u3' ? 'Three' : null);
          expect(
            seen.map(({ user }) => user),
            `pages of ${limit}`,
          ).toEqual(expected);
        }

        for (const { id } of posts) await kit.like(`post:${id}`, 'zoe');
        kit.world.clock.advance(1);
        await kit.like(`post:${posts[2]!.id}`, 'zoe', false);
        await kit.like(`post:${posts[2]!.id}`, 'zoe');
        await kit.like(`post:${posts[4]!.id}`, 'zoe', false);
        await social().deletePost(posts[3]!.id, 'ann');
        const mine = [2, 5, 1, 0].map((at) => posts[at]!.id);
        for (const limit of [1, 3, 4, 5]) {
          const seen = await inPages(
            limit,
            async (before: LikerPage['before']) => (await social().likesOf('zoe', 'post', { limit, before })).rows,
            ({ atMs, id }) => ({ atMs, key: id }),
          );
          expect(idsOf(seen), `pages of ${limit}`).toEqual(mine);
        }
        expect(await social().likesOf('zoe', 'comment', ALL)).toEqual({ rows: [], next: null });
        expect(
          await social().likedAmong(
            [1, 4, 5].flatMap((at) =>
              ['zoe', 'u1'].map((user) => ({ subject: `post:${posts[at]!.id}` as const, user })),
            ),
          ),
        ).toEqual([true, false, false, false, true, false]);
      });
    });

    it('P10: a page of likes passes by 200 of deleted subjects and no more, and says where to go on', async () => {
      const posts = await Promise.all(Array.from({ length: 203 }, () => kit.post()));
      for (const { id } of posts) await kit.like(`post:${id}`, 'zoe');
      const read = (limit: number, before: LikerPage['before'] = null) =>
        social().likesOf('zoe', 'post', { limit, before });
      const whole = await read(201);
      expect([whole.rows.length, whole.next]).toEqual([201, null]);
      // The oldest is the only one that is left.
      const last = await read(201, { atMs: whole.rows[199]!.atMs, key: whole.rows[199]!.id });
      const [first, ...newer] = last.rows.toReversed().concat(whole.rows.slice(0, 200).toReversed());
      for (const { id } of newer) await social().deletePost(id, 'ann');
      expect(newer).toHaveLength(202);
      const [one, two] = [await read(1), await read(2)];
      expect(one).toEqual({ rows: [], next: { atMs: newer[1]!.atMs, key: newer[1]!.id } });
      expect(two).toEqual({ rows: [], next: { atMs: newer[0]!.atMs, key: newer[0]!.id } });
      expect(await read(1, one.next)).toEqual({ rows: [first], next: null });
      // Nobody has looked behind the last of them.
      expect(await read(3)).toEqual({ rows: [first], next: { atMs: first!.atMs, key: first!.id } });
      expect(await read(4)).toEqual({ rows: [first], next: null });
    });

    describe('the check of counts', () => {
      it('P8: finds every count that differs from its rows, page by page', async () => {
        const posts = await Promise.all(Array.from({ length: 5 }, () => kit.post()));
        const [one, two] = posts.map(({ id }) => id) as [string, string];
        const top = await kit.comment(one);
        await kit.comment(one, top.id);
        await kit.like(`post:${one}`, 'zoe');
        await kit.like(`post:${two}`, 'zoe');
        await kit.like(`post:${two}`, 'zoe', false);
        await kit.like(`comment:${top.id}`, 'zoe');
        await kit.expectRightCounts();
        await kit.world.change(`UPDATE posts SET likes_count = 7, comments_count = 1 WHERE id = ${one}`);
        await kit.world.change(`UPDATE posts SET likes_count = 1 WHERE id = ${two}`);
        await kit.world.change(`UPDATE comments SET likes_count = 0, replies_count = 2 WHERE id = ${top.id}`);
        const wrongPosts = [
          { subject: `post:${one}`, count: 'likes', stored: 7, rows: 1 },
          { subject: `post:${one}`, count: 'comments', stored: 1, rows: 2 },
          { subject: `post:${two}`, count: 'likes', stored: 1, rows: 0 },
        ];
        for (const limit of [1, 2, 5, 6]) {
          const found = [];
          let after: string | null = null;
          let pages = 0;
          do {
            const { wrong, next } = await social().checkCounts('post', after, limit);
            found.push(...wrong);
            after = next;
            pages++;
          } while (after !== null);
          expect(found, `pages of ${limit}`).toEqual(wrongPosts);
          expect(pages).toBe(Math.floor(5 / limit) + 1);
        }
        expect((await social().checkCounts('comment', null, 200)).wrong).toEqual([
          { subject: `comment:${top.id}`, count: 'likes', stored: 0, rows: 1 },
          { subject: `comment:${top.id}`, count: 'replies', stored: 2, rows: 1 },
        ]);
      });
    });

    it('P10: a page of the check has fewer subjects where many rows have to be counted, and at least one', async () => {
      const ids: string[] = [];
      for (let at = 0; at < 6; at++) ids.push((await kit.post()).id);
      // By the stored counts: 200 000 rows a statement. The largest counts there can be do not stop it.
      for (const [at, count] of [0, 199_999, 1, 1, 2_147_483_647, 200_000].entries()) {
        await kit.world.change(`UPDATE posts SET likes_count = ${count}, comments_count = 0 WHERE id = ${ids[at]}`);
      }
      await kit.world.change(`UPDATE posts SET comments_count = 2147483647 WHERE id = ${ids[4]}`);
      const pages: string[][] = [];
      let after: string | null = null;
      do {
        const { wrong, next } = await social().checkCounts('post', after, 200);
        pages.push([...new Set(wrong.map(({ subject }) => subject))]);
        after = next;
      } while (after !== null);
      const subjects = ids.map((id) => `post:${id}`);
      expect(pages).toEqual([subjects.slice(1, 3), [subjects[3]], [subjects[4]], [subjects[5]]]);
    });

    it('the tables refuse what must never be', async () => {
      const { id } = await kit.post();
      const { id: commentId } = await kit.comment(id);
      await kit.register('account:1', 'Ann');
      await kit.register('account:2', 'ann');
      const refused = [
        () => kit.register('account:1', 'other'),
        () => kit.register('account:3', 'Ann'),
        () => kit.register('account:3', ''),
        () => kit.world.change(`UPDATE posts SET likes_count = -1 WHERE id = ${id}`),
        () => kit.world.change(`UPDATE posts SET comments_count = -1 WHERE id = ${id}`),
        () => kit.world.change(`UPDATE comments SET replies_count = -1 WHERE id = ${commentId}`),
        () => kit.world.change(`UPDATE comments SET likes_count = -1 WHERE id = ${commentId}`),
        () => kit.world.change(`UPDATE comments SET answers = 1 WHERE id = ${commentId}`),
        () => kit.world.change('UPDATE like_shards SET epoch = 0'),
        () => kit.world.change("UPDATE like_shards SET mode = 'other'"),
        () => kit.world.change('UPDATE like_shards SET shard = 8 WHERE shard = 7'),
      ];
      for (const change of refused) await expect(Promise.resolve().then(change)).rejects.toThrow();
      const shards = await kit.world.rows('SELECT shard, epoch, mode FROM like_shards ORDER BY shard');
      expect(shards.map((row) => [Number(row.shard), Number(row.epoch), row.mode])).toEqual(
        Array.from({ length: LIKE_SHARDS }, (_, at) => [at, 1, 'direct']),
      );
    });

    it('P10: no list is longer than a page and one', async () => {
      expect(await social().listPosts({}, { limit: 201, before: null }, null)).toEqual([]);
      const long = { limit: 202, before: null };
      const asked = [
        social().listPosts({}, long, null),
        social().listComments({ postId: '1', parentId: null }, { ...long, order: 'liked' }, null),
        social().commentsBy('a', long),
        social().likersOf('post:1', long),
        social().likesOf('a', 'post', long),
        social().checkCounts('post', null, 201),
        kit.likes.likeUsers('post:1', null, 10_001),
      ];
      for (const one of await Promise.allSettled<unknown>(asked)) {
        expect(one.status === 'rejected' && one.reason).toBeInstanceOf(InvariantError);
      }
    });

    describe('what the document about likes gets wrong', () => {
      it('P8: a like whose count cannot be written leaves no row; two statements without a transaction do', async () => {
        const { id } = await kit.post();
        const subject = `post:${id}` as const;
        // No count can be raised above this one: the second statement fails, as if the process had died before it.
        const most = name === 'sqlite' ? '9223372036854775807' : '2147483647';
        await kit.world.change(`UPDATE posts SET likes_count = ${most} WHERE id = ${id}`);
        const rows = async () => (await kit.world.rows('SELECT liker FROM post_likes')).length;
        await expect(kit.like(subject, 'zoe')).rejects.toThrow();
        expect(await rows()).toBe(0);

        await kit.world.change(
          `INSERT INTO post_likes (post_id, liker, liked, number, changed_at) VALUES (${id}, 'zoe', 1, 1, 1)`,
        );
        await expect(
          Promise.resolve(kit.world.change(`UPDATE posts SET likes_count = likes_count + 1 WHERE id = ${id}`)),
        ).rejects.toThrow();
        expect(await rows(), 'the naive way').toBe(1);
      });

      it('P8: two likes at once count two; reading the count and writing it back loses one', async () => {
        const { id } = await kit.post();
        const subject = `post:${id}` as const;
        await Promise.all([kit.like(subject, 'ann'), kit.like(subject, 'bob')]);
        expect(await kit.stored(subject)).toMatchObject({ count: 2, likers: ['ann', 'bob'] });

        const naive = async (user: string) => {
          const { count } = await kit.stored(subject);
          return async () => {
            await kit.world.change(
              `INSERT INTO post_likes (post_id, liker, liked, number, changed_at) VALUES (${id}, '${user}', 1, 1, 1)`,
            );
            await kit.world.change(`UPDATE posts SET likes_count = ${count + 1} WHERE id = ${id}`);
          };
        };
        for (const write of [await naive('cid'), await naive('dan')]) await write();
        expect(await kit.stored(subject), 'the naive way').toMatchObject({ count: 3, likers: { length: 4 } });
        const { wrong } = await social().checkCounts('post', null, 10);
        expect(wrong).toEqual([{ subject, count: 'likes', stored: 3, rows: 4 }]);
      });

      it('P8: one user who likes twice at once counts one; checking first and counting regardless counts two', async () => {
        const { id } = await kit.post();
        const subject = `post:${id}` as const;
        const answers = await Promise.all([kit.like(subject, '888'), kit.like(subject, '888')]);
        expect(answers.map((answer) => answer.outcome === 'ok' && answer.changed).sort()).toEqual([false, true]);
        expect(await kit.stored(subject)).toMatchObject({ count: 1, likers: ['888'] });

        const isMember = async (user: string) => (await kit.stored(subject)).likers.includes(user);
        const [first, second] = [await isMember('999'), await isMember('999')];
        for (const liked of [first, second]) {
          if (liked) continue;
          if (!(await isMember('999'))) {
            await kit.world.change(
              `INSERT INTO post_likes (post_id, liker, liked, number, changed_at) VALUES (${id}, '999', 1, 1, 1)`,
            );
          }
          await kit.world.change(`UPDATE posts SET likes_count = likes_count + 1 WHERE id = ${id}`);
        }
        expect(await kit.stored(subject), 'the naive way').toMatchObject({ count: 3, likers: ['888', '999'] });
      });
    });
  });
}
