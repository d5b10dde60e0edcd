/**
 * The one table of outcomes of a request to the gate. The numbers are what a Redis script returns, the words
 * are what HTTP, the library and the docs say; both are stable. A refusal is a value, never an exception.
 */
export const OUTCOMES = {
  admitted: 0,
  /** The Idempotency-Key is bound to an order already: that order is the answer. */
  replayed: 1,
  /** The Idempotency-Key is bound to an order with another body. */
  idempotency_key_reused: 2,
  not_found: 10,
  sale_not_open: 20,
  sale_closed: 21,
  sale_paused: 22,
  limit_reached: 30,
  seat_taken: 40,
  sold_out: 41,
  not_together: 42,
  /** The gate does not hold this sale, or holds an old epoch of it. */
  stale: 50,
  /** Too many orders are on their way to the ledger. Callers get a RetryableError with this code. */
  overloaded: 51,
} as const;

export type Outcome = keyof typeof OUTCOMES;

/** Refusals that the buyer cannot change by sending the same order again. */
export type Refusal = Exclude<Outcome, 'admitted' | 'replayed' | 'stale' | 'overloaded'>;

/** Why the ledger ended an order that the gate had admitted. */
export const REJECT_REASONS = [
  'sold_out',
  'limit_reached',
  'seat_taken',
  'admission_lost',
  'gate_rebuilt',
  'undeliverable',
] as const;

export type RejectReason = (typeof REJECT_REASONS)[number];
