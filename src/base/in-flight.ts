/**
 * Counts running work, and tells when none is left.
 *
 * Not a Set of promises: V8 allocates a new table for a small Set every few additions, and old tables keep the later ones, with
 * the results of all promises in them, alive until a full garbage collection.
 */
export class InFlight {
  #count = 0;
  #idle: PromiseWithResolvers<void> | null = null;

  get count(): number {
    return this.#count;
  }

  /** Calls `ended` in the same turn in which the work stops counting. Work that it starts counts before `idle` resolves. */
  async during<T>(work: Promise<T>, ended?: () => void): Promise<T> {
    this.#count++;
    try {
      return await work;
    } finally {
      this.#count--;
      ended?.();
      if (this.#count === 0) {
        this.#idle?.resolve();
        this.#idle = null;
      }
    }
  }

  /** Resolves when no work is running. Never rejects: whoever called `during` gets a failure. */
  async idle(): Promise<void> {
    while (this.#count > 0) {
      this.#idle ??= Promise.withResolvers();
      await this.#idle.promise;
    }
  }
}
