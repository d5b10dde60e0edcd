/**
 * The numbers of what the processes of one shop write for each other (docs/internals/formats.md). A version reads its own
 * format and the one before; the numbers tell it when it meets anything else.
 */
export interface Format {
  /** What this version reads: both of these and whatever lies between. */
  readonly oldest: number;
  readonly newest: number;
}

/**
 * Everything in Redis and at the broker, taken together. `P:format` says which number is in force: what any process may
 * write now. A prefix without that key has format 1.
 */
export const SHARED: Format = { oldest: 1, newest: 2 };

/** The number of SHARED that gates of sales with seats need: a version before it would take their items for counted ones. */
export const SHARED_OF_SEATS = 2;

/** An entry of orders in a stream. Its number is the name of its first field; the empty name stands for 1. Orders of seats have 2. */
export const ENTRY: Format = { oldest: 1, newest: 2 };

/** An entry of likes, numbered in the same way. */
export const LIKE_ENTRY: Format = { oldest: 1, newest: 1 };

/**
 * A parcel at a broker. Its number is its first element. 1 was never released; 2 names a sale by its id, 3 names any channel.
 */
export const PARCEL: Format = { oldest: 2, newest: 3 };

/**
 * How far the schema of a shared database may be ahead of the program: each migration leaves the schema usable by the
 * version before, so that its processes can still start in the middle of an upgrade.
 */
export const SCHEMA_AHEAD = 1;

/** For messages: `1`, or `1 and 2`. */
export function readsOf({ oldest, newest }: Format): string {
  return oldest === newest ? `${newest}` : `${oldest} and ${newest}`;
}
