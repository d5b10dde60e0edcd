import type { LockClient } from './client.ts';
import type { Hold } from './hold.ts';
import type { AcquireRequest, LockKind, Mode } from './port.ts';
import type { Line } from './waiting.ts';
import { type Done, keyOf, type Terms, type Wanted } from './wanted.ts';

export const RETRY_MS_MIN = 25;
export const RETRY_MS_MAX = 500;

/**
 * One call that wants a lock, from its first command until it has the lock or has given up. It is itself the request that
 * goes to the store: one object per call instead of one per layer.
 */
export class Waiter implements AcquireRequest {
  readonly wanted: Wanted;
  readonly terms: Terms;
  readonly kind: LockKind;
  readonly name: string;
  readonly mode: Mode;
  readonly permits: number;
  readonly limit: number;
  readonly rid: string;
  readonly leaseMs: number;
  readonly handOverMs: number;
  readonly info: string;
  queue = false;
  ticket = 0;
  readonly beganMs: number;
  /** A hold that is to turn into what is wanted (upgrade, downgrade), instead of a new one. */
  readonly from: Hold | null;
  readonly resolve: (end: Hold | Done | null) => void;
  readonly reject: (error: unknown) => void;
  /** It stands in the store's queue, as far as we know. */
  queued = false;
  /** The line of this process in which it waits. */
  line: Line | null = null;
  /** A command is under way for it. */
  asking = false;
  /** To be asked once more when that is answered. */
  again = false;
  /** It was told that it has the lock and asks only to be sure. */
  called = false;
  /** Its acquire may have been carried out more than once, or without our knowledge. */
  ambiguous = false;
  /** Since when the store has not been reachable for it; 0 while it is. */
  outSinceMs = 0;
  /** What the store last failed with. */
  failure: unknown = undefined;
  retryMs = RETRY_MS_MIN;
  settled = false;
  /** The event `waiting` was sent. */
  told = false;
  stopTimer: (() => void) | null = null;
  stopSignal: (() => void) | null = null;

  constructor(
    client: LockClient,
    wanted: Wanted,
    terms: Terms,
    from: Hold | null,
    resolve: (end: Hold | Done | null) => void,
    reject: (error: unknown) => void,
  ) {
    this.wanted = wanted;
    this.terms = terms;
    this.kind = wanted.kind;
    this.name = wanted.name;
    this.mode = wanted.mode;
    this.permits = wanted.permits;
    this.limit = wanted.limit;
    this.rid = client.nextRid();
    this.leaseMs = Math.min(terms.leaseMs, terms.maxHoldMs);
    this.handOverMs = client.settings.handOverMs;
    this.info = client.infoOf(terms.label);
    this.beganMs = client.nowMs();
    this.from = from;
    this.resolve = resolve;
    this.reject = reject;
  }

  get key(): string {
    return keyOf(this.wanted);
  }

  get label(): string {
    return this.terms.label;
  }
}
