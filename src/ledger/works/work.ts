/** A list stands for `IN (?)`. 64-bit ids go in as bigint and come out as text. */
export type Value = string | number | bigint | null | readonly (string | number | bigint | null)[];

/** 64-bit columns are text, others what they are; NULL is null. */
export type Row = Record<string, string | number | null>;

export interface Result {
  rows: Row[];
  /** Rows that a statement really inserted, changed or deleted. */
  affected: number;
}

/**
 * The transaction collided with another one and was taken back: nothing of it is stored, and the same again may succeed.
 * Never leaves the ledger: it is retried with a bound, and is `unavailable` after that.
 */
export class ConflictError extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = 'ConflictError';
  }
}

/**
 * Work on a ledger, written once for all of them: a generator that yields what it wants done, in rounds, and gets the
 * results. SQLite does a round at once, inside its transaction; a database with a server gets a round in one trip.
 */
export type Work<T> = Generator<readonly Step[], T, readonly Result[]>;

/**
 * One statement, or one statement for each of some rows: how many are sent is the database's business, the result counts
 * all. Columns are named, since not every database can tell the type of a value from where it stands.
 */
export type Step = (
  | { readonly do: 'query'; readonly sql: string; readonly values: readonly Value[] }
  /** The ledger's clock at this point of the transaction: `now_ms`. `about`: as it was read up to a second ago will do. */
  | { readonly do: 'clock'; readonly about?: true }
  /**
   * Last in the last round of a change: once the counts of the round are as expected, nothing is left but to commit. A
   * database that can judge the counts by itself commits in the same trip, so that no row stays locked while the
   * answers travel; for the others it means nothing.
   */
  | { readonly do: 'commit' }
  /** With the commit the slots of these orders are free, also where they do not stand in `claims` yet (SQLite's tail). */
  | { readonly do: 'freed'; readonly orders: readonly { readonly orderId: string; readonly buyer: string }[] }
  | {
      readonly do: 'insert';
      readonly table: string;
      readonly columns: readonly string[];
      readonly rows: Cells[];
      /** A row that is there already stays as it is, and is not counted. Otherwise it fails the transaction. */
      readonly leavePresent?: true;
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
  /** How many rows it must change: with any other number the transaction is taken back. */
  readonly expected?: number;
};

export type InsertStep = Extract<Step, { do: 'insert' }>;

export type Cell = string | number | bigint | null;
export type Cells = readonly Cell[];

/** What of the SQL differs between the databases, beside how steps are run. */
export interface LifeDialect {
  /** After a SELECT: its rows are ours until the end of the transaction. */
  readonly forUpdate: string;
  /** After the name of a table: go by its primary key, so that rows are locked in that order and no others with them. */
  readonly byPrimaryKey: string;
  /**
   * Attempts (`p`) that are open or pay their order, and those that do neither (`q`), newest last: each by an index in which
   * they are found by their order, however many attempts it has.
   */
  readonly live: { readonly from: string; readonly where: string };
  readonly ended: { readonly from: string; readonly where: string };
  /** Whether seats have a table of their own (`seat_claims`); otherwise they go with the claims. */
  readonly seatsApart: boolean;
  /** Whether the gate is elsewhere: a change of a sale then leaves a task, in case that nobody lives to tell the gate. */
  readonly gateTasks: boolean;
  /** Whether a look costs a trip, so that it is worth trying without one where what it would say is known. */
  readonly believes: boolean;
  /** Deletes the oldest keys of calls bound before `?`, at most `?` of them. */
  readonly pruneCallKeys: string;
  /** A chunk of the keys of orders; returns how many orders were passed by. */
  pruneOrderKeys(beforeMs: number): Work<number>;
  /** After these no writer of orders of these items is in the middle of anything, until the end of the transaction. */
  awaitWriters(itemIds: readonly string[]): Step[];
  /** Orders (`o`) that are reserved and whose time is over at `?`: by an index that holds no others, in its order. */
  readonly due: { readonly from: string; readonly where: string; readonly order: string };
}

export function query(sql: string, ...values: Value[]): Step {
  return { do: 'query', sql, values };
}

export const CLOCK: Step = { do: 'clock' };
/** For times that only an age is ever reckoned from. */
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

  /** A step with no rows is none. */
  addRows(step: Extract<Step, { rows: Cells[] }>, checked = true): void {
    if (step.rows.length > 0) this.add(step, checked ? step.rows.length : null);
  }

  /** All of them in one round. Rows that are not as they were read: somebody came in between, and all is done again. */
  *done(): Work<void> {
    if (this.#steps.length > 0) this.#verify(yield this.#steps);
  }

  /** As `done`, where they are the last that the work does. */
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
