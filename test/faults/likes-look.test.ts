import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { type Subject, shardOf } from '../../src/model/like.ts';
import type { CountedLikes } from '../../src/social/likes/counted.ts';
import { LikeStore } from '../../src/social/likes/redis/store.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LikeWorld } from '../support/like-world.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

const POST: Subject = 'post:1';
const SHARD = shardOf(POST);

/** Stops this process, as SIGSTOP or a long turn of its event loop does. */
function stopFor(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

describeWithRedis('P8: a caller’s own like, whatever happens between the like and the look', () => {
  let server: RedisServer;
  let proxy: FaultProxy;
  let world: LikeWorld;
  let likes: CountedLikes;
  let other: CountedLikes;

  beforeAll(async () => {
    server = await startRedis();
  });
  beforeEach(async () => {
    proxy = await startProxy(server.port);
    world = new LikeWorld(server.url);
    world.ledger.add(POST);
    other = world.process();
    likes = world.process({ target: `redis://${proxy.host}:${proxy.port}` });
    await other.start();
    await likes.set(POST, 'first', true);
    await other.set(POST, 'second', true);
    await world.settleAll();
  });
  afterEach(async () => {
    await world.end();
    await proxy.close();
  });
  afterAll(cleanUpServers);

  /** Opens the shard anew, as any process does that finds it shut. */
  async function openAnew(): Promise<void> {
    const store = new LikeStore({ target: server.url, prefix: world.prefix }, systemRuntime());
    await store.shut(SHARD);
    store.close();
    await other.upkeep.round();
  }

  describe('Redis answers late', () => {
    it('the process that decided it shows it, and does not call the count exact', async () => {
      await likes.set(POST, 'anna', true);
      await likes.set(POST, 'second', false);
      proxy.freeze();
      const readers = ['anna', 'second', 'first', 'bob'];
      const shown = await Promise.all(readers.map((reader) => world.look(reader, [POST], likes)));
      expect(shown.flat().map(({ liked, exact }) => [liked, exact])).toEqual([
        [true, false],
        [false, false],
        // Of those that it has decided nothing for it shows what is stored.
        [true, false],
        [false, false],
      ]);
      expect(likes.asStored).toBe(4);
    });

    it('but not if another process has decided since, and the ledger has that', async () => {
      await likes.set(POST, 'anna', true);
      await likes.set(POST, 'bob', true);
      await sleep(2);
      await other.set(POST, 'anna', false);
      await world.settleAll();
      // Its own is the newer here: the row is that of another process, from before.
      await sleep(2);
      await likes.set(POST, 'bob', false);
      proxy.freeze();
      const shown = () => Promise.all(['anna', 'bob'].map((reader) => world.look(reader, [POST], likes)));
      expect((await shown()).flat()).toMatchObject([
        { liked: false, exact: false },
        { liked: false, exact: false },
      ]);
      // Nobody can tell: what it decided itself is the newest that it knows.
      const read = await Promise.all(['anna', 'bob'].map((reader) => world.read(reader, [POST], likes)));
      world.ledger.before = (call) => (call === 'likeRows' ? new Promise(() => undefined) : undefined);
      const late = await Promise.all(read.map(({ look }) => look()));
      expect(late.flat().map(({ liked }) => liked)).toEqual([true, false]);
    });

    it('an event that is given up is shown no more; what was decided since is', async () => {
      await likes.set(POST, 'anna', true);
      await likes.set(POST, 'bob', true);
      const events = (await world.entries()).flatMap((entry) => entry.events);
      for (const liked of [false, true]) await likes.set(POST, 'bob', liked);
      for (const event of events) await likes.giveUp(event);
      proxy.freeze();
      const shown = await Promise.all(['anna', 'bob'].map((reader) => world.look(reader, [POST], likes)));
      expect(shown.flat().map(({ liked }) => liked)).toEqual([false, true]);
    });

    it('what it decided before Redis lost it, or before the shard was opened anew, counts no more', async () => {
      await likes.set(POST, 'anna', true);
      await world.flush();
      expect(await world.look('anna', [POST], likes)).toMatchObject([{ liked: false, count: 2, exact: false }]);
      await other.upkeep.round();
      expect(await world.look('anna', [POST], likes)).toMatchObject([{ liked: false, exact: true }]);
      proxy.freeze();
      expect(await world.look('anna', [POST], likes)).toMatchObject([{ liked: false, exact: false }]);
    });

    it('a process that was stopped itself reads what has arrived meanwhile', async () => {
      await likes.set(POST, 'anna', true);
      // Longer than a page waits, and longer than a command may take.
      for (const [turns, ms] of [
        [0, 600],
        [1, 1200],
        [2, 600],
      ] as const) {
        const looking = world.look('anna', [POST], other);
        for (let at = 0; at < turns; at++) await new Promise(setImmediate);
        stopFor(ms);
        expect(await looking, `${ms} ms after ${turns} turns`).toMatchObject([{ liked: true, count: 3, exact: false }]);
      }
    });
  });

  describe('its shard is opened anew', () => {
    it('while likes are being stored, it is shown at every process, and no count as exact', async () => {
      await likes.set(POST, 'anna', true);
      const draining = Promise.withResolvers<void>();
      let isDraining = false;
      world.drained = async (shard) => {
        if (shard === SHARD) isDraining = true;
        await draining.promise;
        await world.settleAll(shard);
        return true;
      };
      const opened = openAnew();
      await until('it is being opened', 5000, () => isDraining);
      for (const each of [likes, other]) {
        expect(await world.look('anna', [POST], each)).toMatchObject([{ liked: true, count: 3, exact: false }]);
        expect(await world.look('bob', [POST], each)).toMatchObject([{ liked: false, count: 3, exact: false }]);
      }
      draining.resolve();
      await opened;
      expect(await world.look('anna', [POST], likes)).toMatchObject([{ liked: true, count: 3, exact: true }]);
    });

    it.each([false, true])('a page that was read before that is read again; liked since: %s', async (isLiked) => {
      await likes.set(POST, 'anna', true);
      const page = await world.read('anna', [POST], likes);
      await openAnew();
      if (isLiked) await other.set(POST, 'bob', true);
      expect(await page.look()).toMatchObject([{ liked: true, count: isLiked ? 4 : 3, exact: !isLiked }]);
      // From now on it costs nothing more.
      const before = { ...world.ledger.calls };
      const next = await world.read('anna', [POST], likes);
      expect(await next.look()).toMatchObject([{ liked: true }]);
      expect(world.ledger.calls).toEqual({
        ...before,
        likeRows: before.likeRows + 1,
        likeCounts: before.likeCounts + 1,
        rows: before.rows + 1,
      });
    });

    it('a page whose ledger does not answer again is not called exact', async () => {
      await other.set(POST, 'anna', true);
      const page = await world.read('anna', [POST], likes);
      await openAnew();
      world.ledger.before = (call) => (call === 'likeRows' ? new Promise(() => undefined) : undefined);
      expect(await page.look()).toMatchObject([{ exact: false }]);
    });

    it('by a process that was held up: what was decided in the epoch of another is not dropped', async () => {
      const held = Promise.withResolvers<boolean>();
      let isHeld = false;
      // Its lock was lost with Redis: nobody else waits for it.
      const slow = world.process(
        {},
        {
          lock: async () => ({ release: async () => undefined }),
          drained: async () => {
            isHeld = true;
            return await held.promise;
          },
        },
      );
      await world.flush();
      const opening = slow.set(POST, 'cid', true);
      await until('it has begun', 5000, () => isHeld);
      await other.upkeep.round();
      expect(await likes.set(POST, 'anna', true)).toMatchObject({ changed: true });
      held.resolve(true);
      expect(await opening).toMatchObject({ changed: true });
      expect(await world.look('anna', [POST], likes)).toMatchObject([{ liked: true }]);
      await world.settleAll();
      expect([...world.ledger.rows.get(POST)!.keys()]).toContain('anna');
      expect(await world.look('anna', [POST], slow)).toMatchObject([{ liked: true, count: 4, exact: true }]);
    });
  });

  it('it is settled, and its record deleted, while the page is being read: the page is read again', async () => {
    const rules = { askedMsMax: 100 };
    const late = world.process({ rules });
    await late.set(POST, 'anna', true);
    const page = await world.read('anna', [POST], late);
    await world.settleAll();
    await sleep(110);
    const store = new LikeStore({ target: server.url, prefix: world.prefix, rules: { keepMs: 0 } }, systemRuntime());
    await store.epochOf(SHARD);
    // Twice: what is young grows old first.
    for (let times = 0; times < 2; times++) while ((await store.turnOver(SHARD, 500)) === 'more');
    store.close();
    expect(await page.look()).toMatchObject([{ liked: true, count: 3, exact: true }]);
  });
});
