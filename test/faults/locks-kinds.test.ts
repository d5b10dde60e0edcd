import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createLocks, HeldError, type Locks, type LocksOptions, LostError } from '../../src/locks/index.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { agentRejections, startAgent } from '../support/locks-agents.ts';
import { keysOf, leftoversButGone, usedMemory } from '../support/locks-probe.ts';
import { ending, isPendingAfter } from '../support/locks-timing.ts';
import { LONG } from '../support/long.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** What goes wrong with one kind of lock and not with the others; and what all of them leave behind. */

const NAMES = LONG ? 1_000_000 : 100_000;

let redis: RedisServer;
const opened: Locks[] = [];

function locksOf(prefix: string, options: LocksOptions = {}): Locks {
  const locks = createLocks({ redis: redis.url, prefix, ...options });
  opened.push(locks);
  return locks;
}

async function waitingFor(locks: Locks, count: number): Promise<void> {
  await until(`${count} wait`, 5000, async () => {
    const all = await locks.list();
    return all.reduce((sum, each) => sum + each.waiting, 0) === count;
  });
}

describeWithRedis('locks: kinds', () => {
  beforeAll(async () => {
    redis = await startRedis();
  });
  afterAll(async () => {
    await Promise.all(opened.map((locks) => locks.close()));
    await cleanUpServers();
    expect(agentRejections()).toEqual([]);
  });

  it(
    `${NAMES} names used once leave no memory behind`,
    async () => {
      const own = await startRedis();
      await using locks = createLocks({ redis: own.url });
      const use = async (from: number, to: number): Promise<void> => {
        for (let i = from; i < to; i += 1000) {
          await Promise.all(
            Array.from({ length: 1000 }, async (_, j) => {
              const name = `buyer-${i + j}`;
              const n = (i + j) % 20;
              // Mostly mutexes, as in life; the other kinds have more keys to forget.
              if (n === 0) await (await locks.readWrite(name).write.acquire()).release();
              else if (n === 1) await (await locks.readWrite(name).read.acquire()).release();
              else if (n === 2) await (await locks.semaphore(name, { permits: 3 }).acquire()).release();
              else if (n === 3) await (await locks.fair(name).acquire()).release();
              else await (await locks.mutex(name).acquire()).release();
            }),
          );
        }
      };
      // Buffers and scripts are there after the first few.
      await use(0, 5000);
      const before = await usedMemory(own.port);
      await use(5000, 5000 + NAMES);
      // On a busy machine an answer may have come too late, and its request is remembered as given up for two minutes.
      expect(await leftoversButGone(own.port)).toEqual([]);
      expect(await own.command('DBSIZE')).toBeLessThanOrEqual(2);
      // Freed a moment later, in the background.
      await until('the memory is back', 3000, async () => (await usedMemory(own.port)) - before < 500_000);
    },
    LONG ? 300_000 : 30_000,
  );

  describe.concurrent('side by side', () => {
    it('multi-locks that overlap exclude each other over processes, and nobody waits for ever', async () => {
      const prefix = 'multi';
      const agents = await Promise.all([1, 2, 3].map(() => startAgent({ port: redis.port, prefix })));
      const sets = [['a', 'b'], ['b', 'c'], ['c', 'a'], ['d', 'c', 'b', 'a'], ['a']];
      const rounds = LONG ? 400 : 40;
      const crossed = await Promise.all(
        agents.map((agent, i) => agent.call('contend', { sets: [...sets.slice(i), ...sets.slice(0, i)], rounds })),
      );
      expect(crossed).toEqual([0, 0, 0]);
      // The ids of requests that had a command under way when they ended are remembered for two minutes, by design.
      expect((await keysOf(redis.port)).filter((key) => /^multi:\{0\}:(?!clock|gone)/.test(key))).toEqual([]);
    });

    it('a multi-lock that cannot be had, or whose Redis fails half-way, leaves nothing behind', async () => {
      const [one, other] = await Promise.all([startRedis(), startRedis()]);
      await using first = createLocks({ redis: one.url });
      await using second = createLocks({ redis: other.url, outageMs: 500, commandMs: 200 });
      const parts = [first.mutex('a'), second.mutex('b'), first.mutex('c'), second.mutex('d')];
      for (const held of parts) {
        const grant = await held.acquire();
        expect(await first.multi(parts).tryAcquire()).toBeNull();
        expect((await ending(first.multi(parts).acquire({ wait: 100 }))).failed).toBe('lock_timeout');
        await grant.release();
        await until('nothing is left', 2000, async () => {
          return [...(await leftoversButGone(one.port)), ...(await leftoversButGone(other.port))].length === 0;
        });
      }
      await other.kill();
      const end = await ending(first.multi(parts).acquire());
      expect(end.failed).toBe('lock_unavailable');
      expect(end.ms).toBeLessThan(2500);
      await until('nothing is left', 2000, async () => (await leftoversButGone(one.port)).length === 0);
    });

    it('a part of a multi-lock is lost: so is the whole, and the rest is given back', async () => {
      const prefix = 'multi-lost';
      const locks = locksOf(prefix, { lease: 3000 });
      const grant = await locks.multi(['a', 'b', 'c']).acquire();
      const aborted = new Promise((resolve) => grant.signal.addEventListener('abort', resolve));
      await locks.mutex('b').forceRelease();
      await aborted;
      expect(() => grant.assertHeld()).toThrow(LostError);
      await expect(grant.release()).rejects.toThrow(LostError);
      expect(await locks.list()).toEqual([]);
    });

    it('readers and writers of several processes: a writer is always alone', async () => {
      const prefix = 'together';
      const agents = await Promise.all([1, 2, 3].map(() => startAgent({ port: redis.port, prefix })));
      const rounds = LONG ? 600 : 60;
      const crossed = await Promise.all(
        agents.flatMap((agent) => [1, 2].map(() => agent.call('readAndWrite', { name: 'rw', rounds }))),
      );
      expect(crossed).toEqual([0, 0, 0, 0, 0, 0]);
      const left = (await keysOf(redis.port)).filter((key) => /^together:\{0\}:(?!clock)/.test(key));
      // Ids that were given up on the way, on a busy machine, are remembered for two minutes, and not for longer.
      const forGood = [];
      for (const key of left) {
        const ttlMs = Number(await redis.command('PTTL', key));
        if (!key.endsWith(':gone') || ttlMs <= 0 || ttlMs > 120_000) forGood.push(key);
      }
      expect(forGood).toEqual([]);
    });

    it('a crashed reader keeps a writer out until its own lease ends, however long the other readers stay', async () => {
      const prefix = 'reader';
      const agent = await startAgent({ port: redis.port, prefix });
      const locks = locksOf(prefix);
      const other = await locks.readWrite('rw').read.acquire();
      await agent.acquire('a', 'read rw', { lease: 1200, renew: true });
      const writer = locks.readWrite('rw').write.acquire({ wait: 10_000 });
      await waitingFor(locks, 1);
      await agent.kill();
      await sleep(100);
      await other.release();
      expect(await isPendingAfter(writer, 300)).toBe(true);
      const { ms, failed } = await ending(writer);
      expect(failed).toBeNull();
      expect(ms).toBeLessThan(1200 + 700);
    });

    it('a crashed reader does not end the lease of the readers beside it', async () => {
      const prefix = 'readers';
      const agent = await startAgent({ port: redis.port, prefix });
      const locks = locksOf(prefix, { lease: 900 });
      const other = await locks.readWrite('rw').read.acquire();
      await agent.acquire('a', 'read rw', { lease: 300 });
      await agent.kill();
      const writer = locks.readWrite('rw').write.acquire({ wait: 10_000 });
      expect(await isPendingAfter(writer, 1500)).toBe(true);
      other.assertHeld();
      await other.release();
      const { ms, failed } = await ending(writer);
      expect(failed).toBeNull();
      expect(ms).toBeLessThan(500);
    });

    it('a crashed permit holder gives its permits back when its lease ends, and never more than there are', async () => {
      const prefix = 'permits';
      const agent = await startAgent({ port: redis.port, prefix });
      const locks = locksOf(prefix);
      const semaphore = locks.semaphore('s', { permits: 3 });
      const kept = await semaphore.acquire();
      await agent.acquire('a', 'semaphore:3 s', { permits: 2, lease: 1200, renew: true });
      const calls = [1, 2, 3].map(() => semaphore.acquire({ wait: 10_000 }));
      await waitingFor(locks, 3);
      await agent.kill();
      expect(await isPendingAfter(Promise.race(calls), 300)).toBe(true);
      const { ms } = await ending(Promise.all(calls.slice(0, 2)));
      expect(ms).toBeLessThan(1200 + 700);
      expect(await semaphore.available()).toBe(0);
      expect(await isPendingAfter(calls[2]!, 200)).toBe(true);
      await kept.release();
      (await calls[2])!.assertHeld();
      expect(await semaphore.available()).toBe(0);
    });

    it('a slow network never lets more holders in than there are permits', async () => {
      const prefix = 'slow';
      const proxy = await startProxy(redis.port);
      proxy.delay(150);
      const clients = [1, 2, 3].map((i) =>
        locksOf(prefix, i === 1 ? {} : { redis: `redis://127.0.0.1:${proxy.port}` }),
      );
      let inside = 0;
      let most = 0;
      const work = clients.flatMap((locks) =>
        [1, 2, 3, 4].map(() =>
          locks.semaphore('s', { permits: 2 }).run(async () => {
            most = Math.max(most, ++inside);
            await sleep(20);
            inside--;
          }),
        ),
      );
      await Promise.all(work);
      expect(most).toBe(2);
    });

    it('downgrade() lets in the readers that wait', async () => {
      const prefix = 'downgrade';
      const [one, other] = [locksOf(prefix), locksOf(prefix)];
      const writer = await one.readWrite('rw').write.acquire();
      const readers = [1, 2, 3].map(() => other.readWrite('rw').read.acquire());
      await waitingFor(one, 3);
      const end = ending(Promise.all(readers));
      const reader = await one.readWrite('rw').downgrade(writer);
      expect(reader.token).toBe(writer.token);
      expect((await end).failed).toBeNull();
      expect((await end).ms).toBeLessThan(300);
      reader.assertHeld();
    });

    it('upgrade() of the only reader is had at once, of two readers one waits and the second is refused', async () => {
      const prefix = 'upgrade';
      const [one, other] = [locksOf(prefix).readWrite('rw'), locksOf(prefix).readWrite('rw')];
      const alone = await one.read.acquire();
      const writer = await ending(one.upgrade(alone));
      expect(writer.failed).toBeNull();
      expect(writer.ms).toBeLessThan(500);
      expect(writer.value!.token).toBeGreaterThan(alone.token);
      const reader = await one.downgrade(writer.value!);
      const second = await other.read.acquire();
      const waits = one.upgrade(reader);
      expect(await isPendingAfter(waits, 200)).toBe(true);
      const refused = await ending(other.upgrade(second));
      expect(refused.error).toBeInstanceOf(HeldError);
      expect(refused.ms).toBeLessThan(500);
      second.assertHeld();
      await second.release();
      (await waits).assertHeld();
    });

    it('the process that waits to upgrade is killed: the other reader may upgrade, and writers are not kept out', async () => {
      const prefix = 'upgrade-dead';
      const agent = await startAgent({ port: redis.port, prefix });
      const locks = locksOf(prefix);
      const lock = locks.readWrite('rw');
      const reader = await lock.read.acquire();
      await agent.acquire('a', 'read rw', { lease: 1200, renew: true });
      agent.call('upgrade', { as: 'a', name: 'rw' }).catch(() => undefined);
      await sleep(300);
      await agent.kill();
      await sleep(100);
      const { failed, ms } = await ending(lock.upgrade(reader, { wait: 8000 }));
      expect(failed).toBeNull();
      expect(ms).toBeLessThan(1200 + 1000);
    });

    it('writers do not starve: readers that come without end let one in', async () => {
      const prefix = 'starving';
      const [one, other] = [locksOf(prefix), locksOf(prefix)];
      let stop = false;
      const reading = Array.from({ length: 6 }, async (_, i) => {
        await sleep(i * 10);
        while (!stop) await one.readWrite('rw').read.run(() => sleep(40));
      });
      await sleep(150);
      const { ms, failed } = await ending(other.readWrite('rw').write.run(() => sleep(10), { wait: 5000 }));
      stop = true;
      await Promise.all(reading);
      expect(failed).toBeNull();
      expect(ms).toBeLessThan(1000);
    });

    it('release after the lease is over says so, and does not free the lock of the next holder', async () => {
      const prefix = 'late';
      const agent = await startAgent({ port: redis.port, prefix });
      const locks = locksOf(prefix);
      await agent.acquire('a', 'mutex m', { lease: 300 });
      // Stalled, it does not see its own deadline pass before the next holder has it.
      const stalled = agent.call('stall', { as: 'a', ms: 800 });
      const next = await locks.mutex('m').acquire({ wait: 5000 });
      await stalled;
      await expect(agent.release('a')).rejects.toMatchObject({ code: 'lock_lost' });
      next.assertHeld();
      expect(await locks.mutex('m').tryAcquire()).toBeNull();
      await next.release();
      // And a lock that is given back is free.
      expect(await locks.mutex('m').tryAcquire()).not.toBeNull();
    });

    it('a process that holds and has nothing else to do ends by itself', async () => {
      const { execFile } = await import('node:child_process');
      const code = `
        import { createLocks } from ${JSON.stringify(new URL('../../src/locks/index.ts', import.meta.url).href)};
        const locks = createLocks({ redis: '${redis.url}', prefix: 'ends', lease: 1000 });
        await locks.mutex('m').acquire();
        await locks.fair('n').run(() => undefined);
        console.log('done');`;
      const run = new Promise<string>((resolve, reject) => {
        execFile(process.execPath, ['--input-type=module', '-e', code], { timeout: 10_000 }, (error, out) =>
          error ? reject(error) : resolve(out),
        );
      });
      const { failed, value } = await ending(run);
      expect(failed).toBeNull();
      expect(value).toBe('done\n');
    });

    it('a process does not end in the middle of a call that is tried again: it hears how it ended', async () => {
      const { execFile } = await import('node:child_process');
      const full = await startRedis({ args: ['--maxmemory', '1'] });
      const code = `
        import { createLocks } from ${JSON.stringify(new URL('../../src/locks/index.ts', import.meta.url).href)};
        const locks = createLocks({ redis: '${full.url}', outageMs: 700 });
        await locks.latch('l').reset(1).catch(({ code }) => console.log(code));`;
      const run = new Promise<string>((resolve, reject) => {
        execFile(process.execPath, ['--input-type=module', '-e', code], { timeout: 10_000 }, (error, out) =>
          error ? reject(error) : resolve(out),
        );
      });
      expect(await run).toBe('lock_unavailable\n');
    });
  });
});
