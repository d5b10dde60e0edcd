import { describe, expect, it } from 'vitest';
import { TerminalError } from '../../src/base/errors.ts';
import {
  AbortedError,
  HeldError,
  type LockEvents,
  type Locks,
  type LocksOptions,
  LostError,
  NotOwnerError,
  TimeoutError,
} from '../../src/locks/index.ts';
import {
  aborting,
  errorOf,
  fails,
  free,
  type Ground,
  isPendingAfter,
  queued,
  sleep,
  timeOf,
  until,
  waitOnce,
} from './locks-ground.ts';

const INVALID = 'invalid_argument';

/** Fencing tokens only grow, whatever became of the holder before. */
export function tokenContract(ground: Ground): void {
  describe('tokens', () => {
    it.each(['mutex', 'fair', 'read', 'write', 'semaphore'] as const)(
      'of a %s grow strictly, over release, expiry and force, and clients',
      async (kind) => {
        const name = ground.name('token');
        const lockOf = (locks: Locks) => {
          if (kind === 'mutex' || kind === 'fair') return locks[kind](name);
          if (kind === 'semaphore') return locks.semaphore(name, { permits: 1 });
          return locks.readWrite(name)[kind];
        };
        const tokens: bigint[] = [];
        for (const locks of [ground.a, ground.b, ground.a]) {
          const grant = await lockOf(locks).acquire({ wait: 2000 });
          tokens.push(grant.token);
          await grant.release();
          tokens.push((await lockOf(locks).acquire({ wait: 2000, lease: 30 })).token);
          await sleep(60);
          tokens.push((await lockOf(locks).acquire({ wait: 2000 })).token);
          await lockOf(ground.b).forceRelease();
          // Handed over to one that waits.
          const held = await lockOf(ground.a).acquire({ wait: 2000 });
          tokens.push(held.token);
          if (kind === 'read') await held.release();
          const next = lockOf(ground.b).acquire({ wait: 2000 });
          if (kind !== 'read') {
            await queued(ground.a, kind === 'write' ? 'readwrite' : kind, name, 1);
            await held.release();
          }
          const handed = await next;
          tokens.push(handed.token);
          await handed.release();
        }
        for (const [i, token] of tokens.entries()) {
          expect(typeof token).toBe('bigint');
          if (i > 0) expect(token, `token ${i} of ${tokens}`).toBeGreaterThan(tokens[i - 1]!);
        }
      },
    );

    it('are at least the time in microseconds: larger than any from before a restart', async () => {
      const beforeUs = BigInt(Date.now() - 60_000) * 1000n;
      const grant = await ground.a.mutex(ground.name()).acquire();
      expect(grant.token).toBeGreaterThan(beforeUs);
      // And safe in a number, in Lua and in JSON for the next two centuries.
      expect(grant.token).toBeLessThan(BigInt(Number.MAX_SAFE_INTEGER));
      await grant.release();
    });

    it('of readers that are in together differ', async () => {
      const lock = ground.a.readWrite(ground.name());
      const readers = await Promise.all(Array.from({ length: 10 }, () => lock.read.acquire()));
      expect(new Set(readers.map(({ token }) => token)).size).toBe(10);
      await Promise.all(readers.map((reader) => reader.release()));
    });
  });
}

type Told = { event: keyof LockEvents } & Record<string, unknown>;

/** Everything a client tells, in order. */
function ear(locks: Locks): Told[] {
  const told: Told[] = [];
  for (const event of ['asked', 'waiting', 'acquired', 'failed', 'released', 'lost', 'crossed'] as const) {
    locks.on(event, (what: object) => told.push({ event, ...what }));
  }
  return told;
}

