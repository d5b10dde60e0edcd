import { afterAll, describe, expect, it } from 'vitest';
import { createLocks, type Grant, type Locks } from '../../src/locks/index.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { agentRejections, startAgent } from '../support/locks-agents.ts';
import { type LockName, lockOf } from '../support/locks-names.ts';
import { ending, isPendingAfter, Lag } from '../support/locks-timing.ts';
import { LONG } from '../support/long.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startRedisCluster, startRedisSentinel } from '../support/servers/redis.ts';

/** Locks behind sentinels and in a cluster, when a master is replaced. */

const KINDS: LockName[] = ['mutex m', 'fair f', 'read r', 'write w', 'semaphore:1 s'];
/** Until sentinels or nodes agree, and our clients have found the new master. */
const FOUND_MS = 8000;

function each<T, R>(all: readonly T[], visit: (one: T, index: number) => Promise<R>): Promise<R[]> {
  return Promise.all(all.map(visit));
}

function exclusive(lock: LockName): LockName {
  return lock.replace(/^read /, 'write ') as LockName;
}

async function waitingFor(locks: Locks, count: number): Promise<void> {
  await until(`${count} wait`, 5000, async () => {
    const all = await locks.list();
    return all.reduce((sum, state) => sum + state.waiting, 0) === count;
  });
}

/** After a failover a lock is ours, and nobody else's, or we know that it is not. */
async function expectSound(grants: readonly Grant[], other: Locks): Promise<void> {
  await each(grants, async (grant, i) => {
    const taken = await lockOf(other, exclusive(KINDS[i]!)).tryAcquire();
    if (taken) expect(grant.held, `${KINDS[i]}: two holders`).toBe(false);
    await taken?.release();
  });
}

describeWithRedis('locks: failover', () => {
  afterAll(async () => {
    await cleanUpServers();
    expect(agentRejections()).toEqual([]);
  });

  describe.concurrent('side by side', () => {
    it.each(LONG ? (['kill', 'pause'] as const) : (['kill'] as const))(
      'the master behind sentinels is taken away (%s): held locks stay sound, waiters are served, tokens rise',
      async (by) => {
        const world = await startRedisSentinel();
        const hosts = world.sentinelAddresses.map(({ host, port }) => `${host}:${port}`).join(',');
        const redis = `redis+sentinel://${hosts}/${world.name}`;
        await using locks = createLocks({ redis, outageMs: 20_000 });
        await using other = createLocks({ redis, outageMs: 20_000 });
        const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, lock).acquire()));
        const calls = KINDS.map((lock) => lockOf(other, exclusive(lock)).acquire({ wait: 25_000 }));
        await waitingFor(locks, KINDS.length);
        await sleep(100);
        await world.failover(by);
        const { failed } = await ending(locks.mutex('new').run(() => undefined, { wait: FOUND_MS }));
        expect(failed).toBeNull();
        await sleep(1500);
        await each(grants, async (grant, i) => {
          const passedOn = !(await isPendingAfter(calls[i]!, 0));
          if (passedOn) expect(grant.held, `${KINDS[i]}: two holders`).toBe(false);
        });
        await each(grants, (grant) => grant.release().catch(() => undefined));
        await each(calls, async (call, i) => {
          const next = await ending(call);
          expect(next.failed, KINDS[i]!).toBeNull();
          expect(next.value!.token, KINDS[i]!).toBeGreaterThan(grants[i]!.token);
          // Its connection for commands may still be on the way to the new master, longer than a hand-over lasts.
          await next.value!.release().catch(() => undefined);
        });
      },
      60_000,
    );

    it('in a cluster: hand-over, dead waiters, and a master that is replaced by its replica', async () => {
      const cluster = await startRedisCluster({ replicas: 1 });
      const redis = `redis+cluster://${cluster.nodes.map(({ host, port }) => `${host}:${port}`).join(',')}`;
      await using locks = createLocks({ redis, outageMs: 20_000 });
      await using other = createLocks({ redis, outageMs: 20_000 });
      const agent = await startAgent({ port: cluster.nodes[0]!.port, redis });
      const grants = await Promise.all(KINDS.map((lock) => lockOf(locks, exclusive(lock)).acquire()));
      for (const lock of KINDS) void agent.acquire(lock, exclusive(lock));
      await waitingFor(locks, KINDS.length);
      const calls = KINDS.map((lock) => lockOf(other, lock).acquire({ wait: 20_000 }));
      await waitingFor(locks, 2 * KINDS.length);
      await agent.kill();
      await sleep(300);
      const lag = new Lag();
      const had = await each(grants, async (grant, i) => {
        const end = ending(calls[i]!);
        await grant.release();
        const { ms, failed, value } = await end;
        expect(failed, KINDS[i]!).toBeNull();
        expect(ms, KINDS[i]!).toBeLessThan(400 + lag.maxMs);
        expect(value!.token, KINDS[i]!).toBeGreaterThan(grant.token);
        return value!;
      });

      // The node that serves the first of them.
      const [key] = (await Promise.all(cluster.nodes.map((node) => node.command('KEYS', '*:mutex:lock:m')))).flat() as [
        string,
      ];
      const owner = await cluster.ownerOf(key);
      await sleep(100);
      await owner.kill();
      await until('a replica has taken over', 20_000, async () => {
        const next = await cluster.ownerOf(key).catch(() => owner);
        return next !== owner;
      });
      const again = await ending(locks.mutex('m2').run(() => undefined, { wait: FOUND_MS }));
      expect(again.failed).toBeNull();
      await sleep(1000);
      await expectSound(had, locks);
      await each(had, (grant) => grant.release().catch(() => undefined));
      await each(KINDS, async (lock, i) => {
        const next = await ending(lockOf(locks, lock).acquire({ wait: FOUND_MS }));
        expect(next.failed, lock).toBeNull();
        expect(next.value!.token, lock).toBeGreaterThan(had[i]!.token);
      });
    }, 60_000);
  });
});
