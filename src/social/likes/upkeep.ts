import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { each, type Round, sweep } from '../../base/sweep.ts';
import { ALL_SHARDS, LIKE_SHARDS } from '../../model/like.ts';
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
 * this may be done twice: that one process leads only saves work. Each step is small. In a cluster the node of some shards may be out
 * while others are well: the round goes on with all the others, and fails at its end.
 */
export class LikeUpkeep {
  readonly #on: LikeUpkeepDependencies;
  /** For each shard, where the search for cold subjects goes on, and how many subjects it has. */
  readonly #cursors = Array.from({ length: LIKE_SHARDS }, () => '0');
  readonly #subjects = Array.from({ length: LIKE_SHARDS }, () => 0);
  #told = false;

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
    const round = async (): Promise<Round> => {
      const done = await this.round(signal);
      this.#told = false;
      return done;
    };
    await sweep(timers, round, {
      signal,
      pauseMs: ROUND_MS,
      pauseMsMax: ROUND_MS_MAX,
      ...(!alone && { failuresMax: FAILURES_MAX }),
      failed: (error) => {
        // Once for an outage, however often this process leads meanwhile.
        if (!this.#told) log.warn({ reason: messageOf(error) }, 'upkeep of likes failed; it is tried again');
        this.#told = true;
      },
    }).catch(() => undefined);
  }

  async round(signal?: AbortSignal): Promise<Round> {
    const { store, shards } = this.#on;
    let changed = 0;
    let more = false;
    const keep = async (shard: number): Promise<void> => {
      if (await shards.verify(shard)) changed++;
      const turned = await store.turnOver(shard, RECORDS_MAX);
      const evicted = await this.#evict(shard);
      const cleared = await store.clear(shard);
      changed += (turned === 'kept' ? 0 : 1) + evicted + cleared;
      more ||= turned === 'more' || cleared > 0 || (evicted > 0 && this.#cursors[shard] !== '0');
    };
    await each(ALL_SHARDS, LIKE_SHARDS, keep, signal);
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
