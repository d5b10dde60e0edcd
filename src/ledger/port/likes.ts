import type { LikeEvent, Pair, Subject } from '../../model/like.ts';

/** Likes: one row for each pair that was ever liked, and a count in the subject's row. */
export interface LikeLedger {
  /**
   * Likes or unlikes in one transaction, which requests that come together share; durable when it resolves. This is the whole of it
   * in one process, and with LIKES=direct. Fails with `unavailable` while the ledger says that likes are counted in Redis.
   */
  setLike(request: Pair & { readonly liked: boolean }): Promise<LikeSet>;
  /** The rows as committed, read from the primary, in the order of the pairs; null: never liked. */
  likeRows(pairs: readonly Pair[]): Promise<(LikeRow | null)[]>;
  /**
   * Stores a batch of one shard in one transaction: of each pair the event with the largest number, if that is larger than the row's.
   * Moves each count by the rows that really changed. Repeated, reordered or cut differently, a batch changes nothing more. Events
   * of an epoch below the shard's are dropped: whoever opened that epoch has read the rows, and its decisions rest on them. While the
   * ledger decides likes, all events are dropped.
   */
  settleLikes(shard: number, events: readonly LikeEvent[]): Promise<SettledLikes>;
  /** The counts as committed; a subject that is missing or deleted is not in the map. */
  likeCounts(subjects: readonly Subject[]): Promise<Map<Subject, LikeBase>>;
  /** Users that have a row for this subject, liked or not, after `after` in bytewise order, at most 10 000: to rebuild a filter. */
  likeUsers(subject: Subject, after: string | null, limit: number): Promise<string[]>;
  /** The shard's epoch, and how its likes are decided. */
  likeShard(shard: number): Promise<LikeShard>;
  /**
   * Raises the shard's epoch above `above` and above the stored one, and returns it. From this commit older events are dropped. Null: the
   * stored one is not `seen` any more, and stays. Whoever has raised it meanwhile has opened the shard, and may have decided in it. Null,
   * too, while the ledger decides likes: then no shard may be opened in Redis.
   */
  raiseLikeEpoch(shard: number, seen: number, above: number): Promise<number | null>;
  /**
   * How likes are decided from now on. A change raises every epoch, so that what Redis still has is not trusted. Returns whether
   * it was different before.
   */
  setLikeMode(mode: LikeMode): Promise<boolean>;
}

export type LikeMode = 'direct' | 'counted';

/** The row of a pair. */
export interface LikeRow {
  readonly liked: boolean;
  /** When that was decided: by the clock of Redis, or of the ledger where it decides. */
  readonly changedMs: number;
}

/** A row of the fence: which events count, and who decides. */
export interface LikeShard {
  readonly epoch: number;
  readonly mode: LikeMode;
}

export type LikeSet =
  | {
      readonly outcome: 'ok';
      readonly liked: boolean;
      /** Whether this call changed it. */
      readonly changed: boolean;
      readonly count: number;
      /** When that was committed, by the ledger's clock. */
      readonly atMs: number;
    }
  | { readonly outcome: 'not_found' };

/** A count with the number of its change: the larger `rev` is the newer. */
export interface LikeBase {
  readonly count: number;
  /** Raised by one in every transaction that changes who likes the subject, even if as many began as ceased to. */
  readonly rev: number;
  /** When the count was read or written, by the ledger's clock. */
  readonly atMs: number;
}

export interface SettledLikes {
  /** Of every subject of the batch that exists, also where nothing changed. */
  readonly bases: ReadonlyMap<Subject, LikeBase>;
  /** The shard's epoch and mode at the commit: whoever decides in an older epoch, or in another mode, must stop. */
  readonly epoch: number;
  readonly mode: LikeMode;
  /** Events that were dropped: their epoch is over, the ledger decides likes now, or their subject does not exist or is deleted. */
  readonly dropped: number;
}
