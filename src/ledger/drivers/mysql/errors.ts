import { isTlsRefusal } from '../../../base/database-url.ts';
import { type ErrorKind, sortedError } from '../server/errors.ts';

/** Numbers of the server's errors (MySQL and MariaDB agree on these). */
const CONFLICTS = new Set([
  1213, // deadlock found
  1020, // record has changed since last read (MariaDB, innodb_snapshot_isolation)
  3101, // rolled back by group replication during commit
]);

const LOCK_WAIT_TIMEOUT = 1205;

const DATA = new Set([
  1048, // NULL where none may be
  1062, // a second row under a unique key
  1064, // syntax: a value that we wrote wrongly into a statement
  1153, // a packet too large: the writer halves the batch
  1264, // a number out of range
  1265, // a value was cut
  1292, // a value that cannot be converted
  1300, // invalid UTF-8
  1366, // a value that cannot be of its column's type
  1406, // text longer than its column
  1451, // foreign keys
  1452,
  1690, // a result out of range
  3819, // CHECK (MySQL)
  4025, // CHECK (MariaDB)
]);

/** A wrong password, a missing right or database: waiting does not help. */
const REFUSED = new Set([1044, 1045, 1049, 1698]);

function kindOf(error: unknown): ErrorKind {
  const errno = errnoOf(error);
  if (errno === null) return 'unavailable';
  if (CONFLICTS.has(errno)) return 'conflict';
  if (errno === LOCK_WAIT_TIMEOUT) return 'busy';
  return DATA.has(errno) ? 'data' : 'unavailable';
}

export function errnoOf(error: unknown): number | null {
  const { errno, sqlState } = (error ?? {}) as { errno?: unknown; sqlState?: unknown };
  // The system's own errors (ECONNREFUSED) have a number, too, and no SQL state.
  return typeof errno === 'number' && sqlState !== undefined ? errno : null;
}

export function driverError(error: unknown): Error {
  // mysql2 attaches the whole statement: hundreds of kilobytes of buyers' names that would go into the log.
  if (error instanceof Error && 'sql' in error) delete error.sql;
  return sortedError(error, kindOf(error));
}

export function isRefused(error: unknown): boolean {
  return REFUSED.has(errnoOf(error) ?? 0) || isTlsRefusal(error);
}
