import type { Clock } from '../base/clock.ts';
import type { Logger } from '../base/logger.ts';
import { addressKey, isLocalAddress } from './address.ts';

/** So many wrong keys of an address are answered at once: somebody mistyped, or a program uses an old key. */
const FREE = 5;
/** The answer to the next one is delayed by this, and by twice as much each time after it. */
const HOLD_MS = 250;
const HOLD_MS_MAX = 2000;
/** An address that sends no wrong key for this long starts again from zero. */
const FORGET_MS = 60_000;
/** Delayed answers of one address. At the longest delay it can try eight keys a second. */
const HELD_PER_ADDRESS_MAX = 16;
/** Delayed answers in all: each keeps a socket and a timer. */
const HELD_MAX = 512;
const ADDRESSES_MAX = 10_000;
/** A valid key makes its address trusted for this long; the time is refreshed at most once per TRUST_AGAIN_MS. */
const TRUSTED_MS = 24 * 3600 * 1000;
const TRUST_AGAIN_MS = 60_000;

interface Failing {
  failures: number;
  lastMs: number;
  held: number;
}

/**
 * Logs refused admin keys and delays their answers, longer with each one, per address (IPv6: per /64).
 *
 * A valid key is never delayed. But delays alone do not stop a guesser who sends many guesses at once: if every guess were
 * compared, the right one would be answered immediately. So an address with HELD_PER_ADDRESS_MAX delayed answers is refused
 * with 429 and its key is not compared; so is an address whose answer would have to be delayed while HELD_MAX answers are.
 * Two kinds of address are exempt, because anybody behind the same address could lock an operator out otherwise: local ones,
 * where a proxy may hide the client, and those that sent a valid key within the last 24 hours. Against guesses from there
 * only a strong key helps (cli/strong.ts).
 */
export class SignIns {
  readonly #clock: Clock;
  readonly #log: Pick<Logger, 'warn'>;
  /** Oldest failure first: `remember` moves an address to the end. */
  readonly #failing = new Map<string, Failing>();
  /** When an address last sent a valid key, by the monotonic clock. */
  readonly #trusted = new Map<string, number>();
  #held = 0;

  /** The log must be bounded (base/bounded-log.ts): an attacker decides how many lines there are. */
  constructor(clock: Clock, log: Pick<Logger, 'warn'>) {
    this.#clock = clock;
    this.#log = log;
  }

  /** Answers that are being delayed. */
  get held(): number {
    return this.#held;
  }

  /** False: refuse a key from this address without comparing it. */
  mayTry(address: string): boolean {
    // The usual case: no answer is being delayed.
    if (this.#held === 0) return true;
    const key = addressKey(address);
    const failing = this.#failing.get(key);
    if (failing === undefined || !this.#isFullFor(failing)) return true;
    return isLocalAddress(address) || this.#isTrusted(key);
  }

  succeeded(address: string): void {
    const nowMs = this.#clock.monotonic();
    const key = addressKey(address);
    const sinceMs = this.#trusted.get(key);
    if (sinceMs !== undefined && nowMs - sinceMs < TRUST_AGAIN_MS) return;
    remember(this.#trusted, key, nowMs);
  }

  /** Counts a wrong key, compared or not. Returns the delay of its answer; if not 0, call `released` after it. */
  failed(address: string): number {
    const key = addressKey(address);
    const nowMs = this.#clock.monotonic();
    let failing = this.#failing.get(key);
    // While answers of the address are delayed its entry must stay: `released` counts them down.
    if (failing === undefined || (failing.held === 0 && nowMs - failing.lastMs >= FORGET_MS)) {
      failing = { failures: 0, lastMs: nowMs, held: 0 };
    }
    failing.failures++;
    failing.lastMs = nowMs;
    remember(this.#failing, key, failing);
    this.#log.warn({ origin: address, failures: failing.failures }, 'an admin key was refused');
    if (failing.failures <= FREE || failing.held >= HELD_PER_ADDRESS_MAX || this.#held >= HELD_MAX) return 0;
    failing.held++;
    this.#held++;
    return Math.min(HOLD_MS * 2 ** (failing.failures - FREE - 1), HOLD_MS_MAX);
  }

  released(address: string): void {
    this.#held--;
    const failing = this.#failing.get(addressKey(address));
    if (failing !== undefined && failing.held > 0) failing.held--;
  }

  /** True if the next answer would have to be delayed and one of the two limits is reached. */
  #isFullFor({ failures, held, lastMs }: Failing): boolean {
    if (held >= HELD_PER_ADDRESS_MAX) return true;
    if (this.#held < HELD_MAX || failures < FREE) return false;
    return held > 0 || this.#clock.monotonic() - lastMs < FORGET_MS;
  }

  #isTrusted(key: string): boolean {
    const sinceMs = this.#trusted.get(key);
    return sinceMs !== undefined && this.#clock.monotonic() - sinceMs < TRUSTED_MS;
  }
}

/** Stores the entry as the newest. Drops the oldest beyond the limit: an attacker with many addresses cannot fill the memory. */
function remember<T>(map: Map<string, T>, key: string, value: T): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > ADDRESSES_MAX) map.delete(map.keys().next().value!);
}
