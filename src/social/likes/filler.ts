import { messageOf } from '../../base/errors.ts';
import { Few } from '../../base/few.ts';
import type { Runtime } from '../../base/runtime.ts';
import { pages } from '../../base/sweep.ts';
import { sleep } from '../../base/timers.ts';
import type { LikeLedger } from '../../ledger/port.ts';
import type { Subject } from '../../model/like.ts';
import type { LikeStore } from './redis/store.ts';

/** A filter that saves fewer reads than it costs is not filled: so many questions come first, for each thousand rows to read. */
const ASKED_MIN = 16;
const ASKED_PER_THOUSAND = 1;
/** Subjects whose questions are counted; beyond that the counts begin anew. */
const COUNTED_MAX = 10_000;
const PAGE = 1000;
/** Between two pages: the ledger and Redis have others to serve. */
const PAUSE_MS = 2;
const AGAIN_MS = 10_000;

export interface FillerDependencies {
  readonly runtime: Runtime;
  readonly store: Pick<LikeStore, 'beginFilter' | 'fillFilter'>;
  readonly ledger: Pick<LikeLedger, 'likeUsers'>;
  /** Null: another process has it. The lock only saves work: Redis takes users from whoever began last. */
  readonly lock: (name: string) => Promise<{ release(): Promise<unknown> } | null>;
}

/**
 * Fills the filters of subjects that came into Redis with rows in the ledger. Without a complete filter every user who is not in Redis
 * costs a read of the ledger. One filter at a time, by one process at a time.
 */
export class LikeFiller {
  readonly #on: FillerDependencies;
  readonly #asked = new Map<Subject, number>();
  readonly #few = new Few(1, 100, 'filters to fill');
  readonly #ended = new AbortController();

  constructor(dependencies: FillerDependencies) {
    this.#on = dependencies;
  }

  /** Redis had to ask for a row of this subject, which about so many people like. */
  asked(subject: Subject, count: number): void {
    const asked = (this.#asked.get(subject) ?? 0) + 1;
    if (this.#asked.size >= COUNTED_MAX) this.#asked.clear();
    this.#asked.set(subject, asked);
    // Counted in every process. Negative while it is being filled.
    if (asked < Math.max(ASKED_MIN, (count / 1000) * ASKED_PER_THOUSAND)) return;
    this.#asked.set(subject, Number.NEGATIVE_INFINITY);
    const { log, timers } = this.#on.runtime;
    void this.#few
      .run(() => this.fill(subject, count))
      .catch((error: unknown) => log.debug({ subject, reason: messageOf(error) }, 'a filter of likes was not filled'))
      // Another process fills it, or there is no room: not tried again at once.
      .finally(() => timers.after(AGAIN_MS, () => this.#asked.delete(subject)));
  }

  /** True: it is complete. */
  async fill(subject: Subject, expected: number): Promise<boolean> {
    const { runtime, store, ledger, lock } = this.#on;
    const grant = await lock(`likes:fill:${subject}`);
    if (grant === null) return false;
    try {
      const token = runtime.random.secret(8);
      const begun = await store.beginFilter(subject, token, expected);
      if (begun !== 'filling') return begun === 'complete';
      const read = (limit: number, after?: string): Promise<string[]> =>
        ledger.likeUsers(subject, after ?? null, limit);
      const { signal } = this.#ended;
      for await (const users of pages(runtime.timers, PAGE, read, signal)) {
        if (!(await store.fillFilter(subject, token, users, false))) return false;
        await sleep(runtime.timers, PAUSE_MS);
      }
      return !signal.aborted && (await store.fillFilter(subject, token, [], true));
    } finally {
      await grant.release().catch(() => undefined);
    }
  }

  close(): void {
    this.#ended.abort();
  }
}
