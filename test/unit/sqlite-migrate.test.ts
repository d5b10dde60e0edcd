import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { TerminalError } from '../../src/base/errors.ts';
import { openLedgerFile } from '../../src/ledger/drivers/sqlite/file.ts';
import { LEDGER_FILE, lockDataFolder } from '../../src/ledger/drivers/sqlite/folder.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import { FOLDER, migrate, schemaVersion } from '../../src/ledger/drivers/sqlite/migrate.ts';
import { migrations } from '../../src/ledger/schema/migrations.ts';
import { manualRuntime, T0 } from '../contract/manual.ts';
import { expectFormerKeys, formerRows } from '../support/former-keys.ts';
import { temporary } from '../support/sqlite-ledger.ts';

let folder: string;
let file: string;

beforeEach(() => {
  folder = temporary();
  file = join(folder, LEDGER_FILE);
});

afterEach(() => rmSync(folder, { recursive: true, force: true }));

function codeOf(act: () => unknown): string {
  try {
    act();
  } catch (error) {
    expect(error).toBeInstanceOf(TerminalError);
    return (error as TerminalError).code;
  }
  return 'none';
}

describe('migrations', () => {
  const all = migrations(FOLDER).map(({ version, name }) => `${String(version).padStart(4, '0')} ${name}`);

  it('are numbered from 1 without a gap', () => {
    expect(migrations(FOLDER).map(({ version }) => version)).toEqual(migrations(FOLDER).map((_, at) => at + 1));
  });

  it('are applied once: the second run finds nothing to do', () => {
    const db = openLedgerFile(file);
    expect(schemaVersion(db)).toBe(0);
    expect(migrate(db, T0)).toEqual({ from: 0, to: all.length, applied: all });
    expect(migrate(db, T0 + 1)).toEqual({ from: all.length, to: all.length, applied: [] });
    expect(schemaVersion(db)).toBe(all.length);
    expect(db.prepare('SELECT version, name, applied_at FROM migrations').all()).toEqual(
      migrations(FOLDER).map(({ version, name }) => ({ version, name, applied_at: T0 })),
    );
    db.close();
  });

  it('P5: keys that were bound when they stood in paths stay bound, each to whose it is (0003)', async () => {
    for (const folded of [false, true]) {
      const at = temporary();
      const db = openLedgerFile(join(at, LEDGER_FILE));
      const nowMs = T0 + 1000;
      db.exec('CREATE TABLE migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)');
      for (const { version, name, sql } of migrations(FOLDER).filter(({ version }) => version < 3)) {
        db.exec(sql);
        db.prepare('INSERT INTO migrations VALUES (?, ?, ?)').run(version, name, T0);
      }
      for (const sql of formerRows('keys', nowMs, '')) db.exec(sql);
      if (folded) {
        db.exec(`UPDATE folded SET seq = 1; INSERT INTO claims (sale_id, buyer, slot, order_id) VALUES (500, 'ann', 1, 1001);
          INSERT INTO keys (caller, path, key, fingerprint, order_id, created_at)
          VALUES ('ann', 'POST /v1/sales/500/orders', 'k', 'voucher x1', 1001, ${nowMs})`);
      }
      db.close();
      const ledger = SqliteLedger.open(at, manualRuntime());
      try {
        await expectFormerKeys(ledger);
        await ledger.maintain(1000);
        await expectFormerKeys(ledger);
      } finally {
        await ledger.close();
        rmSync(at, { recursive: true, force: true });
      }
    }
  });

  it('P5: a new ledger has no keys of which nobody knows whose they are', async () => {
    const ledger = SqliteLedger.open(folder, manualRuntime());
    expect(ledger.unscopedUpTo).toBeNull();
    await ledger.close();
  });

  it('are applied once by several that race', async () => {
    openLedgerFile(file).close();
    const root = new URL('../../src/ledger/drivers/sqlite/', import.meta.url).href;
    const script = `
      const { parentPort } = require('node:worker_threads');
      (async () => {
        const { migrate } = await import('${root}migrate.ts');
        const { openLedgerFile } = await import('${root}file.ts');
        const db = openLedgerFile(${JSON.stringify(file)});
        parentPort.postMessage('ready');
        parentPort.once('message', () => {
          parentPort.postMessage(migrate(db, 1).applied);
          db.close();
          parentPort.close();
        });
      })();`;
    const workers = Array.from({ length: 3 }, () => new Worker(script, { eval: true }));
    const said = (worker: Worker) =>
      new Promise<unknown>((resolve, reject) => {
        worker.once('message', resolve);
        worker.once('error', reject);
      });
    await Promise.all(workers.map(said));
    const answers = workers.map(said);
    for (const worker of workers) worker.postMessage('go');
    const applied = (await Promise.all(answers)) as string[][];
    expect(applied.flat()).toEqual(all);
    const db = openLedgerFile(file);
    expect(schemaVersion(db)).toBe(all.length);
    db.close();
  });

  it('a newer schema is refused and left as it is', () => {
    const db = openLedgerFile(file);
    migrate(db, T0);
    db.exec(`INSERT INTO migrations (version, name, applied_at) VALUES (${all.length + 1}, 'future', 1)`);
    expect(codeOf(() => migrate(db, T0))).toBe('schema_newer');
    expect(schemaVersion(db)).toBe(all.length + 1);
    db.close();
    expect(codeOf(() => SqliteLedger.open(folder, manualRuntime()))).toBe('schema_newer');
    // The refusal has released the lock of the folder.
    lockDataFolder(folder).unlock();
  });
});

