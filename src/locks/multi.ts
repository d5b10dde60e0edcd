import { TerminalError } from '../base/errors.ts';
import { sleep } from '../base/timers.ts';
import { checkedFunction, checkedSpan, refuseUnknown } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import { HeldError } from './client/errors.ts';
import { Grant } from './client/grant.ts';
import { CompositeGrant } from './composite.ts';
import type { Lock } from './lock.ts';
import { type AcquireOptions, MULTI_OPTIONS, withoutWait } from './options.ts';
import { runHolding } from './run.ts';

const TRY_OPTIONS = withoutWait(MULTI_OPTIONS);
const PARTS_MAX = 100;
const GIVE_BACK_MS = 100;

/**
 * All of several locks, or none. Taken one after the other in one order that is the same everywhere, so that two which
 * overlap never wait for each other; what was had is given back when one cannot be had. The locks may live on different
 * Redis servers.
 */
export class MultiLock {
  readonly name: string;
  readonly #client: LockClient;
  readonly #locks: readonly Lock[];

  constructor(client: LockClient, locks: readonly Lock[]) {
    if (locks.length === 0 || locks.length > PARTS_MAX) {
      throw new TerminalError('invalid_argument', `a multi-lock needs 1 to ${PARTS_MAX} locks`);
    }
    this.#client = client;
    // A lock that is named twice is taken once: it would wait for itself. A write grant covers a read.
    const byRank = new Map<string, Lock>();
    for (const lock of locks) if (!byRank.get(lock.rank)?.writes) byRank.set(lock.rank, lock);
    this.#locks = [...byRank].sort(([one], [other]) => (one < other ? -1 : 1)).map(([, lock]) => lock);
    this.name = this.#locks.map((lock) => lock.name).join(' + ');
  }

  async tryAcquire(options: Omit<AcquireOptions, 'wait' | 'within'> = {}): Promise<CompositeGrant | null> {
    refuseUnknown(options, TRY_OPTIONS, 'tryAcquire of a multi-lock');
    try {
      return await this.acquire({ ...options, wait: 0 });
    } catch (error) {
      if (error instanceof HeldError) return null;
      throw error;
    }
  }

  async acquire(options: Omit<AcquireOptions, 'within'> = {}): Promise<CompositeGrant> {
    return await this.#take(options, false);
  }

  /** Takes all, runs `fn`, gives all back. Names that a run(fn) around it holds already are entered again. */
  async run<T>(
    fn: (grant: CompositeGrant) => Promise<T> | T,
    options: Omit<AcquireOptions, 'within'> = {},
  ): Promise<T> {
    checkedFunction(fn, 'run');
    const grant = await this.#take(options, true);
    return await runHolding(grant, grant.parts.map(Grant.holdOf), fn, this.#client.runtime.log);
  }

  async #take(options: Omit<AcquireOptions, 'within'>, reenters: boolean): Promise<CompositeGrant> {
    refuseUnknown(options, MULTI_OPTIONS, 'acquire of a multi-lock');
    const waitMs = options.wait === undefined ? Infinity : checkedSpan(options.wait, 'wait', 0);
    const untilMs = this.#client.nowMs() + waitMs;
    const grants: Grant[] = [];
    try {
      for (const lock of this.#locks) {
        const again = reenters ? lock.reenter() : null;
        for (const grant of grants) lock.noteAfter(grant);
        // All parts share one `wait`; 0 stays 0.
        const wait = waitMs === 0 ? 0 : Math.max(1, Math.floor(untilMs - this.#client.nowMs()));
        grants.push(again ?? (await lock.acquire({ ...options, wait })));
      }
      // A fixed lease began for the first while the others were still waited for.
      if (options.lease !== undefined && !options.renew && grants.length > 1) {
        await Promise.all(grants.map((grant) => grant.extend(options.lease!)));
      }
      const composite = new CompositeGrant(this.name, grants[0]!.token, grants, grants.length, 0);
      composite.assertHeld();
      return composite;
    } catch (error) {
      // Usually done at once. While Redis is out it goes on in the background: the caller has waited long enough.
      const back = Promise.allSettled(grants.reverse().map((grant) => grant.release()));
      await Promise.race([back, sleep(this.#client.runtime.timers, GIVE_BACK_MS)]);
      throw error;
    }
  }
}
