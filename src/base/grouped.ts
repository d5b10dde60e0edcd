import { BusyError, RetryableError } from './errors.ts';
import { InFlight } from './in-flight.ts';
import type { Runtime } from './runtime.ts';

/** Requests per transaction: bounds how long it locks the rows of hot items, and how much one read returns. */
const BATCH_MAX = 256;
/** With this many waiting, another transaction starts beside the running one; fewer wait for the next. */
const SHARE_MIN = 64;
/** A transaction that has run for this long may hang: the next one starts beside it, if `atOnce` allows, instead of waiting. */
const LATE_MS = 250;

interface Waiting<Q, A> {
  readonly request: Q;
  readonly resolve: (answer: A) => void;
  readonly reject: (error: unknown) => void;
}

export interface GroupedOptions<Q, A> {
  /** How many transactions may run at once. */
  readonly atOnce?: number;
  /** Called after the commit, before the caller gets the answer. */
  readonly answered?: (request: Q, answer: A) => void;
  /**
   * The subject of a request. Requests with the same subject are committed in the order in which they came: of those only one goes
   * into a transaction, and the next one waits until that has ended.
   */
  readonly about?: ((request: Q) => string) | null;
}

/**
 * Groups requests into transactions, as the writer groups orders: otherwise a rush of payments for one item would be one
 * transaction each on one hot row. While a transaction commits, the next one fills; a caller is answered after its own commit.
 * With `atOnce` above 1, several run at the same time. Reads are grouped in the same way: the busier the shop, the less each
 * of them costs.
 */
export class Grouped<Q, A> {
  readonly #commit: (batch: Q[]) => Promise<A[]>;
  readonly #answered: (request: Q, answer: A) => void;
  readonly #runtime: Runtime;
  readonly #atOnce: number;
  readonly #about: ((request: Q) => string) | null;
  #waiting: Waiting<Q, A>[] = [];
  #turn: Promise<void> | null = null;
  readonly #underWay = new InFlight();
  /** Subjects of requests that are being committed. */
  readonly #busy = new Set<string>();
  /** When the last transaction started. */
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

  /** Resolves when no transaction is running or about to start. */
  async idle(): Promise<void> {
    while (this.#turn !== null || this.#underWay.count > 0) await (this.#turn ?? this.#underWay.idle());
  }

  /** Waits for the next turn, so that the requests of one turn share transactions. */
  async #nextTurn(): Promise<void> {
    await new Promise<void>((resolve) => this.#runtime.timers.nextTurn(resolve));
    this.#turn = null;
    this.#start();
  }

  /** How many transactions to start now for the waiting requests. */
  get #parts(): number {
    const free = this.#underWay.count === 0 || this.#clockMs() - this.#startedMs >= LATE_MS;
    const alone = free && this.#waiting.length > 0 ? 1 : 0;
    const worth = Math.max(alone, Math.floor(this.#waiting.length / SHARE_MIN));
    return Math.min(worth, this.#atOnce - this.#underWay.count);
  }

  #clockMs(): number {
    return this.#runtime.clock.monotonic();
  }

  /** If another transaction would be allowed, waiting requests wait at most LATE_MS for the running one. */
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
      const { batch, names } = this.#next(Math.min(share, BATCH_MAX));
      // Each of them waits for another about the same: the end of that one starts it.
      if (batch.length === 0) return;
      // `#start` runs in the same turn as the end, so that a later request starts a new transaction.
      void this.#underWay.during(this.#together(batch), () => {
        for (const name of names) this.#busy.delete(name);
        this.#start();
      });
    }
  }

  #next(count: number): { batch: Waiting<Q, A>[]; names: string[] } {
    const about = this.#about;
    if (about === null) return { batch: this.#waiting.splice(0, count), names: [] };
    const batch: Waiting<Q, A>[] = [];
    const names: string[] = [];
    this.#waiting = this.#waiting.filter((one) => {
      if (batch.length === count) return true;
      const name = about(one.request);
      if (this.#busy.has(name)) return true;
      this.#busy.add(name);
      names.push(name);
      batch.push(one);
      return false;
    });
    return { batch, names };
  }

  /** Returns the error that all of them got, or null. `last`: do not retry one by one, because two were already locked out. */
  async #together(batch: readonly Waiting<Q, A>[], last = false): Promise<unknown> {
    let answers: A[];
    try {
      answers = await this.#commit(batch.map(({ request }) => request));
    } catch (error) {
      // With subjects, only one request may be waiting for a locked row. Without, all of them share the row.
      const isHeld = error instanceof BusyError && this.#about !== null && !last;
      if ((error instanceof RetryableError && !isHeld) || batch.length === 1) {
        for (const { reject } of batch) reject(error);
        return error;
      }
      // One request made the batch fail. Run them one by one, so that the others succeed.
      let held = 0;
      for (const [at, one] of batch.entries()) {
        if ((await this.#together([one])) instanceof BusyError) held++;
        if (held < 2) continue;
        // Waiting out each lock would hold up all later requests. The rest gets one try together.
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
