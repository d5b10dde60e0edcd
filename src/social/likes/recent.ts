import type { Clock } from '../../base/clock.ts';
import type { Subject } from '../../model/like.ts';
import { pairField } from './redis/layout.ts';

/** How long a decision is remembered: longer than a worker usually needs to store it. */
const KEPT_MS = 10_000;
/** Decisions of one generation; there are two. About 150 bytes each. */
const GENERATION_MAX = 20_000;

export interface Decision {
  readonly liked: boolean;
  /** By Redis' clock, as in the row that it becomes. */
  readonly decidedMs: number;
}

interface Kept extends Decision {
  readonly epoch: number;
  readonly atMs: number;
}

/**
 * What this process has decided in the last seconds, for pages that are shown while Redis does not answer: the ledger may not have it
 * yet. Another process may have decided otherwise since, so whatever Redis says counts more, and so does a row that was decided later.
 * Bounded: in a storm the oldest are forgotten first.
 */
export class RecentDecisions {
  readonly #clock: Clock;
  /** Two generations instead of one map whose oldest are deleted one by one: that would cost more than the decision itself. */
  #young = new Map<string, Kept>();
  #old = new Map<string, Kept>();
  #bornMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(subject: Subject, user: string, epoch: number, { liked, decidedMs }: Decision): void {
    const atMs = this.#clock.monotonic();
    if (this.#young.size >= GENERATION_MAX || atMs - this.#bornMs >= KEPT_MS) {
      this.#old = this.#young;
      this.#young = new Map();
      this.#bornMs = atMs;
    }
    this.#young.set(pairField(subject, user), { liked, decidedMs, epoch, atMs });
  }

  /** Null: nothing is known. What was decided in another epoch was stored before this one was opened, or is lost. */
  find(subject: Subject, user: string, epoch: number): Decision | null {
    const name = pairField(subject, user);
    const found = this.#young.get(name) ?? this.#old.get(name);
    if (found === undefined || found.epoch !== epoch) return null;
    return this.#clock.monotonic() - found.atMs < KEPT_MS ? found : null;
  }

  /** It was taken back: the row counts. */
  forget(subject: Subject, user: string): void {
    const name = pairField(subject, user);
    this.#young.delete(name);
    this.#old.delete(name);
  }
}
