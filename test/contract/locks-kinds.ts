import { describe, expect, it } from 'vitest';
import { TerminalError } from '../../src/base/errors.ts';
import {
  AbortedError,
  type Grant,
  HeldError,
  type Locks,
  LostError,
  NotOwnerError,
  type ReadWriteLock,
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

/** Many readers or one writer. */
export function readWriteContract(ground: Ground): void {
  describe('read-write', () => {
    function page(): { name: string; mine: ReadWriteLock; theirs: ReadWriteLock } {
      const name = ground.name('page');
      return { name, mine: ground.a.readWrite(name), theirs: ground.b.readWrite(name) };
    }

    it('readers are in together, a writer alone', async () => {
      const { mine, theirs } = page();
      const readers = [
        await mine.read.acquire(),
        await theirs.read.acquire({ wait: 0 }),
        (await mine.read.tryAcquire())!,
      ];
      expect(readers.map(({ mode }) => mode)).toEqual(['read', 'read', 'read']);
      expect(await mine.write.tryAcquire()).toBeNull();
      for (const reader of readers) await reader.release();
      const writer = await theirs.write.acquire({ wait: 0 });
      expect(writer.mode).toBe('write');
      expect(await mine.read.tryAcquire()).toBeNull();
      expect(await mine.write.tryAcquire()).toBeNull();
      expect(await mine.isLocked()).toBe(true);
      await writer.release();
      expect(await mine.isLocked()).toBe(false);
    });

    it('readers and writers of two clients: a writer is always alone', async () => {
      const { mine, theirs } = page();
      let readers = 0;
      let writers = 0;
      let crossed = 0;
      let together = 0;
      const calls = Array.from({ length: 40 }, (_, i) => {
        const lock = [mine, theirs][i % 2]!;
        if (i % 4 === 3) {
          return lock.write.run(async () => {
            if (++writers > 1 || readers > 0) crossed++;
            await sleep(1);
            writers--;
          });
        }
        return lock.read.run(async () => {
          if (writers > 0) crossed++;
          together = Math.max(together, ++readers);
          await sleep(2);
          readers--;
        });
      });
      await Promise.all(calls);
      expect(crossed).toBe(0);
      expect(together).toBeGreaterThan(1);
    });

    it('phase-fair: a waiting writer stops new readers; the readers behind it enter together after it', async () => {
      const { mine, theirs, name } = page();
      const first = await mine.read.acquire();
      const entered: string[] = [];
      const enter = (who: string, lock: ReadWriteLock, mode: 'read' | 'write') =>
        lock[mode].acquire({ wait: 5000 }).then((grant) => {
          entered.push(who);
          return grant;
        });
      const writer1 = enter('writer 1', theirs, 'write');
      await queued(ground.a, 'readwrite', name, 1);
      expect(await mine.read.tryAcquire()).toBeNull();
      const reader1 = enter('reader 1', mine, 'read');
      await queued(ground.a, 'readwrite', name, 2);
      const writer2 = enter('writer 2', mine, 'write');
      await queued(ground.a, 'readwrite', name, 3);
      const reader2 = enter('reader 2', theirs, 'read');
      await queued(ground.a, 'readwrite', name, 4);

      await first.release();
      const writing = await writer1;
      expect(await isPendingAfter(Promise.race([reader1, reader2, writer2]), 60)).toBe(true);
      await writing.release();
      // Also the reader behind the second writer: nobody waits for more than one turn of the other kind.
      const readings = await Promise.all([reader1, reader2]);
      expect(readings.every(({ held }) => held)).toBe(true);
      expect(await isPendingAfter(writer2, 60)).toBe(true);
      for (const reading of readings) await reading.release();
      await (await writer2).release();
      expect(entered[0]).toBe('writer 1');
      expect(entered[3]).toBe('writer 2');
    });

    it('a writer that gives up lets the readers behind it in', async () => {
      const { mine, theirs, name } = page();
      const first = await mine.read.acquire();
      const controller = new AbortController();
      const writer = fails(theirs.write.acquire({ signal: controller.signal }), AbortedError, 'lock_aborted');
      await queued(ground.a, 'readwrite', name, 1);
      const reader = mine.read.acquire({ wait: 5000 });
      await queued(ground.a, 'readwrite', name, 2);
      controller.abort();
      await writer;
      const reading = await reader;
      await Promise.all([first.release(), reading.release()]);
      await free(ground.a, 'readwrite', name);
    });

    it('each reader has a lease of its own: the writer waits for the longest', async () => {
      const { mine, theirs } = page();
      const short = await mine.read.acquire({ lease: 100 });
      const long = await theirs.read.acquire({ lease: 1600 });
      const renewed = await mine.read.acquire({ lease: 600, renew: true });
      const lost = aborting(short.signal, 2000);
      const writer = theirs.write.acquire({ wait: 5000 });
      await lost;
      expect(long.held && renewed.held).toBe(true);
      await sleep(700);
      expect(renewed.held).toBe(true);
      await renewed.release();
      expect(await isPendingAfter(writer, 50)).toBe(true);
      await (await writer).release();
      expect(long.held).toBe(false);
    });

    it('downgrade wakes the readers that wait, keeps the token, and keeps writers out', async () => {
      const { mine, theirs, name } = page();
      const writing = await mine.write.acquire();
      const reader = theirs.read.acquire({ wait: 5000 });
      await queued(ground.a, 'readwrite', name, 1);
      const reading = await mine.downgrade(writing);
      expect(reading).toMatchObject({ mode: 'read', token: writing.token, held: true });
      const beside = await reader;
      expect(writing.held).toBe(false);
      expect(writing.signal.aborted).toBe(false);
      await writing.release();
      expect(reading.held).toBe(true);
      expect(await theirs.write.tryAcquire()).toBeNull();
      await Promise.all([reading.release(), beside.release()]);
      await free(ground.a, 'readwrite', name);
    });

    it('downgrade is no gap: a waiting writer does not come in between', async () => {
      const { mine, theirs, name } = page();
      const writing = await mine.write.acquire();
      const writer = theirs.write.acquire({ wait: 5000 });
      await queued(ground.a, 'readwrite', name, 1);
      const reading = await mine.downgrade(writing);
      expect(await isPendingAfter(writer, 80)).toBe(true);
      await reading.release();
      const next = await writer;
      expect(next.token).toBeGreaterThan(reading.token);
      await next.release();
    });

    it('upgrade of the only reader is had at once, with a new token', async () => {
      const { mine, theirs } = page();
      const reading = await mine.read.acquire();
      const writing = await mine.upgrade(reading, { wait: 0 });
      expect(writing).toMatchObject({ mode: 'write', held: true });
      expect(writing.token).toBeGreaterThan(reading.token);
      expect(reading.held).toBe(false);
      expect(await theirs.read.tryAcquire()).toBeNull();
      await writing.release();
      expect(await theirs.isLocked()).toBe(false);
    });

    it('upgrade waits for the other readers, and goes before writers that wait', async () => {
      const { mine, theirs, name } = page();
      const reading = await mine.read.acquire();
      const other = await theirs.read.acquire();
      const writer = theirs.write.acquire({ wait: 5000 });
      await queued(ground.a, 'readwrite', name, 1);
      const upgrade = mine.upgrade(reading, { wait: 5000 });
      expect(await isPendingAfter(upgrade, 60)).toBe(true);
      expect(reading.held).toBe(true);
      await other.release();
      const writing = await upgrade;
      expect(writing.mode).toBe('write');
      expect(await isPendingAfter(writer, 60)).toBe(true);
      await writing.release();
      await (await writer).release();
    });

    it('upgrade with wait: 0 and other readers is refused, and the read hold stays', async () => {
      const { mine, theirs } = page();
      const reading = await mine.read.acquire();
      await using _other = await theirs.read.acquire();
      await fails(mine.upgrade(reading, { wait: 0 }), HeldError, 'lock_held');
      reading.assertHeld();
      await reading.release();
    });

    it('the second upgrade is refused at once, and the first goes through when that reader leaves', async () => {
      const { mine, theirs } = page();
      const one = await mine.read.acquire();
      const two = await theirs.read.acquire();
      const upgrade = mine.upgrade(one, { wait: 5000 });
      expect(await isPendingAfter(upgrade, 60)).toBe(true);
      const second = theirs.upgrade(two, { wait: 5000 });
      const [ms] = await Promise.all([timeOf(second), fails(second, HeldError, 'lock_held')]);
      expect(ms).toBeLessThan(1000);
      two.assertHeld();
      await two.release();
      await (await upgrade).release();
    });

    it('an upgrade that times out or is aborted keeps the read hold, and readers may enter again', async () => {
      const { mine, theirs, name } = page();
      const reading = await mine.read.acquire();
      const other = await theirs.read.acquire();
      const controller = new AbortController();
      const ms = timeOf(fails(mine.upgrade(reading, { wait: 100 }), TimeoutError, 'lock_timeout'));
      expect(await ms).toBeGreaterThan(80);
      await fails(mine.upgrade(reading, { wait: 60 }), TimeoutError, 'lock_timeout');
      const aborted = fails(mine.upgrade(reading, { signal: controller.signal }), AbortedError, 'lock_aborted');
      await sleep(60);
      controller.abort();
      await aborted;
      reading.assertHeld();
      expect(await mine.inspect()).toMatchObject({ waiting: 0, holders: { length: 2 } });
      const third = await theirs.read.acquire({ wait: 1000 });
      // And it may try again, now with success.
      await Promise.all([other.release(), third.release()]);
      await (await mine.upgrade(reading, { wait: 1000 })).release();
      await free(ground.a, 'readwrite', name);
    });

    it('upgrade and downgrade of what is not theirs: NotOwnerError', async () => {
      const { mine, theirs } = page();
      const reading = await mine.read.acquire();
      await fails(theirs.upgrade(reading), NotOwnerError, 'lock_not_owner');
      await fails(mine.downgrade(reading), NotOwnerError, 'lock_not_owner');
      await fails(page().mine.upgrade(reading), NotOwnerError, 'lock_not_owner');
      await reading.release();
      await fails(mine.upgrade(reading), NotOwnerError, 'lock_not_owner');
      const mutex = await ground.a.mutex(mine.name).acquire();
      await fails(mine.upgrade(mutex), NotOwnerError, 'lock_not_owner');
      await mutex.release();
    });

    it('upgrade of what is entered more than once, or is lost', async () => {
      const { mine } = page();
      const reading = await mine.read.acquire();
      const again = await mine.read.acquire({ within: reading });
      await fails(mine.upgrade(reading), HeldError, 'lock_held');
      await again.release();
      await reading.release();
      const short = await mine.read.acquire({ lease: 40 });
      await sleep(80);
      await fails(mine.upgrade(short), LostError, 'lock_lost', 'expired');
    });

    it('write inside a read run would wait for itself: HeldError at once, whatever the wait', async () => {
      const { mine } = page();
      await mine.read.run(async () => {
        const inner = mine.write.run(() => undefined, { wait: 5000 });
        const [ms, error] = await Promise.all([timeOf(inner), fails(inner, HeldError, 'lock_held')]);
        expect(ms).toBeLessThan(500);
        expect(error.message).toContain('upgrade()');
      });
    });

    it('read inside a write run re-enters, with its token; read inside read and write inside write, too', async () => {
      const { mine } = page();
      await mine.write.run(async (writing) => {
        await mine.read.run((reading) => expect(reading.token).toBe(writing.token));
        await mine.write.run((again) => expect(again.token).toBe(writing.token));
      });
      await mine.read.run(async (reading) => {
        await mine.read.run((again) => expect(again.token).toBe(reading.token));
      });
      expect(await mine.isLocked()).toBe(false);
    });

    it('read inside a read run re-enters although a writer waits', async () => {
      const { mine, theirs, name } = page();
      let writer: Promise<Grant> | undefined;
      await mine.read.run(async () => {
        writer = theirs.write.acquire({ wait: 5000 });
        await queued(ground.a, 'readwrite', name, 1);
        await mine.read.run(() => undefined, { wait: 0 });
      });
      await (await writer!).release();
    });

    it('read within a grant to write, not write within a grant to read', async () => {
      const { mine } = page();
      const writing = await mine.write.acquire();
      const reading = await mine.read.acquire({ within: writing });
      expect(reading.token).toBe(writing.token);
      await Promise.all([writing.release(), reading.release()]);
      const reader = await mine.read.acquire();
      await fails(mine.write.acquire({ within: reader }), NotOwnerError, 'lock_not_owner');
      await reader.release();
    });

    it('forceRelease takes it from all readers and lets the writer in', async () => {
      const { mine, theirs, name } = page();
      await waitOnce(ground.a, ground.b, 'readwrite', name);
      const readers = [await mine.read.acquire(), await mine.read.acquire()];
      const writer = theirs.write.acquire({ wait: 5000 });
      await queued(ground.b, 'readwrite', name, 1);
      const taken = await theirs.forceRelease();
      expect(taken.map(({ token }) => token).sort()).toEqual(readers.map(({ token }) => token).sort());
      await (await writer).release();
      for (const reader of readers) expect((await aborting(reader.signal, 3000)).reason).toBe('forced');
    });
  });
}

/** At most n at a time. */
export function semaphoreContract(ground: Ground): void {
  describe('semaphore', () => {
    const desk = (permits: number, name = ground.name('desk')) => ({
      name,
      mine: ground.a.semaphore(name, { permits }),
      theirs: ground.b.semaphore(name, { permits }),
    });

    it('gives n permits and no more, and what is given back again', async () => {
      const { mine, theirs } = desk(2);
      const one = await mine.acquire();
      const two = (await theirs.tryAcquire())!;
      expect(two.token).toBeGreaterThan(one.token);
      expect(await mine.tryAcquire()).toBeNull();
      await fails(theirs.acquire({ wait: 0 }), HeldError, 'lock_held');
      await fails(theirs.acquire({ wait: 60 }), TimeoutError, 'lock_timeout');
      await one.release();
      // Whoever gave up is told to the server on another connection, and may be handed it in passing.
      const three = await mine.acquire({ wait: 2000 });
      await Promise.all([two.release(), three.release()]);
      expect(await mine.available()).toBe(2);
    });

    it('is never above n, and reaches n', async () => {
      const { mine, theirs, name } = desk(3);
      let inside = 0;
      let most = 0;
      const calls = Array.from({ length: 30 }, (_, i) =>
        [mine, theirs][i % 2]!.run(async () => {
          most = Math.max(most, ++inside);
          await sleep(3);
          inside--;
        }),
      );
      await Promise.all(calls);
      expect(most).toBe(3);
      await free(ground.a, 'semaphore', name);
    });

    it('acquire of k takes k, and gives back k', async () => {
      const { mine, theirs } = desk(5);
      const three = await mine.acquire({ permits: 3 });
      expect(three.permits).toBe(3);
      expect(await theirs.available()).toBe(2);
      expect(await theirs.tryAcquire({ permits: 3 })).toBeNull();
      const two = await theirs.acquire({ permits: 2, wait: 0 });
      expect(await mine.available()).toBe(0);
      await three.release();
      expect(await mine.available()).toBe(3);
      await two.release();
      expect(await mine.run(() => mine.available(), { permits: 5 })).toBe(0);
    });

    it('who wants many is not passed by those who want few', async () => {
      const { mine, theirs, name } = desk(3);
      const first = await mine.acquire({ permits: 2 });
      const served: string[] = [];
      const big = theirs.acquire({ permits: 3 }).then((grant) => {
        served.push('big');
        return grant;
      });
      await queued(ground.a, 'semaphore', name, 1);
      // One permit is free, and it is not theirs.
      expect(await mine.tryAcquire()).toBeNull();
      const small = mine.acquire().then((grant) => {
        served.push('small');
        return grant;
      });
      await queued(ground.a, 'semaphore', name, 2);
      expect(await isPendingAfter(Promise.race([big, small]), 60)).toBe(true);
      await first.release();
      await (await big).release();
      await (await small).release();
      expect(served).toEqual(['big', 'small']);
    });

    it('a big request that gives up lets the small ones behind it in', async () => {
      const { mine, theirs, name } = desk(2);
      const first = await mine.acquire();
      const controller = new AbortController();
      const big = fails(theirs.acquire({ permits: 2, signal: controller.signal }), AbortedError, 'lock_aborted');
      await queued(ground.a, 'semaphore', name, 1);
      const small = mine.acquire({ wait: 5000 });
      await queued(ground.a, 'semaphore', name, 2);
      controller.abort();
      await big;
      await (await small).release();
      await first.release();
    });

    it('one release lets in as many as fit', async () => {
      const { mine, theirs, name } = desk(3);
      const all = await mine.acquire({ permits: 3 });
      const calls = [1, 2, 3].map(() => theirs.acquire({ wait: 5000 }));
      await queued(ground.a, 'semaphore', name, 3);
      await all.release();
      const grants = await Promise.all(calls);
      expect(new Set(grants.map(({ token }) => token)).size).toBe(3);
      for (const grant of grants) await grant.release();
    });

    it('each permit is a lease of its own: what expires comes back, the rest stays', async () => {
      const { mine, theirs } = desk(2);
      const short = await mine.acquire({ lease: 100 });
      const renewed = await mine.acquire();
      expect(await theirs.tryAcquire()).toBeNull();
      const next = theirs.acquire({ wait: 5000 });
      const ms = await timeOf(next);
      expect(ms).toBeGreaterThan(50);
      expect(ms).toBeLessThan(2000);
      expect(short.held).toBe(false);
      expect(renewed.held).toBe(true);
      await fails(short.release(), LostError, 'lock_lost', 'expired');
      expect(await mine.available()).toBe(0);
      await Promise.all([renewed.release(), (await next).release()]);
      expect(await mine.available()).toBe(2);
    });

    it('more than there are waits until there are more', async () => {
      const { mine, theirs, name } = desk(2);
      const big = theirs.acquire({ permits: 3, wait: 5000 });
      await queued(ground.a, 'semaphore', name, 1);
      await mine.resize(3);
      await (await big).release();
      await mine.resize(null);
    });

    it('resize up lets waiters in at once, for everybody', async () => {
      const { mine, theirs, name } = desk(1);
      const one = await mine.acquire();
      const two = theirs.acquire({ wait: 5000 });
      await queued(ground.a, 'semaphore', name, 1);
      await mine.resize(2);
      const had = await two;
      expect(await theirs.available()).toBe(0);
      expect((await theirs.inspect()).limit).toBe(2);
      await Promise.all([one.release(), had.release()]);
      expect(await theirs.available()).toBe(2);
      await mine.resize(null);
    });

    it('resize down takes nothing from holders; the next one waits until there is room', async () => {
      const { mine, theirs } = desk(3);
      const grants = [await mine.acquire(), await theirs.acquire(), await mine.acquire()];
      await mine.resize(1);
      expect(await theirs.available()).toBe(-2);
      expect(grants.every(({ held }) => held)).toBe(true);
      await grants[0]!.release();
      await grants[1]!.release();
      expect(await theirs.available()).toBe(0);
      expect(await theirs.tryAcquire()).toBeNull();
      await grants[2]!.release();
      await (await theirs.acquire({ wait: 0 })).release();
      await mine.resize(null);
    });

    it('resize to null goes back to what each caller says', async () => {
      const { mine, theirs, name } = desk(1);
      await mine.resize(5);
      expect(await theirs.available()).toBe(5);
      await mine.resize(null);
      expect(await theirs.available()).toBe(1);
      await using _one = await mine.acquire();
      expect(await theirs.tryAcquire()).toBeNull();
      const wider = ground.b.semaphore(name, { permits: 2 });
      await using _two = await wider.acquire({ wait: 0 });
    });

    it('resize to 0 closes it: nothing is available, nobody gets in', async () => {
      const { mine, theirs } = desk(2);
      await mine.resize(0);
      expect(await theirs.tryAcquire()).toBeNull();
      expect(await theirs.available()).toBe(0);
      await mine.resize(null);
      expect(await theirs.available()).toBe(2);
    });

    it('is not re-entrant: run inside run takes another permit', async () => {
      const { mine } = desk(2);
      await mine.run(async (outer) => {
        await mine.run(async (inner) => {
          expect(inner.token).toBeGreaterThan(outer.token);
          expect(await mine.available()).toBe(0);
          await fails(
            mine.run(() => undefined, { wait: 0 }),
            HeldError,
            'lock_held',
          );
        });
      });
      expect(await mine.available()).toBe(2);
    });

    it('forceRelease takes all permits from everybody', async () => {
      const { mine, theirs, name } = desk(2);
      // Any kind will do: a client listens to a name.
      await waitOnce(ground.a, ground.b, 'mutex', name);
      const grant = await mine.acquire({ permits: 2 });
      const next = theirs.acquire({ wait: 5000 });
      await queued(ground.b, 'semaphore', name, 1);
      expect(await theirs.forceRelease()).toMatchObject([{ permits: 2, token: grant.token }]);
      await (await next).release();
      expect((await aborting(grant.signal, 3000)).reason).toBe('forced');
    });
  });
}

/** Waits until so many things have happened. */
export function latchContract(ground: Ground): void {
  describe('latch', () => {
    const gate = (name = ground.name('gate')) => ({ mine: ground.a.latch(name), theirs: ground.b.latch(name) });

    it('counts down, not below 0, from two clients', async () => {
      const { mine, theirs } = gate();
      await mine.reset(3);
      expect(await theirs.count()).toBe(3);
      expect(await theirs.countDown()).toBe(2);
      expect(await mine.countDown(2)).toBe(0);
      expect(await theirs.countDown()).toBe(0);
      expect(await mine.count()).toBe(0);
    });

    it('wait ends when the count is 0, for everybody who waits, and not before', async () => {
      const { mine, theirs } = gate();
      await mine.reset(2);
      const waits = [mine.wait(), theirs.wait(), theirs.wait({ wait: 5000 })];
      await theirs.countDown();
      expect(await isPendingAfter(Promise.race(waits), 80)).toBe(true);
      await mine.countDown();
      expect(await timeOf(Promise.all(waits))).toBeLessThan(1000);
      await Promise.all(waits);
    });

    it('one that is open does not keep anybody', async () => {
      const { mine } = gate();
      await mine.reset(1);
      await mine.countDown();
      await mine.wait({ wait: 0 });
      await mine.wait();
    });

    it('one that was never set is open', async () => {
      const { mine } = gate();
      expect(await mine.count()).toBe(0);
      await mine.wait();
      expect(await mine.countDown()).toBe(0);
    });

    it('wait with a bound: TimeoutError in its bounds', async () => {
      const { mine } = gate();
      await mine.reset(1);
      const call = mine.wait({ wait: 150 });
      const [ms] = await Promise.all([timeOf(call), fails(call, TimeoutError, 'lock_timeout')]);
      expect(ms).toBeGreaterThan(140);
      expect(ms).toBeLessThan(800);
      const at0 = mine.wait({ wait: 0 });
      const [atOnceMs] = await Promise.all([timeOf(at0), fails(at0, TimeoutError, 'lock_timeout')]);
      expect(atOnceMs).toBeLessThan(500);
    });

    it('wait with a signal: AbortedError at once', async () => {
      const { mine } = gate();
      await mine.reset(1);
      const controller = new AbortController();
      const ending = fails(mine.wait({ signal: controller.signal }), AbortedError, 'lock_aborted');
      await sleep(50);
      const reason = new Error('enough');
      const beganMs = performance.now();
      controller.abort(reason);
      expect((await ending).cause).toBe(reason);
      expect(performance.now() - beganMs).toBeLessThan(500);
      await fails(mine.wait({ signal: AbortSignal.abort() }), AbortedError, 'lock_aborted');
    });

    it('reset sets it anew: who waits goes on waiting for the new count; reset to 0 opens it', async () => {
      const { mine, theirs } = gate();
      await mine.reset(1);
      const wait = theirs.wait({ wait: 5000 });
      await sleep(40);
      await mine.reset(2);
      await mine.countDown();
      expect(await isPendingAfter(wait, 80)).toBe(true);
      await mine.reset(0);
      await wait;
      await mine.reset(1);
      expect(await theirs.count()).toBe(1);
      await fails(theirs.wait({ wait: 40 }), TimeoutError, 'lock_timeout');
    });

    it('many count at once, each once', async () => {
      const { mine, theirs } = gate();
      await mine.reset(40);
      const wait = mine.wait({ wait: 5000 });
      const left = await Promise.all(Array.from({ length: 40 }, (_, i) => [mine, theirs][i % 2]!.countDown()));
      expect(left.sort((one, other) => one - other)).toEqual(Array.from({ length: 40 }, (_, i) => i));
      await wait;
    });

    it('is gone, and so open, so long after it was last set or counted', async () => {
      const name = ground.name('gate');
      const latch = ground.a.latch(name, { keep: 600 });
      await latch.reset(2);
      await sleep(350);
      await latch.countDown();
      await sleep(350);
      expect(await latch.count()).toBe(1);
      await sleep(400);
      expect(await ground.b.latch(name).count()).toBe(0);
    });

    it('a bad count is refused', async () => {
      const { mine } = gate();
      for (const call of [mine.reset(-1), mine.reset(1.5), mine.countDown(0), mine.countDown(-1)]) {
        const error = await errorOf(call);
        expect(error).toBeInstanceOf(TerminalError);
        expect(error.code).toBe(INVALID);
      }
      await fails(mine.wait({ wait: -1 }), TerminalError, INVALID);
    });
  });
}

/** All of several locks, or none. */
export function multiContract(ground: Ground): void {
  describe('multi', () => {
    const names = (count: number) => Array.from({ length: count }, () => ground.name('part'));

    it('takes all in one order, whatever order they are named in', async () => {
      const [one, two, three] = names(3);
      const grant = await ground.a.multi([three!, one!, two!]).acquire();
      const parts = [one!, two!, three!].sort();
      expect(grant.parts.map(({ name }) => name)).toEqual(parts);
      expect(grant.name).toBe(parts.join(' + '));
      expect(grant.token).toBe(grant.parts[0]!.token);
      for (const name of parts) expect(await ground.b.mutex(name).tryAcquire()).toBeNull();
      expect(grant.held).toBe(true);
      await grant.release();
      await grant.release();
      expect(grant.held).toBe(false);
      expect(() => grant.assertHeld()).toThrow(NotOwnerError);
      for (const name of parts) expect(await ground.b.mutex(name).isLocked()).toBe(false);
    });

    it('the same name twice is one lock', async () => {
      const [one] = names(1);
      const grant = await ground.a.multi([one!, one!, ground.a.mutex(one!)]).acquire({ wait: 1000 });
      expect(grant.parts).toHaveLength(1);
      await grant.release();
    });

    it('both sides of one read-write lock do not wait for each other: had, or refused at once', async () => {
      const { read, write } = ground.a.readWrite(ground.name('page'));
      const end = await ground.a
        .multi([read, write])
        .acquire({ wait: 500 })
        .catch((error: unknown) => error);
      expect(end).not.toBeInstanceOf(TimeoutError);
      if (!(end instanceof Error)) await (end as Grant).release();
    });

    it('all or none: what was had is given back when one cannot be had', async () => {
      const locks = { a: ground.client({ prefix: ground.prefix() }) } as { a: Locks };
      const [one, two, three] = names(3).sort();
      const held = await locks.a.mutex(three!).acquire();
      const multi = locks.a.multi([one!, two!, three!]);
      expect(await multi.tryAcquire()).toBeNull();
      await fails(multi.acquire({ wait: 0 }), HeldError, 'lock_held');
      const timed = multi.acquire({ wait: 120 });
      const [ms] = await Promise.all([timeOf(timed), fails(timed, TimeoutError, 'lock_timeout')]);
      expect(ms).toBeGreaterThan(110);
      expect(ms).toBeLessThan(800);
      await fails(multi.acquire({ signal: AbortSignal.timeout(50) }), AbortedError, 'lock_aborted');
      await held.release();
      await free(locks.a, 'mutex', three!);
      expect(await locks.a.list()).toEqual([]);
    });

    it('overlapping ones exclude each other and never wait for each other', async () => {
      const [one, two, three] = names(3);
      const sets = [
        [one!, two!],
        [three!, two!],
        [two!, one!],
        [one!, three!],
      ];
      const inside = new Set<string>();
      let crossed = 0;
      const calls = Array.from({ length: 24 }, (_, i) => {
        const wanted = sets[i % sets.length]!;
        return [ground.a, ground.b][i % 2]!.multi(wanted).run(
          async () => {
            for (const name of wanted) {
              if (inside.has(name)) crossed++;
              inside.add(name);
            }
            await sleep(1);
            for (const name of wanted) inside.delete(name);
          },
          { wait: 10_000 },
        );
      });
      await Promise.all(calls);
      expect(crossed).toBe(0);
    });

    it('over two places, and kinds', async () => {
      const there = ground.elsewhere();
      const [one, two] = names(2);
      const multi = ground.a.multi([ground.a.fair(one!), there.mutex(one!), ground.a.readWrite(two!).read]);
      await multi.run(async (grant) => {
        expect(grant.parts).toHaveLength(3);
        expect(await ground.b.fair(one!).tryAcquire()).toBeNull();
        expect(await there.mutex(one!).tryAcquire()).toBeNull();
        const reader = await ground.b.readWrite(two!).read.acquire({ wait: 0 });
        await reader.release();
        expect(await ground.b.readWrite(two!).write.tryAcquire()).toBeNull();
      });
      expect(await there.mutex(one!).isLocked()).toBe(false);
      const held = await there.mutex(one!).acquire();
      expect(await multi.tryAcquire()).toBeNull();
      expect(await ground.a.fair(one!).isLocked()).toBe(false);
      expect(await ground.a.readWrite(two!).isLocked()).toBe(false);
      await held.release();
    });

    it('re-enters in run what a run around it holds, and gives back only the rest', async () => {
      const [one, two] = names(2);
      await ground.a.mutex(two!).run(async (outer) => {
        await ground.a.multi([one!, two!]).run(async (grant) => {
          expect(grant.parts.find(({ name }) => name === two)!.token).toBe(outer.token);
          await ground.a.multi([two!, one!]).run((inner) => expect(inner.token).toBe(grant.token), { wait: 1000 });
          await ground.a.mutex(one!).run((part) => expect(part.token).toBe(grant.parts[0]!.token), { wait: 1000 });
        });
        outer.assertHeld();
        expect(await ground.b.mutex(one!).isLocked()).toBe(false);
        expect(await ground.b.mutex(two!).isLocked()).toBe(true);
      });
      expect(await ground.b.mutex(two!).isLocked()).toBe(false);
    });

    it('a bare acquire does not re-enter', async () => {
      const [one, two] = names(2);
      await ground.a.multi([one!, two!]).run(async () => {
        await fails(ground.a.multi([one!, two!]).acquire({ wait: 50 }), TimeoutError, 'lock_timeout');
      });
    });

    it('one part is lost: so is the whole, and the others are given back', async () => {
      const [one, two] = names(2);
      await waitOnce(ground.a, ground.b, 'mutex', two!);
      const grant = await ground.a.multi([one!, two!]).acquire();
      const lost = aborting(grant.signal, 3000);
      await ground.b.mutex(two!).forceRelease();
      expect((await lost).reason).toBe('forced');
      expect(grant.held).toBe(false);
      expect(() => grant.assertHeld()).toThrow(LostError);
      await fails(grant.release(), LostError, 'lock_lost', 'forced');
      expect(await ground.b.mutex(one!).isLocked()).toBe(false);
    });

    it('a fixed lease begins when the last part was had', async () => {
      const [one, two] = names(2).sort();
      const held = await ground.b.mutex(two!).acquire({ lease: 250 });
      const grant = await ground.a.multi([one!, two!]).acquire({ lease: 2000 });
      expect(held.held).toBe(false);
      // Of the first part 250 ms would be gone.
      expect(grant.remaining()).toBeGreaterThan(1800);
      for (const part of grant.parts) expect(part.remaining()).toBeGreaterThan(1800);
      await grant.extend(5000);
      for (const part of grant.parts) expect(part.remaining()).toBeGreaterThan(4000);
      await grant.release();
    });

    it('run gives all back when fn throws', async () => {
      const [one, two] = names(2);
      const error = new Error('no');
      const work = ground.a.multi([one!, two!]).run(() => {
        throw error;
      });
      expect(await errorOf(work)).toBe(error);
      for (const name of [one!, two!]) expect(await ground.b.mutex(name).isLocked()).toBe(false);
    });

    it('none, too many, and bad waits are refused', async () => {
      expect(() => ground.a.multi([])).toThrow(TerminalError);
      expect(() => ground.a.multi(Array.from({ length: 101 }, (_, i) => `part-${i}`))).toThrow(TerminalError);
      expect(() => ground.a.multi([''])).toThrow(TerminalError);
      const multi = ground.a.multi(names(2));
      for (const wait of [-1, Number.NaN]) await fails(multi.acquire({ wait }), TerminalError, INVALID);
    });
  });
}

/** Runs once in the cluster; everybody gets the result. */
export function onceContract(ground: Ground): void {
  describe('once', () => {
    it('runs once for 20 callers of two clients, during and after it', async () => {
      const key = ground.name('report');
      let runs = 0;
      const build = async () => {
        runs++;
        await sleep(60);
        return { total: 7, lines: ['a', 'b'] };
      };
      const calls = Array.from({ length: 20 }, (_, i) => [ground.a, ground.b][i % 2]!.once(key, build));
      for (const result of await Promise.all(calls)) expect(result).toEqual({ total: 7, lines: ['a', 'b'] });
      expect(await ground.b.once(key, build)).toEqual({ total: 7, lines: ['a', 'b'] });
      expect(runs).toBe(1);
    });

    it.each([undefined, null, 0, '', false, 'text', [], { nested: { deep: ['ñ'] } }])(
      'a result of %j is kept as it is',
      async (value) => {
        const key = ground.name('report');
        expect(await ground.a.once(key, () => value)).toEqual(value);
        const again = await ground.b.once(key, () => {
          throw new Error('ran again');
        });
        expect(again).toEqual(value);
      },
    );

    it('gives fn a grant of its own', async () => {
      const key = ground.name('report');
      await ground.a.once(key, (grant) => {
        expect(grant).toMatchObject({ kind: 'once', name: key, held: true });
        expect(grant.token).toBeGreaterThan(0n);
        expect(grant.signal.aborted).toBe(false);
      });
    });

    it('a failure reaches its caller alone, nothing is kept, and the next in line runs it', async () => {
      const key = ground.name('report');
      const error = new Error('the first one fails');
      let runs = 0;
      const build = async () => {
        if (++runs === 1) {
          await queued(ground.a, 'once', key, 2);
          throw error;
        }
        return 'second';
      };
      const first = ground.a.once(key, build);
      const ending = errorOf(first);
      await until('it runs', 2000, () => runs === 1);
      const others = [ground.b.once(key, build), ground.a.once(key, build)];
      expect(await ending).toBe(error);
      expect(await Promise.all(others)).toEqual(['second', 'second']);
      expect(runs).toBe(2);
    });

    it('a bounded wait, and an abort, while another runs it', async () => {
      const key = ground.name('report');
      let end: (() => void) | undefined;
      const first = ground.a.once(key, () => new Promise<void>((resolve) => (end = resolve)));
      await until('it runs', 2000, () => end !== undefined);
      const never = () => 'never';
      await fails(ground.b.once(key, never, { wait: 0 }), HeldError, 'lock_held');
      const timed = ground.b.once(key, never, { wait: 100 });
      const [ms] = await Promise.all([timeOf(timed), fails(timed, TimeoutError, 'lock_timeout')]);
      expect(ms).toBeGreaterThan(90);
      await fails(ground.b.once(key, never, { signal: AbortSignal.timeout(40) }), AbortedError, 'lock_aborted');
      end!();
      await first;
      expect(await ground.b.once(key, never)).toBeUndefined();
    });

    it('the result is kept for as long as keep says, and no longer', async () => {
      const key = ground.name('report');
      let runs = 0;
      const count = () => ++runs;
      expect(await ground.a.once(key, count, { keep: 500 })).toBe(1);
      await sleep(150);
      expect(await ground.b.once(key, count, { keep: 500 })).toBe(1);
      await sleep(550);
      expect(await ground.b.once(key, count, { keep: 500 })).toBe(2);
    });

    it('forget drops the result, once', async () => {
      const key = ground.name('report');
      let runs = 0;
      await ground.a.once(key, () => ++runs);
      expect(await ground.b.forget(key)).toBe(true);
      expect(await ground.b.forget(key)).toBe(false);
      expect(await ground.b.once(key, () => ++runs)).toBe(2);
    });

    it.each([
      ['a function', () => 1],
      ['a symbol', Symbol('s')],
      ['a bigint', 1n],
    ])('a result that is not JSON (%s) is refused, and the next one may run', async (_what, value) => {
      const key = ground.name('report');
      const error = await errorOf(ground.a.once<unknown>(key, () => value));
      expect(error).toBeInstanceOf(TerminalError);
      expect(error.code).toBe(INVALID);
      expect(await ground.b.once(key, () => 'fine', { wait: 0 })).toBe('fine');
    });

    it('a result that is too large to keep is refused', async () => {
      const key = ground.name('report');
      const error = await fails(
        ground.a.once(key, () => 'x'.repeat(1_000_001)),
        TerminalError,
        INVALID,
      );
      expect(error.message).toContain('too large');
    });

    it('a runner that lost its lock cannot store its result: LostError, and the next one runs it', async () => {
      const key = ground.name('report');
      let running = false;
      const slow = ground.a.once(
        key,
        async (grant) => {
          running = true;
          await aborting(grant.signal, 2000);
          return 'stale';
        },
        { lease: 80 },
      );
      const ending = fails(slow, LostError, 'lock_lost', 'expired');
      await until('it runs', 2000, () => running);
      expect(await ground.b.once(key, () => 'fresh', { wait: 3000 })).toBe('fresh');
      await ending;
      expect(await ground.a.once(key, () => 'again')).toBe('fresh');
    });
  });
}
