import { invariant, unavailable } from '../../../base/errors.ts';
import { Grouped } from '../../../base/grouped.ts';
import type { Runtime } from '../../../base/runtime.ts';
import type { Store, Together } from '../../store.ts';
import type { Result, Row, Step, Work } from '../../works/work.ts';
import type { DatabaseSync } from './database.ts';
import { ledgerError } from './errors.ts';
import { Orders } from './orders.ts';
import { Reader } from './reader.ts';
import { LIFE_DIALECT, Steps, statementOf } from './steps.ts';
import { Tail } from './tail.ts';
import { rollBack } from './transaction.ts';

/**
 * SQLite: WAL, synchronous=FULL, so that a commit has reached the disk when it returns. It runs on the event loop: a group
 * commit of a hundred orders takes less than handing them to a thread and back (measured), and `blockedMs` says how long
 * it has held the loop, so that overload protection does not count it. A transaction is over in the turn that began it.
 */
export class SqliteStore implements Store {
  readonly atOnce = 1;
  readonly dialect = LIFE_DIALECT;
  readonly shopId: string;
  readonly unscopedUpTo: string | null;
  readonly orders: Orders;
  readonly #runtime: Runtime;
  readonly #db: DatabaseSync;
  readonly #unlock: () => void;
  readonly #begin;
  readonly #commit;
  readonly #tail = new Tail();
  readonly #steps: Steps;
  /** Groups small changes of one turn: each by itself would stop the event loop for a disk write. */
  readonly #small: Grouped<() => unknown, unknown>;
  readonly #reader: Reader;
  #blockedMs = 0;

  constructor(db: DatabaseSync, file: string, runtime: Runtime, unlock: () => void) {
    this.#runtime = runtime;
    this.#unlock = unlock;
    this.#db = db;
    this.shopId = (db.prepare('SELECT id FROM shop').get() as { id: string }).id;
    const unscoped = db.prepare('SELECT CAST(up_to AS TEXT) AS upTo FROM unscoped_keys').get();
    this.unscopedUpTo = (unscoped as { upTo: string } | undefined)?.upTo ?? null;
    this.#begin = db.prepare('BEGIN IMMEDIATE');
    this.#commit = db.prepare('COMMIT');
    this.#steps = new Steps(db, () => runtime.clock.now());
    this.#reader = new Reader(file);
    this.orders = new Orders(db, this.#tail, {
      clock: runtime.clock,
      steps: this.#steps,
      transaction: (run) => this.#transaction(run),
      read: (run) => this.#read(run),
      readElsewhere: (sql, values) => {
        this.#mustBeOpen();
        return this.#reader.all(sql, values);
      },
    });
    this.#small = new Grouped(async (works) => this.#transaction(() => works.map((work) => work())), runtime);
  }

  get blockedMs(): number {
    return this.#blockedMs;
  }

  async change<T>(work: () => Work<T>): Promise<T> {
    return this.#transaction(() => this.#steps.do(work()));
  }

  async changeShared<T>(work: () => Work<T>): Promise<T> {
    return (await this.#small.ask(() => this.#steps.do(work()))) as T;
  }

  /**
   * The item of an order is a foreign key without an index: to delete an item, SQLite would read every order on the event loop. The
   * work has looked for orders by their sale.
   */
  async remove<T>(work: () => Work<T>): Promise<T> {
    this.#mustBeOpen();
    this.#db.exec('PRAGMA foreign_keys = OFF');
    try {
      return this.#transaction(() => this.#steps.do(work()));
    } finally {
      this.#db.exec('PRAGMA foreign_keys = ON');
    }
  }

  async look<T>(work: () => Work<T>): Promise<T> {
    return this.#read(() => this.#steps.do(work()));
  }

  async lookElsewhere<T>(work: () => Work<T>): Promise<T> {
    this.#mustBeOpen();
    const running = work();
    let round = running.next();
    while (!round.done) round = running.next(await Promise.all(round.value.map((step) => this.#readElsewhere(step))));
    return round.value;
  }

  async #readElsewhere(step: Step): Promise<Result> {
    invariant(step.do === 'query' && step.sql.startsWith('SELECT'), 'only queries run on the other thread');
    const { sql, values } = statementOf(step.sql, step.values);
    return { rows: (await this.#reader.texts(sql, values)) as Row[], affected: 0 };
  }

  atRest<T>(work: () => Work<T>): Promise<T> {
    return this.look(work);
  }

  together<Q, A>(work: (batch: readonly Q[]) => Work<A[]>, how: Together<Q>): (request: Q) => Promise<A> {
    if (how.as === 'look') return async (request) => (await this.look(() => work([request])))[0]!;
    return async (request) => (await this.changeShared(() => work([request])))[0]!;
  }

  async probe(): Promise<void> {
    this.#transaction(() => this.#db.prepare('UPDATE probe SET at = ?').run(this.#runtime.clock.now()));
  }

  async close(): Promise<void> {
    await this.#reader.close();
    if (this.#db.isOpen) this.#db.close();
    this.#unlock();
  }

  #transaction<T>(run: () => T): T {
    this.#mustBeOpen();
    const startedMs = this.#runtime.clock.monotonic();
    this.#steps.freed = [];
    this.#steps.reseated = [];
    try {
      this.#begin.run();
      const result = run();
      this.#commit.run();
      // In this turn: the next batch must find their slots and seats free.
      for (const { buyer, orderId } of this.#steps.freed) this.#tail.end(buyer, orderId);
      for (const { buyer, orderId, seats } of this.#steps.reseated) this.#tail.reseat(buyer, orderId, seats);
      return result;
    } catch (error) {
      try {
        rollBack(this.#db);
      } catch (rollbackError) {
        this.#runtime.log.error({ err: rollbackError }, 'the ledger could not roll back');
      }
      throw ledgerError(error);
    } finally {
      this.#blockedMs += this.#runtime.clock.monotonic() - startedMs;
    }
  }

  #read<T>(run: () => T): T {
    this.#mustBeOpen();
    try {
      return run();
    } catch (error) {
      throw ledgerError(error);
    }
  }

  #mustBeOpen(): void {
    if (!this.#db.isOpen) throw unavailable('the ledger is closed');
  }
}
