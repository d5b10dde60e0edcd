import { unavailable } from '../../../base/errors.ts';
import type { Timers } from '../../../base/timers.ts';
import type { Result, Value } from '../../works/work.ts';

/**
 * One connection to a database. Its methods throw a ConflictError if the database rolled the transaction back, a
 * RetryableError if it cannot serve now, and any other error if the statement or its values are wrong.
 */
export interface Session {
  /** One statement; `?` stands for a value. */
  query(sql: string, values?: readonly Value[]): Promise<Result>;
  /** Statements without values, with semicolons between them, in one round trip: one result each. */
  script(sql: string): Promise<Result[]>;
}

export interface PooledSession extends Session {
  /** The server's id of this session; null if a proxy in between hides it. */
  readonly id: number | null;
  /** Back into the pool. */
  release(): void;
  /** Ends the connection; the database rolls back what is open in it. */
  destroy(): void;
}

/** A connection outside the pool, kept until `destroy`. */
export interface LastingSession extends Session {
  /** The connection no longer keeps the process alive. */
  rest(): void;
  destroy(): void;
}

/** A session whose client left while the server may still have been working for it, and how long ago that was. */
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
 * Longer than any limit that the database itself enforces (30 s for a statement): an exchange that takes longer has no
 * working database at its other end.
 */
export const ANSWER_MS_MAX = 35_000;

export const CONNECT_MS_MAX = 5_000;

/** Limits that free the hot row of an item when the process that locked it hangs. */
export const SESSION_LIMITS = {
  /** The database ends a transaction that is idle for so long: its process hangs or is gone. */
  idleTransactionMs: 10_000,
  lockWaitMs: 5_000,
  statementMs: 30_000,
} as const;

/**
 * Runs one exchange with the database. If it does not answer in time, the connection is given up and the call fails. Without
 * timers there is no limit.
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
