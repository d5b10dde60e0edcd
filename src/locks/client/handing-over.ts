import { sleep } from '../../base/timers.ts';
import type { LockClient } from './client.ts';
import type { Address, Given, Wake } from './port.ts';
import type { Waiter } from './waiter.ts';
import { keyOf, type Wanted, wantedOf } from './wanted.ts';

const CLOSING_LOOK_MS = 20;
/** How long a store keeps a queue that nobody tends. */
export const QUEUE_MS = 60_000;

/**
 * From one holder to the next. The store has made a request of ours the holder for `handOverMs` and says so: by a wake-up,
 * or by the reply to a release of this process. The news is believed without asking if it is fresh, and then confirmed.
 * After a release the releaser checks that whoever was let in elsewhere confirms, too.
 */
export class HandingOver {
  readonly #client: LockClient;
  /** Locks that were handed to somebody who has yet to confirm: checked once after `handOverMs`. */
  readonly #watched = new Map<string, { address: Address; looked: Promise<void> }>();

  constructor(client: LockClient) {
    this.#client = client;
  }

  /** The store tells us that a request of ours has the lock. */
  granted({ rid, token, atUs }: Extract<Wake, { event: 'granted' }>): void {
    const { asking, settings } = this.#client;
    const waiter = asking.waiter(rid);
    // Given up at the same moment: its clean-up is under way. Or ours already: the reply to an acquire told us, too.
    if (!waiter) return;
    const atMs = this.#whenHere(atUs);
    const graceMs = settings.handOverMs;
    const nowMs = this.#client.nowMs();
    // Heard late (we were stopped, or the network was slow), or from a clock that jumped: ask before believing it.
    const fresh = atMs !== null && atMs <= nowMs && nowMs < atMs + graceMs / 2;
    if (!fresh || waiter.terms.replicas > 0) {
      waiter.called = true;
      asking.ask(waiter);
      return;
    }
    this.#take(waiter, token, atMs, graceMs);
  }

  #take(waiter: Waiter, token: number, sinceMs: number, graceMs: number): void {
    const { asking, holding } = this.#client;
    const hold = holding.add(waiter, token, sinceMs, graceMs);
    // A command that is under way for it may still arrive after its release.
    if (waiter.asking) hold.ambiguous = true;
    asking.settle(waiter, hold);
    holding.confirm(hold, waiter.terms);
  }

  /**
   * When, on our clock, the store's clock showed `storeUs`: not before the returned time. The store's clock was read after
   * we sent for it, so that the true moment can only be later, and a deadline counted from this one only too early.
   */
  #whenHere(storeUs: number): number | null {
    const reading = this.#client.store.clock;
    if (!reading) return null;
    const sinceMs = (storeUs - reading.storeUs) / 1000;
    // Two clocks drift apart by less than 1 % of the time since they were compared.
    return reading.sentMs + sinceMs - Math.abs(sinceMs) * 0.01;
  }

  /** The reply to a release of `released`: the lock went to another request of this process. */
  given({ given, to }: Given, sentMs: number, released: Wanted): void {
    const { asking, holding, givingBack, settings } = this.#client;
    const waiter = asking.waiter(to);
    if (!waiter) {
      // It has given up meanwhile, and its own clean-up may have ended before. Or it has learned of its grant otherwise: then
      // it is in use and must not be given back.
      if (!holding.has(to)) void givingBack.cleanUp({ ...wantedOf(released), rid: to, ambiguous: true }, QUEUE_MS);
      return;
    }
    const { handOverMs } = settings;
    // Answered late, or wanted on replicas as well: ask before believing it.
    if (this.#client.nowMs() >= sentMs + handOverMs / 2 || waiter.terms.replicas > 0) {
      waiter.called = true;
      asking.ask(waiter);
      return;
    }
    this.#take(waiter, given, sentMs, handOverMs);
  }

  /**
   * The lock was handed to another process, which has yet to confirm. If that process is stopped or cut off, the store moves
   * on when somebody comes by: we do, after `handOverMs`.
   */
  watch(of: Wanted): void {
    const { store, settings, runtime } = this.#client;
    if (!store.remote || this.#client.ended) return;
    const address = wantedOf(of);
    const key = keyOf(address);
    if (this.#watched.has(key)) return;
    const look = async (): Promise<void> => {
      const untilMs = this.#client.nowMs() + settings.handOverMs + 2;
      while (this.#client.nowMs() < untilMs) {
        await sleep(runtime.timers, this.#client.closed ? CLOSING_LOOK_MS : untilMs - this.#client.nowMs());
        if (this.#client.closed && (await this.#isConfirmed(address))) break;
      }
      this.#watched.delete(key);
      const nobody = { rid: `${store.client}.0`, ambiguous: false, backTo: '' };
      const reply = await store.release({ ...address, ...nobody, handOverMs: settings.handOverMs });
      // The one that was let in now may be stopped, too.
      if (reply === 'moved') this.watch(address);
    };
    this.#watched.set(key, { address, looked: look().catch(() => undefined) });
  }

  /** Nobody holds it on the mere strength of a hand-over. */
  async #isConfirmed(address: Address): Promise<boolean> {
    const { holders } = await this.#client.store.inspect(address);
    return holders.every(({ info }) => info !== '');
  }

  /** Waits until everything that was handed over is confirmed: nobody else would check so soon. */
  async close(): Promise<void> {
    const { timers } = this.#client.runtime;
    await Promise.all(
      [...this.#watched.values()].map(async ({ address, looked }) => {
        await sleep(timers, CLOSING_LOOK_MS);
        if (!(await this.#isConfirmed(address).catch(() => true))) await looked;
      }),
    );
  }
}
