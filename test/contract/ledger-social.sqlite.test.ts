import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { actor } from '../../src/model/actor.ts';
import { type SqliteUnderTest, sqliteUnderTest } from '../support/sqlite-ledger.ts';
import { likeContract } from './ledger-likes.ts';
import { socialContract } from './ledger-social.ts';
import { SocialKit } from './ledger-social-kit.ts';

socialContract('sqlite', async () => sqliteUnderTest());
likeContract('sqlite', async () => sqliteUnderTest());

/** A commit of its own for each would stop the event loop for one disk write after the other. */
describe('what people send in one turn shares one commit', () => {
  const MANY = 20;
  let world: SqliteUnderTest;
  let kit: SocialKit;
  let posts: string[];
  let comments: string[];

  beforeEach(async () => {
    world = sqliteUnderTest();
    kit = new SocialKit(world);
    posts = (await Promise.all(Array.from({ length: MANY }, () => kit.post()))).map(({ id }) => id);
    comments = (await Promise.all(posts.map((id) => kit.comment(id)))).map(({ id }) => id);
  });
  afterEach(() => world.close());

  const account = (n: number) => {
    const own = { username: `u${n}`, email: `u${n}@example.org`, passwordHash: 'x', origin: null };
    return world.ledger.accounts.createAccount({ id: kit.id(), auditId: kit.id(), ...own });
  };
  const note = (subject: string) =>
    world.ledger.note({ auditId: kit.id(), by: actor('admin', 'ann'), action: 'post.edit', subject, detail: {} });

  it.each([
    ['posts', () => posts.map(() => kit.post())],
    ['edits of posts', () => posts.map((id) => kit.social.editPost(id, { by: 'ann', title: 'new', version: 1 }))],
    ['deleted posts', () => posts.map((id) => kit.social.deletePost(id, 'ann'))],
    ['comments', () => posts.map((id) => kit.comment(id))],
    [
      'edits of comments',
      () => comments.map((id) => kit.social.editComment(id, { by: 'bob', content: 'new', version: 1 })),
    ],
    ['deleted comments', () => comments.map((id) => kit.social.deleteComment(id, 'bob'))],
    ['likes', () => posts.map((id) => kit.like(`post:${id}`, 'zoe'))],
    ['accounts', () => posts.map((_, n) => account(n))],
    ['rows of the audit about what admins do for buyers', () => posts.map((id) => note(`post:${id}`))],
  ])('P10: %s', async (_, send) => {
    const before = world.commits();
    await Promise.all(send());
    expect(world.commits() - before).toBe(1);
  });

  it('one that fails leaves the others alone', async () => {
    const [first, ...others] = posts as [string, ...string[]];
    await world.change(
      `CREATE TRIGGER no_edit BEFORE UPDATE ON posts WHEN OLD.id = ${first} BEGIN SELECT RAISE(ABORT, 'no'); END`,
    );
    const outcomes = await Promise.allSettled(posts.map((id) => kit.social.deletePost(id, 'ann')));
    expect(outcomes.map(({ status }) => status)).toEqual(['rejected', ...others.map(() => 'fulfilled')]);
    expect((await kit.social.getPost(first))!.deleted).toBe(false);
    expect((await kit.social.getPost(others.at(-1)!))!.deleted).toBe(true);
  });
});
