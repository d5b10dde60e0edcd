import { existsSync, statSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { TerminalError } from '../../../base/errors.ts';
import { keepPrivate, makePrivate } from '../../../base/private-file.ts';
import { DatabaseSync } from './database.ts';
import { damaged, isDamaged, ledgerError } from './errors.ts';

/** A check of every page takes about a second per 300 MB: above this size it is left to `doctor`. */
const CHECKED_ON_START_BYTES_MAX = 64 * 1024 * 1024;

/**
 * Opens the ledger, or reports that it is damaged and leaves it as it is. A read-only connection checks it first: a writing
 * one would write the log into the damaged file when it closes.
 */
export function openLedgerFile(file: string): DatabaseSync {
  let db: DatabaseSync | null = null;
  try {
    const bytes = sizeOf(file);
    if (bytes === 0 && sizeOf(`${file}-wal`) > 0)
      throw new TerminalError('ledger_damaged', 'it is empty, its log is not');
    if (bytes > 0) lookAt(file, bytes <= CHECKED_ON_START_BYTES_MAX);
    makePrivate(file);
    for (const beside of ['-wal', '-shm']) keepPrivate(`${file}${beside}`);
    db = new DatabaseSync(file, { timeout: 1000 });
    db.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536');
    return db;
  } catch (error) {
    db?.close();
    const found = error instanceof TerminalError && error.code === 'ledger_damaged';
    if (found || isDamaged(error)) throw damaged(file, error);
    throw ledgerError(error);
  }
}

function sizeOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

function lookAt(file: string, wholly: boolean): void {
  // Without a log the file is complete; `immutable` keeps SQLite from creating an empty one.
  const path = pathToFileURL(file);
  if (!existsSync(`${file}-wal`)) path.search = 'immutable=1';
  const db = new DatabaseSync(path, { readOnly: true, timeout: 1000 });
  try {
    db.prepare('SELECT count(*) FROM sqlite_schema').get();
    if (wholly) quickCheck(db);
  } finally {
    db.close();
  }
}

export function quickCheck(db: DatabaseSync): void {
  const found = db.prepare('PRAGMA quick_check(1)').get() as { quick_check: string };
  if (found.quick_check !== 'ok') throw new TerminalError('ledger_damaged', found.quick_check);
}
