import { type Hold, remainingMs } from './frame.ts';

/** Holds that exist side by side, each with a lease of its own. */
export class Holds {
  readonly #holds = new Map<string, Hold>();
  /** No lease ends before this: spares most commands the walk. */
  #earliestMs = Infinity;
  #permits = 0;

  get size(): number {
    return this.#holds.size;
  }

  get permits(): number {
    return this.#permits;
  }

  get(rid: string): Hold | undefined {
    return this.#holds.get(rid);
  }

  add(hold: Hold): void {
    this.#holds.set(hold.rid, hold);
    this.#permits += hold.permits;
    this.#earliestMs = Math.min(this.#earliestMs, hold.endMs);
  }

  /** After its lease was changed. */
  moved(hold: Hold): void {
    this.#earliestMs = Math.min(this.#earliestMs, hold.endMs);
  }

  remove(rid: string): Hold | undefined {
    const hold = this.#holds.get(rid);
    if (!hold) return undefined;
    this.#holds.delete(rid);
    this.#permits -= hold.permits;
    return hold;
  }

  clear(): void {
    this.#holds.clear();
    this.#permits = 0;
    this.#earliestMs = Infinity;
  }

  prune(nowMs: number): void {
    if (nowMs < this.#earliestMs) return;
    let earliestMs = Infinity;
    for (const hold of this.#holds.values()) {
      if (hold.endMs <= nowMs) this.remove(hold.rid);
      else earliestMs = Math.min(earliestMs, hold.endMs);
    }
    this.#earliestMs = earliestMs;
  }

  [Symbol.iterator](): Iterator<Hold> {
    return this.#holds.values();
  }

  /** Until the first lease ends; Infinity where there is none. */
  shortestMs(nowMs: number): number {
    let shortest = Infinity;
    for (const hold of this) shortest = Math.min(shortest, remainingMs(hold, nowMs));
    return shortest;
  }

  /** Until the last lease but that of `rid` ends; 0 where there is none. */
  longestMsBut(rid: string, nowMs: number): number {
    let longest = 0;
    for (const hold of this) if (hold.rid !== rid) longest = Math.max(longest, remainingMs(hold, nowMs));
    return longest;
  }
}
