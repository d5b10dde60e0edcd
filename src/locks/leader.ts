import { messageOf } from '../base/errors.ts';
import { pause } from '../base/timers.ts';
import { checkedFunction, checkedName } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import type { Grant } from './client/grant.ts';
import type { Wanted } from './client/wanted.ts';
import { Job, type JobContext, type JobOptions, type JobTerms, jobTerms } from './job.ts';

/** `atLeast`: default 1 000 ms, at least 10: leadership must not race round the cluster when work ends at once. */
export type LeaderOptions = JobOptions;

export type LeaderWork = (context: JobContext) => Promise<unknown> | unknown;

/** After a failure, or while the store is out, the next try waits so long, twice as long each time. */
const RETRY_MS_MIN = 1000;
const RETRY_MS_MAX = 60_000;

/**
 * One instance of the cluster leads and runs `work`; the others stand in line (the fair lock `leader:<job>`) and are woken
 * when it is their turn. Each that finds another leading says so once (event `skipped`, 'led elsewhere').
 *
 *   It leads      until work returns or throws, its lock is lost, `atMost` is reached, or `stop()`. In the last three cases
 *                 `signal` aborts first. Work is meant to go on until then: when it returns, the next in line leads, and
 *                 this instance stands in line again.
 *   At least      `atLeast` after it began to lead, even when work ended at once. `stop()` and `close()` hand over at once.
 *   Failures      of work are logged and told (event `ended`). This instance then waits (1 s, 2 s, … 60 s) before it stands
 *                 in line again; others may lead meanwhile. A minute of leading without failure starts this anew.
 *   An outage     of the store: the leader's signal aborts when its lease could be over. All campaign on until it is back.
 *
 * What is not guaranteed: that work which ignores its signal has ended when the next one leads. Writes are safe with
 * `token` (fencing.ts). An instance does not lead again before its own work has settled.
 */
export class Leader extends Job {
  readonly #wanted: Wanted;
  readonly #terms: JobTerms;
  readonly #run: LeaderWork;
  #grant: Grant | null = null;

  constructor(client: LockClient, job: string, run: LeaderWork, options: LeaderOptions = {}) {
    super(client, checkedName(job));
    checkedFunction(run, 'leader');
    const name = checkedName(`leader:${job}`);
    this.#wanted = { kind: 'fair', name, mode: 'write', permits: 1, limit: 1 };
    this.#terms = jobTerms(client, options, { least: 10, byDefault: 1000 }, 'leader');
    this.#run = run;
  }

  /** This instance holds the leadership, as far as it can know at this moment. */
  get isLeader(): boolean {
    return this.#grant?.held ?? false;
  }

  /** The fencing token of the present leadership; null when not leading. */
  get token(): bigint | null {
    return this.isLeader ? this.#grant!.token : null;
  }

  protected async live(): Promise<void> {
    const { timers, log } = this.client.runtime;
    let outages = 0;
    let failures = 0;
    while (!this.stopped.aborted && !this.client.closed) {
      try {
        this.#grant = await this.#elected();
        outages = 0;
      } catch (error) {
        if (this.stopped.aborted || this.client.closed) return;
        // One line per outage: there may be many jobs, and it may be long.
        if (outages === 0) {
          log.warn({ job: this.name, reason: messageOf(error) }, 'cannot campaign for the leadership; trying on');
        }
        await pause(timers, this.#retryMs(outages++), this.stopped);
        continue;
      }
      const beganMs = this.client.nowMs();
      const outcome = await this.#lead(this.#grant, beganMs);
      this.#grant = null;
      if (this.client.nowMs() - beganMs >= RETRY_MS_MAX || outcome !== 'failed') failures = 0;
      if (outcome === 'failed') await pause(timers, this.#retryMs(failures++), this.stopped);
    }
  }

  async #elected(): Promise<Grant> {
    const terms = { ...this.#terms.terms, signal: this.stopped };
    const atOnce = await this.client.tryAcquire(this.#wanted, { ...terms, waitMs: 0 });
    if (atOnce) return atOnce;
    this.skip('led elsewhere');
    return await this.client.acquire(this.#wanted, { ...terms, waitMs: Infinity });
  }

  async #lead(grant: Grant, beganMs: number): Promise<string> {
    const outcome = await this.work(grant, this.#run);
    const leftMs = beganMs + this.#terms.atLeastMs - this.client.nowMs();
    if (leftMs > 0 && grant.held) await pause(this.client.runtime.timers, leftMs, this.stopped, grant.signal);
    await this.giveBack(grant);
    return outcome;
  }

  /** Spread out: what failed for one instance failed for all of them at the same moment. */
  #retryMs(times: number): number {
    const ms = Math.min(RETRY_MS_MIN * 2 ** Math.min(times, 20), RETRY_MS_MAX);
    return ms * (0.75 + this.client.runtime.random.fraction() / 2);
  }
}
