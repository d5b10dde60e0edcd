import type { Clock } from '../../base/clock.ts';
import type { LikeLedger } from '../../ledger/port.ts';
import type { Subject } from '../../model/like.ts';
import type { LikeOutcome, Likes, PageMark, SettledLike, ShownLike } from './likes.ts';

/** The rows are all there is. */
const MARK: PageMark = { epochs: [], atMs: 0 };
/** How long it is taken for granted that the ledger decides likes: pages of anonymous readers are as old as that. */
const KNOWN_MS = 500;

/**
 * Likes that the ledger decides, one transaction for all that come together. Counts are exact, unless another process has been started
 * that lets Redis decide: then likes fail here, and pages, which show the stored rows, say within half a second that they are not exact.
 */
export class DirectLikes implements Likes {
  readonly #ledger: Pick<LikeLedger, 'setLike' | 'likeShard'>;
  readonly #clock: Clock;
  #knownMs = Number.NEGATIVE_INFINITY;
  #asking: Promise<boolean> | null = null;

  constructor(ledger: Pick<LikeLedger, 'setLike' | 'likeShard'>, clock: Clock) {
    this.#ledger = ledger;
    this.#clock = clock;
  }

  async set(subject: Subject, user: string, liked: boolean): Promise<LikeOutcome> {
    const set = await this.#ledger.setLike({ subject, user, liked });
    if (set.outcome === 'not_found') return set;
    const { changed, count, atMs } = set;
    return { outcome: 'ok', liked: set.liked, changed, likes: { count, exact: true, asOfMs: atMs } };
  }

  mark(): PageMark {
    return MARK;
  }

  async look(_: string | null, page: readonly SettledLike[]): Promise<ShownLike[]> {
    const exact = this.#clock.monotonic() - this.#knownMs < KNOWN_MS || (await this.#decides());
    return page.map(({ liked, count, asOfMs }) => ({ liked, count, exact, asOfMs }));
  }

  /** Whether the ledger decides. All pages of the same moment share the question. */
  #decides(): Promise<boolean> {
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = null;
    });
    return this.#asking;
  }

  async #ask(): Promise<boolean> {
    const askedMs = this.#clock.monotonic();
    try {
      // The mode is that of all shards.
      const { mode } = await this.#ledger.likeShard(0);
      this.#knownMs = mode === 'direct' ? askedMs : Number.NEGATIVE_INFINITY;
      return mode === 'direct';
    } catch {
      return false;
    }
  }

  async forget(): Promise<void> {}
}
