import { readdirSync, readFileSync } from 'node:fs';
import { TerminalError } from '../../base/errors.ts';

export interface Migration {
  version: number;
  name: string;
  sql: string;
}

export interface Migrated {
  from: number;
  to: number;
  applied: string[];
}

/** `0001_ledger.sql`, `0002_…`: append-only; a released file is never edited. */
export function migrations(folder: URL): Migration[] {
  return readdirSync(folder)
    .filter((file) => /^\d{4}_\w+\.sql$/.test(file))
    .sort()
    .map((file) => ({
      version: Number(file.slice(0, 4)),
      name: file.slice(5, -4),
      sql: readFileSync(new URL(file, folder), 'utf8'),
    }));
}

export function nameOf({ version, name }: Migration): string {
  return `${String(version).padStart(4, '0')} ${name}`;
}

/**
 * Refuses a schema that is newer than this program: it could not keep promises that it does not know. `ahead`: how many
 * migrations may be missing here, since each leaves the schema usable by the version before (docs/internals/formats.md).
 */
export function mustNotBeNewer(version: number, newest: number, ahead = 0): void {
  if (version <= newest + ahead) return;
  throw new TerminalError(
    'schema_newer',
    `the ledger has schema ${version}, this doorbuster knows up to ${newest}: start a newer version`,
  );
}
