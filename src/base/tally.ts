/**
 * Counts what is under way, and says when nothing is.
 *
 * A count and not a Set of promises: V8 makes a new table for a small Set every few additions, and tables that have grown old
 * keep those after them, and the results of all promises in them, until a full collection.
 */
export class Tally {
  #count = 0;
  #idle: PromiseWithResolvers<void> | null = null;

  get count(): number {
    return this.#count;
  }

  /** `ended` is called in the moment in which it does not count any more. What it begins, counts at once. */
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

  /** Resolves when nothing is under way. Of what was, somebody else hears whether it failed. */
  async idle(): Promise<void> {
    while (this.#count > 0) {
      this.#idle ??= Promise.withResolvers();
      await this.#idle.promise;
    }
  }
}
