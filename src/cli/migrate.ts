import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { systemClock } from '../base/clock.ts';
import { ledgerError } from '../ledger/sqlite/errors.ts';
import { LEDGER_FILE, lockDataFolder } from '../ledger/sqlite/folder.ts';
import { openLedgerFile } from '../ledger/sqlite/ledger.ts';
import { migrate as migrateSchema } from '../ledger/sqlite/migrate.ts';
import { type Command, configOf, parseFlags, settingFlags, settingHelp } from './command.ts';

export const migrate: Command = {
  help: `Usage: doorbuster migrate [options]

Brings the schema of the embedded ledger up to date, under the lock of the data folder: it refuses to run beside a
server. A schema newer than this program is refused.

${settingHelp(['data'])}
  --json  print the result as JSON`,
  async run(args) {
    const flags = parseFlags(args, { ...settingFlags(['data']), json: { type: 'boolean' } });
    const { data } = configOf(flags);
    const { unlock } = lockDataFolder(data);
    try {
      const fresh = !existsSync(join(data, LEDGER_FILE));
      const db = openLedgerFile(join(data, LEDGER_FILE));
      try {
        const { from, to, applied } = migrateSchema(db, systemClock.now());
        if (flags['json']) console.log(JSON.stringify({ data, fresh, from, to, applied }));
        else if (applied.length === 0) console.log(`${data}: schema ${to}, nothing to do`);
        else console.log(`${data}: schema ${from} → ${to} (${applied.join(', ')})`);
        return 0;
      } catch (error) {
        throw ledgerError(error);
      } finally {
        db.close();
      }
    } finally {
      unlock();
    }
  },
};
