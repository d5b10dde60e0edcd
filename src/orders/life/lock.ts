import { DoorbusterError, messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';

/** What of the lock toolkit an order's lock is made of. */
export interface Mutexes {
  mutex(name: string): {
    acquire(options: { wait: number; lease: number; renew: true }): Promise<{
      readonly token: bigint;
      release(): Promise<void>;
    }>;
  };
}

/** Somebody else held the order's lock for all of the time that we waited. */
export const BUSY = Symbol('busy');

const LEASE_MS = 15_000;
const OUT_MS = 2000;

const HELD: readonly string[] = ['lock_timeout', 'lock_held'];
const OUT: readonly string[] = ['lock_unavailable', 'lock_aborted'];

/**
 * The lock of one order: taken first and released last. It saves calls to the provider, and nothing rests on it: the
 * conditional UPDATE of the ledger decides. So when the lock store is unreachable, work goes on without the lock.
 */
export class OrderLock {
  readonly #locks: Mutexes;
  readonly #runtime: Runtime;
  #warned = false;
  /** During an outage the lock is not tried again at once: every call would wait for the timeout. */
  #outUntilMs = 0;

  constructor(locks: Mutexes, runtime: Runtime) {
    this.#locks = locks;
    this.#runtime = runtime;
  }

  /** `fence` is the lock's token, or null without the lock. Resolves to BUSY if the lock is not ours within `waitMs`. */
  async run<T>(orderId: string, waitMs: number, work: (fence: string | null) => Promise<T>): Promise<T | typeof BUSY> {
    const { clock, log } = this.#runtime;
    if (clock.monotonic() < this.#outUntilMs) return await work(null);
    let grant: Awaited<ReturnType<ReturnType<Mutexes['mutex']>['acquire']>> | null = null;
    try {
      grant = await this.#locks.mutex(`order:${orderId}`).acquire({ wait: waitMs, lease: LEASE_MS, renew: true });
      this.#warned = false;
    } catch (error) {
      const code = error instanceof DoorbusterError ? error.code : '';
      if (HELD.includes(code)) return BUSY;
      if (!OUT.includes(code)) throw error;
      if (!this.#warned) log.warn({ reason: messageOf(error) }, 'orders are worked on without their locks');
      this.#warned = true;
      this.#outUntilMs = clock.monotonic() + OUT_MS;
    }
    try {
      return await work(grant === null ? null : String(grant.token));
    } finally {
      // A lock that was lost meanwhile needs no release.
      await grant?.release().catch(() => undefined);
    }
  }
}
