import { afterAll, describe, expect, it } from 'vitest';
import {
  AbortedError,
  createLocks,
  HeldError,
  type Locks,
  type LocksOptions,
  LostError,
  NotOwnerError,
  TimeoutError,
  UnavailableError,
} from '../../src/locks/index.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { type LockName, lockOf } from '../support/locks-names.ts';
import { asksScript, leftovers, leftoversButGone } from '../support/locks-probe.ts';
import { ending } from '../support/locks-timing.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { freePort } from '../support/servers/process.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** Redis that cannot be reached, and replies that are lost: a call ends in bounded time and leaves nothing behind. */
const KINDS: LockName[] = ['mutex m', 'fair f', 'read r', 'write w', 'semaphore:1 s'];
const OUTAGE_MS = 900;
const COMMAND_MS = 300;
/** What a call may take while nothing answers: its patience, the last command, and room for a busy machine. */
const BOUND_MS = OUTAGE_MS + COMMAND_MS + 800;

function impatient(url: string, options: LocksOptions = {}): Locks {
  return createLocks({ redis: url, outageMs: OUTAGE_MS, commandMs: COMMAND_MS, ...options });
}

function each<T, R>(all: readonly T[], visit: (one: T, index: number) => Promise<R>): Promise<R[]> {
  return Promise.all(all.map(visit));
}

async function expectUnavailable(locks: Locks): Promise<void> {
  const calls = KINDS.flatMap((lock) => [
    ending(lockOf(locks, lock).tryAcquire()),
    ending(lockOf(locks, lock).acquire()),
    ending(lockOf(locks, lock).acquire({ wait: 20_000 })),
  ]);
  for (const end of await Promise.all(calls)) {
    expect(end.error).toBeInstanceOf(UnavailableError);
    expect(end.ms).toBeLessThan(BOUND_MS);
  }
}

/** Nothing is held or queued, soon and for good. */
async function expectFree(redis: RedisServer): Promise<void> {
  await until('nothing is left', 2500, async () => (await leftoversButGone(redis.port)).length === 0);
  await sleep(300);
  expect(await leftoversButGone(redis.port)).toEqual([]);
}

/** A client whose replies can be lost, and one beside it that sees everything. Scripts are known to the server. */
async function throughProxy(
  options: LocksOptions = {},
): Promise<{ redis: RedisServer; proxy: FaultProxy; locks: Locks; other: Locks } & AsyncDisposable> {
  const redis = await startRedis();
  const proxy = await startProxy(redis.port);
  const locks = createLocks({ redis: `redis://127.0.0.1:${proxy.port}`, ...options });
  const other = createLocks({ redis: redis.url });
  for (const lock of KINDS) await (await lockOf(locks, lock).acquire()).release();
  const close = async (): Promise<void> => {
    await Promise.all([locks.close(), other.close()]);
  };
  return { redis, proxy, locks, other, [Symbol.asyncDispose]: close };
}

function loseReplies(proxy: FaultProxy, count: number, word: string): void {
  let left = count;
  proxy.dropReplies(({ request }) => asksScript(request, word) && left-- > 0);
}