/** Events, inspect and list. */
export function sightContract(ground: Ground): void {
  describe('events', () => {
    it('asked, acquired, released of one that is free', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const name = ground.name();
      const grant = await locks.mutex(name).acquire({ label: 'checkout' });
      await grant.release();
      expect(told.map(({ event }) => event)).toEqual(['asked', 'acquired', 'released']);
      for (const each of told) expect(each).toMatchObject({ kind: 'mutex', name, label: 'checkout' });
      expect(told[1]).toMatchObject({ token: grant.token, waited: false });
      expect(told[2]).toMatchObject({ token: grant.token });
      expect(told[2]!.heldMs).toBeGreaterThanOrEqual(0);
    });

    it('waiting once, and how long, of one that is held', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const name = ground.name();
      const held = await ground.a.fair(name).acquire();
      const call = locks.fair(name).acquire();
      await queued(ground.a, 'fair', name, 1);
      await sleep(60);
      await held.release();
      await (await call).release();
      expect(told.map(({ event }) => event)).toEqual(['asked', 'waiting', 'acquired', 'released']);
      expect(told[2]).toMatchObject({ waited: true });
      expect(told[2]!.waitedMs).toBeGreaterThan(50);
      expect(told[2]!.waitedMs).toBeLessThan(3000);
    });

    it('failed, with why: held, timeout, aborted', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const name = ground.name();
      await using _held = await ground.a.mutex(name).acquire();
      const lock = locks.mutex(name);
      await lock.tryAcquire();
      await fails(lock.acquire({ wait: 0 }), HeldError, 'lock_held');
      await fails(lock.acquire({ wait: 40 }), TimeoutError, 'lock_timeout');
      await fails(lock.acquire({ signal: AbortSignal.timeout(40) }), AbortedError, 'lock_aborted');
      const reasons = told.filter(({ event }) => event === 'failed').map(({ reason }) => reason);
      expect(reasons).toEqual(['held', 'held', 'timeout', 'aborted']);
    });

    it('failed because it is held, of an upgrade that is refused', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const name = ground.name();
      await using _other = await ground.a.readWrite(name).read.acquire();
      const reading = await locks.readWrite(name).read.acquire();
      await fails(locks.readWrite(name).upgrade(reading, { wait: 0 }), HeldError, 'lock_held');
      expect(told.filter(({ event }) => event === 'failed')).toMatchObject([{ reason: 'held', mode: 'write' }]);
      await reading.release();
    });

    it('lost, with why, and no released after it', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const [one, two] = [ground.name(), ground.name()];
      await waitOnce(locks, ground.a, 'fair', two);
      const expired = await locks.mutex(one).acquire({ lease: 50, label: 'slow' });
      const forced = await locks.fair(two).acquire();
      const lost = aborting(forced.signal, 3000);
      await sleep(90);
      await ground.a.fair(two).forceRelease();
      await lost;
      await errorOf(expired.release());
      await errorOf(forced.release());
      expect(told.filter(({ event }) => event === 'lost')).toMatchObject([
        { kind: 'mutex', name: one, reason: 'expired', token: expired.token, label: 'slow' },
        { kind: 'fair', name: two, reason: 'forced', token: forced.token },
      ]);
      expect(told.filter(({ event }) => event === 'released')).toEqual([]);
    });

    it('re-entry is one hold: one acquired, one released', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const lock = locks.mutex(ground.name());
      await lock.run(() => lock.run(() => lock.run(() => undefined)));
      expect(told.map(({ event }) => event)).toEqual(['asked', 'acquired', 'released']);
    });

    it('a listener that throws breaks nothing, and on() gives its end', async () => {
      const locks = ground.client();
      let heard = 0;
      const stop = locks.on('acquired', () => {
        heard++;
        throw new Error('a bad listener');
      });
      const lock = locks.mutex(ground.name());
      await lock.run(() => undefined);
      stop();
      await lock.run(() => undefined);
      expect(heard).toBe(1);
      expect(await lock.isLocked()).toBe(false);
    });

    it('crossed: nested locks in crossed order are told once, with both stacks', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const [one, two] = [ground.name(), ground.name()];
      async function takeThere() {
        await locks.mutex(one).run(() => locks.fair(two).run(() => undefined));
      }
      async function takeHere() {
        await locks.fair(two).run(() => locks.mutex(one).run(() => undefined));
      }
      await takeThere();
      await takeThere();
      expect(told.filter(({ event }) => event === 'crossed')).toEqual([]);
      await takeHere();
      await takeHere();
      await takeThere();
      const crossed = told.filter(({ event }) => event === 'crossed');
      expect(crossed).toHaveLength(1);
      expect(crossed[0]).toMatchObject({ first: `fair ${two}`, second: `mutex ${one}` });
      // Both stacks lead into this file, to two different lines.
      const lineOf = (stack: unknown) => /locks-sight\.ts:(\d+)/.exec(String(stack))?.[1];
      const [here, there] = [lineOf(crossed[0]!.here), lineOf(crossed[0]!.there)];
      expect(here).toBeDefined();
      expect(there).toBeDefined();
      expect(here).not.toBe(there);
    });

    it('crossed: a multi-lock against nested ones', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const [one, two] = [ground.name(), ground.name()].sort() as [string, string];
      await locks.multi([one, two]).run(() => undefined);
      await locks.mutex(two).run(() => locks.mutex(one).run(() => undefined));
      expect(told.filter(({ event }) => event === 'crossed')).toHaveLength(1);
    });

    it('crossed: a multi-lock inside a run', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const [one, two] = [ground.name(), ground.name()].sort() as [string, string];
      await locks.mutex(one).run(() => locks.mutex(two).run(() => undefined));
      await locks.mutex(two).run(() => locks.multi([one, two]).run(() => undefined));
      expect(told.filter(({ event }) => event === 'crossed')).toHaveLength(1);
    });

    it('not crossed: multi-locks among themselves, and locks after one another', async () => {
      const locks = ground.client();
      const told = ear(locks);
      const [one, two] = [ground.name(), ground.name()];
      await locks.multi([one, two]).run(() => undefined);
      await locks.multi([two, one]).run(() => undefined);
      for (const name of [one, two, one]) await locks.mutex(name).run(() => undefined);
      expect(told.filter(({ event }) => event === 'crossed')).toEqual([]);
    });
  });

  describe('inspect and list', () => {
    it('inspect shows the holder: who, label, token, age, what remains; and those who wait, in order', async () => {
      const name = ground.name();
      const beganMs = Date.now();
      const grant = await ground.a.fair(name).acquire({ label: 'nightly report', lease: 20_000 });
      const calls = [ground.b.fair(name).acquire()];
      await queued(ground.a, 'fair', name, 1);
      calls.push(ground.a.fair(name).acquire());
      const seen = await queued(ground.a, 'fair', name, 2);
      expect(seen).toMatchObject({ kind: 'fair', name, waiting: 2, limit: null });
      expect(seen.holders).toHaveLength(1);
      const [holder] = seen.holders;
      expect(holder).toMatchObject({ token: grant.token, permits: 1, mode: 'write' });
      expect(holder!.info).toMatch(new RegExp(`/${process.pid} nightly report$`));
      // By the store's clock, which is this machine's in the tests.
      expect(Math.abs(holder!.sinceMs - beganMs)).toBeLessThan(3000);
      expect(seen.nowMs - holder!.sinceMs).toBeGreaterThanOrEqual(0);
      expect(holder!.remainingMs).toBeGreaterThan(15_000);
      expect(holder!.remainingMs).toBeLessThanOrEqual(20_000);
      expect(seen.waiters).toHaveLength(2);
      expect(seen.waiters[0]!.ticket).toBeLessThan(seen.waiters[1]!.ticket);
      expect(await ground.b.fair(name).inspect()).toMatchObject({ waiting: 2 });
      await grant.release();
      for (const call of calls) await (await call).release();
      expect(await ground.a.inspect('fair', name)).toMatchObject({ holders: [], waiters: [], waiting: 0 });
    });

    it('a holder that had it handed over is shown with its label and its whole lease, too', async () => {
      const name = ground.name();
      const grant = await ground.a.mutex(name).acquire();
      const call = ground.b.mutex(name).acquire({ label: 'second', lease: 20_000 });
      await queued(ground.a, 'mutex', name, 1);
      await grant.release();
      const next = await call;
      const holder = await until('the hand-over is confirmed', 2000, async () => {
        const [one] = (await ground.a.inspect('mutex', name)).holders;
        return one!.info === '' ? null : one!;
      });
      expect(holder.info).toMatch(/ second$/);
      expect(holder.remainingMs).toBeGreaterThan(15_000);
      await next.release();
    });

    it('shows the first 100 of a long line, and how long it is', async () => {
      const lock = ground.a.mutex(ground.name());
      const grant = await lock.acquire();
      const controller = new AbortController();
      const calls = Array.from({ length: 130 }, () => errorOf(lock.acquire({ signal: controller.signal })));
      const seen = await queued(ground.b, 'mutex', lock.name, 130);
      expect(seen.waiters).toHaveLength(100);
      controller.abort();
      await Promise.all(calls);
      await grant.release();
      await free(ground.b, 'mutex', lock.name);
    });

    it('readers, writers and permits are shown as what they are', async () => {
      const name = ground.name();
      const rw = ground.a.readWrite(name);
      const readers = [await rw.read.acquire(), await rw.read.acquire()];
      const writer = rw.write.acquire();
      const seen = await queued(ground.b, 'readwrite', name, 1);
      expect(seen.holders.map(({ mode }) => mode)).toEqual(['read', 'read']);
      expect(seen.waiters.map(({ mode }) => mode)).toEqual(['write']);
      for (const reader of readers) await reader.release();
      const writing = await writer;
      expect((await rw.inspect()).holders.map(({ mode }) => mode)).toEqual(['write']);
      await writing.release();
      const semaphore = ground.a.semaphore(name, { permits: 3 });
      const two = await semaphore.acquire({ permits: 2 });
      const three = semaphore.acquire({ permits: 3 });
      const permits = await queued(ground.b, 'semaphore', name, 1);
      expect(permits.holders.map((each) => each.permits)).toEqual([2]);
      expect(permits.waiters.map((each) => each.permits)).toEqual([3]);
      await two.release();
      await (await three).release();
    });

    it('inspect of what nobody has or wants is empty', async () => {
      const name = ground.name();
      for (const kind of ['mutex', 'fair', 'readwrite', 'semaphore', 'once'] as const) {
        expect(await ground.a.inspect(kind, name)).toMatchObject({ kind, name, holders: [], waiters: [], waiting: 0 });
      }
    });

    it('list has every lock that is held or waited for, of every client, and nothing else', async () => {
      const prefix = ground.prefix();
      const [mine, theirs] = [ground.client({ prefix }), ground.client({ prefix })];
      expect(await mine.list()).toEqual([]);
      let end!: () => void;
      const grants = [
        await mine.mutex('a:{1}').acquire({ label: 'first' }),
        await theirs.fair('b').acquire(),
        await mine.readWrite('c').read.acquire(),
        await theirs.semaphore('d', { permits: 4 }).acquire({ permits: 3 }),
      ];
      const once = theirs.once('e', () => new Promise<void>((resolve) => (end = resolve)));
      const waiter = mine.fair('b').acquire();
      await queued(mine, 'fair', 'b', 1);
      await mine.mutex('released').run(() => undefined);
      await mine.mutex('expired').acquire({ lease: 20 });
      await sleep(50);
      const seen = await until('the once runs', 2000, async () => {
        const all = await mine.list();
        return all.some(({ kind }) => kind === 'once') ? all : null;
      });
      const rows = seen.map(({ kind, name, holders, waiting }) => `${kind} ${name}: ${holders.length} + ${waiting}`);
      expect(rows.sort()).toEqual([
        'fair b: 1 + 1',
        'mutex a:{1}: 1 + 0',
        'once e: 1 + 0',
        'readwrite c: 1 + 0',
        'semaphore d: 1 + 0',
      ]);
      expect(seen.find(({ kind }) => kind === 'mutex')!.holders[0]).toMatchObject({ token: grants[0]!.token });
      expect((await theirs.list(['readwrite', 'semaphore'])).map(({ name }) => name).sort()).toEqual(['c', 'd']);
      for (const grant of grants) await grant.release();
      await (await waiter).release();
      end();
      await once;
      // The result of the once is kept, but nobody holds or waits.
      expect(await mine.list()).toEqual([]);
    });

    it('list leaves out what is only stored: a size that was set', async () => {
      const locks = ground.client({ prefix: ground.prefix() });
      await locks.semaphore('d', { permits: 1 }).resize(5);
      expect(await locks.list()).toEqual([]);
      await locks.semaphore('d', { permits: 1 }).resize(null);
    });

    it('list finds 150 names', async () => {
      const locks = ground.client({ prefix: ground.prefix() });
      const grants = await Promise.all(Array.from({ length: 150 }, (_, i) => locks.mutex(`n${i}`).acquire()));
      expect(new Set((await locks.list(['mutex'])).map(({ name }) => name)).size).toBe(150);
      await Promise.all(grants.map((grant) => grant.release()));
      expect(await locks.list()).toEqual([]);
    });
  });
}

