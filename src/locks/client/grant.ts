import { checkedLease } from './checks.ts';
import { NotOwnerError } from './errors.ts';
import type { Hold } from './hold.ts';
import type { LockKind, Mode } from './port.ts';

/** What the client does for a grant. */
export interface GrantClient {
  giveBack(hold: Hold): Promise<void>;
  extend(hold: Hold, leaseMs: number): Promise<void>;
}

/**
 * Proof that a lock is yours, until you release it or `signal` says otherwise. Works with `await using`.
 * Send `token` with every write that the lock protects: it only grows, and the resource refuses a smaller one.
 */
export class Grant {
  readonly #client: GrantClient;
  readonly #hold: Hold;
  #released = false;

  constructor(client: GrantClient, hold: Hold) {
    this.#client = client;
    this.#hold = hold;
  }

  get kind(): LockKind {
    return this.#hold.kind;
  }

  get name(): string {
    return this.#hold.name;
  }

  get mode(): Mode {
    return this.#hold.mode;
  }

  /** Permits of a semaphore; 1 for everything else. */
  get permits(): number {
    return this.#hold.permits;
  }

  /** The fencing token: strictly growing for each name, the same when re-entered. */
  get token(): bigint {
    return this.#hold.token;
  }

  /** Aborted, with a LostError as its reason, before the server can give the lock to somebody else. */
  get signal(): AbortSignal {
    return this.#hold.signal;
  }

  get held(): boolean {
    return !this.#released && this.#hold.isHeld();
  }

  /** Throws LostError when the lock is not ours any more, NotOwnerError after release. To be called before a write. */
  assertHeld(): void {
    if (this.#released) throw new NotOwnerError(`this grant of ${this.kind} "${this.name}" was released`);
    if (!this.#hold.isHeld()) throw this.#hold.loss!;
  }

  /** Milliseconds for which the server cannot give it away, as far as we know. A renewed lock starts anew each time. */
  remaining(): number {
    return this.#released ? 0 : this.#hold.remainingMs();
  }

  /** Makes the lease last `leaseMs` from now. */
  async extend(leaseMs: number): Promise<void> {
    this.assertHeld();
    await this.#client.extend(this.#hold, checkedLease(leaseMs, 'the lease that extend() is given'));
  }

  /** Gives it back; a second call does nothing. Throws LostError if it was lost: others may have worked at the same time. */
  release(): Promise<void> {
    if (this.#released) return Promise.resolve();
    this.#released = true;
    return this.#client.giveBack(this.#hold);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  /** For logs. The token as a string: JSON has no 64-bit numbers, and JSON.stringify refuses a bigint. */
  toJSON(): { kind: LockKind; name: string; mode: Mode; permits: number; token: string; held: boolean } {
    const { kind, name, mode, permits, held } = this;
    return { kind, name, mode, permits, token: String(this.token), held };
  }

  /** For our own modules. */
  static holdOf(grant: Grant): Hold {
    if (!(grant instanceof Grant)) throw new NotOwnerError('not a grant');
    return grant.#hold;
  }

  /** An upgrade or downgrade has replaced the hold: this grant ends without giving anything back. */
  static retire(grant: Grant): void {
    grant.#released = true;
  }

  static isReleased(grant: Grant): boolean {
    return grant.#released;
  }
}
