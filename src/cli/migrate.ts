import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { systemRuntime } from '../base/runtime.ts';
import { ledgerFolder } from '../engine/open.ts';
import { migrateSqlLedger } from '../ledger/drivers/open.ts';
import { ledgerError } from '../ledger/drivers/sqlite/errors.ts';
import { openLedgerFile } from '../ledger/drivers/sqlite/file.ts';
import { LEDGER_FILE, lockDataFolder } from '../ledger/drivers/sqlite/folder.ts';
import { migrate as migrateSchema } from '../ledger/drivers/sqlite/migrate.ts';
import { type Command, configOf, parseFlags, settingFlags, settingHelp } from './command.ts';

const SETTINGS = ['data', 'databaseUrl'] as const;

export const migrate: Command = {
  help: `Usage: doorbuster migrate [options]

Brings the schema of the ledger up to date: of the database in DATABASE_URL, or of the embedded ledger in the data folder.
It locks the data folder, so it refuses to run while a server uses it. In a database it takes a lock there: several may run
at the same time, also beside servers. It refuses a schema that is newer than this program; in a database, one that is more
than one migration ahead.

Upgrade many processes in this order: migrate (of the new version), then workers, then servers, one after the other.

${settingHelp(SETTINGS, [['--json', 'print the result as JSON']])}`,
  async run(args) {
    const flags = parseFlags(args, { ...settingFlags(SETTINGS), json: { type: 'boolean' } });
    const { data, databaseUrl } = configOf(flags);
    const done =
      databaseUrl === null || databaseUrl.startsWith('sqlite:')
        ? migrateFolder(ledgerFolder({ data, databaseUrl }))
        : { place: placeOf(databaseUrl), ...(await migrateSqlLedger(databaseUrl, systemRuntime())) };
    const { place, from, to, applied } = done;
    if (flags['json']) console.log(JSON.stringify(done));
    else if ('fresh' in done && done.fresh) console.log(`new ledger created in ${place}: schema ${to}`);
    else if (applied.length === 0) console.log(`${place}: schema ${to}, nothing to do`);
    else console.log(`${place}: schema ${from} → ${to} (${applied.join(', ')})`);
    return 0;
  },
};

function migrateFolder(data: string) {
  const { unlock } = lockDataFolder(data);
  try {
    const fresh = !existsSync(join(data, LEDGER_FILE));
    const db = openLedgerFile(join(data, LEDGER_FILE));
    try {
      return { place: data, data, fresh, ...migrateSchema(db, systemRuntime().clock.now()) };
    } catch (error) {
      throw ledgerError(error);
    } finally {
      db.close();
    }
  } finally {
    unlock();
  }
}

/** The address without the password. */
function placeOf(databaseUrl: string): string {
  const { protocol, host, pathname } = new URL(databaseUrl);
  return `${protocol}//${host}${pathname}`;
}
