import type { LifeDialect, Step, Work } from '../life/step.ts';
import type { Database } from './database.ts';
import type { Result, Session } from './session.ts';

/** Does work in rounds, each in one trip to the database. */
export class Life {
  readonly #database: Database;

  constructor(database: Database) {
    this.#database = database;
  }

  get dialect(): LifeDialect {
    return this.#database.dialect.life;
  }

  /**
   * In one transaction; tried again from its beginning while it collides. Each statement sees what was committed before it:
   * what is read after the lock of an order was waited for must be what the one who had it has left.
   */
  change<T>(work: () => Work<T>): Promise<T> {
    const begin = this.#database.dialect.beginFresh.split('; ').map((sql): Step => ({ do: 'query', sql, values: [] }));
    return this.#database.attempt(async (session) => {
      const done = await this.#do(session, work(), begin);
      await session.query('COMMIT');
      return done;
    });
  }

  look<T>(work: () => Work<T>): Promise<T> {
    return this.#database.read((session) => this.#do(session, work(), []));
  }

  /** `first` goes with the first round. */
  async #do<T>(session: Session, work: Work<T>, first: readonly Step[]): Promise<T> {
    let ahead = first;
    let round = work.next();
    // What writes must be known to be inside the transaction: a BEGIN that fails would leave it outside.
    if (ahead.length > 0 && !round.done && round.value.some(isWrite) && !this.#database.dialect.steps.stopsAtFailure) {
      await this.#round(session, ahead);
      ahead = [];
    }
    while (!round.done) {
      const results = await this.#round(session, [...ahead, ...round.value]);
      round = work.next(results.slice(ahead.length));
      ahead = [];
    }
    return round.value;
  }

  async #round(session: Session, steps: readonly Step[]): Promise<Result[]> {
    const { steps: statements, clock } = this.#database.dialect;
    const { fixedNow } = this.#database;
    const asked = steps.flatMap((step): Step[] => {
      if (step.do !== 'clock') return [step];
      return fixedNow === null ? [{ do: 'query', sql: clock, values: [] }] : [];
    });
    const results = await statements.run(session, asked);
    if (fixedNow === null) return results;
    return steps.map((step) => {
      return step.do === 'clock' ? { rows: [{ now_ms: fixedNow() }], affected: 0 } : results.shift()!;
    });
  }
}

function isWrite(step: Step): boolean {
  return step.do !== 'clock' && (step.do !== 'query' || !step.sql.startsWith('SELECT'));
}
