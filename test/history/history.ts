import type { LockPlan, Settings } from './schedule.ts';

/**
 * What a process wrote down. `t` is CLOCK_MONOTONIC in microseconds: one clock for all processes of the machine, whatever
 * clock the locks of that process were given.
 *
 * Times are taken so that what follows from them is certain, however the machine schedules the processes: `invoked`,
 * `held` and `release` before the call, everything else after it. So a hold that was acquired at `t1` and found held at
 * `t2` was believed in for all of [t1, t2].
 */
export type Event = { readonly t: number; readonly w: number } & (
  | {
      readonly e: 'invoked';
      readonly op: string;
      readonly lock: string;
      readonly mode: 'read' | 'write';
      readonly permits: number;
      /** How long it is to wait; null: for as long as it takes. */
      readonly waitMs: number | null;
      readonly leaseMs: number;
      /** A downgrade: the token is that of the hold before. */
      readonly keepsToken?: boolean;
    }
  /** It stands in the queue. */
  | { readonly e: 'waiting'; readonly op: string }
  | { readonly e: 'acquired'; readonly op: string; readonly token: string }
  /** Entered again. */
  | { readonly e: 'entered'; readonly op: string; readonly token: string }
  /** assertHeld() went well; by our clock it stays so for `leftMs`. */
  | { readonly e: 'held'; readonly op: string; readonly leftMs: number }
  | { readonly e: 'unheld'; readonly op: string }
  /** What the fence said to a write. */
  | { readonly e: 'write'; readonly op: string; readonly accepted: boolean }
  /** The signal aborted. `calm`: the event loop of this process was in time just before. */
  | { readonly e: 'lost'; readonly op: string; readonly reason: string; readonly calm: boolean }
  /** About to be given back, and held until here. */
  | { readonly e: 'release'; readonly op: string }
  | { readonly e: 'released'; readonly op: string }
  | { readonly e: 'unreleased'; readonly op: string; readonly why: string }
  | { readonly e: 'failed'; readonly op: string; readonly why: string }
  /** forceRelease. Without a `forced` its effect may come at any later time. */
  | { readonly e: 'forcing'; readonly op: string; readonly lock: string }
  | { readonly e: 'forced'; readonly op: string }
  /** The event loop stood still for so long, for whatever reason. */
  | { readonly e: 'stall'; readonly ms: number }
  | { readonly e: 'unhandled'; readonly why: string }
);

/** What was done to the processes and to Redis, from just before until just after. */
export interface Trouble {
  readonly kind: string;
  readonly from: number;
  readonly to: number;
  /** One process, or all. */
  readonly worker: number | null;
  /** Redis forgot everything. */
  readonly forgets?: boolean;
}

export interface History {
  readonly seed: number;
  readonly settings: Settings;
  readonly locks: readonly LockPlan[];
  /** When it began; times in messages count from here. */
  readonly from: number;
  /** By time. */
  readonly events: readonly Event[];
  readonly troubles: readonly Trouble[];
  /** Processes that were killed: their operations need not end. */
  readonly killed: readonly { readonly w: number; readonly t: number }[];
  /** What the fence accepted, by name, in its order. */
  readonly fence: Readonly<Record<string, readonly { readonly token: string; readonly op: string }[]>>;
  /** What was left at the end. */
  readonly left: {
    /** Processes that had not ended their work in time. */
    readonly hung: readonly number[];
    /** Names that a newcomer could not take. */
    readonly stuck: readonly string[];
    readonly listed: readonly string[];
    readonly keys: readonly string[];
  };
}

export function nowUs(): number {
  return Number(process.hrtime.bigint() / 1000n);
}
