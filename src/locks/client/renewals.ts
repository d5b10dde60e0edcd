import type { Runtime } from '../../base/runtime.ts';
import type { Hold } from './hold.ts';

/** Most locks are given back within 10 ms, and under load within 100 ms: they never need a timer of their own. */
const YOUNG_MS = 10;
const YOUNG_LEASE_MS_MIN = 200;
const SETTLED_MS = 100;
const SETTLED_LEASE_MS_MIN = 2000;
const RETRY_MS_MIN = 50;
const RETRY_MS_MAX = 1000;

/** What the renewals need. */
export interface RenewsFor {
  /** False: not renewed, for whatever reason. */
  renew(hold: Hold, leaseMs: number): Promise<boolean>;
  /** Held for longer than a moment. */
  onOld(hold: Hold): void;
}

/**
 * The timers of what is held: a renewal at a third of the lease, and the deadline at which a hold is over here. A renewal
 * that fails is tried again until the deadline; one failure is not the end.
 */
export class Renewals {
  readonly #runtime: Runtime;
  readonly #renew: (hold: Hold, leaseMs: number) => Promise<boolean>;
  readonly #young: Ward;
  readonly #settled: Ward;

  constructor(runtime: Runtime, holding: RenewsFor) {
    this.#runtime = runtime;
    this.#renew = holding.renew;
    this.#young = new Ward(runtime, YOUNG_MS, (hold) => {
      if (this.#leftMs(hold) < SETTLED_LEASE_MS_MIN) this.#arm(hold);
      else this.#settled.add(hold);
      holding.onOld(hold);
    });
    this.#settled = new Ward(runtime, SETTLED_MS, (hold) => this.#arm(hold));
  }

  add(hold: Hold): void {
    if (this.#leftMs(hold) < YOUNG_LEASE_MS_MIN) this.#arm(hold);
    else this.#young.add(hold);
  }

  #leftMs(hold: Hold): number {
    return hold.deadlineMs - this.#runtime.clock.monotonic();
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
    let disarmed = false;
    let retryMs = RETRY_MS_MIN;
    const renewAfter = (ms: number): void => {
      stopRenewal = timers.after(ms, () => {
        void this.#renew(hold, hold.leaseMs).then((renewed) => {
          // Renewed: `move` has armed it anew. Not renewed, and still held by our clock: try again.
          if (renewed || disarmed || hold.state !== 'held') return;
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
      disarmed = true;
      stopDeadline();
      stopRenewal?.();
    };
  }

  close(): void {
    this.#young.close();
    this.#settled.close();
  }
}

/** Holds that are visited together, once, after a while. Those that are over by then, or have timers, are left out. */
class Ward {
  readonly #runtime: Runtime;
  readonly #afterMs: number;
  readonly #visit: (hold: Hold) => void;
  #holds: Hold[] = [];
  #stop: (() => void) | null = null;

  constructor(runtime: Runtime, afterMs: number, visit: (hold: Hold) => void) {
    this.#runtime = runtime;
    this.#afterMs = afterMs;
    this.#visit = visit;
  }

  add(hold: Hold): void {
    this.#holds.push(hold);
    this.#stop ??= this.#runtime.timers.after(this.#afterMs, () => {
      this.#stop = null;
      const holds = this.#holds;
      this.#holds = [];
      for (const each of holds) if (!each.disarm && each.isHeld()) this.#visit(each);
    });
  }

  close(): void {
    this.#stop?.();
    this.#holds = [];
  }
}
