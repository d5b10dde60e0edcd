import type { Subject } from '../../model/like.ts';

/** How many people like it. */
export interface LikeCount {
  readonly count: number;
  /** The count is that of the rows: nothing is on its way to the ledger. */
  readonly exact: boolean;
  /** When the ledger committed what the count is based on, by the ledger's clock. */
  readonly asOfMs: number;
}

export type LikeOutcome =
  | {
      readonly outcome: 'ok';
      readonly liked: boolean;
      /** Whether this call changed it. */
      readonly changed: boolean;
      readonly likes: LikeCount;
    }
  /** There is no such post or comment, or it was deleted. */
  | { readonly outcome: 'not_found' };

/** A subject with what the ledger said about it, a moment ago. */
export interface SettledLike {
  readonly subject: Subject;
  readonly liked: boolean;
  readonly count: number;
  readonly asOfMs: number;
}

export interface ShownLike extends LikeCount {
  readonly liked: boolean;
}

/**
 * Likes, for HTTP and the library. A caller's own like is exact at once (P8): `set` answers what is so from now on, and `look` shows it
 * in every process. Fails with `unavailable` or `overloaded` if it cannot be decided now; a retry does no harm.
 */
export interface Likes {
  set(subject: Subject, user: string, liked: boolean): Promise<LikeOutcome>;
  /**
   * Likes and counts to show for the subjects of a page, in their order, for `reader` (null: nobody). The caller read the page from the
   * ledger less than 5 s ago. Does not fail: where the newest state is not to be had, it shows the ledger's, not as exact.
   */
  look(reader: string | null, page: readonly SettledLike[]): Promise<ShownLike[]>;
  /** The ledger has deleted this subject: nobody can like it from now on. */
  forget(subject: Subject): Promise<void>;
}
