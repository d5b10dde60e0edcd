import { DoorbusterError, RetryableError, TerminalError } from '../../../base/errors.ts';

/** SQLite's primary result codes (sqlite.org/rescode.html); the extended ones carry them in the low byte. */
const BUSY = 5;
const READONLY = 8;
const IOERR = 10;
const CORRUPT = 11;
const FULL = 13;
const CANTOPEN = 14;
const NOTADB = 26;

const OUT: Record<number, string> = {
  [BUSY]: 'the database is locked by another process',
  [READONLY]: 'the data folder or database is read-only',
  [IOERR]: 'the disk failed or is full (I/O error)',
  [FULL]: 'the disk is full',
  // Found while serving: orders are refused and an operator must look, as for a failing disk.
  [CORRUPT]: 'the ledger file is damaged: stop, and restore it from a backup',
  [NOTADB]: 'the ledger file is damaged: stop, and restore it from a backup',
  [CANTOPEN]: 'the database file cannot be opened: is the data folder there and writable?',
};

function primaryCode(error: unknown): number | null {
  const code = (error as { errcode?: unknown } | null)?.errcode;
  return typeof code === 'number' ? code & 0xff : null;
}

/** What SQLite throws while serving: a RetryableError if the ledger is out; anything else is a bug of ours. */
export function ledgerError(error: unknown): Error {
  if (error instanceof DoorbusterError) return error;
  const code = primaryCode(error);
  if (code !== null && code in OUT) return new RetryableError('unavailable', OUT[code]!, { cause: error });
  return error instanceof Error ? error : new Error(String(error));
}

export function isBusy(error: unknown): boolean {
  return primaryCode(error) === BUSY;
}

/** Damage found at the start ends the start. */
export function damaged(file: string, cause: unknown): TerminalError {
  return new TerminalError(
    'ledger_damaged',
    `the ledger ${file} is damaged and was left as it is: restore it from a backup, or move it away`,
    { cause },
  );
}

export function isDamaged(error: unknown): boolean {
  const code = primaryCode(error);
  return code === CORRUPT || code === NOTADB;
}
