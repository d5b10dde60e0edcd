import type { Clock } from './clock.ts';

/**
 * Ids: 63 bits, time-ordered, one sequence per kind (the prefix of sources/003's RedisIdWorker).
 *
 *     bit 63        62 … 32                          31 … 0
 *     0 (sign)      seconds since 2025-01-01 UTC     sequence of the kind, modulo 2^32
 *
 * The sequence comes in blocks from a ledger row that is committed before its first number is used, so a crash skips
 * numbers and never repeats one. Uniqueness rests on the sequence alone until it wraps (4.29 thousand million ids of
 * a kind), and after that on the seconds; a clock that steps back does not endanger it. Within a process ids only
 * grow: seconds never go back. In JSON and scripts ids are strings, since a double holds 53 bits.
 */
export const ID_EPOCH_MS = Date.UTC(2025, 0, 1);

export type IdKind = 'sale' | 'item' | 'order' | 'attempt' | 'audit' | 'webhook' | 'delivery';

/** [from, to): numbers that belong to the caller alone, for ever. */
export interface IdBlock {
  from: number;
  to: number;
}

export type TakeBlock = (kind: IdKind, size: number) => Promise<IdBlock>;

export function composeId(seconds: number, sequence: number): string {
  return ((BigInt(seconds) << 32n) | BigInt(sequence % 2 ** 32)).toString();
}

export function idTimeMs(id: string): number {
  return Number(BigInt(id) >> 32n) * 1000 + ID_EPOCH_MS;
}

/** Text that can be an id at all: no sign, no leading zero, 63 bits. Anything else is simply not found. */
export function isId(text: string): boolean {
  return /^[1-9]\d{0,18}$/.test(text) && BigInt(text) < 2n ** 63n;
}

/**
 * Hands out ids of one kind. The next block is fetched when half of the current one is used, so that a crowd does not
 * wait for it; if it is used up before the next has come, `take` returns null and `refill` waits.
 */
export class IdSequence {
  readonly #kind: IdKind;
  readonly #takeBlock: TakeBlock;
  readonly #clock: Clock;
  readonly #blockSize: number;
  #next = 0;
  #end = 0;
  #following: IdBlock | null = null;
  #fetching: Promise<void> | null = null;
  #seconds = 0;
  #low = -1;
  #base = 0n;

  constructor(kind: IdKind, takeBlock: TakeBlock, clock: Clock, blockSize: number) {
    this.#kind = kind;
    this.#takeBlock = takeBlock;
    this.#clock = clock;
    this.#blockSize = blockSize;
  }

  /** An id at once, or null if the block is used up: then await `refill()` and take again. */
  take(): string | null {
    if (this.#next === this.#end) {
      if (this.#following === null) return null;
      this.#next = this.#following.from;
      this.#end = this.#following.to;
      this.#following = null;
    }
    if (this.#following === null && this.#fetching === null && this.#end - this.#next <= this.#blockSize / 2) {
      // A failure here is not lost: take() will return null and refill() will show it to a caller.
      this.refill().catch(() => {});
    }
    const low = this.#next++ % 2 ** 32;
    // Never back: not with the clock, and not where the sequence wraps within a second.
    const seconds = Math.max(
      Math.floor((this.#clock.now() - ID_EPOCH_MS) / 1000),
      low > this.#low ? this.#seconds : this.#seconds + 1,
    );
    if (seconds !== this.#seconds) {
      this.#seconds = seconds;
      this.#base = BigInt(seconds) << 32n;
    }
    this.#low = low;
    return (this.#base | BigInt(low)).toString();
  }

  refill(): Promise<void> {
    this.#fetching ??= this.#takeBlock(this.#kind, this.#blockSize)
      .then((block) => {
        this.#following = block;
      })
      .finally(() => {
        this.#fetching = null;
      });
    return this.#fetching;
  }

  async next(): Promise<string> {
    for (;;) {
      const id = this.take();
      if (id !== null) return id;
      await this.refill();
    }
  }
}
