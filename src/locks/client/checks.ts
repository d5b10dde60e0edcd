import { TerminalError } from '../../base/errors.ts';

const SPAN_MS_MAX = 2 ** 31 - 1;

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

export function checkedSpan(value: unknown, what: string, least: number): number {
  const fine = typeof value === 'number' && value >= least && (value <= SPAN_MS_MAX || value === Infinity);
  if (!fine)
    throw new TerminalError('invalid_argument', `${what} must be a number of milliseconds of at least ${least}`);
  return value as number;
}

export function checkedCount(value: unknown, what: string, least: number): number {
  if (!Number.isSafeInteger(value) || (value as number) < least) {
    throw new TerminalError('invalid_argument', `${what} must be a whole number of at least ${least}`);
  }
  return value as number;
}

/** A span that ends, in whole milliseconds: what Redis takes. */
export function checkedDuration(value: unknown, what: string, least: number): number {
  const ms = checkedSpan(value, what, least);
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

export function checkedLease(value: unknown, what = 'lease'): number {
  const leaseMs = checkedSpan(value, what, 5);
  if (leaseMs === Infinity) throw new TerminalError('invalid_argument', 'a lease must end: use one that is renewed');
  return Math.ceil(leaseMs);
}

export function checkedName(name: unknown): string {
  if (typeof name !== 'string' || name === '' || name.length > 512 || !name.isWellFormed()) {
    throw new TerminalError('invalid_argument', 'the name of a lock must be a string of 1 to 512 characters');
  }
  return name;
}
