import type { Runtime } from '../base/runtime.ts';
import { type Answer, isComeBack, type OrderView } from './evidence.ts';
import type { Follower } from './follower.ts';
import type { Tally } from './progress.ts';
import type { TokenOf } from './tokens.ts';

/** If no server answers for this long, the rest of the crowd does not enter. */
const SILENCE_MS_MAX = 20_000;

export interface EarOptions {
  runtime: Runtime;
  tally: Tally;
  follower: Follower;
  tokenOf: TokenOf;
  silent: (reason: string) => void;
}

/** Records every answer as evidence, and has queued orders followed. */
export class Ear {
  readonly answers: Answer[] = [];
  readonly latenciesMs: number[] = [];
  readonly #on: EarOptions;
  /** Ids of orders that buyers were promised; an order may be answered many times. */
  readonly #sold = new Set<string>();
  #lastAnswerMs: number;

  constructor(options: EarOptions) {
    this.#on = options;
    this.#lastAnswerMs = options.runtime.clock.monotonic();
  }

  hear(answer: Answer, tookMs: number | null): void {
    const { tally, follower, tokenOf } = this.#on;
    this.answers.push(answer);
    tally.requests++;
    if (answer.status === 201 && answer.order !== null) this.#sell(answer.order.id);
    // An order that a 201 confirmed is decided, even if a repeat gets 202 while the ledger is down.
    if (answer.status === 202 && answer.order !== null && !this.#sold.has(answer.order.id))
      follower.add(answer.order.id, tokenOf(answer.buyer));
    if (answer.status === 409 && !isComeBack(answer)) tally.refused++;
    tally.queued = follower.left;
    this.#listen(tookMs);
  }

  decided({ id, status }: OrderView): void {
    const { tally, follower } = this.#on;
    if (status === 'rejected') tally.rejected++;
    else this.#sell(id);
    if (tally.stage === 'queued') tally.done++;
    tally.queued = follower.left;
  }

  #sell(id: string): void {
    this.#on.tally.sold = this.#sold.add(id).size;
  }

  #listen(tookMs: number | null): void {
    const nowMs = this.#on.runtime.clock.monotonic();
    if (tookMs !== null) {
      this.latenciesMs.push(tookMs);
      this.#lastAnswerMs = nowMs;
    } else if (nowMs - this.#lastAnswerMs > SILENCE_MS_MAX) {
      this.#on.silent(`the server has not answered for ${SILENCE_MS_MAX / 1000} s`);
    }
  }
}
