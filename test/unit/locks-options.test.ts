import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import {
  assertFenced,
  createLocks,
  createQuorum,
  expressIdempotency,
  fenceSql,
  type LocksOptions,
  MemorySpace,
  observeLocks,
} from '../../src/locks/index.ts';
import { until } from '../support/fault-wait.ts';

const space = new MemorySpace(systemClock);

/** What somebody writes who has no compiler to tell them. */
const wrong = (options: object): never => options as never;

describe('what createLocks is given', () => {
  it.each([undefined, null, ''])(
    'a redis that is given and empty (%j) is refused: it would lock inside this process',
    (redis) => {
      expect(() => createLocks(wrong({ redis }))).toThrow(/redis that is empty/);
    },
  );

  it('an option that it does not know is refused by name, and told what there is', () => {
    expect(() => createLocks(wrong({ rediss: 'redis://127.0.0.1' }))).toThrow(/no option "rediss".*\bredis\b/);
    expect(() => createLocks(wrong({ retries: 3 }))).toThrow(/no option "retries"/);
    expect(() => createQuorum(wrong({ masters: ['redis://127.0.0.1'], redis: 'x' }))).toThrow(/no option "redis"/);
    expect(() => createQuorum(wrong({ masters: [undefined] }))).toThrow(/none of them empty/);
  });

  it.each([
    ['redis://127.0.0.1:1?tls=true', /"\?tls=".*rediss:\/\//],
    ['redis://127.0.0.1:1?db=3', /"\?db=".*redis:\/\/host:port\/3/],
    ['redis+sentinel://127.0.0.1:1/m?tls=1', /"\?tls="/],
    ['redis+cluster://127.0.0.1:1/3', /database 0 only/],
    ['redis://:a%b@127.0.0.1:1', /% in the password must be written as %25/],
    [{ host: '127.0.0.1', port: 1 }, /an ioredis 6 client, made with the copy .* give the address/],
  ])('an address that would be understood otherwise is refused: %j', (redis, why) => {
    expect(() => createLocks(wrong({ redis }))).toThrow(why);
    expect(() => createLocks(wrong({ redis }))).toThrow(expect.objectContaining({ code: 'bad_config' }));
  });

  it('every option of the type is known', async () => {
    const options: Required<Omit<LocksOptions, 'redis' | 'log' | 'runtime'>> = {
      prefix: 'p',
      lease: 1000,
      handOverMs: 100,
      commandMs: 100,
      outageMs: 100,
      attentive: false,
      space,
    };
    await createLocks(options).close();
  });

  it('a log needs four methods: it may be console', async () => {
    const lines: [string, unknown][] = [];
    const at = (level: string) => (details: object | string, message?: string) =>
      void lines.push([level, message ?? details]);
    const log = { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
    await using locks = createLocks({ space, log });
    await locks.mutex('logged').acquire();
    await locks.mutex('logged').forceRelease();
    await until('the loss is logged', 1000, () =>
      lines.some(([level, message]) => `${level}: ${message}` === 'warn: a lock was lost'),
    );
    await createLocks({ space, log: console }).close();
  });
});

describe('what a call is given', () => {
  it('an unknown option is refused by name, by every kind', async () => {
    await using locks = createLocks({ space });
    const typo = wrong({ timeout: 5 });
    const asked: [string, () => unknown][] = [
      ['acquire', () => locks.mutex('a').acquire(typo)],
      ['tryAcquire', () => locks.mutex('a').tryAcquire(typo)],
      ['acquire', () => locks.fair('a').run(() => 1, typo)],
      ['acquire', () => locks.readWrite('a').read.acquire(typo)],
      ['acquire', () => locks.semaphore('a', { permits: 1 }).acquire(typo)],
      ['acquire of a multi-lock', () => locks.multi(['a', 'b']).acquire(typo)],
      ['semaphore', () => locks.semaphore('a', wrong({ permits: 1, limit: 2 }))],
      ['latch', () => locks.latch('a', typo)],
      ['wait of a latch', () => locks.latch('a').wait(typo)],
      ['once', () => locks.once('a', () => 1, typo)],
      ['leader', () => locks.leader('a', () => 1, typo)],
      ['schedule', () => locks.schedule('a', '* * * * *', () => 1, typo)],
      ['fenceSql', () => fenceSql(1n, typo)],
      ['the idempotency middleware', () => expressIdempotency(locks, wrong({ ttl: 1 }))],
    ];
    for (const [call, ask] of asked) {
      const failure = await Promise.resolve()
        .then(ask)
        .then(() => null)
        .catch((error: unknown) => error as Error & { code: string });
      expect([call, failure?.code]).toEqual([call, 'invalid_argument']);
      expect(failure!.message).toMatch(new RegExp(`^${call} has no option "(timeout|limit|ttl)"; it knows `));
    }
  });

  it('multi takes one array of names and of locks that it can take: everything else would be taken only in part', async () => {
    await using locks = createLocks({ space });
    const sides = locks.readWrite('c');
    await using grant = await locks.multi(['a', locks.fair('b'), sides.read]).acquire();
    expect(grant.parts).toHaveLength(3);
    const [a, b] = [locks.semaphore('a', { permits: 1 }), locks.semaphore('b', { permits: 1 })];
    const quorum = createQuorum({ masters: [locks] });
    for (const list of [[a, b], [sides], [quorum.mutex('q')], [locks.multi(['a', 'b'])], [null], 'ab', undefined]) {
      expect(() => locks.multi(wrong(list as object))).toThrow(expect.objectContaining({ code: 'invalid_argument' }));
    }
    expect(() => locks.multi('a' as never)).toThrow(/one array/);
  });

  it('what would mean something else than its author thinks is refused as an argument, and not by a TypeError', async () => {
    await using locks = createLocks({ space });
    const mutex = locks.mutex('a');
    const permits = locks.semaphore('a', { permits: 2 });
    const quorum = createQuorum({ masters: [locks] });
    const none = undefined as never;
    const asked: (() => unknown)[] = [
      () => permits.acquire(2 as never),
      () => permits.tryAcquire(2 as never),
      () => permits.tryAcquire(wrong({ wait: 5 })),
      () => mutex.tryAcquire(wrong({ wait: 5 })),
      () => locks.multi(['a']).tryAcquire(wrong({ wait: 5 })),
      () => quorum.mutex('a').tryAcquire(wrong({ wait: 5 })),
      () => mutex.acquire({ renew: false }),
      () => mutex.acquire(wrong({ lease: 500, renew: 'no' })),
      () => mutex.acquire(null as never),
      () => mutex.acquire(wrong({ signal: new AbortController() })),
      () => locks.latch('a').wait(wrong({ signal: 'now' })),
      () => mutex.run(none),
      () => permits.run(none),
      () => locks.multi(['a']).run(none),
      () => quorum.mutex('a').run(none),
      () => locks.once('a', 5 as never),
      () => locks.leader('a', none),
      () => locks.schedule('a', '* * * * *', none),
      () => locks.on('lots' as never, () => undefined),
      () => locks.on('lost', none),
      () => locks.list(['mutexes' as never]),
      () => locks.list('mutex' as never),
      () => locks.inspect('mutx' as never, 'a'),
      () => createLocks({ redis: 'redis://127.0.0.1', space }),
      () => createLocks(wrong({ space: {} })),
      () => createLocks(wrong({ log: {} })),
      () => createLocks(wrong({ log: true })),
      () => observeLocks(locks, wrong({})),
      () => observeLocks(wrong({})),
      () => assertFenced(none, 'a'),
      () => assertFenced(wrong({ changes: 1 }), 'a'),
      () => assertFenced(Number.NaN, 'a'),
    ];
    for (const ask of asked) {
      const failure = await Promise.resolve()
        .then(ask)
        .then(() => null)
        .catch((error: unknown) => error as Error & { code: string });
      expect([String(ask), failure?.code]).toEqual([String(ask), 'invalid_argument']);
    }
    await (await mutex.acquire({ renew: true, signal: AbortSignal.timeout(1000) })).release();
    assertFenced(1n, 'a');
  });

  it('options that are no object are refused', async () => {
    await using locks = createLocks({ space });
    await expect(locks.mutex('b').acquire(wrong(500 as never))).rejects.toThrow('must be an object');
  });
});

describe('what a caller gets', () => {
  it('once: the runner gets what everybody else gets, a Date as a string', async () => {
    await using locks = createLocks({ space });
    const run = (): Promise<{ at: unknown }> => locks.once('c', () => ({ at: new Date(0) }));
    const [first, second] = [await run(), await run()];
    expect(first).toEqual({ at: '1970-01-01T00:00:00.000Z' });
    expect(second).toEqual(first);
  });

  it('a grant can be logged as JSON, its token as a string', async () => {
    await using locks = createLocks({ space });
    await using grant = await locks.mutex('d').acquire();
    expect(JSON.parse(JSON.stringify(grant))).toMatchObject({ kind: 'mutex', name: 'd', token: String(grant.token) });
    await using both = await locks.multi(['e', 'f']).acquire();
    expect(JSON.parse(JSON.stringify(both))).toMatchObject({ token: String(both.token), parts: 2, held: true });
  });

  it('so can what inspect, list and forceRelease give', async () => {
    await using locks = createLocks({ space: new MemorySpace(systemClock) });
    const { token } = await locks.mutex('d').acquire();
    const seen = await locks.mutex('d').inspect();
    expect(seen.holders[0]!.token).toBe(token);
    for (const shown of [seen, await locks.inspect('mutex', 'd'), (await locks.list())[0]]) {
      expect(JSON.parse(JSON.stringify(shown))).toMatchObject({ name: 'd', holders: [{ token: String(token) }] });
    }
    const taken = await locks.mutex('d').forceRelease();
    expect(JSON.parse(JSON.stringify(taken))).toMatchObject([
      { token: String(token), remainingMs: expect.any(Number) },
    ]);
  });

  it('after close every call fails in the same way', async () => {
    const locks = createLocks({ space });
    const [mutex, latch, permits] = [locks.mutex('g'), locks.latch('g'), locks.semaphore('g', { permits: 1 })];
    await locks.close();
    const calls: (() => Promise<unknown>)[] = [
      () => mutex.acquire(),
      () => mutex.inspect(),
      () => mutex.isLocked(),
      () => mutex.forceRelease(),
      () => latch.count(),
      () => latch.reset(1),
      () => latch.countDown(),
      () => permits.available(),
      () => permits.resize(2),
      () => locks.list(),
      () => locks.inspect('mutex', 'g'),
      () => locks.forget('g'),
      () => locks.once('g', () => 1),
    ];
    for (const call of calls) await expect(call(), String(call)).rejects.toMatchObject({ code: 'lock_aborted' });
  });

  it('texts name what was asked for: whole milliseconds, extend, a fixed lease that ended', async () => {
    await using locks = createLocks({ space });
    const held = await locks.mutex('h').acquire();
    await expect(locks.multi(['g', 'h']).acquire({ wait: 20 })).rejects.toThrow(/within \d+ ms$/);
    await expect(held.extend(undefined as never)).rejects.toThrow(
      /^the lease that extend\(\) is given must be a number/,
    );
    await held.release();
    const fixed = await locks.mutex('h').acquire({ lease: 20 });
    await until('it has ended', 1000, () => !fixed.held);
    expect(() => fixed.assertHeld()).toThrow(/its fixed lease has ended/);
  });
});
