import { Redis } from 'ioredis';
import pg from 'pg';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { sendLikers } from '../../src/crowd/likes/crowd.ts';
import { likeReportWords } from '../../src/crowd/likes/report.ts';
import { startWorker, type TestWorker } from '../support/distributed.ts';
import { until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { ADMIN_KEY, AUTH_SECRET, cleanUp } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { anyPostgres } from '../support/servers/postgres.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import { type SocialShop, startSocialShop } from '../support/social-shop.ts';

/** Posts, comments and likes of a shop of several processes: two that serve HTTP (in this process), and workers. */
const LIKERS = LONG ? 3000 : 150;

describeWithRedis('posts and likes, distributed', () => {
  describeWithPostgres('on PostgreSQL', () => {
    let shops: SocialShop[];
    let env: Record<string, string>;
    let worker: TestWorker;
    let server: RedisServer;
    let redis: Redis;

    beforeAll(async () => {
      server = await startRedis();
      const { url: database } = await anyPostgres();
      redis = new Redis(server.url);
      env = { REDIS_URL: server.url, DATABASE_URL: database };
      const start = () => startSocialShop({ redis: server.url, database, worker: false, migrate: true });
      shops = [await start(), await start()];
      worker = await startWorker(env);
    });
    afterAll(async () => {
      redis.disconnect();
      for (const shop of shops) await shop.close();
      await cleanUp();
      await cleanUpServers();
    });

    /** The statements about posts and likes, and the commands about these posts, that a call needs. */
    async function needed(postIds: readonly string[], run: () => Promise<unknown>) {
      const statements: string[] = [];
      const query = pg.Client.prototype.query as (...args: unknown[]) => unknown;
      const spy = vi.spyOn(pg.Client.prototype, 'query').mockImplementation(function (
        this: unknown,
        ...args: unknown[]
      ) {
        const text = typeof args[0] === 'string' ? args[0] : ((args[0] as { text?: string }).text ?? '');
        if (/\b(posts|post_likes|comments|comment_likes|like_shards)\b/.test(text)) statements.push(text);
        return query.apply(this, args);
      } as never);
      const monitor = await monitorRedis(server.url);
      try {
        await run();
        await redis.echo('that was all');
        await until('Redis has shown every command', 5000, () =>
          monitor.commands.some((command) => command.includes('that was all')),
        );
      } finally {
        spy.mockRestore();
        monitor.close();
      }
      const about = monitor.commands.filter((command) => postIds.some((id) => command.includes(`post:${id}`)));
      return { statements, commands: about };
    }

    it('P8: a page of posts with counts and the caller’s likes costs one statement and one call', async () => {
      const [shop] = shops as [SocialShop];
      const ids: string[] = [];
      for (let at = 0; at < 12; at++) ids.push((await shop.post('counted')).id);
      for (const id of ids.slice(0, 8)) await shop.like('bob', `/v1/posts/${id}`);
      // The worker tells Redis what it has stored: such commands are none of the page's.
      await until('all likes are stored', 10_000, async () => {
        const { data } = (await shop.call('GET', '/v1/posts?author=counted', { admin: true })).body;
        return data.every(({ likes }: { likes: { exact: boolean } }) => likes.exact);
      });
      let page: { data: { id: string; liked: boolean; likes: { count: number } }[] } | null = null;
      const read = async (buyer?: string) => {
        page = (await shop.call('GET', '/v1/posts?author=counted&limit=10', buyer ? { buyer } : {})).body;
      };
      const signedIn = await needed(ids, () => read('bob'));
      expect(page!.data.map(({ id, liked, likes }) => [id, liked, likes.count])).toEqual(
        ids
          .toReversed()
          .slice(0, 10)
          .map((id) => [id, ids.indexOf(id) < 8, ids.indexOf(id) < 8 ? 1 : 0]),
      );
      expect(signedIn.statements).toHaveLength(1);
      expect(signedIn.commands).toHaveLength(1);

      const anonymous = await needed(ids, async () => {
        await Promise.all(Array.from({ length: 20 }, () => read()));
      });
      expect(anonymous.statements).toHaveLength(1);
      expect(anonymous.commands).toHaveLength(1);
      expect(page!.data[0]).not.toHaveProperty('liked');
    });

    it('P8: a caller’s like is exact at once at every process, and a deleted post is gone within a second', async () => {
      const [one, other] = shops as [SocialShop, SocialShop];
      const { id } = await one.post('ann', { title: 'Secret' });
      const path = `/v1/posts/${id}`;
      expect((await one.like('bob', path)).body).toMatchObject({ liked: true, changed: true, likes: { count: 1 } });
      expect((await other.like('bob', path)).body).toMatchObject({ liked: true, changed: false, likes: { count: 1 } });
      expect((await other.call('GET', path, { buyer: 'bob' })).body).toMatchObject({
        liked: true,
        likes: { count: 1 },
      });
      await until('it is stored', 10_000, async () => (await one.call('GET', path, { admin: true })).body.likes.exact);
      expect(await one.all(`${path}/likes`)).toHaveLength(1);
      const { id: commentId } = await one.comment('ann', id);
      expect((await other.like('bob', `/v1/comments/${commentId}`)).body).toMatchObject({ changed: true });

      expect((await other.call('GET', '/v1/posts')).body.data[0].title).toBe('Secret');
      await one.call('DELETE', path, { buyer: 'ann' });
      const deletedMs = performance.now();
      expect((await other.like('cat', path)).status).toBe(404);
      await until('the other process has forgotten it', 1000, async () => {
        return (await other.call('GET', '/v1/posts')).body.data[0]?.title !== 'Secret';
      });
      expect(performance.now() - deletedMs).toBeLessThan(1000);
    });

    it('P8: likers at two processes, with a worker that is killed in between, agree with the rows when all is stored', async () => {
      const options = {
        urls: shops.map(({ url }) => new URL(url)),
        likers: LIKERS,
        posts: 3,
        attempts: 4,
        ratePerSecond: null,
        connections: 20,
        waitSeconds: 30,
        adminKey: ADMIN_KEY,
        authSecret: AUTH_SECRET,
        seed: Math.floor(Math.random() * 2 ** 31),
      };
      console.log(`likers: seed ${options.seed}`);
      let changes = () => 0;
      const progress = (inFlight: () => { changed: number }) => {
        changes = () => inFlight().changed;
      };
      const { signal } = new AbortController();
      const running = sendLikers(options, { interrupt: signal, begins: () => {}, progress }, systemRuntime());
      await until('some likes were made', 20_000, () => changes() > LIKERS / 2);
      await worker.kill();
      worker = await startWorker(env);
      const report = await running;
      expect(likeReportWords(report), likeReportWords(report)).toContain('verdict: every promise held');
      expect(report.verdict).toMatchObject({ held: true, unknown: 0 });
      expect(report.verdict!.changes).toBeGreaterThan(LIKERS);
    }, 60_000);

    it('P8: with LIKES=direct the database decides, and a process that disagrees says so', async () => {
      const { REDIS_URL: url, DATABASE_URL: database } = env;
      const direct = await startSocialShop({ redis: url!, database: database!, worker: false, likes: 'direct' });
      const { id } = await direct.post('ann');
      const set = await direct.like('bob', `/v1/posts/${id}`);
      expect(set.body).toMatchObject({ liked: true, changed: true, likes: { count: 1, exact: true } });
      expect(await direct.all(`/v1/posts/${id}/likes`)).toHaveLength(1);
      await direct.close();
      // Whoever starts last decides how: the database refuses the others.
      const counted = await startSocialShop({ redis: url!, database: database!, worker: false });
      expect((await counted.like('bob', `/v1/posts/${id}`)).body).toMatchObject({ liked: true, changed: false });
      await counted.close();
    });

    it('P8: once a process with LIKES=direct has started, one without a worker decides no like any more', async () => {
      const { REDIS_URL: url, DATABASE_URL: database } = env;
      const start = (likes: 'counted' | 'direct') =>
        startSocialShop({ redis: url!, database: database!, worker: false, likes });
      const counted = await start('counted');
      const { id } = await counted.post('ann');
      const path = `/v1/posts/${id}`;
      expect((await counted.like('zoe', path)).body).toMatchObject({ changed: true });
      await until('it is stored', 10_000, async () => (await counted.all(`${path}/likes`)).length === 1);
      const direct = await start('direct');
      expect(await counted.like('bob', path)).toMatchObject({ status: 503, body: { code: 'unavailable' } });
      for (const user of ['bob', 'cid']) {
        expect((await direct.like(user, path)).body).toMatchObject({ changed: true, likes: { exact: true } });
      }
      expect((await direct.call('DELETE', `${path}/like`, { buyer: 'zoe' })).body).toMatchObject({ changed: true });
      const shown = async (shop: SocialShop, buyer: string) => (await shop.call('GET', path, { buyer })).body;
      for (const [shop, exact] of [
        [direct, true],
        [counted, false],
      ] as const) {
        expect(await shown(shop, 'bob')).toMatchObject({ liked: true, likes: { count: 2, exact } });
        expect(await shown(shop, 'zoe')).toMatchObject({ liked: false, likes: { count: 2, exact } });
      }
      // The other way round: whoever shows rows does not call them exact while Redis decides.
      const again = await start('counted');
      expect((await again.like('dan', path)).body).toMatchObject({ changed: true, likes: { count: 3 } });
      await until('the direct one has noticed', 2000, async () => !(await shown(direct, 'bob')).likes.exact);
      expect(await direct.like('eve', path)).toMatchObject({ status: 503 });
      for (const shop of [counted, direct, again]) await shop.close();
    });
  });
});
