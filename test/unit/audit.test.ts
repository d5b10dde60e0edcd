import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { parseAst } from 'vitest/node';

/**
 * No code path changes or deletes a row of the audit. Checks every statement of the source, and every step of the works
 * that all ledgers share (src/ledger/works/step.ts), which becomes a statement.
 */
const SRC = fileURLToPath(new URL('../../src/', import.meta.url));

/** Statements that change existing rows. `audit_id` and `audit_subject` are other names. */
const CHANGES = [
  /\bUPDATE\s+(?:ONLY\s+)?["'`]?audit\b/i,
  /\bDELETE\s+(?:\w+\s+)?FROM\s+(?:ONLY\s+)?["'`]?audit\b/i,
  /\b(?:TRUNCATE|REPLACE|MERGE)\s+(?:TABLE\s+|INTO\s+)?["'`]?audit\b/i,
  /\b(?:DROP|ALTER|RENAME)\s+TABLE\s+(?:IF\s+EXISTS\s+)?["'`]?audit\b/i,
  /\bINSERT\s+OR\s+REPLACE\s+INTO\s+["'`]?audit\b/i,
  /\bINTO\s+["'`]?audit\b[^;]*\bON\s+(?:CONFLICT|DUPLICATE)\b/i,
];

interface Node {
  type: string;
  [field: string]: unknown;
}

function* walk(node: unknown): Generator<Node> {
  if (Array.isArray(node)) for (const child of node) yield* walk(child);
  if (node === null || typeof node !== 'object' || typeof (node as Node).type !== 'string') return;
  yield node as Node;
  for (const child of Object.values(node)) if (child !== null && typeof child === 'object') yield* walk(child);
}

/** Steps that change or delete rows of the audit, or of a table whose name is not a literal. */
function stepFaults(source: string): string[] {
  const faults: string[] = [];
  for (const node of walk(parseAst(source, { lang: 'ts' }))) {
    if (node.type !== 'ObjectExpression') continue;
    const values = new Map(
      (node.properties as Node[])
        .filter(({ type }) => type === 'Property')
        .map(({ key, value }) => [(key as { name?: string }).name, (value as { value?: unknown }).value]),
    );
    const [does, table] = [values.get('do'), values.get('table')];
    const reads = does === 'find';
    const overwrites = does === 'insert' && values.has('overwrite');
    const changes =
      does === 'update' || does === 'delete' || overwrites || (table === 'audit' && does !== 'insert' && !reads);
    if (changes && (typeof table !== 'string' || table === 'audit')) faults.push(`${does} ${table}`);
    if (table === 'audit' && values.has('leavePresent')) faults.push('an insert that leaves what is there');
  }
  return faults;
}

const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' }).filter((file) => /\.(ts|sql|lua)$/.test(file));

function statementFaults(source: string): string[] {
  return CHANGES.flatMap((change) => change.exec(source)?.[0] ?? []);
}

describe('rows of the audit', () => {
  it('are written in one place, and changed or deleted by no statement of the source', () => {
    const writers: string[] = [];
    for (const file of files) {
      const source = readFileSync(join(SRC, file), 'utf8');
      const steps = file.endsWith('.ts') ? stepFaults(source) : [];
      expect({ file, faults: [...statementFaults(source), ...steps] }).toEqual({ file, faults: [] });
      if (/table: 'audit'|\bINTO\s+["'`]?audit\b/i.test(source)) writers.push(file);
    }
    expect(writers).toEqual([join('ledger', 'works', 'audit.ts')]);
  });

  it.each([
    "db.exec('UPDATE audit SET actor = 1')",
    'DELETE FROM audit WHERE id < 5;',
    'delete from\n  "audit"',
    'DELETE a FROM audit a',
    'TRUNCATE TABLE audit',
    'TRUNCATE audit',
    'DROP TABLE IF EXISTS audit',
    'ALTER TABLE audit RENAME TO audit_2',
    'REPLACE INTO audit (id) VALUES (1)',
    'INSERT OR REPLACE INTO audit (id) VALUES (1)',
    'INSERT INTO audit (id) VALUES (1) ON DUPLICATE KEY UPDATE id = 2',
    'UPDATE `audit` SET x = 1',
  ])('a statement like this would be found: %s', (sql) => {
    expect(statementFaults(sql)).not.toEqual([]);
  });

  it.each([
    "const step = { do: 'delete', table: 'audit', match: ['id'], rows: [] };",
    "const step = { do: 'update', table: 'audit', match: ['id'], set: ['at'], rows: [] };",
    "const step = { do: 'delete', table, match: ['id'], rows: [] };",
    "const step = { do: 'insert', table: 'audit', columns: [], rows: [], leavePresent: true };",
    "const step = { do: 'insert', table: 'audit', columns: [], rows: [], overwrite: ['id'] };",
    "const step = { do: 'insert', table, columns: [], rows: [], overwrite: ['id'] };",
  ])('a step like this would be found: %s', (source) => {
    expect(stepFaults(source)).not.toEqual([]);
  });

  it('other tables whose names begin like it are left alone', () => {
    expect(statementFaults('DELETE FROM audit_log; UPDATE gate_tasks SET audit_id = 1')).toEqual([]);
  });
});
