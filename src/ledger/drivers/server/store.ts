import { invariant } from '../../../base/errors.ts';
import { Grouped } from '../../../base/grouped.ts';
import type { OrderStore, Store, Together } from '../../store.ts';
import type { LifeDialect, Result, Step, Work } from '../../works/work.ts';
import type { Database } from './database.ts';
import type { Exclusive, ExclusiveState } from './exclusive.ts';
import { Orders } from './orders.ts';
import type { Session } from './session.ts';

/** Groups of one kind under way at once: one that the database is slow about does not hold up the others. */
const AT_ONCE = { look: 4, statements: 4, change: 2 } as const;
/** An `about` time is reckoned from a read at most this old, so that a clock that was set is noticed soon. */
const RECENT_MS = 1000;

/** What is read once, when the database is opened. */
export type Facts = Pick<Store, 'shopId' | 'unscopedUpTo'>;

/** A database with a server: each round of work is one trip. */
export class ServerStore implements Store {
  readonly atOnce = 2;
  readonly shopId: string;
  readonly unscopedUpTo: string | null;
  readonly orders: OrderStore;
  readonly #database: Database;
  readonly #exclusive: Exclusive | null;
  #now = { ms: 0, readAtMs: Number.NEGATIVE_INFINITY };

  constructor(database: Database, exclusive: Exclusive | null, facts: Facts) {
    this.#database = database;
    this.#exclusive = exclusive;
    this.shopId = facts.shopId;
    this.unscopedUpTo = facts.unscopedUpTo;
    this.orders = new Orders(database, this);
  }

  get dialect(): LifeDialect {
    return this.#database.dialect.life;
  }

  /** Whether the database is still ours alone; null where it is shared on purpose. */
  get exclusive(): ExclusiveState | null {
    return this.#exclusive?.state ?? null;
  }

  mustBeAlone(): void {
    this.#exclusive?.mustBeAlone();
  }

  /**
   * Retried from its beginning while it collides. Each statement sees what was committed before it: after waiting for the lock
   * of an order, it must read what the previous holder committed.
   */
  async change<T>(work: () => Work<T>): Promise<T> {
    this.mustBeAlone();
    return await this.#inTransaction(work);
  }

  /** A transaction for each: they run beside each other, and their disk writes are not ours. */
  changeShared<T>(work: () => Work<T>): Promise<T> {
    return this.change(work);
  }

  /** An item is referred to by the orders' own numbers only: no constraint has to be looked at. */
  remove<T>(work: () => Work<T>): Promise<T> {
    return this.change(work);
  }

  async atRest<T>(work: () => Work<T>): Promise<T> {
    await this.#database.endLeft();
    return await this.#inTransaction(work);
  }

  #inTransaction<T>(work: () => Work<T>): Promise<T> {
    const begin = this.#database.dialect.beginFresh.split('; ').map((sql): Step => ({ do: 'query', sql, values: [] }));
    return this.#database.attempt(async (session) => {
      const { value, committed } = await this.#do(session, work(), begin);
      if (!committed) await session.query('COMMIT');
      return value;
    });
  }

  /** Requests that come while others are under way share the next transaction. */
  together<Q, A>(work: (batch: readonly Q[]) => Work<A[]>, how: Together<Q>): (request: Q) => Promise<A> {
    const doing = (batch: Q[]) => (how.as === 'change' ? this.change(() => work(batch)) : this.look(() => work(batch)));
    const options = { atOnce: AT_ONCE[how.as], about: how.as === 'change' ? how.about : null };
    const group = new Grouped<Q, A>(doing, this.#database.runtime, options);
    if (how.as === 'look') return (request) => group.ask(request);
    return async (request) => {
      this.mustBeAlone();
      return await group.ask(request);
    };
  }

  look<T>(work: () => Work<T>): Promise<T> {
    return this.#database.read(async (session) => (await this.#do(session, work(), [])).value);
  }

  /** Every query runs elsewhere. */
  lookElsewhere<T>(work: () => Work<T>): Promise<T> {
    return this.look(work);
  }

  async probe(): Promise<void> {
    this.mustBeAlone();
    // One statement that commits by itself: a process that stops in the middle keeps no row locked.
    await this.#database.read((session) => session.query('UPDATE probe SET "at" = "at" + 1'));
  }

  async close(): Promise<void> {
    await this.#database.end();
    this.#exclusive?.release();
  }

  /** `first` is sent with the first round. */
  async #do<T>(session: Session, work: Work<T>, first: readonly Step[]): Promise<{ value: T; committed: boolean }> {
    let ahead = first;
    let committed = false;
    let round = work.next();
    // A write must not be sent with a BEGIN that may fail: it would run outside a transaction.
    if (ahead.length > 0 && !round.done && round.value.some(isWrite) && !this.#database.dialect.steps.stopsAtFailure) {
      await this.#round(session, ahead);
      ahead = [];
    }
    while (!round.done) {
      invariant(!committed, 'work that has committed does nothing more');
      committed = this.#commits(round.value);
      const results = await this.#round(session, [...ahead, ...round.value]);
      round = work.next(results.slice(ahead.length));
      ahead = [];
    }
    return { value: round.value, committed };
  }

  /** Work inside the session's open transaction. */
  async within<T>(session: Session, work: Work<T>): Promise<T> {
    return (await this.#do(session, work, [])).value;
  }

  #commits(steps: readonly Step[]): boolean {
    return steps.at(-1)?.do === 'commit' && this.#database.dialect.steps.commits(steps);
  }

  async #round(session: Session, steps: readonly Step[]): Promise<Result[]> {
    const { steps: statements, clock } = this.#database.dialect;
    const { fixedNow } = this.#database;
    const recent = this.#recentNow();
    if (recent !== null && steps.every((step) => step.do === 'clock' && step.about)) {
      return steps.map(() => ({ rows: [{ now_ms: recent }], affected: 0 }));
    }
    const commits = this.#commits(steps);
    const isAsked = (step: Step): boolean => {
      if (step.do === 'clock') return fixedNow === null;
      return step.do !== 'freed' && step.do !== 'reseated' && (step.do !== 'commit' || commits);
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

/** Beside queries. */
const HARMLESS: ReadonlySet<Step['do']> = new Set(['clock', 'commit', 'freed', 'reseated', 'find']);

function isWrite(step: Step): boolean {
  if (step.do === 'query') return !step.sql.startsWith('SELECT');
  return !HARMLESS.has(step.do);
}
