import type { LikeEvent, Pair, Subject } from '../model/like.ts';
import type { LikeBase, LikeLedger, LikeMode, LikeRow, LikeSet, LikeShard, SettledLikes } from './port/likes.ts';
import type { Store } from './store.ts';
import { likeCounts, likeRows, likeUsers } from './works/like-reads.ts';
import { likeShard, raiseLikeEpoch, setLikeMode } from './works/like-shards.ts';
import { type LikeRequest, setLikes, settleLikes } from './works/likes.ts';

export class LikeBook implements LikeLedger {
  readonly #on: Store;
  readonly #setLike: (request: LikeRequest) => Promise<LikeSet>;
  readonly #likeRows: (pairs: readonly Pair[]) => Promise<(LikeRow | null)[]>;

  constructor(store: Store) {
    this.#on = store;
    this.#setLike = store.together((batch) => setLikes(batch, store.dialect), {
      as: 'change',
      about: ({ subject, user }) => `${subject} ${user}`,
    });
    // A crowd asks for one pair each: the calls of one turn share a statement.
    this.#likeRows = store.together(
      function* (calls) {
        const rows = yield* likeRows(calls.flat());
        return calls.map(({ length }) => rows.splice(0, length));
      },
      { as: 'look' },
    );
  }

  setLike(request: LikeRequest): Promise<LikeSet> {
    return this.#setLike(request);
  }

  likeRows(pairs: readonly Pair[]): Promise<(LikeRow | null)[]> {
    return this.#likeRows(pairs);
  }

  settleLikes(shard: number, events: readonly LikeEvent[]): Promise<SettledLikes> {
    return this.#on.change(() => settleLikes(shard, events, this.#on.dialect));
  }

  likeCounts(subjects: readonly Subject[]): Promise<Map<Subject, LikeBase>> {
    return this.#on.look(() => likeCounts(subjects));
  }

  likeUsers(subject: Subject, after: string | null, limit: number): Promise<string[]> {
    return this.#on.look(() => likeUsers(subject, after, limit));
  }

  likeShard(shard: number): Promise<LikeShard> {
    return this.#on.look(() => likeShard(shard));
  }

  raiseLikeEpoch(shard: number, seen: number, above: number): Promise<number | null> {
    return this.#on.change(() => raiseLikeEpoch(shard, seen, above, this.#on.dialect));
  }

  setLikeMode(mode: LikeMode): Promise<boolean> {
    return this.#on.change(() => setLikeMode(mode, this.#on.dialect));
  }
}
