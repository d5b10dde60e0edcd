import { describe, expect, it } from 'vitest';
import { RetryableError, TerminalError } from '../../src/base/errors.ts';
import { systemTimers } from '../../src/base/timers.ts';
import {
  AbortedError,
  type Grant,
  HeldError,
  LostError,
  type Mutex,
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
  waitOnce,
} from './locks-ground.ts';

/** One holder at a time. All of it holds for `fair` as well. */
export function mutexContract(ground: Ground): void {
  describe.each(['mutex', 'fair'] as const)('%s', (kind) => {
    function door(): { name: string; mine: Mutex; theirs: Mutex } {
      const name = ground.name(kind);
      return { name, mine: ground.a[kind](name), theirs: ground.b[kind](name) };
    }

    it('tryAcquire takes what is free and gives null for what is held, by whomever', async () => {
      const { mine, theirs, name } = door();
      const grant = (await mine.tryAcquire())!;
      expect(grant).toMatchObject({ name, kind, held: true, permits: 1 });
      expect(await theirs.tryAcquire()).toBeNull();
      expect(await mine.tryAcquire()).toBeNull();
      await grant.release();
      const next = (await theirs.tryAcquire())!;
      expect(next.held).toBe(true);
      await next.release();
    });

    it('two who take turns do not keep out one who waits elsewhere', async () => {
      const { mine, theirs, name } = door();
      let turns = 0;
      let over = false;
      const loop = async (): Promise<void> => {
        while (!over) {
          await mine.run(async () => {
            turns++;
            await sleep(1);
          });
        }
      };
      const first = await mine.acquire();
      const loops = [loop(), loop()];
      await queued(ground.a, kind, name, 2);
      const waiting = theirs.acquire({ wait: 5000 });
      await queued(ground.a, kind, name, 3);
      await first.release();
      const had = await waiting;
      over = true;
      expect(turns).toBeLessThan(40);
      await had.release();
      await Promise.all(loops);
    });

    it('acquire waits and has it as soon as it is released', async () => {
      const { mine, theirs, name } = door();
      const grant = await mine.acquire();
      const next = theirs.acquire();
      expect(await isPendingAfter(next, 60)).toBe(true);
      await queued(ground.a, kind, name, 1);
      const beganMs = performance.now();
      await grant.release();
      const had = await next;
      // By notification, long before the lease of 30 s.
      expect(performance.now() - beganMs).toBeLessThan(1000);
      expect(had.held).toBe(true);
      await had.release();
      await free(ground.a, kind, name);
    });

    it('run gives the result of fn and releases', async () => {
      const { mine, theirs } = door();
      const result = await mine.run(async (grant) => {
        grant.assertHeld();
        expect(await theirs.tryAcquire()).toBeNull();
        return 42;
      });
      expect(result).toBe(42);
      expect(await mine.isLocked()).toBe(false);
    });

    it('run releases when fn throws, at once or later, and rejects with its error', async () => {
      const { mine } = door();
      const early = new Error('early');
      const late = new Error('late');
      expect(
        await errorOf(
          mine.run(() => {
            throw early;
          }),
        ),
      ).toBe(early);
      expect(await mine.isLocked()).toBe(false);
      const thrown = mine.run(async () => {
        await sleep(5);
        throw late;
      });
      expect(await errorOf(thrown)).toBe(late);
      expect(await mine.isLocked()).toBe(false);
    });

    it('await using releases at the end of the block', async () => {
      const { mine, theirs } = door();
      let grant: Grant;
      {
        await using held = await mine.acquire();
        grant = held;
        expect(await theirs.isLocked()).toBe(true);
      }
      expect(grant.held).toBe(false);
      expect(await theirs.isLocked()).toBe(false);
    });

    it('is held by one at a time, however many want it', async () => {
      const { name } = door();
      let inside = 0;
      let most = 0;
      let done = 0;
      const clients = [ground.a, ground.b];
      const callers = Array.from({ length: 30 }, (_, i) =>
        clients[i % 2]![kind](name).run(async () => {
          most = Math.max(most, ++inside);
          await sleep(i % 3);
          inside--;
          done++;
        }),
      );
      await Promise.all(callers);
      expect({ most, done }).toEqual({ most: 1, done: 30 });
    });

    it('wait: 0 does not wait (HeldError)', async () => {
      const { mine, theirs, name } = door();
      await using _held = await mine.acquire();
      const error = await fails(theirs.acquire({ wait: 0 }), HeldError, 'lock_held');
      expect(error).toBeInstanceOf(RetryableError);
      expect(error.message).toContain(name);
      expect((await mine.inspect()).waiting).toBe(0);
    });

    it('a bounded wait ends in its bounds (TimeoutError) and leaves nothing behind', async () => {
      const { mine, theirs, name } = door();
      const held = await mine.acquire();
      const call = theirs.acquire({ wait: 250 });
      const [ms, error] = await Promise.all([timeOf(call), fails(call, TimeoutError, 'lock_timeout')]);
      expect(error).toBeInstanceOf(RetryableError);
      expect(error.message).toContain('250 ms');
      expect(ms).toBeGreaterThan(240);
      expect(ms).toBeLessThan(800);
      await held.release();
      await free(ground.a, kind, name);
    });

    it('a wait that is long enough has it', async () => {
      const { mine, theirs } = door();
      const held = await mine.acquire();
      const call = theirs.acquire({ wait: 5000 });
      await sleep(80);
      await held.release();
      await (await call).release();
    });

    it('abort while waiting ends it at once (AbortedError, with the reason as its cause) and leaves nothing behind', async () => {
      const { mine, theirs, name } = door();
      const held = await mine.acquire();
      const controller = new AbortController();
      const call = theirs.acquire({ signal: controller.signal });
      const ending = fails(call, AbortedError, 'lock_aborted');
      await queued(ground.a, kind, name, 1);
      const reason = new Error('the customer has left');
      const beganMs = performance.now();
      controller.abort(reason);
      const error = await ending;
      expect(performance.now() - beganMs).toBeLessThan(500);
      expect(error).toBeInstanceOf(TerminalError);
      expect(error.cause).toBe(reason);
      await held.release();
      await free(ground.a, kind, name);
    });

    it('a signal that is aborted already takes nothing', async () => {
      const { mine } = door();
      await fails(mine.acquire({ signal: AbortSignal.abort() }), AbortedError, 'lock_aborted');
      await fails(mine.tryAcquire({ signal: AbortSignal.abort() }), AbortedError, 'lock_aborted');
      expect(await mine.isLocked()).toBe(false);
    });

    it('the signal of the wait does not end the hold', async () => {
      const { mine } = door();
      const controller = new AbortController();
      const grant = await mine.acquire({ signal: controller.signal });
      controller.abort();
      await sleep(20);
      expect(grant.held).toBe(true);
      expect(grant.signal.aborted).toBe(false);
      await grant.release();
    });

    it('release gives back only what is its own: a holder whose lease is over does not free the next one', async () => {
      const { mine, theirs } = door();
      const stale = await mine.acquire({ lease: 60 });
      const next = await theirs.acquire({ wait: 3000 });
      await fails(stale.release(), LostError, 'lock_lost', 'expired');
      expect(next.held).toBe(true);
      expect(await mine.tryAcquire()).toBeNull();
      await next.release();
    });

    it('releasing twice has no effect, and does not free what the next one has', async () => {
      const { mine, theirs } = door();
      const grant = await mine.acquire();
      await grant.release();
      const next = await theirs.acquire({ wait: 0 });
      await grant.release();
      await grant[Symbol.asyncDispose]();
      expect(await mine.isLocked()).toBe(true);
      next.assertHeld();
      await next.release();
    });

    it('two releases at the same time are one', async () => {
      const { mine } = door();
      const grant = await mine.acquire();
      await Promise.all([grant.release(), grant.release()]);
      expect(await mine.isLocked()).toBe(false);
    });

    it('a released grant is not held: NotOwnerError for assertHeld and extend, nothing remains', async () => {
      const { mine } = door();
      const grant = await mine.acquire();
      await grant.release();
      expect(grant.held).toBe(false);
      expect(grant.remaining()).toBe(0);
      expect(grant.signal.aborted).toBe(false);
      expect(() => grant.assertHeld()).toThrow(NotOwnerError);
      const error = await fails(grant.extend(1000), NotOwnerError, 'lock_not_owner');
      expect(error).toBeInstanceOf(TerminalError);
    });

    it('a fixed lease ends: not renewed, the signal aborts first, the next one has it', async () => {
      const { mine, theirs } = door();
      const beganMs = performance.now();
      const grant = await mine.acquire({ lease: 200 });
      const lost = aborting(grant.signal, 2000);
      // Whoever has it next must find the signal of the first aborted already.
      const next = theirs.acquire({ wait: 3000 }).then((had) => ({ had, aborted: grant.signal.aborted }));
      const { reason } = await lost;
      // Not before its time, and reckoned from when it was sent for.
      const ms = performance.now() - beganMs;
      expect(ms).toBeGreaterThan(180);
      expect(ms).toBeLessThan(1000);
      expect(reason).toBe('expired');
      expect(grant.held).toBe(false);
      expect(() => grant.assertHeld()).toThrow(LostError);
      const { had, aborted } = await next;
      expect(aborted).toBe(true);
      await had.release();
    });

    it('a lease that is renewed is held for many times its length', async () => {
      const { mine, theirs } = door();
      const grant = await mine.acquire({ lease: 600, renew: true });
      expect(await isPendingAfter(aborting(grant.signal, 10_000), 1600)).toBe(true);
      grant.assertHeld();
      expect(await theirs.tryAcquire()).toBeNull();
      expect(grant.remaining()).toBeGreaterThan(0);
      expect(grant.remaining()).toBeLessThanOrEqual(600);
      await grant.release();
    });

    it('no renewal outlives the release', async () => {
      const { mine, theirs } = door();
      const grant = await mine.acquire({ lease: 600, renew: true });
      // About when it is renewed for the first time.
      await sleep(200);
      await grant.release();
      await using _next = await theirs.acquire({ lease: 2000 });
      await sleep(250);
      const { holders } = await mine.inspect();
      expect(holders).toHaveLength(1);
      expect(holders[0]!.remainingMs).toBeGreaterThan(1000);
      expect(grant.signal.aborted).toBe(false);
    });

    it('remaining counts down, and extend makes it last from now', async () => {
      const { mine, theirs } = door();
      const grant = await mine.acquire({ lease: 1000 });
      const before = grant.remaining();
      expect(before).toBeGreaterThan(500);
      expect(before).toBeLessThanOrEqual(1000);
      await sleep(60);
      expect(grant.remaining()).toBeLessThan(before - 40);
      await grant.extend(10_000);
      expect(grant.remaining()).toBeGreaterThan(9000);
      expect(grant.remaining()).toBeLessThanOrEqual(10_000);
      const [holder] = (await theirs.inspect()).holders;
      expect(holder!.remainingMs).toBeGreaterThan(9000);
      await sleep(1000);
      expect(grant.held).toBe(true);
      await grant.release();
    });

    it('extend may shorten: over when the shorter one is', async () => {
      const { mine, theirs } = door();
      const grant = await mine.acquire({ lease: 30_000 });
      const beganMs = performance.now();
      await grant.extend(120);
      await aborting(grant.signal, 2000);
      expect(performance.now() - beganMs).toBeGreaterThan(100);
      const next = await theirs.acquire({ wait: 2000 });
      await next.release();
    });

    it('extend of a lost one is LostError, and takes nothing again', async () => {
      const { mine } = door();
      const grant = await mine.acquire({ lease: 50 });
      await sleep(90);
      await fails(grant.extend(1000), LostError, 'lock_lost', 'expired');
      expect(await mine.isLocked()).toBe(false);
    });

    it('isLocked and isHeldByMe', async () => {
      const { mine, theirs } = door();
      const states = async () => [
        await mine.isLocked(),
        mine.isHeldByMe(),
        await theirs.isLocked(),
        theirs.isHeldByMe(),
      ];
      expect(await states()).toEqual([false, false, false, false]);
      const grant = await mine.acquire();
      expect(await states()).toEqual([true, true, true, false]);
      await grant.release();
      expect(await states()).toEqual([false, false, false, false]);
    });

    it('forceRelease takes it: the signal of its holder aborts at once, the next in line has it, release says that it was lost', async () => {
      const { mine, theirs, name } = door();
      await waitOnce(ground.a, ground.b, kind, name);
      const grant = await mine.acquire({ label: 'stuck' });
      const lost = aborting(grant.signal, 3000);
      const next = theirs.acquire({ wait: 3000 });
      await queued(ground.b, kind, name, 1);
      const taken = await theirs.forceRelease();
      expect(taken).toHaveLength(1);
      expect(taken[0]).toMatchObject({ token: grant.token, permits: 1 });
      expect(taken[0]!.info).toContain('stuck');
      const { ms, reason } = await lost;
      expect(reason).toBe('forced');
      expect(ms).toBeLessThan(2000);
      const had = await next;
      await fails(grant.release(), LostError, 'lock_lost', 'forced');
      had.assertHeld();
      expect(await theirs.isLocked()).toBe(true);
      await had.release();
      await free(ground.a, kind, name);
    });

    it('forceRelease reaches a holder whose client has never waited as soon', async () => {
      const { theirs, name } = door();
      const silent = ground.client();
      const grant = await silent[kind](name).acquire();
      const lost = aborting(grant.signal, 2000);
      expect(await theirs.forceRelease()).toHaveLength(1);
      const { ms, reason } = await lost;
      expect(ms).toBeLessThan(1000);
      // It begins to listen when it has held for a moment; taken before that, it learns of it by asking.
      expect(['forced', 'refused']).toContain(reason);
    });

    it('forceRelease of what nobody has takes nothing', async () => {
      const { mine } = door();
      expect(await mine.forceRelease()).toEqual([]);
      const grant = await mine.acquire({ wait: 0 });
      await grant.release();
    });

    it('maxHold ends it although it is renewed', async () => {
      const { mine, theirs } = door();
      const beganMs = performance.now();
      const grant = await mine.acquire({ lease: 600, renew: true, maxHold: 900 });
      const { reason } = await aborting(grant.signal, 3000);
      expect(reason).toBe('max_hold');
      const ms = performance.now() - beganMs;
      expect(ms).toBeGreaterThan(850);
      expect(ms).toBeLessThan(2000);
      await using _next = await theirs.acquire({ wait: 2000 });
      await fails(grant.release(), LostError, 'lock_lost', 'max_hold');
    });

    it('maxHold below the lease: the lease is that short, and nothing is renewed on and on', async () => {
      let timers = 0;
      const after: typeof systemTimers.after = (ms, run) => {
        timers++;
        return systemTimers.after(ms, run);
      };
      const locks = ground.client({ runtime: { timers: { ...systemTimers, after } } });
      const { name, theirs } = door();
      // Of the default lease of 30 s, whose renewal would be due in 10 s.
      const beganMs = performance.now();
      const grant = await locks[kind](name).acquire({ maxHold: 500 });
      const [holder] = (await theirs.inspect()).holders;
      expect(holder!.remainingMs).toBeLessThanOrEqual(500);
      const { reason } = await aborting(grant.signal, 3000);
      expect(reason).toBe('max_hold');
      const ms = performance.now() - beganMs;
      expect(ms).toBeGreaterThan(450);
      expect(ms).toBeLessThan(1500);
      // Every renewal arms timers anew.
      expect(timers).toBeLessThan(40);
    });

    it('extend does not go beyond maxHold', async () => {
      const { mine } = door();
      const beganMs = performance.now();
      const grant = await mine.acquire({ lease: 300, maxHold: 500 });
      await grant.extend(5000);
      expect(grant.remaining()).toBeLessThanOrEqual(500);
      const { reason } = await aborting(grant.signal, 3000);
      expect(reason).toBe('max_hold');
      const ms = performance.now() - beganMs;
      expect(ms).toBeGreaterThan(450);
      expect(ms).toBeLessThan(1500);
    });

    it('a signal that is first asked for after the loss is aborted already', async () => {
      const { mine } = door();
      const grant = await mine.acquire({ lease: 40 });
      await sleep(80);
      expect(grant.signal.aborted).toBe(true);
      expect(grant.signal.reason).toBeInstanceOf(LostError);
      expect(grant.signal.reason).toMatchObject({ code: 'lock_lost', reason: 'expired' });
    });

    it('run rejects with LostError when it was lost meanwhile, though fn was done', async () => {
      const { mine } = door();
      let aborted = false;
      const work = mine.run(
        async (grant) => {
          aborted = (await aborting(grant.signal, 2000)).reason === 'expired';
          return 'done';
        },
        { lease: 60 },
      );
      await fails(work, LostError, 'lock_lost', 'expired');
      expect(aborted).toBe(true);
    });

    it('run rejects with the error of fn also when it was lost', async () => {
      const { mine } = door();
      const error = new Error('the work failed');
      const work = mine.run(
        async (grant) => {
          await aborting(grant.signal, 2000);
          throw error;
        },
        { lease: 60 },
      );
      expect(await errorOf(work)).toBe(error);
    });

    it('a run that does not get it never calls fn', async () => {
      const { mine, theirs } = door();
      await using _held = await mine.acquire();
      let called = false;
      const fn = () => {
        called = true;
      };
      await fails(theirs.run(fn, { wait: 0 }), HeldError, 'lock_held');
      await fails(theirs.run(fn, { wait: 40 }), TimeoutError, 'lock_timeout');
      await fails(theirs.run(fn, { signal: AbortSignal.abort() }), AbortedError, 'lock_aborted');
      expect(called).toBe(false);
    });
  });

  it('replicas that are not there: refused in bounded time, and nothing is held', async () => {
    const lock = ground.client().mutex(ground.name());
    await lock.run(() => undefined);
    const call = lock.acquire({ replicas: 1 });
    const [ms, error] = await Promise.all([timeOf(call), errorOf(call)]);
    expect(error.code).toBe(ground.withoutReplicas);
    expect(ms).toBeLessThan(2500);
    await free(ground.b, 'mutex', lock.name);
    // Copies that nobody asked for are not waited for.
    await (await lock.acquire({ replicas: 0, wait: 0 })).release();
  });

  it('waiting for replicas holds up no other lock of the client', async () => {
    const locks = ground.client();
    const renewed = await locks.mutex(ground.name()).acquire({ lease: 1200, renew: true });
    const call = errorOf(locks.mutex(ground.name()).acquire({ replicas: 1 }));
    const beside = locks.mutex(ground.name()).run(() => undefined);
    expect(await timeOf(beside)).toBeLessThan(300);
    await call;
    await sleep(250);
    expect(renewed.held).toBe(true);
    await renewed.release();
  });

  it('mutex and fair of the same name are two locks', async () => {
    const name = ground.name();
    await using _mutex = await ground.a.mutex(name).acquire();
    await using _fair = await ground.b.fair(name).acquire({ wait: 0 });
    await using _write = await ground.b.readWrite(name).write.acquire({ wait: 0 });
  });

  it('locks of different prefixes never meet', async () => {
    const name = ground.name();
    const other = ground.client({ prefix: ground.prefix() });
    await using _here = await ground.a.mutex(name).acquire();
    await using _there = await other.mutex(name).acquire({ wait: 0 });
  });

  it.each(['ñandú/門 1', 'a:b:{c}', '}{', '{}', '*', 'x y\tz', 'a'.repeat(512)])(
    'any name will do: %j',
    async (name) => {
      const grant = await ground.a.mutex(name).acquire();
      expect(grant.name).toBe(name);
      expect(await ground.b.mutex(name).tryAcquire()).toBeNull();
      const next = ground.b.mutex(name).acquire({ wait: 3000 });
      await queued(ground.a, 'mutex', name, 1);
      await grant.release();
      await (await next).release();
    },
  );
}

