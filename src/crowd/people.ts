import { type Random, seededRandom } from '../base/random.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Fleet } from './fleet.ts';
import { newTally, type Tally } from './progress.ts';
import { type TokenOf, tokensFor } from './tokens.ts';
import { Turnstile } from './turnstile.ts';

/** What is said to every crowd, whatever it does. */
export interface CrowdTerms {
  /** The addresses of the processes of one shop; at least one. */
  urls: readonly URL[];
  /** What each of them does, one after the other. */
  attempts: number;
  /** Requests per second; null: as fast as they are answered. */
  ratePerSecond: number | null;
  connections: number;
  /** How long after the last of them what was accepted may take to be stored. */
  waitSeconds: number;
  adminKey: string;
  authSecret: string | null;
  seed: number;
}

/** What is told of every crowd. */
export interface CrowdFigures {
  urls: string[];
  entered: number;
  attempts: number;
  connections: number;
  ratePerSecond: number | null;
  seed: number;
  /** Why the crowd ended before all had entered; null: all had. */
  endedEarly: string | null;
  seconds: number;
  requests: number;
  requestsPerSecond: number;
  /** Answers by status and code; `none`: the connection broke. */
  answers: Record<string, number>;
  latencyMs: { p50: number; p95: number; p99: number; max: number } | null;
}

/** One of the crowd. */
export interface Person<P> {
  readonly name: string;
  /** Drawn before the first one enters, so that a seed gives the same crowd. */
  readonly plan: P;
  /** The address of the first click. */
  readonly firstDoor: number;
}

export interface PeopleOptions<P> {
  readonly terms: CrowdTerms;
  readonly count: number;
  readonly plan: (random: Random) => P;
  readonly fleet: Fleet;
  /** Aborted by Ctrl-C: nobody enters any more. */
  readonly interrupt: AbortSignal;
  readonly runtime: Runtime;
}

/** People per connection: one who waits before a retry leaves the connection to another. */
const INSIDE_PER_CONNECTION = 4;
/** After Ctrl-C: how long requests in flight may take. */
const LAST_ANSWERS_MS = 5_000;
/** If no server answers for this long, the rest of the crowd does not enter. */
const SILENCE_MS_MAX = 20_000;

/** The people of a crowd: who they are, how they go in, and when they go home early. */
export class People<P> {
  /** What the names of all begin with. */
  readonly prefix: string;
  readonly all: readonly Person<P>[];
  readonly random: Random;
  readonly tally: Tally;
  readonly #on: PeopleOptions<P>;
  readonly #stop = new AbortController();
  readonly #latenciesMs: number[] = [];
  #endedEarly: string | null = null;
  #lastAnswerMs: number;
  #entered = 0;
  #seconds = 0;

  constructor(options: PeopleOptions<P>) {
    const { terms, count, plan, interrupt, runtime } = options;
    this.#on = options;
    this.random = seededRandom(terms.seed);
    // The seed repeats the crowd's plans; the time makes new people of it, who have done nothing here before.
    this.prefix = `crowd-${terms.seed.toString(36)}-${runtime.clock.now().toString(36)}-`;
    const digits = String(count).length;
    this.all = Array.from({ length: count }, (_, at) => ({
      name: this.prefix + String(at + 1).padStart(digits, '0'),
      plan: plan(this.random),
      firstDoor: at,
    }));
    this.tally = newTally(count);
    this.#lastAnswerMs = runtime.clock.monotonic();
    if (interrupt.aborted) this.#end('interrupted');
    interrupt.addEventListener('abort', () => this.#end('interrupted'));
  }

  /** Aborts when nobody is to enter or ask any more. */
  get stop(): AbortSignal {
    return this.#stop.signal;
  }

  get endedEarly(): string | null {
    return this.#endedEarly;
  }

  #end(reason: string): void {
    this.#endedEarly ??= reason;
    this.#stop.abort();
  }

  /** Tokens for all, and for `others`, who have a part in it without being one of them. */
  tokens(others: readonly string[] = []): Promise<TokenOf> {
    const { terms, fleet, runtime } = this.#on;
    return tokensFor([...others, ...this.all.map(({ name }) => name)], {
      client: fleet.door(),
      // The rate limits what they do, not requests for tokens.
      turnstile: new Turnstile(runtime, terms.connections, null, this.stop),
      runtime,
      authSecret: terms.authSecret,
      stop: this.stop,
      asked: (tokens) => {
        this.tally.done = tokens;
      },
    });
  }

  /** Lets them visit in this order, a bounded number at a time. */
  async visit(
    stage: Tally['stage'],
    people: readonly Person<P>[],
    visit: (person: Person<P>, turnstile: Turnstile) => Promise<void>,
  ): Promise<void> {
    const { terms, fleet, runtime } = this.#on;
    const { connections, ratePerSecond } = terms;
    const { stop, tally } = this;
    Object.assign(tally, { stage, done: 0 });
    const turnstile = new Turnstile(runtime, connections, ratePerSecond, stop);
    const startedMs = runtime.clock.monotonic();
    this.#lastAnswerMs = startedMs;
    const oneAfterAnother = async (): Promise<void> => {
      while (this.#entered < people.length && !stop.aborted) {
        await visit(people[this.#entered++]!, turnstile);
        if (!stop.aborted) tally.done++;
      }
    };
    const cutOff = (): void => void runtime.timers.after(LAST_ANSWERS_MS, () => fleet.close());
    if (stop.aborted) cutOff();
    else stop.addEventListener('abort', cutOff);
    const inside = Math.min(people.length, connections * INSIDE_PER_CONNECTION);
    await Promise.all(Array.from({ length: inside }, oneAfterAnother));
    stop.removeEventListener('abort', cutOff);
    this.#seconds = (runtime.clock.monotonic() - startedMs) / 1000;
  }

  /** One of them got an answer after so long; null: the connection broke. */
  heard(tookMs: number | null): void {
    const nowMs = this.#on.runtime.clock.monotonic();
    this.tally.requests++;
    if (tookMs !== null) {
      this.#latenciesMs.push(tookMs);
      this.#lastAnswerMs = nowMs;
    } else if (nowMs - this.#lastAnswerMs > SILENCE_MS_MAX) {
      this.#end(`the server has not answered for ${SILENCE_MS_MAX / 1000} s`);
    }
  }

  figures(answers: readonly Answered[]): CrowdFigures {
    const { urls, attempts, connections, ratePerSecond, seed } = this.#on.terms;
    const seconds = this.#seconds;
    return {
      urls: urls.map(({ href }) => href),
      entered: this.#entered,
      attempts,
      connections,
      ratePerSecond,
      seed,
      endedEarly: this.#endedEarly,
      seconds,
      requests: answers.length,
      requestsPerSecond: seconds > 0 ? answers.length / seconds : 0,
      answers: byStatus(answers),
      latencyMs: percentiles(this.#latenciesMs),
    };
  }
}

interface Answered {
  readonly status: number | null;
  readonly code: string | null;
}

function byStatus(answers: readonly Answered[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { status, code } of answers) {
    const name = status === null ? 'none' : code === null ? String(status) : `${status} ${code}`;
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
}

export function percentiles(valuesMs: readonly number[]): CrowdFigures['latencyMs'] {
  if (valuesMs.length === 0) return null;
  const sorted = Float64Array.from(valuesMs).sort();
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * share) - 1)]!;
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: sorted.at(-1)! };
}
