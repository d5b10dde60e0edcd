import type { Clock } from '../base/clock.ts';
import type { Logger } from '../base/logger.ts';
import { addressKey, isLocalAddress, networkKey } from './address.ts';
import { Failures, Lately, Trusted } from './failures.ts';
import { HttpProblem } from './problem.ts';

interface Bounds {
  /** So many in a row cost nothing. */
  readonly free: number;
  /** The pause after the last of these is one second; each further failure doubles it, up to this. */
  readonly pauseMsMax: number;
  /** After this long without a failure a key starts again from zero. */
  readonly forgetMs: number;
}

/** Of one account, from whatever addresses: at most about 2 900 guesses a day. */
const OF_NAME: Bounds = { free: 5, pauseMsMax: 30_000, forgetMs: 15 * 60_000 };
/** Of one address, for whatever accounts. Many people may share an address. */
const OF_ADDRESS: Bounds = { free: 20, pauseMsMax: 15_000, forgetMs: 5 * 60_000 };
/**
 * Of one IPv6 network, for whatever accounts: the free tries of an address times all addresses of a network would be no limit. Thousands
 * may share it, so its pauses are short.
 */
const OF_NETWORK: Bounds = { free: 100, pauseMsMax: 1000, forgetMs: 5 * 60_000 };
/** Sign-ins of one account that succeed: a right password costs a hash, too. */
const SIGNED_IN = { max: 10, withinMs: 60_000 };
/** Registrations of one address, successful or not: a refused one tells whether a name or an address is taken. */
const REGISTRATIONS: Bounds = { free: 20, pauseMsMax: 60_000, forgetMs: 3600_000 };

const NETWORK_REGISTRATIONS: Bounds = { free: 100, pauseMsMax: 5000, forgetMs: 3600_000 };

const PAUSE_MS = 1000;

/**
 * Limits on guessing passwords and on registrations, in this process. Beyond the free tries a name or an address pauses: a try during
 * the pause gets 429 with Retry-After and costs no hash, and after the pause one try at a time is judged.
 *
 * A name that does not exist is limited like one that does. Nobody can lock the owner of an account out: at the address of a sign-in
 * that succeeded in the last 24 hours the limits of the name and of the network do not apply. At any other address the owner has to wait while somebody
 * guesses, and for at most half a minute after that. Local addresses have no limit of their own and are never excepted from that of
 * the name, since one of them may be a proxy that hides its clients.
 */
export class PasswordLimits {
  readonly #log: Pick<Logger, 'warn'>;
  readonly #names: Pauses;
  readonly #addresses: Pauses;
  readonly #networks: Pauses;
  readonly #signedIn: Lately;
  readonly #registrations: Pauses;
  readonly #networkRegistrations: Pauses;
  /** Address and name of sign-ins that succeeded. */
  readonly #trusted: Trusted;

  /** The log must be bounded (base/bounded-log.ts): an attacker decides how many lines there are. */
  constructor(clock: Clock, log: Pick<Logger, 'warn'>) {
    this.#log = log;
    this.#names = new Pauses(clock, OF_NAME);
    this.#addresses = new Pauses(clock, OF_ADDRESS);
    this.#networks = new Pauses(clock, OF_NETWORK);
    this.#signedIn = new Lately(clock, SIGNED_IN.max, SIGNED_IN.withinMs);
    this.#registrations = new Pauses(clock, REGISTRATIONS);
    this.#networkRegistrations = new Pauses(clock, NETWORK_REGISTRATIONS);
    this.#trusted = new Trusted(clock);
  }

