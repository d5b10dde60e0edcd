import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { sleepMs } from '../support/openapi-wire.ts';
import { type Answer, type CallOptions, cleanUp, createSale } from '../support/server.ts';
import { type SocialShop, startSocialShop } from '../support/social-shop.ts';

/** Posts, comments and likes over HTTP, embedded: what each call answers, and what it leaves. */
let shop: SocialShop;

beforeAll(async () => {
  shop = await startSocialShop({ http: { accounts: true } });
});
afterAll(async () => {
  await shop.close();
  await cleanUp();
});

const ISO = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
const count = (likes: number) => ({ count: likes, exact: true, asOf: ISO });

function call(method: string, path: string, options?: CallOptions): Promise<Answer> {
  return shop.call(method, path, options);
}

describe('posts', () => {
  it('are written, read, edited and deleted by their author', async () => {
    const body = { title: 'Worth it?', content: 'Line one\n\tline two <script>alert(1)</script>' };
    const made = await call('POST', '/v1/posts', { buyer: 'ann', body });
    const shown = {
      id: expect.stringMatching(/^\d+$/),
      author: { id: 'ann', name: null },
      ...body,
      likes: count(0),
      comments: 0,
      version: 1,
      createdAt: ISO,
      updatedAt: ISO,
    };
    expect(made).toMatchObject({ status: 201, body: { ...shown, liked: false } });
    const path = `/v1/posts/${made.body.id}`;
    expect(made.headers.get('location')).toBe(path);

    const read = await call('GET', path);
    expect(read.body).toEqual(shown);
    expect(read.headers.get('content-type')).toBe('application/json; charset=utf-8');
    expect(read.headers.get('x-content-type-options')).toBe('nosniff');
    expect((await call('GET', path, { buyer: 'bob' })).body).toEqual({ ...shown, liked: false });
    expect((await call('GET', path, { admin: true })).body).toEqual(shown);

    const edited = await call('PATCH', path, { buyer: 'ann', body: { title: 'Worth it!', version: 1 } });
    expect(edited).toMatchObject({ status: 200, body: { title: 'Worth it!', content: body.content, version: 2 } });
    const stale = await call('PATCH', path, { buyer: 'ann', body: { title: 'Too late', version: 1 } });
    expect(stale).toMatchObject({ status: 409, body: { code: 'version_conflict', detail: 'it has version 2 now' } });
    for (const [method, sent] of [['PATCH', { title: 'Mine', version: 2 }], ['DELETE']] as const) {
      const refused = await call(method, path, { buyer: 'bob', ...(sent && { body: sent }) });
      expect(refused).toMatchObject({ status: 403, body: { code: 'forbidden' } });
    }
    expect((await call('GET', path)).body).toMatchObject({ title: 'Worth it!', version: 2 });

    expect(await call('DELETE', path, { buyer: 'ann' })).toMatchObject({ status: 200, body: { deleted: true } });
    expect((await call('DELETE', path, { buyer: 'ann' })).status).toBe(200);
    for (const [method, suffix, sent] of [
      ['GET', ''],
      ['GET', '/comments'],
      ['GET', '/likes'],
      ['PUT', '/like'],
      ['DELETE', '/like'],
      ['PATCH', '', { title: 'Again', version: 3 }],
      ['POST', '/comments', { content: 'Too late.' }],
    ] as const) {
      const gone = await call(method, path + suffix, { buyer: 'ann', ...(sent && { body: sent }) });
      expect(gone, `${method} ${suffix}`).toMatchObject({ status: 404, body: { code: 'not_found' } });
      if (method === 'GET') expect((await call(method, path + suffix)).status).toBe(404);
    }
  });

  it('are listed newest first, of all or of one author, page by page', async () => {
    const author = 'lister';
    const ids: string[] = [];
    for (let at = 0; at < 5; at++) ids.unshift((await shop.post(author, { title: `Post ${at}` })).id);
    for (const sent of [{}, { buyer: 'bob' }, { admin: true }]) {
      const first = (await call('GET', `/v1/posts?author=${author}&limit=2`, sent)).body;
      expect(first.data.map(({ id }: { id: string }) => id)).toEqual(ids.slice(0, 2));
      const second = (await call('GET', `/v1/posts?author=${author}&limit=3&cursor=${first.nextCursor}`, sent)).body;
      expect(second.data.map(({ id }: { id: string }) => id)).toEqual(ids.slice(2));
      expect(second.nextCursor).toBeNull();
    }
    expect((await call('GET', '/v1/posts?limit=3')).body.data.map(({ id }: { id: string }) => id)).toEqual(
      ids.slice(0, 3),
    );
    await call('DELETE', `/v1/posts/${ids[1]}`, { buyer: author });
    expect((await call('GET', '/v1/posts?limit=2')).body.data.map(({ id }: { id: string }) => id)).toEqual([
      ids[0],
      ids[2],
    ]);
  });

  it('name their author if the author has an account here', async () => {
    const account = { username: 'Käthe', email: 'kaethe@example.com', password: 'nine purple teapots' };
    const { account: made, token } = (await call('POST', '/v1/accounts', { body: account })).body;
    const { body } = await call('POST', '/v1/posts', { bearer: token, body: { title: 'Hello', content: 'World' } });
    expect(body.author).toEqual({ id: made.subject, name: 'Käthe' });
    await call('PUT', `/v1/posts/${body.id}/like`, { bearer: token });
    const likers = (await call('GET', `/v1/posts/${body.id}/likes`)).body.data;
    expect(likers).toEqual([{ user: { id: made.subject, name: 'Käthe' }, at: ISO }]);
  });

  it('end a page early rather than send megabytes', async () => {
    const author = 'novelist';
    for (let at = 0; at < 30; at++) await shop.post(author, { content: '界'.repeat(10_000) });
    for (const sent of [{}, { buyer: 'bob' }]) {
      const { data, nextCursor } = (await call('GET', `/v1/posts?author=${author}&limit=200`, sent)).body;
      expect(data.length).toBeLessThan(30);
      expect(nextCursor).toBe(data.at(-1).id);
    }
    expect(await shop.all(`/v1/posts?author=${author}`)).toHaveLength(30);
  });
});

