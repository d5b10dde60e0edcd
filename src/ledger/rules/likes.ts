import { type LikeEvent, numberOf, type Pair, type Subject } from '../../model/like.ts';
import type { LikeShard } from '../port/likes.ts';

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

/** A count under way: `by` is what it has moved by; null: nobody's state has changed. */
interface Count {
  count: number;
  rev: number;
  by: number | null;
}

/**
 * What a transaction changes: it starts from what is stored, takes changes one by one, and says what to write. A count moves only when
 * the state of a pair does. So it agrees with the rows, whatever is repeated.
 */
export class LikeTally {
  readonly #counts = new Map<Subject, Count>();
  readonly #stored: ReadonlyMap<string, StoredLike>;
  readonly #written = new Map<string, WrittenLike>();

  /** `counts`: of every subject that exists. `stored`: the rows of pairs, by `pairKey`. */
  constructor(counts: ReadonlyMap<Subject, StoredCount>, stored: ReadonlyMap<string, StoredLike>) {
    for (const [subject, { count, rev }] of counts) this.#counts.set(subject, { count, rev, by: null });
    this.#stored = stored;
  }

  has(subject: Subject): boolean {
    return this.#counts.has(subject);
  }

  countOf(subject: Subject): StoredCount {
    const { count, rev } = this.#counts.get(subject)!;
    return { count, rev };
  }

  /** By `pairKey`. Null: never liked. */
  likeOf(key: string): StoredLike | null {
    return this.#written.get(key) ?? this.#stored.get(key) ?? null;
  }

  put(key: string, like: WrittenLike): void {
    const before = this.likeOf(key)?.liked ?? false;
    this.#written.set(key, like);
    if (before === like.liked) return;
    const counted = this.#counts.get(like.subject)!;
    // A stored count that is too low must not stop the pipe. It stays wrong, and the check of counts reports it.
    const by = like.liked ? 1 : counted.count > 0 ? -1 : 0;
    counted.count += by;
    // One rev for a transaction, however many of its pairs change.
    if (counted.by === null) counted.rev++;
    counted.by = (counted.by ?? 0) + by;
  }

  get written(): Iterable<WrittenLike> {
    return this.#written.values();
  }

  /** Subjects whose rev has to be raised, and by how much the count moves. */
  *moved(): Generator<[subject: Subject, by: number]> {
    for (const [subject, { by }] of this.#counts) if (by !== null) yield [subject, by];
  }
}

/** A request to like or unlike; answers whether it changed anything. The number is the row's next. */
export function setLike(tally: LikeTally, request: Pair & { readonly liked: boolean }, atMs: number): boolean {
  const { subject, user, liked } = request;
  const key = pairKey(request);
  const stored = tally.likeOf(key);
  if ((stored?.liked ?? false) === liked) return false;
  tally.put(key, { subject, user, liked, number: (stored?.number ?? 0n) + 1n, atMs });
  return true;
}

/** Of each pair the newest event, by `pairKey`. */
export function newestOf(events: readonly LikeEvent[]): Map<string, LikeEvent> {
  const newest = new Map<string, LikeEvent>();
  for (const event of events) {
    const key = pairKey(event);
    const other = newest.get(key);
    if (other === undefined || isNewer(event, other)) newest.set(key, event);
  }
  return newest;
}

function isNewer(event: LikeEvent, other: LikeEvent): boolean {
  return event.epoch === other.epoch ? event.n > other.n : event.epoch > other.epoch;
}

/**
 * Whether an event counts at all now: of a pair whose newest does not, none does. Where the ledger decides, a row may have changed since
 * Redis decided, and its number would not show that.
 */
export function isDropped(tally: LikeTally, { subject, epoch }: LikeEvent, current: LikeShard): boolean {
  return epoch < current.epoch || current.mode !== 'counted' || !tally.has(subject);
}

/** Takes over an event if it is newer than the row: a repeated or late one changes nothing. */
export function settle(tally: LikeTally, key: string, event: LikeEvent): void {
  const { subject, user, liked, atMs } = event;
  const number = numberOf(event);
  const stored = tally.likeOf(key);
  if (stored === null || number > stored.number) tally.put(key, { subject, user, liked, number, atMs });
}
