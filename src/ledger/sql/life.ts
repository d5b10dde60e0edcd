import { invariant } from '../../base/errors.ts';
import { Grouped } from '../../base/grouped.ts';
import type { LifeDialect, Result, Step, Work } from '../work.ts';
import type { Database } from './database.ts';
import type { Session } from './session.ts';

const BARE_AT_ONCE = 4;
/** For what is told about when it is: a clock that was set since is noticed soon. */
const RECENT_MS = 1000;

/** Does work in rounds, each in one trip to the database. */
export class Life {
  readonly #database: Database;
  #now = { ms: 0, readAtMs: Number.NEGATIVE_INFINITY };

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
      const { value, committed } = await this.#do(session, work(), begin);
      if (!committed) await session.query('COMMIT');
      return value;
    });
  }

  /**
   * For requests of which a few statements serve any number, each of them right by itself: those that come while others are
   * under way go together, without a transaction around them.
   */
  bare<Q, A>(work: (batch: readonly Q[]) => Work<A[]>): (request: Q) => Promise<A> {
    const group = new Grouped<Q, A>((batch) => this.look(() => work(batch)), this.#database.runtime, {
      atOnce: BARE_AT_ONCE,
    });
    return (request) => group.ask(request);
  }

  look<T>(work: () => Work<T>): Promise<T> {
    return this.#database.read(async (session) => (await this.#do(session, work(), [])).value);
  }

  /** `first` goes with the first round. */
  async #do<T>(session: Session, work: Work<T>, first: readonly Step[]): Promise<{ value: T; committed: boolean }> {
    let ahead = first;
    let committed = false;
    let round = work.next();
    // What writes must be known to be inside the transaction: a BEGIN that fails would leave it outside.
    if (ahead.length > 0 && !round.done && round.value.some(isWrite) && !this.#database.dialect.steps.stopsAtFailure) {
      await this.#round(session, ahead);
      ahead = [];
    }
    while (!round.done) {
      invariant(!committed, 'work that has committed does nothing more');
      committed = this.#database.dialect.steps.commits && round.value.at(-1)?.do === 'commit';
      const results = await this.#round(session, [...ahead, ...round.value]);
      round = work.next(results.slice(ahead.length));
      ahead = [];
    }
    return { value: round.value, committed };
  }

  async #round(session: Session, steps: readonly Step[]): Promise<Result[]> {
    const { steps: statements, clock } = this.#database.dialect;
    const { fixedNow } = this.#database;
    const recent = this.#recentNow();
    if (recent !== null && steps.every((step) => step.do === 'clock' && step.about)) {
      return steps.map(() => ({ rows: [{ now_ms: recent }], affected: 0 }));
    }
    const isAsked = (step: Step): boolean => {
      return step.do === 'clock' ? fixedNow === null : step.do !== 'commit' || statements.commits;
    };
    const asked = steps
      .filter(isAsked)
      .map((step): Step => (step.do === 'clock' ? { do: 'query', sql: clock, values: [] } : step));
    const results = await statements.run(session, asked);
    const read = steps.findLastIndex((step) => step.do === 'clock');
    if (read >= 0 && fixedNow === null) this.#noteNow(results[read]!);
    if (results.length === steps.length) return results;
    return steps.map((step) => {
      if (isAsked(step)) return results.shift()!;
      return { rows: step.do === 'clock' ? [{ now_ms: fixedNow!() }] : [], affected: 0 };
    });
  }

  #noteNow({ rows }: Result): void {
    this.#now = { ms: Number(rows[0]!.now_ms), readAtMs: this.#database.runtime.clock.monotonic() };
  }

  /** The ledger's clock, reckoned from when it was read last; null: that is too long ago. */
  #recentNow(): number | null {
    const { ms, readAtMs } = this.#now;
    const agoMs = this.#database.runtime.clock.monotonic() - readAtMs;
    return agoMs < RECENT_MS ? Math.floor(ms + agoMs) : null;
  }
}

function isWrite(step: Step): boolean {
  return step.do !== 'clock' && step.do !== 'commit' && (step.do !== 'query' || !step.sql.startsWith('SELECT'));
}
