// The thread behind reader.ts: one read-only connection, one query at a time.
import { DatabaseSync, type SQLInputValue } from 'node:sqlite';
import { parentPort, workerData } from 'node:worker_threads';

const db = new DatabaseSync((workerData as { file: string }).file, { readOnly: true, timeout: 5000 });

parentPort!.on('message', ({ id, sql, values }: { id: number; sql: string; values: SQLInputValue[] }) => {
  try {
    // As text: cloning every object would cost both threads several times as much.
    parentPort!.postMessage({ id, rows: JSON.stringify(db.prepare(sql).all(...values)) });
  } catch (error) {
    parentPort!.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
  }
});
