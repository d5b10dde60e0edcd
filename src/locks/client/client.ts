import type { KeepAlive } from '../../base/keep-alive.ts';
import type { Runtime } from '../../base/runtime.ts';
import { sleep } from '../../base/timers.ts';
import { Asking } from './asking.ts';
import { AbortedError, HeldError, type LossReason, UnavailableError } from './errors.ts';
import type { Emitter } from './events.ts';
import { GivingBack } from './giving-back.ts';
import { Grant, type GrantClient } from './grant.ts';
import { HandingOver } from './handing-over.ts';
import { Hold, type HoldClient } from './hold.ts';
import { Holding } from './holding.ts';
import type { Address, LockStore, StoreEvents, Wake } from './port.ts';
import { RETRY_MS_MAX, RETRY_MS_MIN } from './waiter.ts';
import { Waiting } from './waiting.ts';
import { type Done, describe, type Terms, type Wanted } from './wanted.ts';

export interface ClientSettings {
  readonly leaseMs: number;
  readonly handOverMs: number;
  /** How long a call goes on while the store cannot be reached. */
  readonly outageMs: number;
  /** `<host>/<pid>`. */
  readonly owner: string;
}

/**
 * Everything between a caller and the store, written once for every kind of lock and every store. Each part is a file:
 *
 *   asking        a call, from its first command until it has the lock or has given up
 *   waiting       who waits for what in this process, and the timer that heals lost wake-ups
 *   handing over  the news that a request of ours has the lock, and the check that others confirm
 *   holding       what is held: renewed (renewals.ts), verified, extended, lost
 *   giving back   releases, and cleaning up behind calls that ended without the lock
 */
export class LockClient implements StoreEvents, HoldClient, GrantClient {
  readonly settings: ClientSettings;
  readonly runtime: Runtime;
  readonly emitter: Emitter;
  readonly keepAlive: KeepAlive;
  readonly asking: Asking;
  readonly waiting: Waiting;
  readonly handingOver: HandingOver;
  readonly holding: Holding;
  readonly givingBack: GivingBack;
  /** The terms of a call that says nothing. */
  readonly plainTerms: Terms;
  readonly #looks = new Map<string, () => void>();
  #store!: LockStore;
  #next = 0;
  #closing: Promise<void> | null = null;
  #ended = false;

  constructor(settings: ClientSettings, runtime: Runtime, emitter: Emitter, keepAlive: KeepAlive) {
    this.settings = settings;
    this.runtime = runtime;
    this.emitter = emitter;
    this.keepAlive = keepAlive;
    this.plainTerms = {
      waitMs: Infinity,
      leaseMs: Math.ceil(settings.leaseMs),
      renews: true,
      maxHoldMs: Infinity,
      signal: undefined,
      label: '',
      replicas: 0,
    };
    this.asking = new Asking(this);
    this.waiting = new Waiting(this);
    this.handingOver = new HandingOver(this);
    this.holding = new Holding(this);
    this.givingBack = new GivingBack(this);
  }

  /** The store sends us events and we send it commands: one of the two must be made first. */
  attach(store: LockStore): void {
    this.#store = store;
  }

  get store(): LockStore {
    return this.#store;
  }

  /** The same, for a command that is not part of a call: after `close()` it fails as an acquire does. */
  get open(): LockStore {
    if (this.closed) throw new AbortedError('the locks are closed');
    return this.#store;
  }

  /** `close()` was called. */
  get closed(): boolean {
    return this.#closing !== null;
  }

  /** `close()` is done but for the store's connections. */
  get ended(): boolean {
    return this.#ended;
  }

  nextRid(): string {
    return `${this.#store.client}.${(++this.#next).toString(36)}`;
  }

  nowMs(): number {
    return this.runtime.clock.monotonic();
  }

  infoOf(label: string): string {
    return label === '' ? this.settings.owner : `${this.settings.owner} ${label}`;
  }

