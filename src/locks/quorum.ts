import { TerminalError } from '../base/errors.ts';
import { checkedFunction, checkedName, refuseUnknown } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import { AbortedError, HeldError, TimeoutError, UnavailableError } from './client/errors.ts';
import { Grant } from './client/grant.ts';
import { Hold } from './client/hold.ts';
import type { Terms } from './client/wanted.ts';
import { CompositeGrant } from './composite.ts';
import { type AcquireOptions, CHANGE_OPTIONS, termsOf, withoutWait } from './options.ts';
import { runHolding } from './run.ts';

/** One master let us in and the others did not: the last holder is still giving back. Tried so often, so far apart. */
const TRIES = 4;
const TRY_MS = 20;
const TRY_OPTIONS = withoutWait(CHANGE_OPTIONS);

/** What one round over the masters gave. */
interface Round {
  readonly grants: Grant[];
  readonly refused: number;
  readonly failures: unknown[];
}

/**
 * One holder at a time by the majority of several *independent* Redis masters (Redlock): survives the loss of a minority.
 * Each master's part has its own deadline from the moment it was asked for, drift subtracted; the lock is held while a
 * majority of these lie ahead. A try that fails gives back on every master, also where the answer was lost.
 *
 * Those who wait stand in the queue of the first master that answers, and try the others when they are let in there.
 */
export class QuorumLock {
  readonly name: string;
  readonly #clients: readonly LockClient[];
  readonly #majority: number;

  constructor(clients: readonly LockClient[], name: string) {
    this.name = checkedName(name);
    this.#clients = clients;
    this.#majority = Math.floor(clients.length / 2) + 1;
  }

