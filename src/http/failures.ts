import type { Clock } from '../base/clock.ts';

/** Keys that are remembered at most. */
const KEYS_MAX = 10_000;
/** A key stays trusted for this long; the time is refreshed at most once per TRUST_AGAIN_MS. */
const TRUSTED_MS = 24 * 3600 * 1000;
const TRUST_AGAIN_MS = 60_000;

export interface Failing {
  readonly failures: number;
  readonly lastMs: number;
  /** Tries that are being judged, or whose answer is being delayed. */
  readonly held: number;
}

/**
 * How often each key (an address, a name) failed lately, for limits on guessing. A key that does not fail for `forgetMs` starts again
 * from zero.
 */
export class Failures {
  readonly #clock: Clock;
  readonly #forgetMs: number;
  /** Oldest failure first: `remember` moves a key to the end. */
  readonly #failing = new Map<string, { failures: number; lastMs: number; held: number }>();

  constructor(clock: Clock, forgetMs: number) {
    this.#clock = clock;
    this.#forgetMs = forgetMs;
  }

  get size(): number {
    return this.#failing.size;
  }

  /** Undefined: nothing that counts. */
  of(key: string): Failing | undefined {
    const failing = this.#failing.get(key);
    // While tries are held the entry must stay: `release` counts them down.
    const over = failing?.held === 0 && this.#clock.monotonic() - failing.lastMs >= this.#forgetMs;
    return over ? undefined : failing;
  }

  fail(key: string): Failing {
    const failing = this.#entry(key);
    failing.failures++;
    failing.lastMs = this.#clock.monotonic();
    remember(this.#failing, key, failing);
    return failing;
  }

  hold(key: string): void {
    const failing = this.#entry(key);
    failing.held++;
    remember(this.#failing, key, failing);
  }

  release(key: string): void {
    const failing = this.#failing.get(key);
    if (failing === undefined || failing.held === 0) return;
    failing.held--;
    // A try that was never judged leaves nothing: otherwise refused requests could push out keys that failed.
    if (failing.held === 0 && failing.failures === 0) this.#failing.delete(key);
  }

  #entry(key: string): { failures: number; lastMs: number; held: number } {
    const known = this.of(key) === undefined ? undefined : this.#failing.get(key);
    return known ?? { failures: 0, lastMs: this.#clock.monotonic(), held: 0 };
  }
}

/** How often something happened lately for each key, up to a number. */
export class Lately {
  readonly #clock: Clock;
  readonly #max: number;
  readonly #withinMs: number;
  /** When it happened, at most `max` times, the oldest first. */
  readonly #times = new Map<string, number[]>();

  constructor(clock: Clock, max: number, withinMs: number) {
    this.#clock = clock;
    this.#max = max;
    this.#withinMs = withinMs;
  }

  add(key: string): void {
    const times = [...this.#of(key), this.#clock.monotonic()];
    remember(this.#times, key, times.slice(-this.#max));
  }

  /** How long until it may happen once more; 0: now. `held`: so many may be about to happen. */
  waitMs(key: string, held: number): number {
    const times = this.#of(key);
    const tooMany = times.length + held + 1 - this.#max;
    if (tooMany <= 0) return 0;
    const first = times[tooMany - 1];
    // If those under way do not happen, somebody else may try.
    return first === undefined ? 1000 : first + this.#withinMs - this.#clock.monotonic();
  }

  #of(key: string): number[] {
    const sinceMs = this.#clock.monotonic() - this.#withinMs;
    return (this.#times.get(key) ?? []).filter((atMs) => atMs > sinceMs);
  }
}

/** Keys that were right lately. */
export class Trusted {
  readonly #clock: Clock;
  /** When a key was last right, by the monotonic clock. */
  readonly #since = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(key: string): void {
    const nowMs = this.#clock.monotonic();
    const sinceMs = this.#since.get(key);
    if (sinceMs !== undefined && nowMs - sinceMs < TRUST_AGAIN_MS) return;
    remember(this.#since, key, nowMs);
  }

  has(key: string): boolean {
    const sinceMs = this.#since.get(key);
    return sinceMs !== undefined && this.#clock.monotonic() - sinceMs < TRUSTED_MS;
  }
}

/** Stores the entry as the newest. Drops the oldest beyond the limit: an attacker with many keys cannot fill the memory. */
function remember<T>(map: Map<string, T>, key: string, value: T): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > KEYS_MAX) map.delete(map.keys().next().value!);
}
