import type { LikeLedger } from '../../ledger/port.ts';
import type { Subject } from '../../model/like.ts';
import type { LikeOutcome, Likes, PageMark, SettledLike, ShownLike } from './likes.ts';

/** The rows are all there is. */
const MARK: PageMark = { epochs: [], atMs: 0 };

/** Likes that the ledger decides, one transaction for all that come together. Counts are always exact. */
export class DirectLikes implements Likes {
  readonly #ledger: Pick<LikeLedger, 'setLike'>;

  constructor(ledger: Pick<LikeLedger, 'setLike'>) {
    this.#ledger = ledger;
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
    return page.map(({ liked, count, asOfMs }) => ({ liked, count, exact: true, asOfMs }));
  }

  async forget(): Promise<void> {}
}
