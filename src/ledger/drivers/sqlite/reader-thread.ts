// The thread behind reader.ts: one read-only connection, one query at a time.
import { DatabaseSync, type SQLInputValue } from 'node:sqlite';
import { parentPort, workerData } from 'node:worker_threads';

export interface Question {
  readonly id: number;
  readonly sql: string;
  readonly values: SQLInputValue[];
  /** Integers come back as text. */
  readonly texts?: true;
}

const db = new DatabaseSync((workerData as { file: string }).file, { readOnly: true, timeout: 5000 });

parentPort!.on('message', ({ id, sql, values, texts }: Question) => {
  try {
    const statement = db.prepare(sql);
    if (texts) statement.setReadBigInts(true);
    // As text: cloning every object would cost both threads several times as much.
    parentPort!.postMessage({ id, rows: JSON.stringify(statement.all(...values), texts && integersAsText) });
  } catch (error) {
    parentPort!.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
  }
});

function integersAsText(_: string, value: unknown): unknown {
  return typeof value === 'bigint' ? value.toString() : value;
}
