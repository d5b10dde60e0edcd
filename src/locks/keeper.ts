import type { Runtime } from '../base/runtime.ts';
import type { Hold } from './hold.ts';

/** Most locks are given back within a few milliseconds and never need a timer. */
const YOUNG_MS = 10;
const YOUNG_LEASE_MS_MIN = 200;
const RETRY_MS_MIN = 50;
const RETRY_MS_MAX = 1000;

/** What the keeper asks of the desk. */
export interface KeptBy {
  /** False: not renewed, for whatever reason. */
  renew(hold: Hold, leaseMs: number): Promise<boolean>;
  /** Held for longer than a moment. */
  onOld(hold: Hold): void;
}

/**
 * The timers of what is held: a renewal at a third of the lease, and the deadline at which a hold is over here. A renewal
 * that fails is tried again until the deadline; one failure is not the end.
 */
export class Keeper {
  readonly #runtime: Runtime;
  readonly #renew: (hold: Hold, leaseMs: number) => Promise<boolean>;
  readonly #onOld: (hold: Hold) => void;
  #young: Hold[] = [];
  #stopSweep: (() => void) | null = null;

  constructor(runtime: Runtime, desk: KeptBy) {
    this.#runtime = runtime;
    this.#renew = desk.renew;
    this.#onOld = desk.onOld;
  }

  add(hold: Hold): void {
    if (hold.deadlineMs - this.#runtime.clock.monotonic() < YOUNG_LEASE_MS_MIN) {
      this.#arm(hold);
      return;
    }
    this.#young.push(hold);
    this.#stopSweep ??= this.#runtime.timers.after(YOUNG_MS, () => {
      this.#stopSweep = null;
      const young = this.#young;
      this.#young = [];
      for (const each of young) {
        if (each.state !== 'held' || each.disarm) continue;
        this.#arm(each);
        this.#onOld(each);
      }
    });
  }

  /** The deadline has moved. */
  move(hold: Hold, deadlineMs: number): void {
    hold.deadlineMs = deadlineMs;
    this.#arm(hold);
  }

  #arm(hold: Hold): void {
    hold.disarm?.();
    const { timers, clock } = this.#runtime;
    const nowMs = clock.monotonic();
    const stopDeadline = timers.after(hold.deadlineMs - nowMs, () => {
      // Timers may be early by a fraction of a millisecond: the hold looks at the clock itself.
      if (hold.isHeld()) this.#arm(hold);
    });
    let stopRenewal: (() => void) | null = null;
    let retryMs = RETRY_MS_MIN;
    const renewAfter = (ms: number): void => {
      stopRenewal = timers.after(ms, () => {
        void this.#renew(hold, hold.leaseMs).then((renewed) => {
          // Renewed: `move` has armed it anew. Not renewed, and still held by our clock: try again.
          if (renewed || hold.state !== 'held') return;
          renewAfter(retryMs);
          retryMs = Math.min(retryMs * 2, RETRY_MS_MAX, hold.leaseMs / 10);
        });
      });
    };
    // Nothing to renew once the deadline is that of maxHold.
    if (hold.renews && hold.deadlineMs < hold.untilMs) {
      const dueMs = hold.deadlineMs - (hold.leaseMs * 2) / 3;
      renewAfter(Math.max(0, dueMs - nowMs));
    }
    hold.disarm = () => {
      stopDeadline();
      stopRenewal?.();
    };
  }

  close(): void {
    this.#stopSweep?.();
    this.#young = [];
  }
}
