import { join } from 'node:path';
import type { Runtime } from '../../../base/runtime.ts';
import { StoredLedger } from '../../ledger.ts';
import type { DatabaseSync } from './database.ts';
import { damaged, isDamaged, ledgerError } from './errors.ts';
import { openLedgerFile } from './file.ts';
import { LEDGER_FILE, lockDataFolder } from './folder.ts';
import { migrate } from './migrate.ts';
import { SqliteStore } from './store.ts';

/** The ledger in a file that belongs to this process. */
export class SqliteLedger extends StoredLedger<SqliteStore> {
  /** Takes the folder for this process, opens the ledger in it and brings its schema up to date. */
  static open(folder: string, runtime: Runtime): SqliteLedger {
    const { unlock } = lockDataFolder(folder);
    const file = join(folder, LEDGER_FILE);
    let db: DatabaseSync | null = null;
    try {
      db = openLedgerFile(file);
      migrate(db, runtime.clock.now());
      return new SqliteLedger(new SqliteStore(db, file, runtime, unlock));
    } catch (error) {
      if (db?.isOpen) db.close();
      unlock();
      throw isDamaged(error) ? damaged(file, error) : ledgerError(error);
    }
  }

  /** Milliseconds that the ledger has held the event loop since it was opened. */
  get blockedMs(): number {
    return this.store.blockedMs;
  }
}
