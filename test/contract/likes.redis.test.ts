import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { TerminalError, unavailable } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { LIKE_SHARDS, type LikeEvent, numberOf, type Subject, shardOf } from '../../src/model/like.ts';
import type { CountedLikes } from '../../src/social/likes/counted.ts';
import { DirectLikes } from '../../src/social/likes/direct.ts';
import { leaveToLedger } from '../../src/social/likes/leave.ts';
import type { LikeRules } from '../../src/social/likes/redis/rules.ts';
import { LikeStore } from '../../src/social/likes/redis/store.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { forgetSettled, LikeWorld } from '../support/like-world.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';

const POST: Subject = 'post:1';
const SHARD = shardOf(POST);

/** Another subject of the same shard. */
const sameShard = () =>
  Array.from({ length: 999 }, (_, at): Subject => `post:${at + 2}`).find((one) => shardOf(one) === SHARD)!;
/** The state of its filter, in the value of a subject (_subject.lua). */
const stateIn = (value: Buffer) => value.toString('latin1', 55, 55 + value[54]!);
const usersOf = (count: number, name = 'user') => Array.from({ length: count }, (_, at) => `${name} ${at}`);

describeWithAnyRedis('likes that are counted in Redis', () => {
  let target: string;
  let world: LikeWorld;
  let stores: LikeStore[];

  beforeAll(async () => {
    target = await redisUrl();
  });
  beforeEach(() => {
    world = new LikeWorld(target);
    world.ledger.add(POST);
    stores = [];
  });
  afterEach(async () => {
    for (const store of stores) store.close();
    await world.end();
  });
  afterAll(cleanUpServers);

  async function started(rules: Partial<LikeRules> = {}): Promise<CountedLikes> {
    const likes = world.process({ rules });
    await likes.start();
    return likes;
  }

  /** Deletes the records of settled pairs at once. */
  async function prune(): Promise<void> {
    await forgetSettled(await keeper({ keepMs: 0 }), SHARD);
  }

  async function keeper(rules: Partial<LikeRules>): Promise<LikeStore> {
    const store = new LikeStore({ target, prefix: world.prefix, rules }, systemRuntime());
    stores.push(store);
    await store.epochOf(SHARD);
    return store;
  }

  const all = (likes: CountedLikes, users: readonly string[], liked = true) =>
    Promise.all(users.map((user) => likes.set(POST, user, liked)));

  describe('deciding', () => {
    it('P8: of many likes of one pair, by two processes at once, one changes something; the code of the document counts two', async () => {
      // Step by step as in the document's table: both look, then both add and count.
      const [members, count] = [`${world.prefix}:likes_users`, `${world.prefix}:likes_count`];
      const looked = await Promise.all([world.eye.sismember(members, '888'), world.eye.sismember(members, '888')]);
      for (const isMember of looked) {
        if (isMember === 1) continue;
        await world.eye.sadd(members, '888');
        await world.eye.incr(count);
      }
      expect([await world.eye.scard(members), await world.eye.get(count)]).toEqual([1, '2']);

      const [one, other] = [await started(), world.process()];
      const outcomes = await Promise.all(
        Array.from({ length: 40 }, (_, at) => (at % 2 ? one : other).set(POST, '888', true)),
      );
      expect(outcomes.filter((outcome) => outcome.outcome === 'ok' && outcome.changed)).toHaveLength(1);
      await world.settleAll();
      expect(await world.look('888', [POST], other)).toMatchObject([{ liked: true, count: 1, exact: true }]);
      expect(world.ledger.liked(POST)).toBe(1);
    });

    it('P8: a count says whether it is exact and when what it is based on was committed', async () => {
      const likes = await started();
      expect(await likes.set(POST, 'anna', true)).toMatchObject({
        liked: true,
        changed: true,
        likes: { count: 1, exact: false },
      });
      await world.settleAll();
      const [shown] = await world.look('anna', [POST]);
      const committed = (await world.ledger.likeCounts([POST])).get(POST)!;
      expect(shown).toEqual({ liked: true, count: 1, exact: true, asOfMs: committed.atMs });
      expect(await likes.set(POST, 'anna', false)).toMatchObject({
        liked: false,
        changed: true,
        likes: { count: 0, exact: false },
      });
      expect(await world.look('anna', [POST])).toMatchObject([{ liked: false, count: 0, exact: false }]);
    });

    it('users who never liked a subject without rows cost no read of the ledger but the first', async () => {
      const likes = await started();
      await likes.set(POST, 'anna', true);
      await all(likes, usersOf(600));
      expect(world.ledger.calls).toMatchObject({ likeCounts: 1, rows: 1 });
    });

    it('a row that was read before another process liked and settled is not used: the record is still there', async () => {
      world.ledger.stored(POST, ['zoe']);
      const [one, other] = [await started(), world.process()];
      await other.set(POST, 'zoe', true);
      let go = (): void => undefined;
      world.ledger.after = () => new Promise((resolve) => (go = resolve));
      const slow = one.set(POST, 'anna', true);
      await until('the row was read', 2000, () => world.ledger.calls.likeRows > 1);
      world.ledger.after = () => undefined;
      expect(await other.set(POST, 'anna', true)).toMatchObject({ changed: true });
      await world.settleAll();
      go();
      expect(await slow).toMatchObject({ changed: false, likes: { count: 2, exact: true } });
    });

    it('a row that was read too long ago is read again', async () => {
      world.ledger.stored(POST, ['zoe']);
      const [one, other] = [await started({ askedMsMax: 200 }), world.process()];
      await other.set(POST, 'zoe', true);
      let go = (): void => undefined;
      world.ledger.after = () => new Promise((resolve) => (go = resolve));
      const slow = one.set(POST, 'anna', true);
      await until('the row was read', 2000, () => world.ledger.calls.likeRows > 1);
      world.ledger.after = () => undefined;
      await other.set(POST, 'anna', true);
      await world.settleAll();
      await sleep(210);
      await prune();
      const { rows } = world.ledger.calls;
      go();
      expect(await slow).toMatchObject({ changed: false, likes: { count: 2, exact: true } });
      expect(world.ledger.calls.rows).toBe(rows + 1);
    });

    it('P8: where those ages are wrong, `changed` may be; no count ever is', async () => {
      world.ledger.stored(POST, ['zoe']);
      const [one, other] = [await started(), world.process()];
      await other.set(POST, 'zoe', true);
      let go = (): void => undefined;
      world.ledger.after = () => new Promise((resolve) => (go = resolve));
      const slow = one.set(POST, 'anna', true);
      await until('the row was read', 2000, () => world.ledger.calls.likeRows > 1);
      world.ledger.after = () => undefined;
      await other.set(POST, 'anna', true);
      await world.settleAll();
      // Without the wait that protects the question under way.
      await prune();
      go();
      expect(await slow).toMatchObject({ changed: true, likes: { exact: false } });
      await world.settleAll();
      expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 2, exact: true }]);
      expect(world.ledger.liked(POST)).toBe(2);
    });

    it('a settled pair stays for the time of the rules, a row that was read, too: whoever clicks again makes nobody read', async () => {
      world.ledger.stored(POST, ['zoe']);
      const likes = await started({ keepMs: 150 });
      await likes.set(POST, 'zoe', true);
      const { rows } = world.ledger.calls;
      for (let times = 0; times < 3; times++)
        expect(await likes.set(POST, 'zoe', true)).toMatchObject({ changed: false });
      await likes.upkeep.round();
      await likes.set(POST, 'zoe', true);
      expect(world.ledger.calls.rows).toBe(rows);
      await sleep(160);
      await likes.upkeep.round();
      await likes.set(POST, 'zoe', true);
      expect(world.ledger.calls.rows).toBe(rows + 1);
    });

    it('a record stays for the time of the rules after its event was settled, in either generation', async () => {
      const likes = await started({ keepMs: 300 });
      const store = await keeper({ keepMs: 300 });
      await likes.set(POST, 'anna', true);
      await forgetSettled(await keeper({ keepMs: 0 }), SHARD);
      await likes.set(POST, 'b', true);
      await sleep(310);
      // Anna's is in the old generation now, the other in the young one.
      await world.settleAll();
      const settledMs = performance.now();
      const { rows } = world.ledger.calls;
      const isKnown = async (user: string) => {
        expect(await likes.set(POST, user, true)).toMatchObject({ changed: false });
        return world.ledger.calls.rows === rows;
      };
      await store.turnOver(SHARD, 500);
      for (const user of ['anna', 'b']) {
        const known = await isKnown(user);
        if (performance.now() - settledMs < 250) expect(known, user).toBe(true);
      }
    });

    it('P8: a like that is not settled survives its generation; a newer one of the pair is not replaced by it', async () => {
      const likes = await started();
      await likes.set(POST, 'zoe', true);
      await all(likes, usersOf(700));
      const [, stuck, ...others] = await world.entries();
      for (const entry of others) await world.settle(entry);
      const [again, taken] = [stuck!.events[3]!.user, stuck!.events[4]!.user];
      const store = await keeper({ keepMs: 0 });
      const { rows } = world.ledger.calls;
      for (let turns = 0; turns < 3; turns++) {
        for (let turned = 'more'; turned === 'more'; ) turned = await store.turnOver(SHARD, 50);
        if (turns === 0) await likes.set(POST, taken, false);
        expect(await likes.set(POST, again, true)).toMatchObject({ changed: false, likes: { exact: false } });
        expect(await likes.set(POST, taken, false)).toMatchObject({ changed: false });
      }
      expect(world.ledger.calls.rows).toBe(rows);
      await world.settleAll();
      expect(await world.look(taken, [POST])).toMatchObject([{ liked: false, count: 700, exact: true }]);
    });

    it('missing and deleted subjects are not found: at once when they are forgotten, and within a bound when not', async () => {
      const likes = await started({ checkMs: 30, checkMsMax: 150 });
      const elsewhere = world.process();
      expect(await likes.set('post:404', 'anna', true)).toEqual({ outcome: 'not_found' });
      await likes.set(POST, 'anna', true);
      world.ledger.delete(POST);
      await sleep(40);
      // The next one is asked to check, and is not kept waiting.
      expect(await likes.set(POST, 'b', true)).toMatchObject({ outcome: 'ok' });
      await until('it is noticed', 2000, async () => (await likes.set(POST, 'c', true)).outcome === 'not_found');

      world.ledger.add('post:2');
      await likes.set('post:2', 'anna', true);
      world.ledger.delete('post:2');
      await elsewhere.forget('post:2');
      expect(await likes.set('post:2', 'b', true)).toEqual({ outcome: 'not_found' });
      // What was decided before leaves no trace.
      await world.settleAll();
      const heads = await Promise.all(
        Array.from({ length: LIKE_SHARDS }, (_, shard) =>
          world.eye.hget(`${world.prefix}:{likes:${shard}}:head`, 'unsettled'),
        ),
      );
      expect(new Set(heads)).toEqual(new Set(['0']));
    });

    it('P10: a bound on what is unsettled, and on subjects, refuses and lets go again', async () => {
      const likes = await started({ unsettledMax: 10, subjectsMax: 1 });
      const outcomes = await Promise.allSettled(usersOf(11).map((user) => likes.set(POST, user, true)));
      expect(outcomes.map(({ status }) => status)).toEqual([...Array(10).fill('fulfilled'), 'rejected']);
      expect(outcomes[10]).toMatchObject({ reason: { code: 'overloaded' } });
      // Whoever has liked it already is told so.
      expect(await likes.set(POST, 'user 3', true)).toMatchObject({ changed: false });
      await world.settleAll();
      expect(await likes.set(POST, 'user 10', true)).toMatchObject({ changed: true });
      const same = sameShard();
      world.ledger.add(same);
      await expect(likes.set(same, 'anna', true)).rejects.toMatchObject({ code: 'overloaded' });
    });
  });

  describe('the filter', () => {
    // A bucket is split with more than 32 users a bucket on the average: buckets double at 64, 128, 256 and so on.
    it.each([32, 33, 64, 65, 256, 257, 1345])('forgets none of %i users', async (count) => {
      const likes = await started();
      const users = usersOf(count);
      for (let from = 0; from < count; from += 200) await all(likes, users.slice(from, from + 200));
      await world.settleAll();
      await prune();
      const { rows } = world.ledger.calls;
      const again: Awaited<ReturnType<typeof all>> = [];
      for (let from = 0; from < count; from += 500) again.push(...(await all(likes, users.slice(from, from + 500))));
      expect(again.filter((one) => one.outcome === 'ok' && one.changed)).toHaveLength(0);
      // Each of them was asked about, since the filter said `perhaps`.
      expect(world.ledger.calls.rows).toBe(rows + count);
      expect(again[0]).toMatchObject({ likes: { count, exact: true } });
    });

    it('has whoever was known first as a row, also in one of several buckets', async () => {
      world.ledger.stored(POST, usersOf(80, 'early'));
      const likes = await started();
      let go: (() => void) | null = null;
      world.ledger.before = (call) => {
        if (call === 'likeUsers' && go === null) return new Promise((resolve) => (go = resolve));
      };
      await likes.set(POST, 'anna', true);
      await all(likes, usersOf(100));
      await until('it is being filled', 2000, () => go !== null);
      const known = usersOf(5, 'known');
      await all(likes, known, false);
      await all(likes, known);
      go!();
      const value = () => world.eye.hgetBuffer(`${world.prefix}:{likes:${SHARD}}:2:counts`, POST);
      await until('it is filled', 5000, async () => stateIn((await value())!) === 'c');
      await world.settleAll();
      await prune();
      expect((await all(likes, known)).filter((one) => one.outcome === 'ok' && one.changed)).toHaveLength(0);
    });

    it('takes fewer than one stranger in a hundred for somebody who liked', async () => {
      const likes = await started();
      for (let from = 0; from < 1300; from += 200) await all(likes, usersOf(Math.min(200, 1300 - from), `${from}`));
      const { rows } = world.ledger.calls;
      for (let part = 0; part < 20; part++) await all(likes, usersOf(250, `stranger ${part}`), false);
      expect(world.ledger.calls.rows - rows).toBeLessThan(50);
    });

    it('is filled from the ledger in pages; whoever likes meanwhile is in it', async () => {
      const early = usersOf(2500, 'early');
      world.ledger.stored(POST, early);
      const likes = await started();
      let go: (() => void) | null = null;
      world.ledger.before = (call) => {
        if (call === 'likeUsers' && go === null) return new Promise((resolve) => (go = resolve));
      };
      await likes.set(POST, 'anna', true);
      // Enough questions make it worth the while.
      await all(likes, usersOf(16));
      await until('it is being filled', 2000, () => go !== null);
      await all(likes, usersOf(5, 'meanwhile'));
      go!();
      const value = () => world.eye.hgetBuffer(`${world.prefix}:{likes:${SHARD}}:2:counts`, POST);
      await until('it is filled', 5000, async () => stateIn((await value())!) === 'c');
      expect(world.ledger.calls.likeUsers).toBe(3);
      const { rows } = world.ledger.calls;
      await all(likes, usersOf(50, 'late'));
      expect(world.ledger.calls.rows - rows).toBeLessThan(3);
      await world.settleAll();
      await prune();
      const known = [...usersOf(16), ...usersOf(5, 'meanwhile'), ...early.slice(0, 100), ...early.slice(-100)];
      expect((await all(likes, known)).filter((one) => one.outcome === 'ok' && one.changed)).toHaveLength(0);
    });

    it('is given up without room for it: then every pair is read, and the answers are the same', async () => {
      const likes = await started({ filterUsersMax: 64 });
      await all(likes, usersOf(64));
      expect(world.ledger.calls.rows).toBe(64);
      await all(likes, usersOf(2, 'more'));
      await all(likes, usersOf(10, 'late'));
      expect(world.ledger.calls.rows).toBe(74);
      await world.settleAll();
      await prune();
      const again = await all(likes, [...usersOf(64), ...usersOf(2, 'more'), ...usersOf(10, 'late')]);
      expect(again.filter((one) => one.outcome === 'ok' && one.changed)).toHaveLength(0);
      expect(await world.eye.keys(`${world.prefix}:*:f:*`)).toEqual([]);
      expect(await world.eye.hget(`${world.prefix}:{likes:${SHARD}}:head`, 'users')).toBe('0');
    });

    it('leaves Redis with its subject when nobody likes it, and comes back right', async () => {
      const likes = await started({ keepMs: 20, idleMs: 60 });
      await all(likes, usersOf(100));
      await world.settleAll();
      await until('nothing is left of it', 5000, async () => {
        await likes.upkeep.round();
        const keys = await world.eye.keys(`${world.prefix}:{likes:${SHARD}}:*`);
        const records = keys.filter((key) => /:pairs:\d$/.test(key)).map((key) => world.eye.hlen(key));
        // What makes a table of a small hash is no record.
        const isEmpty = (await Promise.all(records)).every((length) => length === 1);
        return isEmpty && !keys.some((key) => /:(counts|ahead)$|:f:/.test(key));
      });
      expect(await world.look('user 1', [POST])).toMatchObject([{ liked: true, count: 100, exact: true }]);
      expect(await likes.set(POST, 'user 1', true)).toMatchObject({
        changed: false,
        likes: { count: 100, exact: true },
      });
      expect(await likes.set(POST, 'anna', true)).toMatchObject({ changed: true, likes: { count: 101, exact: false } });
    });

    it('P8: does not leave before the records of its pairs: a count that was read earlier would be taken for the newest', async () => {
      const likes = await started();
      await likes.set(POST, 'anna', true);
      const store = await keeper({ keepMs: 0 });
      const evict = async () => (await store.evict(SHARD, '0', 0)).evicted;
      expect(await evict()).toBe(0);
      // The record is in the old generation, and its event is told now.
      await store.turnOver(SHARD, 500);
      await world.settleAll();
      expect(await evict()).toBe(0);
      await prune();
      expect(await evict()).toBe(1);
    });

    it('comes back without a stampede: a cold subject is read once by all likes that find it missing', async () => {
      world.ledger.stored(POST, usersOf(10));
      const likes = await started();
      await all(likes, usersOf(100, 'crowd'));
      expect(world.ledger.calls.likeCounts).toBe(1);
    });
  });

  describe('epochs', () => {
    it('P8: Redis loses everything: numbers grow, what was settled stays, older events are dropped', async () => {
      const [one, other] = [await started(), world.process()];
      await all(one, ['anna', 'b']);
      await world.settleAll();
      await all(other, ['c']);
      const [lost] = await world.entries();
      await world.flush();
      expect(await world.look('c', [POST])).toMatchObject([{ liked: false, count: 2, exact: false }]);
      expect(await other.set(POST, 'anna', false)).toMatchObject({ changed: true, likes: { count: 1 } });
      const [entry] = await world.entries();
      expect(numberOf(entry!.events[0]!)).toBeGreaterThan(numberOf(lost!.events[0]!));
      // A worker had read it before the loss.
      await world.settle(lost!, one, true);
      expect(world.ledger.rows.get(POST)!.has('c')).toBe(false);
      await world.settleAll();
      expect(await world.look('c', [POST], other)).toMatchObject([{ liked: false, count: 1, exact: true }]);
      expect(await one.set(POST, 'c', true)).toMatchObject({ changed: true, likes: { count: 2 } });
    });

    it('a shard that is shut is drained, opened with a higher epoch, and what the old one left is deleted', async () => {
      const likes = await started();
      await all(likes, usersOf(70));
      const store = new LikeStore({ target, prefix: world.prefix }, systemRuntime());
      stores.push(store);
      const before = await store.shut(SHARD);
      expect(await likes.set(POST, 'anna', true)).toMatchObject({ changed: true, likes: { count: 71 } });
      expect(world.ledger.liked(POST)).toBe(70);
      expect(await store.epochOf(SHARD)).toBe(before + 1);
      await likes.upkeep.round();
      await likes.upkeep.round();
      const left = await world.eye.keys(`${world.prefix}:{likes:${SHARD}}:${before}:*`);
      expect(left.filter((key) => !/:a:|:stream$/.test(key))).toEqual([]);
    });

    it('one that takes long to be drained does not hold up the upkeep of the others', async () => {
      const likes = world.process({}, { openWaitMs: 50 });
      await likes.start();
      await likes.set(POST, 'anna', true);
      const drained = Promise.withResolvers<boolean>();
      world.drained = () => drained.promise;
      const store = await keeper({});
      await store.shut(SHARD);
      for (let times = 0; times < 2; times++) await likes.upkeep.round();
      expect(await store.epochOf(SHARD)).toBe(0);
      await world.settleAll();
      drained.resolve(true);
      await until('it is open', 5000, async () => (await store.epochOf(SHARD)) > 0);
      expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 1, exact: true }]);
    });

    it('an epoch that was raised in the ledger stops the one in Redis with the first batch that is settled', async () => {
      const likes = await started();
      await likes.set(POST, 'anna', true);
      await world.ledger.raiseLikeEpoch(SHARD, world.ledger.epochs[SHARD]!, 0);
      await world.settleAll();
      expect(world.ledger.liked(POST)).toBe(0);
      // Its like was dropped: now it is not liked.
      expect(await likes.set(POST, 'anna', true)).toMatchObject({ changed: true });
      await world.settleAll();
      expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 1, exact: true }]);
    });

    it('nobody decides in Redis any more once the ledger does', async () => {
      const likes = await started();
      await likes.set(POST, 'anna', true);
      await world.settleAll();
      await likes.set(POST, 'b', true);
      await world.ledger.setLikeMode('direct');
      await world.settleAll();
      await expect(likes.set(POST, 'c', true)).rejects.toMatchObject({ code: 'unavailable' });
      expect(likes.reason).toContain('LIKES');
      const direct = new DirectLikes(world.ledger, systemRuntime().clock);
      expect(await direct.set(POST, 'b', true)).toMatchObject({ changed: true, likes: { count: 2, exact: true } });
      const page = [{ subject: POST, liked: true, count: 2, asOfMs: 5 }];
      expect(await direct.look('b', page)).toEqual([{ liked: true, count: 2, exact: true, asOfMs: 5 }]);
      expect(await direct.set('post:404', 'b', true)).toEqual({ outcome: 'not_found' });
    });

    /** As a process does at its start that lets the ledger decide. */
    async function leave(): Promise<void> {
      await world.ledger.setLikeMode('direct');
      const [runtime, store] = [systemRuntime(), await keeper({})];
      await leaveToLedger({ runtime, store, ledger: world.ledger }, new AbortController().signal);
    }

    it('P8: a process that stores nothing itself is barred when the ledger decides, and shows what the ledger has', async () => {
      const [one, other] = [await started(), world.process()];
      await all(other, ['anna', 'b']);
      await world.settleAll();
      await other.set(POST, 'c', true);
      await leave();
      const direct = new DirectLikes(world.ledger, systemRuntime().clock);
      expect(await direct.set(POST, 'anna', false)).toMatchObject({ changed: true, likes: { count: 1 } });
      for (let times = 0; times < 2; times++) {
        // First it knows of nothing, then it is barred.
        expect(await world.look('anna', [POST], other)).toMatchObject([{ liked: false, count: 1, exact: false }]);
        expect(await world.look('c', [POST], other)).toMatchObject([{ liked: false, count: 1, exact: false }]);
        await expect(other.set(POST, 'd', true)).rejects.toMatchObject({ code: 'unavailable' });
        expect(other.reason).toContain('LIKES');
      }
      const before = [...world.ledger.epochs];
      await one.upkeep.round().catch(() => undefined);
      expect(one.reason, 'the upkeep looks at the mode, too').toContain('LIKES');
      expect(world.ledger.epochs).toEqual(before);
      await world.settleAll();
      expect(world.ledger.liked(POST)).toBe(1);
    });

    it('P8: an opener that was held up while the ledger took over opens nothing', async () => {
      const likes = await started();
      await world.flush();
      const held = Promise.withResolvers<void>();
      let isHeld = false;
      world.ledger.after = async (call) => {
        if (call !== 'raiseLikeEpoch') return;
        isHeld = true;
        await held.promise;
      };
      const failing = expect(likes.set(POST, 'anna', true)).rejects.toMatchObject({ code: 'unavailable' });
      await until('it has raised the epoch', 5000, () => isHeld);
      await leave();
      held.resolve();
      await failing;
      expect(likes.reason).toContain('LIKES');
      expect(await (await keeper({})).epochOf(SHARD)).toBe(0);
      expect(await world.entries(SHARD)).toEqual([]);
    });

    it('P8: a page of the ledger is not called exact once Redis decides', async () => {
      const clock = { ms: 0, now: () => 0, monotonic: () => clock.ms };
      const direct = new DirectLikes(world.ledger, clock);
      const isExact = async () =>
        (await direct.look('b', [{ subject: POST, liked: true, count: 2, asOfMs: 5 }]))[0]!.exact;
      expect(await isExact()).toBe(true);
      await started();
      clock.ms = 499;
      expect(await isExact(), 'it was so half a second ago').toBe(true);
      clock.ms = 500;
      expect(await isExact()).toBe(false);
      await world.ledger.setLikeMode('direct');
      expect(await isExact()).toBe(true);
      clock.ms = 1000;
      world.ledger.before = () => Promise.reject(unavailable('out'));
      expect(await isExact(), 'nobody can tell').toBe(false);
    });
  });

  describe('settling', () => {
    it('an event that the ledger cannot take is alone at the end, and all others are stored', async () => {
      const likes = await started();
      await all(likes, usersOf(9));
      const [entry] = await world.entries();
      world.ledger.fault = (events) =>
        events.some(({ user }) => user === 'user 5') ? new TerminalError('data', 'too long') : null;
      const { undeliverable, told } = await likes.settle(entry!.events);
      await told;
      expect(undeliverable.map(({ message }) => message.user)).toEqual(['user 5']);
      expect(world.ledger.liked(POST)).toBe(8);
      expect(await world.look('user 5', [POST])).toMatchObject([{ liked: true, count: 9, exact: false }]);
    });

    describe('an event that is given up', () => {
      /** Takes what was decided out of the streams, as the pipe does with what the ledger cannot take. */
      async function takeOut(): Promise<LikeEvent[]> {
        const entries = await world.entries();
        for (const { stream, id } of entries) await world.eye.xdel(stream, id);
        return entries.flatMap(({ events }) => events);
      }

      const unsettled = () => world.eye.hget(`${world.prefix}:{likes:${SHARD}}:head`, 'unsettled');

      it.each([true, false])('P8: the pair and the count are the ledger’s at once; it liked: %s', async (isLike) => {
        world.ledger.stored(POST, ['zoe', 'anna']);
        const [likes, other] = [await started(), world.process()];
        const user = isLike ? 'bob' : 'anna';
        await likes.set(POST, user, isLike);
        await other.set(POST, 'cid', true);
        const [event, cids] = await takeOut();
        expect(await world.look(user, [POST], other)).toMatchObject([{ liked: isLike, exact: false }]);
        for (let times = 0; times < 2; times++) {
          await likes.giveUp(event!);
          // Of others it changes nothing.
          expect(await world.look(user, [POST], other)).toMatchObject([{ liked: !isLike, count: 3, exact: false }]);
        }
        await (await likes.settle([cids!])).told;
        expect(await world.look(user, [POST], other)).toMatchObject([{ liked: !isLike, count: 3, exact: true }]);
        expect(await unsettled()).toBe('0');
        // It is decided anew, and counts.
        expect(await other.set(POST, user, isLike)).toMatchObject({ changed: true });
        await world.settleAll();
        expect(await world.look(user, [POST])).toMatchObject([{ liked: isLike, count: isLike ? 4 : 2, exact: true }]);
        await prune();
        expect(await other.set(POST, user, isLike)).toMatchObject({ changed: false, likes: { exact: true } });
      });

      it('P8: a pair that was decided again since is settled by its newer event', async () => {
        const likes = await started();
        await likes.set(POST, 'anna', true);
        const [first] = await takeOut();
        await likes.set(POST, 'anna', false);
        await likes.set(POST, 'anna', true);
        await likes.giveUp(first!);
        // The count is not exact before the newer events are stored: they were decided on the one that is gone.
        expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, exact: false }]);
        await world.settleAll();
        expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 1, exact: true }]);
        // Late, and after its end: it is over.
        await likes.giveUp(first!);
        expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 1, exact: true }]);
        expect(await unsettled()).toBe('0');
      });

      it('P8: an older event of the pair that comes through afterwards counts, once', async () => {
        const likes = await started();
        await likes.set(POST, 'anna', true);
        await likes.set(POST, 'anna', false);
        const [first, second] = await takeOut();
        await likes.giveUp(second!);
        // The first is still on its way.
        expect(await world.look('anna', [POST])).toMatchObject([{ liked: false, count: 1, exact: false }]);
        for (let times = 0; times < 2; times++) await (await likes.settle([first!])).told;
        expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 1, exact: true }]);
        expect(await likes.set(POST, 'anna', true)).toMatchObject({ changed: false });
        await prune();
        expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 1, exact: true }]);
      });

      it('P8: what was decided before it is waited for, unless there is nothing, or its epoch is over', async () => {
        const likes = await started();
        await likes.set(POST, 'anna', true);
        await likes.set(POST, 'anna', false);
        const [first, second] = (await world.entries()).flatMap(({ events }) => events);
        world.drained = async () => false;
        await likes.olderArrived(first!);
        await expect(likes.olderArrived(second!)).rejects.toMatchObject({ code: 'unavailable' });
        world.drained = (shard) => world.settleAll(shard).then(() => true);
        await likes.olderArrived(second!);
        expect(world.ledger.rows.get(POST)!.get('anna')).toMatchObject({ liked: false });
        world.drained = async () => false;
        await likes.olderArrived(second!);
        await likes.olderArrived({ ...second!, epoch: second!.epoch - 1, n: 99 });
      });

      it('of an epoch that is over, or about nobody, changes nothing', async () => {
        const likes = await started();
        await likes.set(POST, 'anna', true);
        const [event] = await takeOut();
        await world.flush();
        await likes.upkeep.round();
        await likes.set(POST, 'anna', true);
        await likes.giveUp(event!);
        expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 1, exact: false }]);
        await likes.giveUp({ ...event!, epoch: world.ledger.epochs[SHARD]!, user: 'nobody' });
        await likes.giveUp({ ...event!, epoch: world.ledger.epochs[SHARD]!, subject: 'post:99999999999999999999' });
        await world.settleAll();
        expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 1, exact: true }]);
      });

      it('one that nobody can read: its shard is opened anew, but not while others are on their way', async () => {
        const likes = await started();
        await all(likes, ['anna', 'b']);
        const [annas] = await takeOut();
        await likes.set(POST, 'c', true);
        world.drained = async () => false;
        await expect(likes.reopen(SHARD, annas!.epoch)).rejects.toMatchObject({ code: 'unavailable' });
        expect(await likes.set(POST, 'd', true)).toMatchObject({ changed: true, likes: { count: 4 } });
        world.drained = (shard) => world.settleAll(shard).then(() => true);
        await likes.reopen(SHARD, annas!.epoch);
        expect(await world.look('anna', [POST])).toMatchObject([{ liked: false, count: 2, exact: true }]);
        // Again: its epoch is over.
        const epoch = world.ledger.epochs[SHARD];
        await likes.reopen(SHARD, annas!.epoch);
        expect(world.ledger.epochs[SHARD]).toBe(epoch);
      });
    });

    it('a ledger that is out keeps the batch in the pipe; so does one that can store nothing at all', async () => {
      let out: Error | null = null;
      const likes = world.process({}, { probe: () => (out ? Promise.reject(out) : Promise.resolve()) });
      await likes.start();
      await all(likes, usersOf(3));
      const [entry] = await world.entries();
      world.ledger.fault = () => unavailable('the ledger is out');
      await expect(likes.settle(entry!.events)).rejects.toMatchObject({ code: 'unavailable' });
      world.ledger.fault = () => new TerminalError('data', 'no such table');
      out = new Error('no such table');
      await expect(likes.settle(entry!.events)).rejects.toMatchObject({ code: 'unavailable' });
      expect(await world.look('user 1', [POST])).toMatchObject([{ liked: true, count: 3, exact: false }]);
    });

    it('P8: an event that is delivered again after its record has gone counts no second time', async () => {
      world.ledger.stored(POST, ['anna']);
      const likes = await started();
      await likes.set(POST, 'anna', false);
      const [unliked] = await world.entries();
      await likes.set(POST, 'anna', true);
      await world.settleAll();
      await prune();
      // The row is read, and kept as a record.
      expect(await likes.set(POST, 'anna', true)).toMatchObject({ changed: false });
      await world.settle(unliked!);
      expect(await world.look('anna', [POST])).toMatchObject([{ liked: true, count: 1, exact: true }]);
    });

    it('of counts that overtake each other the newest stays, and an epoch above ours shuts the shard', async () => {
      const likes = await started();
      await likes.set(POST, 'anna', true);
      const store = new LikeStore({ target, prefix: world.prefix }, systemRuntime());
      stores.push(store);
      const epoch = await store.epochOf(SHARD);
      await store.settle(SHARD, epoch, epoch, [], new Map([[POST, { count: 40, rev: 9, atMs: 9 }]]));
      await store.settle(SHARD, epoch, epoch, [], new Map([[POST, { count: 30, rev: 8, atMs: 8 }]]));
      expect(await world.look('anna', [POST])).toMatchObject([{ count: 41, exact: false, asOfMs: 9 }]);
      await store.settle(SHARD, epoch, epoch + 1, [], new Map());
      expect(await store.epochOf(SHARD)).toBe(0);
    });

    it('a batch that is larger than one call never looks settled with an old count', async () => {
      const likes = await started();
      const other = sameShard();
      world.ledger.add(other);
      await all(likes, usersOf(10));
      for (let part = 0; part < 3; part++) {
        await Promise.all(usersOf(250, `${part}`).map((user) => likes.set(other, user, true)));
      }
      const events = (await world.entries()).flatMap((entry) => entry.events);
      expect(events).toHaveLength(760);
      const { told } = await likes.settle(events);
      let ended = false;
      void told.then(() => (ended = true));
      while (!ended) {
        const [first, second] = await world.look(null, [POST, other]);
        if (first!.exact) expect(first!.count).toBe(10);
        if (second!.exact) expect(second!.count).toBe(750);
      }
      expect(await world.look(null, [POST, other])).toMatchObject([
        { count: 10, exact: true },
        { count: 750, exact: true },
      ]);
    });
  });

  it('a page of any shards, and all pages of one turn, are one call of Redis', async () => {
    const likes = await started();
    const subjects = Array.from({ length: 50 }, (_, at): Subject => `comment:${at}`);
    world.ledger.add(...subjects);
    await Promise.all(subjects.map((subject) => likes.set(subject, 'anna', true)));
    const page = subjects.map((subject) => ({ subject, liked: false, count: 0, asOfMs: 0 }));
    const calls = async () => Number(/cmdstat_evalsha:calls=(\d+)/.exec(await world.eye.info('commandstats'))![1]);
    const before = await calls();
    const mark = likes.mark();
    const [mine, others] = await Promise.all([likes.look('anna', page, mark), likes.look('b', page, mark)]);
    expect(await calls()).toBe(before + 1);
    expect(mine.every(({ liked, count }) => liked && count === 1)).toBe(true);
    expect(others.every(({ liked, count }) => !liked && count === 1)).toBe(true);
  });
});
