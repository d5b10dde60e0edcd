import { unavailable } from '../../../base/errors.ts';
import type { Timers } from '../../../base/timers.ts';
import type { Result, Value } from '../../works/work.ts';

/**
 * One connection to a database. What its methods throw is sorted already: a ConflictError where the database has taken
 * the transaction back, a RetryableError where it cannot serve, anything else is about the statement and its values.
 */
export interface Session {
  /** One statement; `?` stands for a value. */
  query(sql: string, values?: readonly Value[]): Promise<Result>;
  /** Statements without values, with semicolons between them, in one round trip: one result each. */
  script(sql: string): Promise<Result[]>;
}

export interface PooledSession extends Session {
  /** The server's number of it; null where something in between does not tell. */
  readonly id: number | null;
  /** Back into the pool. */
  release(): void;
  /** Ends the connection: what is open in it is taken back by the database. */
  destroy(): void;
}

/** A connection outside the pool that lives for as long as something depends on it. */
export interface LastingSession extends Session {
  /** From now on it does not keep the process alive. */
  rest(): void;
  destroy(): void;
}

/** A session whose client has gone while the server may still have had work of it, and how long ago that is. */
export interface LeftSession {
  readonly id: number;
  readonly ageMs: number;
}

export interface Connections {
  take(): Promise<PooledSession>;
  /** `lost` is called once, if the connection ends and `destroy` was not called. */
  connect(lost: () => void): Promise<LastingSession>;
  /** A connection without limits of time: a migration of a large table takes as long as it takes. */
  connectPatiently(): Promise<LastingSession>;
  end(): Promise<void>;
}

/**
 * Longer than any limit that the database itself keeps (30 s for a statement): what is over this has no database at its
 * other end that counts time.
 */
export const ANSWER_MS_MAX = 35_000;

export const CONNECT_MS_MAX = 5_000;

/** Limits that free the hot row of an item when whoever holds it has stopped. */
export const SESSION_LIMITS = {
  /** A transaction that does nothing for so long is ended by the database: its process is stopped, or gone. */
  idleTransactionMs: 10_000,
  lockWaitMs: 5_000,
  statementMs: 30_000,
} as const;

/**
 * Runs one exchange with the database; one that does not answer costs its connection, and not the process. Without timers
 * it has all the time in the world.
 */
export function exchange<T>(
  timers: Timers | null,
  giveUp: () => void,
  start: (done: (error: unknown, result?: T) => void) => void,
  sorted: (error: unknown) => Error,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const cancel = timers?.after(ANSWER_MS_MAX, () => {
      reject(unavailable(`the database has not answered for ${ANSWER_MS_MAX / 1000} s`));
      giveUp();
    });
    start((error, result) => {
      cancel?.();
      if (error) reject(sorted(error));
      else resolve(result as T);
    });
  });
}
