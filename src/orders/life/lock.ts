/** Somebody else is at work on this order, and was for all of the time that we waited. */
export class OrderBusyError extends Error {}

/**
 * Runs `work` under the order's lock: taken first, released last. `fence` is its token, or null where locks are out: the
 * lock saves calls at the provider, and nothing rests on it. OrderBusyError: not within `waitMs`.
 */
export type WithOrderLock = <T>(
  orderId: string,
  waitMs: number,
  work: (fence: string | null) => Promise<T>,
) => Promise<T>;
