import { readdirSync, readFileSync } from 'node:fs';
import type { DatabaseSync } from 'node:sqlite';
import { TerminalError } from '../../../base/errors.ts';
import { inTransaction } from './transaction.ts';

const FOLDER = new URL('./migrations/', import.meta.url);

export interface Migration {
  version: number;
  name: string;
  sql: string;
}

/** `0001_ledger.sql`, `0002_…`: append-only; a released file is never edited. */
export function migrations(): Migration[] {
  return readdirSync(FOLDER)
    .filter((file) => /^\d{4}_\w+\.sql$/.test(file))
    .sort()
    .map((file) => ({
      version: Number(file.slice(0, 4)),
      name: file.slice(5, -4),
      sql: readFileSync(new URL(file, FOLDER), 'utf8'),
    }));
}

export function schemaVersion(db: DatabaseSync): number {
  const known = db.prepare("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'migrations'").get();
  if (!known) return 0;
  const row = db.prepare('SELECT max(version) AS version FROM migrations').get() as { version: number | null };
  return row.version ?? 0;
}

/**
 * Brings the schema up to date. Each migration is one transaction that inserts its own row first: two racing migrators
 * collide there, and the second finds nothing left to do. A schema newer than this program is refused: an older
 * program could not keep promises it does not know.
 */
export function migrate(db: DatabaseSync, nowMs: number): { from: number; to: number; applied: string[] } {
  const all = migrations();
  const newest = all.at(-1)!.version;
  inTransaction(db, () =>
    db.exec(
      'CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT',
    ),
  );
  const from = schemaVersion(db);
  if (from > newest) {
    throw new TerminalError(
      'schema_newer',
      `the ledger has schema ${from}, this doorbuster knows up to ${newest}: start a newer version`,
    );
  }
  const applied: string[] = [];
  for (const migration of all) {
    inTransaction(db, () => {
      const { changes } = db
        .prepare('INSERT INTO migrations (version, name, applied_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING')
        .run(migration.version, migration.name, nowMs);
      if (changes === 0) return;
      db.exec(migration.sql);
      applied.push(`${String(migration.version).padStart(4, '0')} ${migration.name}`);
    });
  }
  return { from, to: newest, applied };
}
