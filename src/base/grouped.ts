import { BusyError, RetryableError } from './errors.ts';
import type { Runtime } from './runtime.ts';
import { Tally } from './tally.ts';

/** Of one transaction: bounds how long the rows of hot items are held, and how many are read at once. */
const BATCH_MAX = 256;
/** So many are worth a transaction of their own beside one that is under way; fewer go with the next one. */
const SHARE_MIN = 64;
/** What has been under way for so long may hang: who comes next goes beside it, if there is room, and not behind it. */
const LATE_MS = 250;

interface Waiting<Q, A> {
  readonly request: Q;
  readonly resolve: (answer: A) => void;
  readonly reject: (error: unknown) => void;
}

export interface GroupedOptions<Q, A> {
  /** How many transactions may be under way. */
  readonly atOnce?: number;
  readonly answered?: (request: Q, answer: A) => void;
  /** What a request is about: of those about the same only one goes into a transaction, the next into a later one. */
  readonly about?: ((request: Q) => string) | null;
}

/**
 * Groups requests into transactions as the writer groups orders: a rush of payments of one item would otherwise be one
 * transaction each on one hot row. While one is being committed the next one fills; who waits hears after its own commit.
 * Several may be under way where the ledger has room for them: one is put together while the database works on another.
 * Reads are grouped in the same way: the busier the shop is, the less each of them costs.
 */
export class Grouped<Q, A> {
  readonly #commit: (batch: Q[]) => Promise<A[]>;
  /** After the commit and before anybody who waits hears. */
  readonly #answered: (request: Q, answer: A) => void;
  readonly #runtime: Runtime;
  readonly #atOnce: number;
  readonly #about: ((request: Q) => string) | null;
  #waiting: Waiting<Q, A>[] = [];
  #turn: Promise<void> | null = null;
  readonly #underWay = new Tally();
  /** When the last one was started. */
  #startedMs = 0;
  #looking = false;

  constructor(
    commit: (batch: Q[]) => Promise<A[]>,
    runtime: Runtime,
    { atOnce = 1, answered = () => undefined, about = null }: GroupedOptions<Q, A> = {},
  ) {
    this.#commit = commit;
    this.#runtime = runtime;
    this.#atOnce = atOnce;
    this.#answered = answered;
    this.#about = about;
  }

  ask(request: Q): Promise<A> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ request, resolve, reject });
      if (this.#parts > 0) this.#turn ??= this.#nextTurn();
      else this.#lookAgain();
    });
  }

  /** Resolves when nothing is under way. */
  async idle(): Promise<void> {
    while (this.#turn !== null || this.#underWay.count > 0) await (this.#turn ?? this.#underWay.idle());
  }

  /** What arrives in one turn shares transactions. */
  async #nextTurn(): Promise<void> {
    await new Promise<void>((resolve) => this.#runtime.timers.nextTurn(resolve));
    this.#turn = null;
    this.#start();
  }

  /** How many transactions what waits is worth now. */
  get #parts(): number {
    const free = this.#underWay.count === 0 || this.#clockMs() - this.#startedMs >= LATE_MS;
    const alone = free && this.#waiting.length > 0 ? 1 : 0;
    const worth = Math.max(alone, Math.floor(this.#waiting.length / SHARE_MIN));
    return Math.min(worth, this.#atOnce - this.#underWay.count);
  }

  #clockMs(): number {
    return this.#runtime.clock.monotonic();
  }

  /** Where more may be under way than are, those that wait do not wait for long. */
  #lookAgain(): void {
    if (this.#looking || this.#waiting.length === 0 || this.#underWay.count >= this.#atOnce) return;
    this.#looking = true;
    this.#runtime.timers.after(LATE_MS, () => {
      this.#looking = false;
      this.#start();
      this.#lookAgain();
    });
  }

  #start(): void {
    for (let parts = this.#parts; parts > 0; parts--) {
      this.#startedMs = this.#clockMs();
      const share = Math.ceil(this.#waiting.length / parts);
      const work = this.#together(this.#next(Math.min(share, BATCH_MAX)));
      // In the same turn: who comes next starts anew.
      void this.#underWay.during(work, () => this.#start());
    }
  }

  #next(count: number): Waiting<Q, A>[] {
    const about = this.#about;
    if (about === null) return this.#waiting.splice(0, count);
    const batch = new Map<string, Waiting<Q, A>>();
    this.#waiting = this.#waiting.filter((one) => {
      const name = about(one.request);
      if (batch.size === count || batch.has(name)) return true;
      batch.set(name, one);
      return false;
    });
    return [...batch.values()];
  }

  /** Returns what all of them were told instead of an answer. `last`: two of the batch before it were held. */
  async #together(batch: readonly Waiting<Q, A>[], last = false): Promise<unknown> {
    let answers: A[];
    try {
      answers = await this.#commit(batch.map(({ request }) => request));
    } catch (error) {
      // Those that are about things of their own need not all wait for what somebody holds. Others share what is held.
      const isHeld = error instanceof BusyError && this.#about !== null && !last;
      if ((error instanceof RetryableError && !isHeld) || batch.length === 1) {
        for (const { reject } of batch) reject(error);
        return error;
      }
      // Something in the batch: the others are not to suffer for it.
      let held = 0;
      for (const [at, one] of batch.entries()) {
        if ((await this.#together([one])) instanceof BusyError) held++;
        if (held < 2) continue;
        // To wait for each that is held would keep everybody else waiting: the rest has one try, and is free if nobody holds it.
        if (at + 1 < batch.length) await this.#together(batch.slice(at + 1), true);
        break;
      }
      return null;
    }
    for (const [at, { request, resolve }] of batch.entries()) {
      this.#answered(request, answers[at]!);
      resolve(answers[at]!);
    }
    return null;
  }
}
