import type { NewOrder, TakenUnits } from '../../rules/backstops.ts';
import type { InsertStep, LifeDialect, Result, Step } from '../../works/work.ts';
import type { Connections, LastingSession, LeftSession, Session } from './session.ts';

export type Isolation = 'read committed' | 'repeatable read';

/**
 * What differs between the databases. Everything else is written once, in SQL that both understand: `?` for values, double
 * quotes around names that are reserved in one of them.
 */
export interface Dialect {
  readonly connections: Connections;
  /** Opens a transaction. */
  readonly begin: string;
  /** Opens one in which each statement sees what was committed before it, whatever the isolation of the others. */
  readonly beginFresh: string;
  /** The database's clock at this instant, not that of the statement's or transaction's start: `now_ms`. */
  readonly clock: string;
  /** A batch must lock its items before it reads: otherwise a change by another writer after the read fails it. */
  readonly lockFirst: boolean;
  /** Behind a table's name: use its primary key, so that rows are locked in that order and no others with them. */
  readonly byPrimaryKey: string;
  /**
   * A script whose only result rows are the next orders of a sale by id. It forces the sale's index, whatever the statistics
   * say: a plan that sorts all orders of a large sale for every page would take hours.
   */
  ordersAfter(columns: string, saleId: bigint, afterId: bigint, limit: number): string;
  /**
   * Where a batch is written and committed in one trip (see `Written`), its COMMIT is sent before its items are locked. So the
   * trip before announces the items, and whoever must come after the batch waits for the announcement. Null: a COMMIT is sent
   * only after the items are locked, and their locks are enough. Each is a statement without values.
   */
  readonly announced: {
    /** Holds until the end of the transaction, and blocks only `wait`. */
    say(itemIds: readonly string[]): string;
    /** Waits for every transaction that has announced one of these. */
    wait(itemIds: readonly string[]): string[];
  } | null;
  readonly orders: OrderStatements;
  readonly life: LifeDialect;
  readonly steps: StepStatements;
  readonly locks: NamedLocks;
  readonly migration: MigrationDialect;
  /** Settings of the server that a promise rests on: a name and a value in each row. */
  readonly settings: string;
  /**
   * Ends those of these sessions that are idle in a transaction whose client has gone: they would keep their rows locked until
   * the server notices. An active session is left to finish, since a COMMIT may be waiting for a replica. This only saves
   * time: sessions that it cannot see or end, end by themselves. Returns the sessions to look at again: they are active, or it
   * is not known yet whose they are.
   */
  endLeft(session: Session, left: readonly LeftSession[]): Promise<number[]>;
  /** Fails if the database counts rows differently from what the writer relies on. */
  mustCountRightly(session: Session): Promise<void>;
}

export interface BatchRows {
  readonly orders: readonly NewOrder[];
  /** Rows of other tables that belong to the orders: written after them, and before the hot rows of the items. */
  readonly also: readonly InsertStep[];
  readonly taken: readonly TakenUnits[];
  readonly nowMs: number;
  /** Nothing was read before: most likely no row is in the way, and if one is, it is enough to report that. */
  readonly hopefully: boolean;
}

/** What has become of the rows of a batch. */
export type Written =
  /** Every order and claim was really inserted, and every update found its row. */
  | 'written'
  /** … and the transaction is committed. */
  | 'committed'
  /** A row is in the way: the transaction must be rolled back. */
  | 'hindered';

/** The statements of the batched writer, written for each driver. */
export interface OrderStatements {
  /**
   * Inserts orders, and the claims, keys and events of those that are reserved, and takes the units. An order that is there
   * already is never a failure, whatever else of it is there.
   */
  write(session: Session, rows: BatchRows): Promise<Written>;
}

/** How a driver runs the steps of work. */
export interface StepStatements {
  /** Whether a statement that fails stops the rest of its round, also outside a transaction. */
  readonly stopsAtFailure: boolean;
  /** Whether this round, which ends with `commit`, commits in the same trip if every count is as expected, and rolls back if not. */
  commits(steps: readonly Step[]): boolean;
  /** Runs a round in one trip. Returns one result for each step; it counts the rows of all the step's statements. */
  run(session: Session, steps: readonly Step[]): Promise<Result[]>;
}

/** A lock of the database that belongs to a connection and ends with it. */
export interface NamedLocks {
  tryTake(session: LastingSession, lock: LockName): Promise<boolean>;
  /** Who holds it, as far as our rights let us see: for messages. */
  holder(session: LastingSession, lock: LockName): Promise<string | null>;
  /** Waits for it for a while. */
  take(session: LastingSession, lock: LockName, withinMs: number): Promise<boolean>;
}

export type LockName = 'exclusive' | 'migrate';

export interface MigrationDialect {
  /** Where `0001_….sql` and the following are. */
  readonly folder: URL;
  /** False where DDL commits by itself: then a file may be applied in part. */
  readonly transactional: boolean;
  readonly createTable: string;
  /** Names of the tables of this schema, `name`. */
  readonly tables: string;
}
