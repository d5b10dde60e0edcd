import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, afterEach, expect, it } from 'vitest';
import { LEDGER_FILE } from '../../src/ledger/drivers/sqlite/folder.ts';
import type { Finding } from '../../src/model/finding.ts';
import { type DatabaseKind, MARIADB_KIND, POSTGRES_KIND } from '../support/broker-shop.ts';
import { until } from '../support/fault-wait.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { ADMIN_KEY, cleanUp, run, temporaryFolder } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { startRedis } from '../support/servers/redis.ts';
import { type SocialShop, startSocialShop } from '../support/social-shop.ts';

/** `check` of counts: what is falsified behind the ledger's back is found, and nothing else, also while a crowd likes. */
const LIKERS = 24;
const CHECKS_MIN = 12;

interface Report {
  status: string;
  checks: string[];
  findings: Finding[];
  next: string | null;
}

type Sql = (statement: string) => Promise<unknown> | unknown;

let shop: SocialShop | null = null;

afterEach(async () => {
  await shop?.close();
  shop = null;
  await cleanUp();
});
afterAll(cleanUpServers);

async function checks(started: SocialShop, sql: Sql): Promise<void> {
  shop = started;
  const { call } = started;
  const checked = async (body: object = {}): Promise<Report> => {
    const answer = await call('POST', '/v1/ops/consistency/check', { admin: true, body });
    expect(answer.status, JSON.stringify(answer.body)).toBe(200);
    return answer.body as Report;
  };
  const posts = [await started.post('ann'), await started.post('bob'), await started.post('cid')].map(({ id }) => id);
  const { id: comment } = await started.comment('ann', posts[0]!);
  const likeable = [...posts.map((id) => `/v1/posts/${id}`), `/v1/comments/${comment}`];

  // A crowd likes, takes back and comments, while counts are being checked.
  let isOver = false;
  let liked = 0;
  const liker = async (user: string, at: number): Promise<void> => {
    for (let steps = at; !isOver; steps++) {
      const path = likeable[steps % likeable.length]!;
      const { status, body } = await call(steps % 3 === 0 ? 'DELETE' : 'PUT', `${path}/like`, { buyer: user });
      expect(status, JSON.stringify(body)).toBe(200);
      liked++;
      if (steps % 7 === 0)
        await started.comment(user, posts[steps % 3]!, { parentId: steps % 3 === 0 ? comment : undefined });
    }
  };
  const crowd = Promise.all(Array.from({ length: LIKERS }, (_, at) => liker(`user-${at}`, at)));
  try {
    for (let times = 0; times < CHECKS_MIN || liked < 20 * LIKERS; times++) {
      expect(await checked()).toMatchObject({
        status: 'consistent',
        checks: ['releases', 'payments', 'counts'],
        findings: [],
        next: null,
      });
    }
  } finally {
    isOver = true;
    await crowd;
  }
  await until('all likes are stored', 20_000, async () => {
    const shown = await Promise.all(likeable.map(async (path) => (await call('GET', path, { admin: true })).body));
    return shown.every(({ likes }) => likes.exact);
  });
  const stored = async (path: string): Promise<{ likes: number; comments: number; replies: number }> => {
    const { likes, comments, replies } = (await call('GET', path, { admin: true })).body;
    return { likes: likes.count, comments, replies };
  };
  const [one, , three] = await Promise.all(posts.map((id) => stored(`/v1/posts/${id}`)));
  const { replies } = await stored(`/v1/comments/${comment}`);
  expect([one!.likes, three!.likes, three!.comments, replies].every((count) => count > 0)).toBe(true);

  await sql(`UPDATE posts SET likes_count = likes_count + 5 WHERE id = ${posts[0]}`);
  await sql(`UPDATE posts SET likes_count = 0, comments_count = comments_count + 1 WHERE id = ${posts[2]}`);
  await sql(`UPDATE comments SET replies_count = replies_count - 1 WHERE id = ${comment}`);
  const report = await checked();
  expect(report.status).toBe('inconsistent');
  const wrong = (subject: string, count: string, expected: number, actual: number) => ({
    id: `count-${subject.replace(':', '-')}-${count}`,
    check: 'counts',
    subject,
    expected: `${count}_count ${expected}, as many as there are rows`,
    actual: `${count}_count ${actual}`,
    cause: expect.stringContaining('somebody wrote to the tables'),
    repair: expect.stringContaining('docs/guides/likes.md'),
  });
  expect(report.findings).toEqual([
    wrong(`post:${posts[0]}`, 'likes', one!.likes, one!.likes + 5),
    wrong(`post:${posts[2]}`, 'likes', three!.likes, 0),
    wrong(`post:${posts[2]}`, 'comments', three!.comments, three!.comments + 1),
    wrong(`comment:${comment}`, 'replies', replies, replies - 1),
  ]);
  expect((await call('GET', '/v1/ops/consistency', { admin: true })).body.findings).toEqual(report.findings);
  expect(await started.library.check()).toMatchObject({ findings: report.findings });

  // From where a report has ended; not in a sale, which has no posts.
  const rest = await checked({ from: `post:${posts[0]}` });
  expect(rest).toMatchObject({ checks: ['counts'], findings: report.findings.slice(1) });
  expect((await checked({ from: 'comment:0' })).findings).toEqual(report.findings.slice(3));
  expect(await started.library.check(undefined, 'nowhere')).toMatchObject({ checks: [], findings: [] });
  const nowhere = await call('POST', '/v1/ops/consistency/check', { admin: true, body: { from: 'nowhere' } });
  expectProblem(nowhere, 422, 'invalid_request');

  const said = await run(['check', '--url', started.url], { DOORBUSTER_ADMIN_KEY: ADMIN_KEY });
  expect(said).toMatchObject({ code: 1, stderr: '' });
  expect(said.stdout).toContain(`✗ counts: post:${posts[0]}\n    expected  likes_count ${one!.likes}, as many`);
  expect(said.stdout).toContain('4 found (checked releases, payments, counts)');

  // As docs/guides/likes.md says.
  const rowsOf = (id: string): string => `(SELECT count(*) FROM post_likes WHERE post_id = ${id} AND liked = 1)`;
  for (const id of [posts[0]!, posts[2]!]) {
    await sql(`UPDATE posts SET likes_count = ${rowsOf(id)}, likes_rev = likes_rev + 1 WHERE id = ${id}`);
  }
  await sql(`UPDATE posts SET comments_count = comments_count - 1 WHERE id = ${posts[2]}`);
  await sql(`UPDATE comments SET replies_count = replies_count + 1 WHERE id = ${comment}`);
  expect(await checked()).toMatchObject({ status: 'consistent', findings: [] });
  expect(await run(['check', '--url', started.url], { DOORBUSTER_ADMIN_KEY: ADMIN_KEY })).toMatchObject({
    code: 0,
    stdout: 'no stuck stock, no unsettled payments, no wrong counts (checked releases, payments, counts)\n',
  });
}

const WHAT = 'P8, P9: finds counts that were falsified, and nothing while a crowd likes';

it(`${WHAT}: on SQLite`, async () => {
  const data = temporaryFolder();
  const sql: Sql = (statement) => {
    const db = new DatabaseSync(join(data, LEDGER_FILE), { timeout: 5000 });
    db.exec(statement);
    db.close();
  };
  await checks(await startSocialShop({ data }), sql);
}, 60_000);

describeWithRedis('with Redis, which counts likes', () => {
  const test = (database: DatabaseKind): void => {
    it(WHAT, async () => {
      const [redis, url] = await Promise.all([startRedis(), database.fresh()]);
      const started = await startSocialShop({ redis: redis.url, database: url, migrate: true });
      await checks(started, (statement) => database.query(url, statement));
    }, 60_000);
  };
  describeWithPostgres('on PostgreSQL', () => test(POSTGRES_KIND));
  describeWithMysql('on MariaDB', () => test(MARIADB_KIND));
});