describe('comments', () => {
  it('hang on a post two levels deep, and are counted', async () => {
    const post = await shop.post('ann');
    const top = await shop.comment('bob', post.id);
    const reply = await shop.comment('ann', post.id, { parentId: top.id });
    const answer = await shop.comment('bob', post.id, { parentId: reply.id });
    expect(top).toMatchObject({ postId: post.id, parentId: null, answers: null, author: { id: 'bob' }, replies: 0 });
    expect(reply).toMatchObject({ parentId: top.id, answers: null });
    expect(answer).toMatchObject({ parentId: top.id, answers: reply.id });
    expect((await call('GET', `/v1/posts/${post.id}`)).body.comments).toBe(3);
    const comments = (await call('GET', `/v1/posts/${post.id}/comments`)).body.data;
    expect(comments).toMatchObject([{ id: top.id, replies: 2, content: 'Yes.', deleted: false }]);
    const replies = (await call('GET', `/v1/posts/${post.id}/comments?parentId=${top.id}`)).body.data;
    expect(replies.map(({ id }: { id: string }) => id)).toEqual([answer.id, reply.id]);
    expect((await call('GET', `/v1/comments/${reply.id}`)).body).toMatchObject({ id: reply.id, content: 'Yes.' });
    const mine = (await call('GET', '/v1/me/comments', { buyer: 'bob' })).body.data;
    expect(mine.map(({ id }: { id: string }) => id)).toEqual([answer.id, top.id]);
  });

  it('a deleted one that has replies keeps its place, without text and author', async () => {
    const post = await shop.post('ann');
    const top = await shop.comment('bob', post.id, { content: 'A secret' });
    const reply = await shop.comment('ann', post.id, { parentId: top.id });
    expect((await call('DELETE', `/v1/comments/${top.id}`, { buyer: 'ann' })).status).toBe(403);
    expect((await call('DELETE', `/v1/comments/${top.id}`, { buyer: 'bob' })).status).toBe(200);
    const place = { id: top.id, deleted: true, content: null, author: null, replies: 1 };
    for (const sent of [{}, { buyer: 'bob' }]) {
      const { body } = await call('GET', `/v1/posts/${post.id}/comments`, sent);
      expect(body.data).toMatchObject([place]);
      expect(JSON.stringify(body)).not.toMatch(/A secret|bob/);
    }
    expect((await call('GET', `/v1/comments/${top.id}`)).status).toBe(404);
    expect(
      (await call('PATCH', `/v1/comments/${top.id}`, { buyer: 'bob', body: { content: 'x', version: 2 } })).status,
    ).toBe(404);
    expect((await call('PUT', `/v1/comments/${top.id}/like`, { buyer: 'ann' })).status).toBe(404);
    // Without replies it has no place.
    await call('DELETE', `/v1/comments/${reply.id}`, { buyer: 'ann' });
    expect((await call('GET', `/v1/posts/${post.id}/comments`)).body.data).toEqual([]);
    expect((await call('GET', `/v1/posts/${post.id}`)).body.comments).toBe(0);
  });

  it('are edited by their author, on the version that was read', async () => {
    const post = await shop.post('ann');
    const { id } = await shop.comment('bob', post.id);
    const edit = (buyer: string, version: number) =>
      call('PATCH', `/v1/comments/${id}`, { buyer, body: { content: 'No.', version } });
    expect(await edit('ann', 1)).toMatchObject({ status: 403 });
    expect(await edit('bob', 2)).toMatchObject({ status: 409, body: { code: 'version_conflict' } });
    expect(await edit('bob', 1)).toMatchObject({ status: 200, body: { content: 'No.', version: 2, liked: false } });
    expect((await call('GET', `/v1/comments/${id}`)).body).toMatchObject({ content: 'No.', version: 2 });
  });

  it('are sorted by time or by likes, page by page', async () => {
    const post = await shop.post('ann');
    const ids: string[] = [];
    for (let at = 0; at < 6; at++) ids.push((await shop.comment('bob', post.id, { content: `${at}` })).id);
    for (const [at, likes] of [0, 3, 1, 3, 0, 2].entries()) {
      for (let user = 0; user < likes; user++) await shop.like(`user-${user}`, `/v1/comments/${ids[at]}`);
    }
    for (const sent of [{}, { buyer: 'user-2' }]) {
      const found: string[] = [];
      for (let cursor = ''; ; ) {
        const { body } = await call('GET', `/v1/posts/${post.id}/comments?sort=liked&limit=2${cursor}`, sent);
        found.push(...body.data.map(({ content }: { content: string }) => content));
        if (body.nextCursor === null) break;
        cursor = `&cursor=${body.nextCursor}`;
      }
      expect(found).toEqual(['3', '1', '5', '2', '4', '0']);
    }
    const newest = await shop.all(`/v1/posts/${post.id}/comments`, { buyer: 'user-2' });
    expect(newest.map(({ content, liked }) => [content, liked])).toEqual([
      ['5', false],
      ['4', false],
      ['3', true],
      ['2', false],
      ['1', true],
      ['0', false],
    ]);
  });
});

