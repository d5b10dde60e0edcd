import { TerminalError } from '../base/errors.ts';
import type { Desk, Terms } from './desk.ts';
import type { Grant } from './grant.ts';

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

/** What each call knows. A name that is not among them is a slip of the pen, and would silently do nothing. */
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

/** Refuses options that `call` does not know, by name: a typo would otherwise lock in another way than its author meant. */
export function refuseUnknown(options: unknown, known: ReadonlySet<string>, call: string): void {
  if (typeof options !== 'object' || options === null) {
    throw new TerminalError('invalid_argument', `the options of ${call} must be an object`);
  }
  for (const name of Object.keys(options)) {
    if (known.has(name)) continue;
    throw new TerminalError(
      'invalid_argument',
      `${call} has no option "${name}"; it knows ${[...known].toSorted().join(', ')}`,
    );
  }
}

const SPAN_MS_MAX = 2 ** 31 - 1;

function span(value: unknown, what: string, least: number): number {
  const fine = typeof value === 'number' && value >= least && (value <= SPAN_MS_MAX || value === Infinity);
  if (!fine)
    throw new TerminalError('invalid_argument', `${what} must be a number of milliseconds of at least ${least}`);
  return value as number;
}

function count(value: unknown, what: string, least: number): number {
  if (!Number.isSafeInteger(value) || (value as number) < least) {
    throw new TerminalError('invalid_argument', `${what} must be a whole number of at least ${least}`);
  }
  return value as number;
}

/** A span that ends, in whole milliseconds: what Redis takes. */
function duration(value: unknown, what: string, least: number): number {
  const ms = span(value, what, least);
  if (ms === Infinity) throw new TerminalError('invalid_argument', `${what} must end`);
  return Math.ceil(ms);
}

export function checkedFlag(value: unknown, what: string): boolean {
  if (typeof value !== 'boolean') throw new TerminalError('invalid_argument', `${what} must be true or false`);
  return value;
}

export function checkedFunction(value: unknown, call: string): void {
  if (typeof value !== 'function') throw new TerminalError('invalid_argument', `${call} needs a function to run`);
}

/** By what it can do and not by its class: there may be several, of a polyfill or of another realm. */
export function checkedSignal(value: unknown): AbortSignal | undefined {
  if (value === undefined) return undefined;
  const signal = value as Partial<AbortSignal> | null;
  if (typeof signal?.aborted !== 'boolean' || typeof signal.addEventListener !== 'function') {
    throw new TerminalError('invalid_argument', 'signal must be an AbortSignal: of an AbortController, its .signal');
  }
  return signal as AbortSignal;
}

export { count as checkedCount, duration as checkedDuration, span as checkedSpan };

export function checkedLease(value: unknown, what = 'lease'): number {
  const leaseMs = span(value, what, 5);
  if (leaseMs === Infinity) throw new TerminalError('invalid_argument', 'a lease must end: use one that is renewed');
  return Math.ceil(leaseMs);
}

export function checkedName(name: unknown): string {
  if (typeof name !== 'string' || name === '' || name.length > 512 || !name.isWellFormed()) {
    throw new TerminalError('invalid_argument', 'the name of a lock must be a string of 1 to 512 characters');
  }
  return name;
}

/** What a call has that says nothing. */
export const NO_OPTIONS: AcquireOptions = Object.freeze({});

/** Checks what a caller passed, once, at the edge. */
export function termsOf(
  desk: Desk,
  options: AcquireOptions,
  waitByDefault: number,
  call = 'acquire',
  known = ACQUIRE_OPTIONS,
): Terms {
  if (options === NO_OPTIONS && waitByDefault === Infinity) return desk.plainTerms;
  refuseUnknown(options, known, call);
  if (options.renew !== undefined) checkedFlag(options.renew, 'renew');
  if (options.renew === false && options.lease === undefined) {
    throw new TerminalError('invalid_argument', 'renew: false needs a lease: without one it is always renewed');
  }
  const leaseMs = options.lease === undefined ? desk.settings.leaseMs : checkedLease(options.lease);
  const label = options.label ?? '';
  if (typeof label !== 'string' || label.length > 200) {
    throw new TerminalError('invalid_argument', 'a label must be a string of at most 200 characters');
  }
  return {
    waitMs: options.wait === undefined ? waitByDefault : span(options.wait, 'wait', 0),
    leaseMs: Math.ceil(leaseMs),
    renews: options.lease === undefined || options.renew === true,
    maxHoldMs: options.maxHold === undefined ? Infinity : Math.ceil(span(options.maxHold, 'maxHold', 5)),
    signal: checkedSignal(options.signal),
    label,
    replicas: options.replicas === undefined ? 0 : count(options.replicas, 'replicas', 0),
  };
}