describe('the schema holds the promises below every statement', () => {
  it('P1: no row may hold more than its total', () => {
    const db = openLedgerFile(file);
    migrate(db, T0);
    db.exec(`INSERT INTO sales (id, name, opens_at, closes_at, per_buyer, per_buyer_max, pay_within, created_at, updated_at)
             VALUES (1, 's', 0, 1, 1, 1, 1, 0, 0);
             INSERT INTO items (id, sale_id, position, code, name, amount, currency, kind, total)
             VALUES (1, 1, 0, 'v', 'v', 1, 'CNY', 'counted', 5)`);
    db.exec('UPDATE items SET reserved = 3, sold = 1, blocked = 1');
    for (const change of ['reserved = 4', 'sold = 2', 'blocked = 2', 'total = 4', 'reserved = -1']) {
      expect(() => db.exec(`UPDATE items SET ${change}`), change).toThrow(/CHECK/);
    }
    db.close();
  });

  it('P2, P5: a slot has one claim, a key one binding, an id one order', () => {
    const db = openLedgerFile(file);
    migrate(db, T0);
    db.exec(`INSERT INTO claims (sale_id, buyer, slot, order_id) VALUES (1, 'alice', 1, 1), (1, 'Alice', 1, 2)`);
    expect(() => db.exec(`INSERT INTO claims (sale_id, buyer, slot, order_id) VALUES (1, 'alice', 1, 3)`)).toThrow();
    expect(() => db.exec(`INSERT INTO claims (sale_id, buyer, slot, order_id) VALUES (1, 'bob', 0, 3)`)).toThrow();
    const bind = (key: string, orderId: number) =>
      db.exec(`INSERT INTO order_keys VALUES (1, 'alice', '${key}', 'f', ${orderId}, 1)`);
    for (const key of ['k', 'K']) bind(key, 1);
    expect(() => bind('k', 2)).toThrow();
    const answer = (actingFor: string) =>
      db.exec(`INSERT INTO call_keys VALUES ('admin:a', '${actingFor}', 'order.pay', '7', 'k', 'f', '{}', 1)`);
    for (const buyer of ['', 'ann', 'eve']) answer(buyer);
    expect(() => answer('ann')).toThrow();
    db.close();
  });
});

describe('the data folder', () => {
  it('belongs to one ledger at a time, and is free again after it', async () => {
    const ledger = SqliteLedger.open(folder, manualRuntime());
    expect(codeOf(() => SqliteLedger.open(folder, manualRuntime()))).toBe('data_in_use');
    await ledger.probe();
    await ledger.close();
    await SqliteLedger.open(folder, manualRuntime()).close();
  });

  it('is made if it is not there', async () => {
    const deep = join(folder, 'a', 'b');
    await SqliteLedger.open(deep, manualRuntime()).close();
    await SqliteLedger.open(deep, manualRuntime()).close();
  });

  it('with a file that is no database: a clear word, and the file is left as it is', () => {
    writeFileSync(file, 'this is no database, '.repeat(1000));
    const before = readFileSync(file);
    expect(codeOf(() => SqliteLedger.open(folder, manualRuntime()))).toBe('ledger_damaged');
    expect(readFileSync(file).equals(before)).toBe(true);
  });

  it('with a damaged database: a clear word, and the file is left as it is', async () => {
    await SqliteLedger.open(folder, manualRuntime()).close();
    const bytes = readFileSync(file);
    bytes.fill(0xff, 4096, bytes.length);
    const damaged = join(folder, 'damaged');
    mkdirSync(damaged);
    writeFileSync(file, bytes);
    copyFileSync(file, join(damaged, LEDGER_FILE));
    expect(codeOf(() => SqliteLedger.open(damaged, manualRuntime()))).toBe('ledger_damaged');
    expect(readFileSync(join(damaged, LEDGER_FILE)).equals(bytes)).toBe(true);
  });

  it('commits are durable when they return: WAL and synchronous=FULL', () => {
    const db = openLedgerFile(file);
    expect(db.prepare('PRAGMA journal_mode').get()).toEqual({ journal_mode: 'wal' });
    expect(db.prepare('PRAGMA synchronous').get()).toEqual({ synchronous: 2 });
    db.close();
    const reader = new DatabaseSync(file, { readOnly: true });
    expect(reader.prepare('PRAGMA journal_mode').get()).toEqual({ journal_mode: 'wal' });
    reader.close();
  });
});