/** Who may enter again what is held already, and who may not. */
export function reentryContract(ground: Ground): void {
  describe('re-entry', () => {
    it('run inside run enters again: counted, the same token, given back by the outermost', async () => {
      const lock = ground.a.mutex(ground.name());
      await lock.run(async (outer) => {
        await lock.run(async (inner) => {
          expect(inner.token).toBe(outer.token);
          await lock.run((innermost) => expect(innermost.token).toBe(outer.token));
        });
        expect(outer.held).toBe(true);
        expect(await ground.b.mutex(lock.name).tryAcquire()).toBeNull();
      });
      expect(await lock.isLocked()).toBe(false);
    });

    it('another object of the same lock enters again, too; one of another client does not', async () => {
      const name = ground.name();
      await ground.a.mutex(name).run(async (outer) => {
        await ground.a.mutex(name).run((inner) => expect(inner.token).toBe(outer.token));
        await fails(
          ground.b.mutex(name).run(() => undefined, { wait: 0 }),
          HeldError,
          'lock_held',
        );
      });
    });

    it('parallel branches of one run share the hold, and it ends with the last', async () => {
      const lock = ground.a.mutex(ground.name());
      let together = 0;
      let most = 0;
      await lock.run(async (outer) => {
        const branches = [30, 60].map((ms) =>
          lock.run(async (inner) => {
            expect(inner.token).toBe(outer.token);
            most = Math.max(most, ++together);
            await sleep(ms);
            together--;
          }),
        );
        await Promise.all(branches);
        expect(await ground.b.mutex(lock.name).isLocked()).toBe(true);
      });
      expect(most).toBe(2);
      expect(await lock.isLocked()).toBe(false);
    });

    it('a branch that is still in when fn settles keeps the hold until it leaves', async () => {
      const lock = ground.a.mutex(ground.name());
      let branch: Promise<void> | undefined;
      await lock.run(async () => {
        branch = lock.run(() => sleep(120));
        await sleep(1);
      });
      expect(await ground.b.mutex(lock.name).tryAcquire()).toBeNull();
      await branch;
      const next = await ground.b.mutex(lock.name).acquire({ wait: 0 });
      await next.release();
    });

    it('work that outlives fn is outside: it waits like everybody else', async () => {
      const lock = ground.a.mutex(ground.name());
      let settled!: () => void;
      const ended = new Promise<void>((resolve) => {
        settled = resolve;
      });
      let detached: Promise<bigint> | undefined;
      const token = await lock.run((grant) => {
        detached = ended.then(() => lock.run((own) => own.token));
        return grant.token;
      });
      const other = await ground.b.mutex(lock.name).acquire();
      settled();
      expect(await isPendingAfter(detached!, 80)).toBe(true);
      await other.release();
      expect(await detached!).toBeGreaterThan(token);
    });

    it('a timer that fn has left behind is outside', async () => {
      const lock = ground.a.mutex(ground.name());
      let later: Promise<unknown> | undefined;
      await lock.run(() => {
        later = sleep(30).then(() => lock.run(() => undefined, { wait: 0 }));
      });
      await using _other = await ground.b.mutex(lock.name).acquire();
      await fails(later!, HeldError, 'lock_held');
    });

    it('locks.outside runs as if nothing were held', async () => {
      const lock = ground.a.mutex(ground.name());
      await lock.run(async () => {
        const call = ground.a.outside(() => lock.run(() => undefined, { wait: 0 }));
        await fails(call, HeldError, 'lock_held');
        expect(ground.a.outside(() => 7)).toBe(7);
        // Only what runs in there.
        await lock.run(() => undefined, { wait: 0 });
      });
    });

    it('a bare acquire never re-enters: it would wait for itself, and times out', async () => {
      const lock = ground.a.mutex(ground.name());
      await lock.run(async () => {
        expect(await lock.tryAcquire()).toBeNull();
        await fails(lock.acquire({ wait: 0 }), HeldError, 'lock_held');
        await fails(lock.acquire({ wait: 50 }), TimeoutError, 'lock_timeout');
      });
    });

    it('within a grant: counted, the same token, the last release gives it back', async () => {
      const lock = ground.a.mutex(ground.name());
      const outer = await lock.acquire();
      const inner = await lock.acquire({ within: outer });
      const third = (await lock.tryAcquire({ within: inner }))!;
      expect([inner.token, third.token]).toEqual([outer.token, outer.token]);
      await outer.release();
      expect(outer.held).toBe(false);
      expect(inner.held).toBe(true);
      await inner.release();
      await inner.release();
      expect(await ground.b.mutex(lock.name).tryAcquire()).toBeNull();
      third.assertHeld();
      await third.release();
      expect(await lock.isLocked()).toBe(false);
    });

    it('run within a grant does not give it back', async () => {
      const lock = ground.a.mutex(ground.name());
      const outer = await lock.acquire();
      await lock.run((inner) => expect(inner.token).toBe(outer.token), { within: outer });
      expect(outer.held).toBe(true);
      expect(await lock.isLocked()).toBe(true);
      await outer.release();
    });

    it('within a grant that was released, of another lock, kind or client: NotOwnerError', async () => {
      const lock = ground.a.mutex(ground.name());
      const grant = await lock.acquire();
      const strangers = [
        ground.a.mutex(ground.name()),
        ground.a.fair(lock.name),
        ground.b.mutex(lock.name),
        ground.a.readWrite(lock.name).write,
      ];
      for (const other of strangers) {
        await fails(other.acquire({ within: grant }), NotOwnerError, 'lock_not_owner');
        await fails(other.tryAcquire({ within: grant }), NotOwnerError, 'lock_not_owner');
      }
      await grant.release();
      await fails(lock.acquire({ within: grant }), NotOwnerError, 'lock_not_owner');
      expect(await lock.isLocked()).toBe(false);
    });

    it('what is lost cannot be entered again: LostError', async () => {
      const lock = ground.a.mutex(ground.name());
      const grant = await lock.acquire({ lease: 40 });
      await sleep(80);
      await fails(lock.acquire({ within: grant }), LostError, 'lock_lost', 'expired');
      const work = lock.run(
        async ({ signal }) => {
          await aborting(signal, 2000);
          await fails(
            lock.run(() => undefined),
            LostError,
            'lock_lost',
            'expired',
          );
        },
        { lease: 40 },
      );
      await fails(work, LostError, 'lock_lost', 'expired');
    });

    it('a loss reaches everybody who shares the hold: each run and each release rejects with it', async () => {
      const lock = ground.a.mutex(ground.name());
      const work = lock.run(
        async (outer) => {
          const inner = lock.run((grant) => aborting(grant.signal, 3000));
          const within = await lock.acquire({ within: outer });
          await fails(inner, LostError, 'lock_lost', 'expired');
          await fails(within.release(), LostError, 'lock_lost', 'expired');
        },
        { lease: 150 },
      );
      await fails(work, LostError, 'lock_lost', 'expired');
    });
  });
}

