import { readFileSync } from 'node:fs';
import { inspect } from 'node:util';
import { Cluster, Redis, type RedisOptions } from 'ioredis';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { KeepAlive } from '../../src/base/keep-alive.ts';
import { RedisLink } from '../../src/base/redis/link.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { systemTimers } from '../../src/base/timers.ts';
import { type AcquireOptions, createLocks, type Locks, type LocksOptions } from '../../src/locks/index.ts';
import { until } from '../support/fault-wait.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { freePort } from '../support/servers/process.ts';
import { type RedisServer, startRedis, startRedisCluster } from '../support/servers/redis.ts';

/** How the locks come to Redis: by an address, or by a client of the caller's with settings of its own. */
afterAll(cleanUpServers);

/** Taken, waited for, handed over, counted. */
async function expectToLock(locks: Locks): Promise<void> {
  const first = await locks.mutex('given').acquire();
  const second = locks.mutex('given').acquire({ wait: 2000 });
  await first.release();
  await (await second).release();
  await locks.semaphore('given', { permits: 2 }).run(() => undefined, { permits: 2 });
  await locks.latch('given').reset(2);
  expect(await locks.latch('given').countDown()).toBe(1);
  expect(await locks.list()).toEqual([]);
}

describeWithRedis('locks: a client that is given', () => {
  let redis: RedisServer;

  beforeAll(async () => {
    redis = await startRedis();
  });

  it.each<[string, Omit<RedisOptions, 'replyMapping'>]>([
    ['a time limit for commands', { commandTimeout: 5000 }],
    ['numbers as strings', { stringNumbers: true }],
    ['a connection that is made later', { lazyConnect: true }],
    ['pipelines, a prefix, and limits of its own', { enableAutoPipelining: true, keyPrefix: 'x:', socketTimeout: 50 }],
    ['reads only', { readOnly: true, enableReadyCheck: false, blockingTimeout: 10 }],
  ])('its settings do not break the locks: %s', async (_, options) => {
    const client = new Redis(redis.port, redis.host, options);
    try {
      await using locks = createLocks({ redis: client });
      await expectToLock(locks);
    } finally {
      client.disconnect();
    }
  });

  it('nor do those of a cluster', async () => {
    const { nodes } = await startRedisCluster({ masters: 2 });
    const redisOptions = { commandTimeout: 5000, stringNumbers: true, lazyConnect: true };
    const client = new Cluster([{ host: nodes[0]!.host, port: nodes[0]!.port }], { lazyConnect: true, redisOptions });
    try {
      await using locks = createLocks({ redis: client });
      await expectToLock(locks);
    } finally {
      client.disconnect();
    }
  });

  it('a reply that cannot be read fails its request and nothing else', async () => {
    const keepAlive = new KeepAlive();
    const ignore = { message: () => undefined, interrupted: () => undefined };
    const link = new RedisLink(redis.url, { commandMs: 1000 }, systemRuntime(), keepAlive, ignore);
    const script = { name: 'one', lua: 'return 1', sha: 'e0e1f9fabfc9d4800c877a703b823ac0578ff8db' };
    const ask = (): Promise<unknown> =>
      new Promise((_, failed) => {
        const answered = (): void => {
          throw new TypeError('of another shape');
        };
        link.send(script, 0, 0, '', 0, { answered, failed });
      });
    // The first goes the slow way, since it waits for the connection; the others do not.
    for (let i = 0; i < 3; i++) await expect(ask()).rejects.toThrow('of another shape');
    expect(await link.call('PING', [])).toBe('PONG');
    link.close();
    keepAlive.close();
  });
});

describeWithRedis('locks: while Redis is about to answer', () => {
  /** Turns of the event loop that ten locks asked for, one after the other. */
  async function turnsOf(redis: RedisServer, options: LocksOptions): Promise<number> {
    let turns = 0;
    const nextTurn = (run: () => void): void => {
      turns++;
      systemTimers.nextTurn(run);
    };
    await using locks = createLocks({
      redis: redis.url,
      runtime: { timers: { ...systemTimers, nextTurn } },
      ...options,
    });
    await locks.mutex('m').run(() => undefined);
    turns = 0;
    for (let i = 0; i < 10; i++) await locks.mutex('m').run(() => undefined);
    return turns;
  }

  it('the process sleeps, and keeps its event loop turning only if it is attentive', async () => {
    const redis = await startRedis();
    expect(await turnsOf(redis, {})).toBe(0);
    expect(await turnsOf(redis, { attentive: true })).toBeGreaterThanOrEqual(20);
  });
});

