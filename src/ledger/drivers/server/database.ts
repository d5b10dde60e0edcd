import { BusyError, DoorbusterError, unavailable } from '../../../base/errors.ts';
import { InFlight } from '../../../base/in-flight.ts';
import type { Runtime } from '../../../base/runtime.ts';
import { sleep, within } from '../../../base/timers.ts';
import { ConflictError } from '../../works/work.ts';
import type { Dialect } from './dialect.ts';
import type { PooledSession, Session } from './session.ts';

/** With each conflict another transaction got further: so many in a row, with pauses, are not chance. */
const ATTEMPTS_MAX = 20;
const PAUSE_MS_MAX = 50;
const END_MS_MAX = 2000;
/** More than a pool has connections: sessions older than the last so many have ended long ago. */
const LEFT_MAX = 100;
/** A server reports a session as active for a moment after its client has the answer, and counts its uptime in whole seconds. */
const LOOK_AGAIN_MS = 20;
const LOOKS_MAX = 60;

/** Sessions of a pool, used for reads and for transactions that are tried again when they collide. */
export class Database {
  readonly dialect: Dialect;
  readonly runtime: Runtime;
  readonly #nowMs: (() => number) | null;
  readonly #running = new InFlight();
  /** When each was left, by the server's number: sessions that ended with an outage, perhaps in the middle of a COMMIT. */
  readonly #left = new Map<number, number>();
  #ended: Promise<void> | null = null;

  constructor(dialect: Dialect, runtime: Runtime, nowMs: (() => number) | null) {
    this.dialect = dialect;
    this.runtime = runtime;
    this.#nowMs = nowMs;
  }

  /** The ledger's clock where it is not the database's own. */
  get fixedNow(): (() => number) | null {
    return this.#nowMs;
  }

  /** The ledger's clock, in a round trip of its own. */
  async now(session: Session): Promise<number> {
    if (this.#nowMs !== null) return this.#nowMs();
    const { rows } = await session.query(this.dialect.clock);
    return Number(rows[0]!.now_ms);
  }

  /** The ledger's clock as the last statement of a script, and what to make of its result. */
  get clockInScript(): { sql: string; read: (now: { rows: Record<string, unknown>[] } | undefined) => number } {
    const fixed = this.#nowMs;
    if (fixed !== null) return { sql: '', read: () => fixed() };
    return { sql: `; ${this.dialect.clock}`, read: (now) => Number(now!.rows[0]!.now_ms) };
  }

  /** Statements outside a transaction. With SERIALIZABLE as the database's default even these may collide. */
  read<T>(run: (session: Session) => Promise<T>): Promise<T> {
    return this.attempt(run);
  }

  /** Begins and commits one transaction; rolls back if `run` throws. */
  transaction<T>(run: (session: Session) => Promise<T>, begin = this.dialect.begin): Promise<T> {
    return this.attempt(async (session) => {
      await session.script(begin);
      const result = await run(session);
      await session.query('COMMIT');
      return result;
    });
  }

  /**
   * A transaction whose `run` sends BEGIN and COMMIT itself, together with other statements. Retried while it collides;
   * whatever it throws, nothing of it is left in the session.
   */
  async attempt<T>(run: (session: Session) => Promise<T>): Promise<T> {
    for (let attempts = 1; ; attempts++) {
      try {
        return await this.#once(run);
      } catch (error) {
        if (!(error instanceof ConflictError)) throw error;
        if (attempts === ATTEMPTS_MAX) {
          throw new BusyError(`the database was busy: ${attempts} tries collided with others`, error);
        }
        this.runtime.log.debug({ err: error, attempts }, 'a transaction collided and is tried again');
        // After a random pause: transactions that collided would collide again.
        const pauseMs = this.runtime.random.fraction() * Math.min(PAUSE_MS_MAX, 2 ** attempts);
        await sleep(this.runtime.timers, pauseMs);
      }
    }
  }

  /**
   * Ends sessions that an outage left behind and that only wait for their client: they would keep their rows locked. A session
   * that is active is left to finish and remembered, since it may take a moment or for ever.
   */
  async endLeft(): Promise<void> {
    for (let looks = 1; this.#left.size > 0; looks++) {
      const left = [...this.#left];
      const nowMs = this.runtime.clock.monotonic();
      const sessions = left.map(([id, leftMs]) => ({ id, ageMs: nowMs - leftMs }));
      let atWork: Set<number>;
      try {
        atWork = new Set(await this.read((session) => this.dialect.endLeft(session, sessions)));
      } catch (error) {
        this.runtime.log.debug({ err: error }, 'sessions that an outage has left could not be ended');
        return;
      }
      for (const [id, leftMs] of left) {
        if (!atWork.has(id) && this.#left.get(id) === leftMs) this.#left.delete(id);
      }
      if (atWork.size === 0 || looks === LOOKS_MAX) return;
      await sleep(this.runtime.timers, LOOK_AGAIN_MS);
    }
  }

  /** Waits for what is under way, but not for a database that hangs: closing its connections rolls back what is open. */
  end(): Promise<void> {
    this.#ended ??= this.#end();
    return this.#ended;
  }

  async #end(): Promise<void> {
    const { timers } = this.runtime;
    await within(timers, this.#running.idle(), END_MS_MAX);
    await within(timers, this.dialect.connections.end(), END_MS_MAX);
  }

  async #once<T>(run: (session: Session) => Promise<T>): Promise<T> {
    if (this.#ended !== null) throw unavailable('the ledger is closed');
    return await this.#running.during(this.#inSession(run));
  }

  async #inSession<T>(run: (session: Session) => Promise<T>): Promise<T> {
    const session = await this.dialect.connections.take();
    try {
      const result = await run(session);
      session.release();
      return result;
    } catch (error) {
      if (error instanceof DoorbusterError && error.code === 'unavailable') this.#leave(session);
      else await rolledBack(session);
      throw error;
    }
  }

  #leave(session: PooledSession): void {
    if (session.id !== null) {
      this.#left.delete(session.id);
      this.#left.set(session.id, this.runtime.clock.monotonic());
      if (this.#left.size > LEFT_MAX) this.#left.delete(this.#left.keys().next().value!);
    }
    session.destroy();
  }
}

async function rolledBack(session: PooledSession): Promise<void> {
  try {
    await session.query('ROLLBACK');
    session.release();
  } catch {
    // When the connection ends, the database rolls back what is open in it.
    session.destroy();
  }
}