/** First come, first served, whichever process it came from. */
export function fairContract(ground: Ground): void {
  describe('fair order', () => {
    it('FIFO over two clients with many waiters', async () => {
      const name = ground.name();
      const clients = [ground.a, ground.b];
      const first = await ground.a.fair(name).acquire();
      const served: number[] = [];
      const calls: Promise<void>[] = [];
      for (let i = 0; i < 24; i++) {
        calls.push(clients[(i * 7) % 2]!.fair(name).run(() => void served.push(i)));
        // Who came first is decided where they queue.
        await queued(ground.a, 'fair', name, i + 1);
      }
      await first.release();
      await Promise.all(calls);
      expect(served).toEqual(Array.from({ length: 24 }, (_, i) => i));
    });

    it('many that ask at once from one client are served in the order they asked', async () => {
      const lock = ground.a.fair(ground.name());
      const first = await lock.acquire();
      const served: number[] = [];
      const calls = Array.from({ length: 50 }, (_, i) => lock.run(() => void served.push(i)));
      await queued(ground.b, 'fair', lock.name, 50);
      await first.release();
      await Promise.all(calls);
      expect(served).toEqual(Array.from({ length: 50 }, (_, i) => i));
    });

    it('an abort or a timeout in the middle takes only that one out of the line', async () => {
      const name = ground.name();
      const first = await ground.a.fair(name).acquire();
      const served: string[] = [];
      const controller = new AbortController();
      const enter = (who: string, locks: typeof ground.a, options = {}) =>
        locks.fair(name).run(() => void served.push(who), options);
      const one = enter('one', ground.b);
      await queued(ground.a, 'fair', name, 1);
      const two = fails(enter('two', ground.a, { signal: controller.signal }), AbortedError, 'lock_aborted');
      await queued(ground.a, 'fair', name, 2);
      const three = fails(enter('three', ground.b, { wait: 400 }), TimeoutError, 'lock_timeout');
      await queued(ground.a, 'fair', name, 3);
      const four = enter('four', ground.a);
      await queued(ground.a, 'fair', name, 4);
      controller.abort();
      await Promise.all([two, three]);
      await queued(ground.a, 'fair', name, 2);
      await first.release();
      await Promise.all([one, four]);
      expect(served).toEqual(['one', 'four']);
    });

    it('tryAcquire does not overtake those who wait', async () => {
      const name = ground.name();
      const first = await ground.a.fair(name).acquire();
      const next = ground.b.fair(name).acquire();
      await queued(ground.a, 'fair', name, 1);
      const [, tried] = await Promise.all([first.release(), ground.a.fair(name).tryAcquire()]);
      expect(tried).toBeNull();
      const had = await next;
      expect(await ground.a.fair(name).tryAcquire()).toBeNull();
      await had.release();
    });

    it('the line moves on when a lease ends, in order', async () => {
      const name = ground.name();
      await ground.a.fair(name).acquire({ lease: 800 });
      const served: number[] = [];
      const calls: Promise<void>[] = [];
      for (let i = 0; i < 4; i++) {
        calls.push([ground.b, ground.a][i % 2]!.fair(name).run(() => void served.push(i)));
        await queued(ground.a, 'fair', name, i + 1);
      }
      expect(served).toEqual([]);
      expect(await timeOf(Promise.all(calls))).toBeLessThan(3000);
      expect(served).toEqual([0, 1, 2, 3]);
    });
  });
}
