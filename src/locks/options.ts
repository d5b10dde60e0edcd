import { TerminalError } from '../base/errors.ts';
import { checkedCount, checkedFlag, checkedLease, checkedSignal, checkedSpan, refuseUnknown } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import type { Grant } from './client/grant.ts';
import type { Terms } from './client/wanted.ts';

export interface HoldOptions {
  /**
   * A fixed lease in milliseconds: the lock is over after it, whatever happens (unless extended). Without it the lease is
   * that of `createLocks`, renewed at a third for as long as the process lives and the lock is not released.
   */
  lease?: number;
  /** Renew a `lease` of one's own at a third of it. */
  renew?: boolean;
  /** Hold it at most so many milliseconds: a renewed lease is not renewed beyond, and `signal` aborts. */
  maxHold?: number;
  /** Shown by inspect() and list(), and in events. */
  label?: string;
  /** Wait until so many replicas have it (WAIT), or give it back and throw UnavailableError. Not in a cluster. */
  replicas?: number;
}

export interface AcquireOptions extends HoldOptions {
  /** How long to wait, in milliseconds. Without it, as long as it takes; 0 does not wait. */
  wait?: number;
  /** Ends the waiting (not the hold). */
  signal?: AbortSignal;
  /** Enter again under a grant of the same lock that this code holds: counted, same token. */
  within?: Grant;
}

/** The options of each call. Any other name is a typo that would silently do nothing. */
const HOLD = ['lease', 'renew', 'maxHold', 'label'];
export const CHANGE_OPTIONS: ReadonlySet<string> = new Set([...HOLD, 'wait', 'signal']);
export const ONCE_OPTIONS: ReadonlySet<string> = new Set([...CHANGE_OPTIONS, 'keep']);
export const MULTI_OPTIONS: ReadonlySet<string> = new Set([...CHANGE_OPTIONS, 'replicas']);
export const ACQUIRE_OPTIONS: ReadonlySet<string> = new Set([...MULTI_OPTIONS, 'within']);
export const PERMIT_OPTIONS: ReadonlySet<string> = new Set([...MULTI_OPTIONS, 'permits']);

/** The same for `tryAcquire`, which does not wait. */
export function withoutWait(known: ReadonlySet<string>): ReadonlySet<string> {
  return new Set([...known].filter((name) => name !== 'wait'));
}
export const TRY_OPTIONS: ReadonlySet<string> = withoutWait(ACQUIRE_OPTIONS);

/** The options of a call without any. */
export const NO_OPTIONS: AcquireOptions = Object.freeze({});

/** Checks what a caller passed, once, at the edge. */
export function termsOf(
  client: LockClient,
  options: AcquireOptions,
  waitByDefault: number,
  call = 'acquire',
  known = ACQUIRE_OPTIONS,
): Terms {
  if (options === NO_OPTIONS && waitByDefault === Infinity) return client.plainTerms;
  refuseUnknown(options, known, call);
  if (options.renew !== undefined) checkedFlag(options.renew, 'renew');
  if (options.renew === false && options.lease === undefined) {
    throw new TerminalError('invalid_argument', 'renew: false needs a lease: without one it is always renewed');
  }
  const leaseMs = options.lease === undefined ? client.settings.leaseMs : checkedLease(options.lease);
  const label = options.label ?? '';
  if (typeof label !== 'string' || label.length > 200) {
    throw new TerminalError('invalid_argument', 'a label must be a string of at most 200 characters');
  }
  return {
    waitMs: options.wait === undefined ? waitByDefault : checkedSpan(options.wait, 'wait', 0),
    leaseMs: Math.ceil(leaseMs),
    renews: options.lease === undefined || options.renew === true,
    maxHoldMs: options.maxHold === undefined ? Infinity : Math.ceil(checkedSpan(options.maxHold, 'maxHold', 5)),
    signal: checkedSignal(options.signal),
    label,
    replicas: options.replicas === undefined ? 0 : checkedCount(options.replicas, 'replicas', 0),
  };
}
