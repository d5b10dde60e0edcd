import type { NewOrder, TakenUnits } from '../../rules/backstops.ts';
import type { InsertStep, LifeDialect, Result, Step } from '../../works/work.ts';
import type { Connections, LastingSession, LeftSession, Session } from './session.ts';

export type Isolation = 'read committed' | 'repeatable read';

/**
 * What differs between the databases. Everything else is written once, in SQL that both understand: `?` for values,
 * double quotes around names that one of them reserves.
 */
export interface Dialect {
  readonly connections: Connections;
  /** Opens a transaction. */
  readonly begin: string;
  /** Opens one in which each statement sees what was committed before it, whatever the isolation of the others. */
  readonly beginFresh: string;
  /** The database's clock at this instant, not that of the statement's or transaction's start: `now_ms`. */
  readonly clock: string;
  /** A batch must lock its items before it writes: what others change after its first look would fail it otherwise. */
  readonly lockFirst: boolean;
  /** After the name of a table: go by its primary key, so that rows are locked in that order and no others with them. */
  readonly byPrimaryKey: string;
  /**
   * The next orders of a sale by id, as a script whose only rows they are. It goes by the sale's own index, whatever the
   * database knows of the table: one that sorts all orders of a sale for every page would take hours for a large one.
   */
  ordersAfter(columns: string, saleId: bigint, afterId: bigint, limit: number): string;
  /**
   * Where a batch is written and committed in one trip (see `Written`), its COMMIT may be on its way before it has the rows
   * of its items. So it says beforehand which they are, in the trip before, and whoever must come after it waits for that.
   * Null: a COMMIT is sent when the rows are locked, and they say as much. Each is a statement without values.
   */
  readonly announced: {
    /** Until the end of the transaction; holds up nobody but `wait`. */
    say(itemIds: readonly string[]): string;
    /** For all that have said so. */
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
   * Ends those of these sessions that are in the middle of a transaction and wait for a client that has gone: they would
   * keep their rows locked until the server notices. One that is at work is left to finish: a COMMIT that waits for a
   * replica is not to be hurried. Saves time only: what it cannot see or end, ends by itself. Returns those to look at again:
   * they are at work, or it cannot be said yet whose they are.
   */
  endLeft(session: Session, left: readonly LeftSession[]): Promise<number[]>;
  /** Fails if the counts of rows do not mean what the writer takes them for. */
  mustCountRightly(session: Session): Promise<void>;
}

export interface BatchRows {
  readonly orders: readonly NewOrder[];
  /** Rows of other tables that go with the orders: written after these, and before the hot rows of the items. */
  readonly also: readonly InsertStep[];
  readonly taken: readonly TakenUnits[];
  readonly nowMs: number;
  /** Nobody has looked what is there: most likely nothing, and if something is, it is enough to know that. */
  readonly hopefully: boolean;
}

/** What has become of the rows of a batch. */
export type Written =
  /** Every order and claim was really inserted, and every update found its row. */
  | 'written'
  /** … and the transaction is committed. */
  | 'committed'
  /** Something stands in the way: the transaction must be taken back. */
  | 'hindered';

/** The statements of the batched writer, which are shaped for each driver. */
export interface OrderStatements {
  /**
   * Inserts orders, and the claims, keys and events of those that are reserved, and takes the units. An order that is there
   * already is never a failure, whatever else of it is there.
   */
  write(session: Session, rows: BatchRows): Promise<Written>;
}

/** The steps of work that is written once for every ledger. */
export interface StepStatements {
  /** Whether a statement that fails keeps those behind it in its round from being run, also outside a transaction. */
  readonly stopsAtFailure: boolean;
  /** Whether a round that ends with `commit` is committed with it if every count is as expected, and taken back if not. */
  readonly commits: boolean;
  /** A round, in one trip: one result for each step, in which the rows of all its statements count. */
  run(session: Session, steps: readonly Step[]): Promise<Result[]>;
}

/** A lock of the database that belongs to a connection and goes with it. */
export interface NamedLocks {
  tryTake(session: LastingSession, lock: LockName): Promise<boolean>;
  /** Who has it, as far as we may know: for messages. */
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
