/**
 * A process of a history: told by its parent what to do, it does so through the locks and writes down what it saw, line by
 * line, so that what it saw survives its SIGKILL. One process may play its part in several histories, one after another.
 */
import { closeSync, openSync, writeSync } from 'node:fs';
import { Redis } from 'ioredis';
import type * as LocksModule from '../../src/locks/index.ts';
import type { Grant, Lock, Locks } from '../../src/locks/index.ts';
import { type Event, nowUs } from './history.ts';
import type { LockPlan, Op, Settings, WorkerPlan } from './schedule.ts';

/** What the parent sends. */
export interface Assignment {
  readonly w: number;
  readonly file: string;
  readonly redis: string;
  readonly control: string;
  readonly prefix: string;
  readonly settings: Settings;
  readonly locks: readonly LockPlan[];
  readonly plan: WorkerPlan;
}

/** The fence: takes a write unless it has taken one of a later holder. On a Redis that nothing ever happens to. */
export const FENCE = `
local last = redis.call('LINDEX', KEYS[1], -1)
if last and tonumber(string.match(last, '^%d+')) > tonumber(ARGV[1]) then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
return 1`;

const BEAT_MS = 3;
/** A beat that late is a stop of its own: the process could not have kept a promise of that length. */
const STALL_MS = 30;
/** The locks give up a lease at least 5 ms early. Beats no later than this, and the signal had no excuse. */
const CALM_MS = 5;
const CALM_BEATS = 30;

type Told = Event extends infer E ? (E extends unknown ? Omit<E, 't' | 'w'> : never) : never;

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const nameOf = (error: unknown): string =>
  error instanceof Error
    ? ((error as { reason?: string }).reason ?? `${error.constructor.name}: ${error.message}`)
    : String(error);

// The checker is tried out on broken copies of the locks, too.
const { createLocks } = (await import(process.env.HISTORY_LOCKS ?? '../../src/locks/index.ts')) as typeof LocksModule;

let tellUnhandled: (why: string) => void = (why) => console.error(why);
process.on('unhandledRejection', (error) => tellUnhandled(String((error as Error)?.stack ?? error)));
process.on('uncaughtException', (error) => tellUnhandled(String(error.stack)));
// The parent is gone.
process.on('disconnect', () => process.exit(0));

/** One grant of an operation: a multi-lock has several. */
interface Part {
  readonly id: string;
  readonly lock: string;
  readonly grant: Grant;
  readonly fenced: boolean;
}

class Player {
  readonly #told: Assignment;
  readonly #fd: number;
  readonly #locks: Locks;
  readonly #control: Redis;
  #beats: number[] = [];