  get #first(): LockClient {
    return this.#clients[0]!;
  }

  async tryAcquire(options: Omit<AcquireOptions, 'wait' | 'within' | 'replicas'> = {}): Promise<CompositeGrant | null> {
    refuseUnknown(options, TRY_OPTIONS, 'tryAcquire of a quorum');
    return await this.#once(this.#terms({ ...options, wait: 0 }), null);
  }

  /** HeldError (`wait: 0`), TimeoutError, AbortedError; UnavailableError when no majority of the masters answers. */
  async acquire(options: Omit<AcquireOptions, 'within' | 'replicas'> = {}): Promise<CompositeGrant> {
    const terms = this.#terms(options);
    const untilMs = this.#first.nowMs() + terms.waitMs;
    const straight = await this.#once(terms, null);
    if (straight) return straight;
    if (terms.waitMs === 0) throw new HeldError(`quorum "${this.name}" is held`);
    for (;;) {
      const leftMs = untilMs - this.#first.nowMs();
      if (leftMs <= 0) throw new TimeoutError(`quorum "${this.name}" was not had within ${terms.waitMs} ms`);
      const [client, grant] = await this.#queue({ ...terms, waitMs: Math.max(1, Math.floor(leftMs)) });
      const had = await this.#once(terms, [client, grant]);
      if (had) return had;
      // Two callers that wait at different masters (one master seems down to one of them) must not retry in step.
      await this.#pause(TRY_MS * (1 + 4 * this.#first.runtime.random.fraction()), terms.signal);
    }
  }

  async run<T>(
    fn: (grant: CompositeGrant) => Promise<T> | T,
    options: Omit<AcquireOptions, 'within' | 'replicas'> = {},
  ): Promise<T> {
    checkedFunction(fn, 'run');
    const grant = await this.acquire(options);
    return await runHolding(grant, grant.parts.map(Grant.holdOf), fn, this.#first.runtime.log);
  }

  #terms(options: AcquireOptions): Terms {
    return { ...termsOf(this.#first, options, Infinity, 'acquire of a quorum', CHANGE_OPTIONS), replicas: 0 };
  }

  get #wanted(): { kind: 'mutex'; name: string; mode: 'write'; permits: 1; limit: 1 } {
    // Not the name itself: a plain mutex of that name on one of the masters is another lock.
    return { kind: 'mutex', name: `quorum:${this.name}`, mode: 'write', permits: 1, limit: 1 };
  }

  /** Waits in the queue of the first master that can be asked. */
  async #queue(terms: Terms): Promise<[LockClient, Grant]> {
    const failures: unknown[] = [];
    for (const client of this.#clients) {
      try {
        return [client, await client.acquire(this.#wanted, terms)];
      } catch (error) {
        if (!(error instanceof UnavailableError)) throw error;
        failures.push(error);
        if (failures.length > this.#clients.length - this.#majority) throw this.#tooFew(failures);
      }
    }
    throw this.#tooFew(failures);
  }

  #tooFew(failures: readonly unknown[]): UnavailableError {
    const answered = this.#clients.length - failures.length;
    return new UnavailableError(
      `quorum "${this.name}": ${answered} of ${this.#clients.length} masters answered, ${this.#majority} are needed`,
      { cause: new AggregateError(failures) },
    );
  }

  /** One try. With `admitted`, the part of the master at which we waited. Null: held by others, everything given back. */
  async #once(terms: Terms, admitted: [LockClient, Grant] | null): Promise<CompositeGrant | null> {
    const grants: Grant[] = admitted ? [admitted[1]] : [];
    let rest = this.#clients.filter((client) => client !== admitted?.[0]);
    let failures: unknown[] = [];
    let composite: CompositeGrant | null = null;
    // Masters that answer after a majority has granted it: the more hold it, the more may fail.
    let waiting: Grant[] | null = [];
    const late = (grant: Grant): void => {
      if (waiting) waiting.push(grant);
      else if (!composite || !CompositeGrant.add(composite, grant)) grant.release().catch(() => undefined);
    };
    const settleLate = (): void => {
      const grants = waiting ?? [];
      waiting = null;
      for (const grant of grants) late(grant);
    };
    try {
      for (let tries = 0; tries < (admitted ? TRIES : 1); tries++) {
        if (tries > 0) await this.#pause(TRY_MS * 2 ** tries, terms.signal);
        const round = await this.#ask(rest, terms, this.#majority - grants.length, late);
        grants.push(...round.grants);
        failures = round.failures;
        const aborted = failures.find((failure) => failure instanceof AbortedError);
        if (aborted) throw aborted;
        if (grants.length >= this.#majority) break;
        rest = rest.filter((client) => !grants.some((grant) => Grant.holdOf(grant).of === client));
      }
      if (grants.length >= this.#majority) {
        composite = await this.#fenced(grants);
        if (composite) {
          settleLate();
          return composite;
        }
      }
    } catch (error) {
      settleLate();
      await this.#giveBack(grants);
      throw error;
    }
    settleLate();
    await this.#giveBack(grants);
    if (failures.length > this.#clients.length - this.#majority) throw this.#tooFew(failures);
    return null;
  }

  /** Asks the masters side by side; is done when enough have granted it, or all have answered. */
  #ask(clients: readonly LockClient[], terms: Terms, needed: number, late: (grant: Grant) => void): Promise<Round> {
    return new Promise((resolve) => {
      const grants: Grant[] = [];
      const failures: unknown[] = [];
      let refused = 0;
      let open = clients.length;
      let done = false;
      const settle = (): void => {
        if (done || (grants.length < needed && open > 0)) return;
        done = true;
        resolve({ grants, refused, failures });
      };
      for (const client of clients) {
        client.take(this.#wanted, { ...terms, waitMs: 0 }).then(
          (end) => {
            open--;
            if (end instanceof Hold) {
              const grant = new Grant(client, end);
              if (done) late(grant);
              else grants.push(grant);
            } else refused++;
            settle();
          },
          (error: unknown) => {
            open--;
            failures.push(error);
            settle();
          },
        );
      }
      settle();
    });
  }

  /**
   * The largest token of the majority, told to all of them. Any later majority shares a master with this one, and that
   * master mints more than it was told: the quorum's tokens grow although its masters' clocks differ.
   */
  async #fenced(grants: Grant[]): Promise<CompositeGrant | null> {
    // Given back in this order, the first one last: that is where the others wait.
    const rank = (grant: Grant): number => this.#clients.findIndex((client) => client === Grant.holdOf(grant).of);
    grants.sort((one, other) => rank(one) - rank(other));
    let token = 0n;
    for (const grant of grants) if (grant.token > token) token = grant.token;
    const raised = await Promise.allSettled(
      grants.map(async (grant) => {
        const hold = Grant.holdOf(grant);
        const client = this.#clients.find((each) => each === hold.of)!;
        if (!(await client.patiently(() => client.store.raise(this.#wanted, hold.rid, Number(token)))))
          hold.lose('refused');
      }),
    );
    // Masters became unreachable after they granted it. Nobody else has it, so it is not `held`.
    const failures = raised.flatMap((end) => (end.status === 'rejected' ? [end.reason as unknown] : []));
    if (grants.length - failures.length < this.#majority) throw this.#tooFew(failures);
    const composite = new CompositeGrant(
      this.name,
      token,
      grants,
      this.#majority,
      this.#clients.length - this.#majority,
    );
    return composite.held ? composite : null;
  }

  async #giveBack(grants: readonly Grant[]): Promise<void> {
    const [first, ...rest] = grants;
    await Promise.allSettled(rest.map((grant) => grant.release()));
    await first?.release().catch(() => undefined);
  }

  async #pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
    await this.#first.rest(ms);
    if (signal?.aborted) {
      throw new AbortedError(`waiting for quorum "${this.name}" was aborted`, { cause: signal.reason });
    }
  }
}

/** Locks over several independent masters. */
export class Quorum {
  readonly #clients: readonly LockClient[];
  readonly #close: () => Promise<unknown>;

  constructor(clients: readonly LockClient[], close: () => Promise<unknown>) {
    if (clients.length === 0) throw new TerminalError('invalid_argument', 'a quorum needs masters');
    const places = new Set(clients.map((client) => client.store.place));
    if (places.size < clients.length) throw new TerminalError('invalid_argument', 'a quorum needs different masters');
    this.#clients = clients;
    this.#close = close;
  }

  mutex(name: string): QuorumLock {
    return new QuorumLock(this.#clients, name);
  }

  async close(): Promise<void> {
    await this.#close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
