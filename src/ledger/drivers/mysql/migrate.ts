import type { MigrationDialect } from '../server/dialect.ts';

export const migration: MigrationDialect = {
  folder: new URL('./migrations/', import.meta.url),
  // DDL commits an open transaction before and after itself.
  transactional: false,
  createTable: `CREATE TABLE IF NOT EXISTS migrations (version INT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL,
    applied_at BIGINT NULL) ENGINE = InnoDB`,
  tables: 'SELECT table_name AS name FROM information_schema.tables WHERE table_schema = DATABASE()',
};
