import type { Runtime } from '../base/runtime.ts';
import { type Answer, isComeBack, type OrderView } from './evidence.ts';
import type { Follower } from './follower.ts';
import type { Tally } from './progress.ts';
import type { TokenOf } from './tokens.ts';

/** No answer from the server for so long, and the rest of the crowd stays at home. */
const SILENCE_MS_MAX = 20_000;

export interface EarOptions {
  runtime: Runtime;
  tally: Tally;
  follower: Follower;
  tokenOf: TokenOf;
  silent: (reason: string) => void;
}

/** Hears what the buyers are told, keeps it as evidence, and has orders followed that are queued. */
export class Ear {
  readonly answers: Answer[] = [];
  readonly latenciesMs: number[] = [];
  readonly #on: EarOptions;
  /** Orders that buyers may rely on; each may be told of many times. */
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
    // What a 201 has confirmed is decided, also if a repeat cannot see that while the ledger is out.
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