describe('likes', () => {
  it('P8: a caller’s like is exact at once, and repeating it changes nothing', async () => {
    const post = await shop.post('ann');
    const path = `/v1/posts/${post.id}`;
    const liked = (likes: number, changed: boolean) => ({ liked: true, changed, likes: count(likes) });
    expect((await shop.like('bob', path)).body).toEqual(liked(1, true));
    expect((await shop.like('bob', path)).body).toEqual(liked(1, false));
    expect((await shop.like('cat', path)).body).toEqual(liked(2, true));
    expect((await call('GET', path, { buyer: 'bob' })).body).toMatchObject({ liked: true, likes: count(2) });
    expect((await call('GET', path, { buyer: 'ann' })).body).toMatchObject({ liked: false, likes: count(2) });
    const back = await call('DELETE', `${path}/like`, { buyer: 'bob' });
    expect(back).toMatchObject({ status: 200, body: { liked: false, changed: true, likes: count(1) } });
    expect((await call('DELETE', `${path}/like`, { buyer: 'bob' })).body).toMatchObject({ changed: false });
    expect((await call('GET', `${path}/likes`)).body.data).toEqual([{ user: { id: 'cat', name: null }, at: ISO }]);
    expect((await call('GET', '/v1/me/likes', { buyer: 'cat' })).body.data).toEqual([
      { kind: 'post', id: post.id, at: ISO },
    ]);
    expect((await call('GET', '/v1/me/likes', { buyer: 'bob' })).body.data).toEqual([]);
    const comment = await shop.comment('ann', post.id);
    await shop.like('bob', `/v1/comments/${comment.id}`);
    expect((await call('GET', '/v1/me/likes?kind=comment', { buyer: 'bob' })).body.data).toMatchObject([
      { kind: 'comment', id: comment.id },
    ]);
  });

  it('P8: a crowd that likes, takes back and clicks twice leaves a count that equals the rows', async () => {
    const post = await shop.post('ann');
    const path = `/v1/posts/${post.id}`;
    const answers = await Promise.all(
      Array.from({ length: 60 }, async (_, at) => {
        const user = `fan ${at}.`;
        const twice = await Promise.all([shop.like(user, path), shop.like(user, path)]);
        if (at % 3 > 0) return { twice, back: null };
        return { twice, back: await call('DELETE', `${path}/like`, { buyer: user }) };
      }),
    );
    for (const { twice, back } of answers) {
      expect(twice.map(({ body }) => body.changed).sort()).toEqual([false, true]);
      if (back !== null) expect(back.body).toMatchObject({ liked: false, changed: true });
    }
    // A name with blanks and points goes into the cursor.
    const first = (await call('GET', `${path}/likes?limit=17`, { admin: true })).body;
    expect(first.nextCursor).toContain('fan ');
    const rows = await shop.all(`${path}/likes`);
    expect(new Set(rows.map(({ user }) => user.id)).size).toBe(40);
    expect(rows).toHaveLength(40);
    expect((await call('GET', path, { admin: true })).body.likes).toEqual(count(40));
  });
});

