import { afterAll, beforeAll, expect, it } from 'vitest';
import { createLocks, type Grant, type Locks } from '../../src/locks/index.ts';
import { LONG } from '../support/long.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type RedisSentinel, startRedisSentinel } from '../support/servers/redis.ts';
import { free, queued, sleep, timeOf } from './locks-ground.ts';

/** The rest of the contract is the same as on one Redis: only the way to it differs. */
describeWithRedis('locks through Redis Sentinel', () => {
  let servers: RedisSentinel;
  let a: Locks;
  let b: Locks;

  beforeAll(async () => {
    servers = await startRedisSentinel();
    const hosts = servers.sentinelAddresses.map(({ host, port }) => `${host}:${port}`).join(',');
    const redis = `redis+sentinel://${hosts}/${servers.name}`;
    // A failover takes some seconds: longer than acquire and release would go on by themselves.
    const options = { redis, outageMs: 20_000, lease: 6000 };
    a = createLocks(options);
    b = createLocks(options);
  });

  afterAll(async () => {
    await Promise.all([a?.close(), b?.close()]);
    await cleanUpServers();
  });

  it('is taken at the master, handed over between two clients, and given back', async () => {
    const first = await a.fair('door').acquire({ wait: 3000 });
    expect(await b.fair('door').tryAcquire()).toBeNull();
    const next = b.fair('door').acquire({ wait: 5000 });
    await queued(a, 'fair', 'door', 1);
    await first.release();
    expect(await timeOf(next)).toBeLessThan(1000);
    const second = await next;
    expect(second.token).toBeGreaterThan(first.token);
    expect(await a.fair('door').isLocked()).toBe(true);
    await second.release();
    await free(a, 'fair', 'door');
  });

  it('replicas: 1 is granted, and the replica has it; more than there are is refused', async () => {
    const grant = await a.mutex('copied').acquire({ replicas: 1, wait: 3000 });
    expect(await servers.replicas[0]!.command('KEYS', '*copied*')).not.toEqual([]);
    await grant.release();
    await expect(a.mutex('copied').acquire({ replicas: 2 })).rejects.toMatchObject({ code: 'lock_unavailable' });
    await free(b, 'mutex', 'copied');
  });

  it('replicas are asked for also where the one who gives it back hands it to a neighbour', async () => {
    const grant = await a.mutex('handed').acquire();
    const granted = a.mutex('handed').acquire({ replicas: 1, wait: 5000 });
    await queued(a, 'mutex', 'handed', 1);
    const refused = a.mutex('handed').acquire({ replicas: 2, wait: 5000 });
    refused.catch(() => undefined);
    await queued(a, 'mutex', 'handed', 2);
    await grant.release();
    const second = await granted;
    expect(await servers.replicas[0]!.command('KEYS', '*handed*')).not.toEqual([]);
    expect((await a.mutex('handed').inspect()).holders[0]!.info).not.toBe('');
    await second.release();
    await expect(refused).rejects.toMatchObject({ code: 'lock_unavailable' });
    await free(b, 'mutex', 'handed');
  });

  it.skipIf(!LONG)(
    'a failover in the middle: the holder keeps it or is told, waiters get through, tokens grow (only with DOORBUSTER_TEST_LONG=1: it takes seconds)',
    async () => {
      const held = await a.fair('f').acquire();
      const free1 = await a.mutex('m').acquire();
      await free1.release();
      const waiters: Promise<Grant>[] = [];
      for (let i = 0; i < 4; i++) {
        waiters.push([b, a][i % 2]!.fair('f').acquire({ wait: 60_000 }));
        await queued(a, 'fair', 'f', i + 1);
      }
      const { signal } = held;
      // The replica has heard of it.
      await sleep(300);
      await servers.failover('kill');
      // Held beyond the lease it had when the master died, or told so.
      await sleep(1000);
      expect(signal.aborted).toBe(!held.held);
      await held.release().catch((error) => expect(error).toMatchObject({ code: 'lock_lost' }));

      let last = held.token;
      let inside = 0;
      await Promise.all(
        waiters.map(async (waiter) => {
          const grant = await waiter;
          expect(++inside).toBe(1);
          expect(grant.token).toBeGreaterThan(last);
          last = grant.token;
          await sleep(20);
          inside--;
          await grant.release();
        }),
      );
      const after = await b.mutex('m').acquire({ wait: 20_000 });
      expect(after.token).toBeGreaterThan(free1.token);
      await after.release();
      await free(b, 'fair', 'f');
    },
    120_000,
  );
});
