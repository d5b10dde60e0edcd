import type { Clock } from '../base/clock.ts';
import { LIMIT_DEFAULT, LIMIT_MAX } from '../contract/schemas.ts';
import type { HttpOptions } from './context.ts';
import { DayBudget } from './day-budget.ts';
import { HttpProblem } from './problem.ts';
import { RateLimit } from './rate-limit.ts';

const DETAILS = {
  orders: 'this buyer sends too many orders per second',
  writes: 'this buyer sends too many payments or cancellations per second',
  social: 'this buyer sends too many posts, comments or likes per second',
  reads: 'this buyer sends too many reads per second',
} as const;

/** Listing this many orders or posts costs about as much as reading one by its id. */
const LISTED_FOR_ONE = 10;

/** How many reads a list counts as. `limit` is the query parameter before validation. */
export function readsOfList(limit: unknown): number {
  const orders = limit === undefined ? LIMIT_DEFAULT : Number(limit);
  // An invalid limit is refused by validation, which costs next to nothing.
  return orders >= 1 && orders <= LIMIT_MAX ? Math.ceil(orders / LISTED_FOR_ONE) : 1;
}

/**
 * Rate limits per buyer in this process. Orders, payments, what people write and reads have separate limits, so that a buyer who polls
 * or likes can still pay, and one who retries a payment endlessly can still read the order. The check needs the token only and runs before
 * any query: a refused call costs a lookup in memory. Each process counts on its own: N processes allow N times as much.
 */
export class BuyerLimits {
  readonly #limits: Readonly<Record<keyof typeof DETAILS, RateLimit>>;
  /**
   * Orders that were placed. Each leaves a row for ever and, with a key, an entry in the gate for 24 hours, also when it is cancelled
   * at once and its units are free again: the limit of a sale does not bound that.
   */
  readonly #placed: DayBudget;
  /** Texts and their characters. */
  readonly #writing: DayBudget;

  constructor(clock: Clock, options: HttpOptions) {
    this.#limits = {
      orders: new RateLimit(clock, options.rateLimitBuyer),
      writes: new RateLimit(clock, options.rateLimitBuyerWrites),
      social: new RateLimit(clock, options.rateLimitBuyerWrites),
      reads: new RateLimit(clock, options.rateLimitBuyerReads),
    };
    this.#placed = new DayBudget(clock, options.ordersPerDay);
    this.#writing = new DayBudget(clock, options.postsPerDay, options.writingCharsPerDay);
  }

  /**
   * Throws 429 if the buyer is over the limit. An admin who acts for a buyer uses the buyer's limit, because the shop's
   * backend passes on what buyers send. An admin who acts for nobody (null) has no limit.
   */
  take(kind: keyof typeof DETAILS, buyer: string | null, cost = 1): void {
    if (buyer === null) return;
    const waitSeconds = this.#limits[kind].take(buyer, cost);
    if (waitSeconds === 0) return;
    throw tooMuch(DETAILS[kind], waitSeconds);
  }

  /** The refusal of another order of a buyer who has placed too many; null: one more may be placed. */
  tooManyPlaced(buyer: string): HttpProblem | null {
    const waitSeconds = this.#placed.waitSeconds(buyer, 1);
    return waitSeconds === 0
      ? null
      : tooMuch('this buyer has placed as many orders as may be in 24 hours', waitSeconds);
  }

  placed(buyer: string): void {
    this.#placed.spend(buyer, 1);
  }

  /**
   * Runs what stores a text of so many characters, and counts it unless that fails. It calls `mayBegin` before it stores anything,
   * which throws 429 if the author has written too much. A repeat of what is stored does not call it, and costs nothing.
   */
  async write<T>(author: string, chars: number, store: (mayBegin: () => void) => Promise<T>): Promise<T> {
    let isCounted = false;
    const mayBegin = (): void => {
      const waitSeconds = this.#writing.waitSeconds(author, 1, chars);
      if (waitSeconds > 0) throw tooMuch('this buyer has written as much as may be written in 24 hours', waitSeconds);
      this.#writing.spend(author, 1, chars);
      isCounted = true;
    };
    try {
      return await store(mayBegin);
    } catch (error) {
      if (isCounted) this.#writing.spend(author, -1, -chars);
      throw error;
    }
  }
}

function tooMuch(detail: string, waitSeconds: number): HttpProblem {
  return new HttpProblem('rate_limited', detail, undefined, { 'retry-after': String(waitSeconds) });
}
