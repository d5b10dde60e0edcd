import type * as Croner from 'croner';
import { messageOf, TerminalError } from '../base/errors.ts';
import { pause } from '../base/timers.ts';
import { checkedFunction, checkedName } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import { HeldError } from './client/errors.ts';
import { Grant } from './client/grant.ts';
import type { Wanted } from './client/wanted.ts';
import { Job, type JobContext, type JobOptions, type JobTerms, jobTerms } from './job.ts';
import { once } from './once.ts';
import { optionalPackage } from './optional.ts';

export interface ScheduleOptions extends JobOptions {
  /** An IANA name (`Asia/Shanghai`). Default `UTC`: the zones of machines differ, and the slots must not. */
  timeZone?: string;
}

export interface ScheduleContext extends JobContext {
  /** The moment for which this run was planned; the same wherever it runs. */
  readonly slot: Date;
}

export type ScheduleWork = (context: ScheduleContext) => Promise<unknown> | unknown;

/** The wall clock may be set while we wait: it is read this often. */
const HOP_MS_MAX = 30_000;
/** A slot whose moment was so long ago (the machine slept, the process was stopped) counts as missed. */
const LATE_MS_MAX = 30_000;
/** A clock that was set back by more than this was wrong before: slots are counted from what it shows now. */
const BACK_MS_MAX = 60_000;
/** How much longer than until the next slot a claim is kept: instances whose clocks are behind come so much later. */
const CLAIM_MS_MORE = 600_000;
const CLAIM_MS_MAX = 24 * 86_400_000;

/**
 * Runs `work` at the times that a cron pattern names, each time ("slot") once in the cluster, by whichever instance comes
 * first. Every instance computes the same slots. One slot is claimed by `once` under `schedule:<name>:<slot>` before the
 * work begins, and runs of different slots are kept apart by the mutex `schedule:<name>`. Clocks may differ: the instance
 * whose clock is ahead runs a slot, the others find it done, as long as they come within the period and ten minutes.
 *
 *   At most once    per slot. A run that fails or whose process dies is not tried again before the next slot, which is what
 *                   cron does. Slots that nobody was up for, or for which the store was out, are not run later.
 *   Skipped         and said so (event `skipped`): 'done elsewhere', 'running elsewhere' (this slot or one before it),
 *                   'still running here', 'missed', 'unavailable'.
 *   `atLeast`       keeps the mutex so long from the beginning of a run, even when its process dies: runs are at least so far
 *                   apart. Not needed against clocks that differ, for which ShedLock has it: the claim is.
 *   `atMost`        the mutex is not kept longer, and `signal` aborts. Not needed against processes that die: the lease ends
 *                   by itself. Work that ignores its signal may then overlap with the next run elsewhere; use `token`.
 */
export class Schedule extends Job {
  readonly #cron: Croner.Cron;
  readonly #wanted: Wanted;
  readonly #terms: JobTerms;
  readonly #run: ScheduleWork;
  #next: Date | null = null;
  #running: Promise<void> | null = null;

  constructor(client: LockClient, name: string, cron: string, run: ScheduleWork, options: ScheduleOptions = {}) {
    super(client, checkedName(name));
    checkedFunction(run, 'schedule');
    checkedName(claimName(name, new Date(0)));
    this.#cron = cronOf(cron, options.timeZone ?? 'UTC', client.runtime.clock.now());
    this.#wanted = { kind: 'mutex', name: `schedule:${name}`, mode: 'write', permits: 1, limit: 1 };
    this.#terms = jobTerms(client, options, { least: 0, byDefault: 0 }, 'schedule');
    this.#run = run;
  }

  /** The next slot; null when there is none any more. */
  get next(): Date | null {
    return this.#next;
  }

  /** A run is in progress here. */
  get isRunning(): boolean {
    return this.#running !== null;
  }

