import { LostError, NotOwnerError, UnavailableError } from './client/errors.ts';
import { Grant } from './client/grant.ts';
import type { Hold } from './client/hold.ts';

/**
 * Several grants that stand for one: all of them (multi), or a majority (quorum). Each part renews itself and knows its own
 * deadline; this one is held while enough of them are.
 */
export class CompositeGrant {
  readonly name: string;
  /** A multi-lock: the token of its first name in order. A quorum: the largest of its masters' tokens. */
  readonly token: bigint;
  readonly #parts: Grant[];
  readonly #needed: number;
  /** How many parts may fail to be given back without keeping others from taking the whole. */
  readonly #spare: number;
  #controller: AbortController | null = null;
  #released = false;

  constructor(name: string, token: bigint, parts: Grant[], needed: number, spare: number) {
    this.name = name;
    this.token = token;
    this.#parts = parts;
    this.#needed = needed;
    this.#spare = spare;
  }

  /** The parts' grants, in the order they were taken. */
  get parts(): readonly Grant[] {
    return this.#parts;
  }

  get #holds(): Hold[] {
    return this.#parts.map((part) => Grant.holdOf(part));
  }

  /** For logs, as a grant of one lock. */
  toJSON(): { name: string; token: string; held: boolean; parts: number } {
    return { name: this.name, token: String(this.token), held: this.held, parts: this.#parts.length };
  }

  /** Adds the grant of a master that answered late. False: released already. */
  static add(grant: CompositeGrant, part: Grant): boolean {
    if (grant.#released) return false;
    grant.#parts.push(part);
    return true;
  }

  #isHeld(): boolean {
    let live = 0;
    for (const hold of this.#holds) if (hold.isHeld() && ++live >= this.#needed) return true;
    return false;
  }

  #loss(): LostError {
    const cause = this.#holds.find((hold) => hold.loss)?.loss;
    return new LostError(
      `"${this.name}" is lost: ${cause?.message ?? 'too few of its parts are held'}`,
      cause?.reason ?? 'expired',
      {
        cause,
      },
    );
  }

  get held(): boolean {
    return !this.#released && this.#isHeld();
  }

  assertHeld(): void {
    if (this.#released) throw new NotOwnerError(`this grant of "${this.name}" was released`);
    if (!this.#isHeld()) throw this.#loss();
  }

  /** Aborted when too few parts are held. */
  get signal(): AbortSignal {
    if (!this.#controller) {
      const controller = new AbortController();
      this.#controller = controller;
      const look = (): void => {
        if (!this.#released && !this.#isHeld()) controller.abort(this.#loss());
      };
      for (const part of this.#parts) part.signal.addEventListener('abort', look, { once: true });
      look();
    }
    return this.#controller.signal;
  }

  /** Milliseconds for which enough of the parts cannot be given away, as far as we know. */
  remaining(): number {
    if (this.#released) return 0;
    const left = this.#holds.map((hold) => hold.remainingMs()).sort((one, other) => other - one);
    return left[this.#needed - 1] ?? 0;
  }

  async extend(leaseMs: number): Promise<void> {
    this.assertHeld();
    const ends = await Promise.allSettled(this.#parts.map((part) => part.extend(leaseMs)));
    const extended = ends.filter((end) => end.status === 'fulfilled').length;
    if (extended >= this.#needed) return;
    this.assertHeld();
    throw new UnavailableError(`"${this.name}" was extended on ${extended} of ${this.#needed} parts`);
  }

  /** Gives every part back, the first one last: whoever wants the whole waits there. Throws LostError as Grant does. */
  async release(): Promise<void> {
    if (this.#released) return;
    const lost = this.#isHeld() ? null : this.#loss();
    this.#released = true;
    const [first, ...rest] = this.#parts;
    const ends = await Promise.allSettled(rest.map((part) => part.release()));
    ends.push(...(await Promise.allSettled([first?.release()])));
    if (lost) throw lost;
    const failed = ends.filter((end) => end.status === 'rejected');
    if (failed.length > this.#spare) throw failed[0]!.reason;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }
}
