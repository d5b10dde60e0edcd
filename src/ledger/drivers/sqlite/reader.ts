import type { SQLInputValue } from 'node:sqlite';
import { Worker } from 'node:worker_threads';
import { RetryableError } from '../../../base/errors.ts';
import type { Question } from './reader-thread.ts';

/**
 * Runs reads that may be long (an operator's list over a million orders) on a thread of its own with a read-only
 * connection, so that they never stop the event loop. In WAL mode it sees every commit that came before its query.
 * Started with the first query: most embedded shops never ask one.
 */
export class Reader {
  readonly #file: string;
  #worker: Worker | null = null;
  #next = 0;
  readonly #waiting = new Map<number, { resolve: (rows: unknown[]) => void; reject: (error: Error) => void }>();

  constructor(file: string) {
    this.#file = file;
  }

  all(sql: string, values: SQLInputValue[]): Promise<unknown[]> {
    return this.#ask({ sql, values });
  }

  /** As `all`, with integers as text: ids have 63 bits. */
  texts(sql: string, values: SQLInputValue[]): Promise<unknown[]> {
    return this.#ask({ sql, values, texts: true });
  }

  #ask(question: Omit<Question, 'id'>): Promise<unknown[]> {
    this.#worker ??= this.#start();
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      // The thread keeps the process alive only while a query is under way.
      this.#worker!.ref();
      this.#worker!.postMessage({ ...question, id } satisfies Question);
    });
  }

  async close(): Promise<void> {
    await this.#worker?.terminate();
    this.#worker = null;
  }

  #start(): Worker {
    const script = import.meta.url.endsWith('.ts') ? './reader-thread.ts' : './reader-thread.js';
    const worker = new Worker(new URL(script, import.meta.url), {
      workerData: { file: this.#file },
      // Rows are garbage once they are sent: a small heap collects them before they grow to tens of megabytes.
      resourceLimits: { maxYoungGenerationSizeMb: 4 },
    });
    worker.unref();
    worker.on('message', ({ id, rows, error }: { id: number; rows?: string; error?: string }) => {
      const waiting = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (this.#waiting.size === 0) worker.unref();
      if (rows !== undefined) waiting?.resolve(JSON.parse(rows) as unknown[]);
      else waiting?.reject(new RetryableError('unavailable', `the ledger cannot be read: ${error}`));
    });
    const failed = (error: Error): void => {
      this.#worker = null;
      for (const { reject } of this.#waiting.values()) reject(error);
      this.#waiting.clear();
    };
    worker.on('error', (error) => failed(new RetryableError('unavailable', `the reader failed: ${error}`)));
    worker.on('exit', () => failed(new RetryableError('unavailable', 'the reader has ended')));
    return worker;
  }
}