  protected async live(): Promise<void> {
    const { clock, timers, log } = this.client.runtime;
    let lastMs = clock.now();
    while (!this.stopped.aborted && !this.client.closed) {
      const nowMs = clock.now();
      if (nowMs < lastMs - BACK_MS_MAX) lastMs = nowMs;
      this.#next = this.#cron.nextRun(new Date(lastMs));
      if (this.#next === null) {
        log.info({ job: this.name }, 'a schedule has no further slot');
        break;
      }
      const slotMs = this.#next.getTime();
      if (nowMs < slotMs) {
        await pause(timers, Math.min(slotMs - nowMs, HOP_MS_MAX), this.stopped);
        continue;
      }
      const slot = this.#latest(this.#next, nowMs);
      lastMs = slot.getTime();
      // Of the slots that passed while the process was stopped, only the newest.
      if (lastMs > slotMs || nowMs - lastMs > LATE_MS_MAX) this.skip('missed');
      if (nowMs - lastMs <= LATE_MS_MAX) this.#begin(slot);
    }
    await this.#running;
  }

  #latest(slot: Date, nowMs: number): Date {
    const next = this.#cron.nextRun(slot);
    if (next === null || next.getTime() > nowMs) return slot;
    // Croner counts whole seconds, and searches from before the one it is given.
    const after = new Date((Math.floor(nowMs / 1000) + 1) * 1000);
    return this.#cron.previousRuns(1, after)[0] ?? slot;
  }

  #begin(slot: Date): void {
    if (this.#running) {
      this.skip('still running here');
      return;
    }
    this.#running = this.#runSlot(slot).finally(() => {
      this.#running = null;
    });
  }

  /** Never rejects. */
  async #runSlot(slot: Date): Promise<void> {
    const grant = await this.#claim(slot);
    if (!grant) return;
    const beganMs = this.client.nowMs();
    await this.work(grant, (context) => this.#run({ ...context, slot }));
    const leftMs = Math.ceil(beganMs + this.#terms.atLeastMs - this.client.nowMs());
    if (leftMs > 0 && grant.held) await this.#leave(grant, leftMs);
    else await this.giveBack(grant);
  }

  /** The right to run this slot, with the job's lock; null (and said so) when it is not ours to run. */
  async #claim(slot: Date): Promise<Grant | null> {
    const next = this.#cron.nextRun(slot);
    const periodMs = next === null ? 0 : next.getTime() - slot.getTime();
    const keep = Math.min(periodMs + CLAIM_MS_MORE, CLAIM_MS_MAX);
    let grant: Grant | null = null;
    try {
      const claim = async (): Promise<string> => {
        grant = await this.client.tryAcquire(this.#wanted, this.#terms.terms);
        // The slot stays unclaimed: an instance that comes later may find the lock free.
        if (!grant) throw new HeldError(`${this.name} is running`);
        return this.client.settings.owner;
      };
      const { ran } = await once(this.client, claimName(this.name, slot), claim, { keep, wait: 0 });
      if (!ran) this.skip('done elsewhere');
      return grant;
    } catch (error) {
      if (grant) await this.giveBack(grant);
      if (this.stopped.aborted) return null;
      if (!(error instanceof HeldError))
        this.client.runtime.log.warn({ err: error, job: this.name }, 'claiming a slot');
      this.skip(error instanceof HeldError ? 'running elsewhere' : 'unavailable');
      return null;
    }
  }

  /** Lets the lock run out by itself after `leftMs`: that holds even when this process ends before. */
  async #leave(grant: Grant, leftMs: number): Promise<void> {
    try {
      await grant.extend(leftMs);
    } catch (error) {
      this.client.runtime.log.warn(
        { err: error, job: this.name },
        'atLeast could not be set; the lease ends by itself',
      );
    }
    this.client.retire(Grant.holdOf(grant));
    Grant.retire(grant);
  }
}

function claimName(name: string, slot: Date): string {
  return `schedule:${name}:${slot.toISOString()}`;
}

function cronOf(pattern: string, timezone: string, nowMs: number): Croner.Cron {
  const { Cron } = optionalPackage<typeof Croner>('croner', 'schedule');
  try {
    if (typeof pattern !== 'string') throw new TypeError('a pattern must be a string');
    // Without a function it schedules nothing: it is only asked for times.
    const cron = new Cron(pattern, { timezone });
    if (cron.getOnce() !== null) throw new TypeError('a date is no pattern');
    if (cron.nextRun(new Date(nowMs)) === null) throw new TypeError('that time never comes');
    return cron;
  } catch (error) {
    const message = `cron "${pattern}" (time zone ${timezone}): ${messageOf(error)}`;
    throw new TerminalError('invalid_argument', message, { cause: error });
  }
}
