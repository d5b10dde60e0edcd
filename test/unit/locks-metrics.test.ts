import { Registry } from 'prom-client';
import { expect, it } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import { createLocks } from '../../src/locks/locks.ts';
import { MemorySpace } from '../../src/locks/memory/store.ts';
import { observeLocks } from '../../src/locks/metrics.ts';
import { until } from '../support/fault-wait.ts';

async function read(registry: Registry): Promise<Record<string, number>> {
  const values: Record<string, number> = {};
  for (const line of (await registry.metrics()).split('\n')) {
    const found = /^doorbuster_lock_(\S+) (\S+)$/.exec(line);
    if (found) values[found[1]!] = Number(found[2]);
  }
  return values;
}

it('counts what the locks of two clients do, by kind, and stops when told', async () => {
  const space = new MemorySpace(systemClock);
  const registry = new Registry();
  await using a = createLocks({ space });
  await using b = createLocks({ space });
  const stops = [observeLocks(a, registry), observeLocks(b, registry)];

  const grant = await a.mutex('m').acquire();
  expect(await b.mutex('m').tryAcquire()).toBeNull();
  await expect(b.mutex('m').acquire({ wait: 20 })).rejects.toThrow();
  const leaving = new AbortController();
  const waiting = b.mutex('m').acquire({ signal: leaving.signal });
  await until('it waits', 1000, async () => (await a.mutex('m').inspect()).waiting === 1);
  expect(await read(registry)).toMatchObject({ held: 1, waiting: 1 });
  leaving.abort();
  await expect(waiting).rejects.toThrow();
  await grant.release();
  await b.fair('f').acquire();
  await a.fair('f').forceRelease();
  await until('it is lost', 1000, async () => (await read(registry))['lost_total{kind="fair",reason="forced"}'] === 1);
  const [one, two] = await Promise.all([a.once('o', () => 1), b.once('o', () => 1)]);
  expect([one, two]).toEqual([1, 1]);
  const job = a.leader('j', () => undefined);
  await until('it has run', 1000, async () => (await read(registry))['jobs_total{outcome="done"}'] === 1);
  await job.stop();

  const values = await read(registry);
  expect(values).toMatchObject({
    'attempts_total{kind="mutex"}': 4,
    'acquisitions_total{kind="mutex"}': 1,
    'failures_total{kind="mutex",reason="held"}': 1,
    'failures_total{kind="mutex",reason="timeout"}': 1,
    'failures_total{kind="mutex",reason="aborted"}': 1,
    'wait_seconds_count{kind="mutex"}': 1,
    'hold_seconds_count{kind="mutex"}': 1,
    'hold_seconds_count{kind="fair"}': 2,
    'attempts_total{kind="once"}': 2,
    'acquisitions_total{kind="once"}': 1,
    held: 0,
    waiting: 0,
  });
  expect(JSON.stringify(Object.keys(values))).not.toMatch(/name=/);

  for (const stop of stops) stop();
  await (await a.mutex('m').acquire()).release();
  expect((await read(registry))['attempts_total{kind="mutex"}']).toBe(4);
});

it('begins anew in a registry that was cleared', async () => {
  const registry = new Registry();
  await using locks = createLocks({ space: new MemorySpace(systemClock) });
  observeLocks(locks, registry)();
  registry.clear();
  observeLocks(locks, registry);
  await locks.mutex('m').run(() => undefined);
  expect((await read(registry))['attempts_total{kind="mutex"}']).toBe(1);
});
