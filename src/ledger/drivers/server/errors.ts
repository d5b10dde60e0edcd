import { isTlsRefusal } from '../../../base/database-url.ts';
import { BusyError, DoorbusterError, messageOf, RetryableError, TerminalError } from '../../../base/errors.ts';
import { ConflictError } from '../../works/work.ts';

/** What an error of a database is about. */
export type ErrorKind =
  /** Two transactions in each other's way. */
  | 'conflict'
  /** Somebody has held a row for too long. */
  | 'busy'
  /** This statement with these values: it would fail again. */
  | 'data'
  /** Anything else. It never counts against a message: better to wait for somebody who looks than to lose orders. */
  | 'unavailable';

/** The short name of an error. Its text may hold addresses and values, and what is out is told to buyers. */
export function codeOf(error: unknown): string {
  const { code } = (error ?? {}) as { code?: unknown };
  return typeof code === 'string' ? code : 'unknown';
}

/** There is no connection now. `place` is `host:port`. */
export function notConnected(error: unknown, place: string): RetryableError {
  // A name with several addresses gives an error without words of its own.
  const why = messageOf(error) || codeOf(error);
  return new RetryableError('unavailable', `the database cannot be reached (${codeOf(error)})`, {
    cause: error,
    inFull: `the database at ${place} cannot be reached: ${why}`,
  });
}

/** There is none for good: a password, a right, a certificate, or a database that is not there. */
export function refused(error: unknown, place: string): TerminalError {
  const words = isTlsRefusal(error)
    ? `TLS with the database at ${place} fails: ${messageOf(error)} (sslmode of DATABASE_URL)`
    : `the database at ${place} refuses us: ${messageOf(error)}`;
  return new TerminalError('database_refused', words, { cause: error });
}

export function sortedError(error: unknown, kind: ErrorKind): Error {
  if (error instanceof DoorbusterError || error instanceof TypeError || error instanceof RangeError) return error;
  switch (kind) {
    case 'conflict':
      return new ConflictError(messageOf(error), { cause: error });
    case 'busy':
      return new BusyError(`the database cannot serve (${codeOf(error)})`, error);
    case 'data':
      return error instanceof Error ? error : new Error(messageOf(error));
    case 'unavailable':
      return new RetryableError('unavailable', `the database cannot serve (${codeOf(error)})`, {
        cause: error,
        inFull: `the database cannot serve: ${messageOf(error) || codeOf(error)}`,
      });
  }
}