  acquire(wanted: Wanted, terms: Terms): Promise<Grant> {
    return new Promise((resolve, reject) => {
      this.asking.begin(wanted, terms, null, reject, (end) => {
        if (end instanceof Hold) resolve(new Grant(this, end));
        else reject(new HeldError(`${describe(wanted)} is held`));
      });
    });
  }

  tryAcquire(wanted: Wanted, terms: Terms): Promise<Grant | null> {
    return new Promise((resolve, reject) => {
      this.asking.begin(wanted, terms, null, reject, (end) =>
        resolve(end instanceof Hold ? new Grant(this, end) : null),
      );
    });
  }

  /** A hold; null when it is held and the call does not wait; for a `once` its result. */
  take(wanted: Wanted, terms: Terms, from: Hold | null = null): Promise<Hold | Done | null> {
    const taking = new Promise<Hold | Done | null>((resolve, reject) => {
      this.asking.begin(wanted, terms, from, reject, resolve);
    });
    // If it succeeds, the old hold is retired; if not, its clean-up takes over from here.
    from?.changesWith(taking);
    return taking;
  }

  giveBack(hold: Hold): Promise<void> {
    return this.givingBack.release(hold);
  }

  extend(hold: Hold, leaseMs: number): Promise<void> {
    return this.holding.extend(hold, leaseMs);
  }

  onLost(hold: Hold, reason: LossReason): void {
    this.holding.onLost(hold, reason);
  }

  /** Forgets a hold that the store has turned into another one (upgrade, downgrade, finish). */
  retire(hold: Hold): void {
    if (hold.state === 'held') this.holding.drop(hold);
  }

  holdsOf(address: Address): Hold[] {
    return this.holding.of(address);
  }

  wake(wake: Wake): void {
    if (wake.event === 'granted') {
      this.handingOver.granted(wake);
    } else if (wake.event === 'lost') {
      this.holding.forced(wake.rid);
    } else {
      const waiter = this.asking.waiter(wake.rid);
      if (waiter) this.asking.ask(waiter);
      else this.#looks.get(wake.rid)?.();
    }
  }

  interrupted(): void {
    if (this.closed) return;
    this.asking.interrupted();
    this.holding.interrupted();
    for (const look of this.#looks.values()) look();
  }

  /** Calls `run` when the store wakes `rid` without granting it anything (latches), and when wake-ups may have been missed. */
  onLook(rid: string, run: () => void): () => void {
    this.#looks.set(rid, run);
    this.keepAlive.hold();
    return () => {
      if (this.#looks.delete(rid)) this.keepAlive.drop();
    };
  }

  /** Sends a command again while the store cannot be reached. Only for commands that may be carried out twice. */
  async patiently<T>(command: () => Promise<T>): Promise<T> {
    const endMs = this.nowMs() + this.settings.outageMs;
    for (let retryMs = RETRY_MS_MIN; ; retryMs = Math.min(retryMs * 2, RETRY_MS_MAX)) {
      try {
        return await command();
      } catch (error) {
        if (!(error instanceof UnavailableError) || this.closed || this.nowMs() + retryMs >= endMs) throw error;
        await this.rest(retryMs);
      }
    }
  }

  /**
   * Sleeps between two tries of a call that somebody awaits. Nothing else keeps the process alive then: it would end, with
   * code 13, in the middle of its caller's await.
   */
  async rest(ms: number): Promise<void> {
    this.keepAlive.hold();
    try {
      await sleep(this.runtime.timers, ms);
    } finally {
      this.keepAlive.drop();
    }
  }

  /** Rejects calls that wait, gives back what is held, stops every timer. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    // Our timers alone would let the process end before this is done.
    this.keepAlive.hold();
    this.asking.close();
    this.holding.close();
    for (const look of this.#looks.values()) look();
    // First what hands over, then the check of those to whom it was handed.
    await this.givingBack.cleaned();
    await this.handingOver.close();
    this.#ended = true;
    await this.#store.close();
    this.keepAlive.drop();
    this.keepAlive.close();
  }
}