describeWithRedis('locks: a user with restricted rights', () => {
  it.each(['docs/guides/locks.md', 'docs/zh-CN/guides/locks.md'])(
    'the rights that %s names are enough',
    async (page) => {
      const text = readFileSync(new URL(`../../${page}`, import.meta.url), 'utf8');
      const rights = /^`(~doorbuster:lock:\* [^`]+)`$/m.exec(text)![1]!.split(' ');
      const redis = await startRedis();
      await redis.command('ACL', 'SETUSER', 'limited', 'on', '>pass', ...rights);
      await using locks = createLocks({ redis: `redis://limited:pass@${redis.host}:${redis.port}` });
      await expectToLock(locks);
      const reading = await locks.readWrite('given').read.acquire();
      await (await locks.readWrite('given').upgrade(reading)).release();
      expect(await locks.once('given', () => 7)).toBe(7);
      expect(await locks.forget('given')).toBe(true);
      await locks.semaphore('given', { permits: 2 }).resize(3);
      await locks.latch('given').countDown();
      await locks.latch('given').wait({ wait: 1000 });
      const held = await locks.fair('given').acquire();
      expect(await locks.list()).toHaveLength(1);
      expect(await locks.fair('given').forceRelease()).toHaveLength(1);
      await until('it hears of it', 2000, () => !held.held);
      // WAIT is allowed: refused are only the replicas, which are not there.
      await expect(locks.mutex('given').acquire({ replicas: 1 })).rejects.toThrow(/reached 0 of 1 replicas/);
    },
  );
});

describeWithRedis('locks: an address that leads nowhere', () => {
  const PASSWORD = 'S3cretPassw0rd';

  /** What a lock at this address fails with, and what was logged. */
  async function failureAt(url: string, options: AcquireOptions = {}): Promise<{ error: Error; warnings: object[] }> {
    const warnings: object[] = [];
    const log = { debug: () => undefined, info: () => undefined, error: () => undefined };
    await using locks = createLocks({
      redis: url,
      commandMs: 200,
      outageMs: 500,
      log: { ...log, warn: (details) => void warnings.push(details as object) },
    });
    const error = await locks
      .mutex('nowhere')
      .acquire(options)
      .then(
        () => new Error('it was had'),
        (error: Error) => error,
      );
    return { error, warnings };
  }

  it('says where and why, with a wait too, logs it once, and never the password', async () => {
    const redis = await startRedis();
    const place = `${redis.host}:${redis.port}`;
    for (const options of [{}, { wait: 400 }]) {
      const { error, warnings } = await failureAt(`redis://nobody:${PASSWORD}@${place}`, options);
      expect(error).toMatchObject({ code: 'lock_unavailable' });
      expect(error.message).toMatch(new RegExp(`no connection to ${place}/0.*: WRONGPASS`));
      expect(inspect(error, { depth: 20, showHidden: true })).not.toContain(PASSWORD);
      expect(warnings).toEqual([{ redis: `${place}/0`, reason: expect.stringMatching(/^WRONGPASS/) }]);
    }
    const nobody = await failureAt(`redis://127.0.0.1:${await freePort()}`);
    expect(nobody.error.message).toMatch(/ECONNREFUSED/);
    expect(inspect(nobody.error)).not.toContain('[cause]: undefined');
  });

  it('a database that Redis does not have is refused: it would be database 0', async () => {
    const redis = await startRedis();
    const { error } = await failureAt(`${redis.url}/99`);
    expect(error).toMatchObject({ code: 'bad_config' });
    expect(error.message).toMatch(/no database 99/);
    await using locks = createLocks({ redis: `${redis.url}/3` });
    await locks.mutex('nowhere').run(() => undefined);
  });
});