describe('Idempotency-Key', () => {
  const body = { title: 'Once', content: 'only' };

  it('P5: a repeat makes no second post, and gets the first answer, whatever has become of it', async () => {
    const send = (sent: object, key: string, buyer = 'keyed') => call('POST', '/v1/posts', { buyer, key, body: sent });
    const first = await send(body, 'k1');
    expect(first.status).toBe(201);
    expect(first.headers.get('idempotent-replayed')).toBeNull();
    const path = `/v1/posts/${first.body.id}`;
    await call('PATCH', path, { buyer: 'keyed', body: { title: 'Twice', version: 1 } });
    await shop.like('bob', path);
    const again = await send({ content: 'only', title: 'Once' }, 'k1');
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    expect([again.status, again.body]).toEqual([201, first.body]);
    await call('DELETE', path, { buyer: 'keyed' });
    expect((await send(body, 'k1')).body).toEqual(first.body);
    expect(await send({ ...body, title: 'Other' }, 'k1')).toMatchObject({
      status: 422,
      body: { code: 'idempotency_key_reused' },
    });
    expect((await send(body, 'k1', 'another')).body.id).not.toBe(first.body.id);
    expect(await shop.all('/v1/posts?author=keyed')).toHaveLength(0);
  });

  it('P5: of many calls with one key at the same time one makes the post', async () => {
    const answers = await Promise.all(
      Array.from({ length: 10 }, () => call('POST', '/v1/posts', { buyer: 'racer', key: 'k', body })),
    );
    expect(new Set(answers.map(({ body: { id } }) => id)).size).toBe(1);
    expect(await shop.all('/v1/posts?author=racer')).toHaveLength(1);
    // In the library nothing keeps calls of one key in turn.
    const made = await Promise.all(
      Array.from({ length: 10 }, () => shop.library.posts.create({ author: 'racer', ...body, key: 'k' })),
    );
    expect(new Set(made.map((one) => one.ok && one.post.id)).size).toBe(1);
    expect(made.filter((one) => one.ok && !one.replayed)).toHaveLength(1);
    expect(await shop.all('/v1/posts?author=racer')).toHaveLength(2);
  });

  it('P5: the same for comments; a call that was refused may be repeated', async () => {
    const post = await shop.post('ann');
    const send = (sent: object, key: string) =>
      call('POST', `/v1/posts/${post.id}/comments`, { buyer: 'keyed', key, body: sent });
    const first = await send({ content: 'once' }, 'k1');
    expect((await send({ content: 'once' }, 'k1')).body).toEqual(first.body);
    expect((await send({ content: 'twice' }, 'k1')).body.code).toBe('idempotency_key_reused');
    expect((await send({ content: 'lost', parentId: '1' }, 'k2')).status).toBe(404);
    expect((await send({ content: 'lost', parentId: '1' }, 'k2')).status).toBe(404);
    expect((await call('GET', `/v1/posts/${post.id}`, { admin: true })).body.comments).toBe(1);
  });
});