describeWithRedis('locks: outage', () => {
  afterAll(cleanUpServers);

  describe.concurrent('side by side', () => {
    it('nobody listens: UnavailableError in bounded time, by default after about 5 s', async () => {
      const url = `redis://127.0.0.1:${await freePort()}`;
      await using locks = impatient(url);
      await using standard = createLocks({ redis: url });
      const late = ending(standard.mutex('m').acquire());
      await expectUnavailable(locks);
      expect((await late).error).toBeInstanceOf(UnavailableError);
      expect((await late).ms).toBeLessThan(6800);
    });

    it('a wait that ends while nobody answers says unavailable, not timeout: killed and stopped', async () => {
      const redis = await startRedis();
      await using locks = createLocks({ redis: redis.url });
      await (await locks.mutex('m').acquire()).release();
      await redis.pause();
      for (const lock of KINDS) {
        const end = await ending(lockOf(locks, lock).acquire({ wait: 250 }));
        expect([lock, end.failed]).toEqual([lock, 'lock_unavailable']);
      }
      await redis.resume();
      await redis.kill();
      const calls = KINDS.map((lock) => ending(lockOf(locks, lock).acquire({ wait: 400 })));
      for (const end of await Promise.all(calls)) expect(end.failed).toBe('lock_unavailable');
      expect((await ending(locks.latch('l').wait({ wait: 400 }))).failed).toBe('lock_unavailable');
      await redis.restart();
      await until('it answers', 5000, () =>
        locks
          .mutex('m')
          .tryAcquire()
          .then(
            (grant) => grant !== null,
            () => false,
          ),
      );
      // Held, and known to be: that is a timeout.
      expect((await ending(locks.mutex('m').acquire({ wait: 250 }))).failed).toBe('lock_timeout');
    });

    it('many calls that wait for a connection do not pile up listeners', async () => {
      const warnings: string[] = [];
      const note = ({ name, message }: Error): number => warnings.push(`${name}: ${message}`);
      process.on('warning', note);
      await using locks = impatient(`redis://127.0.0.1:${await freePort()}`, { outageMs: 300 });
      await each(Array.from({ length: 50 }), (_, i) => ending(locks.mutex(`m${i}`).tryAcquire()));
      await sleep(20);
      process.off('warning', note);
      expect(warnings.filter((text) => text.startsWith('MaxListeners'))).toEqual([]);
    });

    it('killed: UnavailableError in bounded time, all is well when it is back', async () => {
      const redis = await startRedis();
      await using locks = impatient(redis.url);
      await using other = createLocks({ redis: redis.url });
      const grant = await locks.mutex('before').acquire();
      await redis.kill();
      await expectUnavailable(locks);
      const released = await ending(grant.release());
      expect(['lock_unavailable', 'lock_lost']).toContain(released.failed);
      expect(released.ms).toBeLessThan(BOUND_MS);
      // While it is away, a patient call waits for it.
      const patient = other.mutex('m').acquire();
      await redis.restart();
      const back = await ending(patient);
      expect(back.failed).toBeNull();
      expect(back.ms).toBeLessThan(2500);
      await back.value!.release();
      await each(KINDS, async (lock) => (await lockOf(locks, lock).acquire({ wait: 3000 })).release());
      await expectFree(redis);
    });

    it('killed while a call stands in the queue: UnavailableError in bounded time, too', async () => {
      const redis = await startRedis();
      await using locks = impatient(redis.url);
      await using other = createLocks({ redis: redis.url });
      await other.mutex('m').acquire();
      const call = ending(locks.mutex('m').acquire({ wait: 20_000 }));
      await until('it waits', 5000, async () => (await other.inspect('mutex', 'm')).waiting === 1);
      await redis.kill();
      const killedMs = performance.now();
      expect((await call).error).toBeInstanceOf(UnavailableError);
      expect(performance.now() - killedMs).toBeLessThan(BOUND_MS);
    });

    it('stopped: UnavailableError in bounded time, and late copies of the commands take nothing for nobody', async () => {
      const redis = await startRedis();
      await using locks = impatient(redis.url);
      await using other = createLocks({ redis: redis.url });
      await locks.mutex('warm').run(() => undefined);
      await redis.pause();
      await expectUnavailable(locks);
      await redis.resume();
      await expectFree(redis);
      await each(KINDS, async (lock) => expect(await lockOf(other, lock).tryAcquire(), lock).not.toBeNull());
    });

    it('stopped for longer than the lease that was asked for: free at the latest a lease after it goes on', async () => {
      const redis = await startRedis();
      await using locks = impatient(redis.url);
      await using other = createLocks({ redis: redis.url });
      for (const lock of KINDS) await (await lockOf(locks, lock).acquire()).release();
      await redis.pause();
      const calls = KINDS.flatMap((lock) => [
        ending(lockOf(locks, lock).tryAcquire({ lease: 500 })),
        ending(lockOf(locks, lock).acquire({ lease: 500, wait: 10_000 })),
      ]);
      for (const { error } of await Promise.all(calls)) expect(error).toBeInstanceOf(UnavailableError);
      await sleep(1500);
      await redis.resume();
      await each(KINDS, async (lock) => {
        const { failed, ms } = await ending(lockOf(other, lock).acquire({ wait: 5000 }));
        expect(failed, lock).toBeNull();
        expect(ms, lock).toBeLessThan(500 + 1000);
      });
    });

    it('a stopped Redis does not keep abort, the end of a wait or close() waiting', async () => {
      const redis = await startRedis();
      const locks = createLocks({ redis: redis.url });
      await locks.mutex('warm').run(() => undefined);
      await redis.pause();
      const control = new AbortController();
      const aborted = ending(locks.mutex('m').acquire({ signal: control.signal }));
      const timeout = ending(locks.mutex('m').acquire({ wait: 400 }));
      const open = ending(locks.mutex('m').acquire());
      setTimeout(() => control.abort(), 200);
      expect((await aborted).error).toBeInstanceOf(AbortedError);
      expect((await aborted).ms).toBeLessThan(600);
      expect((await timeout).error).toBeInstanceOf(UnavailableError);
      expect((await timeout).ms).toBeLessThan(900);
      const closed = await ending(locks.close());
      expect((await open).error).toBeInstanceOf(AbortedError);
      expect(closed.failed).toBeNull();
      expect(closed.ms).toBeLessThan(2500);
      await redis.resume();
      await sleep(100);
      await using other = createLocks({ redis: redis.url });
      expect((await other.inspect('mutex', 'm')).waiting).toBe(0);
    });

    it.each(KINDS)(
      'the reply to acquire of %s is lost: the call has its grant, and there is one holder',
      async (lock) => {
        await using world = await throughProxy();
        const { proxy, locks, other, redis } = world;
        for (const call of ['tryAcquire', 'acquire'] as const) {
          const dropped = proxy.counters().repliesDropped;
          loseReplies(proxy, 2, '');
          const grant = await lockOf(locks, lock)[call]();
          expect(proxy.counters().repliesDropped - dropped).toBe(2);
          proxy.dropReplies(0);
          const [state, ...more] = await other.list();
          expect(more).toEqual([]);
          expect(state!.holders).toMatchObject([{ token: grant!.token }]);
          grant!.assertHeld();
          await grant!.release();
          expect(await leftoversButGone(redis.port)).toEqual([]);
        }
      },
    );

    it('the reply to a request that was queued is lost: it stands in the queue once, and is served', async () => {
      await using world = await throughProxy();
      const { proxy, locks, other, redis } = world;
      const holders = await Promise.all(
        KINDS.map((lock) => lockOf(other, lock.replace('read', 'write') as LockName).acquire()),
      );
      loseReplies(proxy, 6, '');
      const calls = KINDS.map((lock) => lockOf(locks, lock).acquire());
      await until('replies were lost', 5000, () => proxy.counters().repliesDropped >= 2);
      await until('all wait', 5000, async () => (await other.list()).every((state) => state.waiting === 1));
      await each(holders, (grant) => grant.release());
      const grants = await Promise.all(calls);
      for (const state of await other.list()) expect(state).toMatchObject({ waiting: 0, holders: [{}] });
      await each(grants, (grant) => grant.release());
      expect(await leftoversButGone(redis.port)).toEqual([]);
    });

    it('the reply to release is lost: no LostError, the lock is free, or its next holder has it alone', async () => {
      await using world = await throughProxy();
      const { proxy, locks, other, redis } = world;
      const lost: unknown[] = [];
      locks.on('lost', (event) => lost.push(event));
      for (const lock of KINDS) {
        const exclusive = lock.replace('read', 'write') as LockName;
        for (const contended of [false, true]) {
          const grant = await lockOf(locks, exclusive).acquire();
          const next = contended ? lockOf(other, lock).acquire() : null;
          if (next) await until('it waits', 5000, async () => (await other.list())[0]!.waiting === 1);
          loseReplies(proxy, 1, grant.name);
          await grant.release();
          proxy.dropReplies(0);
          const had = await next;
          expect((await other.list()).map((state) => state.holders.length)).toEqual(contended ? [1] : []);
          had?.assertHeld();
          await had?.release();
        }
      }
      expect(lost).toEqual([]);
      expect(proxy.counters().repliesDropped).toBe(2 * KINDS.length);
      expect(await leftoversButGone(redis.port)).toEqual([]);
    });

    it('the reply to the confirmation of a hand-over is lost: it is held on', async () => {
      await using world = await throughProxy();
      const { proxy, locks, other, redis } = world;
      const exclusive = KINDS.map((lock) => lock.replace('read', 'write') as LockName);
      const holders = await Promise.all(exclusive.map((lock) => lockOf(other, lock).acquire()));
      const calls = KINDS.map((lock) => lockOf(locks, lock).acquire());
      await until('all wait', 5000, async () => (await other.list()).every((state) => state.waiting === 1));
      // One reply for each connection: confirmations of one turn share a call.
      loseReplies(proxy, 2, '');
      await each(holders, (grant) => grant.release());
      const grants = await Promise.all(calls);
      await sleep(1500);
      expect(proxy.counters().repliesDropped).toBe(2);
      for (const [i, grant] of grants.entries()) expect(() => grant.assertHeld(), KINDS[i]!).not.toThrow();
      await each(exclusive, async (lock) => expect(await lockOf(other, lock).tryAcquire(), lock).toBeNull());
      await each(grants, (grant) => grant.release());
      expect(await leftoversButGone(redis.port)).toEqual([]);
    });

    it('every second reply to a renewal is lost: the locks are held for many leases, and given back', async () => {
      await using world = await throughProxy({ lease: 1200 });
      const { proxy, locks, redis } = world;
      const lost: unknown[] = [];
      locks.on('lost', (event) => lost.push(event));
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
      let replies = 0;
      proxy.dropReplies(({ request }) => asksScript(request) && ++replies % 2 === 1);
      await sleep(4000);
      expect(proxy.counters().repliesDropped).toBeGreaterThan(5);
      proxy.dropReplies(0);
      for (const grant of grants) grant.assertHeld();
      await each(grants, (grant) => grant.release());
      expect(lost).toEqual([]);
      expect(await leftoversButGone(redis.port)).toEqual([]);
    });

    it('replicas: 1 without a replica is UnavailableError in bounded time, and nothing is left', async () => {
      const redis = await startRedis();
      await using locks = createLocks({ redis: redis.url });
      await each(KINDS, async (lock) => {
        const end = await ending(lockOf(locks, lock).acquire({ replicas: 1 }));
        expect(end.error, lock).toBeInstanceOf(UnavailableError);
        expect(end.ms, lock).toBeLessThan(2000);
      });
      await expectFree(redis);
    });

    it('replicas: 1 with a replica is granted, and the replica has it; also after waiting', async () => {
      const redis = await startRedis({ args: ['--repl-diskless-sync-delay', '0'] });
      const replica = await startRedis({ args: ['--replicaof', redis.host, String(redis.port)] });
      await until('the replica is in step', 10_000, async () =>
        String(await replica.command('INFO', 'replication')).includes('master_link_status:up'),
      );
      await using locks = createLocks({ redis: redis.url });
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire({ replicas: 1 })));
      expect((await replica.command('DBSIZE')) as number).toBeGreaterThan(KINDS.length);
      expect(String(await replica.command('GET', 'doorbuster:lock:{0}:mutex:lock:m'))).toContain(
        String(grants[0]!.token),
      );
      const next = locks.mutex('m').acquire({ replicas: 1, wait: 5000 });
      await until('it waits', 5000, async () => (await locks.inspect('mutex', 'm')).waiting === 1);
      await grants[0]!.release();
      const second = await next;
      expect(second.token).toBeGreaterThan(grants[0]!.token);
      await replica.kill();
      const end = await ending(locks.mutex('other').acquire({ replicas: 1 }));
      expect(end.error).toBeInstanceOf(UnavailableError);
      await each([second, ...grants.slice(1)], (grant) => grant.release());
      await expectFree(redis);
    });

    it('a master that becomes a replica (READONLY) is unavailable, and is used again when it is one again', async () => {
      const redis = await startRedis();
      await using locks = impatient(redis.url);
      await locks.mutex('warm').run(() => undefined);
      await redis.command('REPLICAOF', redis.host, String(await freePort()));
      await expectUnavailable(locks);
      await redis.command('REPLICAOF', 'NO', 'ONE');
      await each(KINDS, async (lock) => (await lockOf(locks, lock).acquire({ wait: 3000 })).release());
      await expectFree(redis);
    });

    it('a master that becomes a replica is left: what is held is renewed at the new one', async () => {
      const [old, fresh] = [await startRedis(), await startRedis()];
      // A master waits five seconds for more replicas to come before it serves the first.
      await old.command('CONFIG', 'SET', 'repl-diskless-sync-delay', '0');
      await fresh.command('REPLICAOF', '127.0.0.1', String(old.port));
      const proxy = await startProxy(old.port);
      await using locks = impatient(`redis://127.0.0.1:${proxy.port}`, { lease: 900 });
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
      const keys = async (redis: RedisServer) => (await redis.command('DBSIZE')) as number;
      await until('the replica has them', 5000, async () => (await keys(fresh)) === (await keys(old)));
      await fresh.command('REPLICAOF', 'NO', 'ONE');
      await old.command('REPLICAOF', '127.0.0.1', String(fresh.port));
      // Connections that are open stay where they are: nobody cuts them.
      proxy.target(fresh.port);
      await sleep(2000);
      for (const [i, grant] of grants.entries()) expect(() => grant.assertHeld(), KINDS[i]!).not.toThrow();
      await each(grants, async (grant, i) => expect((await ending(grant.release())).failed, KINDS[i]!).toBeNull());
    });

    it('a full Redis takes no new locks, but renews and gives back those it has', async () => {
      const redis = await startRedis();
      await using locks = impatient(redis.url, { lease: 900 });
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
      await redis.command('CONFIG', 'SET', 'maxmemory', '1');
      const end = await ending(locks.mutex('new').acquire());
      expect(end.error).toBeInstanceOf(UnavailableError);
      expect(end.ms).toBeLessThan(BOUND_MS);
      await sleep(1000);
      for (const [i, grant] of grants.entries()) expect(() => grant.assertHeld(), KINDS[i]!).not.toThrow();
      await each(grants, async (grant, i) => expect((await ending(grant.release())).failed, KINDS[i]!).toBeNull());
      await redis.command('CONFIG', 'SET', 'maxmemory', '0');
      await locks.mutex('new').run(() => undefined);
    });

    it('a full Redis takes back what is given back in the same turn in which something new is asked for', async () => {
      const redis = await startRedis();
      // Nothing is tried a second time.
      await using locks = impatient(redis.url, { outageMs: 0 });
      await using other = createLocks({ redis: redis.url });
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
      await redis.command('CONFIG', 'SET', 'maxmemory', '1');
      const asked = KINDS.map((lock) => ending(lockOf(locks, `${lock}-new` as LockName).acquire({ wait: 300 })));
      const given = await each(grants, (grant) => ending(grant.release()));
      for (const [i, { failed }] of given.entries()) expect(failed, KINDS[i]!).toBeNull();
      // Refused, unless what came before it in the same call has made room.
      expect((await asked[0])!.error).toBeInstanceOf(UnavailableError);
      await Promise.all(asked);
      await redis.command('CONFIG', 'SET', 'maxmemory', '0');
      await each(KINDS, async (lock) => expect(await lockOf(other, lock).tryAcquire(), lock).not.toBeNull());
    });

    it('a full Redis goes on giving a mutex to those who wait beside it', async () => {
      const redis = await startRedis();
      await using locks = impatient(redis.url);
      const take = () => locks.mutex('m').acquire();
      const first = await take();
      const second = take();
      await until('it waits', 5000, async () => (await locks.mutex('m').inspect()).waiting === 1);
      await first.release();
      const held = await second;
      const waiting = [take(), take(), take()];
      await until('they wait', 5000, async () => (await locks.mutex('m').inspect()).waiting === 3);
      await redis.command('CONFIG', 'SET', 'maxmemory', '1');
      expect((await ending(held.release())).failed).toBeNull();
      for (const each of waiting) {
        const end = await ending(each.then((grant) => grant.release()));
        expect(end.failed).toBeNull();
      }
    });

    it('a key of another type fails who asks for it, and nobody who asks in the same turn', async () => {
      const redis = await startRedis();
      await using locks = createLocks({ redis: redis.url });
      for (const kind of ['mutex', 'fair']) {
        await redis.command('SADD', `doorbuster:lock:{0}:${kind}:lock:spoilt`, 'something else');
      }
      await each(['mutex', 'fair'] as const, async (kind) => {
        const grant = await locks[kind]('fine').acquire();
        const waiting = locks[kind]('fine').acquire();
        await until('it waits', 5000, async () => (await locks[kind]('fine').inspect()).waiting === 1);
        const beganMs = performance.now();
        const released = grant.release();
        const spoilt = ending(locks[kind]('spoilt').acquire());
        await released;
        await (await waiting).release();
        expect(performance.now() - beganMs).toBeLessThan(1000);
        expect((await spoilt).error).toMatchObject({ message: expect.stringContaining('WRONGTYPE') });
      });
    });

    it('a release that is not answered in time: the neighbour to whom it went has it as soon as Redis goes on', async () => {
      const redis = await startRedis();
      await using locks = createLocks({ redis: redis.url, commandMs: 300 });
      const lock = locks.fair('f');
      const grant = await lock.acquire();
      const waiting = lock.acquire();
      await until('it waits', 5000, async () => (await lock.inspect()).waiting === 1);
      await redis.pause();
      const released = ending(grant.release());
      await sleep(500);
      await redis.resume();
      const resumedMs = performance.now();
      await (await waiting).release();
      // Not only when somebody looks after a silent queue, after three seconds.
      expect(performance.now() - resumedMs).toBeLessThan(2000);
      expect((await released).failed).toBeNull();
    });

    it('who gives up while Redis is out leaves the queue when it is back, also if its lease would be over', async () => {
      const redis = await startRedis();
      const proxy = await startProxy(redis.port);
      await using locks = createLocks({ redis: `redis://${proxy.host}:${proxy.port}`, commandMs: 200 });
      await using holder = createLocks({ redis: redis.url });
      const held = await holder.fair('f').acquire();
      const waiting = ending(locks.fair('f').acquire({ lease: 300, wait: 400 }));
      await until('it waits', 5000, async () => (await holder.fair('f').inspect()).waiting === 1);
      await proxy.refuse(true);
      proxy.cut();
      expect((await waiting).failed).not.toBeNull();
      await sleep(1500);
      expect((await holder.fair('f').inspect()).waiting).toBe(1);
      await proxy.refuse(false);
      await until('it is gone', 5000, async () => (await holder.fair('f').inspect()).waiting === 0);
      await held.release();
    });

    it('each way to fail has an error of its own', async () => {
      const redis = await startRedis();
      await using locks = impatient(redis.url);
      const held = await locks.mutex('m').acquire();
      await expect(locks.mutex('m').acquire({ wait: 0 })).rejects.toBeInstanceOf(HeldError);
      await expect(locks.mutex('m').acquire({ wait: 30 })).rejects.toBeInstanceOf(TimeoutError);
      await expect(locks.mutex('m').acquire({ signal: AbortSignal.abort() })).rejects.toBeInstanceOf(AbortedError);
      const brief = await locks.mutex('n').acquire({ lease: 50 });
      await sleep(80);
      await expect(brief.release()).rejects.toBeInstanceOf(LostError);
      await held.release();
      expect(() => held.assertHeld()).toThrow(NotOwnerError);
      await expectFree(redis);
      await redis.kill();
      await expect(locks.mutex('m').acquire()).rejects.toBeInstanceOf(UnavailableError);
      expect(await ending(leftovers(redis.port))).toMatchObject({ failed: 'ECONNREFUSED' });
    });
  });
});
