import { messageOf, TerminalError } from '../../base/errors.ts';

/** Whether the prefix in Redis is this shop's: until that is known, nothing is sold or carried. */
export class PrefixClaim {
  readonly #claim: () => Promise<void>;
  #reason: string | null = 'Redis was not asked yet';
  #isTaken = false;

  /** `claim` fails with a TerminalError if the prefix is not ours, and otherwise while Redis cannot be asked. */
  constructor(claim: () => Promise<void>) {
    this.#claim = claim;
  }

  /** Why the prefix cannot be used, or null while it is ours. */
  get reason(): string | null {
    return this.#reason;
  }

  /** Another shop has it, or a version that we cannot read: this process leaves everything there alone. */
  get isTaken(): boolean {
    return this.#isTaken;
  }

  /** Fails if it is taken. A Redis that is out has to be asked again; a prefix that was ours stays ours meanwhile. */
  async ask(): Promise<void> {
    try {
      await this.#claim();
      this.#reason = null;
    } catch (error) {
      this.#isTaken = error instanceof TerminalError;
      if (this.#isTaken || this.#reason !== null) this.#reason = messageOf(error);
      if (this.#isTaken) throw error;
    }
  }
}
