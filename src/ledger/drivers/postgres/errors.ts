import { isTlsRefusal } from '../../../base/database-url.ts';
import { type ErrorKind, sortedError } from '../server/errors.ts';

const SERIALIZATION_FAILURE = '40001';
const DEADLOCK_DETECTED = '40P01';
const SYNTAX_ERROR = '42601';
const LOCK_NOT_AVAILABLE = '55P03';
const UNIQUE_VIOLATION = '23505';
/** Division by zero: only `judgedStatement` divides, by a count that is not as expected. */
const DIVISION_BY_ZERO = '22012';

const CONFLICTS = new Set([SERIALIZATION_FAILURE, DEADLOCK_DETECTED, DIVISION_BY_ZERO]);

/** Classes of SQL states: data exceptions, violated constraints, and limits of the program (a value too long for its index). */
const DATA = /^(22|23|54)/;

/** A wrong password, a missing right or database: waiting does not help. */
const REFUSED = /^(28...|3D000|42501)$/;

function kindOf(error: unknown): ErrorKind {
  const state = stateOf(error);
  if (state === null) return 'unavailable';
  if (CONFLICTS.has(state)) return 'conflict';
  if (state === LOCK_NOT_AVAILABLE) return 'busy';
  return DATA.test(state) || state === SYNTAX_ERROR ? 'data' : 'unavailable';
}

export function stateOf(error: unknown): string | null {
  const { code, severity } = (error ?? {}) as { code?: unknown; severity?: unknown };
  // The system's own errors (ECONNREFUSED) have a code, too, and no severity.
  return typeof code === 'string' && severity !== undefined ? code : null;
}

export function driverError(error: unknown): Error {
  return sortedError(error, kindOf(error));
}

/** A second row under a unique key. */
export function isDuplicate(error: unknown): boolean {
  return stateOf(error) === UNIQUE_VIOLATION;
}

/** Not as many rows as expected: see `judgedStatement`. */
export function isMiscount(error: unknown): boolean {
  return error instanceof Error && stateOf(error.cause) === DIVISION_BY_ZERO;
}

export function isRefused(error: unknown): boolean {
  return REFUSED.test(stateOf(error) ?? '') || isTlsRefusal(error);
}
