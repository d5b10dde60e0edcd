/** A list is the value of `IN (?)`. 64-bit ids go in as bigint and come out as text. */
export type Value = string | number | bigint | null | readonly (string | number | bigint | null)[];

/** 64-bit columns are text; NULL is null. */
export type Row = Record<string, string | number | null>;

export interface Result {
  rows: Row[];
  /** Rows that a statement really inserted, changed or deleted. */
  affected: number;
}

/**
 * The transaction collided with another one and was rolled back: nothing of it is stored, and a retry may succeed. It never
 * leaves the ledger, which retries a bounded number of times and then fails with `unavailable`.
 */
export class ConflictError extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = 'ConflictError';
  }
}

/**
 * Work on a ledger, written once for all databases: a generator that yields rounds of steps and gets their results. SQLite
 * runs a round at once, inside its transaction; a database with a server gets each round in one trip.
 */
export type Work<T> = Generator<readonly Step[], T, readonly Result[]>;

/**
 * One statement, or the same change of several rows. The driver decides how many statements it sends; the result counts all
 * rows. Columns are named, since not every database can infer the type of a value from its position.
 */
export type Step = (
  | { readonly do: 'query'; readonly sql: string; readonly values: readonly Value[] }
  /** The ledger's clock at this point of the transaction: `now_ms`. `about`: a time reckoned from a read of the last second will do. */
  | { readonly do: 'clock'; readonly about?: true }
  /**
   * The last step of the last round of a change: if the counts of the round are as expected, only the commit is left. A
   * database that can check the counts itself commits in the same trip, so that no row stays locked while the answers
   * travel; so does MySQL where no count is expected. The other drivers ignore it.
   */
  | { readonly do: 'commit' }
  /** With the commit the slots of these orders are free, also those not yet in `claims` (SQLite's tail). */
  | { readonly do: 'freed'; readonly orders: readonly { readonly orderId: string; readonly buyer: string }[] }
  /** With the commit this order has these seats, also one whose seats are not yet in `seat_claims` (SQLite's tail). */
  | { readonly do: 'reseated'; readonly orderId: string; readonly buyer: string; readonly seats: readonly number[] }
  | {
      readonly do: 'insert';
      readonly table: string;
      readonly columns: readonly string[];
      readonly rows: Cells[];
      /** A row that exists stays as it is and is not counted. Without this it fails the transaction. */
      readonly leavePresent?: true;
      /**
       * The columns of the primary key: a row that exists gets the other cells. MySQL counts such a row twice, so the step cannot
       * have an expected number.
       */
      readonly overwrite?: readonly string[];
    }
  /** Reads the rows with these primary keys, in any order: for keys of several columns, which `IN (?)` cannot express. */
  | {
      readonly do: 'find';
      readonly table: string;
      readonly columns: readonly string[];
      readonly match: readonly string[];
      readonly rows: Cells[];
    }
  /** A row is found by `match`, its id first, and gets `set`; its cells are those of both, in this order. */
  | {
      readonly do: 'update';
      readonly table: string;
      readonly match: readonly string[];
      readonly set: readonly string[];
      readonly rows: Cells[];
      /** A further condition on the row, which is called `t`. */
      readonly and?: { readonly sql: string; readonly values: readonly Value[] };
    }
  | { readonly do: 'delete'; readonly table: string; readonly match: readonly string[]; readonly rows: Cells[] }
) & {
  /** How many rows it must change: with any other number the transaction is rolled back. */
  readonly expected?: number;
};

export type InsertStep = Extract<Step, { do: 'insert' }>;
/** A step that writes rows. */
export type RowsStep = Extract<Step, { do: 'insert' | 'update' | 'delete' }>;

export type Cell = string | number | bigint | null;
export type Cells = readonly Cell[];

/** The SQL that differs between the databases. */
export interface LifeDialect {
  /** Behind a SELECT: locks its rows until the end of the transaction. */
  readonly forUpdate: string;
  /** Behind a SELECT: others may read and share its rows, but not change them until the end of the transaction. */
  readonly forShare: string;
  /** Behind a table's name: use its primary key, so that rows are locked in that order and no others with them. */
  readonly byPrimaryKey: string;
  /**
   * Attempts (`p`) that are open or pay their order, and those that do neither (`q`), newest last: each by an index in which
   * they are found by their order, however many attempts it has.
   */
  readonly live: { readonly from: string; readonly where: string };
  readonly ended: { readonly from: string; readonly where: string };
  /**
   * How a list is said so that the database goes to its place in the one index meant for it, whatever the statistics say. `points`:
   * `a = ? AND b < ?`. `rows`: `(a, b) < (?, ?)`, and ordered by both, which no other index gives. `ranges`: `a` between a value and
   * itself, since after an equality the place of `b` would be looked for from the end.
   */
  readonly walks: 'points' | 'rows' | 'ranges';
  /** Whether a change of a sale leaves a task, for a gate that outlives a process that died before telling it. */
  readonly gateTasks: boolean;
  /** Whether a read costs a round trip, so that it pays to try without it where its result is likely known. */
  readonly believes: boolean;
  /** Deletes the oldest keys of calls bound before `?`, at most `?` of them. */
  readonly pruneCallKeys: string;
  /** Forgets a chunk of the keys of orders; returns how many orders it passed. */
  pruneOrderKeys(beforeMs: number): Work<number>;
  /** After these steps no batch with orders of these items commits before this transaction ends. */
  awaitWriters(itemIds: readonly string[]): Step[];
  /** Orders (`o`) that are reserved and whose time is over at `?`: by an index that holds no others, in its order. */
  readonly due: { readonly from: string; readonly where: string; readonly order: string };
}

export function query(sql: string, ...values: Value[]): Step {
  return { do: 'query', sql, values };
}

export const CLOCK: Step = { do: 'clock' };
/** For times that are only ever compared as an age. */
export const ABOUT_NOW: Step = { do: 'clock', about: true };
export const COMMIT: Step = { do: 'commit' };

export function nowOf(result: Result | undefined): number {
  return Number(result!.rows[0]!.now_ms);
}

/** Steps with the number of rows that each must change. */
export class Writes {
  readonly #steps: Step[] = [];

  /** `expected`: how many rows; null: any number. */
  add(step: Step, expected: number | null): void {
    this.#steps.push(expected === null ? step : { ...step, expected });
  }

  /** A step without rows is left out. */
  addRows(step: RowsStep, checked = true): void {
    if (step.rows.length > 0) this.add(step, checked ? step.rows.length : null);
  }

  /** All of them in one round. If a count differs, another transaction came in between, and the work starts again. */
  *done(): Work<void> {
    if (this.#steps.length > 0) this.#verify(yield this.#steps);
  }

  /** As `done`, for the last round of the work. */
  *last(): Work<void> {
    if (this.#steps.length > 0) this.#verify(yield [...this.#steps, COMMIT]);
  }

  #verify(results: readonly Result[]): void {
    for (const [at, step] of this.#steps.entries()) {
      const { affected } = results[at]!;
      if (step.expected === undefined || affected === step.expected) continue;
      throw new ConflictError(`${nameOf(step)}: ${affected} rows instead of ${step.expected}`);
    }
  }
}

function nameOf(step: Step): string {
  if (step.do === 'query') return step.sql;
  return 'table' in step ? `${step.do} ${step.table}` : step.do;
}
