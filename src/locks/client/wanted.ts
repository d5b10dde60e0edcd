import type { Address, Mode } from './port.ts';

/** Which lock a call wants, and as what. */
export interface Wanted extends Address {
  readonly mode: Mode;
  readonly permits: number;
  readonly limit: number;
}

/** On which terms. */
export interface Terms {
  /** Milliseconds to wait; 0 does not wait, Infinity waits for ever. */
  readonly waitMs: number;
  readonly leaseMs: number;
  readonly renews: boolean;
  readonly maxHoldMs: number;
  readonly signal: AbortSignal | undefined;
  readonly label: string;
  readonly replicas: number;
}

/** The stored result of a `once` that somebody has run already. */
export interface Done {
  readonly result: string;
}

export function describe({ kind, name }: Address): string {
  return `${kind} "${name}"`;
}

export function keyOf({ kind, name }: Address): string {
  return `${kind} ${name}`;
}

/** Without what a waiter or a hold has beside it. */
export function wantedOf({ kind, name, mode, permits, limit }: Wanted): Wanted {
  return { kind, name, mode, permits, limit };
}
