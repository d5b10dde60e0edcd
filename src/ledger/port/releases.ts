/** Units on their way back to the gate. */
export interface ReleaseLedger {
  /** Oldest first; `olderMs`: only those that have been there for so long; `after`: the next page. */
  releases(limit: number, olderMs: number, after?: Release): Promise<WaitingRelease[]>;
  /** The gate has them. */
  released(orderIds: readonly string[]): Promise<void>;
  /**
   * Every release of the sale above the `rev` of its item, whether a gate has had it or not. A gate that is built from an older
   * snapshot still holds these units: they were given back to the gate before it (docs/internals/distributed.md, The rebuild).
   * In pages, item by item. A release that is committed after the first page was read may be missing: whoever gives it back
   * meets the new gate.
   */
  releasesSince(saleId: string, revs: ReadonlyMap<string, number>): AsyncIterable<Release[]>;
  /** Forgets some that the gate has had for longer than `olderMs`; 0 when none is left. */
  pruneReleases(olderMs: number): Promise<number>;
}

export interface Release {
  readonly orderId: string;
  readonly saleId: string;
  readonly itemId: string;
  readonly buyer: string;
  readonly units: number;
  readonly rev: number;
  readonly createdAtMs: number;
}

export interface WaitingRelease extends Release {
  /** By the ledger's clock. */
  readonly waitedMs: number;
}

/** How long a release that the gate has had is remembered: longer than any gate takes to be built. */
export const RELEASES_KEPT_MS = 3600 * 1000;
