import { RetryableError } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';

/** Of one transaction: bounds how long the rows of hot items are held. */
const BATCH_MAX = 256;

interface Waiting<Q, A> {
  readonly request: Q;
  readonly resolve: (answer: A) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Groups requests into transactions as the writer groups orders: a rush of payments of one item would otherwise be one
 * transaction each on one hot row. While one is being committed the next one fills; who waits hears after its own commit.
 */
export class Grouped<Q, A> {
  readonly #commit: (batch: Q[]) => Promise<A[]>;
  /** After the commit and before anybody who waits hears. */
  readonly #answered: (request: Q, answer: A) => void;
  readonly #runtime: Runtime;
  #waiting: Waiting<Q, A>[] = [];
  #busy: Promise<void> | null = null;

  constructor(
    commit: (batch: Q[]) => Promise<A[]>,
    runtime: Runtime,
    answered: (request: Q, answer: A) => void = () => undefined,
  ) {
    this.#commit = commit;
    this.#runtime = runtime;
    this.#answered = answered;
  }

  ask(request: Q): Promise<A> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ request, resolve, reject });
      this.#busy ??= this.#work();
    });
  }

  /** Resolves when nothing is under way. */
  async idle(): Promise<void> {
    while (this.#busy !== null) await this.#busy;
  }

  async #work(): Promise<void> {
    // What arrives in one turn shares a transaction.
    await new Promise<void>((resolve) => this.#runtime.timers.nextTurn(resolve));
    while (this.#waiting.length > 0) await this.#together(this.#waiting.splice(0, BATCH_MAX));
    // In the same turn as the last look: who comes next starts anew.
    this.#busy = null;
  }

  async #together(batch: readonly Waiting<Q, A>[]): Promise<void> {
    let answers: A[];
    try {
      answers = await this.#commit(batch.map(({ request }) => request));
    } catch (error) {
      if (error instanceof RetryableError || batch.length === 1) {
        for (const { reject } of batch) reject(error);
        return;
      }
      // Something in the batch: the others are not to suffer for it.
      for (const one of batch) await this.#together([one]);
      return;
    }
    for (const [at, { request, resolve }] of batch.entries()) {
      this.#answered(request, answers[at]!);
      resolve(answers[at]!);
    }
  }
}
