import type { Clock } from '../base/clock.ts';
import { LIMIT_DEFAULT, LIMIT_MAX } from '../contract/schemas.ts';
import type { HttpOptions } from './context.ts';
import { HttpProblem } from './problem.ts';
import { RateLimit } from './rate-limit.ts';

const DETAILS = {
  orders: 'this buyer sends orders too fast',
  writes: 'this buyer pays or cancels too fast',
  reads: 'this buyer reads too fast',
} as const;

/** Orders of a list that are as dear as one that is asked for by its id. */
const LISTED_FOR_ONE = 10;

/** What a list counts for, by the limit as it stands in the query: before anybody has looked at it. */
export function readsOfList(limit: unknown): number {
  const orders = limit === undefined ? LIMIT_DEFAULT : Number(limit);
  // No number, or none that there is: it is refused at once.
  return orders >= 1 && orders <= LIMIT_MAX ? Math.ceil(orders / LISTED_FOR_ONE) : 1;
}

/**
 * What one buyer may ask of this process in a second. Three allowances, so that whoever polls can still pay, and whoever
 * tries to pay without end can still see the order. Judged by the token alone, before anything is asked of the ledger: a
 * refused call costs a lookup in memory. Each process counts for itself: N of them allow N times as much.
 */
export class BuyerLimits {
  readonly #limits: Readonly<Record<keyof typeof DETAILS, RateLimit>>;

  constructor(clock: Clock, options: HttpOptions) {
    this.#limits = {
      orders: new RateLimit(clock, options.rateLimitBuyer),
      writes: new RateLimit(clock, options.rateLimitBuyerWrites),
      reads: new RateLimit(clock, options.rateLimitBuyerReads),
    };
  }

  /**
   * Throws 429. Of whoever acts for a buyer it is the buyer's allowance that is used: the shop's backend passes on what buyers
   * send. An admin who acts for nobody (null) has none: the key is the shop's own.
   */
  take(kind: keyof typeof DETAILS, buyer: string | null, cost = 1): void {
    if (buyer === null) return;
    const waitSeconds = this.#limits[kind].take(buyer, cost);
    if (waitSeconds === 0) return;
    throw new HttpProblem('rate_limited', DETAILS[kind], undefined, { 'retry-after': String(waitSeconds) });
  }
}