/** The end of a client. */
export function closeContract(ground: Ground): void {
  describe('close', () => {
    function pair(): [Locks, Locks] {
      const prefix = ground.prefix();
      return [ground.client({ prefix }), ground.client({ prefix })];
    }

    it('rejects who waits, aborts the signals of holders, and leaves nothing behind', async () => {
      const [mine, theirs] = pair();
      const grants = [
        await mine.mutex('m').acquire(),
        await mine.fair('f').acquire(),
        await mine.readWrite('r').read.acquire(),
        await mine.semaphore('s', { permits: 3 }).acquire({ permits: 2 }),
      ];
      const signals = grants.map(({ signal }) => aborting(signal, 3000));
      const held = await theirs.mutex('other').acquire();
      const waiter = fails(mine.mutex('other').acquire(), AbortedError, 'lock_aborted');
      const run = fails(
        mine.mutex('other').run(() => undefined),
        AbortedError,
        'lock_aborted',
      );
      await theirs.latch('l').reset(1);
      const latch = fails(mine.latch('l').wait(), AbortedError, 'lock_aborted');
      await queued(theirs, 'mutex', 'other', 2);
      expect(await timeOf(mine.close())).toBeLessThan(2000);
      await Promise.all([waiter, run, latch]);
      for (const signal of signals) expect((await signal).reason).toBe('closed');
      for (const grant of grants) {
        expect(grant.held).toBe(false);
        expect(() => grant.assertHeld()).toThrow(LostError);
        await fails(grant.release(), LostError, 'lock_lost', 'closed');
      }
      await held.release();
      expect(await theirs.list()).toEqual([]);
    });

    it('hands what it held to those who wait elsewhere, at once', async () => {
      const [mine, theirs] = pair();
      await mine.fair('f').acquire();
      const next = theirs.fair('f').acquire({ wait: 5000 });
      await queued(theirs, 'fair', 'f', 1);
      await mine.close();
      expect(await timeOf(next)).toBeLessThan(1000);
      await (await next).release();
    });

    it('its waiters are out of the line: those behind them go on at once', async () => {
      const [mine, theirs] = pair();
      const held = await theirs.fair('f').acquire();
      const gone = fails(mine.fair('f').acquire(), AbortedError, 'lock_aborted');
      await queued(theirs, 'fair', 'f', 1);
      const next = theirs.fair('f').acquire({ wait: 5000 });
      await queued(theirs, 'fair', 'f', 2);
      await mine.close();
      await gone;
      await held.release();
      expect(await timeOf(next)).toBeLessThan(400);
      await (await next).release();
    });

    it('a run that is going on ends with LostError', async () => {
      const [mine, theirs] = pair();
      const run = mine.mutex('m').run(async ({ signal }) => {
        const lost = aborting(signal, 3000);
        await mine.close();
        return (await lost).reason;
      });
      await fails(run, LostError, 'lock_lost', 'closed');
      expect(await theirs.list()).toEqual([]);
    });

    it('afterwards nothing can be taken: AbortedError', async () => {
      const [mine] = pair();
      const lock = mine.mutex('m');
      await mine.close();
      await mine.close();
      const calls = [
        lock.acquire(),
        lock.acquire({ wait: 0 }),
        lock.tryAcquire(),
        lock.run(() => undefined),
        mine.readWrite('r').read.acquire(),
        mine.semaphore('s', { permits: 1 }).acquire(),
        mine.multi(['a', 'b']).acquire(),
        mine.once('o', () => 1),
        mine.latch('l').wait(),
      ];
      const ends = await Promise.all(calls.map((call) => errorOf(call as Promise<unknown>)));
      for (const error of ends) {
        expect(error).toBeInstanceOf(AbortedError);
        expect(error.code).toBe('lock_aborted');
      }
    });

    it('afterwards questions fail soon, with an error of ours', async () => {
      const [mine] = pair();
      await mine.mutex('m').run(() => undefined);
      await mine.close();
      const questions = [
        mine.mutex('m').isLocked(),
        mine.mutex('m').inspect(),
        mine.mutex('m').forceRelease(),
        mine.list(),
        mine.forget('o'),
        mine.latch('l').count(),
        mine.latch('l').reset(1),
        mine.latch('l').countDown(),
        mine.semaphore('s', { permits: 1 }).resize(2),
      ];
      const [ms, ...ends] = await Promise.all([
        timeOf(Promise.allSettled(questions)),
        ...questions.map((question) => errorOf(question as Promise<unknown>)),
      ]);
      expect(ms).toBeLessThan(1500);
      for (const error of ends) expect(error.code).toMatch(/^lock_(aborted|unavailable)$/);
    });

    it('await using closes', async () => {
      const prefix = ground.prefix();
      let signal: AbortSignal;
      {
        await using locks = ground.client({ prefix });
        signal = (await locks.mutex('m').acquire()).signal;
      }
      expect(signal.aborted).toBe(true);
      expect(await ground.client({ prefix }).list()).toEqual([]);
    });

    it('of one client does not touch another', async () => {
      const [mine, theirs] = pair();
      const grant = await theirs.mutex('m').acquire();
      const waiter = theirs.mutex('m').acquire({ wait: 5000 });
      await queued(mine, 'mutex', 'm', 1);
      await mine.close();
      expect(grant.held).toBe(true);
      expect(await isPendingAfter(waiter, 60)).toBe(true);
      await grant.release();
      await (await waiter).release();
    });
  });
}

