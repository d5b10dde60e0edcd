import type { Clock } from '../../base/clock.ts';
import type { Subject } from '../../model/like.ts';
import { pairField } from './redis/layout.ts';

/** How long a decision is remembered: longer than a worker usually needs to store it. */
const KEPT_MS = 10_000;
/** Decisions of one generation; there are two. About 150 bytes each. */
const GENERATION_MAX = 20_000;

interface Decision {
  readonly liked: boolean;
  readonly epoch: number;
  readonly atMs: number;
}

/**
 * What this process has decided in the last seconds, for pages that are shown while Redis does not answer: the ledger may not have it
 * yet. Another process may have decided otherwise since, so whatever Redis says counts more. Bounded: in a storm the oldest are
 * forgotten first.
 */
export class RecentDecisions {
  readonly #clock: Clock;
  /** Two generations instead of one map whose oldest are deleted one by one: that would cost more than the decision itself. */
  #young = new Map<string, Decision>();
  #old: ReadonlyMap<string, Decision> = new Map();
  #bornMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(subject: Subject, user: string, liked: boolean, epoch: number): void {
    const atMs = this.#clock.monotonic();
    if (this.#young.size >= GENERATION_MAX || atMs - this.#bornMs >= KEPT_MS) {
      this.#old = this.#young;
      this.#young = new Map();
      this.#bornMs = atMs;
    }
    this.#young.set(pairField(subject, user), { liked, epoch, atMs });
  }

  /** Null: nothing is known. What was decided in another epoch was stored before this one was opened, or is lost. */
  liked(subject: Subject, user: string, epoch: number): boolean | null {
    const name = pairField(subject, user);
    const found = this.#young.get(name) ?? this.#old.get(name);
    if (found === undefined || found.epoch !== epoch) return null;
    return this.#clock.monotonic() - found.atMs < KEPT_MS ? found.liked : null;
  }
}
