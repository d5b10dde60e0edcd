/**
 * How much earlier than the store we take a lease for over: its clock may run a little faster than ours, and the timer
 * that says so may be late by a turn.
 */
export function marginMs(leaseMs: number): number {
  return Math.min(5, leaseMs / 10) + leaseMs * 0.01;
}
