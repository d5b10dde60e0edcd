import { afterAll, afterEach, expect, it } from 'vitest';
import { shardOf } from '../../src/model/like.ts';
import { type BrokerKind, KAFKA_KIND, prepare, RABBITMQ_KIND } from '../support/broker-kinds.ts';
import { type DatabaseKind, MARIADB_KIND, POSTGRES_KIND } from '../support/broker-shop.ts';
import { startShop } from '../support/distributed.ts';
import { admin, metric } from '../support/distributed-calls.ts';
import { until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { type Answer, cleanUp, type TestServer } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** Likes that the ledger can never store: put aside, listed, retried, and dropped by an admin. */

/** Five tries with 1, 2, 4 and 8 s between them, which the test does not wait for. */
const DIES_WITHIN_MS = 30_000;

interface Letter {
  kind: string;
  id: string;
  subject: string | null;
  buyer: string;
  liked: boolean;
  error: string;
  attempts: number;
}

async function letters(server: TestServer, query = ''): Promise<Letter[]> {
  const { status, body } = await admin(server, 'GET', `/v1/ops/dead-letters${query}`);
  expect(status, JSON.stringify(body)).toBe(200);
  return body.data as Letter[];
}

/** Makes waiting likes due at once; the pipe's contract tests the delay. */
async function makeDue(redis: RedisServer, prefix: string, subject: string): Promise<void> {
  const key = `${prefix}:{likes:${shardOf(subject)}}:retry`;
  const waiting = (await redis.command('ZRANGE', key, '0', '-1')) as string[];
  for (const member of waiting) await redis.command('ZADD', key, 'XX', '1', member);
}

async function decidesLetters(database: DatabaseKind, broker: BrokerKind | null): Promise<void> {
  const prefix = `like-letters-${process.pid}`;
  const [redis, databaseUrl, shared] = await Promise.all([startRedis(), database.fresh(), broker?.shared() ?? null]);
  if (shared !== null) await prepare(broker!, shared, prefix);
  const env = {
    REDIS_PREFIX: prefix,
    LOG_LEVEL: 'fatal',
    ...(shared !== null && { PIPE_URL: broker!.pipeUrl(shared, prefix) }),
  };
  const shop = await startShop({ redisUrl: redis.url, databaseUrl, servers: 1, workers: 0, env });
  const [api] = shop.servers as [TestServer];
  const working = await shop.startServer([]);
  const sql = (text: string) => database.query(databaseUrl, text);

  const made = await api.call('POST', '/v1/posts', { buyer: 'author', body: { title: 'One', content: 'Text' } });
  const { id } = made.body as { id: string };
  const subject = `post:${id}`;
  const path = `/v1/posts/${id}`;
  const like = (buyer: string, liked = true, server = api): Promise<Answer> =>
    server.call(liked ? 'PUT' : 'DELETE', `${path}/like`, { buyer });
  /** What a buyer sees at both processes. */
  const expectSeen = async (buyer: string, seen: object): Promise<void> => {
    for (const server of [api, working]) {
      expect((await server.call('GET', path, { buyer })).body, buyer).toMatchObject(seen);
    }
  };
  const isExact = async (): Promise<boolean> => (await admin(api, 'GET', path)).body.likes.exact;

  for (const buyer of ['ann', 'poison-back']) expect((await like(buyer)).body).toMatchObject({ changed: true });
  await until('two likes are stored', 10_000, isExact);
  // A foreign constraint: the ledger can never store these rows, but is not out.
  await sql(
    "ALTER TABLE post_likes ADD CONSTRAINT poison CHECK (liker NOT LIKE 'poison%' OR (liker = 'poison-back' AND liked = 1))",
  );
  for (const buyer of ['poison-given', 'poison-mended']) {
    expect((await like(buyer)).body).toMatchObject({ liked: true, changed: true });
  }
  expect((await like('poison-back', false)).body).toMatchObject({ liked: false, changed: true });
  for (const liked of [true, false]) expect((await like('poison-twice', liked)).body).toMatchObject({ changed: true });
  expect((await like('bob', true, working)).body).toMatchObject({ changed: true, likes: { count: 4 } });
  // They wait apart: others are stored meanwhile.
  await until('another like is stored', 10_000, async () => {
    return (await admin(api, 'GET', `${path}/likes`)).body.data.length === 3;
  });

  const all = await until('five letters', DIES_WITHIN_MS, async () => {
    await makeDue(redis, prefix, subject);
    const now = await letters(api);
    return now.length === 5 ? now : null;
  });
  const letterOf = (buyer: string): Letter => all.find((letter) => letter.buyer === buyer)!;
  expect(all.map(({ buyer }) => buyer)).toEqual([
    'poison-twice',
    'poison-twice',
    'poison-back',
    'poison-mended',
    'poison-given',
  ]);
  expect(letterOf('poison-back')).toEqual({
    kind: 'like',
    id: expect.stringMatching(/^like-\d+-\d+-\d+-\d$/),
    subject,
    buyer: 'poison-back',
    liked: false,
    error: expect.stringMatching(/poison/),
    attempts: 5,
    diedAt: expect.stringMatching(/Z$/),
  });
  const page = await admin(api, 'GET', '/v1/ops/dead-letters?limit=2');
  expect(page.body.data).toEqual(all.slice(0, 2));
  expect(await letters(api, `?cursor=${page.body.nextCursor}`)).toEqual(all.slice(2));
  await until('the gauge', 10_000, async () => (await metric(working, 'doorbuster_like_letters')) === 5);
  // What was decided is shown meanwhile, and no count is called exact.
  await expectSeen('poison-given', { liked: true, likes: { count: 4, exact: false } });
  await expectSeen('poison-back', { liked: false });

  const remove = (buyer: string): Promise<Answer> => admin(api, 'DELETE', `/v1/ops/dead-letters/${letterOf(buyer).id}`);
  expect((await remove('poison-given')).status).toBe(204);
  await expectSeen('poison-given', { liked: false, likes: { count: 3, exact: false } });
  expect((await remove('poison-back')).status).toBe(204);
  await expectSeen('poison-back', { liked: true, likes: { count: 4, exact: false } });
  expectProblem(await remove('poison-back'), 404, 'not_found');
  const [newer, older] = all.filter(({ buyer }) => buyer === 'poison-twice') as [Letter, Letter];
  const refused = await remove('poison-twice');
  expectProblem(refused, 409, 'version_conflict');
  expect(refused.body.detail).toContain(older.id);
  for (const { id: letter } of [older, newer]) {
    expect((await admin(api, 'DELETE', `/v1/ops/dead-letters/${letter}`)).status).toBe(204);
    await expectSeen('poison-twice', { liked: false, likes: { exact: false } });
  }

  await sql(`ALTER TABLE post_likes DROP CONSTRAINT poison`);
  const retried = await admin(api, 'POST', `/v1/ops/dead-letters/${letterOf('poison-mended').id}/retry`);
  expect(retried.status).toBe(202);
  await until('the retried like is stored', 10_000, isExact);
  expect(await letters(api)).toEqual([]);
  await expectSeen('poison-mended', { liked: true, likes: { count: 4, exact: true } });
  await expectSeen('poison-given', { liked: false, likes: { count: 4, exact: true } });
  await expectSeen('poison-back', { liked: true });
  const likers = async (): Promise<string[]> =>
    ((await admin(api, 'GET', `${path}/likes`)).body.data as { user: { id: string } }[]).map(({ user }) => user.id);
  expect((await likers()).sort()).toEqual(['ann', 'bob', 'poison-back', 'poison-mended']);
  // A like that was dropped can be made again.
  expect((await like('poison-given', true, working)).body).toMatchObject({ changed: true, likes: { count: 5 } });
  await until('it is stored', 10_000, isExact);
  expect(await likers()).toHaveLength(5);
  const [stored] = await sql(`SELECT likes_count FROM posts WHERE id = ${id}`);
  expect(Number(stored!.likes_count)).toBe(5);
  await until('the gauge', 10_000, async () => (await metric(working, 'doorbuster_like_letters')) === 0);

  const { body: audit } = await admin(api, 'GET', `/v1/ops/audit?subject=${subject}`);
  const noted = audit.data as { action: string; actor: string; detail: { buyer: string; liked: boolean } }[];
  expect(noted.toReversed().map(({ action, actor, detail }) => [action, actor, detail.buyer, detail.liked])).toEqual([
    ['dead_letter.delete', 'admin:admin', 'poison-given', true],
    ['dead_letter.delete', 'admin:admin', 'poison-back', false],
    ['dead_letter.delete', 'admin:admin', 'poison-twice', true],
    ['dead_letter.delete', 'admin:admin', 'poison-twice', false],
    ['dead_letter.retry', 'admin:admin', 'poison-mended', true],
  ]);

  // What nobody can read, on the stream of its shard: it is listed at once, and opening the shard anew makes counts exact.
  const begin = `${prefix}:{likes:${shardOf(subject)}}:`;
  const epoch = await redis.command('HGET', `${begin}head`, 'epoch');
  await redis.command('XADD', `${begin}${epoch}:stream`, '*', 'what', 'is this');
  const [odd] = await until('a letter', 10_000, async () => {
    const now = await letters(api);
    return now.length > 0 ? now : null;
  });
  expect(odd).toMatchObject({ kind: 'like', subject: null, buyer: '', attempts: 1 });
  expect((await like('cid')).body).toMatchObject({ changed: true });
  expect((await admin(api, 'DELETE', `/v1/ops/dead-letters/${odd!.id}`)).status).toBe(204);
  expect(Number(await redis.command('HGET', `${begin}head`, 'epoch'))).toBeGreaterThan(Number(epoch));
  await expectSeen('cid', { liked: true, likes: { count: 6, exact: true } });
  expect(await letters(api)).toEqual([]);
}

describeWithRedis('dead letters of likes', () => {
  const WHAT = 'P8: a retry stores the like; deleting drops it for good, and the pair and the count are right at once';

  afterEach(cleanUp);
  afterAll(cleanUpServers);

  describeWithPostgres('on PostgreSQL, through Redis Streams', () => {
    it(WHAT, () => decidesLetters(POSTGRES_KIND, null), 90_000);
  });
  describeWithMysql('on MariaDB', () => {
    RABBITMQ_KIND.describe('through RabbitMQ', () => {
      it(WHAT, () => decidesLetters(MARIADB_KIND, RABBITMQ_KIND), 90_000);
    });
    KAFKA_KIND.describe('through Kafka', () => {
      it.skipIf(!LONG)(WHAT, () => decidesLetters(MARIADB_KIND, KAFKA_KIND), 90_000);
    });
  });
});
