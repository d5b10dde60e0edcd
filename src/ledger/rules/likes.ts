import { type LikeEvent, numberOf, type Pair, type Subject } from '../../model/like.ts';

/** A count as it is stored in its subject's row. */
export interface StoredCount {
  readonly count: number;
  readonly rev: number;
}

/** The row of a pair as it is stored. */
export interface StoredLike {
  readonly liked: boolean;
  readonly number: bigint;
}

/** The row of a pair as it has to be written. */
export interface WrittenLike extends Pair, StoredLike {
  readonly atMs: number;
}

/** Names a pair in a map. A subject contains no blank. */
export function pairKey({ subject, user }: Pair): string {
  return `${subject} ${user}`;
}

/**
 * What a transaction changes: it starts from what is stored, takes changes one by one, and says what to write. A count moves only when
 * the state of a pair does. So it agrees with the rows, whatever is repeated.
 */
export class LikeTally {
  readonly #counts: Map<Subject, StoredCount>;
  readonly #likes: Map<string, StoredLike>;
  readonly #written = new Map<string, WrittenLike>();
  /** By how much each count has to be moved. */
  readonly #moved = new Map<Subject, number>();

  /** `counts`: of every subject that exists. Both maps become this tally's own. */
  constructor(counts: Map<Subject, StoredCount>, likes: Map<string, StoredLike>) {
    this.#counts = counts;
    this.#likes = likes;
  }

  has(subject: Subject): boolean {
    return this.#counts.has(subject);
  }

  countOf(subject: Subject): StoredCount {
    return this.#counts.get(subject)!;
  }

  /** Null: never liked. */
  likeOf(pair: Pair): StoredLike | null {
    return this.#likes.get(pairKey(pair)) ?? null;
  }

  put(like: WrittenLike): void {
    const key = pairKey(like);
    const { subject, liked } = like;
    const before = this.#likes.get(key)?.liked ?? false;
    this.#likes.set(key, like);
    this.#written.set(key, like);
    if (before === liked) return;
    const { count, rev } = this.#counts.get(subject)!;
    const moved = this.#moved.get(subject);
    // A stored count that is too low must not stop the pipe. It stays wrong, and the check of counts reports it.
    const by = liked ? 1 : count > 0 ? -1 : 0;
    // One rev for a transaction, however many of its pairs change.
    this.#counts.set(subject, { count: count + by, rev: moved === undefined ? rev + 1 : rev });
    this.#moved.set(subject, (moved ?? 0) + by);
  }

  get written(): WrittenLike[] {
    return [...this.#written.values()];
  }

  /** Subjects whose count or rev has to be written, and by how much the count moves. */
  get moved(): ReadonlyMap<Subject, number> {
    return this.#moved;
  }
}

/** A request to like or unlike; answers whether it changed anything. The number is the row's next. */
export function setLike(tally: LikeTally, request: Pair & { readonly liked: boolean }, atMs: number): boolean {
  const { subject, user, liked } = request;
  const stored = tally.likeOf(request);
  if ((stored?.liked ?? false) === liked) return false;
  tally.put({ subject, user, liked, number: (stored?.number ?? 0n) + 1n, atMs });
  return true;
}

/** Events of an epoch that is not over, and of each pair only the newest. */
export function newestOf(events: readonly LikeEvent[], epoch: number): { newest: LikeEvent[]; over: number } {
  const newest = new Map<string, LikeEvent>();
  let over = 0;
  for (const event of events) {
    if (event.epoch < epoch) {
      over++;
      continue;
    }
    const key = pairKey(event);
    const other = newest.get(key);
    if (other === undefined || isNewer(event, other)) newest.set(key, event);
  }
  return { newest: [...newest.values()], over };
}

function isNewer(event: LikeEvent, other: LikeEvent): boolean {
  return event.epoch === other.epoch ? event.n > other.n : event.epoch > other.epoch;
}

/** Takes over an event if it is newer than the row: a repeated or late one changes nothing. */
export function settle(tally: LikeTally, event: LikeEvent): void {
  const { subject, user, liked, atMs } = event;
  const number = numberOf(event);
  const stored = tally.likeOf(event);
  if (stored === null || number > stored.number) tally.put({ subject, user, liked, number, atMs });
}
