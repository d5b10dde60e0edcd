import { messageOf } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { AbortedError, HeldError, TimeoutError, UnavailableError } from '../locks/client/errors.ts';
import type { Locks } from '../locks/locks.ts';
import { OrderBusyError } from '../orders/life/lock.ts';

const LEASE_MS = 15_000;
const OUT_MS = 2000;

/**
 * The order's lock: taken first and released last. It saves calls at the provider, and nothing rests on it: what decides is
 * the ledger's conditional UPDATE. So where the locks are out, work goes on without (`fence` is null).
 */
export class OrderLock {
  readonly #locks: Locks;
  readonly #runtime: Runtime;
  #told = false;
  /** After an outage it is not tried again at once: every call would wait for it. */
  #outUntilMs = 0;

  constructor(locks: Locks, runtime: Runtime) {
    this.#locks = locks;
    this.#runtime = runtime;
  }

  /** OrderBusyError: not within `waitMs`. */
  async run<T>(orderId: string, waitMs: number, work: (fence: string | null) => Promise<T>): Promise<T> {
    let grant: Awaited<ReturnType<ReturnType<Locks['mutex']>['acquire']>> | null = null;
    const { clock } = this.#runtime;
    if (clock.monotonic() < this.#outUntilMs) return await work(null);
    try {
      grant = await this.#locks.mutex(`order:${orderId}`).acquire({ wait: waitMs, lease: LEASE_MS, renew: true });
      this.#told = false;
    } catch (error) {
      if (error instanceof TimeoutError || error instanceof HeldError) {
        throw new OrderBusyError(`order ${orderId} is being worked on`);
      }
      if (!(error instanceof UnavailableError) && !(error instanceof AbortedError)) throw error;
      if (!this.#told) this.#runtime.log.warn({ reason: messageOf(error) }, 'orders are worked on without their locks');
      this.#told = true;
      this.#outUntilMs = clock.monotonic() + OUT_MS;
    }
    try {
      return await work(grant === null ? null : String(grant.token));
    } finally {
      // A lock that was lost meanwhile has ended by itself.
      await grant?.release().catch(() => undefined);
    }
  }
}
