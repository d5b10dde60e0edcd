import { RetryableError, TerminalError } from '../base/errors.ts';
import { KeepAlive } from '../base/keep-alive.ts';
import { Seldom } from '../base/seldom.ts';
import { checkedSpan, refuseUnknown } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import { AbortedError } from './client/errors.ts';
import type { JobOutcome, JobSkip } from './client/events.ts';
import type { Grant } from './client/grant.ts';
import type { Terms } from './client/wanted.ts';
import { outside } from './context.ts';
import { type AcquireOptions, termsOf } from './options.ts';

export interface JobOptions extends Pick<AcquireOptions, 'lease' | 'label'> {
  /** The job's lock is kept at least so many milliseconds from its beginning, also when the work ends sooner. */
  atLeast?: number;
  /** The job's lock is kept at most so long: then `signal` aborts, and another instance may begin. Default: no bound. */
  atMost?: number;
}

/** What the work of a job gets. */
export interface JobContext {
  /** Aborts when the job must end: its lock is lost or `atMost` is reached, `stop()` or `close()` was called. */
  readonly signal: AbortSignal;
  /** The fencing token of this run: send it with every write. */
  readonly token: bigint;
  readonly grant: Grant;
}

export interface JobTerms {
  readonly atLeastMs: number;
  readonly terms: Terms;
}

const LEADER_OPTIONS: ReadonlySet<string> = new Set(['lease', 'label', 'atLeast', 'atMost']);
const SCHEDULE_OPTIONS: ReadonlySet<string> = new Set([...LEADER_OPTIONS, 'timeZone']);

/** Checks what a caller passed, once, at the edge. */
export function jobTerms(
  client: LockClient,
  options: JobOptions,
  atLeast: { least: number; byDefault: number },
  call: 'leader' | 'schedule',
): JobTerms {
  refuseUnknown(options, call === 'leader' ? LEADER_OPTIONS : SCHEDULE_OPTIONS, call);
  const atLeastMs = checkedSpan(options.atLeast ?? atLeast.byDefault, 'atLeast', atLeast.least);
  const atMostMs = options.atMost === undefined ? Infinity : checkedSpan(options.atMost, 'atMost', 5);
  if (atLeastMs > atMostMs || atLeastMs === Infinity) {
    throw new TerminalError('invalid_argument', 'atLeast must be no longer than atMost, and end');
  }
  const hold: AcquireOptions = {
    renew: true,
    ...(options.lease === undefined ? {} : { lease: options.lease }),
    ...(options.label === undefined ? {} : { label: options.label }),
    ...(atMostMs === Infinity ? {} : { maxHold: atMostMs }),
  };
  return { atLeastMs, terms: termsOf(client, hold, 0) };
}

/** A job that goes on for so long after its signal has aborted is logged. */
const HEED_MS_MAX = 10_000;

/**
 * Work that goes on in the background until it is stopped: what `leader` and `schedule` have in common. Keeps the process
 * alive until `stop()` or the locks' `close()`, as a server does. Nothing it does becomes an unhandled rejection: failures
 * are logged and told by events (`began`, `ended`, `skipped`).
 */
export abstract class Job implements AsyncDisposable {
  readonly name: string;
  protected readonly client: LockClient;
  readonly #stopper = new AbortController();
  readonly #seldom: Seldom;
  #over: Promise<void> = Promise.resolve();

  constructor(client: LockClient, name: string) {
    this.client = client;
    this.#seldom = new Seldom(client.runtime.clock);
    this.name = name;
  }

  /** Goes on until it is stopped. Never rejects. */
  protected abstract live(): Promise<void>;

  /** For our own modules. */
  static start(job: Job, onEnd: () => void): void {
    if (job.client.closed) throw new AbortedError('the locks are closed');
    const keepAlive = new KeepAlive();
    keepAlive.hold();
    const over = async (): Promise<void> => {
      try {
        await job.live();
      } catch (error) {
        job.client.runtime.log.error({ err: error, job: job.name }, 'a job of the locks has ended by a fault of ours');
      } finally {
        keepAlive.drop();
        keepAlive.close();
        onEnd();
      }
    };
    // A job that is made inside run(fn) is not part of it.
    job.#over = outside(over);
  }

  protected get stopped(): AbortSignal {
    return this.#stopper.signal;
  }

  /**
   * Stops the job: aborts the signal of running work and waits until it has settled. Work must not await its own stop():
   * it would wait for itself.
   */
  stop(): Promise<void> {
    if (!this.stopped.aborted) this.#stopper.abort(new AbortedError(`job "${this.name}" was stopped`));
    return this.#over;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  protected skip(reason: JobSkip): void {
    this.client.runtime.log.debug({ job: this.name, reason }, 'a job was skipped');
    this.client.emitter.tell('skipped', { kind: 'job', name: this.name, reason });
  }

  /** Runs the work under its lock. Never rejects. */
  protected async work(grant: Grant, run: (context: JobContext) => unknown): Promise<JobOutcome> {
    const { runtime, emitter } = this.client;
    const event = { kind: 'job', name: this.name, token: grant.token } as const;
    const signal = AbortSignal.any([grant.signal, this.stopped]);
    const beganMs = this.client.nowMs();
    let stopWatch: (() => void) | null = null;
    const watch = (): void => {
      stopWatch = runtime.timers.after(HEED_MS_MAX, () => {
        runtime.log.warn({ job: this.name }, 'a job goes on although its signal has aborted');
      });
    };
    signal.addEventListener('abort', watch, { once: true });
    emitter.tell('began', event);

    let failure: { error: unknown } | null = null;
    try {
      await run({ signal, token: grant.token, grant });
    } catch (error) {
      failure = { error };
    }
    signal.removeEventListener('abort', watch);
    (stopWatch as (() => void) | null)?.();

    // An error that work throws because its signal aborted is not a failure.
    const told = failure !== null && signal.aborted && isAbort(failure.error, signal);
    const failed = failure !== null && !told;
    const outcome = failed ? 'failed' : this.stopped.aborted ? 'stopped' : grant.held ? 'done' : 'lost';
    if (failed) this.#tellFailure(failure!.error);
    const ranMs = this.client.nowMs() - beganMs;
    emitter.tell('ended', { ...event, outcome, ranMs, ...(failed ? { error: failure!.error } : {}) });
    return outcome;
  }

  /** An outage is no bug: no stack, and not at every try. */
  #tellFailure(error: unknown): void {
    const { log } = this.client.runtime;
    if (!(error instanceof RetryableError)) log.error({ err: error, job: this.name }, 'a job failed');
    else if (this.#seldom.may('')) {
      log.warn({ job: this.name, reason: error.message }, 'a job failed; it is tried again');
    }
  }

  /** Gives the lock back; what is lost already, or cannot be given back now, ends with its lease. */
  protected async giveBack(grant: Grant): Promise<void> {
    if (!grant.held) return;
    try {
      await grant.release();
    } catch (error) {
      this.client.runtime.log.debug({ err: error, job: this.name }, 'the lock of a job could not be given back');
    }
  }
}

function isAbort(error: unknown, signal: AbortSignal): boolean {
  return error === signal.reason || (error instanceof Error && error.name === 'AbortError');
}