describe('who may', () => {
  it('an admin acts for a buyer, and for nobody else', async () => {
    const body = { title: 'From the shop’s own site', content: 'Hello' };
    const acting = (buyer: string): CallOptions => ({ admin: true, headers: { 'doorbuster-buyer': buyer } });
    const made = await call('POST', '/v1/posts', { ...acting('dora'), body });
    expect(made).toMatchObject({ status: 201, body: { author: { id: 'dora' } } });
    const path = `/v1/posts/${made.body.id}`;
    expect((await call('PUT', `${path}/like`, acting('dora'))).body).toMatchObject({ liked: true });
    expect((await call('GET', path, acting('dora'))).body.liked).toBe(true);
    expect((await call('GET', '/v1/me/likes', acting('dora'))).body.data).toHaveLength(1);
    expect((await call('DELETE', path, acting('emil'))).status).toBe(403);
    expect((await call('DELETE', path, { admin: true })).body).toMatchObject({ code: 'forbidden' });
    expect((await call('GET', path)).status).toBe(200);
  });

  it.each([
    ['POST', '/v1/posts'],
    ['PATCH', '/v1/posts/1'],
    ['DELETE', '/v1/posts/1'],
    ['PUT', '/v1/posts/1/like'],
    ['DELETE', '/v1/comments/1/like'],
    ['POST', '/v1/posts/1/comments'],
    ['PATCH', '/v1/comments/1'],
    ['DELETE', '/v1/comments/1'],
    ['GET', '/v1/me/likes'],
    ['GET', '/v1/me/comments'],
  ])('%s %s needs a token, and one that is valid', async (method, path) => {
    expect(await call(method, path)).toMatchObject({ status: 401, body: { code: 'unauthenticated' } });
    expect((await call(method, path, { bearer: 'a.b.c' })).status).toBe(401);
    expect((await call(method, path, { admin: true })).status).toBe(403);
  });

  it('a token that is not valid is refused where none is needed, too', async () => {
    for (const path of ['/v1/posts', '/v1/posts/1', '/v1/posts/1/comments', '/v1/comments/1/likes']) {
      expect((await call('GET', path, { bearer: 'a.b.c' })).status, path).toBe(401);
    }
  });

  it('P10: a buyer’s writes and reads have their limits, and likes take nothing from payments', async () => {
    const small = await startSocialShop({ http: { rateLimitBuyerWrites: 3, rateLimitBuyerReads: 10 } });
    const { id } = await small.post('ann');
    const likes = await Promise.all(Array.from({ length: 6 }, () => small.like('bob', `/v1/posts/${id}`)));
    expect(likes.filter(({ status }) => status === 429).length).toBeGreaterThanOrEqual(2);
    expect(likes.find(({ status }) => status === 429)!.body).toMatchObject({ code: 'rate_limited' });
    expect((await small.call('POST', '/v1/orders/1/cancel', { buyer: 'bob' })).status).toBe(404);
    const pages = await Promise.all(
      Array.from({ length: 4 }, () => small.call('GET', '/v1/posts?limit=50', { buyer: 'bob' })),
    );
    expect(pages.map(({ status }) => status).sort()).toEqual([200, 200, 429, 429]);
    await small.close();
  });
});

it('P10: an author’s posts, comments and edits have a budget for the day, which repeats do not use', async () => {
  const small = await startSocialShop({ http: { postsPerDay: 4, writingCharsPerDay: 20_000 } });
  const { id } = await small.post('ann');
  const { id: commentId } = await small.comment('ann', id);
  const edit = (path: string, body: object) => small.call('PATCH', path, { buyer: 'ann', body });
  expect((await edit(`/v1/posts/${id}`, { title: 'New', version: 1 })).status).toBe(200);
  const last = { buyer: 'ann', key: 'k1', body: { title: 'Last', content: 'one' } };
  const first = await small.call('POST', '/v1/posts', last);
  expect(first.status).toBe(201);
  const refused = [
    await small.call('POST', '/v1/posts', { ...last, key: 'k2' }),
    await small.call('POST', '/v1/posts', { buyer: 'ann', body: last.body }),
    await small.call('POST', `/v1/posts/${id}/comments`, { buyer: 'ann', body: { content: 'more' } }),
    await edit(`/v1/posts/${id}`, { title: 'Newer', version: 2 }),
    await edit(`/v1/comments/${commentId}`, { content: 'No.', version: 1 }),
  ];
  for (const { status, body, headers } of refused) {
    expect([status, body.code]).toEqual([429, 'rate_limited']);
    expect(Number(headers.get('retry-after'))).toBeGreaterThan(86_000);
  }
  const again = await small.call('POST', '/v1/posts', last);
  expect([again.status, again.body.id, again.headers.get('idempotent-replayed')]).toEqual([201, first.body.id, 'true']);
  // Deleting, liking, and what others write go on; so does what an admin does for others.
  expect((await small.call('DELETE', `/v1/comments/${commentId}`, { buyer: 'ann' })).status).toBe(200);
  expect((await small.like('ann', `/v1/posts/${id}`)).status).toBe(200);
  await small.post('bob', { content: 'x'.repeat(9995) });
  await small.post('bob', { content: 'x'.repeat(9995) });
  const tooLong = await small.call('POST', `/v1/posts/${id}/comments`, { buyer: 'bob', body: { content: 'x' } });
  expect(tooLong.status).toBe(429);
  await small.close();
});

