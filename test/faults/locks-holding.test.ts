import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Clock } from '../../src/base/clock.ts';
import {
  createLocks,
  type Grant,
  type LockEvents,
  type Locks,
  type LocksOptions,
  LostError,
} from '../../src/locks/index.ts';
import { sleep, until } from '../support/fault-wait.ts';
import type { Look } from '../support/locks-agent.ts';
import { agentRejections, startAgent } from '../support/locks-agents.ts';
import { type LockName, lockOf } from '../support/locks-names.ts';
import { asksScript, callsOf, fencedWrite, keysOf, leftovers } from '../support/locks-probe.ts';
import { aborting, ending } from '../support/locks-timing.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** Holding a lock while the process stalls, the network breaks, and the server forgets. */
const KINDS: LockName[] = ['mutex m', 'fair f', 'read r', 'write w', 'semaphore:1 s'];
const HELD = { thrown: null, aborted: false, held: true };
const LOST = { thrown: 'lock_lost expired', aborted: true, held: false };

let redis: RedisServer;
const opened: Locks[] = [];

function locksOf(prefix: string, options: LocksOptions = {}): Locks {
  const locks = createLocks({ redis: redis.url, prefix, ...options });
  opened.push(locks);
  return locks;
}

function lossesOf(locks: Locks): LockEvents['lost'][0][] {
  const losses: LockEvents['lost'][0][] = [];
  locks.on('lost', (event) => losses.push(event));
  return losses;
}

function each<T, R>(all: readonly T[], visit: (one: T, index: number) => Promise<R>): Promise<R[]> {
  return Promise.all(all.map(visit));
}

const keyOf = (prefix: string, name: string): string => `${prefix}:{0}:mutex:lock:${name}`;