  constructor(assignment: Assignment) {
    this.#told = assignment;
    const { redis, control, prefix, settings, plan, file } = assignment;
    this.#fd = openSync(file, 'a');
    this.#control = new Redis(control);
    this.#locks = createLocks({
      redis,
      prefix,
      lease: settings.leaseMs,
      handOverMs: settings.handOverMs,
      commandMs: settings.commandMs,
      outageMs: settings.outageMs,
      runtime: {
        clock: { now: () => Date.now() + plan.skewMs, monotonic: () => performance.now() * plan.rate },
      },
    });
    this.#locks.on('waiting', ({ label }) => {
      if (label !== undefined) this.#tell({ e: 'waiting', op: label });
    });
  }

  #tell(what: Told, t = nowUs()): void {
    writeSync(this.#fd, `${JSON.stringify({ t, w: this.#told.w, ...what })}\n`);
  }

  async run(): Promise<void> {
    tellUnhandled = (why) => this.#tell({ e: 'unhandled', why });
    let last = nowUs();
    const beat = setInterval(() => {
      const t = nowUs();
      const ms = (t - last) / 1000;
      last = t;
      this.#beats.push(ms);
      if (this.#beats.length > CALM_BEATS) this.#beats.shift();
      if (ms > STALL_MS) this.#tell({ e: 'stall', ms });
    }, BEAT_MS);
    const { fibres } = this.#told.plan;
    await Promise.all(
      fibres.map(async (ops) => {
        for (const op of ops) await this.#play(op);
      }),
    );
    await this.#locks.close();
    // A rejection that nobody handles is told after a turn.
    await sleep(1);
    clearInterval(beat);
    this.#control.disconnect();
    tellUnhandled = (why) => console.error(why);
    closeSync(this.#fd);
  }

  #calm(): boolean {
    return this.#beats.length === CALM_BEATS && Math.max(...this.#beats) <= CALM_MS;
  }

  #lockOf(op: Op): Lock {
    const name = op.locks[0]!;
    const { kind } = this.#told.locks.find((lock) => lock.name === name)!;
    if (kind === 'readwrite') return this.#locks.readWrite(name)[op.mode];
    return kind === 'fair' ? this.#locks.fair(name) : this.#locks.mutex(name);
  }

  #kindOf(op: Op): LockPlan {
    return this.#told.locks.find((lock) => lock.name === op.locks[0])!;
  }

  async #play(op: Op): Promise<void> {
    await sleep(op.thinkMs);
    if (op.forces) return await this.#force(op);
    const ids = op.locks.map((lock) => ({ lock, id: op.locks.length > 1 ? `${op.id}/${lock}` : op.id }));
    const { mode, permits, waitMs } = op;
    const leaseMs = op.leaseMs ?? this.#told.settings.leaseMs;
    for (const { lock, id } of ids) this.#tell({ e: 'invoked', op: id, lock, mode, permits, waitMs, leaseMs });
    let grants: readonly Grant[] | null;
    try {
      grants = await this.#acquire(op);
    } catch (error) {
      for (const { id } of ids) this.#tell({ e: 'failed', op: id, why: nameOf(error) });
      return;
    }
    if (!grants) {
      for (const { id } of ids) this.#tell({ e: 'failed', op: id, why: 'held' });
      return;
    }
    const fenced = this.#kindOf(op).kind !== 'semaphore' && op.mode === 'write';
    const parts = grants.map((grant) => {
      const { id, lock } = ids.find((each) => each.lock === grant.name)!;
      this.#tell({ e: 'acquired', op: id, token: String(grant.token) });
      return { id, lock, grant, fenced };
    });
    await this.#hold(op, parts);
  }

  async #acquire(op: Op): Promise<readonly Grant[] | null> {
    const signal = op.abortMs === null ? undefined : AbortSignal.timeout(op.abortMs);
    const options = {
      label: op.id,
      ...(op.leaseMs === null ? {} : { lease: op.leaseMs }),
      ...(signal ? { signal } : {}),
    };
    const wait = op.waitMs === null ? {} : { wait: op.waitMs };
    if (op.locks.length > 1) {
      const multi = this.#locks.multi(op.locks);
      const grant = op.tries ? await multi.tryAcquire(options) : await multi.acquire({ ...options, ...wait });
      return grant?.parts ?? null;
    }
    const plan = this.#kindOf(op);
    if (plan.kind === 'semaphore') {
      const semaphore = this.#locks.semaphore(plan.name, plan);
      const permits = { permits: op.permits };
      const grant = op.tries
        ? await semaphore.tryAcquire({ ...options, ...permits })
        : await semaphore.acquire({ ...options, ...wait, ...permits });
      return grant && [grant];
    }
    const lock = this.#lockOf(op);
    const grant = op.tries ? await lock.tryAcquire(options) : await lock.acquire({ ...options, ...wait });
    return grant && [grant];
  }

  /** The critical section: looks at the grants and writes through the fence, again and again, then gives back. */
  async #hold(op: Op, parts: readonly Part[]): Promise<void> {
    for (const part of parts) this.#watch(part);
    const endUs = nowUs() + op.holdMs * 1000;
    const middleUs = nowUs() + op.holdMs * 500;
    let half = false;
    for (;;) {
      if (!parts.every((part) => this.#look(part))) {
        // Somebody else might not have looked: the fence is there for that.
        for (const part of parts) if (part.fenced) await this.#write(part);
        break;
      }
      if (op.reenters && !half) await this.#reenter(op, parts[0]!);
      let refused = false;
      for (const part of parts) if (part.fenced && !(await this.#write(part))) refused = true;
      if (!refused && !half && nowUs() >= middleUs) {
        half = true;
        if (op.extendMs !== null) await this.#extend(op, parts);
        if (op.changes && (await this.#change(op, parts[0]!))) return;
      }
      // A refusal is followed by one more look: who is refused holds no more.
      if (!refused && nowUs() >= endUs) break;
      if (op.obeys && parts.some(({ grant }) => grant.signal.aborted)) break;
      await sleep(op.stepMs);
    }
    // What was taken last is given back first; those who wait for a multi-lock wait for its first.
    for (const part of [...parts].reverse()) await this.#release(part);
  }

  #watch({ id, grant }: Part): void {
    const { signal } = grant;
    const lost = (): void => this.#tell({ e: 'lost', op: id, reason: nameOf(signal.reason), calm: this.#calm() });
    if (signal.aborted) lost();
    else signal.addEventListener('abort', lost, { once: true });
  }

  #look({ id, grant }: Part): boolean {
    const t = nowUs();
    try {
      grant.assertHeld();
    } catch {
      this.#tell({ e: 'unheld', op: id });
      return false;
    }
    this.#tell({ e: 'held', op: id, leftMs: grant.remaining() }, t);
    return true;
  }

  async #write({ id, lock, grant }: Part): Promise<boolean> {
    const key = `${this.#told.prefix}:fence:${lock}`;
    const accepted = (await this.#control.eval(FENCE, 1, key, String(grant.token), id)) === 1;
    this.#tell({ e: 'write', op: id, accepted });
    return accepted;
  }

  async #reenter(op: Op, { id, grant }: Part): Promise<void> {
    try {
      const inner = await this.#lockOf(op).acquire({ within: grant });
      this.#tell({ e: 'entered', op: id, token: String(inner.token) });
      await inner.release();
    } catch {
      // Lost meanwhile: the next look says so.
    }
  }

  async #extend(op: Op, parts: readonly Part[]): Promise<void> {
    const leaseMs = (op.leaseMs ?? this.#told.settings.leaseMs) + op.extendMs!;
    // Lost, or Redis is out: the next look says which.
    await Promise.all(parts.map(({ grant }) => grant.extend(leaseMs).catch(() => undefined)));
  }

  /** A reader becomes a writer or the other way round. True: the operation has ended with the new grant. */
  async #change(op: Op, part: Part): Promise<boolean> {
    const { id, lock, grant } = part;
    const up = op.mode === 'read';
    const next = up ? `${id}+` : `${id}-`;
    const readWrite = this.#locks.readWrite(lock);
    const options = { label: next, ...(op.leaseMs === null ? {} : { lease: op.leaseMs }) };
    const mode = up ? 'write' : 'read';
    const waitMs = up ? (op.waitMs ?? 500) : null;
    const leaseMs = op.leaseMs ?? this.#told.settings.leaseMs;
    const t = nowUs();
    if (!up && grant.held) this.#tell({ e: 'release', op: id }, t);
    this.#tell({
      e: 'invoked',
      op: next,
      lock,
      mode,
      permits: 1,
      waitMs,
      leaseMs,
      ...(up ? {} : { keepsToken: true }),
    });
    // Until it is a writer it is a reader, and believes so.
    const looks = up ? setInterval(() => this.#look(part), op.stepMs + 2) : undefined;
    let changed: Grant;
    try {
      changed = up
        ? await readWrite.upgrade(grant, { ...options, wait: waitMs! })
        : await readWrite.downgrade(grant, options);
    } catch (error) {
      this.#tell({ e: 'failed', op: next, why: nameOf(error) });
      return false;
    } finally {
      clearInterval(looks);
    }
    this.#tell({ e: 'acquired', op: next, token: String(changed.token) });
    await this.#hold({ ...op, changes: false, reenters: false, extendMs: null }, [
      { id: next, lock, grant: changed, fenced: up },
    ]);
    return true;
  }

  async #release({ id, grant }: Part): Promise<void> {
    const t = nowUs();
    if (grant.held) this.#tell({ e: 'release', op: id }, t);
    try {
      await grant.release();
      this.#tell({ e: 'released', op: id });
    } catch (error) {
      this.#tell({ e: 'unreleased', op: id, why: nameOf(error) });
    }
  }

  async #force(op: Op): Promise<void> {
    const plan = this.#kindOf(op);
    const { name } = plan;
    this.#tell({ e: 'forcing', op: op.id, lock: name });
    try {
      if (plan.kind === 'readwrite') await this.#locks.readWrite(name).forceRelease();
      else if (plan.kind === 'semaphore') await this.#locks.semaphore(name, plan).forceRelease();
      else await this.#lockOf(op).forceRelease();
      this.#tell({ e: 'forced', op: op.id });
    } catch {
      // It may come through at any time after this.
    }
  }
}

process.on('message', (assignment: Assignment) => {
  new Player(assignment).run().then(
    () => process.send!({ done: assignment.w }),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send!({ ready: true });
