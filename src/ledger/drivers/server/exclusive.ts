import { TerminalError, unavailable } from '../../../base/errors.ts';
import type { Runtime } from '../../../base/runtime.ts';
import type { Dialect } from './dialect.ts';
import type { LastingSession } from './session.ts';

/** `unsure`: the connection that held the lock is gone, and another process may hold it now. `taken`: another does. */
export type ExclusiveState = 'held' | 'unsure' | 'taken';

/** A query at this interval finds a connection that died silently, and with it the lock. */
const ASK_EVERY_MS = 5_000;
const TRY_EVERY_MS = 500;

/**
 * Reserves a database for one process, whose gate is in its memory, by a lock in the database on a connection of its own,
 * held for as long as the ledger is open.
 *
 *   held → unsure    its connection was lost, and the lock with it. Writes fail (retryable) until it is known who holds it.
 *   unsure → held    taken again, at once or when the database is back. Another process may have written meanwhile, so
 *                    whoever is notified must rebuild the gate. Until then the epoch is the fence.
 *   unsure → taken   another process holds it. Every write fails from then on: this process must end.
 */
export class Exclusive {
  readonly #dialect: Dialect;
  readonly #runtime: Runtime;
  readonly #changed: (state: ExclusiveState) => void;
  readonly #stopAsking: () => void;
  #session: LastingSession | null = null;
  #state: ExclusiveState = 'held';
  #closed = false;
  #cancelTry: (() => void) | null = null;

  static async take(dialect: Dialect, runtime: Runtime, changed: (state: ExclusiveState) => void): Promise<Exclusive> {
    const lock = new Exclusive(dialect, runtime, changed);
    try {
      const holder = await lock.#take();
      if (holder !== null) {
        throw new TerminalError('data_in_use', `another doorbuster process is using this database${holder}`);
      }
      return lock;
    } catch (error) {
      lock.release();
      throw error;
    }
  }

  private constructor(dialect: Dialect, runtime: Runtime, changed: (state: ExclusiveState) => void) {
    this.#dialect = dialect;
    this.#runtime = runtime;
    this.#changed = changed;
    this.#stopAsking = runtime.timers.every(ASK_EVERY_MS, () => {
      this.#session?.query('SELECT 1').catch(() => this.#lost());
    });
  }

  get state(): ExclusiveState {
    return this.#state;
  }

  /** Called before every write. */
  mustBeAlone(): void {
    if (this.#state === 'held') return;
    throw unavailable(
      this.#state === 'taken'
        ? 'another doorbuster process has taken over this database: this one must end'
        : 'the lock of the database was lost, and it is not known yet who has it',
    );
  }

  release(): void {
    this.#closed = true;
    this.#stopAsking();
    this.#cancelTry?.();
    this.#session?.destroy();
    this.#session = null;
  }

  /** Null: this process holds it. Otherwise a text that says who does. */
  async #take(): Promise<string | null> {
    const session = await this.#dialect.connections.connect(() => {
      if (this.#session === session) this.#lost();
    });
    try {
      if (!(await this.#dialect.locks.tryTake(session, 'exclusive'))) {
        const holder = await this.#dialect.locks.holder(session, 'exclusive').catch(() => null);
        session.destroy();
        return holder === null ? '' : ` (${holder})`;
      }
    } catch (error) {
      session.destroy();
      throw error;
    }
    session.rest();
    if (this.#closed) session.destroy();
    else this.#session = session;
    return null;
  }

  #lost(): void {
    if (this.#closed || this.#state !== 'held') return;
    this.#session?.destroy();
    this.#session = null;
    this.#become('unsure');
    void this.#retake();
  }

  async #retake(): Promise<void> {
    try {
      const holder = await this.#take();
      if (this.#closed) return;
      this.#become(holder === null ? 'held' : 'taken');
    } catch (error) {
      if (this.#closed) return;
      this.#runtime.log.warn({ err: error }, 'the lock of the database could not be taken again yet');
      this.#cancelTry = this.#runtime.timers.after(TRY_EVERY_MS, () => void this.#retake());
    }
  }

  #become(state: ExclusiveState): void {
    this.#state = state;
    this.#runtime.log[state === 'held' ? 'info' : 'error'](
      { state },
      'the lock that keeps the database to one process',
    );
    this.#changed(state);
  }
}
