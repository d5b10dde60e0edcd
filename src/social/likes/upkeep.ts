import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { type Round, sweep } from '../../base/sweep.ts';
import { LIKE_SHARDS } from '../../model/like.ts';
import type { LikeStore } from './redis/store.ts';
import type { LikeShards } from './shards.ts';

const ROUND_MS = 1000;
const ROUND_MS_MAX = 5000;
const FAILURES_MAX = 3;
const RECORDS_MAX = 256;
/** Of its bound of subjects: beyond it, subjects leave Redis as soon as they may. */
const CROWDED = 0.75;

export interface LikeUpkeepDependencies {
  readonly runtime: Runtime;
  readonly store: LikeStore;
  readonly shards: Pick<LikeShards, 'verify'>;
}

/**
 * What the likes need in Redis and no request brings about, once a second, in one process of the cluster at a time: stale shards are
 * opened, also when nobody likes anything; records of settled pairs, cold subjects and what old epochs have left are deleted. All of
 * this may be done twice: that one process leads only saves work. Each step is small.
 */
export class LikeUpkeep {
  readonly #on: LikeUpkeepDependencies;
  /** For each shard, where the search for cold subjects goes on, and how many subjects it has. */
  readonly #cursors = Array.from({ length: LIKE_SHARDS }, () => '0');
  readonly #subjects = Array.from({ length: LIKE_SHARDS }, () => 0);

  constructor(dependencies: LikeUpkeepDependencies) {
    this.#on = dependencies;
  }

  /** Subjects in Redis, when they were last counted. */
  get subjects(): number {
    return this.#subjects.reduce((sum, one) => sum + one, 0);
  }

  /** The work of the process that leads. After some failed rounds another process may; `alone`: there is none. */
  async lead(signal: AbortSignal, alone: boolean): Promise<void> {
    const { timers, log } = this.#on.runtime;
    await sweep(timers, () => this.round(signal), {
      signal,
      pauseMs: ROUND_MS,
      pauseMsMax: ROUND_MS_MAX,
      ...(!alone && { failuresMax: FAILURES_MAX }),
      failed: (error) => log.warn({ reason: messageOf(error) }, 'upkeep of likes failed; it is tried again'),
    }).catch(() => undefined);
  }

  async round(signal?: AbortSignal): Promise<Round> {
    const { store, shards } = this.#on;
    let changed = await shards.verify();
    let more = false;
    for (let shard = 0; shard < LIKE_SHARDS && !signal?.aborted; shard++) {
      const turned = await store.turnOver(shard, RECORDS_MAX);
      const evicted = await this.#evict(shard);
      const cleared = await store.clear(shard);
      changed += (turned === 'kept' ? 0 : 1) + evicted + cleared;
      more ||= turned === 'more' || cleared > 0 || (evicted > 0 && this.#cursors[shard] !== '0');
    }
    return { changed, more };
  }

  async #evict(shard: number): Promise<number> {
    const { store } = this.#on;
    const { subjectsMax, idleMs, keepMs } = store.rules;
    const isCrowded = this.#subjects[shard]! > subjectsMax * CROWDED;
    const { cursor, evicted, left } = await store.evict(shard, this.#cursors[shard]!, isCrowded ? keepMs : idleMs);
    this.#cursors[shard] = cursor;
    this.#subjects[shard] = left;
    return evicted;
  }
}
