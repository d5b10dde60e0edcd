import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { LEDGER_FILE } from '../../src/ledger/drivers/sqlite/folder.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import { LIFE_DIALECT } from '../../src/ledger/drivers/sqlite/steps.ts';
import type { LifeUnderTest } from '../contract/ledger-life-kit.ts';
import { manualRuntime } from '../contract/manual.ts';

/** Only the content of the file is judged here, not its durability: memory saves seconds of fsync. */
const BASE = existsSync('/dev/shm') ? '/dev/shm' : tmpdir();

export interface SqliteUnderTest extends LifeUnderTest {
  ledger: SqliteLedger;
  /** Commits since the ledger was opened or its log was last emptied: disk writes on the event loop. */
  commits(): number;
  /** Reads the tables behind the ledger's back. */
  rows(sql: string): Record<string, unknown>[];
}

export function temporary(): string {
  return mkdtempSync(join(BASE, 'doorbuster-ledger-'));
}

export function sqliteUnderTest(): SqliteUnderTest {
  const runtime = manualRuntime();
  // Time stands still, but turns of the event loop come by themselves.
  runtime.timers.nextTurn = (run) => void setImmediate(run);
  let folder = temporary();
  const world: SqliteUnderTest = {
    ledger: SqliteLedger.open(folder, runtime),
    clock: runtime.clock,
    runtime,
    rows(sql) {
      const db = new DatabaseSync(join(folder, LEDGER_FILE), { readOnly: true });
      const found = db.prepare(sql).all() as Record<string, unknown>[];
      db.close();
      return found;
    },
    commits: () => commitsIn(join(folder, `${LEDGER_FILE}-wal`)),
    async change(sql) {
      const db = new DatabaseSync(join(folder, LEDGER_FILE));
      try {
        db.exec(sql);
      } finally {
        db.close();
      }
    },
    claimsAtOnce: false,
    dialect: LIFE_DIALECT,
    async explain(sql) {
      await world.change('ANALYZE');
      return JSON.stringify(world.rows(`EXPLAIN QUERY PLAN ${sql}`));
    },
    /** The files as they are at this instant, WAL included, are what kill -9 would leave. */
    async crash() {
      const image = temporary();
      for (const suffix of ['', '-wal']) {
        const file = join(folder, LEDGER_FILE + suffix);
        if (existsSync(file)) cpSync(file, join(image, LEDGER_FILE + suffix));
      }
      await world.close();
      folder = image;
      world.ledger = SqliteLedger.open(folder, runtime);
    },
    async reopen() {
      await world.ledger.close();
      world.ledger = SqliteLedger.open(folder, runtime);
    },
    async close() {
      await world.ledger.close();
      rmSync(folder, { recursive: true, force: true });
    },
  };
  return world;
}

/** A frame of the write-ahead log that ends a transaction says how many pages the database has; the others say 0. */
function commitsIn(walFile: string): number {
  const wal = readFileSync(walFile);
  const frameBytes = 24 + wal.readUInt32BE(8);
  let commits = 0;
  for (let at = 32; at + frameBytes <= wal.length; at += frameBytes) {
    const isOfThisLog = wal.compare(wal, 16, 24, at + 8, at + 16) === 0;
    if (isOfThisLog && wal.readUInt32BE(at + 4) > 0) commits++;
  }
  return commits;
}
