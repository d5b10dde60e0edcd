import { sleep } from '../../base/timers.ts';
import type { LockClient } from './client.ts';
import { UnavailableError } from './errors.ts';
import { QUEUE_MS } from './handing-over.ts';
import type { Hold } from './hold.ts';
import type { ReleaseReply } from './port.ts';
import { RETRY_MS_MAX, RETRY_MS_MIN, type Waiter } from './waiter.ts';
import { type Wanted, wantedOf } from './wanted.ts';

const DONE = Promise.resolve();

/** Gives locks back: what a caller releases, and what the store may hold for a call that has ended without it. */
export class GivingBack {
  readonly #client: LockClient;
  /** Commands that clean up behind a call that has ended. */
  readonly #cleaning = new Set<Promise<void>>();

  constructor(client: LockClient) {
    this.#client = client;
  }

  release(hold: Hold): Promise<void> {
    hold.count--;
    // A loss is told to everybody who shares the hold.
    if (!hold.isHeld()) return hold.loss ? Promise.reject(hold.loss) : DONE;
    if (hold.count > 0) return DONE;
    // A change that was given up is being taken back: until then nobody knows by which id the lock is held.
    if (hold.changing) return hold.changing.then(() => this.release(countedAgain(hold)));
    const { holding, waiting, handingOver, runtime } = this.#client;
    holding.drop(hold);
    const sentMs = this.#client.nowMs();
    return new Promise((resolve, reject) => {
      this.#send(hold, hold.ambiguous).then(
        (reply) => {
          if (typeof reply === 'object') {
            handingOver.given(reply, sentMs, hold);
            // The new holder goes first: what it sends to the store is on its way while we go on.
            runtime.timers.nextTurn(resolve);
            return;
          }
          if (reply === 'handed') handingOver.watch(hold);
          if (reply !== 'absent' && reply !== 'moved') {
            if (reply === 'released' && (hold.kind === 'mutex' || hold.kind === 'fair')) waiting.nobodyQueued(hold);
            resolve();
            return;
          }
          hold.state = 'held';
          hold.lose('refused');
          reject(hold.loss);
        },
        (error: unknown) => {
          this.#sendAgain(hold, error).then(resolve, reject);
        },
      );
    });
  }

  #send(hold: Hold, ambiguous: boolean): Promise<ReleaseReply> {
    hold.ambiguous = ambiguous;
    return this.#client.store.release(hold);
  }

  async #sendAgain(hold: Hold, failure: unknown): Promise<void> {
    const { settings, handingOver, waiting } = this.#client;
    const endMs = Math.min(hold.deadlineMs, this.#client.nowMs() + settings.outageMs);
    for (let retryMs = RETRY_MS_MIN; ; retryMs = Math.min(retryMs * 2, RETRY_MS_MAX)) {
      if (!(failure instanceof UnavailableError)) throw failure;
      // After its deadline the lease ends by itself: more tries would help nobody.
      if (this.#client.closed || this.#client.nowMs() + retryMs >= endMs) {
        // The caller gets the error; the store still gets the release if it comes back while it could hold the lock.
        this.cleanUp({ ...wantedOf(hold), rid: hold.rid, ambiguous: true }, hold.deadlineMs - this.#client.nowMs());
        throw failure;
      }
      await this.#client.rest(retryMs);
      try {
        // "Not yours" most likely means that the first release did it and its reply was lost: it was sent while the lease
        // was in force by our own clock.
        const sentMs = this.#client.nowMs();
        const reply = await this.#send(hold, true);
        if (typeof reply === 'object') handingOver.given(reply, sentMs, hold);
        else if (reply === 'handed') handingOver.watch(hold);
        // The first release may have given the lock to a waiter of this process, and nobody here heard of it.
        else waiting.askAll(hold);
        return;
      } catch (error) {
        failure = error;
      }
    }
  }

  /** Gives back whatever the store may hold for a call that has ended without it. */
  clean(waiter: Waiter): void {
    const { wanted, rid, terms, from } = waiter;
    // Asked and not answered: a copy of the acquire may arrive after us, over another connection.
    const ambiguous = waiter.asking || waiter.ambiguous;
    const backTo = from?.mode === 'read' ? from.rid : '';
    // A place in the queue outlasts a short lease. A change is awaited by its hold's release, and ends with its own lease.
    const forMs = from === null ? Math.max(terms.leaseMs, QUEUE_MS) : terms.leaseMs;
    const cleaning = this.cleanUp({ ...wanted, rid, ambiguous, backTo }, forMs);
    // Until then nobody knows by which id the store knows the old hold.
    if (from) {
      from.changing = cleaning.then(() => {
        from.changing = null;
        if (from.state === 'held') return this.#client.holding.verify(from);
      });
    }
  }

  /** Gives back at the store what nobody here wants, for as long as it could still be held there. */
  cleanUp(what: Wanted & { rid: string; ambiguous: boolean; backTo?: string }, leaseMs: number): Promise<void> {
    const { store, settings, runtime, handingOver, waiting } = this.#client;
    const endMs = this.#client.nowMs() + leaseMs;
    const work = async (): Promise<void> => {
      for (let retryMs = RETRY_MS_MIN; ; retryMs = Math.min(retryMs * 2, RETRY_MS_MAX)) {
        try {
          const { handOverMs } = settings;
          const sentMs = this.#client.nowMs();
          const reply = await store.release({ backTo: '', ...what, handOverMs });
          if (typeof reply === 'object') handingOver.given(reply, sentMs, what);
          else if (reply === 'handed' || reply === 'moved') handingOver.watch(what);
          else if (retryMs > RETRY_MS_MIN) waiting.askAll(what);
          return;
        } catch (error) {
          if (!(error instanceof UnavailableError) || this.#client.nowMs() >= endMs || this.#client.closed) return;
          await sleep(runtime.timers, retryMs);
        }
      }
    };
    const cleaning = work().finally(() => this.#cleaning.delete(cleaning));
    this.#cleaning.add(cleaning);
    return cleaning;
  }

  /** Resolves when everything that was being cleaned up at the time of the call is. */
  async cleaned(): Promise<void> {
    await Promise.all(this.#cleaning);
  }
}

function countedAgain(hold: Hold): Hold {
  hold.count++;
  return hold;
}
