import { spawn } from 'node:child_process';
import { afterAll, expect, it } from 'vitest';
import { type Clock, systemClock } from '../../src/base/clock.ts';
import type { JobContext } from '../../src/locks/job.ts';
import { createLocks, type Locks, type LocksOptions } from '../../src/locks/locks.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

function untilAborted({ signal }: JobContext): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve());
  });
}

/** They wait for seconds of the clock: side by side, each on a Redis of its own. */
const alongside = { concurrent: true };

describeWithRedis('jobs on a Redis', () => {
  const made: Locks[] = [];
  afterAll(async () => {
    await Promise.all(made.map((locks) => locks.close()));
    await cleanUpServers();
  });

  function instance(redis: RedisServer, options: LocksOptions = {}, aheadMs = 0): Locks {
    const clock: Clock = { now: () => systemClock.now() + aheadMs, monotonic: () => systemClock.monotonic() };
    const locks = createLocks({
      redis: redis.url,
      lease: 1000,
      outageMs: 500,
      commandMs: 300,
      runtime: { clock },
      ...options,
    });
    made.push(locks);
    return locks;
  }

  it('the next leads at once when the leader closes', async () => {
    const redis = await startRedis();
    const [a, b, c] = [instance(redis, { lease: 30_000 }), instance(redis), instance(redis)];
    const tokens: bigint[] = [];
    const lead = (context: JobContext) => {
      tokens.push(context.token);
      return untilAborted(context);
    };
    const jobs = [a.leader('j', lead)];
    await until('a leads', 2000, () => jobs[0]!.isLeader);
    for (const locks of [b, c]) {
      const said = new Promise((resolve) => locks.on('skipped', resolve));
      jobs.push(locks.leader('j', lead));
      expect(await said).toMatchObject({ kind: 'job', name: 'j', reason: 'led elsewhere' });
      await until('it waits', 2000, async () => (await a.fair('leader:j').inspect()).waiting === jobs.length - 1);
    }
    const beganMs = performance.now();
    await a.close();
    await until('b leads', 2000, () => jobs[1]!.isLeader);
    expect(performance.now() - beganMs).toBeLessThan(400);
    expect(jobs.map((job) => job.isLeader)).toEqual([false, true, false]);
    expect(tokens[1]!).toBeGreaterThan(tokens[0]!);
  });

  it('an outage ends the leadership before its lease, and all campaign on until Redis is back', alongside, async () => {
    const redis = await startRedis();
    const [a, b] = [instance(redis), instance(redis)];
    const outcomes: string[] = [];
    a.on('ended', ({ outcome }) => outcomes.push(outcome));
    const jobs = [a, b].map((locks) => locks.leader('j', untilAborted));
    await until('one leads', 10_000, () => jobs.some((job) => job.isLeader));
    await redis.kill();
    await until('nobody leads', 2000, () => jobs.every((job) => !job.isLeader));
    await sleep(1500);
    expect(jobs.every((job) => !job.isLeader)).toBe(true);
    await redis.restart();
    await until('one leads again', 10_000, () => jobs.some((job) => job.isLeader));
    await sleep(300);
    expect(jobs.filter((job) => job.isLeader)).toHaveLength(1);
  });

  it('a slot runs once over three instances with clocks 5 s apart', alongside, async () => {
    const redis = await startRedis();
    const slots: number[] = [];
    const reasons = new Set<string>();
    // Not whole seconds apart: runs of different slots would meet, and one of them be skipped.
    for (const aheadMs of [4700, 0, -4600]) {
      const locks = instance(redis, {}, aheadMs);
      locks.on('skipped', ({ reason }) => reasons.add(reason));
      locks.schedule('tick', '* * * * * *', async ({ slot }) => {
        slots.push(slot.getTime());
        await sleep(20);
      });
    }
    await sleep(8500);
    expect(new Set(slots).size).toBe(slots.length);
    // The first of them is 9.3 s before the last: its slots, and those that the others came to before they met.
    expect(slots.length).toBeGreaterThanOrEqual(15);
    expect(reasons).toContain('done elsewhere');
  });

  it('a slot during an outage is skipped and said so', alongside, async () => {
    const redis = await startRedis();
    const locks = instance(redis);
    const reasons: string[] = [];
    let runs = 0;
    locks.on('skipped', ({ reason }) => reasons.push(reason));
    locks.schedule('tick', '* * * * * *', () => void runs++);
    await until('it runs', 3000, () => runs > 0);
    await redis.kill();
    await until('it says so', 5000, () => reasons.includes('unavailable'));
    await redis.restart();
    const before = runs;
    await until('it runs again', 5000, () => runs > before);
  });

  it(
    'a leader that stands by, and a schedule, keep the process alive until the locks are closed',
    alongside,
    async () => {
      const redis = await startRedis();
      const source = new URL('../../src/locks/locks.ts', import.meta.url).href;
      const program = `
      import { createLocks } from ${JSON.stringify(source)};
      const locks = createLocks({ redis: ${JSON.stringify(redis.url)} });
      locks.schedule('s', '0 0 1 1 *', () => undefined);
      locks.leader('l', ({ signal }) => new Promise((resolve) => signal.addEventListener('abort', resolve)));
      process.stdout.write('up');
      process.once('SIGTERM', () => locks.close());`;
      const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      const gone = new Promise<number | null>((resolve) => child.once('exit', resolve));
      try {
        await new Promise((resolve) => child.stdout.once('data', resolve));
        expect(await Promise.race([gone, sleep(800)])).toBeUndefined();
        child.kill('SIGTERM');
        expect(await Promise.race([gone, sleep(5000)])).toBe(0);
      } finally {
        child.kill('SIGKILL');
      }
    },
  );
});
