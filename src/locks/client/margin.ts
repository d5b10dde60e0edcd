/**
 * How much earlier than the store we consider a lease over: the store's clock may run a little faster than ours, and our
 * timer may be late by a turn of the event loop.
 */
export function marginMs(leaseMs: number): number {
  return Math.min(5, leaseMs / 10) + leaseMs * 0.01;
}
