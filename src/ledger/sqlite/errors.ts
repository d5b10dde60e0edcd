import { DoorbusterError, messageOf, RetryableError, TerminalError } from '../../base/errors.ts';

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
  [CANTOPEN]: 'the database file cannot be opened: is the data folder there and writable?',
};

function primaryCode(error: unknown): number | null {
  const code = (error as { errcode?: unknown } | null)?.errcode;
  return typeof code === 'number' ? code & 0xff : null;
}

/** Sorts what SQLite throws: the ledger is out for now, or the file is damaged, or it is a fault of ours. */
export function ledgerError(error: unknown): Error {
  if (error instanceof DoorbusterError) return error;
  const code = primaryCode(error);
  if (code !== null && code in OUT) return new RetryableError('unavailable', OUT[code]!, { cause: error });
  if (code === CORRUPT || code === NOTADB) {
    return new TerminalError('ledger_damaged', `the ledger file is damaged (${messageOf(error)})`, { cause: error });
  }
  return error instanceof Error ? error : new Error(String(error));
}

export function isBusy(error: unknown): boolean {
  return primaryCode(error) === BUSY;
}

export function isDamaged(error: unknown): boolean {
  const code = primaryCode(error);
  return code === CORRUPT || code === NOTADB;
}
