import { TerminalError } from '../../../base/errors.ts';
import type { Runtime } from '../../../base/runtime.ts';
import { StoredLedger } from '../../ledger.ts';
import { Database } from './database.ts';
import type { Dialect, Isolation } from './dialect.ts';
import { Exclusive, type ExclusiveState } from './exclusive.ts';
import { migrate, mustBeCurrent, shopIdOf } from './migrate.ts';
import { ServerStore } from './store.ts';

export interface SqlLedgerOptions {
  /** Brings the schema up to date; false: an old one is refused (`schema_old`). */
  migrate: boolean;
  /** Keeps the database to this process: for a gate in its memory. */
  exclusive: boolean;
  /** The lock of `exclusive` was lost, taken again, or is another's now. */
  onExclusive?: (state: ExclusiveState) => void;
  isolation?: Isolation;
  /** Connections at most. */
  poolMax?: number;
  /** The ledger's clock; the database's own if left out. */
  now?: () => number;
}

export const POOL_MAX_DEFAULT = 10;

/** The ledger on a database with a server. */
export class SqlLedger extends StoredLedger<ServerStore> {
  static async open(dialect: Dialect, runtime: Runtime, options: SqlLedgerOptions): Promise<SqlLedger> {
    const database = new Database(dialect, runtime, options.now ?? null);
    let exclusive: Exclusive | null = null;
    try {
      if (options.exclusive) exclusive = await Exclusive.take(dialect, runtime, options.onExclusive ?? (() => {}));
      if (options.migrate) await migrate(dialect);
      const { shopId, unscopedUpTo } = await database.read(async (session) => {
        await mustBeCurrent(session, dialect, !options.exclusive);
        await dialect.mustCountRightly(session);
        const [unscoped] = (await session.query('SELECT up_to FROM unscoped_keys')).rows;
        return {
          shopId: await shopIdOf(session),
          unscopedUpTo: (unscoped?.up_to as string | undefined) ?? null,
        };
      });
      if (shopId === null) throw new TerminalError('ledger_damaged', 'the table shop of the ledger is empty');
      return new SqlLedger(new ServerStore(database, exclusive, { shopId, unscopedUpTo }));
    } catch (error) {
      exclusive?.release();
      await database.end().catch(() => {});
      throw error;
    }
  }

  /** Whether the database is still ours alone; null where it is shared on purpose. */
  get exclusive(): ExclusiveState | null {
    return this.store.exclusive;
  }
}
