import { accessSync, constants, existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf, RetryableError, TerminalError } from '../../../base/errors.ts';
import { makePrivate } from '../../../base/private-file.ts';
import { DatabaseSync } from './database.ts';
import { isBusy } from './errors.ts';

export const LEDGER_FILE = 'ledger.sqlite';
export const LOCK_FILE = 'lock.sqlite';

/**
 * The data folder belongs to one process. The guard is an exclusive SQLite transaction on a file of its own: a lock of
 * the operating system, which drops it on kill -9. A pid file would have to guess whether its writer still lives.
 */
export function lockDataFolder(folder: string): { unlock(): void } {
  try {
    // Readable by its owner only: it contains buyers' names.
    mkdirSync(folder, { recursive: true, mode: 0o700 });
  } catch (error) {
    throw new RetryableError('unavailable', `the data folder ${folder} cannot be made (${messageOf(error)})`, {
      cause: error,
    });
  }
  let lock: DatabaseSync | null = null;
  try {
    // SQLite opens a file without write permission read-only, where an exclusive transaction locks nothing.
    accessSync(folder, constants.W_OK);
    if (existsSync(join(folder, LOCK_FILE))) accessSync(join(folder, LOCK_FILE), constants.W_OK);
    makePrivate(join(folder, LOCK_FILE));
    lock = new DatabaseSync(join(folder, LOCK_FILE), { timeout: 0 });
    lock.exec('PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE');
  } catch (error) {
    lock?.close();
    if (isBusy(error)) {
      throw new TerminalError(
        'data_in_use',
        `the data folder ${folder} is in use: another doorbuster process has it, or an earlier createDoorbuster of this one that was not closed`,
        { cause: error },
      );
    }
    throw new RetryableError('unavailable', `the data folder ${folder} is not writable (${messageOf(error)})`, {
      cause: error,
    });
  }
  return { unlock: () => lock.close() };
}
