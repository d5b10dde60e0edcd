import { TerminalError, unavailable } from '../../../base/errors.ts';
import { SCHEMA_AHEAD } from '../../../model/formats.ts';
import { type Migrated, type Migration, migrations, mustNotBeNewer, nameOf } from '../../schema/migrations.ts';
import type { Dialect } from './dialect.ts';
import type { LastingSession, Session } from './session.ts';

/** Another migrator may be working on a large table. A start that would wait longer than this fails and says so. */
const LOCK_WITHIN_MS = 60_000;

/** A file with this first line may be run again after it was applied in part. */
const RERUNNABLE = /^-- rerunnable\b/;

/** The newest migration that was applied whole; 0: there is no ledger yet. */
export async function schemaVersion(session: Session, dialect: Dialect): Promise<number> {
  if (!(await tablesOf(session, dialect)).has('migrations')) return 0;
  return Math.max(0, ...(await appliedOf(session)).filter(({ whole }) => whole).map(({ version }) => version));
}

/** Needs a schema that is up to date. Null: somebody has emptied the table. */
export async function shopIdOf(session: Session): Promise<string | null> {
  const { rows } = await session.query('SELECT id FROM shop WHERE one = 1');
  return (rows[0]?.id as string | undefined) ?? null;
}

/**
 * Refuses a schema that this program cannot work with. One that is a migration ahead will do where others share the database:
 * an upgrade has begun, and this process is one of those that are replaced later.
 */
export async function mustBeCurrent(session: Session, dialect: Dialect, shared: boolean): Promise<void> {
  const newest = migrations(dialect.migration.folder).at(-1)!.version;
  const version = await schemaVersion(session, dialect);
  mustNotBeNewer(version, newest, shared ? SCHEMA_AHEAD : 0);
  if (version < newest) {
    const found = version === 0 ? 'no ledger yet' : `a ledger with schema ${version}`;
    throw new TerminalError(
      'schema_old',
      `the database has ${found}, this doorbuster needs schema ${newest}: run \`doorbuster migrate\` of this version, then start workers, then servers`,
    );
  }
}

/**
 * Brings the schema up to date, under a lock of the database: of two racing migrators the second waits and then finds
 * nothing left to do.
 *
 * Where the database supports it, a file and its row are one transaction. MySQL commits with every CREATE and ALTER: there the row is
 * inserted first, without a time, and gets its time at the end. A row without a time is a file that was applied in part: it is run
 * again if its first line allows that, and otherwise left to the operator.
 */
export async function migrate(dialect: Dialect): Promise<Migrated> {
  const all = migrations(dialect.migration.folder);
  const newest = all.at(-1)!.version;
  const session = await dialect.connections.connectPatiently();
  try {
    if (!(await dialect.locks.take(session, 'migrate', LOCK_WITHIN_MS))) {
      throw unavailable(`another migration of this database has been running for ${LOCK_WITHIN_MS / 1000} s`);
    }
    await mustBeOurs(session, dialect);
    await session.query(dialect.migration.createTable);
    const from = await schemaVersion(session, dialect);
    mustNotBeNewer(from, newest, SCHEMA_AHEAD);
    if (from > newest) return { from, to: from, applied: [] };
    const begun = new Map((await appliedOf(session)).map(({ version, whole }) => [version, whole]));
    const applied: string[] = [];
    for (const migration of all) {
      if (begun.get(migration.version)) continue;
      await apply(session, dialect, migration, begun.has(migration.version));
      applied.push(nameOf(migration));
    }
    return { from, to: newest, applied };
  } finally {
    // Ending the connection releases the lock.
    session.destroy();
  }
}

async function apply(session: LastingSession, dialect: Dialect, migration: Migration, inPart: boolean): Promise<void> {
  const { version, name, sql } = migration;
  if (inPart && !RERUNNABLE.test(sql)) {
    throw new TerminalError(
      'schema_half_applied',
      `migration ${nameOf(migration)} was begun and not finished: look how far it got, complete it by hand, and set its applied_at in the table migrations`,
    );
  }
  const nowMs = Number((await session.query(dialect.clock)).rows[0]!.now_ms);
  if (dialect.migration.transactional) await session.query(dialect.begin);
  if (!inPart) {
    await session.query('INSERT INTO migrations (version, name, applied_at) VALUES (?, ?, NULL)', [version, name]);
  }
  await session.script(sql);
  await session.query('UPDATE migrations SET applied_at = ? WHERE version = ?', [nowMs, version]);
  if (dialect.migration.transactional) await session.query('COMMIT');
}

async function tablesOf(session: Session, dialect: Dialect): Promise<Set<string>> {
  const { rows } = await session.query(dialect.migration.tables);
  return new Set(rows.map((row) => row.name as string));
}

async function appliedOf(session: Session): Promise<{ version: number; whole: boolean }[]> {
  const { rows } = await session.query('SELECT version, applied_at FROM migrations ORDER BY version');
  return rows.map((row) => ({ version: Number(row.version), whole: row.applied_at !== null }));
}

const TABLES = [
  'sales',
  'items',
  'orders',
  'payments',
  'refunds',
  'declines',
  'claims',
  'seat_claims',
  'seat_maps',
  'seat_moves',
  'item_texts',
  'pruned',
  'answers',
  'call_keys',
  'unscoped_keys',
  'release_outbox',
  'order_events',
  'sandbox_intents',
  'sandbox_refunds',
  'webhook_endpoints',
  'webhook_deliveries',
  'gate_tasks',
  'id_blocks',
  'audit',
  'probe',
  'shop',
  'users',
  'posts',
  'post_likes',
  'comments',
  'comment_likes',
  'like_shards',
];

/** Tables with our names and no record of our migrations belong to another application. */
async function mustBeOurs(session: Session, dialect: Dialect): Promise<void> {
  const tables = await tablesOf(session, dialect);
  if (tables.has('migrations')) {
    await appliedOf(session).catch((error: unknown) => {
      throw new TerminalError(
        'schema_foreign',
        'the database has a table `migrations` that is not ours: give doorbuster a database of its own',
        {
          cause: error,
        },
      );
    });
    return;
  }
  const theirs = TABLES.filter((table) => tables.has(table));
  if (theirs.length > 0) {
    throw new TerminalError(
      'schema_foreign',
      `the database has tables of somebody else (${theirs.join(', ')}): give doorbuster a database of its own`,
    );
  }
}