describe('what anybody reads', () => {
  it('P10: is shared, with an ETag and a second of caching, and not with callers who are known', async () => {
    const { id } = await shop.post('ann');
    for (const path of ['/v1/posts', `/v1/posts/${id}`, `/v1/posts/${id}/comments`, `/v1/posts/${id}/likes`]) {
      const read = await call('GET', path);
      expect(read.headers.get('cache-control'), path).toBe('public, max-age=1');
      expect(read.headers.get('vary'), path).toBe('authorization, doorbuster-buyer');
      const known = await call('GET', path, { headers: { 'if-none-match': read.headers.get('etag')! } });
      expect(known.status, path).toBe(304);
      const head = await call('HEAD', path);
      const length = String(Buffer.byteLength(JSON.stringify(read.body)));
      expect([head.status, head.headers.get('content-length'), head.headers.get('etag')], path).toEqual([
        200,
        length,
        read.headers.get('etag'),
      ]);
      const own = await call('GET', path, { buyer: 'bob' });
      expect([own.headers.get('cache-control'), own.headers.get('etag')], path).toEqual(['no-store', null]);
    }
  });

  it('P10: counts for the public are at most a second old, and what was deleted is gone at once', async () => {
    const { id } = await shop.post('ann', { title: 'To be deleted' });
    const path = `/v1/posts/${id}`;
    const seen = async () => (await call('GET', path)).body.likes.count;
    expect(await seen()).toBe(0);
    await shop.like('bob', path);
    await sleepMs(1000);
    expect(await seen()).toBe(1);
    const { id: commentId } = await shop.comment('bob', id, { content: 'Also to be deleted' });
    expect((await call('GET', `${path}/comments`)).body.data).toHaveLength(1);
    await call('DELETE', `/v1/comments/${commentId}`, { buyer: 'bob' });
    expect((await call('GET', `${path}/comments`)).body.data).toHaveLength(0);
    expect((await call('GET', '/v1/posts')).body.data[0].title).toBe('To be deleted');
    await call('DELETE', path, { buyer: 'ann' });
    expect((await call('GET', '/v1/posts')).body.data[0]?.title).not.toBe('To be deleted');
    expect((await call('GET', path)).status).toBe(404);
  });

  it('P10: an id that somebody made up never stands for a page of a real post, nor a page for it', async () => {
    const { id } = await shop.post('ann');
    await shop.comment('bob', id);
    await shop.like('bob', `/v1/posts/${id}`);
    const pages = [`/v1/posts/${id}/likes`, `/v1/posts/${id}/comments`];
    const madeUp = [`${id}%20likes%20`, `${id}%20comments%20%20newest%20`, `${id}%22%20likes%20`, `${id}%0Alikes%20`];
    const answers = async (paths: string[]) => {
      const statuses: number[] = [];
      for (const path of paths) statuses.push((await call('GET', path)).status);
      return statuses;
    };
    const posts = madeUp.flatMap((of) => [`/v1/posts/${of}`, `/v1/posts/${of.replace(/%20$/, '')}`]);
    expect(await answers(posts)).toEqual(posts.map(() => 404));
    expect(await answers(pages)).toEqual([200, 200]);
    expect(await answers(posts)).toEqual(posts.map(() => 404));
    const author = encodeURIComponent(`x" `);
    expect((await call('GET', `/v1/posts?author=${author}`)).status).toBe(422);
  });

  it('P10: readers who make up ids and cursors are refused before they hold up orders or the front page', async () => {
    const sale = await createSale(shop, { stock: 1000, perBuyer: 100 });
    const { id } = await shop.post('ann');
    await call('GET', `/v1/posts/${id}/comments`);
    const hostile = Array.from({ length: 400 }, (_, at) => {
      const made = `${7_000_000_000_000_000_000n + BigInt(at)}`;
      return call(
        'GET',
        [`/v1/posts?cursor=${made}`, `/v1/posts/${made}/comments`, `/v1/posts?author=x${at}`][at % 3]!,
      );
    });
    const honest = Promise.all([
      call('GET', '/v1/posts'),
      call('GET', `/v1/posts/${id}/comments`),
      call('POST', `/v1/sales/${sale}/orders`, { buyer: 'buyer', body: { item: 'voucher' } }),
    ]);
    expect((await honest).map(({ status }) => status)).toEqual([200, 200, 201]);
    const statuses = (await Promise.all(hostile)).map(({ status }) => status);
    expect(statuses.filter((status) => ![200, 404, 503].includes(status))).toEqual([]);
    expect(statuses).toContain(503);
  });
});

