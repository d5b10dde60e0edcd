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

/** The moment before a page is read from the ledger: what it may lack is what was decided since. */
export interface PageMark {
  /** The epochs of the shards that this process knew. */
  readonly epochs: readonly number[];
  /** By this process' monotonic clock. */
  readonly atMs: number;
}

/**
 * Likes, for HTTP and the library. A caller's own like is exact at once (P8): `set` answers what is so from now on, and `look` shows it
 * in every process. Fails with `unavailable` or `overloaded` if it cannot be decided now; a retry does no harm.
 */
export interface Likes {
  set(subject: Subject, user: string, liked: boolean): Promise<LikeOutcome>;
  /** To be taken before a page is read from the ledger, and given to `look`. */
  mark(): PageMark;
  /**
   * Likes and counts to show for the subjects of a page, in their order, for `reader` (null: nobody). Does not fail: where the newest
   * state is not to be had, it shows the ledger's, not as exact, and what this process itself has decided for the reader a moment ago.
   */
  look(reader: string | null, page: readonly SettledLike[], mark: PageMark): Promise<ShownLike[]>;
  /** The ledger has deleted this subject: nobody can like it from now on. */
  forget(subject: Subject): Promise<void>;
}

/** What a page shows while nobody here knows what was decided: the ledger's values, not as exact. */
export function asStored(page: readonly SettledLike[]): ShownLike[] {
  return page.map(({ liked, count, asOfMs }) => ({ liked, count, exact: false, asOfMs }));
}
