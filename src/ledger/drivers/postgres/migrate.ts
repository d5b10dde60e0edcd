import type { MigrationDialect } from '../server/dialect.ts';

export const migration: MigrationDialect = {
  folder: new URL('./migrations/', import.meta.url),
  transactional: true,
  createTable:
    'CREATE TABLE IF NOT EXISTS migrations (version INT NOT NULL PRIMARY KEY, name TEXT NOT NULL, applied_at BIGINT)',
  tables: 'SELECT table_name AS name FROM information_schema.tables WHERE table_schema = current_schema()',
};
