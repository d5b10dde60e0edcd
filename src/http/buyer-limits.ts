import type { Clock } from '../base/clock.ts';
import { LIMIT_DEFAULT, LIMIT_MAX } from '../contract/schemas.ts';
import type { HttpOptions } from './context.ts';
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

  constructor(clock: Clock, options: HttpOptions) {
    this.#limits = {
      orders: new RateLimit(clock, options.rateLimitBuyer),
      writes: new RateLimit(clock, options.rateLimitBuyerWrites),
      social: new RateLimit(clock, options.rateLimitBuyerWrites),
      reads: new RateLimit(clock, options.rateLimitBuyerReads),
    };
  }

  /**
   * Throws 429 if the buyer is over the limit. An admin who acts for a buyer uses the buyer's limit, because the shop's
   * backend passes on what buyers send. An admin who acts for nobody (null) has no limit.
   */
  take(kind: keyof typeof DETAILS, buyer: string | null, cost = 1): void {
    if (buyer === null) return;
    const waitSeconds = this.#limits[kind].take(buyer, cost);
    if (waitSeconds === 0) return;
    throw new HttpProblem('rate_limited', DETAILS[kind], undefined, { 'retry-after': String(waitSeconds) });
  }
}
