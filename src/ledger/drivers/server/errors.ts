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
  /** Anything else. It never counts against a message: orders wait for an operator rather than being lost. */
  | 'unavailable';

/** The code of an error. Buyers read why the ledger is out, and an error's text may contain addresses and values. */
export function codeOf(error: unknown): string {
  const { code } = (error ?? {}) as { code?: unknown };
  return typeof code === 'string' ? code : 'unknown';
}

/** The database cannot be reached now. `place` is `host:port`. */
export function notConnected(error: unknown, place: string): RetryableError {
  // For a name with several addresses Node throws an AggregateError without a message.
  const why = messageOf(error) || codeOf(error);
  return new RetryableError('unavailable', `the database cannot be reached (${codeOf(error)})`, {
    cause: error,
    inFull: `the database at ${place} cannot be reached: ${why}`,
  });
}

/** A connection will not succeed until somebody changes something: a password, a right, a certificate, a missing database. */
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
