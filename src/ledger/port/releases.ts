/** Units on their way back to the gate. */
export interface ReleaseLedger {
  /** Oldest first; `olderMs`: only those that have been there for so long; `after`: the next page. */
  releases(limit: number, olderMs: number, after?: Release): Promise<WaitingRelease[]>;
  /** The gate has them. */
  released(orderIds: readonly string[]): Promise<void>;
  /**
   * Every release of the sale above the `rev` of its item, the gate's or not: a gate that is built from an older snapshot
   * holds these units still, and whoever gave them back did so to the gate before it: see
   * The rebuild in docs/internals/distributed.md. In pages, item by item; what comes to be after the first page was asked for
   * may be missing: whoever gives it back meets the new gate.
   */
  releasesSince(saleId: string, revs: ReadonlyMap<string, number>): AsyncIterable<Release[]>;
  /** Forgets some that the gate has had for longer than so long; 0 when none is left. */
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
