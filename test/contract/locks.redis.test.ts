import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createLocks, type Locks } from '../../src/locks/index.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import { locksContract } from './locks.ts';
import { queued, until } from './locks-ground.ts';

const ENTRY = new URL('../../src/locks/index.ts', import.meta.url).href;

describeWithRedis('locks on one Redis', () => {
  afterAll(cleanUpServers);

  locksContract('redis', async () => {
    const [here, there] = await Promise.all([startRedis(), startRedis()]);
    return {
      client: (options) => createLocks({ redis: here.url, ...options }),
      elsewhere: () => createLocks({ redis: there.url }),
      withoutReplicas: 'lock_unavailable',
      end: async () => undefined,
    };
  });

  describe.concurrent('the end of a process', () => {
    let server: RedisServer;
    let locks: Locks;
    const children: ChildProcess[] = [];

    beforeAll(async () => {
      server = await startRedis();
      locks = createLocks({ redis: server.url });
    });

    afterAll(async () => {
      for (const child of children) child.kill('SIGKILL');
      await locks?.close();
    });

    /** A process that runs `body` with `locks`, says so at its end, and then has nothing more to do. */
    function script(body: string): { said: () => string; ended: () => Promise<number | null>; exited: () => boolean } {
      const text = `import { createLocks } from ${JSON.stringify(ENTRY)};
        const locks = createLocks({ redis: ${JSON.stringify(server.url)} });
        console.log('begin of script');
        ${body}
        console.log('end of script');`;
      const child = spawn(process.execPath, ['--input-type=module', '-e', text], { stdio: ['ignore', 'pipe', 'pipe'] });
      children.push(child);
      let said = '';
      for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (said += chunk));
      const exit = once(child, 'exit').then(([code]) => code as number | null);
      return {
        said: () => said,
        ended: () => exit,
        exited: () => child.exitCode !== null || child.signalCode !== null,
      };
    }

    /** A busy machine takes seconds to start one. */
    async function begins(child: ReturnType<typeof script>): Promise<void> {
      await until('the script has begun', 15_000, () => child.said().includes('begin of script') || child.exited());
      expect(child.said()).toContain('begin of script');
    }

    /** It came to the end of its script, and was gone within 2 s. */
    async function endsByItself(child: ReturnType<typeof script>): Promise<void> {
      await begins(child);
      await until('the script is through', 10_000, () => child.said().includes('end of script') || child.exited());
      await until('the process has ended', 2000, () => child.exited());
      expect(await child.ended(), child.said()).toBe(0);
      expect(child.said()).toContain('end of script');
    }

    it('one that only holds a lock, renewed, ends by itself, without close()', async () => {
      await endsByItself(script(`await locks.mutex('held').acquire();`));
      // It was not given back: the lease ends it.
      expect(await locks.mutex('held').isLocked()).toBe(true);
    });

    it('one that has waited, and listens, ends by itself, too', async () => {
      const held = await locks.fair('listened').acquire();
      // The first call connects, which takes a busy machine longer than the wait.
      const child = script(
        `await locks.fair('listened').isLocked();
        await locks.fair('listened').acquire({ wait: 200 }).catch((error) => console.log(error.code));`,
      );
      await endsByItself(child);
      expect(child.said()).toContain('lock_timeout');
      await held.release();
    });

    it.each(['fair', 'mutex'] as const)('one that waits for a %s stays until it has it', async (kind) => {
      const name = `contended ${kind}`;
      const held = await locks[kind](name).acquire();
      const child = script(`const grant = await locks.${kind}(${JSON.stringify(name)}).acquire();
        console.log('granted', grant.held);
        await grant.release();`);
      await begins(child);
      await queued(locks, kind, name, 1);
      await new Promise((resolve) => setTimeout(resolve, 1200));
      expect(child.exited()).toBe(false);
      await held.release();
      await endsByItself(child);
      expect(child.said()).toContain('granted true');
      expect(await locks[kind](name).isLocked()).toBe(false);
    });

    it('one that waits for a latch stays until it opens', async () => {
      const latch = locks.latch('opening');
      await latch.reset(1);
      const child = script(`await locks.latch('opening').wait();`);
      await begins(child);
      await new Promise((resolve) => setTimeout(resolve, 800));
      expect(child.exited()).toBe(false);
      await latch.countDown();
      await endsByItself(child);
    });

    it('one that closes ends at once', async () => {
      await endsByItself(script(`await locks.mutex('closed').acquire(); await locks.close();`));
      expect(await locks.mutex('closed').isLocked()).toBe(false);
    });
  });
});