describe('the library', () => {
  it('offers the same as HTTP, with the same schemas and refusals', async () => {
    const { posts, comments, likes } = shop.library;
    const made = await posts.create({ author: 'lib', title: 'From a program', content: 'Hello' });
    if (!made.ok) throw new Error(made.code);
    const { id } = made.post;
    expect((await call('GET', `/v1/posts/${id}`, { buyer: 'lib' })).body).toEqual({ ...made.post, likes: count(0) });
    const bad = await posts.create({ author: 'lib', title: '', content: 'a\u0000' });
    expect(bad).toMatchObject({
      ok: false,
      code: 'invalid_request',
      errors: [{ path: '/title' }, {}, { path: '/content' }],
    });
    expect(await posts.edit(id, { by: 'eve', title: 'Mine', version: 1 })).toEqual({ ok: false, code: 'forbidden' });
    expect(await posts.edit(id, { by: 'lib', title: 'Ours', version: 1 })).toMatchObject({ post: { title: 'Ours' } });
    const comment = await comments.create({ postId: id, author: 'bob', content: 'Hi' });
    if (!comment.ok) throw new Error(comment.code);
    const subject = { comment: comment.comment.id };
    expect(await likes.like(subject, 'ann')).toMatchObject({ ok: true, changed: true, likes: { count: 1 } });
    expect(await likes.unlike({ post: id }, 'ann')).toMatchObject({ ok: true, liked: false, changed: false });
    expect(await likes.like({ post: '1' }, 'ann')).toEqual({ ok: false, code: 'not_found' });
    expect(await comments.list(id, { sort: 'liked', reader: 'ann' })).toMatchObject({
      data: [{ liked: true, replies: 0 }],
    });
    expect(await comments.list('1')).toBeNull();
    expect((await comments.by('bob', { limit: 1 })).data).toMatchObject([{ id: comment.comment.id }]);
    expect(await likes.likers(subject)).toMatchObject({ data: [{ user: { id: 'ann' } }], nextCursor: null });
    expect((await likes.of('ann', { kind: 'comment' })).data[0]).toMatchObject({ id: comment.comment.id });
    expect((await posts.list({ author: 'lib', limit: 1 })).data).toMatchObject([{ id, comments: 1 }]);
    await expect(posts.list({ limit: 201 })).rejects.toThrow('limit must be <= 200');
    expect(await posts.delete(id, 'lib')).toEqual({ ok: true });
    expect(await posts.get(id)).toBeNull();
  });

  it('refuses what a program without types may give, as a value', async () => {
    const { posts, comments, likes } = shop.library;
    const refused = { ok: false, code: 'invalid_request' };
    const words = 'must be { post: id } or { comment: id }';
    const subjects = ['7', undefined, null, {}, { sale: '7' }, { post: 7 }, { post: '7', comment: '7' }];
    for (const subject of subjects as never[]) {
      const told = { ...refused, errors: [{ path: '/subject', message: words }] };
      expect(await likes.like(subject, 'alice')).toEqual(told);
      expect(await likes.unlike(subject, 'alice')).toEqual(told);
      await expect(likes.likers(subject)).rejects.toThrow(`subject ${words}`);
    }
    const nothing = undefined as never;
    expect(await posts.create(nothing)).toMatchObject(refused);
    expect(await posts.edit('7', nothing)).toMatchObject({
      ...refused,
      errors: [{ path: '/version' }, { path: '/by' }],
    });
    expect(await comments.create(nothing)).toMatchObject(refused);
    expect(await comments.edit('7', nothing)).toMatchObject(refused);
  });
});