describeWithRedis('locks: holding', () => {
  beforeAll(async () => {
    redis = await startRedis();
  });
  afterAll(async () => {
    await Promise.all(opened.map((locks) => locks.close()));
    await cleanUpServers();
    expect(agentRejections()).toEqual([]);
  });

  describe.concurrent('side by side', () => {
    it('a stopped holder finds assertHeld() failing before anything else, its signal aborted, its write refused', async () => {
      const prefix = 'stopped';
      const agent = await startAgent({ port: redis.port, prefix, lease: 900 });
      const locks = locksOf(prefix);
      const token = await agent.acquire('a', 'mutex m');
      expect(await fencedWrite(redis.port, 'resource:stopped', token, 'first')).toBe(true);
      const next = ending(locks.mutex('m').acquire({ wait: 10_000 }));
      await sleep(100);
      const seen = agent.call('stopped', { as: 'a', gapMs: 500, resource: 'resource:stopped' });
      await sleep(50);
      agent.stop();
      const { value, failed } = await next;
      expect(failed).toBeNull();
      expect(value!.token).toBeGreaterThan(token);
      expect(await fencedWrite(redis.port, 'resource:stopped', value!.token, 'second')).toBe(true);
      await sleep(600);
      agent.continue();
      expect(await seen).toEqual({ ...LOST, written: false });
      expect(await redis.command('HGET', 'resource:stopped', 'value')).toBe('second');
      await expect(agent.release('a')).rejects.toMatchObject({ code: 'lock_lost' });
      value!.assertHeld();
    });

    it('the event loop stalls beyond the lease: assertHeld() fails and the signal is aborted before its next turn', async () => {
      const prefix = 'stalled';
      const agent = await startAgent({ port: redis.port, prefix, lease: 900 });
      const locks = locksOf(prefix);
      await each(KINDS, (lock) => agent.acquire(lock, lock));
      const next = locks.mutex('m').acquire();
      expect(await agent.call('stall', { as: 'mutex m', ms: 200 })).toEqual(HELD);
      expect(await agent.call('stall', { as: 'mutex m', ms: 1200 })).toEqual(LOST);
      for (const lock of KINDS) {
        const { thrown } = (await agent.call('look', { as: lock })) as Look;
        expect(thrown, lock).toBe(LOST.thrown);
      }
      (await next).assertHeld();
    });

    it.each(['cut', 'lost reply', 'CLIENT PAUSE'])('renewal survives one failed try (%s)', async (fault) => {
      const own = await startRedis();
      const proxy = await startProxy(own.port);
      await using locks = createLocks({ redis: `redis://127.0.0.1:${proxy.port}`, lease: 2400 });
      await using other = createLocks({ redis: own.url });
      const losses = lossesOf(locks);
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
      // One after the next, over two leases; renewals are due at 800, 1 600, … ms.
      for (let i = 0; i < 3; i++) {
        await sleep(700);
        if (fault === 'cut') {
          await proxy.refuse(true);
          proxy.cut();
          await sleep(250);
          await proxy.refuse(false);
        } else if (fault === 'lost reply') {
          let left = 1;
          proxy.dropReplies(({ request }) => asksScript(request) && left-- > 0);
          await sleep(400);
        } else {
          await own.clientPause(500);
          await sleep(550);
        }
        for (const lock of KINDS) {
          const held = lock.replace('read', 'write') as LockName;
          expect(await lockOf(other, held).tryAcquire(), lock).toBeNull();
        }
      }
      if (fault === 'lost reply') expect(proxy.counters().repliesDropped).toBeGreaterThan(1);
      // A reply that is still to be dropped would be that of a release.
      proxy.dropReplies(0);
      for (const grant of grants) grant.assertHeld();
      await each(grants, (grant) => grant.release());
      expect(losses).toEqual([]);
      expect(await leftovers(own.port)).toEqual([]);
    });

    it.each(['frozen', 'refused'])(
      'no renewal gets through (%s): the signal aborts before the key expires',
      async (fault) => {
        const prefix = `silent-${fault}`;
        const proxy = await startProxy(redis.port);
        const locks = locksOf(prefix, { redis: `redis://127.0.0.1:${proxy.port}`, lease: 3000 });
        const losses = lossesOf(locks);
        const grant = await locks.mutex('m').acquire();
        await sleep(1200);
        if (fault === 'frozen') proxy.freeze();
        else {
          await proxy.refuse(true);
          proxy.cut();
        }
        const expiresMs = Number(await redis.command('PEXPIRETIME', keyOf(prefix, 'm')));
        const deadlineMs = Date.now() + grant.remaining();
        expect(deadlineMs).toBeLessThan(expiresMs);
        const { atMs, reason } = await aborting(grant.signal, 5000);
        expect(reason).toBe('expired');
        // The margin is 35 ms: on a machine that lets us wait longer than that, at least the deadline was right.
        if (atMs - deadlineMs < 20) expect(atMs).toBeLessThan(expiresMs);
        expect(atMs - deadlineMs).toBeLessThan(500);
        expect(() => grant.assertHeld()).toThrow(LostError);
        expect(losses).toMatchObject([{ name: 'm', reason: 'expired' }]);
        // A lock that is known to be lost is not given back for seconds.
        const end = await ending(grant.release());
        expect(end.failed).toBe('lock_lost');
        expect(end.ms).toBeLessThan(50);
        if (fault === 'frozen') proxy.thaw();
      },
    );

    it('release and extend with a renewal under way give no false loss, and no renewal outlives them', async () => {
      const prefix = 'crossing';
      const proxy = await startProxy(redis.port);
      const locks = locksOf(prefix, { redis: `redis://127.0.0.1:${proxy.port}`, lease: 1500 });
      const losses = lossesOf(locks);
      proxy.delay(20);
      const kinds = ['mutex', 'write', 'read', 'semaphore:1'];
      await each(Array.from({ length: 40 }), async (_, i) => {
        const lock = lockOf(locks, `${kinds[i % 4]} x${i}` as LockName);
        for (let round = 0; round < 4; round++) {
          const grant = await lock.acquire();
          // A renewal leaves 480 ms after the lock was asked for, and is answered 40 ms later.
          await sleep(400 + ((i * 5 + round * 31) % 100));
          if (i % 5 === 0) {
            const extended = ending(grant.extend(1500));
            await grant.release();
            const { failed } = await extended;
            expect([null, 'lock_not_owner'], `extend ${i}`).toContain(failed);
          } else await grant.release();
        }
      });
      expect(losses).toEqual([]);
      proxy.delay(0);
      await sleep(400);
      expect((await keysOf(redis.port)).filter((key) => /^crossing:\{0\}:(?!clock)/.test(key))).toEqual([]);
    });

    it('extend() crosses a renewal whose reply is lost: the hold still ends here before it can end there', async () => {
      const prefix = 'extended';
      const proxy = await startProxy(redis.port);
      const locks = locksOf(prefix, { redis: `redis://127.0.0.1:${proxy.port}`, lease: 1500 });
      const other = locksOf(prefix);
      await locks.mutex('warm').run(() => sleep(600));
      // On a busy machine the timer may be late, so that the two do not cross: then another lock is tried.
      let grant: Grant | null = null;
      let name = '';
      for (let attempt = 1; grant === null; attempt++) {
        expect(attempt, 'tries until they crossed').toBeLessThan(10);
        name = `m${attempt}`;
        const tried = await locks.mutex(name).acquire();
        // extend() leaves before the renewal that is due at 500 ms, and both are on their way when that one is sent.
        await sleep(460);
        proxy.delay(100, 'toServer');
        let replies = 0;
        // What was asked is no help here: the second request had reached the proxy before the first was answered.
        proxy.dropReplies(() => {
          if (++replies < 2) return false;
          void proxy.refuse(true);
          return true;
        });
        const extended = await ending(tried.extend(20_000));
        expect(extended.failed).toBeNull();
        await sleep(400);
        if (proxy.counters().repliesDropped > 0) grant = tried;
        else {
          proxy.dropReplies(0);
          proxy.delay(0, 'toServer');
          await tried.release();
        }
      }
      proxy.cut();
      const next = await ending(other.mutex(name).acquire({ wait: 4000 }));
      // Either the server keeps it for as long as we were told, or we know that it does not.
      if (next.failed === null) expect(grant.held, 'two holders').toBe(false);
      else expect(grant.held).toBe(true);
      await proxy.refuse(false);
    });

    it('extend() to a shorter lease whose reply is lost: the hold still ends here before it can end there', async () => {
      const prefix = 'shortened';
      const proxy = await startProxy(redis.port);
      const locks = locksOf(prefix, { redis: `redis://127.0.0.1:${proxy.port}` });
      const other = locksOf(prefix);
      const grant = await locks.mutex('m').acquire({ lease: 20_000 });
      await grant.extend(20_000);
      proxy.dropReplies(({ request }) => {
        if (!asksScript(request)) return false;
        void proxy.refuse(true);
        return true;
      });
      const shortened = await ending(grant.extend(400));
      expect(shortened.failed).toBe('lock_unavailable');
      const next = await ending(other.mutex('m').acquire({ wait: 3000 }));
      if (next.failed === null) expect(grant.held, 'two holders').toBe(false);
      proxy.dropReplies(0);
      await proxy.refuse(false);
    });

    it('a fixed lease ends: the signal aborts with it, and release says that it was lost', async () => {
      const locks = locksOf('fixed');
      await each(KINDS, async (lock) => {
        const beganMs = performance.now();
        const grant = await lockOf(locks, lock).acquire({ lease: 800 });
        const { reason } = await aborting(grant.signal, 3000);
        const ms = performance.now() - beganMs;
        expect(reason, lock).toBe('expired');
        expect(ms, lock).toBeGreaterThan(780);
        expect(ms, lock).toBeLessThan(1500);
        await expect(grant.release(), lock).rejects.toMatchObject({ code: 'lock_lost', reason: 'expired' });
      });
    });

    it('taken over by another: the signal aborts within a third of the lease + 1 s, and the new holder keeps it', async () => {
      const prefix = 'taken';
      const [locks, thief] = [locksOf(prefix, { lease: 1500 }), locksOf(prefix)];
      const grant = await locks.mutex('m').acquire();
      const lost = aborting(grant.signal, 5000);
      await redis.command('DEL', keyOf(prefix, 'm'));
      const stolen = await thief.mutex('m').acquire({ wait: 0 });
      expect(stolen.token).toBeGreaterThan(grant.token);
      const { ms, reason } = await lost;
      expect(reason).toBe('refused');
      expect(ms).toBeLessThan(1500);
      await expect(grant.release()).rejects.toThrow(LostError);
      await sleep(100);
      stolen.assertHeld();
      await stolen.release();
    });

    it('FLUSHALL: every kind hears of it within a third of the lease + 1 s', async () => {
      const own = await startRedis();
      await using locks = createLocks({ redis: own.url, lease: 1500 });
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
      const lost = grants.map((grant) => aborting(grant.signal, 5000));
      await own.command('FLUSHALL');
      await each(lost, async (end, i) => {
        const { ms, reason } = await end;
        expect(reason, KINDS[i]!).toBe('refused');
        expect(ms, KINDS[i]!).toBeLessThan(1500);
      });
      expect(await leftovers(own.port)).toEqual([]);
    });

    it('a restart that forgets: heard at the reconnect, long before the renewal is due', async () => {
      const own = await startRedis();
      await using locks = createLocks({ redis: own.url, lease: 60_000 });
      const losses = lossesOf(locks);
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
      const lost = grants.map((grant) => aborting(grant.signal, 10_000));
      await own.kill();
      await own.restart();
      const backMs = performance.now();
      for (const end of lost) expect((await end).reason).toBe('refused');
      expect(performance.now() - backMs).toBeLessThan(2000);
      expect(losses.length).toBe(KINDS.length);
      for (const lock of KINDS) expect(await lockOf(locks, lock).tryAcquire(), lock).not.toBeNull();
    });

    it('a restart that remembers: nothing is lost', async () => {
      const own = await startRedis({ persistence: 'aof' });
      await using locks = createLocks({ redis: own.url, lease: 10_000 });
      const losses = lossesOf(locks);
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
      await own.kill();
      await own.restart();
      await sleep(1200);
      await each(grants, (grant) => grant.release());
      expect(losses).toEqual([]);
      expect(await leftovers(own.port)).toEqual([]);
    });

    it('force release reaches the signal of a holder that once waited at once', async () => {
      const prefix = 'forced-listens';
      const [listens, other] = [locksOf(prefix), locksOf(prefix)];
      const first = await other.mutex('m').acquire();
      const waited = listens.mutex('m').acquire();
      await until('it waits', 5000, async () => (await other.inspect('mutex', 'm')).waiting === 1);
      await first.release();
      const lost = aborting((await waited).signal, 5000);
      expect(await other.mutex('m').forceRelease()).toMatchObject([{ mode: 'write' }]);
      expect((await lost).ms).toBeLessThan(300);
      expect((await lost).reason).toBe('forced');
    });

    it('force release reaches the signal of a holder that never waited within a third of the lease + 1 s', async () => {
      const prefix = 'forced-third';
      const [silent, other] = [locksOf(prefix, { lease: 1500 }), locksOf(prefix)];
      const lost = aborting((await silent.mutex('m').acquire()).signal, 5000);
      expect(await other.mutex('m').forceRelease()).toHaveLength(1);
      expect((await lost).ms).toBeLessThan(1500);
    });

    it('force release reaches the signal of a holder that never waited at once, whatever its lease', async () => {
      const prefix = 'forced-silent';
      const [silent, other] = [locksOf(prefix), locksOf(prefix)];
      const lost = aborting((await silent.mutex('m').acquire()).signal, 2000);
      expect(await other.mutex('m').forceRelease()).toHaveLength(1);
      expect((await lost).ms).toBeLessThan(1000);
    });

    it('Redis is gone at the renewal: one loss, told to the signal and to listeners, and no unhandled rejection', async () => {
      const own = await startRedis();
      const agent = await startAgent({ port: own.port, lease: 900 });
      const locks = createLocks({ redis: own.url, lease: 900 });
      const losses = lossesOf(locks);
      const grants = await Promise.all(KINDS.slice(0, 3).map((lock) => lockOf(locks, lock).acquire()));
      await agent.acquire('a', 'mutex n');
      const lost = grants.map((grant) => aborting(grant.signal, 3000));
      await own.kill();
      for (const end of lost) expect((await end).reason).toBe('expired');
      await sleep(500);
      expect(losses.map(({ name }) => name).sort()).toEqual(['f', 'm', 'r']);
      expect(await agent.look('a')).toEqual(LOST);
      await agent.call('close');
      expect(agentRejections()).toEqual([]);
      const closed = await ending(locks.close());
      expect(closed.failed).toBeNull();
      expect(closed.ms).toBeLessThan(2500);
    });

    it('an expired lock or permit is never taken again by a renewal or extend()', async () => {
      const prefix = 'expired';
      const locks = locksOf(prefix, { lease: 1500 });
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
      const fixed = await Promise.all(
        KINDS.map((lock) => lockOf(locks, `${lock}-fixed` as LockName).acquire({ lease: 5000 })),
      );
      // As if the server's clock had run ahead: over there they are gone, here they seem to be held.
      const mine = (key: string): boolean => /^expired:\{0\}:(?!clock)/.test(key);
      await redis.command('DEL', ...(await keysOf(redis.port)).filter(mine));
      await each(fixed, async (grant, i) => {
        grant.assertHeld();
        await expect(grant.extend(5000), KINDS[i]!).rejects.toMatchObject({ code: 'lock_lost', reason: 'refused' });
        expect(grant.signal.aborted, KINDS[i]!).toBe(true);
      });
      await each(grants, async (grant) => expect((await aborting(grant.signal, 3000)).reason).toBe('refused'));
      expect((await keysOf(redis.port)).filter(mine)).toEqual([]);
    });

    it.each([
      ['20 minutes ahead', 20 * 60_000, 1e12],
      ['20 minutes behind', -20 * 60_000, 5],
      ['from 1970', -Date.now(), -1e9],
    ])('a client clock %s changes nothing', async (_, skewMs, origin) => {
      const prefix = `clock-${origin}`;
      const clock: Clock = { now: () => Date.now() + skewMs, monotonic: () => performance.now() + origin };
      const skewed = locksOf(prefix, { runtime: { clock } });
      const [right, holder] = [locksOf(prefix), locksOf(prefix)];
      const first = await holder.fair('f').acquire();
      const order: string[] = [];
      const tokens: bigint[] = [first.token];
      const take = async (who: string, locks: Locks): Promise<void> => {
        const grant = await locks.fair('f').acquire();
        order.push(who);
        tokens.push(grant.token);
        expect(grant.remaining()).toBeGreaterThan(0);
        await grant.release();
      };
      const calls: Promise<void>[] = [];
      for (const [i, who] of ['skewed', 'right', 'skewed', 'right', 'skewed'].entries()) {
        calls.push(take(who, who === 'skewed' ? skewed : right));
        await until('it waits', 5000, async () => (await holder.inspect('fair', 'f')).waiting === i + 1);
      }
      await first.release();
      const { ms } = await ending(Promise.all(calls));
      expect(ms).toBeLessThan(1000);
      expect(order).toEqual(['skewed', 'right', 'skewed', 'right', 'skewed']);
      expect(tokens).toEqual([...tokens].sort((one, other) => (one < other ? -1 : 1)));

      const held = await skewed.mutex('m').acquire({ lease: 1000 });
      const [state] = (await right.inspect('mutex', 'm')).holders;
      expect(Math.abs(state!.sinceMs - Date.now())).toBeLessThan(1000);
      const timeout = await ending(skewed.mutex('m').acquire({ wait: 300 }));
      expect(timeout.failed).toBe('lock_timeout');
      expect(timeout.ms).toBeLessThan(700);
      held.assertHeld();
      const after = await ending(right.mutex('m').acquire({ wait: 3000 }));
      expect(after.failed).toBeNull();
      expect(held.held).toBe(false);
      expect(after.value!.token).toBeGreaterThan(held.token);
    });

    it.each(['mutex m', 'write w', 'read r', 'semaphore:1 s'] as LockName[])(
      'tokens of %s rise across expiry, crash, force release, a server clock behind, FLUSHALL and restart',
      async (lock) => {
        const own = await startRedis();
        await using locks = createLocks({ redis: own.url });
        const tokens: bigint[] = [];
        const take = async (options: object = {}): Promise<Grant> => {
          const grant = await lockOf(locks, lock).acquire({ wait: 5000, ...options });
          tokens.push(grant.token);
          return grant;
        };
        await (await take()).release();
        await take({ lease: 50 });
        await sleep(80);
        await take({ lease: 50 });
        await sleep(80);
        const agent = await startAgent({ port: own.port });
        tokens.push(await agent.acquire('a', lock, { lease: 300 }));
        await agent.kill();
        if (!lock.startsWith('read')) {
          await take();
          await (lock.startsWith('mutex')
            ? locks.mutex('m')
            : lock.startsWith('write')
              ? locks.readWrite('w')
              : locks.semaphore('s', { permits: 1 })
          ).forceRelease();
        }
        await (await take()).release();
        await own.command('FLUSHALL');
        await (await take()).release();
        await own.kill();
        await own.restart();
        await (await take()).release();
        // The server's clock stepped back by an hour, as after a failover to one that is behind.
        const ahead = (Date.now() + 3_600_000) * 1000;
        await own.command('SET', 'doorbuster:lock:{0}:clock', String(ahead));
        await (await take()).release();
        await (await take()).release();
        expect(tokens.at(-2)).toBe(BigInt(ahead) + 1n);
        const rising = tokens.every((token, i) => i === 0 || token > tokens[i - 1]!);
        expect(rising, tokens.join(' ')).toBe(true);
      },
    );

    it('re-entry keeps the token, and a token comes with its lock in one command', async () => {
      const own = await startRedis();
      await using locks = createLocks({ redis: own.url });
      const lock = locks.mutex('m');
      await lock.run(async (outer) => {
        const within = await lock.acquire({ within: outer });
        expect(within.token).toBe(outer.token);
        await lock.run((inner) => expect(inner.token).toBe(outer.token));
        await within.release();
        outer.assertHeld();
      });
      const before = await callsOf(own.port, 'evalsha');
      for (let i = 0; i < 10; i++) await (await lock.acquire()).release();
      expect((await callsOf(own.port, 'evalsha')) - before).toBe(20);
    });
  });
});
