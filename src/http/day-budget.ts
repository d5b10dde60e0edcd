import type { Clock } from '../base/clock.ts';

const DAY_MS = 24 * 3600 * 1000;
/** Keys that are remembered at most. Beyond it the one whose day ends first is forgotten. */
const KEYS_MAX = 100_000;

interface Day {
  readonly sinceMs: number;
  readonly spent: number[];
}

/**
 * What a key may spend in 24 hours, of several things at once. A day begins with the first of it. Counted in this process, in bounded
 * memory; a restart forgets it. Limits of a second bound how fast somebody is; these bound how much of what is kept they leave.
 */
export class DayBudget {
  readonly #clock: Clock;
  readonly #max: readonly number[];
  /** The day that began first is the first. */
  readonly #days = new Map<string, Day>();

  constructor(clock: Clock, ...max: number[]) {
    this.#clock = clock;
    this.#max = max;
  }

  get size(): number {
    return this.#days.size;
  }

  /** 0: so much may be spent; otherwise the whole seconds until the day is over. */
  waitSeconds(key: string, ...costs: number[]): number {
    const day = this.#dayOf(key);
    if (day === undefined) return 0;
    if (this.#max.every((max, at) => day.spent[at]! + costs[at]! <= max)) return 0;
    return Math.max(1, Math.ceil((day.sinceMs + DAY_MS - this.#clock.monotonic()) / 1000));
  }

  /** Costs below zero give back. */
  spend(key: string, ...costs: number[]): void {
    let day = this.#dayOf(key);
    if (day === undefined) {
      this.#forget();
      day = { sinceMs: this.#clock.monotonic(), spent: this.#max.map(() => 0) };
      this.#days.set(key, day);
    }
    for (const [at, cost] of costs.entries()) day.spent[at] = Math.max(0, day.spent[at]! + cost);
  }

  #dayOf(key: string): Day | undefined {
    const day = this.#days.get(key);
    if (day === undefined || this.#clock.monotonic() - day.sinceMs < DAY_MS) return day;
    this.#days.delete(key);
    return undefined;
  }

  /** Days that are over, and one more if there is no room. */
  #forget(): void {
    const overMs = this.#clock.monotonic() - DAY_MS;
    for (const [key, { sinceMs }] of this.#days) {
      if (sinceMs > overMs && this.#days.size < KEYS_MAX) return;
      this.#days.delete(key);
    }
  }
}