describe('bad input', () => {
  const long = (length: number) => 'x'.repeat(length);
  let post: Answer['body'];
  let comment: Answer['body'];
  let other: Answer['body'];
  let gone: Answer['body'];

  beforeAll(async () => {
    post = await shop.post('ann');
    comment = await shop.comment('bob', post.id);
    await shop.comment('ann', post.id, { parentId: comment.id });
    other = await shop.comment('bob', (await shop.post('ann')).id);
    gone = await shop.comment('bob', post.id);
    await call('DELETE', `/v1/comments/${gone.id}`, { buyer: 'bob' });
  });

  type Case = [
    what: string,
    status: number,
    at: string | null,
    method: string,
    path: () => string,
    body?: () => unknown,
  ];
  const posts = () => '/v1/posts';
  const ofPost = () => `/v1/posts/${post.id}`;
  const comments = () => `${ofPost()}/comments`;
  const ofComment = () => `/v1/comments/${comment.id}`;
  const cases: Case[] = [
    ['a like of a missing post', 404, null, 'PUT', () => '/v1/posts/1/like'],
    ['a like of what is no id', 404, null, 'PUT', () => '/v1/posts/x%00/like'],
    ['a like of a missing comment', 404, null, 'PUT', () => '/v1/comments/9223372036854775807/like'],
    ['a like of a deleted comment', 404, null, 'PUT', () => `/v1/comments/${gone.id}/like`],
    ['a comment on a missing post', 404, null, 'POST', () => '/v1/posts/1/comments', () => ({ content: 'x' })],
    ['a reply to a missing comment', 404, null, 'POST', comments, () => ({ content: 'x', parentId: '1' })],
    ['a reply to a deleted comment', 404, null, 'POST', comments, () => ({ content: 'x', parentId: gone.id })],
    ['a reply to another post’s', 422, '/parentId', 'POST', comments, () => ({ content: 'x', parentId: other.id })],
    ['a parent that is no id', 422, '/parentId', 'POST', comments, () => ({ content: 'x', parentId: 'x' })],
    ['no title', 422, '/title', 'POST', posts, () => ({ content: 'x' })],
    ['an empty title', 422, '/title', 'POST', posts, () => ({ title: '', content: 'x' })],
    ['a title of two lines', 422, '/title', 'POST', posts, () => ({ title: 'a\nb', content: 'x' })],
    ['a title with blanks around it', 422, '/title', 'POST', posts, () => ({ title: ' a', content: 'x' })],
    ['a title that is too long', 422, '/title', 'POST', posts, () => ({ title: long(201), content: 'x' })],
    ['an unknown field', 422, '/likes', 'POST', posts, () => ({ title: 'a', content: 'x', likes: 9 })],
    ['content of blanks', 422, '/content', 'POST', posts, () => ({ title: 'a', content: ' \n\t\u3000' })],
    ['content that is too long', 422, '/content', 'POST', posts, () => ({ title: 'a', content: long(10_001) })],
    ['64 KiB of content', 413, null, 'POST', posts, () => ({ title: 'a', content: long(64 * 1024) })],
    ['a null character', 422, '/content', 'POST', posts, () => ({ title: 'a', content: 'a\u0000b' })],
    ['a carriage return', 422, '/content', 'POST', posts, () => ({ title: 'a', content: 'a\r\nb' })],
    ['an escape', 422, '/content', 'POST', comments, () => ({ content: '\u001b[2J' })],
    ['a C1 control', 422, '/content', 'POST', comments, () => ({ content: 'a\u0085b' })],
    ['half a character', 422, '/content', 'POST', comments, () => ({ content: 'a\ud83d' })],
    ['a comment that is too long', 422, '/content', 'POST', comments, () => ({ content: long(2001) })],
    ['an edit without a version', 422, '/version', 'PATCH', ofPost, () => ({ title: 'b' })],
    ['an edit of another version', 409, null, 'PATCH', ofPost, () => ({ title: 'b', version: 7 })],
    ['an edit of a comment to nothing', 422, '/content', 'PATCH', ofComment, () => ({ content: '', version: 1 })],
    ['a stale edit of a comment', 409, null, 'PATCH', ofComment, () => ({ content: 'b', version: 7 })],
    ['somebody else’s post', 403, null, 'DELETE', ofPost],
    ['somebody else’s edit', 403, null, 'PATCH', ofPost, () => ({ title: 'b', version: 1 })],
  ];

  it.each(cases)('%s: %i', async (what, status, at, method, path, body) => {
    // Only the last two are about who asks.
    const buyer = what.startsWith('somebody else')
      ? 'mallory'
      : method === 'PATCH' && path === ofComment
        ? 'bob'
        : 'ann';
    const everything = async () => [
      (await call('GET', '/v1/posts?limit=5', { admin: true })).body,
      await shop.all(comments()),
      await shop.all(`${ofPost()}/likes`),
    ];
    const strip = (rows: unknown) => JSON.stringify(rows).replaceAll(/"asOf":"[^"]*"/g, '');
    const before = strip(await everything());
    const answer = await call(method, path(), { buyer, ...(body && { body: body() }) });
    expect(answer.status, JSON.stringify(answer.body)).toBe(status);
    expect(answer.headers.get('content-type')).toBe('application/problem+json; charset=utf-8');
    if (at !== null) expect(answer.body.errors[0].path).toBe(at);
    expect(strip(await everything())).toBe(before);
  });

  it.each([
    ['?limit=0', '?limit'],
    ['?limit=201', '?limit'],
    ['?cursor=x', '?cursor'],
    ['?cursor=1.0', '?cursor'],
    ['?sort=oldest', '?sort'],
    ['?parentId=0', '?parentId'],
    ['?unknown=1', '?unknown'],
  ])('comments%s: 422', async (query, at) => {
    for (const sent of [{}, { buyer: 'ann' }]) {
      const answer = await call('GET', comments() + query, sent);
      expect(answer).toMatchObject({ status: 422, body: { errors: [{ path: at }] } });
    }
  });

  it.each([
    '/v1/me/likes?kind=sale',
    '/v1/me/likes?cursor=5',
    '/v1/posts/1/likes?cursor=x.ann',
    '/v1/posts?author=%20a',
  ])('%s: 422', async (path) => {
    expect((await call('GET', path, { buyer: 'ann' })).status).toBe(422);
  });

  it('takes the longest texts, in any script, and gives them back as they came', async () => {
    const body = { title: '🎟'.repeat(200), content: `${'界'.repeat(9_998)}\n🎟` };
    const { id } = (await call('POST', '/v1/posts', { buyer: 'ann', body })).body;
    expect((await call('GET', `/v1/posts/${id}`)).body).toMatchObject(body);
    const content = `\t${'é'.repeat(1_998)}\n`;
    const { id: commentId } = await shop.comment('bob', id, { content });
    expect((await call('GET', `/v1/comments/${commentId}`)).body.content).toBe(content);
  });
});
