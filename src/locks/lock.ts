import { checkedFunction, refuseUnknown } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import { HeldError, NotOwnerError } from './client/errors.ts';
import { Grant } from './client/grant.ts';
import type { Hold } from './client/hold.ts';
import type { HolderState, LockState } from './client/port.ts';
import type { Wanted } from './client/wanted.ts';
import { framesAround, isInside } from './context.ts';
import { ACQUIRE_OPTIONS, type AcquireOptions, NO_OPTIONS, TRY_OPTIONS, termsOf } from './options.ts';
import type { OrderWatch } from './order.ts';
import { runHolding } from './run.ts';

/** What a lock shows of itself. Tokens are bigint, as on grants. */
export interface Inspection extends Omit<LockState, 'holders'> {
  readonly holders: readonly (Omit<HolderState, 'token'> & { readonly token: bigint })[];
}

export function shown(state: LockState): Inspection {
  return { ...state, holders: state.holders.map(holderShown) };
}

/** As JSON its token is a string, like that of a grant: JSON.stringify refuses a bigint. `toJSON` is not enumerable. */
function holderShown(state: HolderState): Inspection['holders'][number] {
  const holder = { ...state, token: BigInt(state.token) };
  const toJSON = (): object => ({ ...holder, token: String(holder.token) });
  return Object.defineProperty(holder, 'toJSON', { value: toJSON });
}

/** What every kind of lock has in common: to be taken, waited for, held, given back. */
export class Lock {
  readonly name: string;
  protected readonly client: LockClient;
  protected readonly wanted: Wanted;
  readonly #order: OrderWatch;

  constructor(client: LockClient, order: OrderWatch, wanted: Wanted) {
    this.name = wanted.name;
    this.client = client;
    this.wanted = wanted;
    this.#order = order;
  }

  /** The same order of locks in every process: multi-locks are taken in it. */
  get rank(): string {
    return `${this.client.store.place} ${this.wanted.kind} ${this.name}`;
  }

  get writes(): boolean {
    return this.wanted.mode === 'write';
  }

  /** Notes that a multi-lock takes it after `grant`, to notice crossed orders. */
  noteAfter(grant: Grant): void {
    this.#order.noteAfter(this.client.store.place, grant, this.wanted);
  }

  /** Takes it if it is free now, else null. Never re-enters, unless told `within` which grant. */
  async tryAcquire(options: Omit<AcquireOptions, 'wait'> = {}): Promise<Grant | null> {
    refuseUnknown(options, TRY_OPTIONS, 'tryAcquire');
    if (options.within) return this.#enter(options.within);
    const terms = termsOf(this.client, options, 0);
    if (isInside()) this.#order.note(this.client.store.place, this.wanted);
    return await this.client.tryAcquire(this.wanted, { ...terms, waitMs: 0 });
  }

  /** Takes it, waiting for as long as `wait` says. HeldError (`wait: 0`), TimeoutError, AbortedError, UnavailableError. */
  acquire(options: AcquireOptions = NO_OPTIONS): Promise<Grant> {
    // Not an async function: each layer of promises costs a tenth of a round trip to Redis.
    try {
      // JavaScript callers may pass null: termsOf refuses it with a message.
      const within = (options as AcquireOptions | null)?.within;
      if (within) {
        refuseUnknown(options, ACQUIRE_OPTIONS, 'acquire');
        return Promise.resolve(this.#enter(within));
      }
      const terms = termsOf(this.client, options, Infinity);
      if (isInside()) this.#order.note(this.client.store.place, this.wanted);
      return this.client.acquire(this.wanted, terms);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /**
   * Takes it, runs `fn`, gives it back. Inside `fn` the same lock may be run again (re-entry): parallel branches of one fn
   * share the hold and are not kept apart. When fn has settled, work that it left behind is outside.
   * If the lock is lost before fn has settled, fn's signal aborts and run rejects with LostError.
   */
  async run<T>(fn: (grant: Grant) => Promise<T> | T, options: AcquireOptions = NO_OPTIONS): Promise<T> {
    checkedFunction(fn, 'run');
    const grant = this.reenter() ?? (await this.acquire(options));
    return await runHolding(grant, [Grant.holdOf(grant)], fn, this.client.runtime.log);
  }

  /** Whether run() inside run() enters the same hold again. */
  protected reenters(_hold: Hold): boolean {
    return true;
  }

  /** Whether holding `hold` is as good as what is wanted here. */
  protected covers(hold: Hold): boolean {
    return hold.mode === this.wanted.mode;
  }

  #isMine(hold: Hold): boolean {
    return hold.kind === this.wanted.kind && hold.name === this.name && hold.of === this.client;
  }

  /** The hold of a run(fn) around the running code, entered once more; null outside. For our own modules. */
  reenter(): Grant | null {
    if (!isInside()) return null;
    for (const frame of framesAround()) {
      for (const hold of frame.holds) {
        if (!this.#isMine(hold) || !this.reenters(hold)) continue;
        if (!this.covers(hold)) throw new HeldError(this.selfWait());
        return this.#share(hold);
      }
    }
    return null;
  }

  protected selfWait(): string {
    return `${this.wanted.kind} "${this.name}" would wait for itself`;
  }

  #enter(within: Grant): Grant {
    const hold = Grant.holdOf(within);
    if (Grant.isReleased(within) || !this.#isMine(hold) || !this.covers(hold)) {
      throw new NotOwnerError(
        `the grant of ${within.kind} "${within.name}" does not let in to ${this.wanted.kind} "${this.name}"`,
      );
    }
    return this.#share(hold);
  }

  #share(hold: Hold): Grant {
    if (!hold.isHeld()) throw hold.loss ?? new NotOwnerError(`${hold.kind} "${hold.name}" was released`);
    hold.count++;
    return new Grant(this.client, hold);
  }

  async isLocked(): Promise<boolean> {
    return (await this.client.open.inspect(this.wanted)).holders.length > 0;
  }

  /** Whether this process (this `createLocks`) holds it. Another process's locks, and those of other clients here, do not count. */
  isHeldByMe(): boolean {
    return this.client.holdsOf(this.wanted).some((hold) => this.covers(hold));
  }

  /** Takes it from whoever has it. Their signal aborts; the first in the queue gets it. The holders it was taken from. */
  async forceRelease(): Promise<Inspection['holders']> {
    const { handOverMs } = this.client.settings;
    const taken = await this.client.open.force(this.wanted, handOverMs, this.wanted.limit);
    return taken.map(holderShown);
  }

  async inspect(): Promise<Inspection> {
    return shown(await this.client.open.inspect(this.wanted));
  }
}

/** One holder at a time: `mutex`, and `fair`, which promises first come, first served. */
export class Mutex extends Lock {}
