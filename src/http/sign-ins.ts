import type { Clock } from '../base/clock.ts';
import type { Logger } from '../base/logger.ts';
import { addressKey, isLocalAddress } from './address.ts';

/** Wrong keys of an address that are answered at once: somebody has mistyped, or a program has an old key. */
const FREE = 5;
/** The next one waits this long, and each one after it twice as long. */
const HOLD_MS = 250;
const HOLD_MS_MAX = 2000;
/** An address that sends no wrong key for so long begins anew. */
const FORGET_MS = 60_000;
/** Answers of one address that wait: with the longest wait, it can try eight keys a second. */
const HELD_PER_ADDRESS_MAX = 16;
/** Answers that wait at all. Each is a socket and a timer. */
const HELD_MAX = 512;
const ADDRESSES_MAX = 10_000;
/** How long a right key speaks for its address, and how often that is written down. */
const TRUSTED_MS = 24 * 3600 * 1000;
const TRUST_AGAIN_MS = 60_000;

interface Failing {
  failures: number;
  lastMs: number;
  held: number;
}

/**
 * Admin keys that were refused: they are logged, and answered ever more slowly, for each address (of IPv6: each /64).
 *
 * A right key is never slowed. Whether it is compared at all is another question: a guess that is always compared is answered
 * by its success, however slow the failures are. So an address with HELD_PER_ADDRESS_MAX answers waiting is refused unseen
 * (429), and so is one whose next answer had to wait while HELD_MAX do; with two exceptions, or else anybody could lock an operator out who has the same address: an address of the own
 * network, where a proxy stands that does not tell for whom it asks, and one from which a right key came in the last 24
 * hours. From these every key is compared; what guards them is a key that cannot be guessed (cli/strong.ts).
 */
export class SignIns {
  readonly #clock: Clock;
  readonly #log: Pick<Logger, 'warn'>;
  /** In the order of their last failure, as far as two maps can have it. */
  readonly #failing = new Map<string, Failing>();
  /** When a right key came from there, by the monotonic clock. */
  readonly #trusted = new Map<string, number>();
  #held = 0;

  /** The log must have a bound of its own (base/bounded-log.ts). */
  constructor(clock: Clock, log: Pick<Logger, 'warn'>) {
    this.#clock = clock;
    this.#log = log;
  }

  /** Answers that wait. */
  get held(): number {
    return this.#held;
  }

  /** False: a key from there is not even compared now. */
  mayTry(address: string): boolean {
    // Nobody waits: nearly always.
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

  /** A wrong key, compared or not: how long its answer must wait. Whoever lets it wait calls `released` then. */
  failed(address: string): number {
    const key = addressKey(address);
    const nowMs = this.#clock.monotonic();
    let failing = this.#failing.get(key);
    // One with answers that wait is kept: they are counted off later.
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

  /** Its next answer would have to wait, and there is no room for that: not for this address, or for nobody. */
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

/** At the end, and the oldest goes when there are too many: an attacker with a whole network costs no more than this. */
function remember<T>(map: Map<string, T>, key: string, value: T): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > ADDRESSES_MAX) map.delete(map.keys().next().value!);
}
