import type { Clock } from './clock.ts';

/**
 * Ids: 63 bits, time-ordered, one sequence per kind (the prefix of the RedisIdWorker in docs/concepts/sources.md, 003).
 *
 *     bit 63        62 … 32                          31 … 0
 *     0 (sign)      seconds since 2025-01-01 UTC     sequence of the kind, modulo 2^32
 *
 * The sequence comes in blocks from a ledger row that is committed before its first number is used, so a crash skips
 * numbers and never repeats one. Until the sequence wraps (4.29 billion ids of a kind) it alone makes ids unique, whatever
 * the clock does; after that the seconds do. Within a process seconds never go back, and ids of one second grow, except
 * for numbers that were given back. In JSON and scripts ids are strings, because a double holds only 53 bits.
 */
export const ID_EPOCH_MS = Date.UTC(2025, 0, 1);

export type IdKind =
  | 'sale'
  | 'item'
  | 'order'
  | 'attempt'
  | 'audit'
  | 'webhook'
  | 'delivery'
  | 'user'
  | 'post'
  | 'comment';

/** [from, to): numbers that belong to this caller alone, for ever. */
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

/** The form of an id: no sign, no leading zero, at most 63 bits. /openapi.json contains it. */
export const ID_PATTERN = upTo((2n ** 63n - 1n).toString());
const ID = new RegExp(ID_PATTERN);

/** A text that is not an id is answered 404, like an unknown one. */
export function isId(text: string): boolean {
  return ID.test(text);
}

/** A pattern for the whole numbers from 1 to `largest`: fewer digits, or the same number with a smaller digit at some place. */
function upTo(largest: string): string {
  const smaller = [...largest].flatMap((digit, at) => {
    const from = at === 0 ? 1 : 0;
    const left = largest.length - at - 1;
    if (Number(digit) <= from) return [];
    const less = Number(digit) - 1;
    return [`${largest.slice(0, at)}[${from}-${less}]${left === 0 ? '' : `[0-9]{${left}}`}`];
  });
  return `^([1-9][0-9]{0,${largest.length - 2}}|${smaller.join('|')}|${largest})$`;
}

/** After a failed fetch, the pause before the next: otherwise every order would query a ledger that is down. */
const ASK_AGAIN_AFTER_MS = 100;

/**
 * Hands out ids of one kind. It fetches the next block when half of the current one is used, so that a crowd does not wait
 * for it. If the block is used up before the next has arrived, `take` returns null and `refill` waits.
 *
 * An unused id can be given back. Its number is then handed out again, with the seconds of that time.
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
  /** When the last fetch failed, by the monotonic clock. */
  #failedAtMs = -Infinity;
  #seconds = 0;
  #low = -1;
  #base = 0n;
  #baseText = '';
  /** Ids that were given back; the last one is taken first. */
  readonly #back: string[] = [];

  constructor(kind: IdKind, takeBlock: TakeBlock, clock: Clock, blockSize: number) {
    this.#kind = kind;
    this.#takeBlock = takeBlock;
    this.#clock = clock;
    this.#blockSize = blockSize;
  }

  /** An id at once, or null if the block is used up: then await `refill()` and take again. */
  take(): string | null {
    const back = this.#back.pop();
    if (back !== undefined) return this.#again(back);
    if (this.#next === this.#end) {
      if (this.#following === null) return null;
      this.#next = this.#following.from;
      this.#end = this.#following.to;
      this.#following = null;
    }
    if (this.#following === null && this.#fetching === null && this.#end - this.#next <= this.#blockSize / 2) {
      // A failure here is not lost: take() will return null, and refill() will throw it to a caller.
      if (this.#clock.monotonic() - this.#failedAtMs >= ASK_AGAIN_AFTER_MS) this.refill().catch(() => {});
    }
    const low = this.#next++ % 2 ** 32;
    // Seconds never go back, and advance by one if the sequence wraps within a second.
    this.#advance(low > this.#low ? this.#seconds : this.#seconds + 1);
    this.#low = low;
    return (this.#base | BigInt(low)).toString();
  }

  /**
   * Returns an id that was certainly used nowhere; a caller that is not sure keeps it. So a crowd of refused orders does not
   * use up blocks.
   */
  giveBack(id: string): void {
    // Bounded: ids beyond one block are dropped.
    if (this.#back.length < this.#blockSize) this.#back.push(id);
  }

  /** The number of a returned id with the current seconds. Within the same second that is the same id. */
  #again(id: string): string {
    this.#advance(this.#seconds);
    const base = this.#baseText;
    if (id.length === base.length && id >= base) return id;
    return (this.#base | BigInt.asUintN(32, BigInt(id))).toString();
  }

  /** Sets the seconds to the clock's, but at least to `atLeast`. */
  #advance(atLeast: number): void {
    const seconds = Math.max(Math.floor((this.#clock.now() - ID_EPOCH_MS) / 1000), atLeast);
    if (seconds === this.#seconds) return;
    this.#seconds = seconds;
    this.#base = BigInt(seconds) << 32n;
    this.#baseText = this.#base.toString();
  }

  /** Fetches the next block at once, even right after a failure, because a caller waits for it. */
  refill(): Promise<void> {
    this.#fetching ??= this.#takeBlock(this.#kind, this.#blockSize)
      .then(
        (block) => {
          this.#following = block;
        },
        (error: unknown) => {
          this.#failedAtMs = this.#clock.monotonic();
          throw error;
        },
      )
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
