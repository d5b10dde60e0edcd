import { expect } from 'vitest';
import { until } from './fault-wait.ts';
import type { Bank } from './life-bank.ts';
import { judgeLife, type Query } from './life-judge.ts';
import { judgeMoney, unfinished } from './life-money.ts';
import { freshDatabase, type Product, queryDatabase } from './sql-databases.ts';

const SETTLED_MS = 45_000;

/** A database of a test's own, read behind the ledger's back. */
export interface LifeTables {
  readonly url: string;
  readonly query: Query;
  /** What SQL calls a text there. */
  readonly text: 'CHAR' | 'TEXT';
  /** What is still to be done. */
  unfinished(): Promise<unknown[]>;
  settled(): Promise<void>;
  judge(): Promise<void>;
  judgeMoney(bank: Bank): Promise<void>;
}

export async function freshTables(product: Product): Promise<LifeTables> {
  const url = await freshDatabase(product);
  const text = product === 'mysql' ? 'CHAR' : 'TEXT';
  const query: Query = async (sql) => (await queryDatabase(url, sql)).map(legible);
  const left = () => unfinished(query, text);
  return {
    url,
    query,
    text,
    unfinished: left,
    settled: () =>
      until('all is settled', SETTLED_MS, async () => (await left()).length === 0).then(
        () => undefined,
        async (error) => expect(await left(), String(error)).toEqual([]),
      ),
    judge: () => judgeLife(query, { claims: true }),
    judgeMoney: (bank) => judgeMoney(query, bank, text),
  };
}

/** MariaDB's texts are bytes, compared as such. */
function legible(row: Record<string, unknown>): Record<string, unknown> {
  const cells = Object.entries(row);
  return Object.fromEntries(cells.map(([name, cell]) => [name, Buffer.isBuffer(cell) ? cell.toString() : cell]));
}
