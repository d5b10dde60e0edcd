import { BusyError, DoorbusterError, messageOf, unavailable } from '../../../base/errors.ts';
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
      return unavailable(`the database cannot serve (${codeOf(error)})`, error);
  }
}