/** What cannot be meant is refused with the name of what is wrong, and nothing is taken. */
export function argumentsContract(ground: Ground): void {
  describe('bad arguments', () => {
    const refused = async (call: () => unknown, says: RegExp) => {
      const error = await errorOf((async () => await call())());
      expect(error).toBeInstanceOf(TerminalError);
      expect(error.code).toBe(INVALID);
      expect(error.message).toMatch(says);
    };

    it.each(['', 'x'.repeat(513), '\ud800', 7, null, undefined, {}] as string[])('a name of %j', async (name) => {
      const { a } = ground;
      await refused(() => a.mutex(name), /name/);
      await refused(() => a.fair(name), /name/);
      await refused(() => a.readWrite(name), /name/);
      await refused(() => a.semaphore(name, { permits: 1 }), /name/);
      await refused(() => a.latch(name), /name/);
      await refused(() => a.once(name, () => 1), /name/);
      await refused(() => a.forget(name), /name/);
      await refused(() => a.inspect('mutex', name), /name/);
    });

    it.each([
      ['wait', -1],
      ['wait', Number.NaN],
      ['wait', '5'],
      ['lease', 0],
      ['lease', -5],
      ['lease', Infinity],
      ['lease', Number.NaN],
      ['lease', 2 ** 31],
      ['maxHold', 0],
      ['maxHold', '1'],
      ['label', 'x'.repeat(201)],
      ['label', 5],
      ['replicas', -1],
      ['replicas', 0.5],
    ])('%s: %j', async (option, value) => {
      const lock = ground.a.mutex(ground.name());
      const says = new RegExp(option);
      await refused(() => lock.acquire({ [option]: value }), says);
      await refused(() => lock.run(() => undefined, { [option]: value }), says);
      if (option !== 'wait') await refused(() => lock.tryAcquire({ [option]: value }), says);
      expect(await lock.isLocked()).toBe(false);
    });

    it.each([0, -1, 1.5, Number.NaN, '2', undefined] as number[])('permits: %j', async (permits) => {
      await refused(() => ground.a.semaphore(ground.name(), { permits }), /permits/);
      if (permits === undefined) return;
      const semaphore = ground.a.semaphore(ground.name(), { permits: 2 });
      await refused(() => semaphore.acquire({ permits }), /permits/);
      await refused(() => semaphore.tryAcquire({ permits }), /permits/);
      if (permits !== 0) await refused(() => semaphore.resize(permits), /permits/);
      expect(await semaphore.available()).toBe(2);
    });

    it.each([0, -1, Number.NaN, Infinity, '50'] as number[])('extend(%s), and it is held as before', async (ms) => {
      const lock = ground.a.mutex(ground.name());
      const grant = await lock.acquire({ lease: 5000 });
      await refused(() => grant.extend(ms), /lease/);
      expect(grant.held).toBe(true);
      expect(grant.remaining()).toBeLessThanOrEqual(5000);
      await grant.release();
    });

    it('keep of a once and of a latch', async () => {
      await refused(() => ground.a.once(ground.name(), () => 1, { keep: 0 }), /keep/);
      await refused(() => ground.a.latch(ground.name(), { keep: 0 }), /keep/);
    });

    it('within what is no grant', async () => {
      const lock = ground.a.mutex(ground.name());
      await fails(lock.acquire({ within: {} as never }), NotOwnerError, 'lock_not_owner');
    });

    it.each([{ prefix: '' }, { prefix: 'a{b}' }, { lease: 0 }, { handOverMs: 0 }, { commandMs: 0 }, { outageMs: -1 }])(
      'createLocks(%j)',
      async (options: LocksOptions) => {
        await refused(() => ground.client(options), new RegExp(Object.keys(options)[0]!));
      },
    );
  });
}
