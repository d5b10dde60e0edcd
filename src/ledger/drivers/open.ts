import { type DatabaseUrl, parseDatabaseUrl } from '../../base/database-url.ts';
import { messageOf, TerminalError } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { type Migrated, migrations } from '../schema/migrations.ts';
import type { Dialect } from './server/dialect.ts';
import { SqlLedger, type SqlLedgerOptions } from './server/ledger.ts';
import { migrate, schemaVersion, shopIdOf } from './server/migrate.ts';

type Product = DatabaseUrl['product'];

function addressOf(url: string): DatabaseUrl {
  try {
    return parseDatabaseUrl(url);
  } catch (error) {
    throw new TerminalError('database_url', `the address of the database ${messageOf(error)}`);
  }
}

/** The ledger behind an address, chosen by its scheme. */
export async function openSqlLedger(url: string, runtime: Runtime, options: SqlLedgerOptions): Promise<SqlLedger> {
  return SqlLedger.open(await dialectOf(url, runtime, options), runtime, options);
}

/** A database's client is large: it is loaded only where it is used. */
async function dialectOf(
  url: string,
  runtime: Runtime,
  options: Pick<SqlLedgerOptions, 'isolation' | 'poolMax'>,
): Promise<Dialect> {
  if (addressOf(url).product === 'mysql') {
    const { mysqlDialect } = await import('./mysql/ledger.ts');
    return mysqlDialect(url, runtime, options);
  }
  const { postgresDialect } = await import('./postgres/ledger.ts');
  return postgresDialect(url, runtime, options);
}

/** `doorbuster migrate`: brings the schema up to date and says what it did. */
export async function migrateSqlLedger(url: string, runtime: Runtime): Promise<Migrated> {
  const dialect = await dialectOf(url, runtime, { poolMax: 1 });
  try {
    return await migrate(dialect);
  } finally {
    await dialect.connections.end();
  }
}

export interface SqlLedgerReport {
  product: Product;
  /** What the database has, and what this program needs. */
  schema: number;
  newest: number;
  /** Null: the schema is not up to date. */
  shopId: string | null;
  /** Settings of the server that a promise rests on, by name. */
  settings: Map<string, string>;
  /** The database's clock, read at the middle of `tookMs`. */
  nowMs: number;
  tookMs: number;
}

/** For `doorbuster doctor`: inspects a database without changing anything in it. */
export async function examineSqlLedger(url: string, runtime: Runtime): Promise<SqlLedgerReport> {
  const { product } = addressOf(url);
  const dialect = await dialectOf(url, runtime, { poolMax: 1 });
  try {
    const session = await dialect.connections.take();
    try {
      const { rows } = await session.query(dialect.settings);
      const sentMs = runtime.clock.monotonic();
      const nowMs = Number((await session.query(dialect.clock)).rows[0]!.now_ms);
      const tookMs = runtime.clock.monotonic() - sentMs;
      const schema = await schemaVersion(session, dialect);
      const newest = migrations(dialect.migration.folder).at(-1)!.version;
      return {
        product,
        schema,
        newest,
        shopId: schema < newest ? null : await shopIdOf(session),
        settings: new Map(rows.map((row) => Object.values(row).map(String) as [string, string])),
        nowMs,
        tookMs,
      };
    } finally {
      session.release();
    }
  } finally {
    await dialect.connections.end();
  }
}
