import { RetryableError } from './errors.ts';

/** Who calls: an address, and the network that it is in. Where nothing larger is known the two are the same. */
export interface AddressInNetwork {
  readonly network: string;
  readonly address: string;
}

interface Waiting {
  readonly begin: () => void;
  readonly refuse: (error: RetryableError) => void;
}

/**
 * As `Few`, for callers that do not trust each other: networks take turns, and so do the addresses of a network. If all places are
 * taken, a newcomer gets one of whoever has most, as long as it does not have as many itself: somebody who fills the queue keeps
 * nobody else out, and may have all of it while nobody else comes.
 */
export class Fair {
  readonly #waitingMax: number;
  readonly #what: string;
  #free: number;
  #waiting = 0;
  /** By network, then by address. Whoever is first has the next turn, and goes to the end then. */
  readonly #networks = new Map<string, Map<string, Waiting[]>>();

  /** `what` completes the message of a refusal: "too many …". */
  constructor(atOnce: number, waitingMax: number, what: string) {
    this.#free = atOnce;
    this.#waitingMax = waitingMax;
    this.#what = what;
  }

  async run<T>(from: AddressInNetwork, work: () => Promise<T>): Promise<T> {
    if (this.#free > 0) this.#free--;
    else {
      if (this.#waiting >= this.#waitingMax && !this.#makeRoom(from)) throw this.#refusal();
      await this.#turn(from);
    }
    try {
      return await work();
    } finally {
      const next = this.#next();
      if (next === undefined) this.#free++;
      else next.begin();
    }
  }

  #turn({ network, address }: AddressInNetwork): Promise<void> {
    const addresses = this.#networks.get(network) ?? new Map<string, Waiting[]>();
    const waiting = addresses.get(address) ?? [];
    this.#networks.set(network, addresses.set(address, waiting));
    this.#waiting++;
    return new Promise((begin, refuse) => void waiting.push({ begin, refuse }));
  }

  #next(): Waiting | undefined {
    const first = this.#networks.entries().next().value;
    if (first === undefined) return undefined;
    const [network, addresses] = first;
    const [address, waiting] = addresses.entries().next().value!;
    const next = waiting.shift();
    this.#networks.delete(network);
    addresses.delete(address);
    if (waiting.length > 0) addresses.set(address, waiting);
    if (addresses.size > 0) this.#networks.set(network, addresses);
    this.#waiting--;
    return next;
  }

  /** Refuses the newest of whoever has most, unless that would only swap the places. */
  #makeRoom({ network, address }: AddressInNetwork): boolean {
    const own = this.#networks.get(network);
    const [largest, most] = fullest(this.#networks, countOf);
    // If no other network has more than its own, perhaps a neighbour has.
    const chosen = most > countOf(own) + 1 ? largest : network;
    const addresses = this.#networks.get(chosen);
    if (addresses === undefined) return false;
    const [fullestOne, count] = fullest(addresses, ({ length }) => length);
    if (chosen === network && count <= (own!.get(address)?.length ?? 0) + 1) return false;
    const waiting = addresses.get(fullestOne)!;
    waiting.pop()!.refuse(this.#refusal());
    this.#waiting--;
    if (waiting.length === 0) addresses.delete(fullestOne);
    if (addresses.size === 0) this.#networks.delete(chosen);
    return true;
  }

  #refusal(): RetryableError {
    return new RetryableError('overloaded', `too many ${this.#what}`);
  }
}

function countOf(addresses: ReadonlyMap<string, readonly Waiting[]> | undefined): number {
  let count = 0;
  for (const { length } of addresses?.values() ?? []) count += length;
  return count;
}

function fullest<T>(of: ReadonlyMap<string, T>, count: (entry: T) => number): [key: string, count: number] {
  let found: [string, number] = ['', 0];
  for (const [key, entry] of of) if (count(entry) > found[1]) found = [key, count(entry)];
  return found;
}
