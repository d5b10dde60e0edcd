import { Cluster } from 'ioredis';
import { afterAll, afterEach, expect, it } from 'vitest';
import { LIKE_SHARDS, type Subject, shardOf } from '../../src/model/like.ts';
import { until } from '../support/fault-wait.ts';
import { LikeWorld } from '../support/like-world.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type Exchange, startProxy } from '../support/servers/proxy.ts';
import { startRedis, startRedisCluster } from '../support/servers/redis.ts';

const POST: Subject = 'post:1';
const users = (count: number, name = 'user') => Array.from({ length: count }, (_, at) => `${name} ${at}`);

describeWithRedis('likes in a Redis that fails', () => {
  let world: LikeWorld;

  afterEach(() => world.end());
  afterAll(cleanUpServers);

  it('P8: a call whose reply was lost is answered as the first time, also if the pair has changed since', async () => {
    const server = await startRedis();
    await using proxy = await startProxy(server.port);
    world = new LikeWorld(server.url);
    world.ledger.add(POST);
    const likes = world.process({ target: `redis://${proxy.host}:${proxy.port}`, retryMs: 5000 });
    const other = world.process();
    await likes.start();
    await likes.set(POST, 'first', true);

    // Decided, and then undone by the same user elsewhere, before the call is sent again.
    let undone: Promise<unknown> | null = null;
    let lost = 0;
    const decides = ({ request, reply }: Exchange) => request.includes('anna') && reply.toString().endsWith('c\r\n');
    proxy.dropReplies((exchange) => {
      if (!decides(exchange) || lost > 0) return false;
      lost++;
      undone = other.set(POST, 'anna', false);
      return true;
    });
    expect(await likes.set(POST, 'anna', true)).toMatchObject({ liked: true, changed: true });
    expect(lost).toBe(1);
    expect(await undone!).toMatchObject({ changed: true });
    await world.settleAll();
    expect(world.ledger.rows.get(POST)!.get('anna')).toMatchObject({ liked: false });

    // Every third reply is lost: each like still changes something once.
    let seen = 0;
    proxy.dropReplies(({ request }) => request.includes('crowd') && ++seen % 3 === 0);
    let changed = 0;
    for (const user of users(12, 'crowd')) {
      for (let times = 0; times < 2; times++) {
        const outcome = await likes.set(POST, user, true);
        if (outcome.outcome === 'ok' && outcome.changed) changed++;
      }
    }
    proxy.dropReplies(0);
    expect(changed).toBe(12);
    expect((await world.entries()).flatMap(({ events }) => events)).toHaveLength(12);
  });

  it('P8: a restart that kept its data raises the epoch, and what was decided before reaches the ledger', async () => {
    const server = await startRedis({ persistence: 'aof' });
    world = new LikeWorld(server.url);
    world.ledger.add(POST);
    const likes = world.process({}, { openWaitMs: 10_000 });
    await likes.start();
    await Promise.all(users(20).map((user) => likes.set(POST, user, true)));
    const before = world.ledger.epochs[shardOf(POST)]!;
    await server.kill();
    // A page shows what the ledger has, and says so; but who has just liked it here is not told otherwise.
    const elsewhere = world.process();
    expect(await world.look('user 1', [POST], elsewhere)).toMatchObject([{ liked: false, count: 0, exact: false }]);
    expect(await world.look('user 1', [POST])).toMatchObject([{ liked: true, count: 0, exact: false }]);
    await expect(likes.set(POST, 'anna', true)).rejects.toMatchObject({ code: 'unavailable' });
    await server.start();
    await until('likes are decided again', 10_000, () => likes.set(POST, 'anna', true).catch(() => null));
    expect(world.ledger.epochs[shardOf(POST)]!).toBeGreaterThan(before);
    await world.settleAll();
    expect(await world.look('user 1', [POST])).toMatchObject([{ liked: true, count: 21, exact: true }]);
    expect(world.ledger.liked(POST)).toBe(21);
  });

  it('P8: one that lost its data loses what was not stored, and counts right afterwards', async () => {
    const server = await startRedis();
    world = new LikeWorld(server.url);
    world.ledger.add(POST);
    const likes = world.process();
    await likes.start();
    await Promise.all(users(20).map((user) => likes.set(POST, user, true)));
    await world.settleAll();
    await Promise.all(users(5, 'late').map((user) => likes.set(POST, user, true)));
    await server.kill();
    await server.start();
    const changed = async (user: string) => {
      const outcome = await until('likes are decided again', 10_000, () =>
        likes.set(POST, user, true).catch(() => null),
      );
      return outcome.outcome === 'ok' && outcome.changed;
    };
    expect(await changed('late 1')).toBe(true);
    expect(await changed('user 1')).toBe(false);
    await world.settleAll();
    expect(await world.look('late 2', [POST])).toMatchObject([{ liked: false, count: 21, exact: true }]);
  });

  it('in a cluster each shard is on its own node, and a page is read from all of them', async () => {
    const { urls, nodes } = await startRedisCluster();
    const hosts = nodes.map(({ host, port }) => ({ host, port }));
    world = new LikeWorld(
      `redis+cluster://${urls.map((url) => url.slice('redis://'.length)).join(',')}`,
      new Cluster(hosts),
    );
    const subjects = Array.from({ length: 40 }, (_, at): Subject => `post:${at}`);
    expect(new Set(subjects.map(shardOf)).size).toBe(LIKE_SHARDS);
    world.ledger.add(...subjects);
    const likes = world.process();
    await likes.start();
    await Promise.all(subjects.flatMap((subject) => users(3).map((user) => likes.set(subject, user, true))));
    expect((await world.look('user 1', subjects)).every(({ liked, count }) => liked && count === 3)).toBe(true);
    await world.settleAll();
    await likes.upkeep.round();
    expect((await world.look('user 1', subjects)).every(({ exact, count }) => exact && count === 3)).toBe(true);
    expect(subjects.map((subject) => world.ledger.liked(subject))).toEqual(subjects.map(() => 3));
  });
});
