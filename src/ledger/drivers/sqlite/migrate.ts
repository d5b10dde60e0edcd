import type { DatabaseSync } from 'node:sqlite';
import { type Migrated, migrations, mustNotBeNewer, nameOf } from '../../schema/migrations.ts';
import { inTransaction } from './transaction.ts';

export const FOLDER = new URL('./migrations/', import.meta.url);

export function schemaVersion(db: DatabaseSync): number {
  const known = db.prepare("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'migrations'").get();
  if (!known) return 0;
  const row = db.prepare('SELECT max(version) AS version FROM migrations').get() as { version: number | null };
  return row.version ?? 0;
}

/**
 * Brings the schema up to date. Each migration is one transaction that inserts its own row first: two racing migrators
 * collide there, and the second finds nothing left to do.
 */
export function migrate(db: DatabaseSync, nowMs: number): Migrated {
  const all = migrations(FOLDER);
  const newest = all.at(-1)!.version;
  inTransaction(db, () =>
    db.exec(
      'CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT',
    ),
  );
  const from = schemaVersion(db);
  mustNotBeNewer(from, newest);
  const applied: string[] = [];
  for (const migration of all) {
    inTransaction(db, () => {
      const { changes } = db
        .prepare('INSERT INTO migrations (version, name, applied_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING')
        .run(migration.version, migration.name, nowMs);
      if (changes === 0) return;
      db.exec(migration.sql);
      applied.push(nameOf(migration));
    });
  }
  return { from, to: newest, applied };
}
