import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { Seldom } from '../../base/seldom.ts';
import { within, withinAwake } from '../../base/timers.ts';
import type { LikeBase, LikeRow } from '../../ledger/port.ts';
import { type Pair, type Subject, shardOf } from '../../model/like.ts';
import type { PageMark, SettledLike, ShownLike } from './likes.ts';
import type { Decision, RecentDecisions } from './recent.ts';
import type { LookAnswer } from './redis/looks.ts';
import type { LikeStore } from './redis/store.ts';

/** How long a page waits for Redis. Then it shows what the ledger has. */
const LOOK_MS_MAX = 500;
/** How long it waits for the ledger then, if this process itself has decided otherwise. */
const ROW_MS_MAX = 200;
/** How often a page is looked at, with a read of the ledger before each time but the first. */
const LOOKS_MAX = 3;

export interface ShownLikesDependencies {
  readonly runtime: Runtime;
  readonly store: Pick<LikeStore, 'look' | 'epochs' | 'rules'>;
  readonly recent: RecentDecisions;
  /** Reads of the ledger, together with all who ask in the same moment. */
  readonly row: (pair: Pair) => Promise<LikeRow | null>;
  readonly count: (subject: Subject) => Promise<LikeBase | null>;
}

/** A subject of a page on its way to being shown. */
interface Place {
  settled: SettledLike;
  shown: ShownLike | null;
  /** Redis has lost what was not stored. */
  isLost: boolean;
}

/**
 * What a page shows of likes: what Redis knows, and for the rest what the ledger had when the page was read. That is right if nothing can
 * have left Redis since (docs/internals/likes.md): the epoch that the process knew before it read the page is still in force, and the
 * read was not too long ago. Otherwise the page is read again, in the epoch that Redis names. This happens once for each epoch that a
 * process learns of.
 *
 * If Redis does not answer, the ledger's values are shown, not as exact. A like that this process itself decided in the last seconds is
 * known all the same (recent.ts), unless Redis has lost it; of one that another process decided nobody can tell.
 */
export class ShownLikes {
  readonly #on: ShownLikesDependencies;
  readonly #seldom: Seldom;
  #asStored = 0;

  constructor(dependencies: ShownLikesDependencies) {
    this.#on = dependencies;
    this.#seldom = new Seldom(dependencies.runtime.clock);
  }

  /** Since the start: posts and comments that were shown as they are stored, because Redis did not answer for them. */
  get asStored(): number {
    return this.#asStored;
  }

  mark(): PageMark {
    return { epochs: this.#on.store.epochs, atMs: this.#on.runtime.clock.monotonic() };
  }

  async look(reader: string | null, page: readonly SettledLike[], mark: PageMark): Promise<ShownLike[]> {
    if (page.length === 0) return [];
    const { timers, log } = this.#on.runtime;
    const places = page.map((settled): Place => ({ settled, shown: null, isLost: false }));
    let reason: string | null = null;
    const filled = places.map((place) => {
      return this.#fill(reader, place, mark).catch((error: unknown) => {
        reason ??= messageOf(error);
      });
    });
    const isFilled = await withinAwake(
      timers,
      Promise.all(filled).then(() => true),
      LOOK_MS_MAX,
    );
    if (isFilled === null) reason ??= `not known within ${LOOK_MS_MAX} ms`;
    const left = places.filter(({ shown }) => shown === null).length;
    if (left > 0) {
      this.#asStored += left;
      reason ??= 'their shard is being opened';
      if (this.#seldom.may('look')) log.warn({ reason, left }, 'likes are shown as they are stored');
    }
    return await Promise.all(places.map((place) => place.shown ?? this.#stored(reader, place)));
  }

  /** A place that Redis does not answer for is left as it is. Each by itself: one that is late or fails holds up no other. */
  async #fill(reader: string | null, place: Place, mark: PageMark): Promise<void> {
    const { store, runtime } = this.#on;
    const { subject } = place.settled;
    const asked = { subject, user: reader };
    for (let looks = 1, since = mark; ; looks++) {
      // Once more: a process that was stopped for longer than a command may take finds all of its commands failed, and Redis well.
      const answer = await store.look(asked).catch(() => store.look(asked));
      if (answer === 'stale' || answer === 'lost') {
        place.isLost = answer === 'lost';
        return;
      }
      const isRecent = runtime.clock.monotonic() - since.atMs <= store.rules.askedMsMax;
      const isCurrent = isRecent && answer.epoch === since.epochs[shardOf(subject)];
      const isKnown = answer.count !== null && (answer.liked !== null || reader === null);
      if (isKnown || isCurrent) {
        place.shown = shownBy(answer, place.settled);
        return;
      }
      if (looks === LOOKS_MAX) return;
      since = this.mark();
      await this.#readAgain(reader, place);
    }
  }

  async #readAgain(reader: string | null, place: Place): Promise<void> {
    const { row, count } = this.#on;
    const { subject } = place.settled;
    const rows = reader === null ? null : row({ subject, user: reader });
    const [found, base] = await Promise.all([rows, count(subject)]);
    // Deleted meanwhile: the page is about to say so, or was read just before.
    if (base !== null) place.settled = { subject, liked: found?.liked ?? false, count: base.count, asOfMs: base.atMs };
  }

  async #stored(reader: string | null, { settled, isLost }: Place): Promise<ShownLike> {
    const { subject, liked, count, asOfMs } = settled;
    const { store, recent } = this.#on;
    const own = reader === null || isLost ? null : recent.find(subject, reader, store.epochs[shardOf(subject)]!);
    const newest = own === null || own.liked === liked ? liked : await this.#newest({ subject, user: reader! }, own);
    return { liked: newest, count, exact: false, asOfMs };
  }

  /** What this process has decided, or the row: another process may have decided since, and the ledger may have that. */
  async #newest(pair: Pair, own: Decision): Promise<boolean> {
    const { runtime, row } = this.#on;
    // A ledger that does not answer does not keep the page: then our own is the newest that is known.
    const found = await within(runtime.timers, row(pair), ROW_MS_MAX).catch(() => null);
    return found !== null && found.changedMs > own.decidedMs ? found.liked : own.liked;
  }
}

function shownBy({ isShut, count, liked }: Exclude<LookAnswer, string>, settled: SettledLike): ShownLike {
  if (count === null) return { liked: settled.liked, count: settled.count, exact: !isShut, asOfMs: settled.asOfMs };
  return { liked: liked ?? settled.liked, count: count.count, exact: count.exact, asOfMs: count.atMs };
}
