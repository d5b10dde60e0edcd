import type { Clock } from '../base/clock.ts';
import type { Logger } from '../base/logger.ts';
import { addressKey, isLocalAddress } from './address.ts';
import { type Failing, Failures, Trusted } from './failures.ts';

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
  readonly #log: Pick<Logger, 'warn'>;
  readonly #failures: Failures;
  readonly #trusted: Trusted;
  #held = 0;

  /** The log must be bounded (base/bounded-log.ts): an attacker decides how many lines there are. */
  constructor(clock: Clock, log: Pick<Logger, 'warn'>) {
    this.#log = log;
    this.#failures = new Failures(clock, FORGET_MS);
    this.#trusted = new Trusted(clock);
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
    const failing = this.#failures.of(key);
    if (failing === undefined || !this.#isFullFor(failing)) return true;
    return isLocalAddress(address) || this.#trusted.has(key);
  }

  succeeded(address: string): void {
    this.#trusted.add(addressKey(address));
  }

  /** Counts a wrong key, compared or not. Returns the delay of its answer; if not 0, call `released` after it. */
  failed(address: string): number {
    const key = addressKey(address);
    const { failures, held } = this.#failures.fail(key);
    this.#log.warn({ origin: address, failures }, 'an admin key was refused');
    if (failures <= FREE || held >= HELD_PER_ADDRESS_MAX || this.#held >= HELD_MAX) return 0;
    this.#failures.hold(key);
    this.#held++;
    return Math.min(HOLD_MS * 2 ** (failures - FREE - 1), HOLD_MS_MAX);
  }

  released(address: string): void {
    this.#held--;
    this.#failures.release(addressKey(address));
  }

  /** True if the next answer would have to be delayed and one of the two limits is reached. */
  #isFullFor({ failures, held }: Failing): boolean {
    return held >= HELD_PER_ADDRESS_MAX || (this.#held >= HELD_MAX && failures >= FREE);
  }
}
