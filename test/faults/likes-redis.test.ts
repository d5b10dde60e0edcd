import { Cluster, Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { LIKE_SHARDS, type Subject, shardOf } from '../../src/model/like.ts';
import type { CountedLikes } from '../../src/social/likes/counted.ts';
import { leaveToLedger } from '../../src/social/likes/leave.ts';
import { LikeStore } from '../../src/social/likes/redis/store.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LikeWorld } from '../support/like-world.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type Exchange, type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis, startRedisCluster } from '../support/servers/redis.ts';

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

  describe('a like that has failed is not decided later, when its user was answered elsewhere', () => {
    let server: RedisServer;
    let proxy: FaultProxy;
    let likes: CountedLikes;
    let other: CountedLikes;

    beforeEach(async () => {
      server = await startRedis();
      proxy = await startProxy(server.port);
      world = new LikeWorld(server.url);
      world.ledger.add(POST);
      other = world.process();
      likes = world.process({ target: `redis://${proxy.host}:${proxy.port}`, commandMs: 300, retryMs: 300 });
      await other.start();
      await likes.set(POST, 'first', true);
    });
    afterEach(() => proxy.close());

    async function answersElsewhere(): Promise<void> {
      expect(await other.set(POST, 'anna', true)).toMatchObject({ changed: true });
      expect(await other.set(POST, 'anna', false)).toMatchObject({ changed: true });
    }

    async function expectNotDecided(): Promise<void> {
      expect(await world.look('anna', [POST], other)).toMatchObject([{ liked: false, count: 1 }]);
      await world.settleAll();
      expect(world.ledger.rows.get(POST)!.get('anna')).toMatchObject({ liked: false });
      expect(await world.look('anna', [POST], other)).toMatchObject([{ liked: false, count: 1, exact: true }]);
    }

    it('P8: the network to Redis hangs and goes on', async () => {
      proxy.freeze();
      await expect(likes.set(POST, 'anna', true)).rejects.toMatchObject({ code: 'unavailable' });
      await answersElsewhere();
      proxy.thaw();
      // On the same connection, behind the late one.
      expect(await likes.set(POST, 'first', true)).toMatchObject({ changed: false });
      await expectNotDecided();
    });

    it('P8: the connection ends, and Redis gets the call later all the same', async () => {
      const monitor = await monitorRedis(server.url);
      const held = proxy.holdRequest((request) => request.includes('anna'));
      const failing = expect(likes.set(POST, 'anna', true)).rejects.toMatchObject({ code: 'unavailable' });
      await held;
      await proxy.refuse(true);
      await failing;
      await answersElsewhere();
      const calls = () => monitor.commands.filter((command) => command.includes('anna')).length;
      const before = calls();
      proxy.passHeld();
      await until('Redis has got it', 5000, () => calls() > before);
      monitor.close();
      await expectNotDecided();
    });
  });

  it('P8: Redis is out when the ledger takes over: its shards are shut as soon as it is back', async () => {
    const server = await startRedis();
    await using proxy = await startProxy(server.port);
    world = new LikeWorld(server.url);
    world.ledger.add(POST);
    const likes = world.process();
    await likes.start();
    const runtime = systemRuntime();
    const target = `redis://${proxy.host}:${proxy.port}`;
    const store = new LikeStore({ target, prefix: world.prefix, commandMs: 100 }, runtime);
    const leave = (signal = new AbortController().signal) =>
      leaveToLedger({ runtime, store, ledger: world.ledger }, signal);
    try {
      await leave();
      expect(await likes.set(POST, 'anna', true), 'Redis decides: nothing is shut').toMatchObject({ changed: true });
      await world.settleAll();
      await proxy.refuse(true);
      proxy.cut();
      await world.ledger.setLikeMode('direct');
      const ending = new AbortController();
      const ended = leave(ending.signal);
      const leaving = leave();
      expect(await Promise.race([ended, leaving, sleep(250).then(() => 'waits')])).toBe('waits');
      ending.abort();
      await ended;
      await proxy.refuse(false);
      await leaving;
      await expect(likes.set(POST, 'bob', true)).rejects.toMatchObject({ code: 'unavailable' });
      expect(likes.reason).toContain('LIKES');
      expect(await world.entries()).toEqual([]);
    } finally {
      store.close();
    }
  });

  it('P8: what a process knows of Redis’ clock is renewed when it is wrong, old or of another server', async () => {
    const server = await startRedis();
    world = new LikeWorld(server.url);
    world.ledger.add(POST);
    let skewMs = 0;
    const runtime = systemRuntime();
    const clock = { now: () => runtime.clock.now(), monotonic: () => runtime.clock.monotonic() + skewMs };
    const likes = world.process({}, { runtime: { ...runtime, clock } });
    await likes.start();
    // The script and the subject are there.
    let likers = 0;
    await world.process().set(POST, `liker ${likers++}`, true);
    const monitor = await monitorRedis(server.url);
    /** How many calls a like takes. */
    const calls = async (): Promise<number> => {
      const user = `liker ${likers++}`;
      expect(await likes.set(POST, user, true)).toMatchObject({ changed: true, likes: { count: likers } });
      await world.eye.echo(`${user}.`);
      await until('all is seen', 5000, () => monitor.commands.some((command) => command.includes(`${user}.`)));
      return monitor.commands.filter((command) => command.includes(`"${user}"`)).length;
    };
    expect(await calls(), 'first the clock').toBe(2);
    expect(await calls()).toBe(1);
    // As if Redis' clock were set forward: the time of each call seems to be over.
    skewMs -= 5000;
    expect(await calls()).toBe(2);
    expect(await calls()).toBe(1);
    // Set back: it is noticed with the first answer.
    skewMs += 10_000;
    expect(await calls()).toBe(1);
    skewMs += 59_000;
    expect(await calls()).toBe(1);
    skewMs += 60_001;
    expect(await calls(), 'too long ago').toBe(2);
    const store = new LikeStore({ target: server.url, prefix: world.prefix }, runtime);
    await store.shut(shardOf(POST));
    store.close();
    expect(await calls(), 'shut; then in another epoch the clock, the subject, the like').toBe(4);
    monitor.close();
    await world.settleAll();
    expect(world.ledger.liked(POST)).toBe(likers);
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

  describe('in a cluster', () => {
    const subjects = Array.from({ length: 40 }, (_, at): Subject => `post:${at}`);
    let hosts: { host: string; port: number }[];
    let nodes: RedisServer[];

    beforeAll(async () => {
      ({ nodes } = await startRedisCluster({ args: ['--cluster-require-full-coverage', 'no'] }));
      hosts = nodes.map(({ host, port }) => ({ host, port }));
    });
    beforeEach(() => {
      world = new LikeWorld(
        `redis+cluster://${hosts.map(({ host, port }) => `${host}:${port}`).join(',')}`,
        new Cluster(hosts),
      );
      world.ledger.add(...subjects);
    });

    it('each shard is on its own node, and a page is read from all of them', async () => {
      expect(new Set(subjects.map(shardOf)).size).toBe(LIKE_SHARDS);
      const likes = world.process();
      await likes.start();
      await Promise.all(subjects.flatMap((subject) => users(3).map((user) => likes.set(subject, user, true))));
      expect((await world.look('user 1', subjects)).every(({ liked, count }) => liked && count === 3)).toBe(true);
      await world.settleAll();
      await likes.upkeep.round();
      expect((await world.look('user 1', subjects)).every(({ exact, count }) => exact && count === 3)).toBe(true);
      expect(subjects.map((subject) => world.ledger.liked(subject))).toEqual(subjects.map(() => 3));
    });

    it('P10: one node out: likes of the other shards go on, their pages are up to date, and so is their upkeep', async () => {
      const likes = world.process({ rules: { keepMs: 100, idleMs: 100, askedMsMax: 50 } });
      const other = world.process();
      await likes.start();
      await Promise.all(subjects.map((subject) => likes.set(subject, 'anna', true)));
      await world.look('anna', subjects, other);
      await world.settleAll();
      const [gone, ...rest] = nodes;
      await gone!.kill();
      const isDecided = (subject: Subject) =>
        likes.set(subject, 'bob', true).then(
          () => true,
          () => false,
        );
      const decided = await until('the others know of it', 20_000, async () => {
        const all = await Promise.all(subjects.map(isDecided));
        return all.includes(true) && all.includes(false) ? all : null;
      });
      const healthy = subjects.filter((_, at) => decided[at]);
      const out = subjects.find((_, at) => !decided[at])!;
      // Decided by another process, not stored yet, on one page with one that nobody answers for.
      const shown = await world.look('bob', [...healthy, out], other);
      expect(shown.pop()).toMatchObject({ liked: false, count: 1, exact: false });
      expect(shown.filter(({ liked, count }) => liked && count === 2)).toHaveLength(healthy.length);

      for (const shard of new Set(healthy.map(shardOf))) {
        await world.settleAll(shard);
      }
      const left = async (): Promise<number> => {
        let sum = 0;
        for (const { url } of rest) {
          const eye = new Redis(url);
          for (const key of await eye.keys(`${world.prefix}:*:counts`)) sum += await eye.hlen(key);
          eye.disconnect();
        }
        return sum;
      };
      expect(await left()).toBeGreaterThanOrEqual(healthy.length);
      await until('cold subjects have left', 20_000, async () => {
        await expect(likes.upkeep.round(), 'it says that a shard was out').rejects.toMatchObject({
          code: 'unavailable',
        });
        return (await left()) === 0;
      });
    }, 60_000);
  });
});