  /** Runs a sign-in that results in null if name or password is wrong. Throws 429 instead while name or address pauses. */
  async signIn<T>(address: string, name: string, judge: () => Promise<T | null>): Promise<T | null> {
    const from = addressKey(address);
    const pair = `${from} ${name}`;
    const counted: [Pauses, string][] = [[this.#names, name]];
    const isLocal = isLocalAddress(address);
    if (!isLocal) counted.push([this.#addresses, from], ...ofNetwork(this.#networks, address));
    const isTrusted = this.#trusted.has(pair);
    const bounding = counted.filter(([pauses]) => !isTrusted || pauses === this.#addresses);
    refuse(longest(bounding), 'too many wrong passwords');
    // Those that are being judged may succeed, too.
    refuse(this.#signedIn.waitMs(name, this.#names.held(name)), 'too many sign-ins of this account');
    for (const [pauses, key] of counted) pauses.begin(key);
    try {
      const result = await judge();
      if (result !== null) {
        this.#signedIn.add(name);
        // A local address may stand for everybody behind a proxy.
        if (!isLocal) this.#trusted.add(pair);
        return result;
      }
      const [failures] = counted.map(([pauses, key]) => pauses.failed(key));
      // Without the name: people type their password into the wrong field.
      this.#log.warn({ origin: address, failures }, 'a sign-in was refused');
      return null;
    } finally {
      for (const [pauses, key] of counted) pauses.end(key);
    }
  }

  /** Runs a registration, which counts unless `work` says otherwise. Throws 429 instead while the address pauses. */
  async register<T>(address: string, work: () => Promise<{ result: T; counts: boolean }>): Promise<T> {
    if (isLocalAddress(address)) return (await work()).result;
    const counted: [Pauses, string][] = [
      [this.#registrations, addressKey(address)],
      ...ofNetwork(this.#networkRegistrations, address),
    ];
    refuse(longest(counted), 'too many registrations from this address');
    for (const [pauses, key] of counted) pauses.begin(key);
    try {
      const { result, counts } = await work();
      if (counts) for (const [pauses, key] of counted) pauses.failed(key);
      return result;
    } finally {
      for (const [pauses, key] of counted) pauses.end(key);
    }
  }
}

/** Nothing for an address that is all there is of its network: of IPv4. */
function ofNetwork(pauses: Pauses, address: string): [Pauses, string][] {
  const network = networkKey(address);
  return network === addressKey(address) ? [] : [[pauses, network]];
}

function longest(counted: readonly [Pauses, string][]): number {
  return Math.max(0, ...counted.map(([pauses, key]) => pauses.waitMs(key)));
}

function refuse(waitMs: number, what: string): void {
  if (waitMs <= 0) return;
  const headers = { 'retry-after': String(Math.ceil(waitMs / 1000)) };
  throw new HttpProblem('rate_limited', `${what}; wait and try again`, undefined, headers);
}

/** Failures by key, and how long a key has to wait for its next try. */
class Pauses {
  readonly #clock: Clock;
  readonly #bounds: Bounds;
  readonly #failures: Failures;

  constructor(clock: Clock, bounds: Bounds) {
    this.#clock = clock;
    this.#bounds = bounds;
    this.#failures = new Failures(clock, bounds.forgetMs);
  }

  /** 0: it may try now. */
  waitMs(key: string): number {
    const failing = this.#failures.of(key);
    if (failing === undefined) return 0;
    const { free, pauseMsMax } = this.#bounds;
    const { failures, held, lastMs } = failing;
    const pauseMs = failures < free ? 0 : Math.min(PAUSE_MS * 2 ** (failures - free), pauseMsMax);
    const leftMs = pauseMs - (this.#clock.monotonic() - lastMs);
    if (failures >= free && leftMs > 0) return leftMs;
    // Those that are being judged may fail, too: without this, a thousand tries at once would all be free.
    return held > 0 && failures + held >= free ? PAUSE_MS : 0;
  }

  /** Tries that are being judged. */
  held(key: string): number {
    return this.#failures.of(key)?.held ?? 0;
  }

  begin(key: string): void {
    this.#failures.hold(key);
  }

  /** Returns how many there were lately. */
  failed(key: string): number {
    return this.#failures.fail(key).failures;
  }

  end(key: string): void {
    this.#failures.release(key);
  }
}
